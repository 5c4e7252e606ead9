//! The kernel stack beside the kernel's own calls: the same program sends to the same sink, in turn.

use super::echo;
use super::lab::{Lab, Process, Side};
use super::measure::{median, under};
use serde::Serialize;
use serde_json::Value;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;

/// Arguments of `towpath bench offload`.
#[derive(clap::Args)]
pub struct Options {
    /// One JSON object per row instead of the table
    #[arg(long)]
    json: bool,
    /// Measured seconds of one run
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Rounds of all ways; the median counts
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Only sends of so many bytes (0: only the request's time)
    #[arg(long)]
    bytes: Option<usize>,
}

/// The ways that are compared: by whom, and with `TCP_NODELAY` or not.
const WAYS: [(&str, bool); 3] = [("linux nodelay", true), ("linux nagle", false), ("kernel stack", true)];
/// Which of them is ours.
const OURS: usize = 2;
/// Bytes of a send.
const SIZES: [usize; 5] = [64, 256, 1448, 16 << 10, 64 << 10];
/// The sink's side.
const SINK: &str = "10.77.0.2:9000";

/// One run.
#[derive(Clone, Copy)]
struct Run {
    /// Payload, or requests, per second.
    per_s: f64,
    /// CPU time of the sending thread per send, ns; of a request its time, µs.
    cost: f64,
}

#[derive(Serialize)]
struct Row {
    /// `sends of N bytes` or `64 bytes back and forth`.
    shape: String,
    way: &'static str,
    /// Payload bits, or requests, per second.
    per_s: f64,
    /// CPU time of the application per send, ns.
    app_ns_per_send: Option<f64>,
    /// Median time of a request, µs.
    p50_us: Option<f64>,
    /// `per_s` divided by that of Linux's better way in the same rounds (median of the rounds' ratios).
    to_best_linux: f64,
}

/// Runs it and prints the rows.
pub fn run(options: &Options) -> io::Result<()> {
    let bench = Bench::new()?;
    if !options.json {
        println!(
            "one connection to plain Linux over a veth; median of {} interleaved rounds of {} s",
            options.rounds, options.seconds
        );
        println!(
            "{:24} {:14} {:>14} {:>14} {:>9} {:>14}",
            "shape", "way", "per second", "app ns/send", "p50 µs", "to best linux"
        );
    }
    for bytes in SIZES.into_iter().filter(|bytes| options.bytes.is_none_or(|wanted| wanted == *bytes)) {
        let shape = format!("sends of {bytes} bytes");
        let runs = bench.rounds(options, &shape, |way, nodelay| bench.sends(options, way, nodelay, bytes))?;
        for row in rows(&shape, &runs, 8.0, true) {
            print(options, &row);
        }
    }
    if options.bytes.is_none_or(|wanted| wanted == 0) {
        let shape = "64 bytes back and forth";
        let runs = bench.rounds(options, shape, |way, _| bench.requests(options, way))?;
        for row in rows(shape, &runs, 1.0, false) {
            print(options, &row);
        }
    }
    Ok(())
}

/// The rows of a shape from its runs by way and round.
fn rows(shape: &str, runs: &[Vec<Run>; WAYS.len()], unit: f64, sends: bool) -> Vec<Row> {
    let best = |round: usize| runs[..OURS].iter().map(|runs| runs[round].per_s).fold(0.0, f64::max);
    let row = |(way, own): (&(&'static str, bool), &Vec<Run>)| {
        let cost = median(own.iter().map(|run| run.cost).collect());
        Row {
            shape: shape.to_owned(),
            way: way.0,
            per_s: unit * median(own.iter().map(|run| run.per_s).collect()),
            app_ns_per_send: sends.then_some(cost),
            p50_us: (!sends).then_some(cost),
            to_best_linux: median(own.iter().enumerate().map(|(round, run)| run.per_s / best(round)).collect()),
        }
    };
    WAYS.iter().zip(runs).map(row).collect()
}

fn print(options: &Options, row: &Row) {
    if options.json {
        println!("{}", serde_json::to_string(row).unwrap_or_default());
        return;
    }
    let figure = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.1}"));
    let per_s = match row.app_ns_per_send {
        Some(_) => format!("{:.2} Gbit", row.per_s / 1e9),
        None => format!("{:.0}", row.per_s),
    };
    println!(
        "{:24} {:14} {per_s:>14} {:>14} {:>9} {:>13.2}x",
        row.shape,
        row.way,
        figure(row.app_ns_per_send),
        figure(row.p50_us),
        row.to_best_linux
    );
}

/// What all runs share. The kernel stack is there all the time: asleep it costs nothing.
struct Bench {
    lab: Lab,
    rpc: OsString,
    stack: (Process, PathBuf),
    _sink: Process,
    _echo: Process,
}

impl Bench {
    fn new() -> io::Result<Self> {
        let rpc = std::env::current_exe()?.with_file_name("towpath-rpc");
        if !rpc.exists() {
            return Err(io::Error::other(format!("{} is missing: cargo build --release --workspace", rpc.display())));
        }
        let (lab, rpc) = (Lab::new()?, rpc.into_os_string());
        let words = |role: &str, at: &str| [rpc.clone(), role.into(), at.into()];
        let sink = lab.start(lab.command(Side::Client, &words("drain", SINK)), "sink.log", "ready")?;
        let echo = lab.start(lab.command(Side::Client, &words("server", ECHO)), "echo.log", "ready")?;
        Ok(Self { stack: lab.kernel_stack()?, lab, rpc, _sink: sink, _echo: echo })
    }

    fn rounds(
        &self,
        options: &Options,
        shape: &str,
        one: impl Fn(usize, bool) -> io::Result<Run>,
    ) -> io::Result<[Vec<Run>; WAYS.len()]> {
        let mut runs: [Vec<Run>; WAYS.len()] = Default::default();
        for round in 0..options.rounds.max(1) {
            for (way, runs) in runs.iter_mut().enumerate() {
                eprint!("\r{shape}: round {} of {}, {}        ", round + 1, options.rounds, WAYS[way].0);
                runs.push(one(way, WAYS[way].1)?);
            }
        }
        eprint!("\r{:70}\r", "");
        Ok(runs)
    }

    fn words(&self, way: usize) -> io::Result<Vec<OsString>> {
        let mut words = if way == OURS { under(&self.stack.1)? } else { Vec::new() };
        words.push(self.rpc.clone());
        Ok(words)
    }

    fn sends(&self, options: &Options, way: usize, nodelay: bool, bytes: usize) -> io::Result<Run> {
        let mut command = self.lab.command(Side::Server, &self.words(way)?);
        command.args(["sends", SINK, "--bytes", &bytes.to_string(), "--seconds", &options.seconds.to_string()]);
        if nodelay {
            command.arg("--nodelay");
        }
        let output = command.output()?;
        let failed = || io::Error::other(format!("the sender failed: {}", String::from_utf8_lossy(&output.stderr)));
        let report: Value = serde_json::from_slice(&output.stdout).map_err(|_| failed())?;
        let field = |name: &str| report[name].as_f64().ok_or_else(failed);
        Ok(Run { per_s: field("bytes_per_s")?, cost: field("cpu_ns_per_send")? })
    }

    fn requests(&self, options: &Options, way: usize) -> io::Result<Run> {
        let mut command = self.lab.command(Side::Server, &self.words(way)?);
        command.args(["client", ECHO, "--connections", "1", "--depth", "1", "--seconds", &options.seconds.to_string()]);
        let figures = echo::figures(&command.output()?)?;
        Ok(Run { per_s: figures.requests_per_s, cost: figures.p50_us })
    }
}

/// The echo server's side.
const ECHO: &str = "10.77.0.2:9001";
