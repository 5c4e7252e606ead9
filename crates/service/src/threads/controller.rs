//! Observes the stack every 100 ms and changes the number of threads that it runs.

use super::host_cpu::HostCpu;
use super::sizer::{Sample, Sizer};
use super::stack_totals::StackTotals;
use crate::api::Sizing;
use crate::config::CoresSetting;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use towpath_runtime::Stack;

/// Time between two observations, ms; the scaling policy's times are in these ticks. A trial takes a second, so shorter
/// ticks would decide no sooner, and `/proc/stat` counts in units of 10 ms.
pub const TICK_MS: u64 = 100;
/// The same while no client has done anything for ten seconds, ms.
const REST_MS: u64 = 1000;

/// See the module.
#[derive(Debug)]
pub struct ThreadController {
    sizer: Mutex<Sizer>,
    started: Instant,
    /// Reads the machine's CPU usage.
    host: fn() -> HostCpu,
}

impl ThreadController {
    /// For a stack that can run `most` threads.
    pub fn new(wanted: CoresSetting, most: usize) -> Self {
        Self::on(cpus(), HostCpu::read, wanted, most)
    }
    /// The same on a machine with `cpus` CPUs.
    fn on(cpus: usize, host: fn() -> HostCpu, wanted: CoresSetting, most: usize) -> Self {
        Self { sizer: Mutex::new(Sizer::new(wanted, most, cpus)), started: Instant::now(), host }
    }
    fn sizer(&self) -> MutexGuard<'_, Sizer> {
        self.sizer.lock().unwrap_or_else(PoisonError::into_inner)
    }
    fn now_us(&self) -> u64 {
        self.started.elapsed().as_micros() as u64
    }

    /// Lets the stack begin with the configured number of threads.
    pub fn begin(&self, stack: &dyn Stack) {
        let mut sizer = self.sizer();
        let workers = sizer.workers();
        if workers < sizer.most() {
            set(stack, &mut sizer, workers);
        }
    }
    /// The present number, its reason and its history.
    pub fn sizing(&self, stack: &str, with_changes: bool) -> Sizing {
        self.sizer().sizing(stack, with_changes)
    }
    /// Fixes the number of threads. `None`: the configuration decides again.
    pub fn fix(&self, stack: &dyn Stack, workers: Option<usize>) -> Result<Sizing, String> {
        let mut sizer = self.sizer();
        let to = sizer.fix(workers, self.now_us())?;
        stack.set_workers(to).map_err(|error| error.to_string())?;
        log_change(&sizer);
        Ok(sizer.sizing(stack.name(), true))
    }

    /// Is there anything to decide?
    pub fn decides(&self) -> bool {
        self.sizer().decides()
    }

    /// Observes once, and returns the time until the next observation, ms.
    pub fn tick(&self, stack: &dyn Stack, clients: bool) -> u64 {
        if !clients && self.sizer().rest() {
            return REST_MS;
        }
        let sample = Sample { stack: StackTotals::of(&stack.status()), host: (self.host)() };
        let mut sizer = self.sizer();
        if sizer.has_other_cpus(&sample) {
            sizer.set_cpus(cpus());
        }
        if let Some(workers) = sizer.tick(sample, self.now_us()) {
            set(stack, &mut sizer, workers);
            log_change(&sizer);
        }
        if sizer.is_quiet() { REST_MS } else { TICK_MS }
    }
}

/// CPUs that this process may use.
fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn set(stack: &dyn Stack, sizer: &mut Sizer, workers: usize) {
    if let Err(error) = stack.set_workers(workers) {
        let has = stack.workers().running;
        tracing::error!(%error, workers, has, "the number of workers cannot be changed; it stays as it is");
        sizer.refused(has);
    }
}

fn log_change(sizer: &Sizer) {
    let change = sizer.last_change().and_then(|change| serde_json::to_string(change).ok());
    if let Some(change) = change {
        tracing::info!(target: "towpath_service::threads", "{change}");
    }
}

#[cfg(test)]
#[path = "controller_tests.rs"]
mod tests;
