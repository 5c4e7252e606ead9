//! Opening: `connect` up to the first SYN, and the answer to a peer's SYN.

use super::congestion::Algorithm;
use super::connections::{Connection, Phase};
use super::errno::{EADDRNOTAVAIL, EHOSTUNREACH, EISCONN, ENOBUFS};
use super::host::{Admission, Host, Route};
use super::negotiate::{Opening, Path, Stage};
use super::segments::Arrival;
use super::timers::Stamp;
use super::{ConnectError, SlowPath};
use crate::counters::Drop;
use crate::flow::{FlowId, FourTuple, Owner, SocketOptions};
use crate::seq::Seq;
use crate::time::Micros;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// So many ports are tried for one that is not in TIME-WAIT.
const FRESH_PORTS: u32 = 128;

impl SlowPath {
    /// Begins an active open; the outcome is reported by [`Host::established`] or [`Host::connect_failed`] (never before this
    /// returns `Ok`, and not at all if it returns `Err`). `local`: what the socket is bound to; address 0.0.0.0 or :: and port 0 are free.
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
        // RFC 9293 §3.9.1.1, MUST-46: the kernel has the errno for that.
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
        let connection = Connection { congestion, ..new_connection(owner, tuple, opening, 0) };
        let id = self.table.insert(connection).ok_or(ConnectError::Errno(ENOBUFS))?;
        match path {
            None => self.arm(id, now.after(u64::from(self.config.route_retry_ms) * 1000)),
            Some((path, source)) => {
                if let Err(errno) = self.send_first_syn(now, id, path, source, host) {
                    self.table.remove(id);
                    return Err(ConnectError::Errno(errno));
                }
            }
        }
        Ok(())
    }

    /// Asks for the route of a connect again.
    pub(super) fn retry_route(&mut self, now: Micros, id: FlowId, host: &mut dyn Host) {
        let Some(connection) = self.table.get(id) else { return };
        let Phase::Opening(opening) = &connection.phase else { return };
        let waited_us = now.since(opening.started);
        let result = match host.route(connection.tuple.remote, specified(opening.bound_to.0)) {
            Route::Via { link, source, mtu } => self.send_first_syn(now, id, Path { link, mtu }, source, host),
            Route::Unreachable(errno) => Err(errno),
            Route::Resolving if waited_us < u64::from(self.config.route_timeout_ms) * 1000 => {
                self.arm(id, now.after(u64::from(self.config.route_retry_ms) * 1000));
                Ok(())
            }
            // The kernel cannot take the socket over any more.
            Route::Resolving | Route::NotOurs => Err(EHOSTUNREACH),
        };
        if let Err(errno) = result {
            self.fail_opening(id, errno, host);
        }
    }

    /// Chooses addresses and numbers, and sends the SYN. Err = errno.
    fn send_first_syn(
        &mut self,
        now: Micros,
        id: FlowId,
        path: Path,
        source: IpAddr,
        host: &mut dyn Host,
    ) -> Result<(), i32> {
        let Some(connection) = self.table.get(id) else { return Ok(()) };
        let Phase::Opening(opening) = &connection.phase else { return Ok(()) };
        // RFC 9293 §3.9.1.1: what the application has named (MUST-43), else what the route says (MUST-44).
        let local = specified(opening.bound_to.0).unwrap_or(source);
        let wanted = FourTuple { local, ..connection.tuple };
        let tuple = self.choose_tuple(now, wanted, host).ok_or(EADDRNOTAVAIL)?;
        let after = self.time_wait.take(&tuple).map(|old| old.snd_nxt);
        let secrets = self.secrets(host);
        let (iss, ts_offset) = (later_isn(secrets.isn(now, &tuple), after), secrets.timestamp_offset(&tuple));

        let dctcp = self.choose_congestion(id).needs_ecn();
        self.table.bind(id, tuple);
        let Some(connection) = self.table.get_mut(id) else { return Ok(()) };
        (connection.core, connection.steered) = (host.core_for(&tuple), true);
        if let Phase::Opening(opening) = &mut connection.phase {
            (opening.stage, opening.path) = (Stage::SynSent, Some(path));
            (opening.iss, opening.ts_offset) = (iss, ts_offset);
            (opening.ecn, opening.dctcp) = (self.config.ecn == 1 || dctcp, dctcp);
        }
        if after.is_none() {
            host.steer(&tuple, true);
        }
        self.send_syn(now, id, host);
        Ok(())
    }

    /// A tuple for an active open: as wanted, or with a random free port (RFC 6056 §3.3.1). TIME-WAIT is reused only where
    /// timestamps protect the new connection (RFC 6191), and by a free choice of port only if no other is found soon.
    pub(super) fn choose_tuple(&mut self, now: Micros, wanted: FourTuple, host: &mut dyn Host) -> Option<FourTuple> {
        if wanted.local_port != 0 {
            let free = self.table.by_tuple(&wanted).is_none() && self.time_wait.may_take(now, &wanted);
            return free.then_some(wanted);
        }
        let (first, last) = (self.config.first_port, self.config.last_port.max(self.config.first_port));
        let count = u32::from(last - first) + 1;
        let start = (host.random() % u64::from(count)) as u32;
        let candidate = |i: u32| FourTuple { local_port: first + ((start + i) % count) as u16, ..wanted };
        let free = |tuple: &FourTuple| {
            let to_itself = tuple.local == tuple.remote && tuple.local_port == tuple.remote_port;
            let listening = self.listeners.find(tuple.local, tuple.local_port).is_some();
            !to_itself && !listening && self.table.by_tuple(tuple).is_none()
        };
        // Where nearly all ports are in TIME-WAIT, as with a client that opens and closes all the time, looking at each of them for a
        // fresh one would cost a millisecond per connect.
        let unused = (0..count.min(FRESH_PORTS)).map(candidate).find(|t| free(t) && !self.time_wait.has(t));
        unused.or_else(|| (0..count).map(candidate).find(|t| free(t) && self.time_wait.may_take(now, t)))
    }

    /// A SYN for a listener: answers it and remembers the half-open connection. `old`: next sequence number of the
    /// incarnation in TIME-WAIT that it replaces. False = dropped.
    pub(super) fn passive_open(
        &mut self,
        now: Micros,
        arrival: &Arrival,
        old: Option<Seq>,
        host: &mut dyn Host,
    ) -> bool {
        let tuple = arrival.tuple;
        let Some(listener) = self.listeners.find_for(&tuple) else { return false };
        let (parent, options) = (listener.owner, listener.options);
        let (full, accept_full) = (listener.half_open.len() >= listener.limit, listener.accept_full);
        let Some(congestion) = self.admitted(now, parent, arrival, host) else { return false };
        if full && (old.is_some() || accept_full || !self.config.syn_cookies) {
            self.counters.drop(Drop::BacklogFull);
            return false;
        }
        // In a flood nobody's tables are asked about addresses that are forged: the cookie goes back where the SYN came from, and the
        // route is looked up when its answer shows that somebody is there.
        let path = match full {
            true => Path { link: arrival.way_back(), mtu: self.config.default_mtu_bytes },
            false => {
                let Some(path) = self.way_back(arrival, host) else { return false };
                path
            }
        };
        let secrets = self.secrets(host);
        let mut opening = self.new_opening(now, Some(parent), tuple.remote, host.ring_bytes(parent), options);
        if let Some(algorithm) = congestion {
            opening.dctcp = algorithm.needs_ecn();
            opening.ecn = self.config.ecn != 0 || opening.dctcp;
        }
        opening.ts_offset = secrets.timestamp_offset(&tuple);
        (opening.stage, opening.path) = (Stage::SynReceived, Some(path));
        opening.hear_syn(&arrival.segment);
        if full {
            self.send_cookie(now, arrival, opening, host);
            return false;
        }
        let Some(owner) = self.table.has_room().then(|| host.new_child(parent)).flatten() else {
            self.counters.drop(Drop::NoMemory);
            return false;
        };
        opening.iss = later_isn(secrets.isn(now, &tuple), old);
        let connection = Connection {
            bound: true,
            steered: old.is_some(),
            congestion,
            ..new_connection(owner, tuple, opening, host.core_for(&tuple))
        };
        let Some(id) = self.table.insert(connection) else {
            host.drop_child(owner);
            return false;
        };
        if let Some(listener) = self.listeners.of(parent) {
            listener.half_open.insert(id);
        }
        self.send_syn(now, id, host);
        true
    }

    /// Asks whether a peer may be heard; answers it if it shall get an RST. `Some` = it may, with this congestion control if that is
    /// not to be the listener's.
    pub(super) fn admitted(
        &mut self,
        now: Micros,
        listener: Owner,
        arrival: &Arrival,
        host: &mut dyn Host,
    ) -> Option<Option<Algorithm>> {
        let admission = host.admit(listener, &arrival.tuple);
        if let Admission::Yes(congestion) = admission {
            return Some(Algorithm::from_id(congestion));
        }
        self.counters.drop(Drop::Forbidden);
        if admission == Admission::Refuse {
            self.refuse(now, arrival, host);
        }
        None
    }

    /// A handshake that has not begun, with what configuration and application want.
    pub(super) fn new_opening(
        &self,
        now: Micros,
        listener: Option<Owner>,
        remote: IpAddr,
        ring_bytes: (u32, u32),
        options: SocketOptions,
    ) -> Opening {
        let mut opening = Opening::new(now, listener, remote, ring_bytes, self.config.timestamps);
        opening.sack = self.config.sack;
        if !self.config.window_scaling {
            opening.our_shift = None;
        }
        (opening.options, opening.mss_clamp) = (options, self.config.mss_clamp);
        if listener.is_some() {
            opening.dctcp = self.inherited_congestion(listener).needs_ecn();
            opening.ecn = self.config.ecn != 0 || opening.dctcp;
        }
        opening
    }

    /// The way to whom a segment is from; `None` = dropped, there is none.
    pub(super) fn way_back(&mut self, arrival: &Arrival, host: &mut dyn Host) -> Option<Path> {
        match host.route(arrival.tuple.remote, Some(arrival.tuple.local)) {
            Route::Via { link, mtu, .. } => Some(Path { link, mtu }),
            Route::Unreachable(_) => {
                self.counters.drop(Drop::NotLocal);
                None
            }
            // The answer needs no ARP: it goes back where the segment came from. `retry_routes` corrects it later.
            Route::Resolving | Route::NotOurs => {
                Some(Path { link: arrival.way_back(), mtu: self.config.default_mtu_bytes })
            }
        }
    }
}

/// Can this be one host's address (MUST-46)?
fn is_unicast(addr: IpAddr) -> bool {
    let broadcast = addr == IpAddr::V4(Ipv4Addr::BROADCAST);
    !(addr.is_unspecified() || addr.is_multicast() || broadcast)
}

/// 0.0.0.0 or ::, as fits a peer.
pub(super) fn unspecified(remote: IpAddr) -> IpAddr {
    if remote.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() }
}

/// An address that is not 0.0.0.0 or ::.
fn specified(addr: IpAddr) -> Option<IpAddr> {
    (!addr.is_unspecified()).then_some(addr)
}

/// Keeps an initial sequence number clear of what an earlier incarnation of the connection used (as Linux: 65,535 + 2 beyond).
fn later_isn(isn: Seq, old: Option<Seq>) -> Seq {
    match old {
        Some(old) if !isn.after(old) => old.add(65_537),
        _ => isn,
    }
}

/// A connection that nobody knows of yet.
pub(super) fn new_connection(owner: Owner, tuple: FourTuple, opening: Opening, core: usize) -> Connection {
    let phase = Phase::Opening(Box::new(opening));
    Connection { owner, tuple, bound: false, steered: false, core, congestion: None, timer: Stamp::NONE, phase }
}
