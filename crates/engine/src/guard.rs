//! The operator's policy, as the slow thread enforces it.

use crate::host::SlowHost;
use crate::slots::Phase;
use crate::slow::SlowThread;
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use towpath_stack::{Limit, Verdict};
use towpath_tcp::flow::FourTuple;
use towpath_tcp::messages::ToFast;

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
        self.gate.guard.accept(
            id,
            SocketAddr::new(tuple.local, tuple.local_port),
            SocketAddr::new(tuple.remote, tuple.remote_port),
        )
    }
    /// May client `index` have one more connection now? If not, that is counted.
    pub fn within_limits(&mut self, index: u32) -> bool {
        let Some((id, limit)) = self.client(index).map(|client| (client.shared.id, client.limit)) else { return true };
        self.gate.within(id, limit.as_ref(), self.now.0)
    }
    /// Client `index` has one more connection.
    pub fn spend_token(&mut self, index: u32) {
        let limit = self.client(index).and_then(|client| client.limit);
        self.gate.spend(limit.as_ref(), self.now.0);
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
            if std::mem::replace(&mut client.own.group, group) != group {
                moved.push((client.shared.index, group));
            }
        }
        let before = std::mem::take(&mut host.shaped);
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
        host.shaped = shaped.into_keys().collect();
        host.gate.set_limits(under);
        for (index, group) in moved {
            self.move_flows(index, group);
        }
    }

    fn move_flows(&mut self, index: u32, group: u16) {
        let Some(client) = self.host.client(index) else { return };
        for (slot, phase) in client.used() {
            let Some(client) = self.host.client(index) else { return };
            let entry = client.slot(slot);
            if let (Phase::Open, Some(flow), core) = (phase, entry.own.flow, entry.own.core) {
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
}
