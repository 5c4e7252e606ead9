//! Deterministic network simulator. It has a virtual clock, and wires with bandwidth, delay and finite queues. Devices
//! lose, delay, duplicate and corrupt frames. Nodes run the real protocol code. A seed reproduces a run.
#![forbid(unsafe_code)]

pub mod adversary;
pub mod cut;
pub mod differential;
mod engine;
pub mod errno;
pub mod faults;
pub mod frame;
pub mod invariants;
pub mod link;
pub mod model;
pub mod node;
pub mod node_config;
pub mod pcap;
mod pipelined;
pub mod smoltcp_host;
pub mod smoltcp_stall;
pub mod sockets;
pub mod switch;
pub mod trace;
pub mod transfer;
pub mod world;

pub use adversary::{Adversary, Powers};
pub use faults::{Faults, Faulty};
pub use invariants::InvariantChecker;
pub use link::{Link, LinkConfig, LinkPort, QueueCounters};
pub use node::Node;
pub use node_config::NodeConfig;
pub use smoltcp_host::SmoltcpHost;
pub use sockets::{Phase, SocketId};
pub use switch::Switch;
pub use transfer::{Endpoint, TransferEnd, TransferPlan, Transfers};
pub use world::{Outcome, Program, World};

use towpath_ports::Port;
use towpath_tcp::flow::PortId;
use towpath_tcp::time::Micros;

/// The one port of a node.
pub(crate) const PORT: PortId = PortId(0);

/// A port in virtual time.
pub trait TimedPort: Port {
    /// Sets the clock to `now`.
    fn advance(&mut self, now: Micros);
    /// When the next frame leaves it, if it holds one.
    fn next_deadline(&self) -> Option<Micros>;
}

/// Most bytes of a frame before its packet: an Ethernet header and a VLAN tag.
pub(crate) const FRAMING: usize = towpath_wire::ETHERNET_BYTES + towpath_wire::VLAN_BYTES;

/// Bytes of a buffer for any frame of a port.
pub(crate) fn room(mtu_bytes: u32, gso_max_bytes: u32) -> usize {
    (mtu_bytes as usize + FRAMING).max(gso_max_bytes as usize)
}

/// The earlier of two optional moments.
pub(crate) fn earlier(a: Option<Micros>, b: Option<Micros>) -> Option<Micros> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}
