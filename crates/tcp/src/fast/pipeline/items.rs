//! What the rings between the stages carry.

use crate::fast::batch::Copy;
use crate::fast::lookup::Hashed;
use crate::fast::segment::Segment;
use crate::flow::{FlowId, PortId};
use crate::messages::{AppView, FlowEvent, ToSlow};
use towpath_wire::offload::{RxChecksum, TxOffload};
use towpath_wire::segment::SackBlocks;

/// A received frame.
#[derive(Debug)]
pub(super) struct Arrival<F> {
    pub frame: F,
    pub checksum: RxChecksum,
    pub port: PortId,
    /// The last of its batch.
    pub last: bool,
}

/// A received frame that has been parsed.
#[derive(Debug)]
pub(super) struct Parsed<F> {
    pub arrival: Arrival<F>,
    pub found: Found,
}

/// What a frame is.
#[derive(Debug)]
pub(super) enum Found {
    /// A segment, perhaps of an installed flow.
    Segment { at: Hashed, segment: Segment, sack: SackBlocks },
    /// Something else for the slow path.
    Slow,
    /// Nothing: it is counted, or its replica has ended.
    Nothing,
}

/// Payload to be copied into a receive ring.
#[derive(Debug)]
pub(super) struct Job<F> {
    pub flow: FlowId,
    pub copy: Copy,
    pub frame: F,
}

/// A frame whose payload is copied.
#[derive(Debug)]
pub(super) struct Copied<F> {
    pub frame: F,
    /// The copy was given up: its flow, and where in the receive ring it begins.
    pub failed: Option<(FlowId, u32)>,
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
