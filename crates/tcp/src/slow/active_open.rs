//! Active open: `connect` up to the first SYN (RFC 9293 §3.10.1).

use super::congestion::Algorithm;
use super::connections::{ConnectionEntry, Phase};
use super::ephemeral_ports::{More, Set};
use super::errno::{EADDRNOTAVAIL, EHOSTUNREACH, EISCONN, ENOBUFS};
use super::host::{FirstSyn, Host, Route, Steered};
use super::isn::later_isn;
use super::opening::{OpeningState, Path};
use super::{ConnectError, SlowPath};
use crate::flow::{FlowId, FourTuple, Owner};
use crate::time::Micros;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Number of ports tried to find one that is not in TIME-WAIT.
const FRESH_PORTS: u32 = 128;

impl SlowPath {
    /// Begins an active open. [`Host::established`] or [`Host::connect_failed`] reports the outcome after this returns
    /// `Ok`. `local`: the address and port that the socket is bound to; 0.0.0.0, :: and port 0 mean any.
    #[allow(clippy::too_many_arguments)]
    pub fn connect(
        &mut self,
        now: Micros,
        owner: Owner,
        remote: IpAddr,
        remote_port: u16,
        local: Option<(IpAddr, u16)>,
        nodelay: bool,
        host: &mut dyn Host,
    ) -> Result<(), ConnectError> {
        let options = self.take_early_options(owner);
        // RFC 9293 §3.9.1.1, MUST-46: the kernel returns the right errno.
        if !is_unicast(remote) || remote_port == 0 {
            return Err(ConnectError::NotOurs);
        }
        // A server of the kernel on one of our own addresses stays reachable.
        if host.is_local(remote) && self.listeners.find(remote, remote_port).is_none() {
            return Err(ConnectError::NotOurs);
        }
        if self.table.by_owner(owner).is_some() || self.listeners.of(owner).is_some() {
            return Err(ConnectError::Errno(EISCONN));
        }
        let bound_to = local.unwrap_or((unspecified(remote), 0));
        if bound_to.0.is_ipv4() != remote.is_ipv4() {
            return Err(ConnectError::NotOurs);
        }
        let path = match host.route(remote, specified(bound_to.0)) {
            Route::NotOurs => return Err(ConnectError::NotOurs),
            Route::Unreachable(errno) => return Err(ConnectError::Errno(errno)),
            Route::Resolving => None,
            Route::Via { link, source, mtu } => Some((Path { link, mtu }, source)),
        };
        let mut opening = self.new_opening(now, None, remote, host.ring_bytes(owner), options);
        (opening.nodelay, opening.bound_to) = (nodelay, bound_to);
        let tuple = FourTuple { local: bound_to.0, local_port: bound_to.1, remote, remote_port };
        let congestion = Algorithm::from_id(options.congestion);
        let connection = ConnectionEntry { congestion, ..ConnectionEntry::opening(owner, tuple, opening, 0) };
        let id = self.table.insert(connection).ok_or(ConnectError::Errno(ENOBUFS))?;
        match path {
            None => self.arm(id, now.after(u64::from(self.config.route_retry_ms) * 1000)),
            Some((path, source)) => {
                if let Err(error) = self.send_first_syn(now, id, path, source, host) {
                    self.timers.cancel(id);
                    if let Some(connection) = self.table.remove(id) {
                        self.unsteer(&connection, host);
                    }
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Looks up the route of a pending connect again.
    pub(super) fn retry_route(&mut self, now: Micros, id: FlowId, host: &mut dyn Host) {
        let Some(connection) = self.table.get(id) else { return };
        let Phase::Opening(opening) = &connection.phase else { return };
        let waited_us = now.since(opening.started);
        let result = match host.route(connection.tuple.remote, specified(opening.bound_to.0)) {
            Route::Via { link, source, mtu } => match self.send_first_syn(now, id, Path { link, mtu }, source, host) {
                // It is too late for the kernel to take the socket over: the SYN counts as lost.
                Ok(()) | Err(ConnectError::Refused) => Ok(()),
                Err(ConnectError::NotOurs) => Err(EHOSTUNREACH),
                Err(ConnectError::Errno(errno)) => Err(errno),
            },
            Route::Unreachable(errno) => Err(errno),
            Route::Resolving if waited_us < u64::from(self.config.route_timeout_ms) * 1000 => {
                self.arm(id, now.after(u64::from(self.config.route_retry_ms) * 1000));
                Ok(())
            }
            // It is too late for the kernel to take the socket over.
            Route::Resolving | Route::NotOurs => Err(EHOSTUNREACH),
        };
        if let Err(errno) = result {
            self.fail_opening(id, errno, host);
        }
    }

    /// Chooses addresses and numbers, and sends the SYN.
    fn send_first_syn(
        &mut self,
        now: Micros,
        id: FlowId,
        path: Path,
        source: IpAddr,
        host: &mut dyn Host,
    ) -> Result<(), ConnectError> {
        let Some(connection) = self.table.get(id) else { return Ok(()) };
        let Phase::Opening(opening) = &connection.phase else { return Ok(()) };
        // RFC 9293 §3.9.1.1: the application's address (MUST-43), else the route's (MUST-44).
        let local = specified(opening.bound_to.0).unwrap_or(source);
        let wanted = FourTuple { local, ..connection.tuple };
        let tuple = self.choose_tuple(now, connection.owner, wanted, host);
        let tuple = tuple.ok_or(ConnectError::Errno(EADDRNOTAVAIL))?;
        let after = self.time_wait.take(&tuple).map(|old| old.snd_nxt);
        let secrets = self.secrets(host);
        let (iss, ts_offset) = (later_isn(secrets.isn(now, &tuple), after), secrets.timestamp_offset(&tuple));

        let dctcp = self.choose_congestion(id).needs_ecn();
        self.table.bind(id, tuple);
        let Some(connection) = self.table.get_mut(id) else { return Ok(()) };
        (connection.flow_group, connection.steered) = (host.flow_group_for(&tuple, None), true);
        if let Phase::Opening(opening) = &mut connection.phase {
            (opening.state, opening.path) = (OpeningState::SynSent, Some(path));
            (opening.iss, opening.ts_offset) = (iss, ts_offset);
            (opening.ecn, opening.dctcp) = (self.config.ecn == 1 || dctcp, dctcp);
        }
        if after.is_none() {
            host.steer(&tuple, Steered::All);
        }
        match self.send_syn(now, id, host) {
            FirstSyn::Refused => Err(ConnectError::Refused),
            FirstSyn::ByPort | FirstSyn::Sent => Ok(()),
        }
    }

    /// Chooses the tuple of an active open: as wanted, or with a random free port (RFC 6056 §3.3.1). A tuple in
    /// TIME-WAIT is reused only if timestamps protect the new connection (RFC 6191). A random port reuses one only if
    /// no other is found soon. A tuple that the kernel has is never chosen: nobody else gets the ports of unbound
    /// sockets, and for others the kernel is asked.
    pub(super) fn choose_tuple(
        &mut self,
        now: Micros,
        owner: Owner,
        wanted: FourTuple,
        host: &mut dyn Host,
    ) -> Option<FourTuple> {
        if wanted.local_port != 0 {
            let free = self.table.by_tuple(&wanted).is_none() && self.time_wait.may_take(now, &wanted);
            return (free && !host.kernel_has(&wanted)).then_some(wanted);
        }
        let (user, random) = (host.user(owner), host.random());
        // A client that opens and closes all the time has nearly all ports in TIME-WAIT. Checking each of them for an
        // unused one would take a millisecond per connect.
        let fresh =
            |slow: &Self, set| slow.find_port(&wanted, set, random, FRESH_PORTS, |tuple| !slow.time_wait.has(tuple));
        let his = [Set::First(user), Set::Rest(user)];
        if let Some(tuple) = his.into_iter().find_map(|set| fresh(self, set)) {
            return Some(tuple);
        }
        let (found, old) = match self.ports.more(now, user, || host.more_ports()) {
            More::His => (fresh(self, Set::Last(user)), his),
            More::Shared => (fresh(self, Set::Everybodys), [Set::Everybodys, Set::Everybodys]),
            More::None => (None, his),
        };
        let any = |set| self.find_port(&wanted, set, random, u32::MAX, |tuple| self.time_wait.may_take(now, tuple));
        let found = found.or_else(|| old.into_iter().find_map(any));
        self.counters.out_of_ports += u64::from(found.is_none());
        found
    }

    /// The first tuple with a port of this set that is free and usable. At most `most` ports are tried, from the
    /// random place on.
    fn find_port(
        &self,
        wanted: &FourTuple,
        set: Set,
        random: u64,
        most: u32,
        usable: impl Fn(&FourTuple) -> bool,
    ) -> Option<FourTuple> {
        let free = |tuple: &FourTuple| {
            let to_itself = tuple.local == tuple.remote && tuple.local_port == tuple.remote_port;
            let listening = self.listeners.find(tuple.local, tuple.local_port).is_some();
            !to_itself && !listening && self.table.by_tuple(tuple).is_none()
        };
        let count = self.ports.count(set);
        let start = (random % u64::from(count.max(1))) as u32;
        let ports = (start..start + count.min(most)).filter_map(|i| self.ports.nth(set, i));
        let tuples = ports.map(|local_port| FourTuple { local_port, ..*wanted });
        tuples.into_iter().find(|tuple| free(tuple) && usable(tuple))
    }
}

/// Can this be the address of one host (MUST-46)?
fn is_unicast(addr: IpAddr) -> bool {
    let broadcast = addr == IpAddr::V4(Ipv4Addr::BROADCAST);
    !(addr.is_unspecified() || addr.is_multicast() || broadcast)
}

/// 0.0.0.0 or ::, of the peer's family.
pub(super) fn unspecified(remote: IpAddr) -> IpAddr {
    if remote.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() }
}

/// The address, unless it is 0.0.0.0 or ::.
fn specified(addr: IpAddr) -> Option<IpAddr> {
    (!addr.is_unspecified()).then_some(addr)
}
