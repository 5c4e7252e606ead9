//! Deterministic network simulator: a virtual clock, wires with bandwidth, delay and finite queues, devices that lose,
//! delay, duplicate and corrupt, and nodes that run the real protocol code. A run is reproduced by its seed.

pub mod adversary;
pub mod differential;
pub mod faults;
pub mod frame;
pub mod link;
pub mod model;
pub mod node;
pub mod pcap;
pub mod peer;
pub mod rng;
pub mod sockets;
pub mod stall;
pub mod switch;
pub mod talker;
pub mod trace;
pub mod watch;
pub mod world;

pub use adversary::{Adversary, Powers};
pub use faults::{Faults, Faulty};
pub use link::{Link, LinkConfig, LinkPort, QueueCounters};
pub use node::{Node, NodeConfig};
pub use peer::Peer;
pub use rng::Rng;
pub use sockets::{Phase, SocketId};
pub use switch::Switch;
pub use talker::{Endpoint, Plan, Talker, Talkers};
pub use watch::Watcher;
pub use world::{Outcome, Program, World};

use towpath_ports::Port;
use towpath_tcp::time::Micros;

/// A port in virtual time.
pub trait TimedPort: Port {
    /// The clock shows `now`.
    fn advance(&mut self, now: Micros);
    /// When the next frame comes out of it, if one is inside.
    fn next_deadline(&self) -> Option<Micros>;
}

/// What a frame is longer than its packet: an Ethernet header and a VLAN tag.
pub(crate) const FRAMING: usize = towpath_wire::ETHERNET_BYTES + towpath_wire::VLAN_BYTES;

/// The earlier of two optional moments.
pub(crate) fn earlier(a: Option<Micros>, b: Option<Micros>) -> Option<Micros> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}
