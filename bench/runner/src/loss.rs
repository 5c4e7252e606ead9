//! One bulk connection over a bad path: Linux (cubic) and Towpath as senders, a Linux receiver, the same losses.

use crate::impaired_path::{Host, ImpairedPath, RECEIVER};
use crate::side_by_side::STACKS;
use clap::Args;
use serde::Serialize;
use std::io;
use towpath_bench_report::{median, print_json};

/// Arguments of `towpath bench loss`.
#[derive(Args)]
pub struct Options {
    /// One JSON object per row instead of the table.
    #[arg(long)]
    json: bool,
    /// Measured seconds of one run, after one second of warm-up.
    #[arg(long, default_value_t = 8.0)]
    seconds: f64,
    /// Rounds of Linux, Towpath; the median counts. Each round has another seed.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Only the path of this name (see the table's first column).
    #[arg(long)]
    shape: Option<String>,
    /// Bottleneck.
    #[arg(long, default_value = "50mbit")]
    rate: String,
    /// Delay one way.
    #[arg(long, default_value = "10ms")]
    delay: String,
    /// Queue of the bottleneck.
    #[arg(long, default_value = "256k")]
    queue: String,
}

/// Each path's name and flags of `towpath-impair`. Only the direction of the data is impaired.
const PATHS: [(&str, &[&str]); 8] = [
    ("clean", &[]),
    ("loss-0.01%", &["--loss", "0.01%"]),
    ("loss-0.1%", &["--loss", "0.1%"]),
    ("loss-1%", &["--loss", "1%"]),
    ("loss-2%", &["--loss", "2%"]),
    ("loss-5%", &["--loss", "5%"]),
    ("reorder-3%", &["--reorder", "3%:2ms"]),
    ("burst-0.1%x8", &["--burst", "0.1%:8"]),
];

/// One row: a path over a stack.
#[derive(Clone, Debug, Serialize)]
struct Row {
    experiment: &'static str,
    shape: &'static str,
    stack: &'static str,
    /// Payload that the receiver's program got.
    goodput_mbit: f64,
    /// Segments sent again, warm-up included.
    retransmits: f64,
    /// Frames that the relay lost, its queue's drops included.
    lost: f64,
    /// Longest time without a byte for the receiver's program.
    longest_stall_ms: f64,
    /// `goodput_mbit` divided by Linux's in the same rounds (median of the rounds' ratios).
    ratio: f64,
}

/// Runs every path and prints its rows as they come.
pub fn run(options: &Options) -> io::Result<()> {
    let path = ImpairedPath::new()?;
    if !options.json {
        let Options { rate, delay, queue, rounds, seconds, .. } = options;
        println!(
            "bulk over {rate}, {delay} each way, queue {queue}; median of {rounds} interleaved rounds of {seconds} s"
        );
        println!(
            "{:14} {:8} {:>12} {:>7} {:>8} {:>7} {:>9}",
            "path", "stack", "Mbit/s", "ratio", "retrans", "lost", "stall ms"
        );
    }
    for (shape, flags) in PATHS {
        if options.shape.as_deref().is_some_and(|wanted| wanted != shape) {
            continue;
        }
        for row in compare(&path, options, shape, flags)? {
            print(&row, options.json);
        }
    }
    Ok(())
}

fn print(row: &Row, json: bool) {
    if print_json(json, row) {
        return;
    }
    println!(
        "{:14} {:8} {:>12.2} {:>6.2}x {:>8.0} {:>7.0} {:>9.0}",
        row.shape, row.stack, row.goodput_mbit, row.ratio, row.retransmits, row.lost, row.longest_stall_ms
    );
}

fn compare(path: &ImpairedPath, options: &Options, shape: &'static str, flags: &[&str]) -> io::Result<[Row; 2]> {
    let mut runs: [Vec<Row>; 2] = [Vec::new(), Vec::new()];
    for round in 0..options.rounds.max(1) {
        for (index, stack) in STACKS.into_iter().enumerate() {
            eprint!("\r{shape}: round {} of {}, {stack}        ", round + 1, options.rounds);
            runs[index].push(one(path, options, shape, stack, flags, round + 1)?);
        }
    }
    eprint!("\r{:60}\r", "");
    let ratio = median(runs[1].iter().zip(&runs[0]).map(|(ours, linux)| ours.goodput_mbit / linux.goodput_mbit));
    let mut rows = runs.map(|rows| {
        let of = |field: fn(&Row) -> f64| median(rows.iter().map(field));
        Row {
            goodput_mbit: of(|row| row.goodput_mbit),
            retransmits: of(|row| row.retransmits),
            lost: of(|row| row.lost),
            longest_stall_ms: of(|row| row.longest_stall_ms),
            ..rows[0].clone()
        }
    });
    rows[1].ratio = ratio;
    Ok(rows)
}

fn one(
    path: &ImpairedPath,
    options: &Options,
    shape: &'static str,
    stack: &'static str,
    flags: &[&str],
    seed: usize,
) -> io::Result<Row> {
    let Options { rate, delay, queue, .. } = options;
    let seed = seed.to_string();
    let bottleneck = ["--rate", rate, "--delay", delay, "--queue", queue, "--seed", &seed];
    let relay = path.relay(&[&bottleneck[..], flags].concat())?;
    // The service and its program may change the veth's offloads, so they exist only while they are measured. The send
    // ring is large enough to be no limit.
    let service = match stack {
        "towpath" => Some(path.serve(Host::Sender, "send_buffer = \"1MiB\"\n")?),
        _ => None,
    };
    let at = format!("{RECEIVER}:9003");
    let words = ["sink".to_owned(), at.clone(), "--seconds".to_owned(), options.seconds.to_string()];
    let mut sink = path.start(path.rpc(Host::Receiver, None, &words)?, "sink.log", "ready")?;
    let before = path.retransmitted()?;
    let source = path.rpc(Host::Sender, service.as_ref(), &["source".to_owned(), at])?;
    let source = path.start(source, "source.log", "")?;
    sink.wait_end(options.seconds + 40.0)?;
    let retransmits = match &service {
        Some(service) => service.retransmitted()?,
        None => path.retransmitted()? - before,
    };
    drop(source);
    drop(service);
    drop(relay);
    let (got, lost) = (path.last_json("sink.log")?, path.last_json("relay.log")?);
    let count = |name: &str| lost["a_to_b"][name].as_f64().unwrap_or(f64::NAN);
    let number = |name: &str| got[name].as_f64().unwrap_or(f64::NAN);
    Ok(Row {
        experiment: "loss",
        shape,
        stack,
        goodput_mbit: number("bytes") * 8e-6 / number("seconds"),
        retransmits: retransmits as f64,
        lost: count("lost") + count("lost_in_bursts") + count("queue_full"),
        longest_stall_ms: number("longest_stall_ms"),
        ratio: 1.0,
    })
}
