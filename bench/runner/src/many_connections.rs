//! Very many connections that take turns, beside a thousand: what does it cost a server that there are so many?

use crate::process::Process;
use crate::programs::{number, rpc, run_on};
use crate::side_by_side::STACKS;
use crate::veth_pair::{SERVER, Side, VethPair};
use serde::Serialize;
use serde_json::Value;
use std::io;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};
use towpath_bench_report::{median, print_json_rows};

/// Most connections of one program: half of a client's slots are for accepted connections.
const PER_PROGRAM: usize = 7000;
/// Most programs on either side.
const PROGRAMS: usize = 32;
/// Memory of a connection with both ends, over both stacks, about.
const BYTES_EACH: u64 = 64 << 10;
/// Requests outstanding in all.
const AT_ONCE: usize = 64;
/// Seconds of a window that are not measured.
const WARM_UP: f64 = 0.1;
/// How long all connections may take to open, and the reports of a window to come.
const OPENING: Duration = Duration::from_secs(300);
const REPORTS: Duration = Duration::from_secs(30);

/// Arguments of `towpath bench many`.
#[derive(clap::Args)]
#[command(
    after_help = "Root. Over each stack two crowds of connections are open, a large and a small one, each with a veth and programs of \
    its own. There are as many programs in both. In every round each crowd has a window while the others are idle: some 64 requests of 64 \
    bytes are outstanding, each on the next connection, so that all of them take turns. `to few` is the large crowd's rate in parts of \
    the small one's.\n\n\
    If descriptors or memory do not suffice for so many connections, there are fewer, and the rows say how many.\n\n\
    Examples:\n  towpath bench many\n  towpath bench many --connections 20000 --rounds 3 --json"
)]
pub struct Options {
    /// One JSON object per row instead of the table
    #[arg(long)]
    json: bool,
    /// Measured seconds of one window
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Rounds of all crowds; the median counts
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Connections of the large crowd
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(100..=200_000))]
    connections: u32,
    /// Connections of the small crowd
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(64..=10_000))]
    few: u32,
}

/// One row: both crowds over a stack.
#[derive(Serialize)]
struct Row {
    shape: &'static str,
    stack: &'static str,
    /// Of the large crowd and of the small one.
    connections: usize,
    few: usize,
    /// The median of each value of the rounds.
    #[serde(flatten)]
    median: Round,
    rounds: Vec<Round>,
}

/// What one round has measured.
#[derive(Clone, Copy, Serialize)]
struct Round {
    /// `many_per_s` divided by `few_per_s`.
    to_few: f64,
    many_per_s: f64,
    few_per_s: f64,
    many_p50_us: f64,
    few_p50_us: f64,
}

/// Runs it and prints the rows.
pub fn run(options: &Options) -> io::Result<()> {
    let (many, few) = (possible(options.connections as usize)?, options.few as usize);
    let programs = many.div_ceil(PER_PROGRAM.min(descriptors() / 2));
    if many < options.connections as usize {
        eprintln!("descriptors or memory suffice for {many} connections, not for {}", options.connections);
    }
    let mut crowds = Vec::new();
    for stack in STACKS {
        for connections in [few, many] {
            eprint!("\r{stack}: {connections} connections are opened        ");
            crowds.push(Crowd::open(stack, connections, programs, options.seconds)?);
        }
    }
    let mut runs: [Vec<Round>; 2] = [Vec::new(), Vec::new()];
    for round in 0..options.rounds.max(1) {
        for (pair, runs) in crowds.chunks_mut(2).zip(&mut runs) {
            let [few, many] = pair else { continue };
            eprint!("\r{}: round {} of {}{:40}", many.stack, round + 1, options.rounds, "");
            let ((few_per_s, few_p50_us), (many_per_s, many_p50_us)) = (few.window()?, many.window()?);
            runs.push(Round { to_few: many_per_s / few_per_s, many_per_s, few_per_s, many_p50_us, few_p50_us });
        }
    }
    eprint!("\r{:60}\r", "");
    let rows: Vec<Row> = STACKS.into_iter().zip(runs).map(|(stack, rounds)| row(stack, many, few, rounds)).collect();
    if !print_json_rows(options.json, &rows) {
        print(options, &rows);
    }
    Ok(())
}

fn row(stack: &'static str, connections: usize, few: usize, rounds: Vec<Round>) -> Row {
    let of = |field: fn(&Round) -> f64| median(rounds.iter().map(field));
    let median = Round {
        to_few: of(|round| round.to_few),
        many_per_s: of(|round| round.many_per_s),
        few_per_s: of(|round| round.few_per_s),
        many_p50_us: of(|round| round.many_p50_us),
        few_p50_us: of(|round| round.few_p50_us),
    };
    Row { shape: "many-connections", stack, connections, few, median, rounds }
}

fn print(options: &Options, rows: &[Row]) {
    let Some(first) = rows.first() else { return };
    println!(
        "{} connections in turn beside {}; median of {} interleaved rounds of {} s",
        first.connections, first.few, options.rounds, options.seconds
    );
    println!(
        "{:8} {:>16} {:>16} {:>12} {:>12} {:>8}",
        "stack", "many: requests/s", "few: requests/s", "many p50 µs", "few p50 µs", "to few"
    );
    for Row { stack, median, .. } in rows {
        println!(
            "{stack:8} {:>16.0} {:>16.0} {:>12.1} {:>12.1} {:>7.2}x",
            median.many_per_s, median.few_per_s, median.many_p50_us, median.few_p50_us, median.to_few
        );
    }
}

/// As many connections as are wanted, or as descriptors and memory suffice for.
fn possible(wanted: usize) -> io::Result<usize> {
    let text = std::fs::read_to_string("/proc/meminfo")?;
    let free =
        text.lines().find_map(|line| line.strip_prefix("MemAvailable:")?.split_whitespace().next()?.parse().ok());
    let by_memory = free.map_or(wanted, |kib: u64| (kib * 1024 / BYTES_EACH) as usize);
    Ok(wanted.min(by_memory).min(PROGRAMS * PER_PROGRAM.min(descriptors() / 2)))
}

/// Descriptors that a program may have.
fn descriptors() -> usize {
    let most = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
    most.map_or(usize::MAX, |most| most as usize).max(64)
}

/// Connections over a stack, with a veth and programs of their own.
struct Crowd {
    stack: &'static str,
    clients: Vec<(Process, PathBuf)>,
    seconds: f64,
    windows: usize,
    // They end in this order, and behind the clients.
    _servers: Vec<Process>,
    _service: Option<Process>,
    _pair: VethPair,
}

impl Crowd {
    fn open(stack: &'static str, connections: usize, programs: usize, seconds: f64) -> io::Result<Self> {
        let pair = VethPair::new()?.with_config(&format!("max_connections = {}\n", connections + 10_000))?;
        let rpc = rpc()?;
        let service = if stack == "towpath" { Some(pair.serve()?) } else { None };
        let (mut servers, mut clients) = (Vec::new(), Vec::new());
        for program in 0..programs {
            let address = format!("{SERVER}:{}", 9000 + program);
            let mut words = match &service {
                Some((_, socket)) => run_on(socket)?,
                None => Vec::new(),
            };
            words.extend([rpc.clone().into(), "server".into(), address.clone().into()]);
            servers.push(pair.start(pair.command(Side::Server, &words), &format!("server{program}.log"), "ready")?);
            // The first ones have what does not divide evenly.
            let own = connections / programs + usize::from(program < connections % programs);
            let mut client = pair.command(Side::Client, &[rpc.as_os_str(), "turns".as_ref(), address.as_ref()]);
            client.args(["--connections", &own.to_string(), "--seconds", &seconds.to_string()]);
            client.args(["--warm-up-seconds", &WARM_UP.to_string()]);
            client.args(["--at-once", &(AT_ONCE / programs).clamp(1, own).to_string()]).stdin(Stdio::piped());
            let log = pair.dir().join(format!("client{program}.log"));
            clients.push((Process::start(client, &log, |_| true)?, log));
        }
        let service = service.map(|(process, _)| process);
        for (client, log) in &mut clients {
            client.wait_for(OPENING, log, |text| text.contains("ready"))?;
        }
        Ok(Self { stack, clients, seconds, windows: 0, _servers: servers, _service: service, _pair: pair })
    }

    /// Requests per second of all connections together, and the median of the programs' medians.
    fn window(&mut self) -> io::Result<(f64, f64)> {
        self.windows += 1;
        for (client, _) in &mut self.clients {
            client.tell("go\n")?;
        }
        std::thread::sleep(Duration::from_secs_f64(WARM_UP + self.seconds));
        let end = Instant::now() + REPORTS;
        let (mut per_s, mut p50) = (0.0, Vec::new());
        for (client, log) in &mut self.clients {
            let mut report = None;
            client.wait_for(end.saturating_duration_since(Instant::now()), log, |text| {
                report = reports(text).nth(self.windows - 1);
                report.is_some()
            })?;
            let report = report.unwrap_or_default();
            per_s += number(&report, "requests_per_s")?;
            p50.push(number(&report, "p50_us")?);
        }
        Ok((per_s, median(p50)))
    }
}

/// The whole reports of a client's log.
fn reports(text: &str) -> impl Iterator<Item = Value> {
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).filter(Value::is_object)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_that_is_not_whole_yet_does_not_count() {
        let text = "ready\n{\"requests_per_s\":1.5}\n{\"requests_per_s\":2.5}\n{\"requests";
        let rates: Vec<Option<f64>> = reports(text).map(|report| report["requests_per_s"].as_f64()).collect();
        assert_eq!(rates, [Some(1.5), Some(2.5)]);
    }

    #[test]
    fn a_row_has_the_median_of_the_rounds_ratios() {
        let round = |many, few| Round {
            to_few: many / few,
            many_per_s: many,
            few_per_s: few,
            many_p50_us: 1.0,
            few_p50_us: 1.0,
        };
        let row = row("linux", 100, 10, vec![round(9.0, 10.0), round(20.0, 20.0), round(8.0, 10.0)]);
        assert_eq!((row.median.to_few, row.median.many_per_s), (0.9, 9.0));
    }
}
