//! What the stages hand on to each other.

use crate::flow::FlowId;
use towpath_wire::segment::Segment;

/// One received segment of an installed flow on its way through the stages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Item {
    /// Whose.
    pub flow: FlowId,
    /// Its frame's number in the received batch.
    pub frame: u32,
    /// Its headers.
    pub segment: Segment,
    /// What the protocol stage wants copied.
    pub copy: Copy,
}

/// A piece of a frame to be copied into the receive ring; `len` 0 = nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Copy {
    /// Position in the receive ring.
    pub position: u32,
    /// Offset in the frame.
    pub offset: u32,
    /// Bytes.
    pub len: u32,
}

/// The segments of one call of `FastPath::receive`. Its memory is kept from batch to batch.
pub(super) type Batch = Vec<Item>;
