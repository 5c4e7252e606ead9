//! The operator's policy, as this stack enforces it.

use crate::core::Core;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use towpath_stack::Verdict;
use towpath_stack::thread::now_us;

impl Core {
    /// May client `index` connect there? Its limits come after the rules.
    pub fn permit_connect(&mut self, index: u32, remote: SocketAddr) -> Verdict {
        let Some(id) = self.client(index).map(|client| client.shared.id) else { return Verdict::Kernel };
        match self.gate.guard.connect(id, remote) {
            Verdict::Allow(congestion) if self.within_limits(index) => Verdict::Allow(congestion),
            Verdict::Allow(_) => Verdict::Refuse(libc::EAGAIN),
            other => other,
        }
    }
    /// May it listen there?
    pub fn permit_listen(&mut self, index: u32, local: SocketAddr, dual: bool) -> Verdict {
        let Some(id) = self.client(index).map(|client| client.shared.id) else { return Verdict::Kernel };
        self.gate.guard.listen(id, local, dual)
    }
    /// May a listener of it hear from this peer?
    pub fn permit_accept(&mut self, index: u32, local: SocketAddr, remote: SocketAddr) -> Verdict {
        let Some(id) = self.client(index).map(|client| client.shared.id) else { return Verdict::Drop };
        self.gate.guard.accept(id, local, remote)
    }
    /// May it have one more connection now? If not, that is counted.
    pub fn within_limits(&mut self, index: u32) -> bool {
        let Some((id, limit)) = self.client(index).map(|client| (client.shared.id, client.limit)) else { return true };
        self.gate.within(id, limit.as_ref(), now_us())
    }
    /// It has one more connection.
    pub fn spend_token(&mut self, index: u32) {
        let limit = self.client(index).and_then(|client| client.limit);
        self.gate.spend(limit.as_ref(), now_us());
    }
    /// Clients or rules have changed: every client gets its limit.
    pub fn apply_policy(&mut self) {
        let mut under: HashMap<u64, Arc<AtomicU64>> = HashMap::new();
        for client in self.clients.iter_mut().flatten() {
            if !client.leaving {
                client.limit = self.gate.guard.limit(client.shared.id);
            }
            client.under = client.limit.map(|limit| {
                let count = under.entry(limit.id).or_default().clone();
                count.fetch_add(client.connections.into(), Ordering::Relaxed);
                count
            });
        }
        self.gate.set_limits(under);
    }
}
