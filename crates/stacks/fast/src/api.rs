//! The settings of a fast stack, and the network that it asks.

use std::net::IpAddr;
use towpath_runtime::OrphanLimits;
use towpath_tcp::flow::FourTuple;

/// The settings of a fast stack.
#[derive(Clone, Debug)]
pub struct FastStackConfig {
    /// Flow groups, 1 to 16. The clients' regions must be made for as many.
    pub flow_groups: usize,
    /// Connections that can be established at one time, over all flow groups.
    pub max_flows: u32,
    /// How long a flow group spins without work before it sleeps, µs.
    pub spin_us: u64,
    /// How long an acknowledgement may be delayed, µs.
    pub delayed_ack_us: u64,
    /// Worker `i` is pinned to CPU `cpus[i]`; missing entries are not pinned.
    pub cpus: Vec<usize>,
    /// Are connections between applications of this host joined without the stack?
    pub direct: bool,
    /// Bounds of what clients leave that have ended.
    pub orphans: OrphanLimits,
    /// The slow path's settings.
    pub slow: towpath_tcp::slow::SlowConfig,
}

/// Routes and steering, as the service knows them. Called by the slow thread only.
pub trait Network: Send {
    /// The way to `remote` (from `local` if the socket is bound).
    fn route(&mut self, remote: IpAddr, local: Option<IpAddr>) -> towpath_tcp::slow::Route;
    /// Is this one of our own addresses?
    fn is_local(&self, addr: IpAddr) -> bool;
    /// Steers packets of this tuple to us (`on`), or no longer.
    fn steer(&mut self, tuple: &FourTuple, on: bool);
    /// Steers segments to this listener to us (`on`), or no longer (`0.0.0.0` = every address).
    fn steer_listener(&mut self, addr: IpAddr, port: u16, on: bool);
    /// Are its ports those of a kernel, whose sockets use them, too? Then clients must prove that they have a port.
    fn shares_ports_with_kernel(&self) -> bool;
    /// Has the kernel a connection with this tuple?
    fn kernel_has(&mut self, _tuple: &FourTuple) -> bool {
        false
    }
    /// Ports that are held from now on for connections whose sockets are not bound.
    fn more_ports(&mut self) -> Vec<u16> {
        Vec::new()
    }
    /// These ports need not be held any more.
    fn give_back_ports(&mut self, _ports: Vec<u16>) {}
    /// Have routes or neighbours changed since the last call? Polled by the slow thread whenever it runs.
    fn changed(&mut self) -> bool;
}
