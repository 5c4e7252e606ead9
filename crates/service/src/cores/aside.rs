//! A service that nobody has told which CPUs to use keeps off those that `towpath cores enforce` has reserved: packets are received there, and
//! the scheduler would put its threads there as soon as they look idle.

use super::allocator::ended;
use rustix::fd::{AsFd, OwnedFd};
use rustix::process::Pid;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::thread::JoinHandle;
use towpath_anp::{CpuSet, Tree, affinity, reserved, set_affinity, state_place};

/// How often it is looked, ms: as often as it is said.
const LOOK_MS: u64 = 1000;
/// Most threads that are moved.
const MOST: usize = 10_000;

/// Where a thread might run before, and where it may since.
#[derive(Clone, Debug)]
struct Moved {
    before: CpuSet,
    now: CpuSet,
}

/// Keeps all threads of this process, and of those that it has started, off reserved CPUs.
#[derive(Debug)]
pub struct Aside {
    place: PathBuf,
    /// What they keep off.
    reserved: CpuSet,
    moved: BTreeMap<u32, Moved>,
}

impl Aside {
    /// From now on. The threads that this one starts are off them as well.
    pub fn begin() -> Self {
        let mut aside = Self { place: state_place(), reserved: CpuSet::default(), moved: BTreeMap::new() };
        aside.look();
        aside
    }

    /// Looks once a second, until this can be read.
    pub fn start(mut self, stop: OwnedFd) -> io::Result<JoinHandle<()>> {
        std::thread::Builder::new().name("aside".into()).spawn(move || {
            while !ended(stop.as_fd(), LOOK_MS) {
                self.look();
            }
        })
    }

    fn look(&mut self) {
        let reserved = reserved(&self.place, &Tree::default());
        if reserved == self.reserved {
            return;
        }
        self.reserved = reserved;
        let moved = std::mem::take(&mut self.moved);
        let mut seen = BTreeSet::new();
        // Threads begin while it walks, with what the one that starts them has.
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

    fn move_thread(&mut self, tid: u32, moved: &BTreeMap<u32, Moved>) {
        let Some(pid) = i32::try_from(tid).ok().and_then(Pid::from_raw) else { return };
        // One that has ended needs nothing.
        let Ok(now) = affinity(pid) else { return };
        // One that has begun since has what the first had. What somebody else has set meanwhile is his, and where it begins.
        let ours = moved.get(&tid).or_else(|| moved.get(&std::process::id())).filter(|moved| moved.now == now);
        let before = ours.map_or(&now, |moved| &moved.before).clone();
        let after = beside(&before, &self.reserved);
        if after != now
            && let Err(error) = set_affinity(pid, &after)
        {
            tracing::debug!(tid, %error, "a thread cannot be moved");
            return;
        }
        if after != before {
            self.moved.insert(tid, Moved { before, now: after });
        }
    }
}

/// These without the reserved ones. Who has no others stays: `towpath cores status` says so.
fn beside(before: &CpuSet, reserved: &CpuSet) -> CpuSet {
    let rest = before.without(reserved);
    if rest.is_empty() { before.clone() } else { rest }
}

/// The threads of this process and of those that it has started: a second kernel is one.
fn threads() -> Vec<u32> {
    let (mut found, mut processes) = (Vec::new(), vec![std::process::id()]);
    while let Some(process) = processes.pop() {
        let threads = std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
        for tid in threads.filter_map(|entry| entry.file_name().to_str()?.parse().ok()) {
            if found.len() >= MOST {
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
    use super::beside;
    use towpath_anp::CpuSet;

    #[test]
    fn who_has_other_cpus_leaves_the_reserved_ones_and_who_has_none_stays() {
        let of = |list: &str| CpuSet(list.split(',').filter_map(|cpu| cpu.parse().ok()).collect());
        assert_eq!(beside(&of("0,1,2,3"), &of("1,2")), of("0,3"));
        assert_eq!(beside(&of("0,3"), &of("1,2")), of("0,3"));
        assert_eq!(beside(&of("1,2"), &of("1,2,3")), of("1,2"));
        assert_eq!(beside(&of("0,1"), &of("")), of("0,1"));
    }
}
