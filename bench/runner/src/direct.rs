//! Two programs of one host: over Linux's loopback device, over the stack (`direct = false`) and joined directly, in
//! turn.

use crate::process::{Process, wait};
use crate::programs::{ScratchDir, rpc, run_on, towpath};
use crate::side_by_side::Measured;
use crate::veth_pair::{CLIENT_CPU, SERVER_CPU};
use crate::{bulk, echo, redis};
use serde::Serialize;
use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use towpath_bench_report::{median, print_json};

/// Arguments of `towpath bench direct`.
#[derive(clap::Args)]
pub struct Options {
    /// One JSON object per row instead of the table
    #[arg(long)]
    json: bool,
    /// Measured seconds of one run
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Rounds of the three; the median counts
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Only the shape of this name (see the table's first column)
    #[arg(long)]
    shape: Option<String>,
}

/// The paths that are compared.
const PATHS: [&str; 3] = ["linux", "stack", "direct"];
/// About how many requests per second `redis-benchmark` makes. The number of its requests follows from it.
const REDIS: [(&str, u32, f64); 2] = [("redis-get-c50-P1", 1, 60_000.0), ("redis-get-c50-P16", 16, 400_000.0)];

#[derive(Serialize)]
struct Row {
    shape: String,
    way: &'static str,
    /// Requests, or for `bulk` bytes, per second.
    per_s: f64,
    p50_us: Option<f64>,
    p99_us: Option<f64>,
    /// `per_s` divided by Linux's in the same rounds (median of the rounds' ratios).
    to_linux: f64,
    /// Likewise by the stack's.
    to_stack: f64,
}

/// Reads a client's report.
type ReadReport = Box<dyn Fn(&std::process::Output) -> io::Result<Measured>>;

/// A server and its client. The server prints `ready` when it listens.
struct Shape {
    name: &'static str,
    server: String,
    ready: &'static str,
    client: String,
    read: ReadReport,
}

/// Runs it and prints the rows.
pub fn run(options: &Options) -> io::Result<()> {
    let bench = Bench::new()?;
    if !options.json {
        println!("two programs of one host; median of {} interleaved rounds of {} s", options.rounds, options.seconds);
        println!(
            "{:18} {:7} {:>14} {:>9} {:>9} {:>9} {:>9}",
            "shape", "way", "per second", "p50 µs", "p99 µs", "to linux", "to stack"
        );
    }
    for shape in shapes(options)? {
        if options.shape.as_deref().is_some_and(|wanted| wanted != shape.name) {
            continue;
        }
        let mut runs: [Vec<Measured>; 3] = Default::default();
        for round in 0..options.rounds.max(1) {
            for (path, runs) in PATHS.into_iter().zip(&mut runs) {
                eprint!("\r{}: round {} of {}, {path}        ", shape.name, round + 1, options.rounds);
                runs.push(bench.one(&shape, path)?);
            }
        }
        eprint!("\r{:60}\r", "");
        for (path, own) in PATHS.into_iter().zip(&runs) {
            print(options, &row(shape.name, path, own, &runs));
        }
    }
    Ok(())
}

fn row(shape: &str, path: &'static str, own: &[Measured], all: &[Vec<Measured>; 3]) -> Row {
    let ratio = |base: &[Measured]| median(own.iter().zip(base).map(|(a, b)| a.requests_per_s / b.requests_per_s));
    let of = |field: fn(&Measured) -> f64| Some(median(own.iter().map(field))).filter(|value| value.is_finite());
    Row {
        shape: shape.to_owned(),
        way: path,
        per_s: median(own.iter().map(|measured| measured.requests_per_s)),
        p50_us: of(|measured| measured.p50_us),
        p99_us: of(|measured| measured.p99_us),
        to_linux: ratio(&all[0]),
        to_stack: ratio(&all[1]),
    }
}

fn print(options: &Options, row: &Row) {
    if print_json(options.json, row) {
        return;
    }
    let time = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.1}"));
    println!(
        "{:18} {:7} {:>14.0} {:>9} {:>9} {:>8.2}x {:>8.2}x",
        row.shape,
        row.way,
        row.per_s,
        time(row.p50_us),
        time(row.p99_us),
        row.to_linux,
        row.to_stack
    );
}

fn shapes(options: &Options) -> io::Result<Vec<Shape>> {
    let (rpc, seconds) = (rpc()?, options.seconds);
    let rpc = rpc.display();
    let mut shapes = vec![Shape {
        name: "ping-pong-64B",
        server: format!("{rpc} server 127.0.0.1:9101"),
        ready: "ready",
        client: format!("{rpc} client 127.0.0.1:9101 --connections 1 --depth 1 --seconds {seconds}"),
        read: Box::new(echo::measured),
    }];
    for (name, depth, per_second) in REDIS {
        let requests = per_second * seconds;
        shapes.push(Shape {
            name,
            server: "redis-server --bind 127.0.0.1 --port 9102 --save --appendonly no".to_owned(),
            ready: "Ready to accept connections",
            client: format!("redis-benchmark -p 9102 -t get -c 50 -P {depth} -n {requests:.0} --csv"),
            read: Box::new(move |output| {
                redis::measured(&String::from_utf8_lossy(&output.stdout), requests).ok_or_else(|| failed(output))
            }),
        });
    }
    shapes.push(Shape {
        name: "bulk",
        server: "iperf3 -s -4 -B 127.0.0.1 -p 9103 --forceflush".to_owned(),
        ready: "Server listening",
        client: format!("iperf3 -4 -c 127.0.0.1 -p 9103 -t {} -J", seconds.ceil()),
        read: Box::new(|output| bulk::measured(&output.stdout).ok_or_else(|| failed(output))),
    });
    Ok(shapes)
}

fn failed(output: &std::process::Output) -> io::Error {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    io::Error::other(format!("the client failed: {out}{err}"))
}

/// Runs of one program pair after the other.
struct Bench {
    scratch: ScratchDir,
}

impl Bench {
    fn new() -> io::Result<Self> {
        Ok(Self { scratch: ScratchDir::new("direct")? })
    }

    fn one(&self, shape: &Shape, path: &str) -> io::Result<Measured> {
        let socket = self.scratch.0.join("towpath.sock");
        let _service = if path == "linux" { None } else { Some(self.serve(&socket, path == "direct")?) };
        let under = if path == "linux" { Vec::new() } else { run_on(&socket)? };
        let command = |line: &str, cpu: usize| {
            let mut words: Vec<OsString> = ["taskset".into(), "-c".into(), cpu.to_string().into()].into();
            words.extend(under.iter().cloned());
            words.extend(line.split_whitespace().map(OsString::from));
            let mut command = Command::new(&words[0]);
            command.args(&words[1..]).current_dir(&self.scratch.0).stdin(Stdio::null());
            command
        };
        let log = self.scratch.0.join("server.log");
        let _server = Process::start(command(&shape.server, SERVER_CPU), &log, |text| text.contains(shape.ready))?;
        (shape.read)(&command(&shape.client, CLIENT_CPU).output()?)
    }

    fn serve(&self, socket: &Path, direct: bool) -> io::Result<Process> {
        let _ = std::fs::remove_file(socket);
        let mut command = Command::new(towpath()?);
        command.args(["serve", "--direct", if direct { "true" } else { "false" }, "--socket"]).arg(socket);
        let log = self.scratch.0.join("service.log");
        command.stdin(Stdio::null());
        let mut process = Process::start(command, &log, |_| true)?;
        wait(&log, &mut process, || socket.exists())?;
        Ok(process)
    }
}
