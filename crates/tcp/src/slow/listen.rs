//! Listening sockets and their half-open children.

use super::FourTuple;
use super::SlowPath;
use super::congestion::Algorithm;
use super::ending::Ending;
use super::errno::EADDRINUSE;
use super::host::Host;
use super::opening::OpeningState;
use crate::flow::{FlowId, Owner, SocketOptions};
use crate::time::Micros;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Fewest half-open connections that a listener may have, whatever its backlog (as Linux).
const MIN_BACKLOG: u32 = 8;

const ANY_V4: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
const ANY_V6: IpAddr = IpAddr::V6(Ipv6Addr::UNSPECIFIED);

/// A listening socket.
#[derive(Debug)]
pub(super) struct Listener {
    /// Its owner.
    pub owner: Owner,
    /// Takes no IPv4 connections (`IPV6_V6ONLY`). Applies to :: only.
    pub v6only: bool,
    /// Most half-open children.
    pub limit: usize,
    /// Half-open children.
    pub half_open: BTreeSet<FlowId>,
    /// The congestion control of its children, if set.
    pub congestion: Option<Algorithm>,
    /// When a SYN was last answered with a cookie.
    pub overflow: Option<Micros>,
    /// When a valid cookie last came back while the accept queue was full.
    pub turned_away: Option<Micros>,
    /// The options that children inherit.
    pub options: SocketOptions,
}

/// All listening sockets. They are ordered, so that lists of them are the same in every run.
#[derive(Debug, Default)]
pub(super) struct Listeners {
    /// Several listeners on an address are a group of `SO_REUSEPORT`.
    by_address: BTreeMap<(u16, IpAddr), Vec<Listener>>,
    by_owner: HashMap<Owner, (u16, IpAddr)>,
}

impl Listeners {
    /// The listener for a destination (MUST-43). One on exactly this address precedes one on 0.0.0.0 or ::. For IPv4
    /// the last choice is one on :: that serves both families (RFC 3493 §5.3).
    pub(super) fn find(&self, addr: IpAddr, port: u16) -> Option<&Listener> {
        self.group(addr, port).first()
    }
    /// The listener of a group for a peer's connections. It is always the same one while the group does not change.
    pub(super) fn find_for(&self, tuple: &FourTuple) -> Option<&Listener> {
        let group = self.group(tuple.local, tuple.local_port);
        group.get(share_of(tuple, group.len()))
    }
    /// The listeners that may have got a SYN of this tuple: first [`Listeners::find_for`], then the others of its group.
    pub(super) fn candidates(&self, tuple: &FourTuple) -> impl Iterator<Item = &Listener> {
        let group = self.group(tuple.local, tuple.local_port);
        let (before, from) = group.split_at(share_of(tuple, group.len()).min(group.len()));
        from.iter().chain(before)
    }
    fn group(&self, addr: IpAddr, port: u16) -> &[Listener] {
        let on = |addr| self.by_address.get(&(port, addr));
        let dual = |group: &&Vec<Listener>| group.iter().any(|listener| !listener.v6only);
        let group = match addr {
            IpAddr::V4(_) => on(addr).or_else(|| on(ANY_V4)).or_else(|| on(ANY_V6).filter(dual)),
            IpAddr::V6(_) => on(addr).or_else(|| on(ANY_V6)),
        };
        group.map_or(&[], Vec::as_slice)
    }
    /// The listeners on exactly this address.
    pub(super) fn at(&self, addr: IpAddr, port: u16) -> &[Listener] {
        self.by_address.get(&(port, addr)).map_or(&[], Vec::as_slice)
    }
    /// Does a listener conflict: on exactly this address, or on :: against 0.0.0.0? Listeners that all share the port
    /// do not. Connections never conflict, whatever their state (RFC 9293 §3.9.1.1 MUST-42).
    fn conflict(&self, addr: IpAddr, port: u16, v6only: bool, shared: bool) -> bool {
        let on = |addr| self.by_address.get(&(port, addr)).into_iter().flatten();
        let alone = |listener: &Listener| !(shared && listener.options.reuse_port && listener.v6only == v6only);
        on(addr).any(alone)
            || addr == ANY_V6 && !v6only && on(ANY_V4).next().is_some()
            || addr == ANY_V4 && on(ANY_V6).any(|listener| !listener.v6only)
    }
    /// By owner.
    pub(super) fn of(&mut self, owner: Owner) -> Option<&mut Listener> {
        let group = self.by_address.get_mut(self.by_owner.get(&owner)?)?;
        group.iter_mut().find(|listener| listener.owner == owner)
    }
    /// The same, to be read.
    pub(super) fn get(&self, owner: Owner) -> Option<&Listener> {
        self.by_address.get(self.by_owner.get(&owner)?)?.iter().find(|listener| listener.owner == owner)
    }
    /// The congestion control set on a listener.
    pub(super) fn congestion(&self, owner: Owner) -> Option<Algorithm> {
        let group = self.by_address.get(self.by_owner.get(&owner)?)?;
        group.iter().find(|listener| listener.owner == owner)?.congestion
    }
    /// All, with address and port.
    pub(super) fn iter(&self) -> impl Iterator<Item = (IpAddr, u16, &Listener)> {
        let all = self.by_address.iter();
        all.flat_map(|(&(port, addr), group)| group.iter().map(move |listener| (addr, port, listener)))
    }
    fn insert(&mut self, addr: IpAddr, port: u16, listener: Listener) {
        self.by_owner.insert(listener.owner, (port, addr));
        self.by_address.entry((port, addr)).or_default().push(listener);
    }
    /// Removes a listener. Returns it, and whether it was the last of its group.
    fn remove(&mut self, owner: Owner) -> Option<(IpAddr, u16, Listener, bool)> {
        let key = self.by_owner.remove(&owner)?;
        let group = self.by_address.get_mut(&key)?;
        let listener = group.remove(group.iter().position(|listener| listener.owner == owner)?);
        let last = group.is_empty();
        if last {
            self.by_address.remove(&key);
        }
        Some((key.1, key.0, listener, last))
    }
}

/// The index of the listener of a group of `count` for a peer's connections. Every bit of address and port affects
/// every bit of the result, so that connections from one address are spread, too.
fn share_of(tuple: &FourTuple, count: usize) -> usize {
    let bits = |addr: IpAddr| match addr {
        IpAddr::V4(addr) => u64::from(addr.to_bits()),
        IpAddr::V6(addr) => (addr.to_bits() ^ addr.to_bits() >> 64) as u64,
    };
    let mix = |hash: u64, word: u64| {
        let product = (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        product ^ product >> 32
    };
    let ports = u64::from(tuple.remote_port) << 16 | u64::from(tuple.local_port);
    let hash = [bits(tuple.remote), bits(tuple.local), ports].into_iter().fold(0, mix);
    (mix(hash, 0) >> 32) as usize % count.max(1)
}

impl SlowPath {
    /// Starts to listen. If the owner already listens there, changes its backlog, as a second `listen` does.
    /// A listener on :: takes IPv4 connections, too, unless `v6only`. Err = errno (positive).
    /// The host steers this address and port to us before this returns.
    #[allow(clippy::too_many_arguments)]
    pub fn listen(
        &mut self,
        _now: Micros,
        owner: Owner,
        addr: IpAddr,
        port: u16,
        v6only: bool,
        backlog: u32,
        host: &mut dyn Host,
    ) -> Result<(), i32> {
        let limit = backlog.min(self.config.somaxconn).max(MIN_BACKLOG) as usize;
        if let Some(&there) = self.listeners.by_owner.get(&owner) {
            let listener = self.listeners.of(owner).filter(|_| there == (port, addr));
            listener.ok_or(EADDRINUSE)?.limit = limit;
            return Ok(());
        }
        if self.table.by_owner(owner).is_some() {
            return Err(EADDRINUSE);
        }
        let options = self.take_early_options(owner);
        if !host.names_listeners() && self.listeners.conflict(addr, port, v6only, options.reuse_port) {
            return Err(EADDRINUSE);
        }
        // RFC 9293 §3.9.1.1: this makes a new record and touches no other (MUST-41). The address may be unspecified
        // (MUST-43).
        self.listeners.insert(
            addr,
            port,
            Listener {
                owner,
                v6only,
                limit,
                half_open: BTreeSet::new(),
                overflow: None,
                turned_away: None,
                congestion: Algorithm::from_id(options.congestion),
                options,
            },
        );
        if self.listeners.by_address.get(&(port, addr)).is_some_and(|group| group.len() == 1) {
            steer(addr, port, v6only, true, host);
        }
        Ok(())
    }

    /// Ends a listener, if `owner` is one, and resets its half-open children. Accepted ones belong to the application.
    pub(super) fn close_listener(&mut self, now: Micros, owner: Owner, host: &mut dyn Host) -> bool {
        let Some((addr, port, listener, last)) = self.listeners.remove(owner) else { return false };
        for child in listener.half_open.iter().copied() {
            self.reset_opening(now, child, host);
            self.discard_opening(child, host);
        }
        if last {
            steer(addr, port, listener.v6only, false, host);
        }
        host.released(owner, None);
        true
    }

    /// Ends a connection that is not installed: silently in SYN-SENT (RFC 9293 §3.10.4), with RST after that.
    pub(super) fn close_opening(&mut self, now: Micros, id: FlowId, host: &mut dyn Host) {
        if self.table.opening(id).is_some_and(|opening| opening.state == OpeningState::SynReceived) {
            self.reset_opening(now, id, host);
        }
        self.not_opened(id, Ending::Abandoned, host);
        self.discard_opening(id, host);
    }
}

/// Steers a listener. One that serves both families is two listeners for the host.
fn steer(addr: IpAddr, port: u16, v6only: bool, on: bool, host: &mut dyn Host) {
    if host.names_listeners() {
        return;
    }
    host.steer_listener(addr, port, on);
    if addr == ANY_V6 && !v6only {
        host.steer_listener(ANY_V4, port, on);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computed by another program: a multiplication per word, whose upper half comes into its lower one.
    #[test]
    fn a_peers_share_follows_from_both_addresses_and_ports() {
        let address = |text: &str| text.parse::<IpAddr>().expect("an address");
        let v4 =
            FourTuple { local: address("10.0.0.1"), local_port: 80, remote: address("10.0.0.2"), remote_port: 4000 };
        let v6 = FourTuple {
            local: address("fd00::1"),
            local_port: 443,
            remote: address("fd00:1:2:3:4:5:6:7"),
            remote_port: 65_535,
        };
        for (count, shares) in [(0, [0, 0]), (1, [0, 0]), (2, [0, 1]), (7, [6, 6]), (1000, [218, 725])] {
            assert_eq!([v4, v6].map(|tuple| share_of(&tuple, count)), shares, "of {count}");
        }
    }
}
