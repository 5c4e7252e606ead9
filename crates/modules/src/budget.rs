//! The time that a tenant's modules may take of a core: over a while, and in one turn of a flow group. Others wait for what is
//! taken in a turn, so there it is compared with the turn's own work.
//!
//! Each run is timed by the clock on the wall, which costs no system call. The thread's own clock is asked once in a turn, before a
//! run long after the last, and after a long run: time in which another program has the CPU is charged to nobody, and no run is
//! free because somebody had it before.

mod account;
mod meter;

pub use account::{FREE_NS, SPARE_NS};
pub use meter::{Clock, Meter, serves_as};

use account::Account;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// What a tenant was detached for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overrun {
    /// The flow group where it was seen.
    pub flow_group: usize,
    /// What it had taken of the turn, ns.
    pub taken_ns: u64,
    /// The turn's own work until then, ns. `None`: it was over its share of the core, and not of the turn.
    pub own_ns: Option<u64>,
}

/// Whoever is charged for modules: all of a tenant's modules have one account on each worker.
#[derive(Debug)]
pub struct Tenant {
    name: Box<str>,
    percent: u64,
    overrun: OnceLock<Overrun>,
    told: AtomicBool,
    /// By the worker's number; the last one is of the thread for direct connections.
    accounts: Box<[Account]>,
}

impl Tenant {
    /// With a budget of 1 to 100 percent, on this many threads. With 100 it is never detached.
    pub fn new(name: &str, percent: u8, threads: usize) -> Self {
        let percent = percent.clamp(1, 100).into();
        let accounts = (0..threads.max(1)).map(|_| Account::new(percent)).collect();
        Self { name: name.into(), percent, overrun: OnceLock::new(), told: AtomicBool::new(false), accounts }
    }
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }
    /// Its budget: the share of a core's time that it may take on each worker.
    pub fn percent(&self) -> u8 {
        self.percent as u8
    }
    /// Is there anything that it must not take?
    pub fn has_limit(&self) -> bool {
        self.percent < 100
    }
    /// Has it taken more? Its modules run nowhere then.
    pub fn overrun(&self) -> Option<Overrun> {
        self.overrun.get().copied()
    }
    /// The account on a worker. There is one for each.
    fn account(&self, worker: usize) -> &Account {
        &self.accounts[worker.min(self.accounts.len() - 1)]
    }
}

/// The tenants of some modules that have limits, each once.
#[derive(Debug, Default)]
pub struct Tenants(Vec<Arc<Tenant>>);

impl Tenants {
    /// Those among these.
    pub fn of<'a>(all: impl Iterator<Item = &'a Arc<Tenant>>) -> Self {
        let mut tenants: Vec<Arc<Tenant>> = Vec::new();
        for tenant in all.filter(|tenant| tenant.has_limit()) {
            if !tenants.iter().any(|one| Arc::ptr_eq(one, tenant)) {
                tenants.push(Arc::clone(tenant));
            }
        }
        Self(tenants)
    }
    /// Is there none?
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
    /// A turn of this thread is over: what they have taken of it is compared with its own work.
    pub fn end_turn(&self, meter: &Meter) {
        let own_ns = meter.end_turn();
        self.0.iter().for_each(|tenant| meter.end(tenant, own_ns));
    }
    /// One that was detached, and that nobody was told of.
    pub fn news(&self) -> Option<&Tenant> {
        let is_new = |one: &&Arc<Tenant>| one.overrun().is_some() && !one.told.swap(true, Ordering::Relaxed);
        self.0.iter().find(is_new).map(|tenant| &**tenant)
    }
}

#[cfg(test)]
mod tests;
