//! One end of a direct connection, and a client's table of pairs.

use towpath_ring::lines::pair_slot;
use towpath_ring::pair::PLACES;

/// One end of a direct connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectEnd {
    /// Index of the pair.
    pub pair: usize,
    /// Number of the pair.
    pub number: u32,
    /// Its slot in the pair's region.
    pub slot: u32,
    /// Which side it is.
    pub side: usize,
    /// The pair's place among the client's.
    pub place: u32,
}

impl DirectEnd {
    /// The other end.
    pub fn opposite(&self) -> Self {
        Self { side: 1 - self.side, place: u32::MAX, ..*self }
    }

    /// `StackLine::pair_slot`.
    pub fn word(&self) -> u32 {
        pair_slot::of(self.slot, self.side as u32, self.place)
    }
}

/// A client's places without pairs.
pub fn places() -> Vec<Option<usize>> {
    vec![None; PLACES]
}
