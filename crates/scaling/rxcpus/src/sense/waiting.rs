//! How long applications were ready to run and waited for a CPU.

use crate::tree::Tree;
use std::collections::BTreeMap;

/// Most threads of an application that are read.
const MOST: usize = 256;

/// Those whose waiting counts.
pub struct WaitScope {
    /// The folder of the application's control group.
    folder: Option<String>,
    /// The application's processes, if it has no group of its own.
    processes: Vec<u32>,
}

/// Counters at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Waited {
    /// The source of the counters.
    pub from: &'static str,
    /// Time in which some thread waited, µs (PSI, `some`).
    some_us: Option<u64>,
    /// By thread or CPU: time on a CPU, and waiting for one, ns.
    delays: BTreeMap<u32, (u64, u64)>,
}

/// Reads the total of `some avg10=0.00 avg60=0.00 avg300=0.00 total=1234`.
fn some_us(pressure: &str) -> Option<u64> {
    let some = pressure.lines().find(|line| line.starts_with("some"))?;
    some.split("total=").nth(1)?.trim().parse().ok()
}

/// Two adjacent fields of a line.
fn pair(text: &str, first: usize) -> Option<(u64, u64)> {
    let mut fields = text.split_whitespace().skip(first).map(|field| field.parse().ok());
    Some((fields.next()??, fields.next()??))
}

impl WaitScope {
    /// The control group of this cpuset file, or these processes. Without either: the whole machine.
    pub fn of(cpuset: Option<&str>, processes: &[u32]) -> Self {
        let folder = cpuset.and_then(|file| Some(file.rsplit_once('/')?.0.to_owned()));
        Self { folder, processes: processes.to_vec() }
    }

    /// Reads the best source that this machine has.
    pub fn read(&self, tree: &Tree) -> Waited {
        let pressure = |from, file: &str| {
            let some_us = some_us(&tree.text(file)?)?;
            Some(Waited { from, some_us: Some(some_us), ..Waited::default() })
        };
        // Version 2 has pressure per group. Version 1 has only threads.
        let of_group = self.folder.as_ref().and_then(|folder| {
            pressure("cgroup", &format!("{folder}/cpu.pressure")).or_else(|| of_group_threads(tree, folder))
        });
        let of_processes = || (!self.processes.is_empty()).then(|| of_processes(tree, &self.processes));
        let of_machine = || pressure("machine", "/proc/pressure/cpu").or_else(|| of_cpus(tree));
        of_group.or_else(of_processes).or_else(of_machine).unwrap_or(Waited { from: "nothing", ..Waited::default() })
    }
}

/// The delays of threads, from `schedstat` (proc_pid_schedstat(5)).
fn of_threads(tree: &Tree, from: &'static str, threads: impl Iterator<Item = u32>) -> Waited {
    let delay = |tid: u32| Some((tid, pair(&tree.text(&format!("/proc/{tid}/schedstat"))?, 0)?));
    Waited { from, delays: threads.take(MOST).filter_map(delay).collect(), ..Waited::default() }
}

fn of_group_threads(tree: &Tree, folder: &str) -> Option<Waited> {
    let threads = ["cgroup.threads", "tasks"].iter().find_map(|file| tree.text(&format!("{folder}/{file}")))?;
    Some(of_threads(tree, "cgroup-threads", threads.lines().filter_map(|tid| tid.trim().parse().ok())))
}

fn of_processes(tree: &Tree, processes: &[u32]) -> Waited {
    let threads = processes.iter().flat_map(|pid| tree.names(&format!("/proc/{pid}/task")));
    of_threads(tree, "process-threads", threads.filter_map(|tid| tid.parse().ok()))
}

/// The delays of all CPUs. Of the nine fields after `cpuN`, the seventh is the time on the CPU, the eighth the time
/// waiting for it.
fn of_cpus(tree: &Tree) -> Option<Waited> {
    let text = tree.text("/proc/schedstat")?;
    let cpu = |line: &str| {
        let number = line.split_whitespace().next()?.strip_prefix("cpu")?.parse().ok()?;
        Some((number, pair(line, 7)?))
    };
    Some(Waited { from: "machine-schedstat", delays: text.lines().filter_map(cpu).collect(), ..Waited::default() })
}

impl Waited {
    /// The part of the time since `before` in which some thread waited. For `schedstat` it is a part of the runnable
    /// time.
    pub fn since(&self, before: &Self, seconds: f64) -> f64 {
        if self.from != before.from {
            return 0.0;
        }
        if let (Some(now), Some(then)) = (self.some_us, before.some_us) {
            return (now.saturating_sub(then) as f64 / 1e6 / seconds).min(1.0);
        }
        let (mut ran, mut waited) = (0u64, 0u64);
        for (key, now) in &self.delays {
            let then = before.delays.get(key).unwrap_or(now);
            ran = ran.saturating_add(now.0.saturating_sub(then.0));
            waited = waited.saturating_add(now.1.saturating_sub(then.1));
        }
        let (ran, waited) = (ran as f64, waited as f64);
        if ran + waited > 0.0 { waited / (ran + waited) } else { 0.0 }
    }
}
