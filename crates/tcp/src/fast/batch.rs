//! The batch that receiving stages hand on to each other.

use super::segment::Segment;
use crate::flow::FlowId;

/// One received segment of an installed flow on its way through the stages.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Item<Flow = FlowId> {
    /// Its flow, or what is known of it.
    pub flow: Flow,
    /// Its frame's number in the received batch.
    pub frame: u32,
    /// Its variables.
    pub segment: Segment,
    /// The piece that the protocol stage wants copied. Before that stage it means nothing.
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
#[derive(Debug)]
pub(super) struct Batch<Flow = FlowId> {
    places: Vec<Item<Flow>>,
    used: usize,
}

impl<Flow: Clone + Default> Batch<Flow> {
    /// Room for this many items without an allocation.
    pub fn with_capacity(items: usize) -> Self {
        Self { places: vec![Item::default(); items], used: 0 }
    }
    /// Places for this many items, whose old contents mean nothing. Items are made in them, field by field.
    #[inline(always)]
    pub fn places(&mut self, most: usize) -> &mut [Item<Flow>] {
        if most > self.places.len() {
            self.grow(most);
        }
        &mut self.places[..most]
    }
    #[cold]
    #[inline(never)]
    fn grow(&mut self, most: usize) {
        self.places.resize(most, Item::default());
    }
    /// The first so many places have the batch's items.
    #[inline]
    pub fn set_used(&mut self, used: usize) {
        self.used = used;
    }
    /// All items.
    #[inline]
    pub fn items(&mut self) -> &mut [Item<Flow>] {
        &mut self.places[..self.used]
    }
}
