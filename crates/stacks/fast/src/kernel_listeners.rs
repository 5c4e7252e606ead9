//! Listeners whose descriptors stay listening sockets of the kernel. The kernel names one, by its cookie, for each SYN.

use crate::api::SynCounts;
use crate::host::SlowHost;
use crate::owner::split;
use crate::slow::SlowThread;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::atomic::Ordering;
use towpath_ring::command::Accepted;
use towpath_runtime::ListenerProof;
use towpath_runtime::named_counts::NamedCounts;
use towpath_runtime::status::Halves;
use towpath_tcp::flow::Owner;
use towpath_tcp::time::Micros;
use towpath_wire::parse;

/// SYNs taken in one turn.
const BATCH: usize = 256;
/// The slow thread looks at least so often after its listeners, µs. SYNs are left to the kernel after three seconds without it.
const LOOK_US: u64 = 1_000_000;

/// The listeners, by cookie and by owner.
#[derive(Default)]
pub struct KernelListeners {
    by_cookie: HashMap<u64, Owner>,
    /// Ordered, so that all see them in the same order.
    by_owner: BTreeMap<u64, ListenerProof>,
    /// SYNs that named none of them.
    unknown: u64,
    /// Connections that the kernel's halves of listeners that have ended had accepted.
    accepted_before: u64,
}

impl KernelListeners {
    /// Adds a listener. No other one has its cookie.
    pub fn insert(&mut self, owner: Owner, proof: ListenerProof) {
        self.by_cookie.insert(proof.cookie, owner);
        self.by_owner.insert(owner.0, proof);
    }
    /// Removes a listener, if `owner` is one, and returns its cookie.
    pub fn remove(&mut self, owner: Owner) -> Option<u64> {
        let proof = self.by_owner.remove(&owner.0)?;
        self.by_cookie.remove(&proof.cookie);
        Some(proof.cookie)
    }
    /// The listener with this cookie, for a connection to this address and port. A client may have bound the socket anew
    /// since it was accepted as a listener: then it is none.
    pub fn find(&self, cookie: u64, addr: IpAddr, port: u16) -> Option<Owner> {
        let owner = *self.by_cookie.get(&cookie)?;
        self.by_owner.get(&owner.0).filter(|proof| proof.covers(addr, port)).map(|_| owner)
    }
    /// Are there none?
    pub fn is_empty(&self) -> bool {
        self.by_owner.is_empty()
    }
    /// The listeners from this owner on, in order.
    pub fn from(&self, first: Owner) -> impl Iterator<Item = (Owner, &ListenerProof)> {
        self.by_owner.range(first.0..).map(|(owner, proof)| (Owner(*owner), proof))
    }
    /// When the slow thread must look at them next.
    pub fn next_deadline(&self, now: Micros) -> Option<Micros> {
        (!self.is_empty()).then(|| now.after(LOOK_US))
    }
    /// What became of their SYNs.
    fn counts(&self, SynCounts { taken, passed_stale, passed_full }: SynCounts, accepted: u64) -> NamedCounts {
        let counts = [
            ("accepted_by_kernel", self.accepted_before + accepted),
            ("taken", taken),
            ("passed_stale", passed_stale),
            ("passed_full", passed_full),
            ("unknown_listener", self.unknown),
        ];
        counts.into_iter().collect()
    }
}

impl SlowHost {
    /// What the two halves of a listener have accepted.
    pub fn halves(&self, owner: Owner) -> Option<Halves> {
        let (index, raw) = split(owner);
        self.kernel_listeners.by_owner.get(&owner.0)?;
        let region = &self.clients.get(index as usize)?.as_ref()?.shared.region;
        let app = region.app(region.slot(raw)?);
        let accelerated = app.rx_head.load(Ordering::Relaxed) / Accepted::BYTES as u32;
        Some(Halves { accelerated, kernel: app.kernel_accepts().load(Ordering::Relaxed) })
    }
    /// What became of the SYNs of listeners that stay the kernel's, and what the kernel has accepted.
    pub fn listener_counts(&self) -> NamedCounts {
        let live = self.kernel_listeners.from(Owner(0)).filter_map(|(owner, _)| self.halves(owner));
        let accepted = live.map(|halves| u64::from(halves.kernel)).sum();
        self.kernel_listeners.counts(self.network.syn_counts(), accepted)
    }
    /// Leaves the SYNs of a listener to the kernel, if `owner` is one that has been taken from it.
    pub fn leave_to_kernel(&mut self, owner: Owner) {
        let accepted = self.halves(owner).map_or(0, |halves| halves.kernel);
        if let Some(cookie) = self.kernel_listeners.remove(owner) {
            self.kernel_listeners.accepted_before += u64::from(accepted);
            if let Err(error) = self.network.take_syns(cookie, false) {
                tracing::warn!(%error, "SYNs of a listener that has ended are dropped");
            }
        }
    }
}

impl SlowThread {
    /// Takes waiting SYNs, and returns how many.
    pub fn syns(&mut self, now: Micros) -> usize {
        if !self.host.network.listens_in_kernel() {
            return 0;
        }
        self.host.network.beat();
        let mut work = 0;
        while work < BATCH
            && let Some(syn) = self.host.network.next_syn()
        {
            work += 1;
            let Ok(segment) = parse(&syn.frame) else { continue };
            let (addr, port) = (segment.destination, segment.destination_port);
            let Some(listener) = self.host.kernel_listeners.find(syn.cookie, addr, port) else {
                // It has ended since, or shall at once: the peer repeats the SYN, and the kernel has it.
                self.host.kernel_listeners.unknown += 1;
                self.listener_check.soon(now);
                continue;
            };
            let flow_group = syn.queue.map_or(0, |queue| queue as usize % self.flow_groups);
            self.slow.on_syn(now, flow_group, syn.port, syn.frame, listener, &mut self.host);
            self.later(now);
        }
        work
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn a_listener_is_found_by_its_cookie_until_it_ends() {
        let mut listeners = KernelListeners::default();
        assert_eq!(listeners.next_deadline(Micros(5)), None);
        let addr = IpAddr::V4(Ipv4Addr::LOCALHOST);
        for (owner, cookie) in [(1, 70), (2, 80)] {
            listeners.insert(Owner(owner), ListenerProof { cookie, addr, port: 9, dual: false });
        }
        assert_eq!([70, 80, 90].map(|cookie| listeners.find(cookie, addr, 9)), [Some(Owner(1)), Some(Owner(2)), None]);
        assert_eq!(listeners.next_deadline(Micros(5)), Some(Micros(1_000_005)));
        assert_eq!((listeners.remove(Owner(1)), listeners.remove(Owner(1))), (Some(70), None));
        assert_eq!(listeners.find(80, addr, 10), None, "bound anew");
        assert_eq!((listeners.find(70, addr, 9), listeners.from(Owner(0)).count()), (None, 1));
    }
}
