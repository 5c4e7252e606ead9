//! Decisions about real threads, from real measurements. Their work is waiting, which does not depend on the machine's
//! load. The CPU usage of the machine is left out, because other tests cause it.
#![allow(clippy::unwrap_used)]

use super::*;
use rustix::fd::OwnedFd;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use towpath_runtime::mailbox::Doorbell;
use towpath_runtime::sampler::Achieved;
use towpath_runtime::status::FlowGroupStatus;
use towpath_runtime::thread::{epoll_with, wait};
use towpath_runtime::workers::{Group, Idle, Workers, WorkersConfig};
use towpath_runtime::{ClientId, ClientSetup, PairHandle, SocketStatus, Status};

/// Duration of a turn with work.
const TURN: Duration = Duration::from_millis(1);
/// Bytes that it moves.
const BYTES: u64 = 1000;

/// The load of one group, which the test switches.
struct Load {
    /// There is always work.
    on: AtomicBool,
    bytes: AtomicU64,
    doorbell: Arc<Doorbell>,
}

impl Load {
    fn set(&self, on: bool) {
        self.on.store(on, Ordering::SeqCst);
        self.doorbell.notify();
    }
}

/// A group whose work never ends while its load is on.
struct Work {
    load: Arc<Load>,
    set: OwnedFd,
}

impl Group for Work {
    fn turn(&mut self, _: u64) -> usize {
        if !self.load.on.load(Ordering::SeqCst) {
            return 0;
        }
        std::thread::sleep(TURN);
        self.load.bytes.fetch_add(BYTES, Ordering::Relaxed);
        1
    }
    fn turned(&mut self, _: u64, _: u64, _: bool) {}
    fn panicked(&mut self) {}
    fn arm(&mut self, _: u64) -> Idle {
        self.load.doorbell.arm();
        if self.load.on.load(Ordering::SeqCst) { Idle::No } else { Idle::For(None) }
    }
    fn disarm(&mut self, _: bool) {
        self.load.doorbell.disarm();
    }
    fn wait(&mut self, timeout_us: Option<u64>) {
        wait(&self.set, timeout_us);
    }
    fn set(&self) -> &OwnedFd {
        &self.set
    }
}

/// A stack of such groups.
struct Waiting {
    workers: Workers<Work>,
    loads: Vec<Arc<Load>>,
}

impl Waiting {
    fn start(groups: usize) -> Self {
        let load = || Load { on: AtomicBool::new(false), bytes: AtomicU64::new(0), doorbell: Doorbell::new().unwrap() };
        let loads: Vec<_> = (0..groups).map(|_| Arc::new(load())).collect();
        let work =
            |load: &Arc<Load>| Box::new(Work { load: Arc::clone(load), set: epoll_with(&load.doorbell).unwrap() });
        let config = WorkersConfig { name: "waiting", spin_us: 0, cpus: Vec::new() };
        let workers = Workers::start(&config, loads.iter().map(work).collect()).unwrap();
        Self { workers, loads }
    }
    fn load(&self, on: bool) {
        self.loads.iter().for_each(|load| load.set(on));
    }
    fn groups(&self) -> Vec<usize> {
        self.workers.status().iter().map(|thread| thread.flow_groups.len()).collect()
    }
}

impl Stack for Waiting {
    fn name(&self) -> &'static str {
        "waiting"
    }
    fn status(&self) -> Status {
        let group = |load: &Arc<Load>| {
            let achieved = Achieved { bytes: load.bytes.load(Ordering::Relaxed), ..Achieved::default() };
            FlowGroupStatus { achieved, ..FlowGroupStatus::default() }
        };
        let flow_groups = self.loads.iter().map(group).collect();
        Status { flow_groups, workers: self.workers.status(), ..Status::default() }
    }
    fn workers(&self) -> towpath_runtime::WorkerCount {
        self.workers.count()
    }
    fn set_workers(&self, running: usize) -> io::Result<()> {
        self.workers.set_workers(running)
    }
    fn add_client(&self, _: ClientSetup) -> io::Result<ClientId> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn add_context(&self, _: ClientId, _: u32, _: OwnedFd) {}
    fn drop_context(&self, _: ClientId, _: u32) {}
    fn reserve(&self, _: ClientId, _: u32, _: u32, _: towpath_runtime::Reservation) {}
    fn hangup(&self, _: ClientId, _: u32, _: u32) {}
    fn departed(&self, _: ClientId, _: u32) {}
    fn remove_client(&self, _: ClientId) {}
    fn pair(&self, _: ClientId, _: u32, _: u32) -> Option<PairHandle> {
        None
    }
    fn connections(&self) -> Vec<SocketStatus> {
        Vec::new()
    }
    fn network_changed(&self) {}
    fn policy_changed(&self) {}
    fn stop(self: Box<Self>) {}
}

/// Ticks until the stack runs this many threads.
fn until(workers: usize, allocator: &ThreadController, stack: &Waiting) {
    let end = Instant::now() + Duration::from_secs(120);
    while stack.workers().running != workers {
        assert!(Instant::now() < end, "never {workers}: {:?}", allocator.sizing("waiting", true));
        std::thread::sleep(Duration::from_millis(50));
        allocator.tick(stack, true);
    }
}

#[test]
fn a_load_that_one_thread_cannot_carry_gets_more_and_when_it_is_over_they_are_parked() {
    let stack = Waiting::start(3);
    let allocator = ThreadController::on(8, HostCpu::default, CoresSetting::Range(1, 3), 3);
    allocator.begin(&stack);
    assert_eq!(stack.groups(), [3, 0, 0]);
    stack.load(true);
    until(3, &allocator, &stack);
    assert_eq!(stack.groups(), [1, 1, 1]);
    stack.load(false);
    until(1, &allocator, &stack);
    assert_eq!(stack.groups(), [3, 0, 0]);
    let changes = allocator.sizing("waiting", true).changes;
    let (first, last) = (&changes[0], &changes[changes.len() - 1]);
    assert_eq!((first.from, first.to, first.reason.as_str()), (1, 2, "busy"), "{changes:?}");
    assert!(first.seen.busy > 0.75 && first.seen.throughput > Some(0.0), "{first:?}");
    assert_eq!((last.from, last.to, last.reason.as_str()), (2, 1, "idle"), "{changes:?}");
    assert!(last.seen.busy < 0.1, "{last:?}");
}
