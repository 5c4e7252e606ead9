//! SYNs that the kernel's listening sockets have let us take, and what the two halves of listeners have done.

use crate::host::SlowHost;
use crate::owner::split;
use crate::slow::SlowState;
use std::sync::atomic::Ordering;
use towpath_ring::command::Accepted;
use towpath_runtime::named_counts::NamedCounts;
use towpath_runtime::status::Halves;
use towpath_tcp::flow::{FourTuple, Owner};
use towpath_tcp::time::Micros;
use towpath_wire::parse;

impl SlowHost {
    /// What the two halves of a listener have accepted.
    pub fn halves(&self, owner: Owner) -> Option<Halves> {
        let (index, raw) = split(owner);
        if !self.kernel_listeners.has(owner) {
            return None;
        }
        let region = &self.clients.get(index as usize)?.as_ref()?.shared.region;
        let app = region.app(region.slot(raw)?);
        let refused = self.kernel_listeners.refused_at(owner);
        let accelerated = app.rx_head.load(Ordering::Relaxed) / Accepted::BYTES as u32;
        Some(Halves { accelerated, kernel: app.kernel_accepts().load(Ordering::Relaxed), refused })
    }
    /// What became of the SYNs of listeners that stay the kernel's, and what the kernel has accepted.
    pub fn listener_counts(&self) -> NamedCounts {
        let live = self.kernel_listeners.from(Owner(0)).filter_map(|(owner, _)| self.halves(owner));
        let accepted = live.map(|halves| u64::from(halves.kernel)).sum();
        self.kernel_listeners.counts(self.network.syn_counts(), accepted)
    }
    /// Leaves the SYNs of all listeners to the kernel from now on. Connections that they have begun go on.
    pub fn give_back_listeners(&mut self) {
        if std::mem::replace(&mut self.kernel_listeners.given_back, true) {
            return;
        }
        for cookie in self.kernel_listeners.cookies() {
            if let Err(error) = self.network.take_syns(cookie, false) {
                tracing::warn!(%error, "a listener goes on to take SYNs");
            }
        }
    }
    /// Does nobody accept the connections of this listener? A process that has only its kernel half may: one without the
    /// library, or another user's.
    pub fn has_stalled(&mut self, listener: Owner) -> bool {
        let Some((client, slot)) = self.find(listener) else { return false };
        let accepted = client.accepted_to(slot);
        self.kernel_listeners.has_stalled(self.now, listener, accepted)
    }
    /// Leaves the SYNs of a listener to the kernel, if `owner` is one that has been taken from it.
    pub fn leave_to_kernel(&mut self, owner: Owner) {
        let accepted = self.halves(owner).map_or(0, |halves| halves.kernel);
        if let Some(cookie) = self.kernel_listeners.remove(owner) {
            self.kernel_listeners.accepted_before += u64::from(accepted);
            if !self.kernel_listeners.given_back
                && let Err(error) = self.network.take_syns(cookie, false)
            {
                tracing::warn!(%error, "SYNs of a listener that has ended are dropped");
            }
            self.end_rules_of(cookie);
        }
    }
}

impl SlowState {
    /// Takes so many waiting SYNs at most, and returns how many it was.
    pub fn syns(&mut self, now: Micros, most: usize) -> usize {
        if !self.host.network.listens_in_kernel() {
            return 0;
        }
        self.host.network.beat();
        let mut work = 0;
        while work < most
            && let Some(syn) = self.host.network.next_syn()
        {
            work += 1;
            let Ok(segment) = parse(&syn.frame) else { continue };
            let (local, local_port) = (segment.destination, segment.destination_port);
            let tuple = FourTuple { local, local_port, remote: segment.source, remote_port: segment.source_port };
            let Some(listener) = self.host.kernel_listeners.find(syn.cookie, local, local_port) else {
                // It has ended since, or shall at once, or the kernel has chosen it for an address that is not its own.
                self.host.kernel_listeners.unknown += 1;
                self.listener_check.soon(now);
                self.host.network.leave_syn(&tuple);
                continue;
            };
            // A route can make addresses the kernel's that no interface has.
            if !self.host.network.is_local(local) || self.host.has_stalled(listener) {
                self.host.network.leave_syn(&tuple);
                continue;
            }
            self.host.watch_syn(&syn);
            let flow_group = syn.queue.map_or(0, |queue| queue as usize % self.flow_groups);
            self.slow.on_syn(now, flow_group, syn.port, syn.frame, listener, &mut self.host);
            self.later(now);
        }
        work
    }
}
