//! The guard that the stack asks before it acts for a client: first the operator's policy, then `auto`.
//!
//! The policy's first matching rule decides ([`Policy::decide`]). If it allows a connect or a listen, `auto` may still
//! leave the socket to the kernel, because it has measured that to be better.

use crate::auto::Auto;
use crate::policy::Policy;
use crate::policy::query::Query;
use std::net::SocketAddr;
use towpath_ring::stats::CarriedBy;
use towpath_runtime::{AdmissionPolicy, ClientId, Exceeded, Limit, PeerRules, Verdict};

/// See the module.
pub struct ServiceGuard {
    policy: Policy,
    auto: Auto,
}

impl ServiceGuard {
    /// Asks both.
    pub fn new(policy: Policy, auto: Auto) -> Self {
        Self { policy, auto }
    }
}

/// The policy's verdict, or [`Verdict::Kernel`] where that allows and `auto` prefers the kernel.
fn unless_kernel_is_better(verdict: Verdict, auto: impl FnOnce() -> Option<CarriedBy>) -> Verdict {
    match verdict {
        Verdict::Allow(_) if auto() == Some(CarriedBy::Kernel) => Verdict::Kernel,
        verdict => verdict,
    }
}

impl AdmissionPolicy for ServiceGuard {
    fn connect(&mut self, client: ClientId, remote: SocketAddr) -> Verdict {
        let verdict = self.policy.decide(client, &Query::connect(remote));
        unless_kernel_is_better(verdict, || self.auto.connect(client, remote))
    }
    fn joins_to(&mut self, client: ClientId, listener: SocketAddr) -> Option<u8> {
        self.policy.joins_to(client, listener)
    }
    fn listen(&mut self, client: ClientId, local: SocketAddr, dual: bool) -> Verdict {
        let verdict = match self.policy.decide(client, &Query::listen(local, dual)) {
            // A listen cannot be left without an answer.
            Verdict::Drop => Verdict::Refuse(libc::EACCES),
            verdict => verdict,
        };
        unless_kernel_is_better(verdict, || {
            let only = self.policy.peer_rules(client, local, dual).only_accelerated;
            if only { None } else { self.auto.listen(client, local.port()) }
        })
    }
    fn accept(&mut self, client: ClientId, local: SocketAddr, remote: SocketAddr) -> Verdict {
        self.policy.decide(client, &Query::accept(local, remote))
    }
    fn drains(&mut self) -> bool {
        self.policy.drains()
    }
    fn peer_rules(&mut self, client: ClientId, local: SocketAddr, dual: bool) -> PeerRules {
        self.policy.peer_rules(client, local, dual)
    }
    fn peer_rules_version(&mut self) -> u64 {
        self.policy.version()
    }
    fn peers_refused(&mut self, refused: &[(u64, u64)]) {
        self.policy.peers_refused(refused);
    }
    fn limit(&mut self, client: ClientId) -> Option<Limit> {
        self.policy.limit(client)
    }
    fn exceeded(&mut self, client: ClientId, limit: &Limit, what: Exceeded) {
        self.policy.exceeded(client, limit, what);
    }
}
