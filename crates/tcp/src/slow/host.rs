//! The interface of the slow path to its environment.

use super::ending::Ending;
use super::errno::EOPNOTSUPP;
use super::translation::{Forwarded, Translation};
use crate::flow::{FlowId, FlowSetup, FlowSnapshot, FourTuple, Link, Owner, PortId, RingBytes};
use crate::messages::ToFast;
use std::net::IpAddr;

/// The route to a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// Over this link, from this source address, with packets of up to `mtu` bytes.
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
    /// The service does not carry it: the program shall use the kernel.
    NotOurs,
    /// The errno (positive) that Linux would return.
    Unreachable(i32),
}

/// The policy's verdict on a SYN for a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Answer it. The connection uses this congestion control (`Algorithm::id`), 0 = the listener's.
    Yes(u8),
    /// Drop it.
    Drop,
    /// Answer it with RST.
    Refuse,
}

/// Which segments of a tuple come to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Steered {
    /// None.
    No,
    /// None, nor any that would answer a cookie: the host's kernel has a connection of the tuple.
    Kernels,
    /// All. We have sent the first SYN.
    All,
    /// All but first SYNs. The host hands them over by [`super::SlowPath::on_syn`], as it names the listener of each.
    ButFirstSyns,
    /// The same, while a cookie is valid that has answered the tuple's SYN. There may be too many of them to keep all.
    AnswerToCookie,
}

/// What became of the first SYN of an active open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstSyn {
    /// Nothing: it goes through its port, like any segment.
    ByPort,
    /// The host has sent it.
    Sent,
    /// The host's rules refuse it, or change its addresses.
    Refused,
}

/// The environment of the slow path. The fast stack's slow thread and the simulator implement it.
pub trait Host {
    /// The route to `remote`, from `local` if the socket is bound.
    fn route(&mut self, remote: IpAddr, local: Option<IpAddr>) -> Route;
    /// Is this one of our own addresses on a port that we serve?
    fn is_local(&self, addr: IpAddr) -> bool;
    /// Has this host's kernel a connection with this tuple? Called for a local port that the application has chosen.
    fn kernel_has(&mut self, _tuple: &FourTuple) -> bool {
        false
    }
    /// Ports that the host holds from now on for connections whose sockets are not bound (`SlowConfig::held_ports`).
    fn more_ports(&mut self) -> Vec<u16> {
        Vec::new()
    }
    /// The host need not hold these ports any more.
    fn give_back_ports(&mut self, _ports: Vec<u16>) {}
    /// The user of this owner: his share of the held ports its connections use, and his listeners' cookies are valid for
    /// each other.
    fn user(&self, _owner: Owner) -> u32 {
        0
    }
    /// The flow group that shall own a connection with this tuple. `came_to`: the one on whose receive queue the last segment
    /// of its handshake has come, as all later ones will. To hand them on to another group would cost more than to handle
    /// them.
    fn flow_group_for(&self, tuple: &FourTuple, came_to: Option<usize>) -> usize;
    /// Sends a message to a flow group's fast path. Messages are never lost or reordered.
    fn send(&mut self, flow_group: usize, message: ToFast);
    /// Sends the SYN of an active open, if the host's rules judge such SYNs. The tuple is steered already.
    fn send_first_syn(&mut self, _owner: Owner, _tuple: &FourTuple, _port: PortId, _frame: &[u8]) -> FirstSyn {
        FirstSyn::ByPort
    }
    /// Steers this tuple's packets to us from now on, or no longer.
    fn steer(&mut self, tuple: &FourTuple, steered: Steered);
    /// Do listeners belong to the host, which has decided that there may be one, and names the listener of each SYN? Then
    /// they are never in each other's way here.
    fn names_listeners(&self) -> bool {
        false
    }
    /// The listener of this host that the host names for a first SYN from within it, whose tuple is seen from the listener.
    /// Asked if [`Host::names_listeners`] and [`Host::finds_listeners`].
    fn listener_of(&mut self, _tuple: &FourTuple) -> Option<Owner> {
        None
    }
    /// May a first SYN that comes in on this port look for its listener, as the host has not named it?
    fn finds_listeners(&self, _port: PortId) -> bool {
        true
    }
    /// Starts or ends the steering of segments to this listening address and port, unless the host names listeners.
    fn steer_listener(&mut self, addr: IpAddr, port: u16, on: bool);
    /// May this peer connect to this listener? Called for each SYN that would begin a connection, and for the answer to
    /// a cookie, right before `new_child`.
    fn admit(&mut self, _listener: Owner, _tuple: &FourTuple) -> Admission {
        Admission::Yes(0)
    }
    /// The sharing class of an owner's flows (`FlowSetup::class`). Called when a flow is installed.
    fn class(&self, _owner: Owner) -> u16 {
        0
    }
    /// Reserves a socket for a new connection of a listener, before the application sees it. `None` = no room, and the
    /// peer gets no answer.
    fn new_child(&mut self, listener: Owner) -> Option<Owner>;
    /// Do half-open connections of this listener's application have so many sockets that the rest is to be kept for
    /// established ones? Then SYNs are answered with cookies, if those are allowed.
    fn spares_children(&mut self, _listener: Owner) -> bool {
        false
    }
    /// Undoes `new_child` for a connection that was never established.
    fn drop_child(&mut self, child: Owner);
    /// Ring sizes for a connection of this owner.
    fn ring_bytes(&self, owner: Owner) -> RingBytes;
    /// The connection is established. Called before `Install` is sent, to set up the application's view. The
    /// application may act before the fast path has processed `Install`. For a child it is called again, with a newer
    /// setup, if `accepted` was false. `flow_group`: its owner from now on.
    fn established(&mut self, owner: Owner, setup: &FlowSetup, flow_group: usize);
    /// Has the listener's accept queue no room? SYNs are dropped then.
    fn accept_queue_full(&mut self, listener: Owner) -> bool;
    /// Puts an established child into its listener's accept queue. Called after `established`, before `Install` is
    /// sent. False = the queue is full, and no `Install` follows. The peer's next segment, or our next SYN-ACK, makes
    /// another attempt.
    fn accepted(&mut self, listener: Owner, child: Owner, tuple: &FourTuple) -> bool;
    /// Is there something that translates segments, and may it translate those of this owner?
    fn may_splice(&self, _: Owner) -> bool {
        false
    }
    /// Has segments translated from now on, in both directions. An error (positive errno): nothing can, or not so many.
    fn splice(&mut self, _: &[Translation; 2]) -> Result<(), i32> {
        Err(EOPNOTSUPP)
    }
    /// A translation has another link, or the host translates in another way. False: no translation leads over this link.
    fn resplice(&mut self, _: &Translation) -> bool {
        true
    }
    /// What has become of the segments that have come on this connection; `None` = they are no longer translated.
    fn forwarded(&mut self, _: &FourTuple) -> Option<Forwarded> {
        None
    }
    /// So many bytes of the peer of this socket, which is spliced, have arrived at the other peer by now.
    fn passed_on(&mut self, _: Owner, _bytes: u64) {}
    /// Has this segment translated, which came on this port before the others. It goes the way of received frames.
    fn translate(&mut self, _flow_group: usize, _port: PortId, frame: Box<[u8]>) {
        drop(frame);
    }
    /// The segments of this connection are no longer translated.
    fn unsplice(&mut self, _: &FourTuple) {}
    /// The answer to the `splice` of a socket with this number: 0, or a positive errno.
    fn splice_answered(&mut self, _: Owner, _command: u32, _errno: i32) {}
    /// A transient error (positive errno) of a connection whose application has asked for such reports.
    fn soft_error(&mut self, _owner: Owner, _errno: i32) {}
    /// A connection has ended, or was not established. `released` follows.
    fn ended(&mut self, _owner: Owner, _tuple: &FourTuple, _why: Ending) {}
    /// An active open has failed with this errno (positive).
    fn connect_failed(&mut self, owner: Owner, errno: i32);
    /// The owner has been removed from every table. Its slot may be reused once the application has closed it, too.
    ///
    /// Called exactly once for every owner that `listen` or `connect` accepted, and for every child that was
    /// `accepted`. Other children get `drop_child` instead. It follows `connect_failed` at once. `flow`: its number, if
    /// it was installed.
    fn released(&mut self, owner: Owner, flow: Option<FlowId>);
    /// 64 random bits for sequence numbers, ports and hash keys.
    fn random(&mut self) -> u64;
}

/// A source of flow snapshots: the flow table, or a test's substitute.
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
