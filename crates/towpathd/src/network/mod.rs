//! Routes and neighbours of destinations. The kernel is asked per connection, and its answers are remembered until
//! something changes.
//!
//! The kernel decides, so policy routing, source selection and path MTU are those of the host. No copy of its tables is
//! kept.

mod caretaker;
mod device;
mod first_syns;
pub mod held_ports;
mod listing;
pub mod matching;
pub mod netlink;
mod peers;
pub mod reserved;
pub mod segments;
pub mod sock_diag;
pub mod steer;
mod watch;

use crate::follow::Reopened;
use crate::served::Interface;
use device::Served;
pub use device::device;
use held_ports::HeldPorts;
use netlink::Netlink;
use rustix::fd::{BorrowedFd, OwnedFd};
use sock_diag::SockDiag;
use std::collections::{HashMap, HashSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
pub use steer::Steer;
use towpath_fast::{FirstSyn, KernelListener, Network, NewPort, SynCounts, SynsWait, TakenSyn};
use towpath_ports::attachment::NOWHERE;
use towpath_ports::forward::Splice;
use towpath_ports::listening::Listening;
use towpath_runtime::PeerRule;
use towpath_runtime::log_throttle::LogThrottle;
use towpath_service::config::FirewallSetting;
use towpath_service::port_proof;
use towpath_tcp::flow::{FourTuple, Link, PortId};
use towpath_tcp::slow::{Route, Steered};
pub use watch::Watcher;

/// Of questions that the kernel does not answer: clients decide how many there are.
static LINES: LogThrottle = LogThrottle::new();

/// The loopback's port number.
const LOOPBACK: PortId = PortId(0);
/// Most routes that are remembered. One more and all are forgotten.
const MAX_REMEMBERED: usize = 4096;

/// The host's addresses, shared by the watching thread and the slow path.
#[derive(Default)]
pub struct Known {
    /// Counts changes.
    changes: AtomicU64,
    addresses: RwLock<HashSet<IpAddr>>,
}

impl Known {
    fn holds(&self, address: IpAddr) -> bool {
        self.addresses.read().unwrap_or_else(PoisonError::into_inner).contains(&address)
    }

    fn refresh(&self, netlink: &mut Netlink) -> io::Result<()> {
        let addresses = netlink.addresses()?.into_iter().collect();
        *self.addresses.write().unwrap_or_else(PoisonError::into_inner) = addresses;
        self.changes.fetch_add(1, Ordering::Release);
        Ok(())
    }
}

/// Routes, neighbours and steering of this host.
pub struct HostNetwork {
    /// The network namespace of this thread, by the kernel's cookie. Kernels before 5.14 have none.
    namespace: Option<u64>,
    known: Arc<Known>,
    netlink: Netlink,
    /// Asks for the kernel's connections and listeners.
    diag: SockDiag,
    /// In the order of their places.
    served: Vec<Served>,
    steer: Option<Box<dyn Steer>>,
    /// The ports of outgoing connections.
    ports: Option<HeldPorts>,
    /// The filter for listening sockets, where no interface is served.
    filter: Option<Listening>,
    seen: u64,
    remembered: HashMap<(IpAddr, Option<IpAddr>), Route>,
    /// Of an interface that was made anew.
    new_ports: Vec<NewPort>,
    loopback_mtu: u16,
}

impl HostNetwork {
    /// Without an interface only this host's own addresses can be reached.
    pub fn new(loopback_mtu: u16) -> io::Result<Self> {
        let mut netlink = Netlink::connect()?;
        let known = Arc::new(Known::default());
        known.refresh(&mut netlink)?;
        let diag = SockDiag::connect()?;
        let (namespace, remembered, new_ports) = (port_proof::own_namespace(), HashMap::new(), Vec::new());
        Ok(Self {
            namespace,
            known,
            netlink,
            diag,
            served: Vec::new(),
            steer: None,
            ports: None,
            filter: None,
            seen: 0,
            remembered,
            new_ports,
            loopback_mtu,
        })
    }

    /// Without an interface, with this filter for listening sockets.
    pub fn with_filter(loopback_mtu: u16, filter: Option<Listening>) -> io::Result<Self> {
        let mut network = Self::new(loopback_mtu)?;
        network.filter = filter;
        Ok(network)
    }

    /// With these interfaces.
    pub fn serving(
        loopback_mtu: u16,
        interfaces: &[Interface],
        steer: Option<Box<dyn Steer>>,
        ports: HeldPorts,
        firewall: FirewallSetting,
    ) -> io::Result<Self> {
        let mut network = Self::new(loopback_mtu)?;
        (network.steer, network.ports) = (steer, Some(ports));
        for opened in interfaces {
            let mut served = Served::new(&mut network.netlink, opened, firewall)?;
            if let Some(steer) = network.steer.as_mut().filter(|_| opened.index != NOWHERE) {
                served.take_syns(&mut **steer);
            }
            network.served.push(served);
        }
        network.tell_addresses();
        Ok(network)
    }

    /// The state for a [`Watcher`].
    pub fn known(&self) -> Arc<Known> {
        self.known.clone()
    }

    fn loopback(&self, remote: IpAddr, local: Option<IpAddr>) -> Route {
        let link = Link { port: LOOPBACK, source: [0; 6], destination: [0; 6], vlan: None };
        Route::Via { link, source: local.unwrap_or(remote), mtu: self.loopback_mtu }
    }

    fn listening(&mut self) -> Option<&mut Listening> {
        match &mut self.steer {
            Some(steer) => steer.listening(),
            None => self.filter.as_mut(),
        }
    }

    /// The interface of this port.
    fn of_port(&self, port: PortId) -> Option<&Served> {
        self.served.iter().find(|served| served.port == port)
    }

    /// The steering knows this host's addresses. It knows none while an interface is a port of another device.
    fn tell_addresses(&mut self) {
        let Some(steer) = &mut self.steer else { return };
        if self.served.iter().any(Served::is_port) {
            return steer.know(None);
        }
        let all = self.known.addresses.read().unwrap_or_else(PoisonError::into_inner).clone();
        // An address of a device that is down, or of another routing domain, is not delivered to.
        let is_local = |address: &IpAddr| self.netlink.route(*address, None).is_ok_and(|route| route.local);
        steer.know(Some(&all.into_iter().filter(is_local).collect()));
    }

    /// Forgets remembered routes if something has changed. True if it has.
    fn catch_up(&mut self) -> bool {
        let changes = self.known.changes.load(Ordering::Acquire);
        if changes == self.seen {
            return false;
        }
        self.seen = changes;
        self.remembered.clear();
        let Some(steer) = &mut self.steer else { return true };
        for served in &mut self.served {
            if let Some(Reopened { description, mtu, ports }) = steer.reopened(served.place) {
                served.moved_to(description.index, mtu);
                self.new_ports.extend(ports);
            }
        }
        steer.look_for_queues();
        for served in &mut self.served {
            served.look(&mut self.netlink, &mut **steer);
        }
        self.tell_addresses();
        true
    }
}

impl Network for HostNetwork {
    fn route(&mut self, remote: IpAddr, local: Option<IpAddr>) -> Route {
        if !is_unicast(remote) {
            return Route::NotOurs;
        }
        if self.is_local(remote) {
            return self.loopback(remote, local);
        }
        self.catch_up();
        if self.served.is_empty() {
            return Route::NotOurs;
        }
        if let Some(route) = self.remembered.get(&(remote, local)) {
            return *route;
        }
        // Other interfaces and errors are the kernel's.
        let Some(found) = self.netlink.route(remote, local).ok().filter(|found| !found.local) else {
            return Route::NotOurs;
        };
        let here = |served: &&mut Served| served.index == found.interface && served.index != NOWHERE;
        let Some(served) = self.served.iter_mut().find(here) else {
            return Route::NotOurs;
        };
        let route = served.route(&mut self.netlink, &found, remote, local);
        if matches!(route, Route::Via { .. }) {
            if self.remembered.len() >= MAX_REMEMBERED {
                self.remembered.clear();
            }
            self.remembered.insert((remote, local), route);
        }
        route
    }

    fn is_local(&self, addr: IpAddr) -> bool {
        addr.is_loopback() || self.known.holds(addr)
    }

    fn steer(&mut self, tuple: &FourTuple, steered: Steered) {
        if let Some(steer) = &mut self.steer {
            steer.flow(tuple, steered);
        }
    }

    fn forward(&mut self, tuple: &FourTuple, splice: &Splice) {
        if let Some(steer) = &mut self.steer {
            steer.forward(tuple, splice);
        }
    }

    fn interface(&self, port: PortId) -> Option<u32> {
        self.of_port(port).map(|served| served.index).filter(|index| *index != NOWHERE)
    }

    fn end_forwarding(&mut self, tuple: &FourTuple) -> Option<Splice> {
        self.steer.as_mut()?.end_forwarding(tuple)
    }

    fn forwarded(&self, tuple: &FourTuple) -> Option<Splice> {
        self.steer.as_ref()?.forwarded(tuple)
    }

    fn namespace(&self) -> Option<u64> {
        self.namespace
    }

    fn judges_first_syns(&self) -> bool {
        self.served.iter().any(|served| served.judge.is_kernel())
    }

    fn send_first_syn(&mut self, tuple: &FourTuple, port: PortId, frame: &[u8]) -> FirstSyn {
        self.of_port(port).map_or(FirstSyn::ByPort, |served| served.judge.send(tuple, frame))
    }

    fn listens_in_kernel(&self) -> bool {
        true
    }

    fn finds_listeners(&self) -> bool {
        self.served.is_empty() || self.served.iter().any(|served| !served.has_device())
    }

    fn listener_filter(&mut self) -> io::Result<Option<OwnedFd>> {
        self.listening().map(|listening| listening.filter().try_clone_to_owned()).transpose()
    }

    fn take_syns(&mut self, cookie: u64, on: bool) -> io::Result<()> {
        self.listening().map_or(Ok(()), |listening| listening.take(cookie, on))
    }

    fn judge_peers(&mut self, cookie: u64, rules: &[PeerRule]) -> io::Result<()> {
        match self.listening() {
            Some(listening) => peers::judge(listening, cookie, rules),
            None if rules.is_empty() => Ok(()),
            None => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    fn refused_peers(&mut self) -> Vec<(u64, u64)> {
        self.listening().map(|listening| listening.peers().counted()).unwrap_or_default()
    }

    fn refused_at(&mut self, cookie: u64) -> u64 {
        self.listening().map_or(0, |listening| listening.peers().refused_at(cookie))
    }

    fn next_syn(&mut self) -> Option<TakenSyn> {
        let (place, syn) = self.steer.as_mut()?.listening()?.next_syn()?;
        let served = self.served.get(place as usize)?;
        Some(TakenSyn { cookie: syn.cookie, queue: syn.queue, port: served.port, frame: syn.frame(served.vlan) })
    }

    fn leave_syn(&mut self, tuple: &FourTuple) {
        let (local, remote) = (tuple.local_end(), tuple.remote_end());
        if let Some(listening) = self.listening()
            && let Err(error) = listening.leave(local, remote)
            && LINES.allows()
        {
            tracing::warn!(%error, "a SYN is left to nobody");
        }
    }

    fn syns(&mut self) -> Option<BorrowedFd<'_>> {
        self.listening().map(|listening| listening.readable())
    }

    fn syns_wait(&mut self) -> io::Result<SynsWait> {
        let Some(listening) = self.listening() else { return Ok(Box::new(|| false)) };
        let waiting = listening.waiting()?;
        Ok(Box::new(move || waiting.any()))
    }

    fn next_stray(&mut self) -> Option<(PortId, Box<[u8]>)> {
        let (place, frame) = self.steer.as_mut()?.next_stray()?;
        Some((self.served.get(place as usize)?.port, frame))
    }

    fn strays(&mut self) -> Option<BorrowedFd<'_>> {
        self.steer.as_mut()?.strays()
    }

    fn beat(&mut self) {
        if let Some(listening) = self.listening() {
            listening.beat();
        }
    }

    fn syn_counts(&self) -> SynCounts {
        self.steer.as_ref().map(|steer| steer.syn_counts()).unwrap_or_default()
    }

    fn shares_ports_with_kernel(&self) -> bool {
        true
    }

    fn kernel_has(&mut self, tuple: &FourTuple) -> bool {
        // Within this host the question for the listener tells.
        if self.is_local(tuple.remote) {
            return false;
        }
        let Self { served, diag, .. } = self;
        let mut there = served.iter().filter(|served| served.index != NOWHERE);
        there.any(|served| diag.has(tuple, served.index).unwrap_or_else(|error| cannot_ask(&error, true)))
    }

    fn listener_of(&mut self, tuple: &FourTuple) -> KernelListener {
        self.diag.listener_of(tuple).unwrap_or_else(|error| cannot_ask(&error, KernelListener::None))
    }

    fn listener_by(&mut self, tuple: &FourTuple, interface: u32) -> KernelListener {
        self.diag.listener_by(tuple, interface).unwrap_or_else(|error| cannot_ask(&error, KernelListener::None))
    }

    fn is_listening(&mut self, cookie: u64, addr: IpAddr, port: u16) -> bool {
        self.diag.is_listening(cookie, addr, port).unwrap_or_else(|error| cannot_ask(&error, true))
    }

    fn more_ports(&mut self) -> Vec<u16> {
        self.ports.as_mut().map(HeldPorts::more).unwrap_or_default()
    }

    fn give_back_ports(&mut self, ports: Vec<u16>) {
        if let Some(held) = &self.ports {
            held.give_back(ports);
        }
    }

    fn new_ports(&mut self) -> Vec<NewPort> {
        std::mem::take(&mut self.new_ports)
    }

    fn changed(&mut self) -> bool {
        self.catch_up()
    }
}

/// The answer when the kernel does not give one.
fn cannot_ask<T>(error: &io::Error, answer: T) -> T {
    if LINES.allows() {
        tracing::warn!(%error, "cannot ask the kernel for its sockets");
    }
    answer
}

fn is_unicast(addr: IpAddr) -> bool {
    let broadcast = addr == IpAddr::V4(Ipv4Addr::BROADCAST);
    !(addr.is_unspecified() || addr.is_multicast() || broadcast)
}

impl Drop for HostNetwork {
    fn drop(&mut self) {
        for served in &self.served {
            served.release(&mut self.netlink);
        }
    }
}

#[cfg(test)]
mod tests;
