//! What the network asks of the steering program.

use crate::follow::Reopened;
use rustix::fd::BorrowedFd;
use std::collections::HashSet;
use std::net::IpAddr;
use towpath_fast::SynCounts;
use towpath_ports::forward::Splice;
use towpath_ports::listening::Listening;
use towpath_ports::steering::SteerError;
use towpath_tcp::flow::FourTuple;
use towpath_tcp::slow::Steered;

/// Steers packets of the served interfaces to us. Each has a place.
pub trait Steer: Send {
    /// Begins, changes or ends the steering of a connection.
    fn flow(&mut self, tuple: &FourTuple, steered: Steered);
    /// Has the kernel send on what comes on a steered connection.
    fn forward(&mut self, _tuple: &FourTuple, _splice: &Splice) {}
    /// All is ours again. Returns the element as it was at last.
    fn end_forwarding(&mut self, _tuple: &FourTuple) -> Option<Splice> {
        None
    }
    /// The element of such a connection, with what the kernel has counted.
    fn forwarded(&self, _tuple: &FourTuple) -> Option<Splice> {
        None
    }
    /// The filter for listening sockets.
    fn listening(&mut self) -> Option<&mut Listening>;
    /// Takes first SYNs that come over this device of an interface; `None`: the kernel has no device, so all TCP is steered.
    fn serve(&mut self, _place: u32, _device: Option<u32>) -> Result<(), SteerError> {
        Ok(())
    }
    /// The host has these addresses. SYNs to others are never taken before the kernel's firewall. `None`: nor are any to these.
    fn know(&mut self, _addresses: Option<&HashSet<IpAddr>>) {}
    /// Interfaces may have new receive queues.
    fn look_for_queues(&mut self) {}
    /// The interface was made anew.
    fn reopened(&mut self, _place: u32) -> Option<Reopened> {
        None
    }
    /// The next frame of a receive queue without a port, and the place of its interface.
    fn next_stray(&mut self) -> Option<(u32, Box<[u8]>)> {
        None
    }
    /// The descriptor that is readable while such frames wait.
    fn strays(&mut self) -> Option<BorrowedFd<'_>> {
        None
    }
    /// The filter's counts.
    fn syn_counts(&self) -> SynCounts {
        SynCounts::default()
    }
}
