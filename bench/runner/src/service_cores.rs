//! A service that chooses how many cores it uses, while the load goes up and down: cores and latency over time.

use crate::cpu_layout::CpuLayout;
use crate::programs::{json_report, rpc, run_on};
use crate::veth_pair::{SERVER, Side, VethPair};
use serde::Serialize;
use serde_json::Value;
use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use towpath_bench_report::print_json_rows;
use towpath_service::api::{self, Command, Sizing, WorkerChange};

/// How often cores and latency are sampled.
const WINDOW: Duration = Duration::from_millis(100);

/// Arguments of `towpath bench cores`.
#[derive(clap::Args)]
#[command(
    after_help = "Root. A service with room for several cores, a server that changes values of 1 KiB on it, and a client on plain \
    Linux in five steps: idle, low, high, low, idle.\n\n\
    Examples:\n  towpath bench cores\n  towpath bench cores --cores 1-4 --high 128 --seconds 20 --json"
)]
pub struct Options {
    /// One JSON object for every 100 ms instead of the table
    #[arg(long)]
    json: bool,
    /// Seconds of each step
    #[arg(long, default_value_t = 8.0)]
    seconds: f64,
    /// The service's cores [default: from 1 to half of its CPUs, 2 at least]
    #[arg(long)]
    cores: Option<String>,
    /// Requests per second of the low steps
    #[arg(long, default_value_t = 1000)]
    low: u32,
    /// Connections of the high step, each with one request outstanding all the time
    #[arg(long, default_value_t = 64)]
    high: usize,
    /// Event loops of the server
    #[arg(long, default_value_t = 4)]
    loops: usize,
}

/// 100 ms.
#[derive(Serialize)]
struct Row {
    experiment: &'static str,
    /// CPUs of the machine.
    cpus: usize,
    /// Since the first step's beginning.
    t_s: f64,
    step: u64,
    load: String,
    requests_per_s: f64,
    /// `None`: there was no request.
    p50_us: Option<f64>,
    p99_us: Option<f64>,
    /// Cores that ran, and most that can.
    cores: Option<usize>,
    most: usize,
}

/// How many cores ran at a moment of the clock that all processes share.
#[derive(Clone, Copy)]
struct Sample {
    ns: u64,
    running: usize,
}

/// Runs it and prints the rows.
pub fn run(options: &Options) -> io::Result<()> {
    let rpc = rpc()?;
    let layout = CpuLayout::read(None)?;
    let most = (layout.server.0.len() / 2).max(2);
    let cores = options.cores.clone().unwrap_or_else(|| format!("1-{most}"));
    let queues = cores.rsplit('-').next().and_then(|most| most.parse().ok()).unwrap_or(most);
    let pair = VethPair::with_queues(queues)?;
    // The server side's packets go to the service, so only the client's receive work needs CPUs.
    pair.receive_by(Side::Server, queues, "0")?;
    pair.receive_by(Side::Client, queues, &layout.client().mask())?;
    let (service, socket) = pair.serve_cores(&layout.server.list(), &cores)?;
    let mut words = run_on(&socket)?;
    words.extend([rpc.clone().into(), "values-server".into(), address().into()]);
    words.extend(["--loops".into(), options.loops.to_string().into()]);
    let server = pair.start(pair.command_among(Side::Server, &layout.server.list(), &words), "server.log", "ready")?;
    let (report, seen) = sampled(&socket, || load(&pair, &rpc, &layout, options))?;
    let sizing: Sizing = api::ask(&socket, Command::Cores { set: None }).map_err(io::Error::other)?;
    drop((server, service));
    let rows = rows(&report, &seen, sizing.most, layout.cpus());
    if !print_json_rows(options.json, &rows) {
        print(&report, &rows, &sizing.changes);
    }
    Ok(())
}

fn address() -> String {
    format!("{SERVER}:9020")
}

fn load(pair: &VethPair, rpc: &Path, layout: &CpuLayout, options: &Options) -> io::Result<Value> {
    let Options { seconds, low, high, .. } = options;
    let steps =
        ["idle".to_owned(), format!("open:{low}"), format!("closed:{high}"), format!("open:{low}"), "idle".to_owned()];
    let steps = steps.map(|step| format!("{step}@{seconds}")).join(",");
    let words = [rpc.as_os_str(), "values-client".as_ref(), address().as_ref()].map(OsString::from);
    let mut command = pair.command_among(Side::Client, &layout.client().list(), &words);
    command.args(["--connections", &high.to_string(), "--threads", &layout.client_threads(*high).to_string()]);
    command.args(["--steps", &steps, "--warm-up", "0", "--window-ms", &WINDOW.as_millis().to_string()]);
    let report = json_report(&command.output()?, "the client")?;
    match report["bad"].as_u64() {
        Some(0) => Ok(report),
        _ => Err(io::Error::other(format!("{} replies were wrong", report["bad"]))),
    }
}

/// Does something, and asks the service meanwhile how many cores run.
fn sampled<T>(socket: &Path, what: impl FnOnce() -> io::Result<T>) -> io::Result<(T, Vec<Sample>)> {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let sampling = scope.spawn(|| {
            let mut seen = Vec::new();
            while !done.load(Ordering::Acquire) {
                if let Ok(Sizing { workers: cores, .. }) = api::ask(socket, Command::Cores { set: None }) {
                    seen.push(Sample { ns: now_ns(), running: cores });
                }
                std::thread::sleep(WINDOW / 2);
            }
            seen
        });
        let result = what();
        done.store(true, Ordering::Release);
        let seen = sampling.join().map_err(|_| io::Error::other("the thread that sampled the cores has panicked"))?;
        Ok((result?, seen))
    })
}

fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn rows(report: &Value, seen: &[Sample], most: usize, cpus: usize) -> Vec<Row> {
    let begin = report["begin_ns"].as_u64().unwrap_or(0);
    let number = |window: &Value, name: &str| window[name].as_f64().unwrap_or(0.0);
    let row = |window: &Value| {
        let answered = number(window, "requests") > 0.0;
        let at_s = number(window, "at_s");
        let end = begin + ((at_s + number(window, "seconds")) * 1e9) as u64;
        Row {
            experiment: "cores",
            cpus,
            t_s: at_s,
            step: window["step"].as_u64().unwrap_or(0),
            load: window["load"].as_str().unwrap_or_default().to_owned(),
            requests_per_s: number(window, "requests_per_s"),
            p50_us: answered.then(|| number(window, "p50_us")),
            p99_us: answered.then(|| number(window, "p99_us")),
            // The last that was known when the window ended.
            cores: seen.iter().rev().find(|seen| seen.ns <= end).map(|seen| seen.running),
            most,
        }
    };
    report["windows"].as_array().into_iter().flatten().map(row).collect()
}

fn print(report: &Value, rows: &[Row], changes: &[WorkerChange]) {
    println!(
        "{:14} {:>12} {:>9} {:>9} {:>9} {:>10} {:>6} {:>6} {:>6}",
        "load", "requests/s", "p50 µs", "p99 µs", "p99.9 µs", "CPU µs/req", "cores", "least", "most"
    );
    for (index, step) in report["steps"].as_array().into_iter().flatten().enumerate() {
        let number = |name: &str| step[name].as_f64().unwrap_or(0.0);
        let cores = || rows.iter().filter(|row| row.step == index as u64).filter_map(|row| row.cores);
        let mean = cores().sum::<usize>() as f64 / cores().count().max(1) as f64;
        println!(
            "{:14} {:>12.0} {:>9.1} {:>9.1} {:>9.1} {:>10.2} {mean:>6.2} {:>6} {:>6}",
            step["load"].as_str().unwrap_or_default(),
            number("requests_per_s"),
            number("p50_us"),
            number("p99_us"),
            number("p999_us"),
            number("cpu_us_per_request"),
            cores().min().unwrap_or(0),
            cores().max().unwrap_or(0)
        );
    }
    println!("\n{} changes", changes.len());
    for change in changes {
        println!("{:8.1} s  {} -> {}  {}", change.at_us as f64 / 1e6, change.from, change.to, change.why);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_window_has_the_cores_that_ran_at_its_end() {
        let window = |at_s: f64, requests: u64| json!({"step": 1, "load": "open:10", "at_s": at_s, "seconds": 0.1, "requests": requests, "requests_per_s": 10.0, "p50_us": 5.0, "p99_us": 9.0});
        let report = json!({"begin_ns": 1_000_000_000u64, "windows": [window(0.0, 0), window(0.1, 1), window(0.2, 1)]});
        let seen = [Sample { ns: 1_150_000_000, running: 1 }, Sample { ns: 1_250_000_000, running: 2 }];
        let rows = rows(&report, &seen, 4, 8);
        assert_eq!(rows.iter().map(|row| row.cores).collect::<Vec<_>>(), [None, Some(1), Some(2)]);
        assert_eq!(rows.iter().map(|row| row.p99_us).collect::<Vec<_>>(), [None, Some(9.0), Some(9.0)]);
    }
}
