//! What a run costs: busy time of the server side's CPU, run time of its threads; and medians over rounds.

use super::Row;
use super::lab::{Lab, SERVER_CPU, Side};
use std::ffi::OsString;
use std::io;
use std::path::Path;

/// One run's figures.
#[derive(Clone, Copy, Debug, Default)]
pub struct Figures {
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

/// What one server needs: command line and the text that it prints when it is ready.
pub struct Server<'a> {
    /// Command line.
    pub words: Vec<OsString>,
    /// Printed when it listens.
    pub ready: &'a str,
}

/// Runs `load` against the server over Linux and Towpath in turn and makes the two rows of `shape`.
pub fn compare(
    lab: &Lab,
    rounds: usize,
    shape: &str,
    server: &Server<'_>,
    mut load: impl FnMut(&Lab) -> io::Result<Figures>,
) -> io::Result<Vec<Row>> {
    let mut runs: [Vec<Row>; 2] = [Vec::new(), Vec::new()];
    for round in 0..rounds.max(1) {
        for (index, stack) in STACKS.into_iter().enumerate() {
            eprint!("\r{shape}: round {} of {rounds}, {stack}        ", round + 1);
            let row = one(lab, shape, stack, server, &mut load)?;
            runs[index].push(row);
        }
    }
    eprint!("\r{:60}\r", "");
    let ratios: Vec<f64> =
        runs[1].iter().zip(&runs[0]).map(|(ours, linux)| ours.requests_per_s / linux.requests_per_s).collect();
    let mut rows: Vec<Row> = runs.iter().map(|rows| median_row(rows)).collect();
    rows[1].ratio = median(ratios);
    Ok(rows)
}

fn one(
    lab: &Lab,
    shape: &str,
    stack: &'static str,
    server: &Server<'_>,
    load: &mut impl FnMut(&Lab) -> io::Result<Figures>,
) -> io::Result<Row> {
    // The service (and its XDP program, which changes the veth's offloads) exists only while it is measured.
    let service = if stack == "towpath" { Some(lab.serve()?) } else { None };
    let mut words = Vec::new();
    if let Some((_, socket)) = &service {
        words.extend(under(socket)?);
    }
    words.extend(server.words.iter().cloned());
    let application = lab.start(lab.command(Side::Server, &words), "server.log", server.ready)?;
    let pids: Vec<u32> =
        std::iter::once(application.pid()).chain(service.as_ref().map(|(process, _)| process.pid())).collect();
    let (busy, tasks) = (cpu_busy_ns(SERVER_CPU)?, tasks_ns(&pids));
    let figures = load(lab)?;
    let (busy, tasks) = (cpu_busy_ns(SERVER_CPU)? - busy, tasks_ns(&pids) - tasks);
    drop(application);
    Ok(Row {
        shape: shape.to_owned(),
        stack,
        requests_per_s: figures.requests_per_s,
        p50_us: figures.p50_us,
        p99_us: figures.p99_us,
        p999_us: figures.p999_us,
        server_cpu_ns_per_request: busy / figures.requests_total.max(1.0),
        server_tasks_ns_per_request: tasks / figures.requests_total.max(1.0),
        ratio: 1.0,
    })
}

/// The words that put a program on the service behind `socket`.
pub fn under(socket: &Path) -> io::Result<Vec<OsString>> {
    let exe = std::env::current_exe()?.into_os_string();
    Ok(vec![exe, "run".into(), "--require".into(), "--socket".into(), socket.into(), "--".into()])
}

/// Busy time of a CPU in ns since boot: user, nice, system, interrupts (4 ms steps).
fn cpu_busy_ns(cpu: usize) -> io::Result<f64> {
    line_busy_ns(&format!("cpu{cpu} "))
}

/// The same of all CPUs together.
pub fn busy_ns() -> io::Result<f64> {
    line_busy_ns("cpu ")
}

fn line_busy_ns(name: &str) -> io::Result<f64> {
    let text = std::fs::read_to_string("/proc/stat")?;
    let line = text.lines().find(|line| line.starts_with(name)).ok_or_else(|| io::Error::other("no such CPU"))?;
    let ticks: Vec<f64> = line.split_whitespace().skip(1).filter_map(|word| word.parse().ok()).collect();
    let busy: f64 = [0, 1, 2, 5, 6].iter().filter_map(|&field| ticks.get(field)).sum();
    Ok(busy * 1e9 / rustix::param::clock_ticks_per_second() as f64)
}

/// Run time in ns of all threads of these processes and of their children.
pub fn tasks_ns(pids: &[u32]) -> f64 {
    pids.iter().map(|&pid| process_ns(pid)).sum()
}

fn process_ns(pid: u32) -> f64 {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return 0.0 };
    let mut sum = 0.0;
    for task in tasks.flatten() {
        let path = task.path();
        if let Ok(text) = std::fs::read_to_string(path.join("schedstat")) {
            sum += text.split_whitespace().next().and_then(|word| word.parse::<f64>().ok()).unwrap_or(0.0);
        }
        if let Ok(children) = std::fs::read_to_string(path.join("children")) {
            sum += children.split_whitespace().filter_map(|word| word.parse().ok()).map(process_ns).sum::<f64>();
        }
    }
    sum
}

fn median_row(rows: &[Row]) -> Row {
    let of = |field: fn(&Row) -> f64| median(rows.iter().map(field).collect());
    Row {
        shape: rows[0].shape.clone(),
        stack: rows[0].stack,
        requests_per_s: of(|row| row.requests_per_s),
        p50_us: of(|row| row.p50_us),
        p99_us: of(|row| row.p99_us),
        p999_us: of(|row| row.p999_us),
        server_cpu_ns_per_request: of(|row| row.server_cpu_ns_per_request),
        server_tasks_ns_per_request: of(|row| row.server_tasks_ns_per_request),
        ratio: 1.0,
    }
}

/// The middle value (the lower of two).
pub fn median(values: Vec<f64>) -> f64 {
    quantile(&values, 0.5)
}

/// Jain's fairness index: 1 = all the same, 1/n = one has everything.
pub fn jain(shares: &[f64]) -> f64 {
    let (sum, squares) = shares.iter().fold((0.0, 0.0), |(sum, squares), x| (sum + x, squares + x * x));
    if squares == 0.0 { 0.0 } else { sum * sum / (shares.len() as f64 * squares) }
}

/// The value below which `q` of all lie (nearest rank).
pub fn quantile(values: &[f64], q: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = ((q * sorted.len() as f64).ceil() as usize).max(1);
    sorted.get(rank - 1).copied().unwrap_or(f64::NAN)
}
