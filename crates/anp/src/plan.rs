//! What has to be written, and in which order.

use crate::cpulist::CpuSet;
use crate::knob::Knob;
use crate::pool::{FEWEST_CPUS, Pool};
use crate::setting::Setting;
use crate::way::Way;
use serde::Serialize;
use towpath_cores::{counted, rebalance};

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// No card of that name.
    #[error("there is no network interface {0}; `ip link` lists them")]
    NoInterface(String),
    /// It carries the machine's own traffic, and nobody has named it.
    #[error("{0} has the default route: name it with --interface if it is meant")]
    DefaultRoute(String),
    /// Nothing can be moved.
    #[error("{0} has neither interrupts that can be moved nor queues that software can steer: nothing can be set")]
    NothingToSet(String),
    /// The way that was asked for is not there.
    #[error("{interface} cannot be set in the way {way}: {why}")]
    NotThisWay {
        /// The card.
        interface: String,
        /// The way.
        way: &'static str,
        /// Why not.
        why: &'static str,
    },
    /// So many cannot be reserved.
    #[error(
        "{} cannot be reserved: {most} of this machine's {all} can, and at least one stays for applications",
        counted(*wanted, "CPU")
    )]
    TooMany {
        /// As many as were wanted.
        wanted: u32,
        /// As many as can be.
        most: u32,
        /// As many as there are.
        all: usize,
    },
    /// There is nothing that could be partitioned.
    #[error(
        "the control groups of version 2 have no cpusets here (version 1 may have them), so nothing can be a partition: --cgroup and --pid work all the same"
    )]
    NoPartition,
    /// No group below the root may have a cpuset.
    #[error("groups have no cpusets yet, so none can be a partition: echo +cpuset > {0}")]
    NotDelegated(String),
    /// There are too few CPUs for it to be worth while.
    #[error(
        "this machine has {}, and reserving one of fewer than {FEWEST_CPUS} costs applications more than it gives; --force plans it all the same",
        counted(*.0, "CPU")
    )]
    TooSmall(usize),
}

/// Everything that has to be written, in this order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// The card.
    pub interface: String,
    /// How packets are brought to the reserved CPUs.
    pub way: Way,
    /// Why in this way.
    pub why: String,
    /// The CPUs that receive.
    #[serde(serialize_with = "list")]
    pub reserved: CpuSet,
    /// The CPUs that applications have.
    #[serde(serialize_with = "list")]
    pub applications: CpuSet,
    /// What to write.
    pub knobs: Vec<Knob>,
}

pub(crate) fn list<S: serde::Serializer>(set: &CpuSet, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&set.list())
}

impl Pool {
    /// What brings packets to these CPUs.
    pub(crate) fn steering(&self, way: Way, cpus: &[u32]) -> Vec<Knob> {
        let interrupts = matches!(way, Way::Rss | Way::Irq | Way::IrqRps);
        let mut knobs = Vec::new();
        // A queue's interrupt goes to its CPU before packets go to the queue.
        if interrupts {
            knobs.extend(self.interrupts(cpus));
        }
        if way == Way::Rss {
            knobs.extend(self.shares(cpus.len() as u32));
        }
        if way == Way::Threads {
            knobs.extend(self.pollers(cpus));
        }
        if self.interface.rps {
            knobs.extend(self.software(way, cpus));
        }
        knobs
    }

    /// Each interrupt to a CPU: those of a queue to the same one, whether it receives or sends.
    fn interrupts(&self, cpus: &[u32]) -> Vec<Knob> {
        let card = &self.interface;
        let queues = card.receive_queues.max(card.transmit_queues);
        let queue = |irq: &u32| card.queue_of.get(irq).copied().filter(|queue| *queue < queues);
        let known = card.irqs.iter().any(|irq| queue(irq).is_some());
        let mut knobs = Vec::new();
        for (place, irq) in card.irqs.iter().enumerate() {
            // Where queues are known, an interrupt without one brings no packets.
            let Some(place) = (if known { queue(irq).map(|queue| queue as usize) } else { Some(place) }) else {
                continue;
            };
            let cpu = cpus[place % cpus.len()];
            let why = format!("{} interrupts CPU {cpu}", card.name);
            knobs.push(Knob::new(format!("/proc/irq/{irq}/smp_affinity_list"), cpu.to_string(), why));
        }
        knobs
    }

    /// The card's table, with as few buckets moved as can be.
    fn shares(&self, queues: u32) -> Option<Knob> {
        let table = self.interface.table.as_ref()?;
        let after = rebalance(&table.buckets, queues)?;
        let moved = table.buckets.iter().zip(&after).filter(|(now, then)| now != then).count();
        let why = format!("packets come by {}; {moved} of {} buckets move", counted(queues, "queue"), after.len());
        Some(Knob::new(Setting::Table(self.interface.name.clone()).to_string(), table.text(&after), why))
    }

    /// Threads that poll, and where they do.
    fn pollers(&self, cpus: &[u32]) -> Vec<Knob> {
        let card = &self.interface;
        let mut knobs = Vec::new();
        let why = format!("{} is polled by threads", card.name);
        if card.napis.iter().any(|napi| napi.threaded.is_none()) {
            knobs.push(Knob::new(format!("/sys/class/net/{}/threaded", card.name), "1".into(), why.clone()));
        }
        for (place, napi) in card.napis.iter().enumerate() {
            if napi.threaded.is_some() {
                let name = Setting::NapiThreaded(card.name.clone(), napi.id).to_string();
                knobs.push(Knob::new(name, "1".into(), why.clone()));
            }
            let cpu = cpus[napi.queue.map_or(place, |queue| queue as usize) % cpus.len()];
            let name = Setting::NapiCpus(card.name.clone(), napi.id).to_string();
            knobs.push(Knob::new(name, cpu.to_string(), format!("that thread has CPU {cpu}")));
            if let Some(partition) = &self.partition {
                let name = Setting::NapiGroup(card.name.clone(), napi.id).to_string();
                knobs.push(Knob::new(name, partition.folder().to_owned(), "no other thread may be there"));
            }
        }
        knobs
    }

    /// Steering in software: where that is the way, or off, for it would only move packets a second time.
    fn software(&self, way: Way, cpus: &[u32]) -> Vec<Knob> {
        let name = &self.interface.name;
        let reserved = CpuSet(cpus.iter().copied().collect());
        let (mask, why) = match way {
            Way::Rps | Way::IrqRps => {
                (reserved.mask(), format!("packets of {name} are received on {}", reserved.named()))
            }
            _ => (CpuSet::default().mask(), format!("packets of {name} stay where they arrive")),
        };
        let queue = |queue: u32, file: &str| format!("/sys/class/net/{name}/queues/rx-{queue}/{file}");
        let both = |number| {
            // Following applications to their CPUs (RFS) is the opposite of this.
            let follow = Knob::new(queue(number, "rps_flow_cnt"), "0".into(), "packets do not follow applications");
            [Knob::new(queue(number, "rps_cpus"), mask.clone(), why.clone()), follow]
        };
        (0..self.interface.receive_queues).flat_map(both).collect()
    }

    /// Send queues (XPS): each to some CPUs, so that those who send wait for each other as little as can be.
    pub(crate) fn sending(&self, applications: &CpuSet, reserved: &CpuSet) -> Vec<Knob> {
        let queues = self.interface.transmit_queues;
        if queues < 2 {
            return Vec::new();
        }
        let cpus: Vec<u32> = applications.0.iter().chain(&reserved.0).copied().collect();
        let share = |queue: u32| CpuSet(cpus.iter().skip(queue as usize).step_by(queues as usize).copied().collect());
        let knob = |queue: u32| {
            let path = format!("/sys/class/net/{}/queues/tx-{queue}/xps_cpus", self.interface.name);
            Knob::new(path, share(queue).mask(), format!("{} send by queue {queue}", share(queue).named()))
        };
        (0..queues).filter(|queue| !share(*queue).is_empty()).map(knob).collect()
    }
}

impl Plan {
    /// Commands that do the same.
    pub fn commands(&self) -> Vec<String> {
        self.knobs.iter().map(Knob::command).collect()
    }
}
