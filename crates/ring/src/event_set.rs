//! One event queue of a region with the words of all its slots, found once for the events of a turn.

use crate::dirty::DirtySet;
use crate::{Region, Slot};
use core::sync::atomic::AtomicU32;

/// The event queue of one thread of the stack for one context.
#[derive(Clone, Copy)]
pub struct EventSet<'a> {
    queue: DirtySet<'a>,
    sequences: &'a [AtomicU32],
    /// As many as `sequences`.
    acknowledgements: &'a [AtomicU32],
}

impl<'a> EventSet<'a> {
    /// That of a region. Numbers beyond the region's are taken as in [`Region::events`].
    #[inline]
    pub fn of(region: &'a Region, context: usize, thread: usize) -> Self {
        let (sequences, acknowledgements) = region.all_event_words(context, thread);
        debug_assert!(sequences.len() == acknowledgements.len());
        Self { queue: region.events(context, thread), sequences, acknowledgements }
    }
    /// [`DirtySet::push_fenced`] of one of the region's slots.
    #[inline(always)]
    pub fn push_fenced(&self, tail: &mut u32, slot: Slot) -> bool {
        let Some(seq) = self.sequences.get(slot.index()) else { return false };
        // SAFETY: there is an acknowledgement for each sequence.
        let ack = unsafe { self.acknowledgements.get_unchecked(slot.index()) };
        self.queue.push_fenced(tail, slot, seq, ack)
    }
}
