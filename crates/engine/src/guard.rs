//! The operator's policy, as the slow thread enforces it.

use crate::host::SlowHost;
use crate::slots::Phase;
use crate::slow::SlowThread;
use std::collections::BTreeMap;
use towpath_stack::Limit;
use towpath_stack::guard::{Gate, Gatekeeper, Subject, Under};
use towpath_stack::slots::Client;
use towpath_tcp::messages::ToFast;

/// The group of a client's flows: its limit's, which other clients may share, or its own.
pub fn group_of(index: u32, limit: Option<&Limit>) -> u16 {
    match limit {
        Some(limit) => limit.number.checked_mul(2).and_then(|n| n.checked_add(2)).unwrap_or(0),
        None => u16::try_from(index).ok().and_then(|n| n.checked_mul(2)?.checked_add(1)).unwrap_or(0),
    }
}

impl Gatekeeper for SlowHost {
    fn gate(&mut self) -> &mut Gate {
        &mut self.gate
    }
    fn subject(&mut self, index: u32) -> Option<Subject> {
        self.client(index).map(|client| Client::subject(client))
    }
    fn now_us(&self) -> u64 {
        self.now.0
    }
}

impl SlowHost {
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
        let mut under = Under::default();
        let mut moved = Vec::new();
        // Those that have left keep what they had while their connections drain; it says nothing to the others.
        let (left, here): (Vec<_>, Vec<_>) = host.clients.iter_mut().flatten().partition(|client| client.leaving);
        for client in here.into_iter().chain(left) {
            let limit = if client.leaving { client.limit } else { host.gate.guard.limit(client.shared.id) };
            let group = group_of(client.shared.index, limit.as_ref());
            if let Some(limit) = limit {
                shaped.entry(group).or_insert(limit);
            }
            client.put_under(limit, &mut under);
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
