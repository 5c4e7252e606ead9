//! What the rings between the stages carry.

use super::order::Placed;
use crate::fast::batch::Copy;
use crate::fast::lookup::Hashed;
use crate::fast::segment::Segment;
use crate::flow::{FlowId, PortId};
use crate::messages::{AppView, FlowEvent, ToSlow};
use towpath_wire::offload::{RxChecksum, TxOffload};
use towpath_wire::segment::SackBlocks;

/// A received frame, with all that the stages find out about it. It stays in its place of memory, and goes through the rings as a
/// pointer: what an item holds is written once. The first cache line has what is read of each frame.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Received<F> {
    /// Among the received frames, later among the copies.
    pub number: u64,
    pub segment: Segment,
    pub port: PortId,
    pub checksum: RxChecksum,
    /// The last of its batch.
    pub last: bool,
    pub found: Found,
    /// The copy was given up.
    pub failed: bool,
    /// The addresses of a segment.
    pub at: Hashed,
    /// The payload that is to be copied, and whose it is.
    pub flow: FlowId,
    pub copy: Copy,
    /// `None`: this place is free.
    pub frame: Option<F>,
    /// Of a segment that has any.
    pub sack: SackBlocks,
}

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// A segment, perhaps of an installed flow.
    Segment,
    /// Something else for the slow path.
    Slow,
    /// Nothing: it is counted, or its replica has ended.
    Nothing,
}

/// A frame in the rings.
pub(super) type Slot<F> = Box<Received<F>>;

impl<F> Received<F> {
    /// A free place.
    pub fn free() -> Slot<F> {
        Box::new(Self {
            number: 0,
            segment: Segment::default(),
            port: PortId::default(),
            checksum: RxChecksum::Unknown,
            last: false,
            found: Found::Nothing,
            failed: false,
            at: Hashed::default(),
            flow: FlowId::default(),
            copy: Copy::default(),
            frame: None,
            sack: SackBlocks::NONE,
        })
    }
}

impl<F: AsRef<[u8]>> Received<F> {
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        self.frame.as_ref().map_or(&[], AsRef::as_ref)
    }
}

impl<F> Placed for Slot<F> {
    #[inline]
    fn number(&self) -> u64 {
        self.number
    }
}

/// Where the payload of a frame lies.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fetch {
    pub flow: FlowId,
    pub position: u32,
    pub len: usize,
}

/// A frame with its headers.
#[derive(Debug)]
pub(super) struct Planned<F> {
    /// Copies that the flow group had ordered before it.
    pub after: u64,
    pub frame: F,
    pub port: PortId,
    /// Bytes, payload included.
    pub len: usize,
    /// Its payload, at its end.
    pub fetch: Option<Fetch>,
    pub offload: TxOffload,
    /// The checksum is to be computed, not left to the port.
    pub sum: bool,
}

/// Something that the flow group has made.
#[derive(Debug)]
pub(super) struct Made<F> {
    /// Copies that the flow group had ordered before it.
    pub after: u64,
    pub what: What<F>,
}

/// See [`Made`].
#[derive(Debug)]
pub(super) enum What<F> {
    Output(Output<F>),
    /// A frame whose replica has ended.
    Abandoned(F),
}

/// What leaves the pipeline.
#[derive(Debug)]
pub enum Output<F> {
    /// The first `len` bytes of a frame for a port. Afterwards the frame is given back by [`super::Commit::give_back`].
    Frame {
        /// The port.
        port: PortId,
        /// The frame.
        frame: F,
        /// Its bytes.
        len: usize,
        /// What is left to the port.
        offload: TxOffload,
    },
    /// Events of a flow, with the words that are shown to its application.
    Event(FlowEvent, AppView),
    /// A message for the slow path.
    Message(ToSlow),
}

/// What the ports do themselves. All ports of a pipeline do the same.
#[derive(Clone, Copy, Debug, Default)]
pub struct Abilities {
    /// See [`crate::buffers::TxPorts::tx_checksum`].
    pub checksum: bool,
    /// See [`crate::buffers::TxPorts::gso_max_bytes`].
    pub gso_max_bytes: u32,
}
