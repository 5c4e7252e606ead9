//! Attaches to an interface, with the reason if that cannot be.

use crate::health::receive_queues;
use rustix::thread::CapabilitySet;
use std::io;
use towpath_ports::attachment::{AttachConfig, AttachError, Attachment, SteerMode, Tables};
use towpath_ports::link::Link;
use towpath_ports::steering::SteerError;
use towpath_ports::xsk::XskError;
use towpath_service::config::PortSetting;
use towpath_service::paths;

/// The broker's answer if another service serves the interface.
pub const SERVED_ALREADY: i32 = libc::EBUSY;

/// The broker's answer if a queue is in use, maybe for a moment: it does not wait, and goes on when it is asked again.
pub const ASK_AGAIN: i32 = libc::EAGAIN;

/// The broker's answer if the worker has all that there is: the interface is in place, or has got its program back.
pub const IN_PLACE: i32 = libc::EALREADY;

/// The kernel's choice of a listener is another one there: packets go on to the other device.
const OWN_ON_A_PORT: &str = "it is a port of another device (a bridge, a bond, a VRF), where `firewall = \"own\"` cannot \
                             tell who listens; use `firewall = \"respect\"`";

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
    /// Nothing has to be opened.
    #[error("{0}")]
    InPlace(String),
    /// There is no such interface now, or it is down.
    #[error("{0} is not there, or down")]
    NotThere(String),
    /// The broker's reason.
    #[error("{0}")]
    Broker(String),
    /// The memory of its sockets.
    #[error("mapping the AF_XDP sockets: {0}")]
    Mapping(io::Error),
    /// A core would have more queues than it can serve.
    #[error(
        "--interface {0}: a core would have more than 254 receive queues; use more cores (`--cores`), or fewer queues \
         (`ethtool -L {0} combined N`)"
    )]
    TooManyQueues(String),
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

/// The tables of the worker that lives now. `name` is named in errors.
/// `own`: SYNs are taken before the kernel's firewall.
pub fn tables_of(tables: &mut Option<Tables>, name: &str, own: bool) -> Result<Tables, InterfaceError> {
    match tables {
        Some(tables) => Ok(tables.clone()),
        None => Ok(tables.insert(Tables::load(name, own)?).clone()),
    }
}

/// Attaches the steering program to an interface, at this place in the tables, which are loaded if there are none. Opens a
/// socket for each receive queue, for `least` of them at least. A packet on a queue without a socket takes a slower way.
/// Nothing is steered yet.
pub fn attach(
    tables: &mut Option<Tables>,
    place: u32,
    name: &str,
    config: AttachConfig,
    least: usize,
) -> Result<Attachment, InterfaceError> {
    let index = interface_index(name).ok_or_else(|| InterfaceError::Absent(name.into()))?;
    // Where the kernel does not tell, it refuses what cannot be.
    let link = Link::of(index).ok().flatten();
    if let Some(why) = link.as_ref().and_then(Link::refusal) {
        return Err(InterfaceError::Unsuitable(name.into(), why));
    }
    if config.own && link.is_some_and(|link| link.is_port) {
        return Err(InterfaceError::Unsuitable(name.into(), OWN_ON_A_PORT));
    }
    check_privileges(name, config.own)?;
    let tables = tables_of(tables, name, config.own)?;
    Ok(Attachment::open_at(&tables, place, name, config, receive_queues(name).max(least))?)
}

/// The mode that the configuration asks for. `None`: chosen by what the interface is.
pub fn mode_of(port: PortSetting) -> Option<SteerMode> {
    match port {
        PortSetting::Auto => None,
        PortSetting::Xdp => Some(SteerMode::Driver),
        PortSetting::XdpGeneric => Some(SteerMode::Generic),
        PortSetting::Packet => Some(SteerMode::Packet),
    }
}

/// The number of an interface.
pub fn interface_index(name: &str) -> Option<u32> {
    let socket = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None).ok()?;
    rustix::net::netdevice::name_to_index(&socket, name).ok()
}

/// Has this process what serving an interface takes?
pub fn check_privileges(interface: &str, own: bool) -> Result<(), InterfaceError> {
    let mut needed = vec![
        (CapabilitySet::NET_ADMIN, "CAP_NET_ADMIN"),
        (CapabilitySet::NET_RAW, "CAP_NET_RAW"),
        (CapabilitySet::BPF, "CAP_BPF"),
    ];
    if own {
        // Its program reads structures of the kernel.
        needed.push((CapabilitySet::PERFMON, "CAP_PERFMON (for `firewall = \"own\"`)"));
    }
    let Ok(held) = rustix::thread::capabilities(None) else { return Ok(()) };
    let contained = CapabilitySet::BPF | CapabilitySet::PERFMON;
    let has = |capability| {
        held.effective.contains(capability)
            || contained.contains(capability) && held.effective.contains(CapabilitySet::SYS_ADMIN)
    };
    let missing: Vec<_> = needed.iter().filter(|(set, _)| !has(*set)).map(|(_, name)| *name).collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(InterfaceError::Privileges { interface: interface.into(), missing: missing.join(", ") })
}
