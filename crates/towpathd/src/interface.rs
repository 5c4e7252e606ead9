//! The served interface: its AF_XDP sockets, the steering program, and our range of ephemeral ports.

use crate::health::{Health, receive_queues};
use crate::network::Steer;
use crate::network::reserved::ReservedPorts;
use rustix::thread::CapabilitySet;
use std::io;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;
use towpath_broker::{Broker, Refusal};
use towpath_fast::SynCounts;
use towpath_ports::Port;
use towpath_ports::attachment::{AttachError, Attachment, Description, Parts};
use towpath_ports::link::Link;
use towpath_ports::listening::Listening;
use towpath_ports::steering::{Segments, SteerError, Steering};
use towpath_ports::xsk::{XskError, XskPort};
use towpath_runtime::log_throttle::LogThrottle;
use towpath_service::{paths, privileged};
use towpath_tcp::flow::FourTuple;
use towpath_tcp::slow::Steered;

/// Our ephemeral ports on an interface: the part of the kernel's default range (32768-60999) that IANA calls dynamic.
/// The kernel's own sockets keep the lower half.
pub const EPHEMERAL_PORTS: RangeInclusive<u16> = 49_152..=60_999;

/// The broker's answer if another service serves the interface.
const SERVED_ALREADY: i32 = libc::EBUSY;

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
    _ports: Option<ReservedPorts>,
}

/// Why an interface cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum InterfaceError {
    /// Not privileged.
    #[error(
        "--interface {interface} needs {missing}: run as root; without --interface Towpath works for any user, inside this machine"
    )]
    Privileges {
        /// The interface.
        interface: String,
        /// The missing capabilities.
        missing: String,
    },
    /// No such interface.
    #[error("--interface {0}: there is no such interface; `ip -br link` lists them")]
    Absent(String),
    /// Its frames cannot be served.
    #[error("--interface {0} cannot be served: {1}")]
    Unsuitable(String, &'static str),
    /// Another Towpath service serves it.
    #[error(
        "--interface {interface}: {who} serves it already; use that one{socket}, end it (`towpath stop{socket}`), or \
         serve another interface"
    )]
    Served {
        /// The interface.
        interface: String,
        /// The service.
        who: String,
        /// ` --socket PATH`, or nothing if the socket is not known.
        socket: String,
    },
    /// An AF_XDP socket.
    #[error(transparent)]
    Xsk(#[from] XskError),
    /// The steering program.
    #[error(transparent)]
    Steer(SteerError),
    /// Another Towpath service serves it; the broker says which.
    #[error("{0}")]
    ServedAlready(String),
    /// The broker's reason.
    #[error("{0}")]
    Broker(String),
    /// The program is not put on new queues.
    #[error("putting the program on new queues: {0}")]
    Renewal(io::Error),
    /// The reserved ports.
    #[error("net.ipv4.ip_local_reserved_ports: {0}")]
    Ports(io::Error),
}

impl From<SteerError> for InterfaceError {
    fn from(error: SteerError) -> Self {
        match error {
            SteerError::Occupied { interface, holder, is_ours: true, .. } => served(interface, holder),
            error => Self::Steer(error),
        }
    }
}

impl From<AttachError> for InterfaceError {
    fn from(error: AttachError) -> Self {
        match error {
            AttachError::Xsk(error) => error.into(),
            AttachError::Steer(error) => error.into(),
        }
    }
}

impl InterfaceError {
    /// For the worker: the kind of error, and its text.
    pub fn told(&self) -> (i32, String) {
        let errno = if matches!(self, Self::Served { .. }) { SERVED_ALREADY } else { libc::EIO };
        (errno, self.to_string())
    }
}

/// The process that stands for the service whose worker this process is, or the process itself.
fn service_of(process: u32) -> u32 {
    let program = |process: u32| std::fs::read_link(format!("/proc/{process}/exe")).ok();
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // After the name: its state, then its parent.
    let parent = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1)?.parse().ok());
    parent.filter(|parent| program(*parent).is_some_and(|theirs| Some(theirs) == program(process))).unwrap_or(process)
}

/// The processes that this one has started.
fn children(process: u32) -> Vec<u32> {
    let list = std::fs::read_to_string(format!("/proc/{process}/task/{process}/children")).unwrap_or_default();
    list.split_whitespace().filter_map(|child| child.parse().ok()).collect()
}

/// The error for an interface that another service serves.
fn served(interface: String, holder: Option<u32>) -> InterfaceError {
    let who = match holder {
        Some(pid) => format!("the Towpath service with process {}", service_of(pid)),
        None => "another Towpath service, which is not to be seen from here (in a container?),".into(),
    };
    // The process that holds the program may be a broker; its worker has the socket.
    let socket = holder.and_then(|process| {
        paths::socket_of_process(process).or_else(|| children(process).into_iter().find_map(paths::socket_of_process))
    });
    let socket = socket.map(|socket| format!(" --socket {}", socket.display())).unwrap_or_default();
    InterfaceError::Served { interface, who, socket }
}

/// Attaches the steering program to an interface, and opens a socket for each receive queue, for `least` of them at least. A
/// packet on a queue without a socket takes a slower way. Nothing is steered yet.
pub fn attach(name: &str, vlan: Option<u16>, least: usize) -> Result<Attachment, InterfaceError> {
    let index = interface_index(name).ok_or_else(|| InterfaceError::Absent(name.into()))?;
    // Where the kernel does not tell, it refuses what cannot be.
    let link = Link::of(index).ok().flatten();
    if let Some(why) = link.and_then(|link| link.refusal()) {
        return Err(InterfaceError::Unsuitable(name.into(), why));
    }
    check_privileges(name)?;
    Ok(Attachment::open(name, vlan.is_some(), receive_queues(name).max(least))?)
}

/// The interface of this number in the configuration, from the broker.
fn from_broker(broker: &Broker, number: u32, least: usize) -> Result<Parts, InterfaceError> {
    let refused = |Refusal { errno, why }: Refusal| match errno {
        SERVED_ALREADY => InterfaceError::ServedAlready(why),
        _ => InterfaceError::Broker(why),
    };
    let (text, descriptors) = broker.open_port(number, least as u32).map_err(refused)?;
    let parts = Description::decode(&text).and_then(|description| Parts::of(description, descriptors));
    parts.ok_or_else(|| InterfaceError::Broker("the broker has answered what it never would".into()))
}

/// Opens the interface of this number in the configuration, and deals its queues out to the flow groups' ports. Nothing is
/// steered yet. `vlan`: only frames with this IEEE 802.1Q tag are ours.
pub fn open(
    number: u32,
    name: &str,
    vlan: Option<u16>,
    ports: &mut [Vec<Box<dyn Port>>],
) -> Result<(Interface, Box<dyn Steer>), InterfaceError> {
    let groups = ports.len();
    let (mut steering, sockets) = match privileged::broker() {
        Some(broker) => Steering::over(name, from_broker(broker, number, groups)?)?,
        None => {
            let attachment = attach(name, vlan, groups)?;
            let (steering, sockets) = Steering::over(name, attachment.parts()?)?;
            (steering.with(attachment), sockets)
        }
    };
    steering.set_vlan(vlan)?;
    let (mut mtu, queues) = (u32::MAX, sockets.len());
    for (queue, socket) in sockets.into_iter().enumerate() {
        let mapped = |error| XskError::System { interface: name.into(), call: "mmap", error };
        let port = XskPort::over(socket).map_err(mapped)?;
        mtu = mtu.min(port.capabilities().mtu_bytes);
        ports[queue % groups].push(Box::new(port));
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
    let steer = Interfaces { number, steering, queues, health: Arc::clone(&health) };
    Ok((Interface { index, mtu, health, _ports: reserved }, Box::new(steer)))
}

/// The number of an interface.
pub fn interface_index(name: &str) -> Option<u32> {
    let socket = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None).ok()?;
    rustix::net::netdevice::name_to_index(&socket, name).ok()
}

fn check_privileges(interface: &str) -> Result<(), InterfaceError> {
    let needed = [
        (CapabilitySet::NET_ADMIN, "CAP_NET_ADMIN"),
        (CapabilitySet::NET_RAW, "CAP_NET_RAW"),
        (CapabilitySet::BPF, "CAP_BPF"),
    ];
    let Ok(held) = rustix::thread::capabilities(None) else { return Ok(()) };
    // CAP_SYS_ADMIN contains CAP_BPF.
    let has = |capability| {
        held.effective.contains(capability)
            || capability == CapabilitySet::BPF && held.effective.contains(CapabilitySet::SYS_ADMIN)
    };
    let missing: Vec<_> = needed.iter().filter(|(set, _)| !has(*set)).map(|(_, name)| *name).collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(InterfaceError::Privileges { interface: interface.into(), missing: missing.join(", ") })
}

/// Steers the slow path's flows.
struct Interfaces {
    /// The interface's number in the configuration.
    number: u32,
    steering: Steering,
    /// Receive queues on which the program is known to run.
    queues: usize,
    health: Arc<Health>,
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
        let queues = receive_queues(self.steering.interface());
        if std::mem::replace(&mut self.queues, queues) >= queues {
            return;
        }
        let renewed = match (self.steering.attachment(), privileged::broker()) {
            (Some(attachment), _) => attachment.renew().map_err(InterfaceError::from),
            (None, Some(broker)) => broker.renew_port(self.number).map_err(InterfaceError::Renewal),
            (None, None) => Ok(()),
        };
        if let Err(error) = renewed {
            tracing::error!(%error, "nothing reaches the stack any more; start the service again");
        }
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
