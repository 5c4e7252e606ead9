//! The table of connections that are being opened or are installed in a fast path.

use super::active::Activity;
use super::congestion::Algorithm;
use super::keepalive::Keepalive;
use super::negotiate::Opening;
use super::path_mtu::PathMtu;
use super::timers::Stamp;
use crate::flow::{FlowId, FourTuple, Link, Owner, SocketOptions, flow_flags};
use std::collections::{HashMap, VecDeque};
use towpath_wire::icmp::IcmpError;

/// Freed numbers wait until this many newer ones are free, so that what is still said of an old flow does not meet a new one.
const REUSE_DISTANCE: usize = 64;

/// States of RFC 9293 §3.3.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum State {
    Listen,
    SynSent,
    SynReceived,
    Established,
    FinWait1,
    FinWait2,
    Closing,
    CloseWait,
    LastAck,
    TimeWait,
    Closed,
}

impl State {
    /// As a number of Linux's `tcp_states.h`.
    pub fn linux_number(self) -> u32 {
        match self {
            Self::Established => 1,
            Self::SynSent => 2,
            Self::SynReceived => 3,
            Self::FinWait1 => 4,
            Self::FinWait2 => 5,
            Self::TimeWait => 6,
            Self::Closed => 7,
            Self::CloseWait => 8,
            Self::LastAck => 9,
            Self::Listen => 10,
            Self::Closing => 11,
        }
    }

    /// As `ss` prints it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Listen => "LISTEN",
            Self::SynSent => "SYN-SENT",
            Self::SynReceived => "SYN-RECV",
            Self::Established => "ESTAB",
            Self::FinWait1 => "FIN-WAIT-1",
            Self::FinWait2 => "FIN-WAIT-2",
            Self::Closing => "CLOSING",
            Self::CloseWait => "CLOSE-WAIT",
            Self::LastAck => "LAST-ACK",
            Self::TimeWait => "TIME-WAIT",
            Self::Closed => "UNCONN",
        }
    }
    /// The state of an installed flow, from [`FlowSnapshot::flags`](crate::flow::FlowSnapshot::flags).
    pub fn of_flags(flags: u64) -> Self {
        let has = |bit| flags & bit != 0;
        // RFC 9293 §3.10.4: CLOSE enters the next state at once, also where the FIN has to wait for data or the window.
        match (has(flow_flags::FIN_WANTED), has(flow_flags::FIN_ACKED), has(flow_flags::FIN_RECEIVED)) {
            (false, _, false) => Self::Established,
            (false, _, true) => Self::CloseWait,
            (true, false, false) => Self::FinWait1,
            (true, true, false) => Self::FinWait2,
            (true, false, true) if has(flow_flags::PASSIVE_CLOSE) => Self::LastAck,
            (true, false, true) => Self::Closing,
            (true, true, true) if has(flow_flags::PASSIVE_CLOSE) => Self::Closed,
            (true, true, true) => Self::TimeWait,
        }
    }
}

/// What the slow path knows of one connection.
pub(super) struct Connection {
    /// Whose it is; for a child its own, not its listener's.
    pub owner: Owner,
    /// Its addresses; ours are known once `bound`.
    pub tuple: FourTuple,
    /// Found by its tuple?
    pub bound: bool,
    /// Has the host been told to steer this tuple to us?
    pub steered: bool,
    /// The core that owns it.
    pub core: usize,
    /// Its own choice of congestion control.
    pub congestion: Option<Algorithm>,
    /// Its timer that counts.
    pub timer: Stamp,
    /// How far it is.
    pub phase: Phase,
}

/// How far a connection is.
pub(super) enum Phase {
    /// In the handshake.
    Opening(Box<Opening>),
    /// Handed to a fast path.
    Live(Box<Live>),
    /// One end of a connection within this host that goes without the protocol (see `direct`).
    Direct,
}

/// An installed connection.
pub(super) struct Live {
    /// `Remove` has been sent; only `Removed` is awaited.
    pub removing: bool,
    /// The application has closed it.
    pub orphan: bool,
    /// The peer closed first.
    pub passive: bool,
    /// The FIN-WAIT-2 timer runs.
    pub fin_wait: bool,
    /// On the list of flows to look at in the next `poll`.
    pub look: bool,
    /// The fast path has reported a loss since the last look.
    pub lost: bool,
    /// The fast path has reported since the last look that its last loss was none.
    pub undone: bool,
    /// Snapshot flags at the last look.
    pub flags: u64,
    /// Where its frames go.
    pub link: Link,
    /// Timestamps agreed?
    pub timestamps: bool,
    /// Offset of our timestamps.
    pub ts_offset: u32,
    /// What the application has set on the socket.
    pub options: SocketOptions,
    /// When the peer was last heard.
    pub keepalive: Keepalive,
    /// errno of the last ICMP error that did not end the connection, 0 = none; forgotten when the peer acknowledges something.
    pub soft_error: i32,
    /// An ICMP error that has not been looked at yet.
    pub icmp: Option<IcmpError>,
    /// How large its packets may be.
    pub path: PathMtu,
    /// Most payload per packet that the peer takes.
    pub peer_payload: u16,
    /// Retransmission, persist and congestion control.
    pub activity: Activity,
}

/// All of them, by flow number, tuple and owner.
#[derive(Default)]
pub(super) struct Connections {
    slots: Vec<Option<Box<Connection>>>,
    free: VecDeque<FlowId>,
    max: u32,
    by_tuple: HashMap<FourTuple, FlowId>,
    by_owner: HashMap<Owner, FlowId>,
}

impl Connections {
    /// An empty table for up to `max` connections.
    pub(super) fn new(max: u32) -> Self {
        Self { max, ..Self::default() }
    }
    /// Is there room for one more?
    pub(super) fn has_room(&self) -> bool {
        !self.free.is_empty() || self.slots.len() < self.max as usize
    }
    /// Adds a connection under a number of its own; `None` = full. Its tuple is entered if it is `bound`.
    pub(super) fn insert(&mut self, connection: Connection) -> Option<FlowId> {
        let fresh = self.slots.len() < self.max as usize;
        let id = if fresh && self.free.len() < REUSE_DISTANCE {
            self.slots.push(None);
            FlowId(self.slots.len() as u32 - 1)
        } else {
            self.free.pop_front()?
        };
        self.by_owner.insert(connection.owner, id);
        if connection.bound {
            self.by_tuple.insert(connection.tuple, id);
        }
        self.slots[id.0 as usize] = Some(Box::new(connection));
        Some(id)
    }
    /// Enters the tuple of a connection that was not bound.
    pub(super) fn bind(&mut self, id: FlowId, tuple: FourTuple) {
        if let Some(connection) = self.slots.get_mut(id.0 as usize).and_then(Option::as_mut) {
            connection.tuple = tuple;
            connection.bound = true;
            self.by_tuple.insert(tuple, id);
        }
    }
    /// Takes a connection out and frees its number.
    pub(super) fn remove(&mut self, id: FlowId) -> Option<Box<Connection>> {
        let connection = self.slots.get_mut(id.0 as usize)?.take()?;
        self.by_owner.remove(&connection.owner);
        if connection.bound {
            self.by_tuple.remove(&connection.tuple);
        }
        self.free.push_back(id);
        Some(connection)
    }
    /// By number.
    pub(super) fn get(&self, id: FlowId) -> Option<&Connection> {
        self.slots.get(id.0 as usize)?.as_deref()
    }
    /// By number.
    pub(super) fn get_mut(&mut self, id: FlowId) -> Option<&mut Connection> {
        self.slots.get_mut(id.0 as usize)?.as_deref_mut()
    }
    /// By number, if in the handshake.
    pub(super) fn opening(&mut self, id: FlowId) -> Option<&mut Opening> {
        match &mut self.get_mut(id)?.phase {
            Phase::Opening(opening) => Some(opening),
            Phase::Live(_) | Phase::Direct => None,
        }
    }
    /// By number, if installed and not on its way out.
    pub(super) fn running(&mut self, id: FlowId) -> Option<&mut Live> {
        match &mut self.get_mut(id)?.phase {
            Phase::Live(live) if !live.removing => Some(live),
            _ => None,
        }
    }
    /// By tuple.
    pub(super) fn by_tuple(&self, tuple: &FourTuple) -> Option<FlowId> {
        self.by_tuple.get(tuple).copied()
    }
    /// By owner.
    pub(super) fn by_owner(&self, owner: Owner) -> Option<FlowId> {
        self.by_owner.get(&owner).copied()
    }
    /// One more than the highest number that has ever been in use.
    pub(super) fn high_water(&self) -> u32 {
        self.slots.len() as u32
    }
    /// All, by number.
    pub(super) fn iter(&self) -> impl Iterator<Item = (FlowId, &Connection)> {
        self.slots.iter().zip(0..).filter_map(|(slot, id)| Some((FlowId(id), slot.as_deref()?)))
    }
}
