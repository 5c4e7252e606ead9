//! Observes the kernel's receive path.
//!
//! `/proc/stat` counts softirq time by ticks, which can be several times too large over a short time. So two samples
//! must be at least [`SHORTEST`] apart, and the policy checks the outcome of applications as well. The run time of
//! kernel threads is exact. It is used where they do the work (threaded NAPI, `ksoftirqd` under load).

mod losses;
mod threads;
mod ticks;
mod waiting;

use crate::cpulist::CpuSet;
use crate::tree::Tree;
use losses::Losses;
use std::time::Duration;
use threads::{Ran, Threads};
use ticks::Ticks;
use towpath_scaling::{Observation, Outcome};
use waiting::{WaitScope, Waited};

/// The shortest useful time between two samples.
pub const SHORTEST: Duration = Duration::from_secs(1);

/// Reads the counters.
pub struct Sensor {
    tree: Tree,
    interface: String,
    group: WaitScope,
    threads: Threads,
}

/// Counters at one time. They only grow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    ticks: Ticks,
    ran: Ran,
    losses: Losses,
    waited: Waited,
    /// Packets that the device has received.
    packets: u64,
}

/// The observation between two samples, and its sources.
#[derive(Clone, Debug, PartialEq)]
pub struct Sensed {
    /// The policy's input.
    pub observation: Observation,
    /// The sources of receive work: `ticks`, and `ksoftirqd` and `napi` if such threads are visible.
    pub busy_from: String,
    /// The source of waiting: `cgroup`, `cgroup-threads`, `process-threads`, `machine`, `machine-schedstat` or
    /// `nothing`.
    pub waiting_from: &'static str,
    /// The losses, by the kernel's names.
    pub losses: Vec<&'static str>,
}

impl Sensor {
    /// A sensor for a device and an application. The application is named by its control group's cpuset file, or by its
    /// processes.
    pub fn new(tree: &Tree, interface: &str, application: Option<&str>, processes: &[u32]) -> Self {
        Self {
            tree: tree.clone(),
            interface: interface.to_owned(),
            group: WaitScope::of(application, processes),
            threads: Threads::of(interface),
        }
    }

    /// Reads a sample. `None`: the machine has no `/proc/stat`.
    pub fn read(&mut self) -> Option<Sample> {
        let tree = &self.tree;
        Some(Sample {
            ticks: Ticks::read(tree)?,
            ran: self.threads.read(tree),
            losses: Losses::read(tree, &self.interface),
            waited: self.group.read(tree),
            packets: tree.number(&format!("/sys/class/net/{}/statistics/rx_packets", self.interface)).unwrap_or(0),
        })
    }
}

impl Sample {
    /// The observation since `before`. With reserved CPUs, receive work and losses are those of these CPUs, and
    /// programs run on the others. Without any, both are counted on all CPUs.
    pub fn since(&self, before: &Self, time: Duration, reserved: &CpuSet, outcome: Option<Outcome>) -> Sensed {
        let seconds = time.as_secs_f64().max(1e-3);
        let receives = |cpu: u32| reserved.0.is_empty() || reserved.0.contains(&cpu);
        let packets = self.packets.saturating_sub(before.packets);
        let ran = self.ran.since(&before.ran, seconds);
        let mut busy = ran.napi;
        let mut app_busy = 0.0;
        for (cpu, now) in &self.ticks.0 {
            let used = now.since(before.ticks.0.get(cpu), seconds);
            if receives(*cpu) {
                // The ticks include the time of ksoftirqd.
                busy += used.softirq.max(ran.ksoftirqd.get(cpu).copied().unwrap_or(0.0)).min(1.0);
            }
            if reserved.0.is_empty() || !reserved.0.contains(cpu) {
                app_busy += used.programs;
            }
        }
        if reserved.0.is_empty() {
            // The ticks count NAPI threads as programs.
            app_busy = (app_busy - ran.napi).max(0.0);
        }
        let losses = self.losses.since(&before.losses, packets, receives);
        let observation = Observation {
            busy,
            pressure: !losses.is_empty(),
            app_busy,
            app_waiting: self.waited.since(&before.waited, seconds),
            outcome,
            offered: packets as f64 / seconds,
        };
        Sensed { observation, busy_from: self.ran.sources(), waiting_from: self.waited.from, losses }
    }
}
