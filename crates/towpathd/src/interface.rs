//! The served interface: its AF_XDP sockets, the steering program, and our range of ephemeral ports.

use crate::attach::InterfaceError;
use crate::follow::{Follower, Made, Reopened, open_ports};
use crate::health::{Health, receive_queues};
use crate::held_interface::Holder;
use crate::network::Steer;
use crate::network::reserved::ReservedPorts;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use towpath_fast::SynCounts;
use towpath_ports::Port;
use towpath_ports::listening::Listening;
use towpath_ports::steering::{Segments, SteerError, Steering};
use towpath_runtime::log_throttle::LogThrottle;
use towpath_service::privileged;
use towpath_tcp::flow::FourTuple;
use towpath_tcp::slow::Steered;

/// Our ephemeral ports on an interface: the part of the kernel's default range (32768-60999) that IANA calls dynamic.
/// The kernel's own sockets keep the lower half.
pub const EPHEMERAL_PORTS: RangeInclusive<u16> = 49_152..=60_999;

/// How long the answer to a cookie is steered: as long as it is valid.
const COOKIE_LIFE: Duration = Duration::from_secs(120);

/// A served interface. Dropping it releases its ports.
pub struct Interface {
    /// Its number.
    pub index: u32,
    /// The largest packet that its ports take, bytes.
    pub mtu: u32,
    /// Its state.
    pub health: Arc<Health>,
    /// Opens it again when it was made anew.
    pub follower: Option<Follower>,
    _ports: Option<ReservedPorts>,
}

/// Opens the interface of this number in the configuration, and deals its queues out to the flow groups' ports. Nothing is
/// steered yet. `vlan`: only frames with this IEEE 802.1Q tag are ours.
pub fn open(
    number: u32,
    name: &str,
    vlan: Option<u16>,
    ports: &mut [Vec<Box<dyn Port>>],
) -> Result<(Interface, Box<dyn Steer>), InterfaceError> {
    let (groups, holder) = (ports.len(), Arc::new(Holder::of(number, name, vlan)));
    let parts = holder.open(groups)?;
    let expected = parts.description().queues;
    let (mut steering, sockets) = Steering::over(name, parts)?;
    steering.set_vlan(vlan)?;
    let queues = sockets.len();
    let (mtu, opened) = open_ports(sockets, expected, groups).map_err(InterfaceError::Mapping)?;
    for (group, _, port) in opened {
        ports[group].push(port);
    }
    tracing::info!(interface = name, vlan, mode = ?steering.mode(), queues, mtu, "serving an interface");
    // The broker gives them back, however this process ends.
    let reserved = match privileged::broker() {
        Some(broker) => broker.reserve_ports().map(|()| None),
        None => ReservedPorts::reserve(&EPHEMERAL_PORTS).map(Some),
    };
    let reserved = reserved.map_err(InterfaceError::Ports)?;
    let health = Arc::new(Health::new(name, steering.ids(), queues));
    let index = steering.ids().1;
    let made = Made::default();
    let steer = Interfaces {
        holder: Arc::clone(&holder),
        steering,
        queues,
        health: Arc::clone(&health),
        made: Arc::clone(&made),
    };
    let follower = Follower::new(holder, Arc::clone(&health), made, groups);
    let interface = Interface { index, mtu, health, follower: Some(follower), _ports: reserved };
    Ok((interface, Box::new(steer)))
}

/// Steers the slow path's flows.
struct Interfaces {
    holder: Arc<Holder>,
    steering: Steering,
    /// Receive queues on which the program is known to run.
    queues: usize,
    health: Arc<Health>,
    /// The interface, opened again.
    made: Made,
}

/// Of steering that fails, for example because a table is full: clients decide how often.
static LINES: LogThrottle = LogThrottle::new();

impl Steer for Interfaces {
    fn flow(&mut self, tuple: &FourTuple, steered: Steered) {
        let local = SocketAddr::new(tuple.local, tuple.local_port);
        let remote = SocketAddr::new(tuple.remote, tuple.remote_port);
        let result = match steered {
            Steered::No => self.steering.steer_flow(local, remote, None),
            Steered::Kernels => self
                .steering
                .steer_flow(local, remote, None)
                .and_then(|()| self.steering.steer_half_open(local, remote, Duration::ZERO)),
            Steered::All => self.steering.steer_flow(local, remote, Some(Segments::All)),
            Steered::ButFirstSyns => self.steering.steer_flow(local, remote, Some(Segments::ButFirstSyns)),
            Steered::AnswerToCookie => self.steering.steer_half_open(local, remote, COOKIE_LIFE),
        };
        if let Err(error) = result
            && LINES.allows()
        {
            tracing::warn!(%error, "a connection is not steered");
        }
    }

    fn listening(&mut self) -> Option<&mut Listening> {
        Some(self.steering.listening())
    }

    fn serve(&mut self, device: Option<u32>) -> Result<(), SteerError> {
        self.steering.serve(device)
    }

    fn look_for_queues(&mut self) {
        if !self.health.is_in_place() {
            return;
        }
        let queues = receive_queues(self.steering.interface());
        if std::mem::replace(&mut self.queues, queues) >= queues {
            return;
        }
        if let Err(error) = self.holder.renew() {
            tracing::error!(%error, "nothing reaches the stack any more; start the service again");
        }
    }

    fn reopened(&mut self) -> Option<Reopened> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn next_stray(&mut self) -> Option<Box<[u8]>> {
        let frame = self.steering.strays().next_frame()?;
        self.health.stray();
        Some(frame)
    }

    fn strays(&mut self) -> Option<BorrowedFd<'_>> {
        Some(self.steering.strays().readable())
    }

    fn syn_counts(&self) -> SynCounts {
        let stats = self.steering.stats().unwrap_or_default();
        SynCounts { taken: stats.taken, passed_stale: stats.passed_stale, passed_full: stats.passed_full }
    }
}
