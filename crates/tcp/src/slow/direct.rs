//! Direct connections, which need no protocol. Both ends are entered in the table, so that their addresses are taken
//! and listed. No segments are ever sent for them.

use super::SlowPath;
use super::active_open::unspecified;
use super::congestion::Algorithm;
use super::connections::{ConnectionEntry, Phase};
use super::host::{Host, Route};
use super::timers::Stamp;
use crate::flow::{FourTuple, Owner, SocketOptions};
use crate::time::Micros;
use std::net::IpAddr;

impl SlowPath {
    /// The listener for a connection with this tuple, seen from the peer, and the options that the connection inherits.
    pub fn listener_for(&self, tuple: &FourTuple) -> Option<(Owner, SocketOptions)> {
        self.listeners.find_for(&tuple.reversed()).map(|listener| (listener.owner, listener.options))
    }

    /// The options that connections to this listener inherit.
    pub fn inherited_from(&self, listener: Owner) -> Option<SocketOptions> {
        self.listeners.get(listener).map(|listener| listener.options)
    }

    /// The owners of listeners on exactly this address and port.
    pub fn listeners_at(&self, addr: IpAddr, port: u16) -> impl Iterator<Item = Owner> {
        self.listeners.at(addr, port).iter().map(|listener| listener.owner)
    }

    /// The options set on an owner's socket before `connect`.
    pub fn early_options(&self, owner: Owner) -> SocketOptions {
        self.early_options.get(&owner).copied().unwrap_or_default()
    }

    /// Chooses the tuple of a connect to a listener of this host, as [`SlowPath::connect`] does. `local`: the address
    /// that the socket is bound to. `None`: use `connect`, which gives the right error.
    pub fn choose_direct_tuple(
        &mut self,
        now: Micros,
        owner: Owner,
        (remote, remote_port): (IpAddr, u16),
        local: Option<(IpAddr, u16)>,
        host: &mut dyn Host,
    ) -> Option<FourTuple> {
        if self.table.by_owner(owner).is_some() || self.listeners.of(owner).is_some() {
            return None;
        }
        let (addr, local_port) = local.unwrap_or((unspecified(remote), 0));
        if addr.is_ipv4() != remote.is_ipv4() {
            return None;
        }
        let bound = (!addr.is_unspecified()).then_some(addr);
        let Route::Via { source, .. } = host.route(remote, bound) else { return None };
        let wanted = FourTuple { local: bound.unwrap_or(source), local_port, remote, remote_port };
        let tuple = self.choose_tuple(now, owner, wanted, host)?;
        (host.is_local(tuple.local) && tuple != tuple.reversed() && self.is_free(&tuple)).then_some(tuple)
    }

    /// Has neither end of this tuple a connection, not even one in TIME-WAIT?
    pub fn is_free(&self, tuple: &FourTuple) -> bool {
        // The protocol handles tuples in TIME-WAIT.
        [*tuple, tuple.reversed()].iter().all(|end| self.table.by_tuple(end).is_none() && !self.time_wait.has(end))
    }

    /// Enters both ends of a connection to this listener. `tuple` is seen from the first. False = the table is full.
    pub fn add_direct(&mut self, ends: [Owner; 2], listener: Owner, tuple: FourTuple) -> bool {
        let options = self.take_early_options(ends[0]);
        let inherited = self.listeners.get(listener).and_then(|listener| listener.congestion);
        let choices = [Algorithm::from_id(options.congestion), inherited];
        for ((owner, tuple), congestion) in ends.into_iter().zip([tuple, tuple.reversed()]).zip(choices) {
            let (phase, timer) = (Phase::Direct, Stamp::NONE);
            let connection =
                ConnectionEntry { owner, tuple, bound: true, steered: false, flow_group: 0, congestion, timer, phase };
            if self.table.insert(connection).is_none() {
                self.remove_direct(ends[0]);
                self.early_options.insert(ends[0], options);
                return false;
            }
        }
        true
    }

    /// Removes one end.
    pub fn remove_direct(&mut self, owner: Owner) {
        let id = self.table.by_owner(owner);
        if let Some(id) = id.filter(|id| self.table.get(*id).is_some_and(|c| matches!(c.phase, Phase::Direct))) {
            self.table.remove(id);
        }
    }
}
