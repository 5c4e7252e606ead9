//! Coalescing dirty sets: queues of slot numbers. A queue is as long as the slot table, and a slot stands in it at most
//! once, so it cannot overflow. Only a repair ([`DirtySet::push_again`]) queues one twice, and not in a full queue. Each set
//! has one writer thread (or a writer lock) and one reader thread (or a reader lock).
//!
//! Writer: store the slot's new state, then [`DirtySet::push`], then [`DirtySet::must_notify`].
//! Reader: [`DirtySet::pop`], then [`acknowledge`] (which fences), then load the slot's state.
//!
//! The protocol rests on two pairs of fences. Each orders a store before a later load, which no acquire or release can
//! do:
//!
//! | writer | reader | what they exclude |
//! |---|---|---|
//! | state stored, [`Fence::Push`], acknowledgement loaded | acknowledgement stored, [`Fence::Acknowledge`], state loaded | the writer leaves an entry out as still queued, and the reader misses the state |
//! | entry stored, [`Fence::Notify`], armed flag loaded | armed flag stored, [`Fence::Arm`], entries looked for | the writer does not notify, and the reader goes to sleep |
//!
//! The algorithms are generic over the word type, so that the model checker can run them on words of its own.

pub use crate::word::{Fence, Word, full_fence};

use crate::Slot;
use crate::layout::QueueWords;
use core::sync::atomic::{AtomicU32, Ordering};

/// The longest sleep of a reader that is armed by [`DirtySet::arm_for_a_nap`], µs.
pub const NAP_US: u64 = 1000;

/// A view of one dirty set in shared memory. The caller keeps its positions in its own memory, because the other side
/// may scribble over the shared words.
pub struct DirtySet<'a, W = AtomicU32> {
    /// Slot numbers; as many as slots (a power of two). Written by the writer.
    pub(crate) entries: &'a [W],
    /// Count of pushes. Written by the writer.
    pub(crate) tail: &'a W,
    /// Count of pops. Written by the reader.
    pub(crate) head: &'a W,
    /// While the reader sleeps: 1 if it wants to be notified, 2 if only of what cannot wait for [`NAP_US`]. Written by the reader.
    pub(crate) armed: &'a W,
}

impl<W> Clone for DirtySet<'_, W> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<W> Copy for DirtySet<'_, W> {}

impl<'a> DirtySet<'a> {
    /// The set of these words and their entries.
    ///
    /// # Safety
    /// There are as many entries as a power of two.
    #[inline(always)]
    pub unsafe fn of_words(words: &'a QueueWords, entries: &'a [AtomicU32]) -> Self {
        Self { entries, tail: &words.tail, head: &words.head, armed: &words.armed }
    }
}

impl<'a, W: Word> DirtySet<'a, W> {
    /// A set over words that are not in a region (for models and tests). `None` unless the number of entries is a power
    /// of two.
    pub fn over(entries: &'a [W], tail: &'a W, head: &'a W, armed: &'a W) -> Option<Self> {
        entries.len().is_power_of_two().then_some(Self { entries, tail, head, armed })
    }

    /// Its entries.
    pub fn entries(&self) -> &'a [W] {
        self.entries
    }

    /// Queues `slot` unless its last entry is not acknowledged yet. `seq` (writer's word) and `ack` (reader's word) are
    /// the slot's sequence words for this set; `tail` is the writer's private position. True if it was queued.
    #[inline]
    pub fn push(&self, tail: &mut u32, slot: Slot, seq: &W, ack: &W) -> bool {
        W::fence(Fence::Push);
        self.push_fenced(tail, slot, seq, ack)
    }

    /// [`DirtySet::push`] by a writer that has fenced ([`Fence::Push`]) since it stored the slot's state.
    #[inline]
    pub fn push_fenced(&self, tail: &mut u32, slot: Slot, seq: &W, ack: &W) -> bool {
        let sequence = seq.load(Ordering::Relaxed);
        if ack.load(Ordering::Acquire) != sequence {
            return false;
        }
        // Impossible for an honest reader. A dishonest one loses its own entries; nothing is overwritten.
        if tail.wrapping_sub(self.head.load(Ordering::Relaxed)) >= self.capacity() {
            return false;
        }
        // Whoever sees the slot as queued sees what the writer has stored before: a writer notes there which slot it is queueing.
        seq.store(sequence.wrapping_add(1), Ordering::Release);
        self.entry(*tail).store(slot.raw(), Ordering::Relaxed);
        *tail = tail.wrapping_add(1);
        self.tail.store(*tail, Ordering::Release);
        true
    }

    /// Queues `slot` once more, whether it is queued or not. It repairs the set after a writer was killed somewhere in
    /// [`DirtySet::push`].
    pub fn push_again(&self, tail: &mut u32, slot: Slot) -> bool {
        if tail.wrapping_sub(self.head.load(Ordering::Relaxed)) >= self.capacity() {
            return false;
        }
        self.entry(*tail).store(slot.raw(), Ordering::Relaxed);
        *tail = tail.wrapping_add(1);
        self.tail.store(*tail, Ordering::Release);
        true
    }

    /// Sets the tail to `tail`, unless it is further. It repairs the set after one push has interrupted another.
    pub fn go_on_from(&self, tail: u32) {
        if tail.wrapping_sub(self.written()).cast_signed() > 0 {
            self.tail.store(tail, Ordering::Release);
        }
    }

    /// Takes the next slot number, unchecked against the layout (`None` = empty). `head` is the reader's private
    /// position. The caller checks the number, then calls [`acknowledge`] with that slot's words, then reads its state.
    ///
    /// A tail further ahead than the set is long is a contract violation: everything up to it is skipped. A writer that
    /// goes on like that can keep the set from ever being empty. So a reader that serves others, too, must limit each
    /// turn.
    #[inline]
    pub fn pop(&self, head: &mut u32) -> Option<u32> {
        (self.queued(head) != 0).then(|| self.take(head))
    }

    /// How many slot numbers can be taken ([`DirtySet::take`]) without another look at the tail. A tail that violates the
    /// contract is dealt with as in [`DirtySet::pop`].
    #[inline(always)]
    pub fn queued(&self, head: &mut u32) -> u32 {
        let queued = self.behind(*head);
        // Asked first: most looks find nothing.
        if queued == 0 {
            return 0;
        }
        if queued > self.capacity() {
            *head = head.wrapping_add(queued);
            self.head.store(*head, Ordering::Release);
            return 0;
        }
        queued
    }

    /// How far the tail is from this position: more than the set is long, if that violates the contract.
    #[inline(always)]
    pub fn behind(&self, head: u32) -> u32 {
        self.tail.load(Ordering::Acquire).wrapping_sub(head)
    }

    /// Takes the next slot number, as [`DirtySet::pop`] does, after [`DirtySet::queued`] has said that there is one.
    #[inline(always)]
    pub fn take(&self, head: &mut u32) -> u32 {
        let raw = self.next(*head);
        self.pass(head);
        raw
    }

    /// The slot number that [`DirtySet::take`] would take. Whoever takes it by this calls [`DirtySet::pass`] before all that
    /// follows, and so loads it once.
    #[inline(always)]
    pub fn next(&self, head: u32) -> u32 {
        self.entry(head).load(Ordering::Relaxed)
    }

    /// Goes on behind the next slot number.
    #[inline(always)]
    pub fn pass(&self, head: &mut u32) {
        *head = head.wrapping_add(1);
        self.head.store(*head, Ordering::Release);
    }

    /// [`DirtySet::pop`] of as many numbers as `into` has room for; returns how many there were. The caller checks each, calls
    /// [`acknowledge_all`] with the words of their slots, then reads their states.
    ///
    /// The position is stored before any of them is acknowledged. So the writer never finds the set full.
    #[inline]
    pub fn pop_some(&self, head: &mut u32, into: &mut [u32]) -> usize {
        let count = into.len().min(self.queued(head) as usize);
        if count == 0 {
            return 0;
        }
        for (place, position) in into[..count].iter_mut().zip(0u32..) {
            *place = self.entry(head.wrapping_add(position)).load(Ordering::Relaxed);
        }
        *head = head.wrapping_add(count as u32);
        self.head.store(*head, Ordering::Release);
        count
    }

    /// Reader: about to sleep. It fences. The reader must look at the set once more after it, before sleeping.
    #[inline]
    pub fn arm(&self) {
        self.armed.store(1, Ordering::Relaxed);
        W::fence(Fence::Arm);
    }

    /// [`DirtySet::arm`] by a reader that looks at the set within [`NAP_US`], whatever comes.
    #[inline]
    pub fn arm_for_a_nap(&self) {
        self.armed.store(2, Ordering::Relaxed);
        W::fence(Fence::Arm);
    }

    /// Reader: awake again.
    #[inline]
    pub fn disarm(&self) {
        self.armed.store(0, Ordering::Relaxed);
    }

    /// Writer, after one or more pushes: must the reader be notified? It fences.
    #[inline]
    pub fn must_notify(&self) -> bool {
        W::fence(Fence::Notify);
        self.must_notify_fenced()
    }

    /// [`DirtySet::must_notify`] by a writer that has fenced ([`Fence::Notify`]) since the pushes.
    #[inline]
    pub fn must_notify_fenced(&self) -> bool {
        self.armed.load(Ordering::Relaxed) != 0
    }

    /// [`DirtySet::must_notify_fenced`], if the pushes can wait for [`NAP_US`].
    #[inline]
    pub fn must_notify_unless_napping_fenced(&self) -> bool {
        self.armed.load(Ordering::Relaxed) == 1
    }

    /// Writer: does the reader sleep, armed by [`DirtySet::arm_for_a_nap`]?
    #[inline]
    pub fn is_napping(&self) -> bool {
        self.armed.load(Ordering::Relaxed) == 2
    }

    /// Anything to pop? A tail that violates the contract counts as empty, so that nobody stays awake for it.
    #[inline]
    pub fn is_empty(&self, head: u32) -> bool {
        let queued = self.tail.load(Ordering::Acquire).wrapping_sub(head);
        queued == 0 || queued > self.capacity()
    }

    /// The reader's position in shared memory. A reader that takes the set over goes on from there.
    #[inline]
    pub fn position(&self) -> u32 {
        self.head.load(Ordering::Relaxed)
    }

    /// The writer's position in shared memory. The next of several writers goes on from there.
    #[inline]
    pub fn written(&self) -> u32 {
        self.tail.load(Ordering::Relaxed)
    }

    #[inline]
    fn capacity(&self) -> u32 {
        self.entries.len() as u32
    }

    #[inline]
    fn entry(&self, position: u32) -> &W {
        let at = position as usize & self.entries.len().wrapping_sub(1);
        // SAFETY: there is at least one entry, as whoever has made the set has seen to. So this is below their number.
        unsafe { self.entries.get_unchecked(at) }
    }
}

/// True if a queued entry of the slot covers its new state. The writer must have stored the state and fenced
/// ([`Fence::Push`]) before. It needs no writer's lock. The writer that queued it notifies. If it may have been killed
/// before that, see [`QueueWords::armed`](crate::layout::QueueWords::armed).
#[inline]
pub fn is_queued<W: Word>(seq: &W, ack: &W) -> bool {
    seq.load(Ordering::Acquire) != ack.load(Ordering::Acquire)
}

/// Reader: allows the slot to be queued again. It fences: the caller's next loads are at least as new as any push that
/// was suppressed before.
#[inline]
pub fn acknowledge<W: Word>(seq: &W, ack: &W) {
    acknowledge_unfenced(seq, ack);
    W::fence(Fence::Acknowledge);
}

/// [`acknowledge`] of several slots. One fence is enough for them: it stands between each acknowledgement and the loads of
/// each state.
#[inline]
pub fn acknowledge_all<'a, W: Word + 'a>(words: impl IntoIterator<Item = (&'a W, &'a W)>) {
    words.into_iter().for_each(|(seq, ack)| acknowledge_unfenced(seq, ack));
    W::fence(Fence::Acknowledge);
}

#[inline(always)]
fn acknowledge_unfenced<W: Word>(seq: &W, ack: &W) {
    ack.store(seq.load(Ordering::Relaxed), Ordering::Release);
}
