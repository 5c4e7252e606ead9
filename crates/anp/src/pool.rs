//! What there is to share: CPUs, the card that receives, and the applications that are to keep off.

use crate::cpulist::CpuSet;
use crate::knob::Knob;
use crate::machine::{Interface, Machine};
use crate::partition::Partition;
use crate::plan::{Plan, PlanError};
use crate::setting::{Setting, Task};
use crate::task;
use crate::tree::Tree;
use crate::way::Way;
use std::collections::BTreeSet;
use towpath_cores::CpuOrder;

/// With fewer CPUs than this, one that only receives is one that applications need more.
pub const FEWEST_CPUS: usize = 4;

/// What receives, and what shall not be disturbed.
#[derive(Clone, Debug)]
pub struct Pool {
    /// The machine.
    pub machine: Machine,
    /// Its card.
    pub interface: Interface,
    /// The file of the application's control group that says on which CPUs it may run, if one is to be kept off the reserved ones.
    pub application: Option<String>,
    /// The control group that the reserved CPUs are to be, so that nobody else is on them.
    pub partition: Option<Partition>,
    /// CPUs that are somebody else's, and never reserved: those that threads of a service are pinned to.
    pub taken: CpuSet,
    /// Processes that are to be kept off as well, thread by thread.
    pub processes: Vec<u32>,
    /// Their threads, when last looked for.
    pub threads: Vec<Task>,
    /// The way that was asked for; `None` = the best that the card offers.
    pub way: Option<Way>,
    /// Are send queues dealt out to the CPUs (XPS), those of applications first?
    pub xps: bool,
    /// Interrupts that were to be moved, and were not: all are left alone.
    pub refused: BTreeSet<u32>,
}

impl Pool {
    /// Of a card that was named, or of the only one that the default route does not go through.
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

    /// Looks anew at the card and at the processes' threads; the CPUs stay those that they were. False: the card has gone.
    pub fn refresh(&mut self, tree: &Tree) -> bool {
        self.threads = self.processes.iter().flat_map(|process| task::threads(tree, *process)).collect();
        let now = Interface::read(tree, &self.interface.name);
        // Whether it has the default route was looked at when it was chosen.
        let now = now.map(|now| Interface { default_route: self.interface.default_route, ..now });
        let there = now.is_some();
        self.interface = now.unwrap_or(self.interface.clone());
        there
    }

    /// The CPU that does the machine's housekeeping: the first.
    pub fn housekeeping(&self) -> CpuSet {
        CpuSet(self.machine.cpus.iter().map(|cpu| cpu.number).min().into_iter().collect())
    }
    /// The order in which CPUs are reserved, without housekeeping and what is taken.
    pub fn order(&self) -> CpuOrder {
        let never: BTreeSet<u32> = self.housekeeping().0.union(&self.taken.0).copied().collect();
        CpuOrder::new(&self.machine.cpus, self.interface.node, &never)
    }

    /// The way to so many CPUs, and why it is that one.
    pub fn best(&self, cores: u32) -> Result<(Way, String), PlanError> {
        if let Some(way) = self.way {
            return match way.obstacle(self, cores) {
                None => Ok((way, "it was asked for".into())),
                Some(why) => {
                    Err(PlanError::NotThisWay { interface: self.interface.name.clone(), way: way.name(), why })
                }
            };
        }
        let mut obstacles = Vec::new();
        for way in Way::ALL {
            // Threads cost a switch for every batch of packets: software that steers is nearer to what the card's driver expects, and threads
            // are for cards whose interrupts refuse to move.
            let threads_for_nothing = way == Way::Threads && self.refused.is_empty();
            match way.obstacle(self, cores) {
                None if threads_for_nothing => {}
                None if obstacles.is_empty() => return Ok((way, "it is the best there is".into())),
                None => return Ok((way, obstacles.join("; "))),
                Some(why) if !obstacles.contains(&why) => obstacles.push(why),
                Some(_) => {}
            }
        }
        Err(PlanError::NothingToSet(self.interface.name.clone()))
    }

    /// From `before` reserved CPUs to `cores`. 0 is no plan: then everything is given back ([`crate::Journal::restore`]).
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
        let mut steering = self.steering(way, cpus);
        if self.xps {
            steering.extend(self.sending(&applications, &reserved));
        }
        // Nothing is partitioned until all else is set: where threads may run is written down as it was before, and put back afterwards.
        steering.extend(self.partition.as_ref().map(Partition::made));
        let place = self.places(&applications, &reserved);
        let group = self.partition.as_ref().map_or_else(Vec::new, |partition| partition.group(&reserved));
        // Nobody is to be on a CPU together: who goes, goes first.
        let knobs = if cores >= before { [place, group, steering] } else { [steering, group, place] }.concat();
        Ok(Plan { interface: self.interface.name.clone(), way, why, reserved, applications, knobs })
    }

    /// Where applications run.
    fn places(&self, applications: &CpuSet, reserved: &CpuSet) -> Vec<Knob> {
        let why = format!("applications leave {} to the card", reserved.named());
        let group = self.application.iter().cloned();
        let tasks = self.threads.iter().map(|task| Setting::Task(*task).to_string());
        group.chain(tasks).map(|name| Knob::new(name, applications.list(), why.clone())).collect()
    }
}
