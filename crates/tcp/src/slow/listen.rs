//! Listening sockets and their half-open children.

use super::SlowPath;
use super::congestion::Algorithm;
use super::errno::EADDRINUSE;
use super::host::Host;
use super::negotiate::Stage;
use crate::flow::{FlowId, Owner, SocketOptions};
use crate::time::Micros;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::Ipv4Addr;

/// Fewest half-open connections that a listener may have, whatever its backlog (as Linux).
const MIN_BACKLOG: u32 = 8;

/// A listening socket.
#[derive(Debug)]
pub(super) struct Listener {
    /// Whose it is.
    pub owner: Owner,
    /// Most half-open children.
    pub limit: usize,
    /// Half-open children.
    pub half_open: BTreeSet<FlowId>,
    /// Its children's congestion control, if it has chosen one.
    pub congestion: Option<Algorithm>,
    /// What children inherit.
    pub options: SocketOptions,
}

/// All listening sockets. Ordered, so that lists of them are the same in every run.
#[derive(Debug, Default)]
pub(super) struct Listeners {
    by_address: BTreeMap<(u16, Ipv4Addr), Listener>,
    by_owner: HashMap<Owner, (u16, Ipv4Addr)>,
}

impl Listeners {
    /// The listener for a destination: one on this very address before one on 0.0.0.0.
    pub(super) fn find(&self, addr: Ipv4Addr, port: u16) -> Option<&Listener> {
        self.by_address.get(&(port, addr)).or_else(|| self.by_address.get(&(port, Ipv4Addr::UNSPECIFIED)))
    }
    /// Is there one of exactly this address?
    pub(super) fn has(&self, addr: Ipv4Addr, port: u16) -> bool {
        self.by_address.contains_key(&(port, addr))
    }
    /// By owner.
    pub(super) fn of(&mut self, owner: Owner) -> Option<&mut Listener> {
        self.by_address.get_mut(self.by_owner.get(&owner)?)
    }
    /// A listener's choice of congestion control.
    pub(super) fn congestion(&self, owner: Owner) -> Option<Algorithm> {
        self.by_address.get(self.by_owner.get(&owner)?)?.congestion
    }
    /// All, with address and port.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Ipv4Addr, u16, &Listener)> {
        self.by_address.iter().map(|(&(port, addr), listener)| (addr, port, listener))
    }
    fn insert(&mut self, addr: Ipv4Addr, port: u16, listener: Listener) {
        self.by_owner.insert(listener.owner, (port, addr));
        self.by_address.insert((port, addr), listener);
    }
    fn remove(&mut self, owner: Owner) -> Option<(Ipv4Addr, u16, Listener)> {
        let key = self.by_owner.remove(&owner)?;
        Some((key.1, key.0, self.by_address.remove(&key)?))
    }
}

impl SlowPath {
    /// Starts to listen, or, for an owner that listens there already, changes its backlog (as `listen` called twice).
    /// Err = errno (positive). The host steers this address and port to us before this returns.
    pub fn listen(
        &mut self,
        _now: Micros,
        owner: Owner,
        addr: Ipv4Addr,
        port: u16,
        backlog: u32,
        host: &mut dyn Host,
    ) -> Result<(), i32> {
        let limit = backlog.min(self.config.somaxconn).max(MIN_BACKLOG) as usize;
        if let Some(&there) = self.listeners.by_owner.get(&owner) {
            let listener = self.listeners.by_address.get_mut(&there).filter(|_| there == (port, addr));
            listener.ok_or(EADDRINUSE)?.limit = limit;
            return Ok(());
        }
        if self.listeners.has(addr, port) || self.table.by_owner(owner).is_some() {
            return Err(EADDRINUSE);
        }
        let options = self.take_early_options(owner);
        self.listeners.insert(
            addr,
            port,
            Listener {
                owner,
                limit,
                half_open: BTreeSet::new(),
                congestion: Algorithm::from_id(options.congestion),
                options,
            },
        );
        host.steer_listener(addr, port, true);
        Ok(())
    }

    /// Ends a listener, if `owner` is one: its half-open children are reset. Those it was given already are the application's.
    pub(super) fn close_listener(&mut self, now: Micros, owner: Owner, host: &mut dyn Host) -> bool {
        let Some((addr, port, listener)) = self.listeners.remove(owner) else { return false };
        for child in listener.half_open {
            self.reset_opening(now, child, host);
            self.discard_opening(child, host);
        }
        host.steer_listener(addr, port, false);
        host.released(owner, None);
        true
    }

    /// Ends a connection that is not installed: silently in SYN-SENT (RFC 9293 §3.10.4), with RST after that.
    pub(super) fn close_opening(&mut self, now: Micros, id: FlowId, host: &mut dyn Host) {
        if self.table.opening(id).is_some_and(|opening| opening.stage == Stage::SynReceived) {
            self.reset_opening(now, id, host);
        }
        self.discard_opening(id, host);
    }
}
