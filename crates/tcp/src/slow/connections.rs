//! The table of connections that are being opened or are installed in a fast path.

use super::active_flows::Activity;
use super::congestion::Algorithm;
use super::ending::Ending;
use super::keepalive::Keepalive;
use super::opening::Opening;
use super::path_mtu::PathMtu;
use super::timers::Stamp;
use crate::flow::{FlowId, FourTuple, Link, Owner, SocketOptions};
use std::collections::{HashMap, VecDeque};
use towpath_wire::icmp::IcmpError;

/// Freed numbers are reused only when this many are free, so that late messages about an old flow do not reach a new
/// one.
const REUSE_DISTANCE: usize = 64;

/// An entry of the table of connections.
pub(super) struct ConnectionEntry {
    /// Its owner; a child has its own, not its listener's.
    pub owner: Owner,
    /// Its tuple. The local part is chosen once `bound`.
    pub tuple: FourTuple,
    /// Can it be found by its tuple?
    pub bound: bool,
    /// Has the host been told to steer this tuple to us?
    pub steered: bool,
    /// The flow group that owns it.
    pub flow_group: usize,
    /// Congestion control set for this connection.
    pub congestion: Option<Algorithm>,
    /// The stamp of its current timer.
    pub timer: Stamp,
    /// Its phase.
    pub phase: Phase,
}

impl ConnectionEntry {
    /// A new connection in its handshake.
    pub(super) fn opening(owner: Owner, tuple: FourTuple, opening: Opening, flow_group: usize) -> Self {
        let phase = Phase::Opening(Box::new(opening));
        Self { owner, tuple, bound: false, steered: false, flow_group, congestion: None, timer: Stamp::NONE, phase }
    }
}

/// The phase of a connection.
pub(super) enum Phase {
    /// In the handshake.
    Opening(Box<Opening>),
    /// Installed in a fast path.
    Installed(Box<Installed>),
    /// One end of a direct connection.
    Direct,
}

/// An installed connection.
pub(super) struct Installed {
    /// `Remove` has been sent, and only `Removed` is awaited.
    pub removing: bool,
    /// What has ended it, once that is known.
    pub ending: Option<Ending>,
    /// Is it spliced with another one?
    pub splice: SpliceState,
    /// The application has closed it.
    pub orphan: bool,
    /// The peer closed first.
    pub passive: bool,
    /// The FIN-WAIT-2 timer runs.
    pub fin_wait: bool,
    /// It is on the list of flows to check in the next `poll`.
    pub look: bool,
    /// The fast path has reported a loss since the last check.
    pub lost: bool,
    /// The fast path has reported since the last check that its last loss was spurious.
    pub undone: bool,
    /// The snapshot's flags at the last check.
    pub flags: u64,
    /// The link of its frames, and its MTU, of the last route that was known.
    pub link: Link,
    /// See `link`.
    pub mtu: u16,
    /// Timestamps agreed?
    pub timestamps: bool,
    /// Offset of our timestamps.
    pub ts_offset: u32,
    /// The socket's options.
    pub options: SocketOptions,
    /// The keepalive timer.
    pub keepalive: Keepalive,
    /// errno of the last ICMP error that did not end the connection. An acknowledgement of new data clears it.
    pub soft_error: Option<i32>,
    /// An ICMP error that has not been handled yet.
    pub icmp: Option<IcmpError>,
    /// Path MTU discovery.
    pub path: PathMtu,
    /// Largest payload per packet that the peer accepts.
    pub peer_payload: u16,
    /// Retransmission, persist and congestion control.
    pub activity: Activity,
}

/// How far a connection is with being spliced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SpliceState {
    /// Nobody has asked for it.
    No,
    /// It is asked for.
    Asked,
    /// It rests, and its segments are translated. This is the first flow of the two.
    Begun(FlowId),
}

impl Installed {
    /// Does it rest, and are its segments translated?
    pub(super) fn is_spliced(&self) -> bool {
        matches!(self.splice, SpliceState::Begun(_))
    }
}

/// All connections, by flow number, tuple and owner.
#[derive(Default)]
pub(super) struct ConnectionTable {
    slots: Vec<Option<Box<ConnectionEntry>>>,
    free: VecDeque<FlowId>,
    max: u32,
    by_tuple: HashMap<FourTuple, FlowId>,
    by_owner: HashMap<Owner, FlowId>,
}

impl ConnectionTable {
    /// An empty table for up to `max` connections.
    pub(super) fn new(max: u32) -> Self {
        Self { max, ..Self::default() }
    }
    /// Is there room for another connection?
    pub(super) fn has_room(&self) -> bool {
        !self.free.is_empty() || self.slots.len() < self.max as usize
    }
    /// Adds a connection under a new number; `None` = full. Its tuple is entered if it is `bound`.
    pub(super) fn insert(&mut self, connection: ConnectionEntry) -> Option<FlowId> {
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
    /// Removes a connection and frees its number.
    pub(super) fn remove(&mut self, id: FlowId) -> Option<Box<ConnectionEntry>> {
        let connection = self.slots.get_mut(id.0 as usize)?.take()?;
        self.by_owner.remove(&connection.owner);
        if connection.bound {
            self.by_tuple.remove(&connection.tuple);
        }
        self.free.push_back(id);
        Some(connection)
    }
    /// By number.
    pub(super) fn get(&self, id: FlowId) -> Option<&ConnectionEntry> {
        self.slots.get(id.0 as usize)?.as_deref()
    }
    /// By number.
    pub(super) fn get_mut(&mut self, id: FlowId) -> Option<&mut ConnectionEntry> {
        self.slots.get_mut(id.0 as usize)?.as_deref_mut()
    }
    /// By number, if it is in its handshake.
    pub(super) fn opening(&mut self, id: FlowId) -> Option<&mut Opening> {
        match &mut self.get_mut(id)?.phase {
            Phase::Opening(opening) => Some(opening),
            Phase::Installed(_) | Phase::Direct => None,
        }
    }
    /// By number, if it is installed, and neither being removed nor spliced.
    pub(super) fn running(&mut self, id: FlowId) -> Option<&mut Installed> {
        match &mut self.get_mut(id)?.phase {
            Phase::Installed(installed) if !installed.removing && !installed.is_spliced() => Some(installed),
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
    /// One more than the highest number ever used.
    pub(super) fn high_water(&self) -> u32 {
        self.slots.len() as u32
    }
    /// All connections, by number.
    pub(super) fn iter(&self) -> impl Iterator<Item = (FlowId, &ConnectionEntry)> {
        self.slots.iter().zip(0..).filter_map(|(slot, id)| Some((FlowId(id), slot.as_deref()?)))
    }
}
