//! The operator's policy, as the slow thread asks and enforces it: whatever an application has written into its ring, its
//! command passes here before anything is done for it.

use crate::api::ClientId;
use crate::host::SlowHost;
use crate::slots::Phase;
use crate::slow::SlowThread;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use towpath_tcp::flow::FourTuple;
use towpath_tcp::messages::ToFast;
use towpath_tcp::time::Micros;

/// What the policy says to an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Go on; with this congestion control whatever the application says (`Algorithm::id`), 0 = as it likes.
    Allow(u8),
    /// A command fails with this errno (positive); a peer's SYN is answered with RST.
    Refuse(i32),
    /// A peer's SYN is not answered.
    Drop,
    /// The socket is left to the kernel. For a peer's SYN as `Drop`.
    Kernel,
}

/// Limits that all clients with the same `id` share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Tells limits apart; never used again for another.
    pub id: u64,
    /// A small number that no other limit has at this time.
    pub number: u16,
    /// Share of each port against other applications, which have 1.
    pub weight: u16,
    /// Payload bytes per second that they send together, 0 = no limit.
    pub rate: u64,
    /// Connections that they have together, 0 = no limit.
    pub connections: u32,
    /// Connections that they open and accept in a second, together, 0 = no limit.
    pub new_per_s: u32,
}

/// Which limit has refused something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exceeded {
    /// [`Limit::connections`].
    Connections,
    /// [`Limit::new_per_s`].
    NewPerSecond,
}

/// The operator's policy. Called by the slow thread only.
pub trait Guard: Send {
    /// May this client connect there?
    fn connect(&mut self, client: ClientId, remote: SocketAddr) -> Verdict;
    /// May it listen there? `dual`: on :: for IPv4 too.
    fn listen(&mut self, client: ClientId, local: SocketAddr, dual: bool) -> Verdict;
    /// May a listener of it hear from this peer? Asked for each SYN that begins a connection.
    fn accept(&mut self, client: ClientId, tuple: &FourTuple) -> Verdict;
    /// The limit that it is under.
    fn limit(&mut self, client: ClientId) -> Option<Limit>;
    /// An attempt of it, or a peer's to reach it, has failed because of a limit.
    fn exceeded(&mut self, client: ClientId, limit: &Limit, what: Exceeded);
}

/// No policy: everything is allowed.
pub struct Open;

impl Guard for Open {
    fn connect(&mut self, _: ClientId, _: SocketAddr) -> Verdict {
        Verdict::Allow(0)
    }
    fn listen(&mut self, _: ClientId, _: SocketAddr, _: bool) -> Verdict {
        Verdict::Allow(0)
    }
    fn accept(&mut self, _: ClientId, _: &FourTuple) -> Verdict {
        Verdict::Allow(0)
    }
    fn limit(&mut self, _: ClientId) -> Option<Limit> {
        None
    }
    fn exceeded(&mut self, _: ClientId, _: &Limit, _: Exceeded) {}
}

/// New connections that a limit still allows at a time: one second's worth at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tokens {
    /// In millionths, so that slow rates gather too.
    micro: u64,
    at: Micros,
}

impl Tokens {
    const ONE: u64 = 1_000_000;

    fn full(now: Micros, per_s: u32) -> Self {
        Self { micro: u64::from(per_s) * Self::ONE, at: now }
    }
    fn grown(self, now: Micros, per_s: u32) -> Self {
        let most = u64::from(per_s) * Self::ONE;
        let micro = self.micro.saturating_add(now.since(self.at).saturating_mul(per_s.into())).min(most);
        Self { micro, at: now }
    }
}

/// The policy and what it has to remember of its limits.
pub struct Gate {
    guard: Box<dyn Guard>,
    tokens: HashMap<u64, Tokens>,
    /// Groups with a weight or rate of their own.
    shaped: BTreeSet<u16>,
    /// The connections of all clients under a limit, by its id.
    under: HashMap<u64, Arc<AtomicU64>>,
}

impl Gate {
    /// With nothing to remember yet.
    pub fn new(guard: Box<dyn Guard>) -> Self {
        Self { guard, tokens: HashMap::new(), shaped: BTreeSet::new(), under: HashMap::new() }
    }
}

/// The group of a client's flows: its limit's, which other clients may share, or its own.
pub fn group_of(index: u32, limit: Option<&Limit>) -> u16 {
    match limit {
        Some(limit) => limit.number.checked_mul(2).and_then(|n| n.checked_add(2)).unwrap_or(0),
        None => u16::try_from(index).ok().and_then(|n| n.checked_mul(2)?.checked_add(1)).unwrap_or(0),
    }
}

impl SlowHost {
    /// May client `index` connect there? Its limits come after the rules.
    pub fn permit_connect(&mut self, index: u32, remote: SocketAddr) -> Verdict {
        let Some(id) = self.client(index).map(|client| client.shared.id) else { return Verdict::Kernel };
        match self.gate.guard.connect(id, remote) {
            Verdict::Allow(congestion) if self.within_limits(index) => Verdict::Allow(congestion),
            Verdict::Allow(_) => Verdict::Refuse(libc::EAGAIN),
            other => other,
        }
    }
    /// May client `index` listen there?
    pub fn permit_listen(&mut self, index: u32, addr: IpAddr, port: u16, dual: bool) -> Verdict {
        let Some(id) = self.client(index).map(|client| client.shared.id) else { return Verdict::Kernel };
        self.gate.guard.listen(id, SocketAddr::new(addr, port), dual)
    }
    /// May a listener of client `index` hear from this peer?
    pub fn permit_accept(&mut self, index: u32, tuple: &FourTuple) -> Verdict {
        let Some(id) = self.client(index).map(|client| client.shared.id) else { return Verdict::Drop };
        self.gate.guard.accept(id, tuple)
    }
    /// May client `index` have one more connection now? If not, that is counted.
    pub fn within_limits(&mut self, index: u32) -> bool {
        let Some((id, Some(limit))) = self.client(index).map(|client| (client.shared.id, client.limit)) else {
            return true;
        };
        let what = if limit.connections != 0 && self.connections_under(&limit) >= u64::from(limit.connections) {
            Exceeded::Connections
        } else if limit.new_per_s != 0 && self.tokens_of(&limit).micro < Tokens::ONE {
            Exceeded::NewPerSecond
        } else {
            return true;
        };
        self.gate.guard.exceeded(id, &limit, what);
        false
    }
    /// Client `index` has one more connection.
    pub fn spend_token(&mut self, index: u32) {
        let Some(limit) = self.client(index).and_then(|client| client.limit) else { return };
        if limit.new_per_s != 0 {
            let mut tokens = self.tokens_of(&limit);
            tokens.micro = tokens.micro.saturating_sub(Tokens::ONE);
            self.gate.tokens.insert(limit.id, tokens);
        }
    }
    fn tokens_of(&self, limit: &Limit) -> Tokens {
        let known = self.gate.tokens.get(&limit.id).copied();
        known.map_or(Tokens::full(self.now, limit.new_per_s), |tokens| tokens.grown(self.now, limit.new_per_s))
    }
    fn connections_under(&self, limit: &Limit) -> u64 {
        self.gate.under.get(&limit.id).map_or(0, |under| under.load(Ordering::Relaxed))
    }
    fn tell_cores(&mut self, message: ToFast) {
        for core in &mut self.cores {
            core.to.send(crate::messages::ToCore::Tcp(message.clone()));
        }
    }
}

impl SlowThread {
    /// Clients or rules have changed: every client gets its limit and its group, its running connections too.
    pub fn apply_policy(&mut self) {
        let host = &mut self.host;
        let mut shaped: BTreeMap<u16, Limit> = BTreeMap::new();
        let mut under: HashMap<u64, Arc<AtomicU64>> = HashMap::new();
        let mut moved = Vec::new();
        // Those that have left keep what they had while their connections drain; it says nothing to the others.
        let (left, here): (Vec<_>, Vec<_>) = host.clients.iter_mut().flatten().partition(|client| client.leaving);
        for client in here.into_iter().chain(left) {
            let limit = if client.leaving { client.limit } else { host.gate.guard.limit(client.shared.id) };
            let group = group_of(client.shared.index, limit.as_ref());
            client.limit = limit;
            client.under = limit.map(|limit| {
                shaped.entry(group).or_insert(limit);
                let count = under.entry(limit.id).or_default().clone();
                count.fetch_add(client.connections.into(), Ordering::Relaxed);
                count
            });
            if std::mem::replace(&mut client.group, group) != group {
                moved.push((client.shared.index, group));
            }
        }
        let before = std::mem::take(&mut host.gate.shaped);
        for group in before.into_iter().filter(|old| !shaped.contains_key(old)) {
            host.tell_cores(ToFast::SetWeight { group, weight: 1 });
            host.tell_cores(ToFast::SetLimit { group, bytes_per_s: 0 });
        }
        let cores = host.cores.len().max(1) as u64;
        for (group, limit) in &shaped {
            host.tell_cores(ToFast::SetWeight { group: *group, weight: limit.weight.max(1) });
            // Each core keeps its part, so that together they never send more.
            let bytes_per_s = if limit.rate == 0 { 0 } else { (limit.rate / cores).max(1) };
            host.tell_cores(ToFast::SetLimit { group: *group, bytes_per_s });
        }
        let ids: HashSet<u64> = shaped.values().map(|limit| limit.id).collect();
        host.gate.tokens.retain(|id, _| ids.contains(id));
        host.gate.shaped = shaped.into_keys().collect();
        host.gate.under = under;
        for (index, group) in moved {
            self.move_flows(index, group);
        }
    }

    fn move_flows(&mut self, index: u32, group: u16) {
        let Some(client) = self.host.client(index) else { return };
        for (slot, phase) in client.used() {
            let Some(client) = self.host.client(index) else { return };
            let entry = client.slot(slot);
            if let (Phase::Open, Some(flow), core) = (phase, entry.flow, entry.core) {
                self.host.cores[core].to.send(crate::messages::ToCore::Tcp(ToFast::SetGroup(flow, group)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_clients_and_limits_never_meet() {
        let limit = |number| Limit { id: 1, number, weight: 1, rate: 0, connections: 0, new_per_s: 0 };
        let groups = (0..100).map(|n| group_of(n, None)).chain((0..100).map(|n| group_of(0, Some(&limit(n)))));
        let distinct: std::collections::HashSet<u16> = groups.collect();
        assert_eq!(distinct.len(), 200);
        assert!(!distinct.contains(&0));
        assert_eq!(
            (group_of(u32::MAX, None), group_of(0, Some(&limit(u16::MAX)))),
            (0, 0),
            "what has no number is the default"
        );
    }

    #[test]
    fn tokens_grow_with_time_up_to_one_second_of_them() {
        let empty = Tokens { micro: 0, at: Micros(0) };
        assert_eq!(empty.grown(Micros(500_000), 10).micro, 5 * Tokens::ONE);
        assert_eq!(empty.grown(Micros(60_000_000), 10).micro, 10 * Tokens::ONE);
        assert_eq!(empty.grown(Micros(400_000), 1).micro, 400_000);
        assert_eq!(Tokens::full(Micros(7), 3), Tokens { micro: 3 * Tokens::ONE, at: Micros(7) });
    }
}
