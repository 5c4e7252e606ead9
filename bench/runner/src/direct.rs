//! Two programs of one host take three paths in turn: Linux's loopback device, the stack (`direct = false`), and a
//! direct connection. Linux has each way that may be its best.

use crate::cpu_time::busy_ns;
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
    /// Rounds of all ways; the median counts
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Only the shape of this name (see the table's first column)
    #[arg(long)]
    shape: Option<String>,
}

/// A way to join the two programs.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Way {
    name: &'static str,
    carrier: Carrier,
    /// The client's CPU. The server's is always the same.
    client_cpu: usize,
    /// True: both ends ask again and again instead of sleeping. Only programs of ours can.
    spins: bool,
}

/// What carries the bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Carrier {
    Linux,
    Stack,
    Direct,
}

const fn way(name: &'static str, carrier: Carrier, client_cpu: usize, spins: bool) -> Way {
    Way { name, carrier, client_cpu, spins }
}

/// All that is compared. Linux has three ways: ends that sleep, ends that spin, and both ends on one CPU, where no
/// wake-up of another CPU is needed. Which one is best depends on the shape.
const WAYS: [Way; 5] = [
    way("linux", Carrier::Linux, CLIENT_CPU, false),
    way("linux, spinning", Carrier::Linux, CLIENT_CPU, true),
    way("linux, one CPU", Carrier::Linux, SERVER_CPU, false),
    way("stack", Carrier::Stack, CLIENT_CPU, false),
    way("direct", Carrier::Direct, CLIENT_CPU, false),
];
/// Name, pipeline depth, and about how many requests per second `redis-benchmark` makes over Linux, the stack and
/// directly. The number of its requests follows from it, so that every way is measured for as long.
const REDIS: [(&str, u32, [f64; 3]); 2] = [
    ("redis-get-c50-P1", 1, [80_000.0, 250_000.0, 800_000.0]),
    ("redis-get-c50-P16", 16, [1_200_000.0, 1_200_000.0, 2_500_000.0]),
];
/// Bytes of a request and of its reply, connections, and whether ends that spin are compared, too.
const ECHOES: [(&str, usize, usize, bool); 3] =
    [("ping-pong-64B", 64, 1, true), ("ping-pong-1KB", 1024, 1, true), ("echo-64B-c64", 64, 64, false)];
/// Connections of `wrk`.
const WRK_CONNECTIONS: usize = 32;

#[derive(Serialize)]
struct Row {
    shape: &'static str,
    way: &'static str,
    /// The median of each value of the rounds.
    #[serde(flatten)]
    median: Round,
    /// `per_s` divided by that of Linux's best way in the same rounds (median of the rounds' ratios).
    to_best_linux: f64,
    /// Likewise by the stack's.
    to_stack: f64,
    rounds: Vec<Round>,
}

/// What one round has measured.
#[derive(Clone, Copy, Serialize)]
struct Round {
    /// Requests, or for `bulk` bytes, per second.
    per_s: f64,
    p50_us: Option<f64>,
    p99_us: Option<f64>,
    /// Busy time of all CPUs for a request, of both ends and of what is between them; for `bulk` of a byte.
    cpu_ns_per_request: Option<f64>,
}

/// Reads a client's report.
type ReadReport = Box<dyn Fn(&std::process::Output) -> io::Result<Measured>>;

/// A server and its client. The server prints `ready` when it listens.
struct Shape {
    name: &'static str,
    server: String,
    ready: &'static str,
    /// The client's command line, by way.
    client: Box<dyn Fn(Way) -> String>,
    /// True: both programs can spin.
    can_spin: bool,
    read: ReadReport,
}

/// Runs it and prints the rows.
pub fn run(options: &Options) -> io::Result<()> {
    let bench = Bench::new()?;
    if !options.json {
        println!("two programs of one host; median of {} interleaved rounds of {} s", options.rounds, options.seconds);
        println!(
            "{:18} {:16} {:>14} {:>9} {:>9} {:>11} {:>14} {:>9}",
            "shape", "way", "per second", "p50 µs", "p99 µs", "CPU ns/req", "to best linux", "to stack"
        );
    }
    for shape in shapes(options, &bench.scratch.0)? {
        if options.shape.as_deref().is_some_and(|wanted| wanted != shape.name) {
            continue;
        }
        let ways: Vec<Way> = WAYS.into_iter().filter(|way| shape.can_spin || !way.spins).collect();
        let mut runs: Vec<Vec<Round>> = vec![Vec::new(); ways.len()];
        for round in 0..options.rounds.max(1) {
            for (way, runs) in ways.iter().zip(&mut runs) {
                eprint!("\r{}: round {} of {}, {}        ", shape.name, round + 1, options.rounds, way.name);
                runs.push(bench.one(&shape, *way)?);
            }
        }
        eprint!("\r{:60}\r", "");
        for row in rows(shape.name, &ways, &runs) {
            print(options, &row);
        }
    }
    Ok(())
}

impl Round {
    /// With the busy time of all CPUs meanwhile.
    fn new(measured: Measured, busy_ns: f64) -> Self {
        let known = |value: f64| Some(value).filter(|value| value.is_finite());
        Self {
            per_s: measured.requests_per_s,
            p50_us: known(measured.p50_us),
            p99_us: known(measured.p99_us),
            cpu_ns_per_request: known(busy_ns / measured.requests_total),
        }
    }
}

/// The rows of a shape from its rounds by way.
fn rows(shape: &'static str, ways: &[Way], runs: &[Vec<Round>]) -> Vec<Row> {
    // Linux has several ways, and the best of a round counts.
    let best = |carrier: Carrier, round: usize| {
        let of_carrier = ways.iter().zip(runs).filter(|(way, _)| way.carrier == carrier);
        of_carrier.map(|(_, rounds)| rounds[round].per_s).fold(0.0, f64::max)
    };
    let row = |(way, own): (&Way, &Vec<Round>)| {
        let ratio = |to| median(own.iter().enumerate().map(|(round, run)| run.per_s / best(to, round)));
        let middle = |field: fn(&Round) -> Option<f64>| {
            Some(median(own.iter().map(|run| field(run).unwrap_or(f64::NAN)))).filter(|value| value.is_finite())
        };
        Row {
            shape,
            way: way.name,
            median: Round {
                per_s: median(own.iter().map(|run| run.per_s)),
                p50_us: middle(|run| run.p50_us),
                p99_us: middle(|run| run.p99_us),
                cpu_ns_per_request: middle(|run| run.cpu_ns_per_request),
            },
            to_best_linux: ratio(Carrier::Linux),
            to_stack: ratio(Carrier::Stack),
            rounds: own.clone(),
        }
    };
    ways.iter().zip(runs).map(row).collect()
}

fn print(options: &Options, row: &Row) {
    if print_json(options.json, row) {
        return;
    }
    let time = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.1}"));
    println!(
        "{:18} {:16} {:>14.0} {:>9} {:>9} {:>11} {:>13.2}x {:>8.2}x",
        row.shape,
        row.way,
        row.median.per_s,
        time(row.median.p50_us),
        time(row.median.p99_us),
        time(row.median.cpu_ns_per_request),
        row.to_best_linux,
        row.to_stack
    );
}

fn shapes(options: &Options, scratch: &Path) -> io::Result<Vec<Shape>> {
    let (rpc, seconds) = (rpc()?, options.seconds);
    let rpc = rpc.display();
    let mut shapes = Vec::new();
    for (name, bytes, connections, can_spin) in ECHOES {
        let client = format!(
            "{rpc} client 127.0.0.1:9101 --connections {connections} --depth 1 --bytes {bytes} --seconds {seconds}"
        );
        shapes.push(Shape {
            name,
            server: format!("{rpc} server 127.0.0.1:9101"),
            ready: "ready",
            client: Box::new(move |_| client.clone()),
            can_spin,
            read: Box::new(echo::measured),
        });
    }
    // Linux keeps a port for a second after its connection, so one address has too few.
    let short = format!("{rpc} short 127.0.0.1:9101 --addresses 8 --at-once 1 --bytes 64 --seconds {seconds}");
    shapes.push(Shape {
        name: "rpc-per-connection",
        server: format!("{rpc} server 0.0.0.0:9101"),
        ready: "ready",
        client: Box::new(move |_| short.clone()),
        can_spin: true,
        read: Box::new(echo::measured),
    });
    for (name, depth, per_second) in REDIS {
        shapes.push(Shape {
            name,
            server: "redis-server --bind 127.0.0.1 --port 9102 --save --appendonly no".to_owned(),
            ready: "Ready to accept connections",
            client: Box::new(move |way| {
                let requests = per_second[way.carrier as usize] * seconds;
                format!("redis-benchmark -p 9102 -t get -c 50 -P {depth} -n {requests:.0} --csv")
            }),
            can_spin: false,
            read: Box::new(|output| {
                // The number of requests is not asked for here.
                redis::measured(&String::from_utf8_lossy(&output.stdout), 0.0).ok_or_else(|| failed(output))
            }),
        });
    }
    shapes.push(Shape {
        name: "bulk",
        server: "iperf3 -s -4 -B 127.0.0.1 -p 9103 --forceflush".to_owned(),
        ready: "Server listening",
        client: Box::new(move |_| format!("iperf3 -4 -c 127.0.0.1 -p 9103 -t {} -J", seconds.ceil())),
        can_spin: false,
        read: Box::new(|output| bulk::measured(&output.stdout).ok_or_else(|| failed(output))),
    });
    shapes.push(nginx(scratch, seconds)?);
    let client = format!("{rpc} client 127.0.0.1:9105 --memcached --connections 50 --bytes 64 --seconds {seconds}");
    shapes.push(Shape {
        name: "memcached-get-c50",
        server: "memcached -l 127.0.0.1 -p 9105 -U 0 -t 1 -u root".to_owned(),
        ready: "",
        client: Box::new(move |_| client.clone()),
        can_spin: false,
        read: Box::new(echo::measured),
    });
    Ok(shapes)
}

/// nginx with one worker, and `wrk` that keeps its connections.
fn nginx(scratch: &Path, seconds: f64) -> io::Result<Shape> {
    let path = scratch.join("nginx.conf");
    let configuration = format!(
        "daemon off; worker_processes 1; error_log stderr notice; pid {0}/nginx.pid; events {{}} http {{ access_log off; \
         keepalive_requests 100000000; client_body_temp_path {0}; proxy_temp_path {0}; fastcgi_temp_path {0}; \
         uwsgi_temp_path {0}; scgi_temp_path {0}; server {{ listen 127.0.0.1:9104; location / {{ return 200 'hello'; }} }} }}",
        scratch.display()
    );
    std::fs::write(&path, configuration)?;
    Ok(Shape {
        name: "nginx-wrk-c32",
        server: format!("nginx -c {} -e stderr", path.display()),
        ready: "start worker process",
        client: Box::new(move |_| {
            format!("wrk -t 1 -c {WRK_CONNECTIONS} -d {} --latency http://127.0.0.1:9104/", seconds.ceil())
        }),
        can_spin: false,
        read: Box::new(|output| wrk(&String::from_utf8_lossy(&output.stdout)).ok_or_else(|| failed(output))),
    })
}

/// The report of `wrk --latency`. Without replies, or with others than were asked for, there is none.
fn wrk(text: &str) -> Option<Measured> {
    if text.contains("Non-2xx") || text.contains("Socket errors") {
        return None;
    }
    let after = |name: &str| text.lines().find_map(|line| line.trim().strip_prefix(name)).map(str::trim);
    let us = |name| {
        let time = after(name)?;
        let unit = time.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
        let scale = [("us", 1.0), ("ms", 1e3), ("s", 1e6)].into_iter().find(|(name, _)| *name == unit)?.1;
        Some(time.strip_suffix(unit)?.parse::<f64>().ok()? * scale)
    };
    Some(Measured {
        requests_per_s: after("Requests/sec:")?.parse().ok()?,
        p50_us: us("50%")?,
        p99_us: us("99%")?,
        p999_us: f64::NAN,
        requests_total: 0.0,
    })
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

    fn one(&self, shape: &Shape, way: Way) -> io::Result<Round> {
        let socket = self.scratch.0.join("towpath.sock");
        let (linux, direct) = (way.carrier == Carrier::Linux, way.carrier == Carrier::Direct);
        let _service = if linux { None } else { Some(self.serve(&socket, direct)?) };
        let under = if linux { Vec::new() } else { run_on(&socket)? };
        let command = |line: &str, cpu: usize| {
            let mut words: Vec<OsString> = ["taskset".into(), "-c".into(), cpu.to_string().into()].into();
            words.extend(under.iter().cloned());
            words.extend(line.split_whitespace().map(OsString::from));
            words.extend(way.spins.then(|| "--spin".into()));
            let mut command = Command::new(&words[0]);
            command.args(&words[1..]).current_dir(&self.scratch.0).stdin(Stdio::null());
            command
        };
        let log = self.scratch.0.join("server.log");
        let _server = Process::start(command(&shape.server, SERVER_CPU), &log, |text| text.contains(shape.ready))?;
        let busy = busy_ns()?;
        let output = command(&(shape.client)(way), way.client_cpu).output()?;
        Ok(Round::new((shape.read)(&output)?, busy_ns()? - busy))
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_best_of_linuxs_ways_in_a_round_is_what_counts() {
        let rounds = |rates: [f64; 2]| {
            rates.map(|per_s| Round { per_s, p50_us: None, p99_us: None, cpu_ns_per_request: None }).to_vec()
        };
        let runs =
            [rounds([1.0, 4.0]), rounds([2.0, 1.0]), rounds([1.0, 1.0]), rounds([5.0, 5.0]), rounds([20.0, 40.0])];
        let rows = rows("echo", &WAYS, &runs);
        assert_eq!((rows[4].way, rows[4].to_best_linux, rows[4].to_stack), ("direct", 10.0, 4.0));
        assert_eq!((rows[0].to_best_linux, rows[4].median.p50_us), (0.5, None));
    }

    #[test]
    fn wrks_report_is_read_in_all_its_units() {
        let text = "  Latency Distribution\n     50%  105.00us\n     75%  150.00us\n     99%    1.25ms\n  9 requests in 1s\nRequests/sec: 284532.10\n";
        let measured = wrk(text).unwrap();
        assert_eq!((measured.requests_per_s, measured.p50_us, measured.p99_us), (284_532.1, 105.0, 1250.0));
        assert!(wrk(&format!("{text}  Non-2xx or 3xx responses: 3\n")).is_none());
        assert!(wrk("unable to connect").is_none());
    }
}
