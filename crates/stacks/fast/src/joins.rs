//! Connections between programs of two network namespaces, ring to ring. The listener's stack joins them, as it joins two
//! programs of its own namespace. The service has the proof that it may.

use crate::host::{LocalListener, SlowHost};
use crate::owner::{owner, split};
use crate::slots::Phase;
use crate::slow::SlowState;
use std::net::SocketAddr;
use towpath_ring::Slot;
use towpath_ring::command::{Command, MAY_JOIN, join_at, not_ours};
use towpath_ring::lines::state;
use towpath_runtime::admission::AdmissionControl;
use towpath_runtime::info::any;
use towpath_runtime::{JoinProof, Proof, Verdict};
use towpath_tcp::flow::FourTuple;
use towpath_tcp::time::Micros;

impl SlowState {
    /// The answer to a connect that another namespace's stack shall see first. `None`: it goes its usual way.
    pub fn joined_elsewhere(&mut self, index: u32, slot: Slot, command: &Command, remote: SocketAddr) -> Option<i32> {
        let may = command.flags & MAY_JOIN != 0 && self.host.pairs.enabled;
        // A bound socket has its port here; nobody else can hold that one.
        let bound = command.local_port != 0 || !command.local_addr.to_canonical().is_unspecified();
        if !may || bound || self.host.network.is_local(remote.ip()) {
            return None;
        }
        // A limit of bytes per second is this stack's to keep.
        let client = self.host.client(index).filter(|client| client.limit.is_none_or(|limit| limit.rate == 0))?;
        let client = client.shared.id;
        let stack = self.host.gate.guard.joins_to(client, remote)?;
        self.not_ours(index, slot, not_ours::JOIN);
        Some(join_at(stack))
    }

    /// Carries out JOIN: the client is of another namespace, and has shown a socket of it.
    pub fn join_across(&mut self, now: Micros, index: u32, slot: Slot) -> i32 {
        let shown = self.host.client(index).and_then(|client| client.slot(slot).reservation.as_ref());
        let Some(Proof::Joined(proof)) = shown.map(|(reservation, _)| reservation.proof) else {
            return self.not_ours(index, slot, not_ours::NAMESPACE);
        };
        // A process of a third namespace may have joined the client since.
        let is_there =
            |host: &mut SlowHost| host.client(index).is_some_and(|c| c.shared.namespace.is(Some(proof.from)));
        if !is_there(&mut self.host) {
            return self.not_ours(index, slot, not_ours::NAMESPACE);
        }
        let Some(client) = self.host.client(index) else { return -libc::ENOTCONN };
        client.take(slot, Phase::Opening);
        let (local, remote) = (proof.local, proof.listener);
        let tuple =
            FourTuple { local: local.ip(), local_port: local.port(), remote: remote.ip(), remote_port: remote.port() };
        SlowHost::show_addresses(client, slot, &FourTuple { local: any(remote.ip()), local_port: 0, ..tuple }, 2);
        client.show(slot, state::CONNECTING, 0);
        self.early_options(now, index, slot);
        match self.try_join(now, (index, slot), &proof, &tuple) {
            Some(result) => result,
            None => {
                self.refuse(index, slot);
                self.not_ours(index, slot, not_ours::NO_LISTENER)
            }
        }
    }

    /// `None`: the connection goes its usual way, and finds all errors there.
    fn try_join(&mut self, now: Micros, at: (u32, Slot), proof: &JoinProof, tuple: &FourTuple) -> Option<i32> {
        let (index, slot) = at;
        let to = tuple.remote;
        // Loopback addresses are each namespace's own.
        if !self.host.pairs.enabled || to.is_loopback() || !self.host.network.is_local(to) {
            return None;
        }
        // The kernel's own connections with that tuple are not seen, but none can have the port that is held.
        if !self.slow.is_free(tuple) || !self.host.within_limits(index) {
            return None;
        }
        let LocalListener::Ours(listener) = self.host.kernels_listener_by(tuple, proof.interface) else { return None };
        let own = self.slow.early_options(owner(index, slot));
        if self.host.has_stalled(listener) || !self.suits(index, &own, listener) {
            return None;
        }
        match self.host.permit_accept(split(listener).0, tuple.remote_end(), tuple.local_end()) {
            Verdict::Allow(_) => self.join(now, at, listener, tuple),
            Verdict::Refuse(_) | Verdict::Drop | Verdict::Kernel | Verdict::Stack(_) => None,
        }
    }
}
