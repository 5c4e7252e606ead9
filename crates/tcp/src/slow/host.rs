//! What the slow path needs from the world.

use crate::flow::{FlowId, FlowSetup, FlowSnapshot, FourTuple, Link, Owner};
use crate::messages::ToFast;
use std::net::IpAddr;

/// Where a destination is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// Through this link, from this source address, with packets of up to `mtu` bytes.
    Via {
        /// Port and MAC addresses.
        link: Link,
        /// Source address if the socket has none.
        source: IpAddr,
        /// Path MTU in bytes.
        mtu: u16,
    },
    /// The next hop's MAC address is being resolved; `SlowPath::retry_routes` follows.
    Resolving,
    /// Not carried by this service: the program shall use the kernel.
    NotOurs,
    /// errno (positive) that Linux would give.
    Unreachable(i32),
}

/// What the world says to a SYN for a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It may be answered; the connection has this congestion control (`Algorithm::id`), 0 = the listener's.
    Yes(u8),
    /// It is not answered.
    Drop,
    /// It is answered with RST.
    Refuse,
}

/// What the slow path needs from the world. Implemented by the engine's slow thread and by the simulator.
pub trait Host {
    /// The way to `remote` (from `local` if the socket is bound).
    fn route(&mut self, remote: IpAddr, local: Option<IpAddr>) -> Route;
    /// Is this one of our own addresses on a port that we serve?
    fn is_local(&self, addr: IpAddr) -> bool;
    /// Which core shall own a connection with this tuple?
    fn core_for(&self, tuple: &FourTuple) -> usize;
    /// Sends a message to a core. Never lost, never reordered.
    fn send(&mut self, core: usize, message: ToFast);
    /// Packets of this tuple shall come to us from now on / no more.
    fn steer(&mut self, tuple: &FourTuple, on: bool);
    /// Segments to this listening address and port shall come to us from now on / no more.
    fn steer_listener(&mut self, addr: IpAddr, port: u16, on: bool);
    /// May this listener hear from this peer? Asked for each SYN that would begin a connection and for the answer to a
    /// cookie, right before `new_child`.
    fn admit(&mut self, _listener: Owner, _tuple: &FourTuple) -> Admission {
        Admission::Yes(0)
    }
    /// The group of an owner's flows (`FlowSetup::group`); asked when one is installed.
    fn group(&self, _owner: Owner) -> u16 {
        0
    }
    /// Reserves a socket for a connection that a listener got, before it is shown to the application;
    /// `None` = no room, the peer gets no answer.
    fn new_child(&mut self, listener: Owner) -> Option<Owner>;
    /// Undoes `new_child` for a connection that was not established after all.
    fn drop_child(&mut self, child: Owner);
    /// Ring sizes (send, receive) in bytes for a connection of this owner.
    fn ring_bytes(&self, owner: Owner) -> (u32, u32);
    /// The connection is established: called before `Install` is sent. Sets up what the application sees. The application may act
    /// on it before its core has seen `Install`. For a child it is called again, with a newer setup, after `accepted` said no.
    fn established(&mut self, owner: Owner, setup: &FlowSetup);
    /// Puts an established child into its listener's accept queue; called after `established`, before `Install` is sent.
    /// False = queue full: no `Install` follows now; the peer's next segment, or our next SYN-ACK, makes another attempt.
    fn accepted(&mut self, listener: Owner, child: Owner, tuple: &FourTuple) -> bool;
    /// Something that does not end a connection has gone wrong with it, and its application has asked to be told: an errno (positive).
    fn soft_error(&mut self, _owner: Owner, _errno: i32) {}
    /// An active open has failed with this errno (positive).
    fn connect_failed(&mut self, owner: Owner, errno: i32);
    /// The flow of this owner is gone from every table; its slot may be used again once the application has closed it too. Called
    /// exactly once for every owner that `listen` or `connect` accepted, and for every child that was `accepted` (a child that
    /// was not gets `drop_child` instead). After `connect_failed` it follows at once. `flow`: the number it had if it was installed.
    fn released(&mut self, owner: Owner, flow: Option<FlowId>);
    /// 64 random bits for sequence numbers, ports and hash keys.
    fn random(&mut self) -> u64;
}

/// Readings of flows: the flow table, or a test's own.
pub trait Snapshots {
    /// The flow's state now.
    fn snapshot(&self, flow: FlowId) -> FlowSnapshot;
}

impl<T: Snapshots + ?Sized> Snapshots for &T {
    fn snapshot(&self, flow: FlowId) -> FlowSnapshot {
        (**self).snapshot(flow)
    }
}

impl<T: Snapshots + ?Sized> Snapshots for std::sync::Arc<T> {
    fn snapshot(&self, flow: FlowId) -> FlowSnapshot {
        (**self).snapshot(flow)
    }
}

impl Snapshots for crate::fast::FlowTable {
    fn snapshot(&self, flow: FlowId) -> FlowSnapshot {
        self.snapshot(flow)
    }
}
