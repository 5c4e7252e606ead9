//! Kernel threads that receive packets: how long they have run, to the nanosecond.

use crate::tree::Tree;
use std::collections::BTreeMap;

/// Reads between two searches for threads. A thread that has gone also causes a search.
const LOOK_EVERY: u32 = 10;
/// Most threads of a kind.
const MOST: usize = 4096;
/// The kernel cuts long names off.
const NAME: usize = 15;

/// The work of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ThreadKind {
    /// NAPI of the device.
    Napi,
    /// Softirqs of this CPU that do not fit between programs.
    Ksoftirqd(u32),
}

/// Finds and reads them.
pub struct Threads {
    /// The beginning of the device's thread names.
    napi: String,
    known: Vec<(u32, ThreadKind)>,
    until_look: u32,
}

/// How long each has run, ns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ran {
    napi: BTreeMap<u32, u64>,
    ksoftirqd: BTreeMap<u32, u64>,
}

/// Run times between two reads, seconds per second.
pub struct Rate {
    /// All NAPI threads of the device.
    pub napi: f64,
    /// By CPU.
    pub ksoftirqd: BTreeMap<u32, f64>,
}

impl Threads {
    /// The threads of this device, and those of every CPU.
    pub fn of(interface: &str) -> Self {
        Self { napi: format!("napi/{interface}-"), known: Vec::new(), until_look: 0 }
    }

    fn kind(&self, name: &str) -> Option<ThreadKind> {
        let cut_off = name.len() == NAME && self.napi.starts_with(name);
        if name.starts_with(&self.napi) || cut_off {
            return Some(ThreadKind::Napi);
        }
        name.strip_prefix("ksoftirqd/")?.parse().ok().map(ThreadKind::Ksoftirqd)
    }

    fn look(&mut self, tree: &Tree) {
        self.until_look = LOOK_EVERY;
        self.known.clear();
        // A container's PID namespace shows no kernel threads.
        if tree.text("/proc/2/comm").as_deref() != Some("kthreadd") {
            return;
        }
        let children = tree.text("/proc/2/task/2/children").unwrap_or_default();
        let threads = children.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok());
        let known = threads.filter_map(|pid| Some((pid, self.kind(&tree.text(&format!("/proc/{pid}/comm"))?)?)));
        self.known = known.take(MOST).collect();
    }

    /// Reads their run times.
    pub fn read(&mut self, tree: &Tree) -> Ran {
        self.until_look = self.until_look.saturating_sub(1);
        if self.until_look == 0 {
            self.look(tree);
        }
        let mut ran = Ran::default();
        for (pid, kind) in &self.known {
            // proc_pid_schedstat(5): ns on a CPU, ns waiting for one, time slices.
            let text = tree.text(&format!("/proc/{pid}/schedstat"));
            let time = text.and_then(|text| text.split_whitespace().next()?.parse::<u64>().ok());
            match (time, kind) {
                (Some(time), ThreadKind::Napi) => drop(ran.napi.insert(*pid, time)),
                (Some(time), ThreadKind::Ksoftirqd(cpu)) => drop(ran.ksoftirqd.insert(*cpu, time)),
                (None, _) => self.until_look = 0,
            }
        }
        ran
    }
}

impl Ran {
    /// The rates since `before`, of threads that existed then.
    pub fn since(&self, before: &Self, seconds: f64) -> Rate {
        let rates = |now: &BTreeMap<u32, u64>, before: &BTreeMap<u32, u64>| -> BTreeMap<u32, f64> {
            let rate = |(key, now): (&u32, &u64)| {
                let then = before.get(key).unwrap_or(now);
                (*key, now.saturating_sub(*then) as f64 / 1e9 / seconds)
            };
            now.iter().map(rate).collect()
        };
        Rate {
            napi: rates(&self.napi, &before.napi).values().map(|rate| rate.min(1.0)).sum(),
            ksoftirqd: rates(&self.ksoftirqd, &before.ksoftirqd),
        }
    }

    /// The sources of receive work.
    pub fn sources(&self) -> String {
        let ksoftirqd = if self.ksoftirqd.is_empty() { "" } else { "+ksoftirqd" };
        let napi = if self.napi.is_empty() { "" } else { "+napi" };
        format!("ticks{ksoftirqd}{napi}")
    }
}
