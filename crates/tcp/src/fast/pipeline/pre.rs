//! First stage, replicated: parse, verify the checksum, hash the addresses. It knows nothing of flows.

use super::items::{Found, Received, Slot};
use super::order::put;
use crate::buffers::RxBatch;
use crate::counters::Counters;
use crate::fast::batch::Batch;
use crate::fast::lookup::{Hashed, Hasher};
use crate::fast::pre;
use crate::flow::{FourTuple, PortId};
use rtrb::{Consumer, Producer};
use towpath_wire::offload::RxChecksum;
use towpath_wire::segment::{SackBlocks, ends_are_possible};

/// A replica.
#[derive(Debug)]
pub struct Pre<F> {
    arrivals: Consumer<Slot<F>>,
    parsed: Producer<Slot<F>>,
    /// What it works on. It stays here while it does, so that a panic does not lose it.
    in_hand: Option<Slot<F>>,
    hasher: Hasher,
    counters: Counters,
    abandoned: u64,
    batch: Batch<Hashed>,
    sacks: Vec<SackBlocks>,
}

/// One frame is a batch.
struct One<'a, F>(&'a Received<F>);

impl<F: AsRef<[u8]>> RxBatch for One<'_, F> {
    #[inline]
    fn len(&self) -> usize {
        1
    }
    #[inline]
    fn bytes(&self, _: usize) -> &[u8] {
        self.0.bytes()
    }
    #[inline]
    fn checksum(&self, _: usize) -> RxChecksum {
        self.0.checksum
    }
}

/// Takes every segment for one of an installed flow.
struct Hashing<'a> {
    hasher: &'a Hasher,
    counters: &'a mut Counters,
    sacks: &'a mut Vec<SackBlocks>,
    slow: &'a mut bool,
}

impl pre::Around for Hashing<'_> {
    type Flow = Hashed;
    #[inline]
    fn find(&self, tuple: &FourTuple) -> Option<Hashed> {
        Some(self.hasher.hash(tuple))
    }
    #[inline]
    fn find_v4(&self, ends: ([u8; 8], [u8; 4])) -> Option<Hashed> {
        // Nothing is looked up here, which would find that no flow has such ends.
        ends_are_possible(ends).then(|| self.hasher.hash_v4(ends))
    }
    #[inline]
    fn sacks(&mut self) -> &mut Vec<SackBlocks> {
        self.sacks
    }
    #[inline]
    fn counters(&mut self) -> &mut Counters {
        self.counters
    }
    fn pass_to_slow(&mut self, _: PortId, _: &[u8]) {
        *self.slow = true;
    }
}

impl<F: AsRef<[u8]>> Pre<F> {
    pub(super) fn new(arrivals: Consumer<Slot<F>>, parsed: Producer<Slot<F>>, hasher: Hasher) -> Self {
        let (counters, batch, sacks) = (Counters::default(), Batch::with_capacity(1), Vec::with_capacity(1));
        Self { arrivals, parsed, in_hand: None, hasher, counters, abandoned: 0, batch, sacks }
    }

    /// Handles one frame. False: there is none.
    #[inline]
    pub fn step(&mut self) -> bool {
        let taken = self.take();
        self.work();
        taken
    }

    /// Takes the next frame in hand.
    #[inline]
    pub(super) fn take(&mut self) -> bool {
        if self.in_hand.is_none() {
            self.in_hand = self.arrivals.pop().ok();
        }
        self.in_hand.is_some()
    }

    /// Handles the frame in hand.
    #[inline]
    fn work(&mut self) {
        let Self { in_hand, hasher, counters, batch, sacks, .. } = self;
        let Some(slot) = in_hand else { return };
        sacks.clear();
        let mut slow = false;
        let around = Hashing { hasher, counters, sacks, slow: &mut slow };
        pre::run(around, slot.port, &One(slot), batch);
        let found = match batch.items() {
            [item, ..] => {
                (slot.at, slot.segment) = (item.flow, item.segment);
                if let Some(sack) = sacks.first() {
                    slot.sack = *sack;
                }
                Found::Segment
            }
            [] if slow => Found::Slow,
            [] => Found::Nothing,
        };
        self.hand_on(found);
    }

    #[inline]
    fn hand_on(&mut self, found: Found) {
        if let Some(mut slot) = self.in_hand.take() {
            slot.found = found;
            put(&mut self.parsed, slot);
        }
    }

    /// The thread has ended in the middle of a step; this one takes over. A frame in hand may be what has ended it, so it is
    /// dropped, as if lost on the wire.
    pub fn recover(&mut self) {
        self.abandoned += u64::from(self.in_hand.is_some());
        self.hand_on(Found::Nothing);
    }

    /// Frames that were dropped because a thread has ended.
    pub fn abandoned(&self) -> u64 {
        self.abandoned
    }

    /// What this replica has counted.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The number of what it has in hand.
    #[cfg(test)]
    pub(super) fn holds(&self) -> Option<u64> {
        self.in_hand.as_ref().map(|item| item.number)
    }
}
