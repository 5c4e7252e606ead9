//! Connections within this host that need no protocol: both ends are entered, so that their addresses are taken and listed, and
//! nothing is ever sent between them.

use super::SlowPath;
use super::congestion::Algorithm;
use super::connections::{Connection, Phase};
use super::host::{Host, Route};
use super::open::unspecified;
use super::timers::Stamp;
use crate::flow::{FourTuple, Owner, SocketOptions};
use crate::time::Micros;
use std::net::IpAddr;

impl SlowPath {
    /// The listener that a connection of this tuple (as its peer sees it) reaches, and what its connections inherit.
    pub fn listener_for(&self, tuple: &FourTuple) -> Option<(Owner, SocketOptions)> {
        self.listeners.find_for(&tuple.reversed()).map(|listener| (listener.owner, listener.options))
    }

    /// Who listens on exactly this address and port.
    pub fn listeners_at(&self, addr: IpAddr, port: u16) -> impl Iterator<Item = Owner> {
        self.listeners.at(addr, port).iter().map(|listener| listener.owner)
    }

    /// What was set on an owner's socket before its `connect`, which may still come.
    pub fn early_options(&self, owner: Owner) -> SocketOptions {
        self.early_options.get(&owner).copied().unwrap_or_default()
    }

    /// The addresses of a connect to a listener of this host, chosen as [`SlowPath::connect`] chooses them (`local`: what the socket
    /// is bound to). `None`: leave it to `connect`, which knows what to say.
    pub fn choose_direct(
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
        let tuple = self.choose_tuple(now, wanted, host)?;
        // An incarnation in TIME-WAIT is for the protocol to deal with.
        let free = |tuple: &FourTuple| self.table.by_tuple(tuple).is_none() && !self.time_wait.has(tuple);
        (host.is_local(tuple.local) && tuple != tuple.reversed() && free(&tuple) && free(&tuple.reversed()))
            .then_some(tuple)
    }

    /// Enters both ends of a connection, `tuple` as the first sees it. False = the table is full.
    pub fn join(&mut self, ends: [Owner; 2], tuple: FourTuple) -> bool {
        let options = self.take_early_options(ends[0]);
        let inherited = self.listeners.find_for(&tuple.reversed()).and_then(|listener| listener.congestion);
        let choices = [Algorithm::from_id(options.congestion), inherited];
        for ((owner, tuple), congestion) in ends.into_iter().zip([tuple, tuple.reversed()]).zip(choices) {
            let (phase, timer) = (Phase::Direct, Stamp::NONE);
            let connection =
                Connection { owner, tuple, bound: true, steered: false, core: 0, congestion, timer, phase };
            if self.table.insert(connection).is_none() {
                self.part(ends[0]);
                self.early_options.insert(ends[0], options);
                return false;
            }
        }
        true
    }

    /// Forgets one end.
    pub fn part(&mut self, owner: Owner) {
        let id = self.table.by_owner(owner);
        if let Some(id) = id.filter(|id| self.table.get(*id).is_some_and(|c| matches!(c.phase, Phase::Direct))) {
            self.table.remove(id);
        }
    }
}
