//! Two programs of one host: over Linux's loopback device, over the stack (`direct = false`) and joined directly, in turn.

use super::lab::{CLIENT_CPU, Process, SERVER_CPU, wait};
use super::measure::{Figures, median};
use super::{bulk, echo, redis};
use serde::Serialize;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

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

/// The ways that are compared.
const WAYS: [&str; 3] = ["linux", "stack", "direct"];
/// Requests per second of `redis-benchmark`, about: how many it is told to make.
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

/// What a client's report says.
type Read = Box<dyn Fn(&std::process::Output) -> io::Result<Figures>>;

/// A server, what it prints when it is ready, and its client.
struct Shape {
    name: &'static str,
    server: String,
    ready: &'static str,
    client: String,
    read: Read,
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
        let mut runs: [Vec<Figures>; 3] = Default::default();
        for round in 0..options.rounds.max(1) {
            for (way, runs) in WAYS.into_iter().zip(&mut runs) {
                eprint!("\r{}: round {} of {}, {way}        ", shape.name, round + 1, options.rounds);
                runs.push(bench.one(&shape, way)?);
            }
        }
        eprint!("\r{:60}\r", "");
        for (way, own) in WAYS.into_iter().zip(&runs) {
            print(options, &row(shape.name, way, own, &runs));
        }
    }
    Ok(())
}

fn row(shape: &str, way: &'static str, own: &[Figures], all: &[Vec<Figures>; 3]) -> Row {
    let ratio =
        |base: &[Figures]| median(own.iter().zip(base).map(|(a, b)| a.requests_per_s / b.requests_per_s).collect());
    let of =
        |field: fn(&Figures) -> f64| Some(median(own.iter().map(field).collect())).filter(|value| value.is_finite());
    Row {
        shape: shape.to_owned(),
        way,
        per_s: median(own.iter().map(|figures| figures.requests_per_s).collect()),
        p50_us: of(|figures| figures.p50_us),
        p99_us: of(|figures| figures.p99_us),
        to_linux: ratio(&all[0]),
        to_stack: ratio(&all[1]),
    }
}

fn print(options: &Options, row: &Row) {
    if options.json {
        println!("{}", serde_json::to_string(row).unwrap_or_default());
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
    let rpc = std::env::current_exe()?.with_file_name("towpath-rpc");
    if !rpc.exists() {
        return Err(io::Error::other(format!("{} is missing: cargo build --release --workspace", rpc.display())));
    }
    let (rpc, seconds) = (rpc.display(), options.seconds);
    let mut shapes = vec![Shape {
        name: "ping-pong-64B",
        server: format!("{rpc} server 127.0.0.1:9101"),
        ready: "ready",
        client: format!("{rpc} client 127.0.0.1:9101 --connections 1 --depth 1 --seconds {seconds}"),
        read: Box::new(echo::figures),
    }];
    for (name, depth, per_second) in REDIS {
        let requests = per_second * seconds;
        shapes.push(Shape {
            name,
            server: "redis-server --bind 127.0.0.1 --port 9102 --save --appendonly no".to_owned(),
            ready: "Ready to accept connections",
            client: format!("redis-benchmark -p 9102 -t get -c 50 -P {depth} -n {requests:.0} --csv"),
            read: Box::new(move |output| {
                redis::figures(&String::from_utf8_lossy(&output.stdout), requests).ok_or_else(|| failed(output))
            }),
        });
    }
    shapes.push(Shape {
        name: "bulk",
        server: "iperf3 -s -4 -B 127.0.0.1 -p 9103 --forceflush".to_owned(),
        ready: "Server listening",
        client: format!("iperf3 -4 -c 127.0.0.1 -p 9103 -t {} -J", seconds.ceil()),
        read: Box::new(|output| bulk::figures(&output.stdout).ok_or_else(|| failed(output))),
    });
    Ok(shapes)
}

fn failed(output: &std::process::Output) -> io::Error {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    io::Error::other(format!("the client failed: {out}{err}"))
}

/// A directory for sockets and logs, removed at the end.
struct Bench {
    dir: PathBuf,
}

impl Bench {
    fn new() -> io::Result<Self> {
        let dir = std::env::temp_dir().join(format!("towpath-direct-{}", std::process::id()));
        std::fs::create_dir_all(&dir)?;
        Ok(Self { dir })
    }

    fn one(&self, shape: &Shape, way: &str) -> io::Result<Figures> {
        let socket = self.dir.join("towpath.sock");
        let _service = if way == "linux" { None } else { Some(self.serve(&socket, way == "direct")?) };
        let under = if way == "linux" { Vec::new() } else { super::measure::under(&socket)? };
        let command = |line: &str, cpu: usize| {
            let mut words: Vec<OsString> = ["taskset".into(), "-c".into(), cpu.to_string().into()].into();
            words.extend(under.iter().cloned());
            words.extend(line.split_whitespace().map(OsString::from));
            let mut command = Command::new(&words[0]);
            command.args(&words[1..]).current_dir(&self.dir).stdin(Stdio::null());
            command
        };
        let log = self.dir.join("server.log");
        let _server = Process::start(command(&shape.server, SERVER_CPU), &log, |text| text.contains(shape.ready))?;
        (shape.read)(&command(&shape.client, CLIENT_CPU).output()?)
    }

    fn serve(&self, socket: &Path, direct: bool) -> io::Result<Process> {
        let _ = std::fs::remove_file(socket);
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["serve", "--direct", if direct { "true" } else { "false" }, "--socket"]).arg(socket);
        let log = self.dir.join("service.log");
        command.stdin(Stdio::null());
        let mut process = Process::start(command, &log, |_| true)?;
        wait(&log, &mut process, || socket.exists())?;
        Ok(process)
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}
