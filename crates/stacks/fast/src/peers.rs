//! The policy's rules about peers, for connections that the kernel would accept for a listener of ours.
//!
//! The kernel's filter applies them, so they hold for programs without Towpath, by all interfaces, and when this service has
//! died. For the SYNs that the stack takes it asks the policy itself.

use crate::host::SlowHost;
use crate::owner::split;
use crate::slots::Phase;
use crate::slow::SlowState;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use towpath_ring::command::{Command, V6ONLY, not_ours, not_ours_because, op};
use towpath_ring::lines::status;
use towpath_runtime::admission::AdmissionControl;
use towpath_runtime::log_throttle::LogThrottle;
use towpath_runtime::{ListenerProof, PeerRules};
use towpath_tcp::flow::Owner;

/// Of listeners whose peers cannot be judged: clients decide how many there are.
static LINES: LogThrottle = LogThrottle::new();

impl SlowHost {
    fn peer_rules(&mut self, index: u32, local: SocketAddr, dual: bool) -> PeerRules {
        let Some(who) = self.subject(index) else { return PeerRules::default() };
        self.gate.guard.peer_rules(who.id, local, dual)
    }

    /// Sets the rules about the peers of a listener. An error is the errno of its `listen`.
    pub fn judge_peers(&mut self, owner: Owner, proof: &ListenerProof) -> Result<(), i32> {
        let local = SocketAddr::new(proof.addr, proof.port);
        let rules = self.peer_rules(split(owner).0, local, proof.dual);
        let Err(error) = self.network.judge_peers(proof.cookie, &rules.rules) else {
            if rules.rules.is_empty() {
                self.kernel_listeners.judged.remove(&proof.cookie);
            } else {
                self.kernel_listeners.judged.insert(proof.cookie, *proof);
            }
            return Ok(());
        };
        // Without a filter no listener has one, which the operator of such a service knows.
        let lenient = error.kind() == ErrorKind::Unsupported && !rules.only_accelerated;
        if LINES.allows() {
            let what = if lenient { "the kernel accepts all peers" } else { "it is refused" };
            tracing::warn!(%local, %error, "the policy's rules about the peers of a listener cannot be set: {what}");
        }
        if lenient { Ok(()) } else { Err(libc::EACCES) }
    }

    /// Tells the library whether the filter must stay on the listener's socket.
    pub fn show_judged(&mut self, owner: Owner) {
        let judged = if self.kernel_listeners.is_judged(owner) { status::JUDGED } else { 0 };
        if let Some((client, slot)) = self.find(owner)
            && client.slot(slot).phase == Phase::Listening
        {
            client.line(slot).status.store(judged, Ordering::Release);
        }
    }

    /// A listener has ended. Its rules hold as long as its socket listens. Neither a program that keeps the socket nor a
    /// service that is about to end may open it to those whom the rules refuse.
    pub fn end_rules_of(&mut self, cookie: u64) {
        let Some(proof) = self.kernel_listeners.judged.get(&cookie).copied() else { return };
        if self.network.is_listening(cookie, proof.addr, proof.port) {
            return;
        }
        match self.network.judge_peers(cookie, &[]) {
            Ok(()) => _ = self.kernel_listeners.judged.remove(&cookie),
            Err(error) => tracing::warn!(%error, "the rules about the peers of a listener that has ended stay"),
        }
    }

    /// Ends the rules of sockets that listen no longer, and whose listeners had ended before. Clients decide how many there
    /// are, so those for which no time is left have their turn later.
    pub fn end_old_rules(&mut self, is_time_left: impl Fn() -> bool) {
        for proof in self.kernel_listeners.judged_before() {
            self.end_rules_of(proof.cookie);
            self.kernel_listeners.asked_before = proof.cookie;
            if !is_time_left() {
                return;
            }
        }
    }

    /// Tells the policy whom the filter has refused.
    pub fn count_refusals(&mut self) {
        let refused = self.network.refused_peers();
        if refused.is_empty() {
            return;
        }
        self.kernel_listeners.refused += refused.iter().map(|(_, more)| more).sum::<u64>();
        self.gate.guard.peers_refused(&refused);
    }

    /// Reads how many SYNs each listener's rules have refused.
    pub fn read_refused(&mut self) {
        let Self { kernel_listeners, network, .. } = self;
        kernel_listeners.note_refused(|cookie| network.refused_at(cookie));
    }
}

impl SlowState {
    /// The policy has changed: sets the rules about the peers of all listeners, if they may have changed.
    pub fn judge_all_peers(&mut self) {
        let host = &mut self.host;
        let version = host.gate.guard.peer_rules_version();
        if std::mem::replace(&mut host.kernel_listeners.rules_version, version) == version {
            return;
        }
        // By the numbers that the rules have had.
        host.count_refusals();
        let all: Vec<_> = host.kernel_listeners.from(Owner(0)).map(|(owner, proof)| (owner, *proof)).collect();
        for (owner, proof) in all {
            // An error has been said. The listener keeps the rules that it has.
            let _ = host.judge_peers(owner, &proof);
            host.show_judged(owner);
        }
    }

    /// The result of a LISTEN command. A listener that may have accelerated connections only is not left to the kernel.
    pub fn unless_only_accelerated(&mut self, index: u32, command: &Command, result: i32) -> i32 {
        if command.op != op::LISTEN
            || not_ours_because(result).is_none_or(|why| matches!(why, not_ours::STACK | not_ours::NAMESPACE))
        {
            return result;
        }
        let addr = command.local_addr.to_canonical();
        let dual = addr.is_ipv6() && addr.is_unspecified() && command.flags & V6ONLY == 0;
        let local = SocketAddr::new(addr, command.local_port as u16);
        if self.host.peer_rules(index, local, dual).only_accelerated { -libc::EACCES } else { result }
    }
}
