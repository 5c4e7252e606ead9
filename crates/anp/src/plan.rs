//! What has to be written, and in which order.

use crate::cpulist::CpuSet;
use crate::knob::Knob;
use crate::machine::{Interface, Machine};
use serde::Serialize;
use std::collections::BTreeSet;
use towpath_cores::CpuOrder;

/// With fewer CPUs than this, one that only receives is one that applications need more.
pub const FEWEST_CPUS: usize = 4;

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
    /// So many cannot be reserved.
    #[error(
        "{wanted} CPUs cannot be reserved: {most} of this machine's {all} can, and at least one stays for applications"
    )]
    TooMany {
        /// As many as were wanted.
        wanted: u32,
        /// As many as can be.
        most: u32,
        /// As many as there are.
        all: usize,
    },
    /// There are too few CPUs for it to be worth while.
    #[error(
        "this machine has {0} CPUs, and reserving one of fewer than {FEWEST_CPUS} costs applications more than it gives; --force plans it all the same"
    )]
    TooSmall(usize),
}

/// What receives, and what shall not be disturbed.
#[derive(Clone, Debug)]
pub struct Pool<'a> {
    /// The machine.
    pub machine: &'a Machine,
    /// Its card.
    pub interface: &'a Interface,
    /// The file of the application's control group that says on which CPUs it may run, if one is to be kept off the reserved ones.
    pub application: Option<String>,
}

/// Everything that has to be written, in this order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// The card.
    pub interface: String,
    /// How packets are brought to the reserved CPUs.
    pub way: &'static str,
    /// The CPUs that receive.
    #[serde(serialize_with = "list")]
    pub reserved: CpuSet,
    /// The CPUs that applications have.
    #[serde(serialize_with = "list")]
    pub applications: CpuSet,
    /// What to write.
    pub knobs: Vec<Knob>,
}

fn list<S: serde::Serializer>(set: &CpuSet, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&set.list())
}

impl<'a> Pool<'a> {
    /// Of a card that was named, or of the only one that the default route does not go through.
    pub fn find(machine: &'a Machine, named: Option<&str>) -> Result<Self, PlanError> {
        let interface = match named {
            Some(name) => machine.interface(name).ok_or_else(|| PlanError::NoInterface(name.to_owned()))?,
            None => {
                let other =
                    machine.interfaces.iter().find(|interface| !interface.default_route && !interface.irqs.is_empty());
                other.ok_or_else(|| match machine.interfaces.iter().find(|interface| interface.default_route) {
                    Some(default) => PlanError::DefaultRoute(default.name.clone()),
                    None => PlanError::NoInterface("with interrupts".to_owned()),
                })?
            }
        };
        if interface.irqs.is_empty() && !interface.rps {
            return Err(PlanError::NothingToSet(interface.name.clone()));
        }
        Ok(Self { machine, interface, application: None })
    }

    /// The order in which CPUs are reserved. The first CPU does the machine's housekeeping.
    pub fn order(&self) -> CpuOrder {
        let first: BTreeSet<u32> = self.machine.cpus.iter().map(|cpu| cpu.number).min().into_iter().collect();
        CpuOrder::new(&self.machine.cpus, self.interface.node, &first)
    }

    /// From `before` reserved CPUs to `cores`. 0 is no plan: then everything is given back ([`crate::Journal::restore`]).
    pub fn plan(&self, before: u32, cores: u32) -> Result<Plan, PlanError> {
        let order = self.order();
        let all = self.machine.online();
        if cores == 0 || cores > order.most() {
            return Err(PlanError::TooMany { wanted: cores, most: order.most(), all: all.0.len() });
        }
        let reserved = CpuSet(order.take(cores).iter().copied().collect());
        let applications = all.without(&reserved);
        let steering = self.steering(&order, cores, &reserved);
        let place = self.application.iter().map(|path| {
            Knob::new(path.clone(), applications.list(), format!("applications leave the CPUs {reserved} to the card"))
        });
        // Nobody is to be on a CPU together: who goes, goes first.
        let knobs =
            if cores >= before { place.chain(steering).collect() } else { steering.into_iter().chain(place).collect() };
        let way = if self.interface.irqs.is_empty() { "rps" } else { "irq" };
        Ok(Plan { interface: self.interface.name.clone(), way, reserved, applications, knobs })
    }

    fn steering(&self, order: &CpuOrder, cores: u32, reserved: &CpuSet) -> Vec<Knob> {
        let name = &self.interface.name;
        let mut knobs = Vec::new();
        let queue = |queue: u32, file: &str| format!("/sys/class/net/{name}/queues/rx-{queue}/{file}");
        let cpus = order.take(cores);
        for (place, irq) in self.interface.irqs.iter().enumerate() {
            let cpu = cpus[place % cpus.len()];
            let path = format!("/proc/irq/{irq}/smp_affinity_list");
            knobs.push(Knob::new(path, cpu.to_string(), format!("{name} interrupts CPU {cpu}")));
        }
        if !self.interface.rps {
            return knobs;
        }
        // Where interrupts can be moved, steering in software would only move packets a second time.
        let (mask, why) = match self.interface.irqs.is_empty() {
            true => (reserved.mask(), format!("packets of {name} are received on the CPUs {reserved}")),
            false => (CpuSet::default().mask(), format!("packets of {name} stay where they interrupt")),
        };
        for number in 0..self.interface.receive_queues {
            knobs.push(Knob::new(queue(number, "rps_cpus"), mask.clone(), why.clone()));
            // Following applications to their CPUs (RFS) is the opposite of this.
            knobs.push(Knob::new(queue(number, "rps_flow_cnt"), "0".into(), "packets do not follow applications"));
        }
        knobs
    }
}

impl Plan {
    /// Commands that do the same.
    pub fn commands(&self) -> Vec<String> {
        self.knobs.iter().map(Knob::command).collect()
    }
}
