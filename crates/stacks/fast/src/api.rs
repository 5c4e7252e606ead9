//! The settings of a fast stack, and the network that it asks.

use std::io;
use std::net::IpAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use towpath_ports::Port;
use towpath_ports::forward::Splice;
use towpath_runtime::{OrphanLimits, PeerRule};
use towpath_tcp::flow::{FourTuple, PortId};

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

/// The kernel's answer to: which listener has a SYN of this tuple?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelListener {
    /// None.
    None,
    /// None, because a connection of the kernel has the tuple.
    Taken,
    /// The one with this cookie (`SO_COOKIE`). It need not be one of ours.
    Cookie(u64),
}

/// A SYN that was taken from a listening socket of the kernel, which has judged it by all its rules.
#[derive(Clone, Debug)]
pub struct TakenSyn {
    /// `SO_COOKIE` of the listening socket.
    pub cookie: u64,
    /// The receive queue of its interface, if the kernel has said it.
    pub queue: Option<u32>,
    /// The port through which its answer leaves.
    pub port: PortId,
    /// Its headers from the Ethernet header on, with the tag of its VLAN. The checksum may be partial: the kernel has
    /// checked it.
    pub frame: Box<[u8]>,
}

/// A port that takes another one's place.
pub struct NewPort {
    /// The flow group.
    pub flow_group: usize,
    /// The place.
    pub number: PortId,
    /// The port.
    pub port: Box<dyn Port>,
}

/// What became of the first SYN of an active open, where the host judges them.
pub use towpath_tcp::slow::FirstSyn;

/// Counts of the SYNs for listening sockets whose SYNs we take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SynCounts {
    /// Taken from the kernel.
    pub taken: u64,
    /// Dropped before we had any work with them, because their socket is flooded.
    pub limited: u64,
    /// Left to the kernel, because this service was not alive or had not run for seconds.
    pub passed_stale: u64,
    /// Left to the kernel, because too many were waiting already.
    pub passed_full: u64,
}

/// Tells any thread whether a SYN waits. It makes no system call.
pub type SynsWait = Box<dyn Fn() -> bool + Send + Sync>;

/// Routes and steering, as the service knows them. Called by the slow path only, so by one thread at a time.
pub trait Network: Send {
    /// The way to `remote` (from `local` if the socket is bound).
    fn route(&mut self, remote: IpAddr, local: Option<IpAddr>) -> towpath_tcp::slow::Route;
    /// Is this one of our own addresses?
    fn is_local(&self, addr: IpAddr) -> bool;
    /// Steers packets of this tuple to us from now on, or no longer.
    fn steer(&mut self, tuple: &FourTuple, steered: towpath_tcp::slow::Steered);
    /// Has the kernel send on the segments that come on this connection, without us, if it can. Those that begin or
    /// end a connection come to us all the same.
    fn forward(&mut self, _tuple: &FourTuple, _splice: &Splice) {}
    /// The number of the interface of a port; `None` = it has none.
    fn interface(&self, _port: PortId) -> Option<u32> {
        None
    }
    /// All come to us again. Returns the element as it was at last.
    fn end_forwarding(&mut self, _tuple: &FourTuple) -> Option<Splice> {
        None
    }
    /// The element of such a connection, with what the kernel has counted.
    fn forwarded(&self, _tuple: &FourTuple) -> Option<Splice> {
        None
    }
    /// Do the host's rules judge the first SYNs of active opens? Only while a command has no answer yet can the kernel take
    /// its socket over, so such a command waits a moment for its route.
    fn judges_first_syns(&self) -> bool {
        false
    }
    /// Sends a first SYN as the host sends its own, so that its rules judge it. `frame`: with the link header of this port.
    fn send_first_syn(&mut self, _tuple: &FourTuple, _port: PortId, _frame: &[u8]) -> FirstSyn {
        FirstSyn::ByPort
    }
    /// Steers segments to this listener to us (`on`), or no longer (`0.0.0.0` = every address).
    /// Not called if listeners stay the kernel's.
    fn steer_listener(&mut self, _addr: IpAddr, _port: u16, _on: bool) {}
    /// Are its ports those of a kernel, whose sockets use them, too? Then clients must prove that they have a port.
    fn shares_ports_with_kernel(&self) -> bool;
    /// The network namespace whose network this is, by the kernel's cookie: clients of others do not connect by it. `None`:
    /// it is that of everybody who may use the stack.
    fn namespace(&self) -> Option<u64> {
        None
    }
    /// Do listeners stay listening sockets of the kernel, from which we take SYNs ([`Network::take_syns`])?
    fn listens_in_kernel(&self) -> bool {
        false
    }
    /// Are listeners found by their addresses, also those of the kernel? So it is where no kernel sees the packets.
    fn finds_listeners(&self) -> bool {
        !self.listens_in_kernel()
    }
    /// The filter that takes SYNs from listening sockets, one more descriptor of it; `None`: no interface is served. It is
    /// attached to sockets that are not accepted yet, and stays attached to those of listeners that have ended. So it
    /// leaves the SYNs of all sockets to the kernel but of those that [`Network::take_syns`] names.
    fn listener_filter(&mut self) -> io::Result<Option<OwnedFd>> {
        Ok(None)
    }
    /// From now on takes the SYNs of the served interface from the listening socket with this cookie (`on`), or leaves
    /// them to the kernel again. The slow thread has no descriptor of it: a client can make any call on a socket that it
    /// shares wait.
    fn take_syns(&mut self, _cookie: u64, _on: bool) -> io::Result<()> {
        Ok(())
    }
    /// From now on the kernel gets SYNs for the listening socket with this cookie only as these rules say; none: all that
    /// are not taken. `Unsupported`: there is no filter.
    fn judge_peers(&mut self, _cookie: u64, rules: &[PeerRule]) -> io::Result<()> {
        if rules.is_empty() { Ok(()) } else { Err(io::ErrorKind::Unsupported.into()) }
    }
    /// How many SYNs these rules have refused since the last call, by the numbers in them.
    fn refused_peers(&mut self) -> Vec<(u64, u64)> {
        Vec::new()
    }
    /// How many SYNs they have refused for the socket with this cookie.
    fn refused_at(&mut self, _cookie: u64) -> u64 {
        0
    }
    /// The next SYN that was taken. Its queue is bounded, so it is read in batches.
    fn next_syn(&mut self) -> Option<TakenSyn> {
        None
    }
    /// The stack does not answer the first SYN of this tuple that it has taken. The peer repeats it, and then the kernel
    /// shall.
    fn leave_syn(&mut self, _tuple: &FourTuple) {}
    /// The descriptor that becomes readable when a SYN comes.
    fn syns(&mut self) -> Option<BorrowedFd<'_>> {
        None
    }
    /// What tells of SYNs that wait.
    fn syns_wait(&mut self) -> io::Result<SynsWait> {
        Ok(Box::new(|| false))
    }
    /// The next frame that has come on a receive queue without a port, and the port of its interface. Its checksum is right.
    fn next_stray(&mut self) -> Option<(PortId, Box<[u8]>)> {
        None
    }
    /// The descriptor that is readable while such frames wait.
    fn strays(&mut self) -> Option<BorrowedFd<'_>> {
        None
    }
    /// This service is alive: SYNs are left to the kernel when this has not been called for some seconds. Called at
    /// least once a second.
    fn beat(&mut self) {}
    /// Counts of SYNs, since the service began.
    fn syn_counts(&self) -> SynCounts {
        SynCounts::default()
    }
    /// The listening socket of the kernel that would get a SYN of this tuple, within this host.
    fn listener_of(&mut self, _tuple: &FourTuple) -> KernelListener {
        KernelListener::None
    }
    /// [`Network::listener_of`], of a SYN that comes by the device of this index.
    fn listener_by(&mut self, tuple: &FourTuple, _interface: u32) -> KernelListener {
        self.listener_of(tuple)
    }
    /// Does the socket with this cookie still listen on this address and port?
    fn is_listening(&mut self, _cookie: u64, _addr: IpAddr, _port: u16) -> bool {
        false
    }
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
    /// Ports of an interface that was made anew, since the last call. Asked for after a change.
    fn new_ports(&mut self) -> Vec<NewPort> {
        Vec::new()
    }
    /// Have routes or neighbours changed since the last call? The slow thread asks whenever it runs.
    fn changed(&mut self) -> bool;
}
