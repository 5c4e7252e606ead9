//! The connection statistics of `auto`: the programs that are measured, and the classes of their sockets.

use super::addresses::is_of_this_host;
use super::class::{Class, ClassName};
use super::decide::{ClassState, Rules, Summary};
use crate::policy::Identity;
use crate::privileged;
use rustix::fd::OwnedFd;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use towpath_ring::stats::{CarriedBy, ClassKey, StatsRegion};
use towpath_runtime::ClientId;
use towpath_runtime::log_throttle::LogThrottle;

/// Most classes. Connections of further classes go as if nothing were measured.
const MAX_CLASSES: usize = 1024;
/// Most stats regions of one client. Each of its programs has one.
const MAX_STATS_REGIONS: usize = 16;
/// Time between two evaluations of a class, µs. Reading its measurements takes some microseconds.
const EVALUATE_US: u64 = 50_000;
/// Most addresses that are remembered as this host's or not.
const MAX_ADDRESSES: usize = 256;
/// How long they are remembered, µs.
const ADDRESSES_US: u64 = 10_000_000;

/// The destinations that a connection can reach both over the stack and over the program's kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// None: the stack has a network of its own.
    Apart,
    /// Other hosts. A listener on this host listens on one carrier only, and its peers must follow.
    Network,
    /// All.
    All,
}

/// A program that is measured.
#[derive(Default)]
struct MeasuredClient {
    uid: u32,
    program: String,
    stats_regions: Vec<Arc<StatsRegion>>,
    /// The carrier that each of its listeners uses.
    listeners: HashMap<ClassKey, CarriedBy>,
}

/// Everything that changes.
struct ConnectionStatistics {
    rules: Rules,
    classes: HashMap<ClassName, TrackedClass>,
    clients: HashMap<ClientId, MeasuredClient>,
    addresses: HashMap<IpAddr, bool>,
    addresses_us: u64,
}

/// A class, and when it was last evaluated, µs.
struct TrackedClass {
    class: Class,
    evaluated_us: Option<u64>,
}

/// See the module. A clone is another handle of the same statistics.
#[derive(Clone)]
pub struct Auto {
    reach: Reach,
    /// Measure every program, not only those that are started with `--auto`.
    pub always: bool,
    started: Instant,
    stats: Arc<Mutex<ConnectionStatistics>>,
}

impl std::fmt::Debug for Auto {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Auto").field("reach", &self.reach).field("always", &self.always).finish_non_exhaustive()
    }
}

impl Auto {
    /// Without measurements, with the default rules.
    pub fn new(reach: Reach, always: bool) -> Self {
        Self::with(Rules::default(), reach, always)
    }

    /// Without measurements, with these rules.
    pub fn with(rules: Rules, reach: Reach, always: bool) -> Self {
        let (classes, clients, addresses) = Default::default();
        let stats = ConnectionStatistics { rules, classes, clients, addresses, addresses_us: 0 };
        Self { reach, always, started: Instant::now(), stats: Arc::new(Mutex::new(stats)) }
    }

    /// The statistics. No change has parts that need each other, so a thread that panicked with the lock has left them
    /// consistent.
    fn lock(&self) -> MutexGuard<'_, ConnectionStatistics> {
        self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_us(&self) -> u64 {
        self.started.elapsed().as_micros() as u64
    }

    /// The memory in which a program of this client measures, or why it is not measured.
    pub fn measure(&self, id: ClientId, program: &Identity) -> Result<OwnedFd, String> {
        if self.reach == Reach::Apart {
            return Err("this stack has a network of its own".into());
        }
        if privileged::shares_network(program.pid) != Some(true) {
            return Err("it is in another network namespace, or that cannot be seen".into());
        }
        let (stats_region, memfd) = StatsRegion::create().map_err(|error| error.to_string())?;
        let mut stats = self.lock();
        let client = stats.clients.entry(id).or_default();
        if client.stats_regions.len() >= MAX_STATS_REGIONS {
            return Err("it has asked too often".into());
        }
        if client.stats_regions.is_empty() {
            (client.uid, client.program) = (program.uid, program.name().to_owned());
        }
        client.stats_regions.push(Arc::new(stats_region));
        Ok(memfd)
    }

    /// The client is gone. Its measurements are kept.
    pub fn leave(&self, id: ClientId) {
        let now_us = self.now_us();
        let mut stats = self.lock();
        let Some(client) = stats.clients.remove(&id) else { return };
        for stats_region in &client.stats_regions {
            for key in stats_region.keys() {
                let name = ClassName { program: client.program.clone(), uid: client.uid, key };
                if let Some(tracked) = stats.class(&name, || None) {
                    tracked.class.retire(key, stats_region);
                }
                stats.evaluate(&name, now_us);
            }
        }
    }

    /// The carrier of a connection. `None`: as if nothing were measured.
    pub fn connect(&self, id: ClientId, remote: SocketAddr) -> Option<CarriedBy> {
        let now_us = self.now_us();
        let mut stats = self.lock();
        let (program, uid) = stats.clients.get(&id).map(|client| (client.program.clone(), client.uid))?;
        let local = stats.is_local(remote.ip(), now_us);
        if local && self.reach == Reach::Network {
            return None;
        }
        stats.place(ClassName { program, uid, key: ClassKey::connected(remote.port(), local) }, now_us)
    }

    /// The carrier of a listener. All listeners of a program's port use one carrier as long as one of their processes
    /// lives.
    pub fn listen(&self, id: ClientId, port: u16) -> Option<CarriedBy> {
        let now_us = self.now_us();
        let key = ClassKey::accepted(port);
        let mut stats = self.lock();
        let client = stats.clients.get(&id)?;
        let same = |other: &&MeasuredClient| (other.uid, &other.program) == (client.uid, &client.program);
        let others = stats.clients.values().filter(same).find_map(|other| other.listeners.get(&key));
        let gone = client.listeners.get(&key).or(others).copied();
        let name = ClassName { program: client.program.clone(), uid: client.uid, key };
        let carrier = match gone {
            Some(carrier) => carrier,
            None => {
                stats.begin_run(&name, now_us);
                stats.place(name, now_us)?
            }
        };
        stats.clients.get_mut(&id)?.listeners.insert(key, carrier);
        Some(carrier)
    }

    /// Reports every class of a user for which `seen` is true.
    pub(super) fn classes<T>(
        &self,
        seen: impl Fn(u32) -> bool,
        show: impl Fn(&ClassName, &Class, Shown) -> T,
    ) -> Vec<T> {
        let now_us = self.now_us();
        let mut stats = self.lock();
        let of = |client: &MeasuredClient| {
            let keys = client.stats_regions.iter().flat_map(|region| region.keys());
            keys.map(|key| ClassName { program: client.program.clone(), uid: client.uid, key }).collect::<Vec<_>>()
        };
        let live: Vec<ClassName> = stats.clients.values().flat_map(of).collect();
        for name in &live {
            stats.class(name, || None);
        }
        let mut names: Vec<ClassName> = stats.classes.keys().filter(|name| seen(name.uid)).cloned().collect();
        names.sort();
        let mut rows = Vec::new();
        for name in names {
            stats.evaluate(&name, now_us);
            let stats_regions = stats.stats_regions(&name);
            let stats_regions: Vec<&StatsRegion> = stats_regions.iter().map(|region| &**region).collect();
            if let Some(tracked) = stats.classes.get(&name) {
                let totals = tracked.class.totals(name.key, &stats_regions);
                let connections = totals.each_ref().map(|carrier| carrier.connections);
                let recent = tracked.class.seen(&totals, &stats.rules);
                rows.push(show(&name, &tracked.class, Shown { now_us, connections, recent }));
            }
        }
        rows
    }
}

/// The measurements that a report shows beside a class's state.
pub(super) struct Shown {
    /// The present time, µs.
    pub now_us: u64,
    /// All connections of each carrier that were measured.
    pub connections: [u64; 2],
    /// The measurements since the trial or the newest run began.
    pub recent: [Summary; 2],
}

impl ConnectionStatistics {
    /// A class. An unknown one begins with this state. `None` if there are too many.
    fn class(&mut self, name: &ClassName, state: impl FnOnce() -> Option<ClassState>) -> Option<&mut TrackedClass> {
        if !self.classes.contains_key(name) {
            if self.classes.len() >= MAX_CLASSES {
                return None;
            }
            let seed = name.key.port.into();
            self.classes.insert(name.clone(), TrackedClass { class: Class::new(state(), seed), evaluated_us: None });
        }
        self.classes.get_mut(name)
    }

    /// The stats regions of a class's programs.
    fn stats_regions(&self, name: &ClassName) -> Vec<Arc<StatsRegion>> {
        let its = self.clients.values().filter(|client| (client.uid, &client.program) == (name.uid, &name.program));
        its.flat_map(|client| client.stats_regions.iter().cloned()).collect()
    }

    /// Evaluates a class, unless that was done a moment ago.
    fn evaluate(&mut self, name: &ClassName, now_us: u64) {
        let due =
            |tracked: &TrackedClass| tracked.evaluated_us.is_none_or(|last| now_us.saturating_sub(last) >= EVALUATE_US);
        if !self.classes.get(name).is_some_and(due) {
            return;
        }
        let stats_regions = self.stats_regions(name);
        let stats_regions: Vec<&StatsRegion> = stats_regions.iter().map(|region| &**region).collect();
        if let Some(tracked) = self.classes.get_mut(name) {
            tracked.evaluated_us = Some(now_us);
            let before = tracked.class.state.and_then(|state| state.settled());
            tracked.class.step(name.key, &stats_regions, &self.rules, now_us);
            log_change(name, before, &tracked.class);
        }
    }

    fn begin_run(&mut self, name: &ClassName, now_us: u64) {
        let stats_regions = self.stats_regions(name);
        let stats_regions: Vec<&StatsRegion> = stats_regions.iter().map(|region| &**region).collect();
        if let Some(tracked) = self.classes.get_mut(name) {
            let before = tracked.class.state.and_then(|state| state.settled());
            tracked.class.run(name.key, &stats_regions, &self.rules, now_us);
            log_change(name, before, &tracked.class);
        }
    }

    fn place(&mut self, name: ClassName, now_us: u64) -> Option<CarriedBy> {
        let rules = self.rules;
        let fresh = ClassState::new(&rules, now_us);
        let tracked = self.class(&name, || Some(fresh))?;
        // Until now the class was only measured.
        tracked.class.state.get_or_insert(fresh);
        self.evaluate(&name, now_us);
        self.classes.get_mut(&name)?.class.place(name.key)
    }

    /// Is this an address of this host? The library decides in the same way: both ends of a connection have one
    /// address.
    fn is_local(&mut self, address: IpAddr, now_us: u64) -> bool {
        let address = address.to_canonical();
        if now_us.saturating_sub(self.addresses_us) > ADDRESSES_US || self.addresses.len() >= MAX_ADDRESSES {
            self.addresses.clear();
            self.addresses_us = now_us;
        }
        *self.addresses.entry(address).or_insert_with(|| address.is_loopback() || is_of_this_host(address))
    }
}

/// Logs a change of the decision.
fn log_change(name: &ClassName, before: Option<CarriedBy>, class: &Class) {
    // A client chooses its ports, and with them how many classes there are.
    static LINES: LogThrottle = LogThrottle::new();
    let Some(state) = class.state.filter(|state| state.settled() != before) else { return };
    if !LINES.allows() {
        return;
    }
    let (program, port) = (&name.program, name.key.port);
    let direction = if name.key.accepts { "accept" } else { "connect" };
    match state.settled() {
        Some(carrier) => tracing::info!(program, direction, port, way = ?carrier, "auto: {}", state.reason),
        None => tracing::info!(program, direction, port, "auto: both ways are tried again"),
    }
}

#[cfg(test)]
#[path = "statistics_tests.rs"]
mod tests;
