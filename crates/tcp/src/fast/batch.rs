//! The batch that receiving stages hand on to each other.

use crate::flow::FlowId;
use towpath_wire::segment::Segment;

/// One received segment of an installed flow on its way through the stages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Item {
    /// Its flow.
    pub flow: FlowId,
    /// Its frame's number in the received batch.
    pub frame: u32,
    /// Its headers.
    pub segment: Segment,
    /// The piece that the protocol stage wants copied.
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

/// The segments of one call of `FastPath::receive`. Its memory is kept from batch to batch. A segment, which is large,
/// is parsed where it stays.
#[derive(Debug)]
pub(super) struct Batch {
    items: Vec<Item>,
    len: usize,
}

impl Batch {
    /// Room for this many items without an allocation.
    pub fn with_capacity(items: usize) -> Self {
        Self { items: Vec::with_capacity(items), len: 0 }
    }
    /// Forgets all items.
    pub fn clear(&mut self) {
        self.len = 0;
    }
    /// Room for the next item, with an old one in it. It joins the batch when [`Batch::take`] is called.
    #[inline]
    pub fn next(&mut self) -> &mut Item {
        if self.len == self.items.len() {
            self.items.push(Item { flow: FlowId(0), frame: 0, segment: Segment::NONE, copy: Copy::default() });
        }
        &mut self.items[self.len]
    }
    /// Adds the item that [`Batch::next`] has returned.
    #[inline]
    pub fn take(&mut self) {
        self.len += 1;
    }
    /// All items.
    #[inline]
    pub fn items(&mut self) -> &mut [Item] {
        &mut self.items[..self.len]
    }
}
