//! The served interfaces: their AF_XDP sockets, the steering program, and our range of ephemeral ports.

use crate::attach::InterfaceError;
use crate::follow::{Follower, Made, Reopened, open_ports, ports_each};
use crate::health::Health;
use crate::held_interface::{Holder, places};
use crate::network::Steer;
use crate::network::matching::matching;
use crate::network::netlink::Netlink;
use crate::network::reserved::ReservedPorts;
use crate::served::Interface;
use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use towpath_fast::SynCounts;
use towpath_ports::Port;
use towpath_ports::attachment::NOWHERE;
use towpath_ports::forward::Splice;
use towpath_ports::listening::Listening;
use towpath_ports::steering::{Segments, SteerError, SteerMode, Steering};
use towpath_runtime::log_throttle::LogThrottle;
use towpath_service::config::{FirewallSetting, Selector, VlanSetting};
use towpath_service::privileged;
use towpath_service::stack_factory::ServedInterface;
use towpath_tcp::flow::{FourTuple, PortId};
use towpath_tcp::slow::Steered;

/// Our ephemeral ports on an interface: the part of the kernel's default range (32768-60999) that IANA calls dynamic.
/// The kernel's own sockets keep the lower half.
pub const EPHEMERAL_PORTS: RangeInclusive<u16> = 49_152..=60_999;

/// How long the answer to a cookie is steered: as long as it is valid.
const COOKIE_LIFE: Duration = Duration::from_secs(120);

/// The interfaces that were opened. Dropping this releases their ports.
pub struct Opened {
    /// In the order of the configuration.
    pub interfaces: Vec<Interface>,
    /// Open them again when they were made anew.
    pub followers: Vec<Follower>,
    /// Steers to them.
    pub steer: Option<Box<dyn Steer>>,
    _ports: Option<ReservedPorts>,
}

/// Opens the interfaces of these names, and deals their queues out to the flow groups' ports. Nothing is steered yet. `vlans`:
/// only frames with these IEEE 802.1Q tags are ours. `mode`: where the XDP program is to run. `firewall`: who judges first
/// SYNs.
pub fn open(
    names: &[String],
    vlans: &VlanSetting,
    mode: Option<SteerMode>,
    firewall: FirewallSetting,
    ports: &mut [Vec<Box<dyn Port>>],
) -> Result<Opened, InterfaceError> {
    let (mut steering, mut each) = (None, Vec::new());
    let (mut interfaces, mut followers) = (Vec::new(), Vec::new());
    let (groups, mut first_port) = (ports.len(), ports.first().map_or(0, Vec::len));
    let places = places(names);
    for (name, holder) in places.iter().zip(Holder::of_all(names, vlans, mode, firewall)) {
        let (number, parts) = (holder.number(), holder.open(groups)?);
        let vlan = vlans.of(number as usize);
        let holder = Arc::new(holder);
        let description = parts.description();
        let sockets = match &mut steering {
            None => {
                let (mut first, sockets) = Steering::over(name, parts)?;
                first.set_vlan(description.place, vlan)?;
                steering = Some(first);
                sockets
            }
            Some(steering) => {
                steering.add(description);
                steering.set_vlan(description.place, vlan)?;
                parts.into_sockets()
            }
        };
        let (ports_each, queues) = (ports_each(description.queues, groups), sockets.len());
        let port = u8::try_from(first_port).ok().filter(|first| ports_each <= usize::from(u8::MAX - *first));
        let port = PortId(port.ok_or_else(|| InterfaceError::TooManyQueues(name.clone()))?);
        first_port += ports_each;
        let (mtu, opened) = open_ports(sockets, description.queues, port, groups).map_err(InterfaceError::Mapping)?;
        for (group, _, port) in opened {
            ports[group].push(port);
        }
        let health = Arc::new(Health::new(name, vlan, mode, &description, queues));
        let (by, reason) = (description.mode, description.reason(mode));
        if description.index != NOWHERE {
            tracing::info!(interface = health.name(), vlan, mode = %by, reason, queues, mtu, "serving an interface");
        }
        let made = Made::default();
        followers.push(Follower::new(
            Arc::clone(&holder),
            Arc::clone(&health),
            Arc::clone(&made),
            port,
            (description.queues, groups),
        ));
        let (index, state) = (description.index, Arc::clone(&health));
        interfaces.push(Interface { number, index, vlan, mtu, port, ports_each, health: state });
        each.push(Each { holder, queues, health, made });
    }
    for pattern in names.iter().filter(|name| Selector::is_open(name)) {
        if !interfaces.iter().any(|one| one.index != NOWHERE && one.health.pattern() == Some(pattern)) {
            tracing::warn!("no interface that is up matches {pattern}; the first one that appears is served");
        }
        tell_left_out(pattern, &interfaces);
    }
    // The broker gives them back, however this process ends.
    let reserved = match privileged::broker() {
        Some(broker) => broker.reserve_ports().map(|()| None),
        None => ReservedPorts::reserve(&EPHEMERAL_PORTS).map(Some),
    };
    let reserved = reserved.map_err(InterfaceError::Ports)?;
    let steer = steering.map(|steering| {
        Box::new(Interfaces { steering, each, own: firewall == FirewallSetting::Own }) as Box<dyn Steer>
    });
    Ok(Opened { interfaces, followers, steer, _ports: reserved })
}

/// Says which interfaces match a pattern all of whose places others have.
fn tell_left_out(pattern: &str, interfaces: &[Interface]) {
    let places = || interfaces.iter().filter(|one| one.health.pattern() == Some(pattern));
    let Ok(selector) = Selector::parse(pattern) else { return };
    if places().any(|one| one.index == NOWHERE) {
        return;
    }
    let found = Netlink::connect().and_then(|mut netlink| matching(&mut netlink, &selector)).unwrap_or_default();
    for device in found.iter().filter(|device| interfaces.iter().all(|one| one.index != device.index)) {
        let (name, count) = (&device.name, places().count());
        tracing::warn!(
            "{name} matches {pattern}, whose {count} places others have: it is the kernel's until one has gone"
        );
    }
}

/// Steers the slow path's flows. A connection may come by each of the interfaces, which have the same tables.
struct Interfaces {
    steering: Steering,
    /// By their places.
    each: Vec<Each>,
    /// SYNs are taken before the kernel's firewall.
    own: bool,
}

/// One of them.
struct Each {
    holder: Arc<Holder>,
    /// Receive queues on which the program is known to run.
    queues: usize,
    health: Arc<Health>,
    /// The interface, opened again.
    made: Made,
}

/// Of steering that fails, for example because a table is full: clients decide how often.
static LINES: LogThrottle = LogThrottle::new();

fn ends(tuple: &FourTuple) -> (SocketAddr, SocketAddr) {
    (SocketAddr::new(tuple.local, tuple.local_port), SocketAddr::new(tuple.remote, tuple.remote_port))
}

impl Steer for Interfaces {
    fn flow(&mut self, tuple: &FourTuple, steered: Steered) {
        let (local, remote) = ends(tuple);
        let result = match steered {
            Steered::No => self.steering.steer_flow(local, remote, None),
            Steered::Kernels => self
                .steering
                .steer_flow(local, remote, None)
                .and_then(|()| self.steering.steer_half_open(local, remote, Duration::ZERO)),
            Steered::All => self.steering.steer_flow(local, remote, Some(Segments::All)),
            Steered::ButFirstSyns => self.steering.steer_flow(local, remote, Some(Segments::ButFirstSyns)),
            Steered::AnswerToCookie => self.steering.steer_answer_to_cookie(local, remote, COOKIE_LIFE),
        };
        if let Err(error) = result
            && LINES.allows()
        {
            tracing::warn!(%error, "a connection is not steered");
        }
    }

    fn forward(&mut self, tuple: &FourTuple, splice: &Splice) {
        let (local, remote) = ends(tuple);
        if let Err(error) = self.steering.forward(local, remote, splice)
            && LINES.allows()
        {
            tracing::warn!(%error, "the kernel does not send on the segments of a spliced connection; the module does");
        }
    }

    fn end_forwarding(&mut self, tuple: &FourTuple) -> Option<Splice> {
        let (local, remote) = ends(tuple);
        let ended = self.steering.end_forwarding(local, remote);
        ended
            .inspect_err(|error| {
                if LINES.allows() {
                    tracing::warn!(%error, "the kernel sends on segments")
                }
            })
            .ok()?
    }

    fn forwarded(&self, tuple: &FourTuple) -> Option<Splice> {
        let (local, remote) = ends(tuple);
        self.steering.forwarded(local, remote)
    }

    fn listening(&mut self) -> Option<&mut Listening> {
        Some(self.steering.listening())
    }

    fn serve(&mut self, place: u32, device: Option<u32>) -> Result<(), SteerError> {
        self.steering.serve(place, device)
    }

    fn know(&mut self, addresses: Option<&HashSet<IpAddr>>) {
        if !self.own {
            return;
        }
        if let Err(error) = self.steering.set_addresses(addresses.unwrap_or(&HashSet::new()))
            && LINES.allows()
        {
            tracing::warn!(%error, "the kernel's firewall judges SYNs to some addresses");
        }
        self.each.iter().for_each(|one| one.health.set_takes_early(addresses.is_some()));
    }

    fn look_for_queues(&mut self) {
        for one in self.each.iter_mut().filter(|one| one.health.is_in_place()) {
            let queues = one.health.queues();
            if std::mem::replace(&mut one.queues, queues) >= queues {
                continue;
            }
            if let Err(error) = one.holder.renew() {
                tracing::error!(%error, "nothing reaches the stack any more; start the service again");
            }
        }
    }

    fn reopened(&mut self, place: u32) -> Option<Reopened> {
        let reopened = self.each.get(place as usize)?.made.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        self.steering.add(reopened.description);
        Some(reopened)
    }

    fn next_stray(&mut self) -> Option<(u32, Box<[u8]>)> {
        let (place, frame) = self.steering.strays().next_frame()?;
        self.each.get(place as usize)?.health.stray();
        Some((place, frame))
    }

    fn strays(&mut self) -> Option<BorrowedFd<'_>> {
        Some(self.steering.strays().readable())
    }

    fn syn_counts(&self) -> SynCounts {
        let stats = self.steering.stats().unwrap_or_default();
        SynCounts {
            taken: stats.taken,
            limited: stats.limited,
            passed_stale: stats.passed_stale,
            passed_full: stats.passed_full,
        }
    }
}
