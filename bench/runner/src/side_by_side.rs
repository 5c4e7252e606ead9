//! The same server over Linux and over Towpath in turn: throughput, latency, and the CPU time of the server side.

use crate::cpu_time::{cpu_busy_ns, tasks_ns};
use crate::programs::run_on;
use crate::veth_pair::{SERVER_CPU, Side, VethPair};
use serde::Serialize;
use std::ffi::OsString;
use std::io;
use towpath_bench_report::{median, print_json_rows};

/// Measured seconds of one run, if nobody says otherwise.
const SECONDS: f64 = 2.0;

/// Arguments of every side-by-side benchmark.
#[derive(clap::Args)]
pub struct Options {
    /// One JSON object per row instead of the table.
    #[arg(long)]
    json: bool,
    /// Measured seconds of one run.
    #[arg(long, default_value_t = SECONDS)]
    pub seconds: f64,
    /// Rounds of Linux, Towpath; the median counts.
    #[arg(long, default_value_t = 3)]
    pub rounds: usize,
    /// Only the shape of this name (see the table's first column).
    #[arg(long)]
    shape: Option<String>,
    /// How frames come to the stack: the service's key `port` [default: what suits the veth]
    #[arg(long, value_parser = ["packet", "xdp", "xdp-generic", "auto"])]
    pub port: Option<String>,
}

/// One row: a shape over a stack.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    shape: String,
    stack: &'static str,
    /// The median of each value of the rounds.
    #[serde(flatten)]
    median: Round,
    /// `requests_per_s` divided by Linux's in the same rounds (median of the rounds' ratios).
    ratio: f64,
    rounds: Vec<Round>,
}

/// What one round has measured.
#[derive(Clone, Copy, Debug, Serialize)]
struct Round {
    /// Requests (or, for `bulk`, bytes) per second.
    requests_per_s: f64,
    p50_us: f64,
    p99_us: f64,
    p999_us: f64,
    /// Busy time of the server side's CPU per request: application, stack cores and interrupts together.
    server_cpu_ns_per_request: f64,
    /// Run time of the server side's own threads per request (application and service), without interrupts.
    server_tasks_ns_per_request: f64,
}

impl Options {
    /// All shapes, in so many rounds, within another benchmark.
    pub fn within(rounds: usize) -> Self {
        Self { json: false, seconds: SECONDS, rounds, shape: None, port: None }
    }
    /// True if this shape is to be measured.
    pub fn wants(&self, shape: &str) -> bool {
        self.shape.as_deref().is_none_or(|wanted| wanted == shape)
    }
}

/// The result of one run, as the load generator reports it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Measured {
    /// Requests per second.
    pub requests_per_s: f64,
    /// Latency quantiles, µs.
    pub p50_us: f64,
    /// See `p50_us`.
    pub p99_us: f64,
    /// See `p50_us`.
    pub p999_us: f64,
    /// Requests answered while the costs were taken.
    pub requests_total: f64,
}

/// The stacks compared.
pub const STACKS: [&str; 2] = ["linux", "towpath"];

/// A server program: its command line, and the text that it prints when it is ready.
pub struct Server<'a> {
    /// Command line.
    pub words: Vec<OsString>,
    /// Printed when it listens.
    pub ready: &'a str,
}

/// Measures each stack in turn, so many times. `one` is told the stack's place and name. `of`: what is measured, for the line of progress.
pub fn interleaved(
    rounds: usize,
    of: &str,
    mut one: impl FnMut(usize, &'static str) -> io::Result<()>,
) -> io::Result<()> {
    for round in 0..rounds.max(1) {
        for (index, stack) in STACKS.into_iter().enumerate() {
            eprint!("\r{of}: round {} of {rounds}, {stack}        ", round + 1);
            one(index, stack)?;
        }
    }
    eprint!("\r{:60}\r", "");
    Ok(())
}

/// Runs `load` against the server over Linux and Towpath in turn and makes the two rows of `shape`. `load` is told the stack.
pub fn compare(
    pair: &VethPair,
    rounds: usize,
    shape: &str,
    server: &Server<'_>,
    mut load: impl FnMut(&VethPair, &str) -> io::Result<Measured>,
) -> io::Result<Vec<Row>> {
    let mut runs: [Vec<Round>; 2] = [Vec::new(), Vec::new()];
    interleaved(rounds, shape, |index, stack| {
        runs[index].push(one(pair, stack, server, &mut load)?);
        Ok(())
    })?;
    let row = |(stack, rounds): (&'static str, &Vec<Round>)| {
        let ratios = rounds.iter().zip(&runs[0]).map(|(own, linux)| own.requests_per_s / linux.requests_per_s);
        Row {
            shape: shape.to_owned(),
            stack,
            median: median_round(rounds),
            ratio: median(ratios),
            rounds: rounds.clone(),
        }
    };
    Ok(STACKS.into_iter().zip(&runs).map(row).collect())
}

fn one(
    pair: &VethPair,
    stack: &str,
    server: &Server<'_>,
    load: &mut impl FnMut(&VethPair, &str) -> io::Result<Measured>,
) -> io::Result<Round> {
    // The service (and its program, which may change the veth's offloads) exists only while it is measured.
    let service = if stack == "towpath" { Some(pair.serve()?) } else { None };
    let mut words = Vec::new();
    if let Some((_, socket)) = &service {
        words.extend(run_on(socket)?);
    }
    words.extend(server.words.iter().cloned());
    let application = pair.start(pair.command(Side::Server, &words), "server.log", server.ready)?;
    let pids: Vec<u32> =
        std::iter::once(application.pid()).chain(service.as_ref().map(|(process, _)| process.pid())).collect();
    let (busy, tasks) = (cpu_busy_ns(SERVER_CPU)?, tasks_ns(&pids));
    let measured = load(pair, stack)?;
    let (busy, tasks) = (cpu_busy_ns(SERVER_CPU)? - busy, tasks_ns(&pids) - tasks);
    drop(application);
    Ok(Round {
        requests_per_s: measured.requests_per_s,
        p50_us: measured.p50_us,
        p99_us: measured.p99_us,
        p999_us: measured.p999_us,
        server_cpu_ns_per_request: busy / measured.requests_total.max(1.0),
        server_tasks_ns_per_request: tasks / measured.requests_total.max(1.0),
    })
}

fn median_round(rounds: &[Round]) -> Round {
    let of = |field: fn(&Round) -> f64| median(rounds.iter().map(field));
    Round {
        requests_per_s: of(|row| row.requests_per_s),
        p50_us: of(|row| row.p50_us),
        p99_us: of(|row| row.p99_us),
        p999_us: of(|row| row.p999_us),
        server_cpu_ns_per_request: of(|row| row.server_cpu_ns_per_request),
        server_tasks_ns_per_request: of(|row| row.server_tasks_ns_per_request),
    }
}

/// Prints the rows.
pub fn print(options: &Options, title: &str, rows: &[Row]) {
    if print_json_rows(options.json, rows) {
        return;
    }
    println!("{title}; median of {} interleaved rounds of {} s", options.rounds, options.seconds);
    println!(
        "{:16} {:8} {:>14} {:>9} {:>9} {:>9} {:>12} {:>12} {:>7}",
        "shape", "stack", "requests/s", "p50 µs", "p99 µs", "p99.9 µs", "CPU ns/req", "tasks ns/req", "ratio"
    );
    for row in rows {
        println!(
            "{:16} {:8} {:>14.0} {:>9.1} {:>9.1} {:>9.1} {:>12.1} {:>12.1} {:>6.2}x",
            row.shape,
            row.stack,
            row.median.requests_per_s,
            row.median.p50_us,
            row.median.p99_us,
            row.median.p999_us,
            row.median.server_cpu_ns_per_request,
            row.median.server_tasks_ns_per_request,
            row.ratio
        );
    }
}
