//! One host asks many senders for a block at once: real ones through the relay, Linux beside Towpath, and simulated
//! ones.

use crate::impaired_path::ImpairedPath;
use crate::many_flows::{self, Contender, Load, Losses, ManyFlows};
use serde::Serialize;
use serde_json::Value;
use std::io;
use towpath_bench_report::{Completion, print_json, wire_us};

/// Arguments of `towpath bench incast`.
#[derive(clap::Args)]
pub struct Options {
    #[command(flatten)]
    many: ManyFlows,
    /// Relay: connections asked at once.
    #[arg(long, value_delimiter = ',', default_values_t = [8, 16, 32, 64, 128])]
    fan_in: Vec<u32>,
    /// Relay: size of each answer in KiB.
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
    contender: Contender,
    fan_in: u32,
    mbit: u32,
    kib: u64,
    /// Requests of all rounds.
    requests: usize,
    /// All payload at the rate of the bottleneck, µs.
    wire_us: f64,
    #[serde(flatten)]
    completion: Completion,
    #[serde(flatten)]
    losses: Losses,
}

/// Runs both halves, or one.
pub fn run(options: &Options) -> io::Result<()> {
    many_flows::run("incast", &options.many, |path| relay(path, options))
}

fn relay(path: &ImpairedPath, options: &Options) -> io::Result<()> {
    let Options { many, kib, requests, fan_in } = options;
    if !many.json {
        let bottleneck = many.bottleneck();
        println!("{requests} real requests for {kib} KiB from each sender through towpath-impair: {bottleneck}");
        println!(
            "{:>6} {:18} {:>9} {:>9} {:>9} {:>8} {:>8} {:>8} {:>7}",
            "fan-in", "who", "wire µs", "p50 µs", "p99 µs", "drops", "marks", "retrans", "missed"
        );
    }
    let block_bytes = kib << 10;
    let flags = ["--bytes".into(), block_bytes.to_string(), "--rounds".into(), requests.to_string()];
    for &connections in fan_in {
        let load = Load { connections, block_bytes, role: "incast", flags: &flags };
        for (contender, reports, losses) in many_flows::rounds(path, many, &format!("{connections} senders"), &load)? {
            print(&row(options, connections, contender, &reports, losses), many.json);
        }
    }
    Ok(())
}

fn row(options: &Options, fan_in: u32, contender: Contender, reports: &[Value], losses: Losses) -> Row {
    let took = reports.iter().filter_map(|report| report["took_us"].as_array()).flatten().filter_map(Value::as_f64);
    let took: Vec<f64> = took.collect();
    let mbit = options.many.mbit;
    Row {
        experiment: "incast",
        over: "relay",
        contender,
        fan_in,
        mbit,
        kib: options.kib,
        requests: took.len(),
        wire_us: wire_us(fan_in, options.kib, f64::from(mbit) * 1e6),
        completion: Completion::of(&took),
        losses,
    }
}

fn print(row: &Row, json: bool) {
    if print_json(json, row) {
        return;
    }
    let Losses { drops, marks, retransmits, missed } = row.losses;
    println!(
        "{:>6} {:18} {:>9.0} {:>9.0} {:>9.0} {drops:>8} {marks:>8} {retransmits:>8} {missed:>7}",
        row.fan_in,
        row.contender.name(),
        row.wire_us,
        row.completion.p50_us,
        row.completion.p99_us
    );
}
