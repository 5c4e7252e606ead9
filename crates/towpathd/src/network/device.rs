//! A served interface as the kernel's tables have it: its device, routes over it, and neighbours.

use super::first_syns::Judge;
use super::netlink::{KernelRoute, LinkInfo, Neighbour, Netlink};
use super::steer::Steer;
use crate::served::Interface;
use std::collections::{HashMap, HashSet};
use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};
use towpath_broker::Change;
use towpath_ports::attachment::NOWHERE;
use towpath_runtime::log_throttle::LogThrottle;
use towpath_service::config::FirewallSetting;
use towpath_service::privileged;
use towpath_tcp::flow::{Link, PortId};
use towpath_tcp::slow::Route;

/// Of neighbours that are not resolved: clients decide how many they ask for.
static LINES: LogThrottle = LogThrottle::new();

/// A neighbour entry that fails within this time after our question has not answered it.
const ASKED_WITHIN: Duration = Duration::from_secs(10);

/// See the module.
pub struct Served {
    /// Its place in the steering.
    pub place: u32,
    /// Its port in each flow group.
    pub port: PortId,
    /// Its index.
    interface: u32,
    /// The VLAN tag of its frames.
    pub vlan: Option<u16>,
    /// Index of the device whose routes and neighbours apply: the kernel's VLAN device if there is one, or the
    /// interface.
    pub index: u32,
    link: LinkInfo,
    /// The largest packet that the port takes. Interface and routes may allow less.
    port_mtu: u32,
    /// Who judges first SYNs that leave.
    pub judge: Judge,
    /// Neighbours that the kernel keeps resolved for us.
    managed: HashSet<IpAddr>,
    /// Neighbours that are not resolved yet, and when they were asked for.
    asked: HashMap<IpAddr, Instant>,
}

/// Index of the device whose routes and neighbours apply to a VLAN of an interface.
pub fn device(netlink: &mut Netlink, port: u32, vlan: Option<u16>) -> io::Result<u32> {
    let found = vlan.map(|vlan| netlink.vlan_device(port, vlan)).transpose()?;
    Ok(found.flatten().unwrap_or(port))
}

/// Changes the kernel's entry for a neighbour; the broker does it, if there is one.
fn change(netlink: &mut Netlink, index: u32, hop: IpAddr, change: Change) -> io::Result<()> {
    match (privileged::broker(), change) {
        (Some(broker), change) => broker.neighbour(index, hop, change),
        (None, Change::Resolve) => netlink.resolve(index, hop),
        (None, change) => netlink.manage(index, hop, change == Change::Manage),
    }
}

impl Served {
    /// One that was opened.
    pub fn new(netlink: &mut Netlink, opened: &Interface, firewall: FirewallSetting) -> io::Result<Self> {
        let vlan = opened.vlan;
        let index = device(netlink, opened.index, vlan)?;
        if let Some(vlan) = vlan.filter(|_| index == opened.index) {
            tracing::warn!(
                vlan,
                "the kernel has no device for this VLAN: routes are the interface's, its neighbours must be permanent, \
                 and no firewall of the kernel sees its packets"
            );
        }
        Ok(Self {
            place: opened.number,
            port: opened.port,
            interface: opened.index,
            vlan,
            index,
            // One that has gone is followed: this is asked again when it is back.
            link: netlink.link(index).unwrap_or_default(),
            port_mtu: opened.mtu,
            judge: Judge::new(firewall, opened.number),
            managed: HashSet::new(),
            asked: HashMap::new(),
        })
    }

    /// It was opened again, with this index.
    pub fn moved_to(&mut self, interface: u32, port_mtu: u32) {
        (self.interface, self.port_mtu) = (interface, port_mtu);
    }

    /// Something may have changed.
    pub fn look(&mut self, netlink: &mut Netlink, steer: &mut dyn Steer) {
        if self.interface != NOWHERE
            && let Ok(index) = device(netlink, self.interface, self.vlan)
            && let Ok(link) = netlink.link(index)
        {
            if std::mem::replace(&mut self.index, index) != index {
                self.managed.clear();
            }
            self.link = link;
            self.take_syns(steer);
        }
    }

    /// The kernel need not keep neighbours resolved for us any more.
    pub fn release(&self, netlink: &mut Netlink) {
        for hop in &self.managed {
            // The entry itself stays, like any that the host has used.
            let _ = change(netlink, self.index, *hop, Change::Release);
        }
    }

    /// Has the kernel a device for the frames that we serve? Otherwise it ignores them, and listeners are found by their
    /// addresses.
    pub fn has_device(&self) -> bool {
        self.vlan.is_none() || self.index != self.interface
    }

    /// Is it a port of another device? The kernel chooses listeners for the other one then.
    pub fn is_port(&self) -> bool {
        self.link.is_port
    }

    /// Takes SYNs of that device, and sends them over it.
    pub fn take_syns(&mut self, steer: &mut dyn Steer) {
        let device = self.has_device().then_some(self.index);
        self.judge.follow(device);
        if let Err(error) = steer.serve(self.place, device) {
            tracing::warn!(%error, "the listeners of the interface are left to the kernel");
        }
    }

    /// The kernel has found this route over it.
    pub fn route(
        &mut self,
        netlink: &mut Netlink,
        found: &KernelRoute,
        remote: IpAddr,
        local: Option<IpAddr>,
    ) -> Route {
        let Some(source) = local.or(found.source) else { return Route::NotOurs };
        let hop = found.gateway.unwrap_or(remote);
        match self.neighbour(netlink, hop) {
            Ok(mac) => {
                let link = Link { port: self.port, source: self.link.mac, destination: mac, vlan: self.vlan };
                let mtu = found.mtu.unwrap_or(u32::MAX).min(self.link.mtu).min(self.port_mtu);
                Route::Via { link, source, mtu: u16::try_from(mtu).unwrap_or(u16::MAX) }
            }
            Err(route) => route,
        }
    }

    /// The MAC address of a next hop, or the answer without one.
    fn neighbour(&mut self, netlink: &mut Netlink, hop: IpAddr) -> Result<[u8; 6], Route> {
        let asked = self.asked.get(&hop).is_some_and(|at| at.elapsed() < ASKED_WITHIN);
        match netlink.neighbour(self.index, hop) {
            Ok(Neighbour::Known(mac)) => {
                self.asked.remove(&hop);
                // Kernels before 5.16 refuse. There the entry is asked for again when it has gone.
                if self.managed.insert(hop) && change(netlink, self.index, hop, Change::Manage).is_err() {
                    self.managed.remove(&hop);
                }
                Ok(mac)
            }
            Ok(Neighbour::Failed) if asked => {
                self.asked.remove(&hop);
                Err(Route::Unreachable(libc::EHOSTUNREACH))
            }
            Ok(Neighbour::Asking) if asked => Err(Route::Resolving),
            Ok(_) => {
                self.asked.retain(|_, at| at.elapsed() < ASKED_WITHIN);
                self.asked.insert(hop, Instant::now());
                match change(netlink, self.index, hop, Change::Resolve) {
                    Ok(()) => Err(Route::Resolving),
                    Err(error) => {
                        if LINES.allows() {
                            tracing::warn!(%hop, %error, "cannot have the kernel resolve a neighbour");
                        }
                        Err(Route::Unreachable(libc::EHOSTUNREACH))
                    }
                }
            }
            Err(error) => {
                if LINES.allows() {
                    tracing::warn!(%hop, %error, "cannot ask the kernel for a neighbour");
                }
                Err(Route::Unreachable(libc::EHOSTUNREACH))
            }
        }
    }
}
