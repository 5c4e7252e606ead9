//! The affinity guard keeps the service's threads off the CPUs that `towpath cores enforce` has reserved for receiving
//! packets. Without it the scheduler would use those CPUs as soon as they look idle. A service with configured CPUs has
//! no guard.

use crate::privileged;
use crate::stop_wait::stopped_within;
use rustix::fd::{AsFd, OwnedFd};
use rustix::process::Pid;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::thread::JoinHandle;
use towpath_rxcpus::{CpuSet, affinity, set_affinity};

/// Time between two checks, ms. Reservations are renewed as often.
const CHECK_MS: u64 = 1000;
/// Most threads that are moved.
const MAX_THREADS: usize = 10_000;

/// The affinity of a thread before and after it was moved.
#[derive(Clone, Debug)]
struct MovedThread {
    before: CpuSet,
    now: CpuSet,
}

/// See the module. Processes that the service has started are guarded, too.
#[derive(Debug)]
pub struct AffinityGuard {
    /// The reserved CPUs at the last check.
    reserved: CpuSet,
    moved: BTreeMap<u32, MovedThread>,
}

impl AffinityGuard {
    /// Checks once. Threads that the caller starts later inherit its affinity.
    pub fn begin() -> Self {
        let mut guard = Self { reserved: CpuSet::default(), moved: BTreeMap::new() };
        guard.check();
        guard
    }

    /// Checks once a second until `stop` is readable.
    pub fn start(mut self, stop: OwnedFd) -> io::Result<JoinHandle<()>> {
        std::thread::Builder::new().name("affinity".into()).spawn(move || {
            while !stopped_within(stop.as_fd(), CHECK_MS) {
                self.check();
            }
        })
    }

    /// Checks once.
    pub fn check(&mut self) {
        let Some(reserved) = privileged::reserved_cpus().filter(|reserved| *reserved != self.reserved) else { return };
        self.reserved = reserved;
        let moved = std::mem::take(&mut self.moved);
        let mut seen = BTreeSet::new();
        // A thread that begins during the walk inherits an affinity, so the walk is repeated until it finds none.
        loop {
            let found: Vec<u32> = threads().into_iter().filter(|tid| seen.insert(*tid)).collect();
            if found.is_empty() {
                break;
            }
            found.into_iter().for_each(|tid| self.move_thread(tid, &moved));
        }
        if self.reserved.is_empty() {
            tracing::info!("no CPU is reserved any more: threads run where they ran before");
        } else {
            tracing::info!("threads keep off {}, reserved by `towpath cores enforce`", self.reserved.named());
        }
    }

    fn move_thread(&mut self, tid: u32, moved: &BTreeMap<u32, MovedThread>) {
        let Some(pid) = i32::try_from(tid).ok().and_then(Pid::from_raw) else { return };
        // A thread that has ended needs nothing.
        let Ok(now) = affinity(pid) else { return };
        // A new thread has inherited the main thread's affinity. An affinity that somebody else has set is the new
        // base.
        let ours = moved.get(&tid).or_else(|| moved.get(&std::process::id())).filter(|moved| moved.now == now);
        let before = ours.map_or(&now, |moved| &moved.before).clone();
        let after = without_reserved(&before, &self.reserved);
        if after != now
            && let Err(error) = set_affinity(pid, &after)
        {
            tracing::debug!(tid, %error, "a thread cannot be moved");
            return;
        }
        if after != before {
            self.moved.insert(tid, MovedThread { before, now: after });
        }
    }
}

/// The CPUs that are not reserved. A thread that may use no others keeps them; `towpath cores status` reports it.
fn without_reserved(before: &CpuSet, reserved: &CpuSet) -> CpuSet {
    let rest = before.without(reserved);
    if rest.is_empty() { before.clone() } else { rest }
}

/// The threads of this process and of its child processes, such as a second kernel. A worker may not move its broker,
/// which sleeps.
fn threads() -> Vec<u32> {
    let (mut found, mut processes) = (Vec::new(), vec![std::process::id()]);
    while let Some(process) = processes.pop() {
        let threads = std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
        for tid in threads.filter_map(|entry| entry.file_name().to_str()?.parse().ok()) {
            if found.len() >= MAX_THREADS {
                return found;
            }
            found.push(tid);
            let children = std::fs::read_to_string(format!("/proc/{process}/task/{tid}/children")).unwrap_or_default();
            processes.extend(children.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::without_reserved;
    use towpath_rxcpus::CpuSet;

    #[test]
    fn who_has_other_cpus_leaves_the_reserved_ones_and_who_has_none_stays() {
        let of = |list: &str| CpuSet(list.split(',').filter_map(|cpu| cpu.parse().ok()).collect());
        assert_eq!(without_reserved(&of("0,1,2,3"), &of("1,2")), of("0,3"));
        assert_eq!(without_reserved(&of("0,3"), &of("1,2")), of("0,3"));
        assert_eq!(without_reserved(&of("1,2"), &of("1,2,3")), of("1,2"));
        assert_eq!(without_reserved(&of("0,1"), &of("")), of("0,1"));
    }
}
