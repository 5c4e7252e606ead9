//! One host asks many senders for a block at once: real ones through the relay, Linux beside Towpath, and simulated ones.

use super::crowd::{self, Contender, Crowd, Half, Losses, as_json};
use super::measure::quantile;
use super::wire::Wire;
use super::{fabric, wire};
use serde::Serialize;
use serde_json::Value;
use std::io;

/// Arguments of `towpath bench incast`.
#[derive(clap::Args)]
pub struct Options {
    #[command(flatten)]
    crowd: Crowd,
    /// Relay: connections asked at once.
    #[arg(long, value_delimiter = ',', default_values_t = [8, 16, 32, 64, 128])]
    fan_in: Vec<u32>,
    /// Relay: what each answers, in KiB.
    #[arg(long, default_value_t = 64)]
    kib: u64,
    /// Relay: requests in each run.
    #[arg(long, default_value_t = 30)]
    requests: usize,
}

/// One row: a fan-in of one contender.
#[derive(Serialize)]
struct Row {
    experiment: &'static str,
    over: &'static str,
    #[serde(flatten)]
    who: Contender,
    fan_in: u32,
    mbit: u32,
    kib: u64,
    /// Requests of all rounds.
    requests: usize,
    /// All payload at the rate of the bottleneck, µs.
    wire_us: f64,
    p50_us: f64,
    p99_us: f64,
    #[serde(flatten)]
    losses: Losses,
}

/// Runs both halves, or one.
pub fn run(options: &Options) -> io::Result<()> {
    let wire = if options.crowd.wants(Half::Relay) { Some(wire::for_crowd("incast")?) } else { None };
    if options.crowd.wants(Half::Simulated) {
        fabric::run("incast", &options.crowd)?;
    }
    wire.map_or(Ok(()), |wire| relay(&wire, options))
}

fn relay(wire: &Wire, options: &Options) -> io::Result<()> {
    let Options { crowd, kib, requests, .. } = options;
    if !crowd.json {
        println!("{requests} real requests for {kib} KiB from each sender through towpath-relay: {}", crowd.path());
        println!(
            "{:>6} {:18} {:>9} {:>9} {:>9} {:>8} {:>8} {:>8} {:>7}",
            "fan-in", "who", "wire µs", "p50 µs", "p99 µs", "drops", "marks", "retrans", "missed"
        );
    }
    for &fan_in in &options.fan_in {
        let flags = ["--bytes".into(), (kib << 10).to_string(), "--rounds".into(), requests.to_string()];
        let one = |who: &Contender| crowd::run(wire, crowd, who, (fan_in, kib << 10), ("incast", &flags));
        for (who, reports, losses) in crowd::rounds(crowd, &format!("{fan_in} senders"), one)? {
            print(&row(options, fan_in, &who, &reports, losses), crowd.json);
        }
    }
    Ok(())
}

fn row(options: &Options, fan_in: u32, who: &Contender, reports: &[Value], losses: Losses) -> Row {
    let took = reports.iter().filter_map(|report| report["took_us"].as_array()).flatten().filter_map(Value::as_f64);
    let took: Vec<f64> = took.collect();
    let mbit = options.crowd.mbit;
    Row {
        experiment: "incast",
        over: "relay",
        who: *who,
        fan_in,
        mbit,
        kib: options.kib,
        requests: took.len(),
        wire_us: f64::from(fan_in) * (options.kib << 13) as f64 / f64::from(mbit),
        p50_us: quantile(&took, 0.5),
        p99_us: quantile(&took, 0.99),
        losses,
    }
}

fn print(row: &Row, json: bool) {
    if as_json(json, row) {
        return;
    }
    let Losses { drops, marks, retransmits, missed } = row.losses;
    println!(
        "{:>6} {:18} {:>9.0} {:>9.0} {:>9.0} {drops:>8} {marks:>8} {retransmits:>8} {missed:>7}",
        row.fan_in,
        row.who.name(),
        row.wire_us,
        row.p50_us,
        row.p99_us
    );
}
