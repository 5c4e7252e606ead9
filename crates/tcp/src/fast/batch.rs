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

/// The segments of one call of `FastPath::receive`. Its memory is kept from batch to batch, and a segment, which is large, is parsed
/// where it stays.
#[derive(Debug)]
pub(super) struct Batch {
    places: Vec<Item>,
    len: usize,
}

impl Batch {
    /// Room for so many without an allocation.
    pub fn with_capacity(items: usize) -> Self {
        Self { places: Vec::with_capacity(items), len: 0 }
    }
    /// Forgets all.
    pub fn clear(&mut self) {
        self.len = 0;
    }
    /// The place of the next item, with anything in it; not yet one of them.
    #[inline]
    pub fn place(&mut self) -> &mut Item {
        if self.len == self.places.len() {
            self.places.push(Item { flow: FlowId(0), frame: 0, segment: Segment::NONE, copy: Copy::default() });
        }
        &mut self.places[self.len]
    }
    /// What is in the next item's place is one.
    #[inline]
    pub fn take(&mut self) {
        self.len += 1;
    }
    /// All of them.
    #[inline]
    pub fn items(&mut self) -> &mut [Item] {
        &mut self.places[..self.len]
    }
}
