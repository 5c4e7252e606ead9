//! How evenly many flows share one port: real ones through the relay, Linux beside Towpath, and simulated ones.

use crate::impaired_path::ImpairedPath;
use crate::many_flows::{self, Contender, Load, Losses, ManyFlows};
use serde::Serialize;
use serde_json::Value;
use std::io;
use towpath_bench_report::{ShareSummary, Shares, print_json};

/// Arguments of `towpath bench fairness`.
#[derive(clap::Args)]
pub struct Options {
    #[command(flatten)]
    many: ManyFlows,
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
    contender: Contender,
    flows: u32,
    mbit: u32,
    window_s: f64,
    #[serde(flatten)]
    shares: ShareSummary,
    #[serde(flatten)]
    losses: Losses,
}

/// Runs both halves, or one.
pub fn run(options: &Options) -> io::Result<()> {
    many_flows::run("fairness", &options.many, |path| relay(path, options))
}

fn relay(path: &ImpairedPath, options: &Options) -> io::Result<()> {
    let Options { many, window, windows, warm_up, flows } = options;
    if !many.json {
        println!("real flows through towpath-impair in windows of {window} s: {}", many.bottleneck());
        println!(
            "{:>6} {:18} {:>6} {:>7} {:>7} {:>7} {:>6} {:>6} {:>8} {:>8} {:>8} {:>7}",
            "flows", "who", "used", "jain", "least", "median", "p1", "p99", "drops", "marks", "retrans", "missed"
        );
    }
    let flags = format!("--window-seconds {window} --windows {windows} --warm-up-seconds {warm_up}");
    let flags: Vec<String> = flags.split(' ').map(str::to_owned).collect();
    for &connections in flows {
        let load = Load { connections, block_bytes: 0, role: "share", flags: &flags };
        for (contender, reports, losses) in many_flows::rounds(path, many, &format!("{connections} flows"), &load)? {
            print(&row(options, connections, contender, &reports, losses), many.json);
        }
    }
    Ok(())
}

fn row(options: &Options, flows: u32, contender: Contender, reports: &[Value], losses: Losses) -> Row {
    let mut shares = Shares::default();
    for window in reports.iter().filter_map(|report| report["windows"].as_array()).flatten() {
        let got: Vec<f64> = window.as_array().into_iter().flatten().filter_map(Value::as_f64).collect();
        shares.add_window(&got, flows);
    }
    let mbit = options.many.mbit;
    Row {
        experiment: "fairness",
        over: "relay",
        contender,
        flows,
        mbit,
        window_s: options.window,
        shares: shares.summary(options.window, f64::from(mbit) * 1e6),
        losses,
    }
}

fn print(row: &Row, json: bool) {
    if print_json(json, row) {
        return;
    }
    let (shares, Losses { drops, marks, retransmits, missed }) = (row.shares, row.losses);
    println!(
        "{:>6} {:18} {:>5.1}% {:>7.4} {:>7.4} {:>7.3} {:>6.3} {:>6.3} {drops:>8} {marks:>8} {retransmits:>8} {missed:>7}",
        row.flows,
        row.contender.name(),
        100.0 * shares.utilization,
        shares.jain,
        shares.jain_least,
        shares.median,
        shares.p1,
        shares.p99,
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
    fn a_row_is_of_the_windows_of_all_reports() {
        let Line { options } = Line::parse_from(["fairness", "--mbit", "8", "--window", "2"]);
        let report = |window: [u32; 2]| serde_json::json!({ "windows": [window] });
        let reports = [report([500_000, 1_500_000]), report([750_000, 750_000])];
        let row = row(&options, 2, many_flows::CONTENDERS[0], &reports, Losses::default());
        assert_eq!((row.shares.median, row.shares.p1, row.shares.p99), (1.0, 0.5, 1.5));
        assert!((row.shares.utilization - 3.5 / 4.0).abs() < 1e-9, "{}", row.shares.utilization);
    }
}
