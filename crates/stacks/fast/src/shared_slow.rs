//! The slow path, which two kinds of threads run: its own, and any worker that has just left it work.
//!
//! A handshake goes to and fro between a flow group and the slow path. Were each of them to wake the other's thread, a short
//! connection would cost four changes of threads more. So a worker runs the slow path at the end of its turn, if the slow
//! thread is not at it. It takes the results at once. What nobody waits for in a handshake stays with the slow thread. Those
//! are commands, requests of the service, and timers that the worker does not run by the way.

use crate::api::SynsWait;
use crate::mailbox::Doorbell;
use crate::slow::{SYNS_ON_WORKER, SlowState};
use crate::thread::wait;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use towpath_runtime::recorded::say_what_was_before;
use towpath_tcp::time::Micros;

/// The slow path's state, and what its thread waits for.
pub struct SharedSlow {
    state: Mutex<SlowState>,
    /// The slow thread waits for it.
    wanted: AtomicBool,
    epoll: Arc<OwnedFd>,
    doorbell: Arc<Doorbell>,
    stop: Arc<AtomicBool>,
    panics: Arc<AtomicU64>,
    syns_wait: SynsWait,
}

/// The flow group whose worker takes SYNs.
pub const TAKES_SYNS: usize = 0;

impl SharedSlow {
    /// `stop` ends the thread.
    pub fn new(slow: SlowState, stop: Arc<AtomicBool>, syns_wait: SynsWait) -> Arc<Self> {
        Arc::new(Self {
            epoll: Arc::clone(&slow.epoll),
            doorbell: Arc::clone(&slow.doorbell),
            panics: Arc::clone(&slow.panics),
            state: Mutex::new(slow),
            wanted: AtomicBool::new(false),
            stop,
            syns_wait,
        })
    }

    /// The slow thread: runs until stopped.
    pub fn run(&self) {
        towpath_recorder::begin("slow");
        while !self.stop.load(Ordering::Relaxed) {
            let mut slow = self.take();
            let now = crate::client::now();
            towpath_recorder::turn(now.0);
            if self.survives(|| slow.turn(now)) != Some(0) {
                continue;
            }
            let timeout = slow.arm();
            // A worker that leaves a SYN from now on notifies. One that was left before is seen here.
            let sleeps = timeout.is_some() && !self.has_syns() && !self.stop.load(Ordering::Relaxed);
            // A worker may run it while this thread sleeps.
            drop(slow);
            if sleeps {
                wait(&self.epoll, timeout.flatten());
            }
            self.take().disarm();
        }
    }

    /// The slow thread's turn comes before those of workers.
    fn take(&self) -> MutexGuard<'_, SlowState> {
        self.wanted.store(true, Ordering::Relaxed);
        let slow = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.wanted.store(false, Ordering::Relaxed);
        slow
    }

    /// Does a SYN wait?
    pub fn has_syns(&self) -> bool {
        (self.syns_wait)()
    }

    /// Begins a turn of the slow path on a worker. `None`: another thread is at it or waits for it. The slow thread sees what is
    /// there before it sleeps.
    pub fn begin(&self) -> Option<SlowTurn<'_>> {
        let slow = match self.state.try_lock() {
            Ok(slow) if !self.wanted.load(Ordering::Relaxed) => Some(slow),
            Err(TryLockError::Poisoned(slow)) => Some(slow.into_inner()),
            Ok(_) | Err(TryLockError::WouldBlock) => None,
        };
        if slow.is_none() {
            self.doorbell.notify();
        }
        slow.map(|slow| SlowTurn { shared: self, slow, leaves_syns: false, leaves_messages: false })
    }

    fn survives<T>(&self, run: impl FnOnce() -> T) -> Option<T> {
        let result = catch_unwind(AssertUnwindSafe(run));
        if result.is_err() {
            self.panics.fetch_add(1, Ordering::Relaxed);
            tracing::error!("the slow path panicked; it goes on");
            say_what_was_before(towpath_recorder::NONE);
        }
        result.ok()
    }
}

/// A turn of the slow path on a worker. No other thread has one meanwhile.
pub struct SlowTurn<'a> {
    shared: &'a SharedSlow,
    slow: MutexGuard<'a, SlowState>,
    leaves_syns: bool,
    leaves_messages: bool,
}

impl SlowTurn<'_> {
    /// Takes SYNs, and the messages of this flow group. The answers are in the mailboxes of the flow groups.
    pub fn run(&mut self, now: Micros, flow_group: usize) -> usize {
        let (shared, slow) = (self.shared, &mut self.slow);
        let (syns, work) = shared.survives(|| slow.turn_on_worker(now, flow_group)).unwrap_or((0, 1));
        self.leaves_syns = syns == SYNS_ON_WORKER;
        self.leaves_messages = !slow.inbox[flow_group].is_empty();
        syns + work
    }

    /// Wakes applications, and the slow thread if it must look sooner than it will. The worker has used the answers by now,
    /// so that an application sees a new connection together with its first bytes. True: there may be more SYNs than a worker
    /// takes, and they are the slow thread's.
    pub fn end(mut self, now: Micros) -> bool {
        if self.slow.end_on_worker(now) || self.leaves_syns || self.leaves_messages {
            self.shared.doorbell.notify_always();
        }
        self.leaves_syns
    }
}
