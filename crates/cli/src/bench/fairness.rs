//! How evenly many flows share one port: real ones through the relay, Linux beside Towpath, and simulated ones.

use super::crowd::{self, Contender, Crowd, Half, Losses, as_json};
use super::measure::{jain, quantile};
use super::wire::Wire;
use super::{fabric, wire};
use serde::Serialize;
use serde_json::Value;
use std::io;

/// Arguments of `towpath bench fairness`.
#[derive(clap::Args)]
pub struct Options {
    #[command(flatten)]
    crowd: Crowd,
    /// Relay: numbers of flows.
    #[arg(long, value_delimiter = ',', default_values_t = [50, 100, 200, 500])]
    flows: Vec<u32>,
    /// Relay: length of a window in seconds.
    #[arg(long, default_value_t = 1.0)]
    window: f64,
    /// Relay: windows measured in each run.
    #[arg(long, default_value_t = 4)]
    windows: usize,
    /// Relay: seconds before that.
    #[arg(long, default_value_t = 2.0)]
    warm_up: f64,
}

/// One row: a number of flows of one contender.
#[derive(Serialize)]
struct Row {
    experiment: &'static str,
    over: &'static str,
    #[serde(flatten)]
    who: Contender,
    flows: u32,
    mbit: u32,
    window_s: f64,
    /// Payload over the bottleneck's bits.
    utilization: f64,
    /// Jain's index of a window: median and least of the windows of all rounds.
    jain: f64,
    jain_least: f64,
    /// Throughput of a flow in a window over the fair share: quantiles over flows, windows and rounds.
    median: f64,
    p1: f64,
    p99: f64,
    #[serde(flatten)]
    losses: Losses,
}

/// Runs both halves, or one.
pub fn run(options: &Options) -> io::Result<()> {
    let wire = if options.crowd.wants(Half::Relay) { Some(wire::for_crowd("fairness")?) } else { None };
    if options.crowd.wants(Half::Simulated) {
        fabric::run("fairness", &options.crowd)?;
    }
    wire.map_or(Ok(()), |wire| relay(&wire, options))
}

fn relay(wire: &Wire, options: &Options) -> io::Result<()> {
    let Options { crowd, window, .. } = options;
    if !crowd.json {
        println!("real flows through towpath-relay in windows of {window} s: {}", crowd.path());
        println!(
            "{:>6} {:18} {:>6} {:>7} {:>7} {:>7} {:>6} {:>6} {:>8} {:>8} {:>8} {:>7}",
            "flows", "who", "used", "jain", "least", "median", "p1", "p99", "drops", "marks", "retrans", "missed"
        );
    }
    for &flows in &options.flows {
        let flags = [
            ("--window-seconds", window.to_string()),
            ("--windows", options.windows.to_string()),
            ("--warm-up-seconds", options.warm_up.to_string()),
        ];
        let flags: Vec<String> = flags.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]).collect();
        let one = |who: &Contender| crowd::run(wire, crowd, who, (flows, 0), ("share", &flags));
        for (who, reports, losses) in crowd::rounds(crowd, &format!("{flows} flows"), one)? {
            print(&row(options, flows, &who, &reports, losses), crowd.json);
        }
    }
    Ok(())
}

fn row(options: &Options, flows: u32, who: &Contender, reports: &[Value], losses: Losses) -> Row {
    let (mut jains, mut shares, mut total) = (Vec::new(), Vec::new(), 0.0);
    for window in reports.iter().filter_map(|report| report["windows"].as_array()).flatten() {
        let got: Vec<f64> = window.as_array().into_iter().flatten().filter_map(Value::as_f64).collect();
        let sum: f64 = got.iter().sum();
        jains.push(jain(&got));
        shares.extend(got.iter().map(|bytes| bytes * f64::from(flows) / sum.max(1.0)));
        total += sum;
    }
    let seconds = jains.len() as f64 * options.window;
    Row {
        experiment: "fairness",
        over: "relay",
        who: *who,
        flows,
        mbit: options.crowd.mbit,
        window_s: options.window,
        utilization: total * 8e-6 / seconds / f64::from(options.crowd.mbit),
        jain: quantile(&jains, 0.5),
        jain_least: quantile(&jains, 0.0),
        median: quantile(&shares, 0.5),
        p1: quantile(&shares, 0.01),
        p99: quantile(&shares, 0.99),
        losses,
    }
}

fn print(row: &Row, json: bool) {
    if as_json(json, row) {
        return;
    }
    let Losses { drops, marks, retransmits, missed } = row.losses;
    println!(
        "{:>6} {:18} {:>5.1}% {:>7.4} {:>7.4} {:>7.3} {:>6.3} {:>6.3} {drops:>8} {marks:>8} {retransmits:>8} {missed:>7}",
        row.flows,
        row.who.name(),
        100.0 * row.utilization,
        row.jain,
        row.jain_least,
        row.median,
        row.p1,
        row.p99,
    );
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    #[test]
    fn shares_are_of_the_mean_of_their_window() {
        let Line { options } = Line::parse_from(["fairness", "--mbit", "8", "--window", "2"]);
        let reports = [serde_json::json!({"windows": [[500_000, 1_500_000], [750_000, 750_000]]})];
        let row = row(&options, 2, &crowd::CONTENDERS[0], &reports, Losses::default());
        assert_eq!((row.median, row.p1, row.p99), (1.0, 0.5, 1.5));
        assert!((row.utilization - 3.5 / 4.0).abs() < 1e-9, "{}", row.utilization);
        assert!((row.jain_least - 0.8).abs() < 1e-9, "{}", row.jain_least);
    }
}
