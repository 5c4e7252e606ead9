//! Coalescing dirty sets: queues of slot numbers as long as the slot table, in which a slot stands at most once, so
//! they cannot overflow. One writer thread (or a writer lock) and one reader thread (or a reader lock) per set.
//!
//! Writer: store the slot's new state, then [`DirtySet::push`], then [`crate::wake::must_ring`].
//! Reader: [`DirtySet::pop`] (which acknowledges, then fences), then load the slot's state.

use crate::Slot;
use core::sync::atomic::AtomicU32;

/// A view of one dirty set in shared memory. Positions are kept by the caller in memory of its own, because the other
/// side may scribble over the shared words.
#[derive(Clone, Copy)]
pub struct DirtySet<'a> {
    /// Slot numbers; as many as slots (a power of two). Written by the writer.
    pub(crate) entries: &'a [AtomicU32],
    /// Count of pushes. Written by the writer.
    pub(crate) tail: &'a AtomicU32,
    /// Count of pops. Written by the reader.
    pub(crate) head: &'a AtomicU32,
    /// 1 while the reader sleeps and wants the bell. Written by the reader.
    pub(crate) armed: &'a AtomicU32,
}

impl DirtySet<'_> {
    /// Queues `slot` unless its last entry is not acknowledged yet. `seq` (writer's word) and `ack` (reader's word) are
    /// the slot's sequence words for this set; `tail` is the writer's private position. True if it was queued.
    pub fn push(&self, tail: &mut u32, slot: Slot, seq: &AtomicU32, ack: &AtomicU32) -> bool {
        let _ = (tail, slot, seq, ack, self.entries);
        todo!()
    }
    /// Takes the next slot number, unchecked against the layout (`None` = empty). `head` is the reader's private position.
    /// The caller checks the number, then calls [`acknowledge`] with that slot's words, then reads its state.
    pub fn pop(&self, head: &mut u32) -> Option<u32> {
        let _ = (head, self.tail, self.head);
        todo!()
    }
    /// Reader: about to sleep. After it (it fences) the reader must look at the set once more before sleeping.
    pub fn arm(&self) {
        let _ = self.armed;
        todo!()
    }
    /// Reader: awake again.
    pub fn disarm(&self) {
        todo!()
    }
    /// Writer, after one or more pushes (it fences): must the reader's bell be rung?
    pub fn must_ring(&self) -> bool {
        todo!()
    }
    /// Anything to pop?
    pub fn is_empty(&self, head: u32) -> bool {
        let _ = head;
        todo!()
    }
}

/// Reader: allows the slot to be queued again; fences, so that what the caller loads next is at least as new as any push
/// that was suppressed before.
pub fn acknowledge(seq: &AtomicU32, ack: &AtomicU32) {
    let _ = (seq, ack);
    todo!()
}
