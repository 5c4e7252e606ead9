//! The part of `towpath status` about `auto`: the measurements and the choice for each class of connections.

use super::age;
use std::fmt::Write;
use towpath_service::auto::report::{ClassReport, WayReport};

const TITLES: [&str; 8] = ["PROGRAM", "SOCKETS", "WAY", "CPU", "P50", "GOODPUT", "MEASURED", "WHY"];

/// A table of all classes. Empty if there is none. Pairs of numbers are the stack's and the kernel's.
pub fn table(out: &mut String, rows: &[ClassReport]) {
    if rows.is_empty() {
        return;
    }
    let lines: Vec<[String; 8]> = [TITLES.map(str::to_owned)].into_iter().chain(rows.iter().map(line)).collect();
    let mut widths = [0; 8];
    for line in &lines {
        (0..8).for_each(|at| widths[at] = widths[at].max(line[at].chars().count()));
    }
    out.push_str("auto (stack / kernel):\n");
    for line in &lines {
        let cells: Vec<_> = line.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        let _ = writeln!(out, "  {}", cells.join("  ").trim_end());
    }
}

fn line(row: &ClassReport) -> [String; 8] {
    let port = if row.port == 0 { "picked ports".into() } else { format!("port {}", row.port) };
    let to = row.scope.as_deref().map_or(String::new(), |scope| format!(" to this {scope}"));
    let to = to.replace("this network", "the network");
    let per = if row.stack.bulk || row.kernel.bulk { "KiB" } else { "request" };
    let since = row.since_us.map_or(String::new(), |us| format!(", for {}", age(us)));
    let again = row.again_us.map_or(String::new(), |us| format!("; tried again in {}", age(us)));
    [
        row.program.clone(),
        format!("{}{to}, {port}", row.direction),
        row.decision.clone(),
        both(row, |side| side.cpu_ns.map(time), &format!(" per {per}")),
        both(row, |side| side.p50_ns.map(time), ""),
        both(row, |side| side.goodput.filter(|_| side.bulk).map(rate), ""),
        format!("{} / {} connections", row.stack.connections, row.kernel.connections),
        format!("{}{since}{again}", row.reason),
    ]
}

fn both(row: &ClassReport, of: impl Fn(&WayReport) -> Option<String>, unit: &str) -> String {
    match (of(&row.stack), of(&row.kernel)) {
        (None, None) => "-".into(),
        (stack, kernel) => {
            let or_none = |text: Option<String>| text.unwrap_or_else(|| "?".into());
            format!("{} / {}{unit}", or_none(stack), or_none(kernel))
        }
    }
}

/// 870 ns, 8.7 µs, 87 µs, 8.7 ms.
fn time(ns: u64) -> String {
    match ns {
        0..1000 => format!("{ns} ns"),
        1000..10_000 => format!("{:.1} µs", ns as f64 / 1e3),
        10_000..1_000_000 => format!("{:.0} µs", ns as f64 / 1e3),
        _ => format!("{:.1} ms", ns as f64 / 1e6),
    }
}

fn rate(bytes_per_s: u64) -> String {
    match bytes_per_s {
        0..10_000_000 => format!("{:.1} MB/s", bytes_per_s as f64 / 1e6),
        10_000_000..1_000_000_000 => format!("{:.0} MB/s", bytes_per_s as f64 / 1e6),
        _ => format!("{:.1} GB/s", bytes_per_s as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_says_what_is_decided_and_from_which_figures() {
        let side = |cpu_ns, p50_ns| WayReport {
            connections: 25,
            turns: 5000,
            bytes: 500_000,
            bulk: false,
            cpu_ns: Some(cpu_ns),
            p50_ns,
            goodput: Some(77),
        };
        let row = ClassReport {
            program: "redis-benchmark".into(),
            uid: 1000,
            direction: "connect".into(),
            scope: Some("host".into()),
            port: 7000,
            decision: "stack".into(),
            reason: "the stack gains (+53 %)".into(),
            since_us: Some(3_000_000),
            again_us: Some(303_000_000),
            trials: 1,
            stack: side(8_700, Some(870)),
            kernel: side(13_300, None),
        };
        let bulk = WayReport { bulk: true, goodput: Some(1_500_000_000), ..side(62, None) };
        let server = ClassReport {
            program: "nginx".into(),
            direction: "accept".into(),
            scope: None,
            port: 0,
            decision: "trial".into(),
            reason: "both ways are being tried".into(),
            since_us: None,
            again_us: None,
            stack: bulk.clone(),
            kernel: WayReport { connections: 0, cpu_ns: None, goodput: None, ..bulk },
            ..row.clone()
        };
        let mut out = String::new();
        table(&mut out, &[row, server]);
        let expected = "\
auto (stack / kernel):
  PROGRAM          SOCKETS                          WAY    CPU                          P50         GOODPUT       MEASURED              WHY
  redis-benchmark  connect to this host, port 7000  stack  8.7 µs / 13 µs per request  870 ns / ?  -             25 / 25 connections  the stack gains (+53 %), for 3 s; tried again in 5 min 3 s
  nginx            accept, picked ports             trial  62 ns / ? per KiB            -           1.5 GB/s / ?  25 / 0 connections   both ways are being tried
";
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(words(&out), words(expected));
        let mut nothing = String::new();
        table(&mut nothing, &[]);
        assert_eq!(nothing, "");
    }
}
