//! The operator's policy, as the slow path enforces it.

use crate::host::SlowHost;
use crate::sharing_class::class_of;
use crate::slots::Phase;
use crate::slow::SlowState;
use std::collections::BTreeMap;
use towpath_runtime::Limit;
use towpath_runtime::admission::{AdmissionControl, AdmissionState, ConnectionCounts, Subject};
use towpath_runtime::slots::ServedClient;
use towpath_tcp::messages::ToFast;

impl AdmissionControl for SlowHost {
    fn gate(&mut self) -> &mut AdmissionState {
        &mut self.gate
    }
    fn subject(&mut self, index: u32) -> Option<Subject> {
        self.client(index).map(|client| ServedClient::subject(client))
    }
    fn now_us(&self) -> u64 {
        self.now.0
    }
}

impl SlowHost {
    fn tell_flow_groups(&mut self, message: ToFast) {
        for flow_group in &mut self.flow_groups {
            flow_group.to.send(crate::messages::ToGroup::Tcp(message.clone()));
        }
    }
}

impl SlowState {
    /// Clients or rules have changed. Every client gets its limit and its sharing class, and so do its running
    /// connections.
    pub fn apply_policy(&mut self) {
        let host = &mut self.host;
        let mut shaped: BTreeMap<u16, Limit> = BTreeMap::new();
        let mut under = ConnectionCounts::default();
        let mut moved = Vec::new();
        // Clients that have left keep their limits while their connections drain, and do not count for the others.
        let (left, here): (Vec<_>, Vec<_>) = host.clients.iter_mut().flatten().partition(|client| client.leaving);
        for client in here.into_iter().chain(left) {
            let limit = if client.leaving { client.limit } else { host.gate.guard.limit(client.shared.id) };
            let class = class_of(client.shared.index, limit.as_ref());
            if let Some(limit) = limit {
                shaped.entry(class).or_insert(limit);
            }
            client.put_under(limit, &mut under);
            if std::mem::replace(&mut client.own.class, class) != class {
                moved.push((client.shared.index, class));
            }
        }
        let before = std::mem::take(&mut host.shaped);
        for class in before.into_iter().filter(|old| !shaped.contains_key(old)) {
            host.tell_flow_groups(ToFast::SetWeight { class, weight: 1 });
            host.tell_flow_groups(ToFast::SetLimit { class, bytes_per_s: 0 });
        }
        let flow_groups = host.flow_groups.len().max(1) as u64;
        for (class, limit) in &shaped {
            host.tell_flow_groups(ToFast::SetWeight { class: *class, weight: limit.weight.max(1) });
            // Each flow group gets an equal part of the rate, so that together they never send more.
            let bytes_per_s = if limit.rate == 0 { 0 } else { (limit.rate / flow_groups).max(1) };
            host.tell_flow_groups(ToFast::SetLimit { class: *class, bytes_per_s });
        }
        host.shaped = shaped.into_keys().collect();
        host.gate.set_limits(under);
        for (index, class) in moved {
            self.move_flows(index, class);
        }
    }

    fn move_flows(&mut self, index: u32, class: u16) {
        let Some(client) = self.host.client(index) else { return };
        for (slot, phase) in client.used() {
            let Some(client) = self.host.client(index) else { return };
            let entry = client.slot(slot);
            if let (Phase::Open, Some(flow), flow_group) = (phase, entry.own.flow, entry.own.flow_group) {
                self.host.flow_groups[flow_group].to.send(crate::messages::ToGroup::Tcp(ToFast::SetClass(flow, class)));
            }
        }
    }
}
