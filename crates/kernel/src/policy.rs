//! The operator's policy, as this stack enforces it.

use crate::group::ClientGroup;
use towpath_stack::guard::{Gate, Gatekeeper, Subject, Under};
use towpath_stack::slots::Client;

impl Gatekeeper for ClientGroup {
    fn gate(&mut self) -> &mut Gate {
        &mut self.gate
    }
    fn subject(&mut self, index: u32) -> Option<Subject> {
        self.client(index).map(|client| Client::subject(client))
    }
    fn now_us(&self) -> u64 {
        towpath_stack::thread::now_us()
    }
}

impl ClientGroup {
    /// Clients or rules have changed: every client gets its limit.
    pub fn apply_policy(&mut self) {
        let mut under = Under::default();
        for client in self.clients.iter_mut().flatten() {
            let limit = if client.leaving { client.limit } else { self.gate.guard.limit(client.shared.id) };
            client.put_under(limit, &mut under);
            client.own.bucket = self.rates.bucket(limit.as_ref());
        }
        self.gate.set_limits(under);
    }
}
