//! The thread that looks every 100 ms and has the stack's size changed.

use super::host::Host;
use super::sizer::{Sample, Sizer};
use super::totals::Totals;
use super::wanted::Cores;
use crate::api::Sizing;
use crate::shared::Shared;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::AsFd;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;
use towpath_stack::Stack;

/// How often it looks, ms: what the policy's times are made for. A trial takes a second, so a look every 10 ms would decide no sooner what
/// pays off, and `/proc/stat` has no finer ticks.
const TICK_MS: u64 = 100;
/// How often while there is no client, or none has done anything for ten seconds, ms.
const REST_MS: u64 = 1000;

/// Holds the stack's size, and changes it.
#[derive(Debug)]
pub struct Allocator {
    sizer: Mutex<Sizer>,
    started: Instant,
    /// What there is of the machine.
    host: fn() -> Host,
}

impl Allocator {
    /// Of a stack with so many cores at most.
    pub fn new(wanted: Cores, most: usize) -> Self {
        Self::on(cpus(), Host::read, wanted, most)
    }
    /// On so many CPUs.
    fn on(cpus: usize, host: fn() -> Host, wanted: Cores, most: usize) -> Self {
        Self { sizer: Mutex::new(Sizer::new(wanted, most, cpus)), started: Instant::now(), host }
    }
    fn sizer(&self) -> MutexGuard<'_, Sizer> {
        self.sizer.lock().unwrap_or_else(PoisonError::into_inner)
    }
    fn now_us(&self) -> u64 {
        self.started.elapsed().as_micros() as u64
    }

    /// Has the stack begin with as many as there are to be.
    pub fn begin(&self, stack: &dyn Stack) {
        let mut sizer = self.sizer();
        let cores = sizer.cores();
        if cores < sizer.most() {
            set(stack, &mut sizer, cores);
        }
    }
    /// What is known.
    pub fn sizing(&self, stack: &str, with_changes: bool) -> Sizing {
        self.sizer().sizing(stack, with_changes)
    }
    /// So many from now on; `None`: as the configuration says.
    pub fn say(&self, stack: &dyn Stack, cores: Option<usize>) -> Result<Sizing, String> {
        let mut sizer = self.sizer();
        let to = sizer.say(cores, self.now_us())?;
        stack.set_cores(to).map_err(|error| error.to_string())?;
        log(&sizer);
        Ok(sizer.sizing(stack.name(), true))
    }

    /// Looks once; when to look again, ms.
    fn tick(&self, stack: &dyn Stack, clients: bool) -> u64 {
        if !clients && self.sizer().rest() {
            return REST_MS;
        }
        let sample = Sample { stack: Totals::of(&stack.status()), host: (self.host)() };
        let mut sizer = self.sizer();
        if sizer.has_other_cpus(&sample) {
            sizer.set_cpus(cpus());
        }
        if let Some(cores) = sizer.tick(sample, self.now_us()) {
            set(stack, &mut sizer, cores);
            log(&sizer);
        }
        if sizer.is_quiet() { REST_MS } else { TICK_MS }
    }
}

/// As many as this process may use.
fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn set(stack: &dyn Stack, sizer: &mut Sizer, cores: usize) {
    if let Err(error) = stack.set_cores(cores) {
        let has = stack.cores().running;
        tracing::error!(%error, cores, has, "the stack's cores cannot be changed; they stay as they are");
        sizer.refused(has);
    }
}

fn log(sizer: &Sizer) {
    let change = sizer.last_change().and_then(|change| serde_json::to_string(change).ok());
    if let Some(change) = change {
        tracing::info!(target: "towpath_service::cores", "{change}");
    }
}

/// Starts the thread, if there is anything to decide.
pub fn start(shared: &Arc<Shared>) -> io::Result<Option<JoinHandle<()>>> {
    if !shared.cores.sizer().decides() {
        return Ok(None);
    }
    let stop = shared.stop_fd.try_clone()?;
    let shared = Arc::downgrade(shared);
    let run = move || {
        let mut pause = TICK_MS;
        while !ended(stop.as_fd(), pause) {
            let Some(shared) = shared.upgrade() else { return };
            let clients = !shared.registry().connections.is_empty();
            pause = shared.cores.tick(&*shared.stack, clients);
        }
    };
    std::thread::Builder::new().name("cores".into()).spawn(run).map(Some)
}

/// Waits so long, or until the service ends.
pub fn ended(stop: rustix::fd::BorrowedFd<'_>, pause_ms: u64) -> bool {
    let time = Timespec { tv_sec: (pause_ms / 1000) as i64, tv_nsec: (pause_ms % 1000 * 1_000_000) as i64 };
    poll(&mut [PollFd::from_borrowed_fd(stop, PollFlags::IN)], Some(&time)).is_ok_and(|ready| ready > 0)
}

#[cfg(test)]
#[path = "allocator_tests.rs"]
mod tests;
