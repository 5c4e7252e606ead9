//! The operator's policy, as this stack enforces it.

use crate::group::ClientGroup;
use towpath_runtime::admission::{AdmissionControl, AdmissionState, ConnectionCounts, Subject};
use towpath_runtime::slots::ServedClient;

impl AdmissionControl for ClientGroup {
    fn gate(&mut self) -> &mut AdmissionState {
        &mut self.gate
    }
    fn subject(&mut self, index: u32) -> Option<Subject> {
        self.client(index).map(|client| ServedClient::subject(client))
    }
    fn now_us(&self) -> u64 {
        towpath_runtime::thread::now_us()
    }
}

impl ClientGroup {
    /// Clients or rules have changed: renews every client's limit.
    pub fn apply_policy(&mut self) {
        let mut under = ConnectionCounts::default();
        for client in self.clients.iter_mut().flatten() {
            let limit = if client.leaving { client.limit } else { self.gate.guard.limit(client.shared.id) };
            client.put_under(limit, &mut under);
            client.own.bucket = self.rates.bucket(limit.as_ref());
        }
        self.gate.set_limits(under);
    }
}
