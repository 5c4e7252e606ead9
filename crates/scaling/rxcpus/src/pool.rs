//! The resources to share: CPUs, the network device that receives, and the applications that must keep off.

use crate::cpulist::CpuSet;
use crate::error::PlanError;
use crate::knob::Knob;
use crate::machine::{Interface, Machine};
use crate::partition::Partition;
use crate::plan::Plan;
use crate::setting::{Setting, Task};
use crate::steering::Steering;
use crate::steering_way::SteeringWay;
use crate::task;
use crate::tree::Tree;
use std::collections::BTreeSet;
use towpath_scaling::CpuOrder;

/// The device that receives, and the applications that must not be disturbed.
#[derive(Clone, Debug)]
pub struct Pool {
    /// The machine.
    pub machine: Machine,
    /// The network device whose packets are received.
    pub interface: Interface,
    /// The cpuset file of the application's control group, if one is to be kept off the reserved CPUs.
    pub application: Option<String>,
    /// The control group of the reserved CPUs, which keeps all other threads off them.
    pub partition: Option<Partition>,
    /// CPUs that are never reserved, because threads of a service are pinned to them.
    pub taken: CpuSet,
    /// Processes that are kept off as well, thread by thread.
    pub processes: Vec<u32>,
    /// Their threads, when last looked for.
    pub threads: Vec<Task>,
    /// The way that was asked for. `None`: the best that the device offers.
    pub way: Option<SteeringWay>,
    /// True if send queues are dealt out to the CPUs (XPS), those of applications first.
    pub xps: bool,
    /// Interrupts that did not move when told to. If there are any, none is moved.
    pub refused: BTreeSet<u32>,
}

impl Pool {
    /// The pool of the named device, or of the first that has interrupts and no default route.
    pub fn find(machine: &Machine, named: Option<&str>) -> Result<Self, PlanError> {
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
        let pool = Self {
            machine: machine.clone(),
            interface: interface.clone(),
            application: None,
            partition: None,
            taken: CpuSet::default(),
            processes: Vec::new(),
            threads: Vec::new(),
            way: None,
            xps: false,
            refused: BTreeSet::new(),
        };
        pool.best(1).map(|_| pool)
    }

    /// Reads the device and the processes' threads anew. The CPUs stay as they were. False: the device has gone.
    pub fn refresh(&mut self, tree: &Tree) -> bool {
        self.threads = self.processes.iter().flat_map(|process| task::threads(tree, *process)).collect();
        let now = Interface::read(tree, &self.interface.name);
        // The default route was looked at when the device was chosen.
        let now = now.map(|now| Interface { default_route: self.interface.default_route, ..now });
        let there = now.is_some();
        self.interface = now.unwrap_or(self.interface.clone());
        there
    }

    /// The CPU of the machine's housekeeping: the first.
    pub fn housekeeping(&self) -> CpuSet {
        CpuSet(self.machine.cpus.iter().map(|cpu| cpu.number).min().into_iter().collect())
    }
    /// The order in which CPUs are reserved, without the housekeeping CPU and the taken ones.
    pub fn order(&self) -> CpuOrder {
        let never: BTreeSet<u32> = self.housekeeping().0.union(&self.taken.0).copied().collect();
        CpuOrder::new(&self.machine.cpus, self.interface.node, &never)
    }

    /// The best way to this many CPUs, and why.
    pub fn best(&self, cores: u32) -> Result<(SteeringWay, String), PlanError> {
        if let Some(way) = self.way {
            return match self.obstacle(way, cores) {
                None => Ok((way, "it was asked for".into())),
                Some(why) => {
                    Err(PlanError::NotThisWay { interface: self.interface.name.clone(), way: way.name(), why })
                }
            };
        }
        let mut obstacles = Vec::new();
        for way in SteeringWay::ALL {
            // Threads cost a context switch for every batch of packets. They are for devices whose interrupts refuse to
            // move.
            let threads_for_nothing = way == SteeringWay::Threads && self.refused.is_empty();
            match self.obstacle(way, cores) {
                None if threads_for_nothing => {}
                None if obstacles.is_empty() => return Ok((way, "it is the best there is".into())),
                None => return Ok((way, obstacles.join("; "))),
                Some(why) if !obstacles.contains(&why) => obstacles.push(why),
                Some(_) => {}
            }
        }
        Err(PlanError::NothingToSet(self.interface.name.clone()))
    }

    /// Why the device does not offer this way to this many CPUs. `None`: it does.
    fn obstacle(&self, way: SteeringWay, cores: u32) -> Option<&'static str> {
        let device = &self.interface;
        let interrupts = || match (device.irqs.is_empty(), self.refused.is_empty()) {
            (true, _) => Some("it has no interrupts that can be moved"),
            (_, false) => Some("an interrupt of it refuses to be moved"),
            _ => None,
        };
        let queues =
            || (device.receive_queues < cores).then_some("it has fewer receive queues than CPUs were asked for");
        let software = || (!device.rps).then_some("its packets cannot be steered in software");
        match way {
            SteeringWay::Rss => {
                let table = device.table.is_none().then_some("it shows no indirection table");
                table.or_else(interrupts).or_else(queues)
            }
            SteeringWay::Irq => interrupts().or_else(queues),
            SteeringWay::IrqRps => interrupts().or_else(software),
            SteeringWay::Threads if !device.threads => {
                Some("the kernel gives it no threads (Linux 6.8, a driver with NAPI)")
            }
            SteeringWay::Threads if !self.machine.preempts => {
                Some("its threads would keep CPUs for themselves: this kernel does not preempt itself")
            }
            SteeringWay::Threads => None,
            SteeringWay::Rps => software(),
        }
    }

    /// The plan from `before` reserved CPUs to `cores`. For 0 there is none: [`crate::Journal::restore`] puts
    /// everything back.
    pub fn plan(&self, before: u32, cores: u32) -> Result<Plan, PlanError> {
        let order = self.order();
        let all = self.machine.online();
        if cores == 0 || cores > order.most() {
            return Err(PlanError::TooMany { wanted: cores, most: order.most(), all: all.0.len() });
        }
        let cpus = order.take(cores);
        let (way, why) = self.best(cores)?;
        let reserved = CpuSet(cpus.iter().copied().collect());
        let applications = all.without(&reserved);
        let from = Steering { interface: &self.interface, partition: self.partition.as_ref() };
        let mut steering = from.to(way, cpus);
        if self.xps {
            steering.extend(from.sending(&applications, &reserved));
        }
        // The partition comes last: it changes where threads may run, and the journal must record their affinities
        // before that.
        steering.extend(self.partition.as_ref().map(Partition::made));
        let place = self.places(&applications, &reserved);
        let group = self.partition.as_ref().map_or_else(Vec::new, |partition| partition.group(&reserved));
        // Applications and receive work must not share a CPU: whoever leaves one goes first.
        let knobs = if cores >= before { [place, group, steering] } else { [steering, group, place] }.concat();
        Ok(Plan { interface: self.interface.name.clone(), way, why, reserved, applications, knobs })
    }

    /// Keeps applications on their CPUs.
    fn places(&self, applications: &CpuSet, reserved: &CpuSet) -> Vec<Knob> {
        let why = format!("applications leave {} to the receive path", reserved.named());
        let group = self.application.iter().cloned();
        let tasks = self.threads.iter().map(|task| Setting::Task(*task).to_string());
        group.chain(tasks).map(|name| Knob::new(name, applications.list(), why.clone())).collect()
    }
}
