//! What is seen of the kernel's receive path.
//!
//! Softirq time as `/proc/stat` has it is counted by ticks, and can say several times too much in a short time; so the shortest
//! time between two samples that says anything is [`SHORTEST`], and the policy asks what applications achieve before it believes it.
//! What kernel threads have run is exact: where they do the work (threaded NAPI, `ksoftirqd` under load) it is taken from them.

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
use towpath_cores::{Observation, Outcome};
use waiting::{Group, Waited};

/// The shortest time between two samples that says anything.
pub const SHORTEST: Duration = Duration::from_secs(1);

/// Reads what there is to see.
pub struct Sensor {
    tree: Tree,
    interface: String,
    group: Group,
    threads: Threads,
}

/// Counters at one time; they only grow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    ticks: Ticks,
    ran: Ran,
    losses: Losses,
    waited: Waited,
    /// Packets that the card has received.
    packets: u64,
}

/// What was between two samples, and where it is from.
#[derive(Clone, Debug, PartialEq)]
pub struct Sensed {
    /// For the policy.
    pub observation: Observation,
    /// What receive work was measured by: `ticks`, and `ksoftirqd` and `napi` if there are such threads to see.
    pub busy_from: String,
    /// What waiting was measured by: `cgroup`, `cgroup-threads`, `process-threads`, `machine`, `machine-schedstat` or `nothing`.
    pub waiting_from: &'static str,
    /// Which losses there were, by the kernel's names for them.
    pub losses: Vec<&'static str>,
}

impl Sensor {
    /// For a card, and an application by the file that says on which CPUs its control group may run, or by its processes.
    pub fn new(tree: &Tree, interface: &str, application: Option<&str>, processes: &[u32]) -> Self {
        Self {
            tree: tree.clone(),
            interface: interface.to_owned(),
            group: Group::of(application, processes),
            threads: Threads::of(interface),
        }
    }

    /// Now. `None`: this machine does not say.
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
    /// What has been since `before`, with these CPUs reserved: then receive work and losses are those of these CPUs, and what programs
    /// use is that of the others. With none, everything is everywhere.
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
                // The time of ksoftirqd is in the ticks, too.
                busy += used.softirq.max(ran.ksoftirqd.get(cpu).copied().unwrap_or(0.0)).min(1.0);
            }
            if reserved.0.is_empty() || !reserved.0.contains(cpu) {
                app_busy += used.programs;
            }
        }
        if reserved.0.is_empty() {
            // Kernel threads count as programs there.
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
