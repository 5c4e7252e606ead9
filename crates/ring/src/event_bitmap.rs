//! Notice boards: sets of slot numbers into which any thread of the other side puts a slot, and which this side empties. Two
//! levels of bits, so that emptying costs as much as there is in it; nothing can be full, and nobody keeps a position.
//!
//! Writer: store the slot's new state, then [`EventBitmap::post`], then [`EventBitmap::must_notify`].
//! Reader: [`EventBitmap::take`], then load the state of each slot it hands out. Before sleeping: [`EventBitmap::arm`], look at
//! [`EventBitmap::is_empty`] and at the state once more, sleep.
//!
//! Both sides do read-modify-write on the bits, which words between processors of one host allow. A writer sets the upper bit after
//! the lower one and the reader clears them in the same order, so no lower bit stays behind without its upper one. The rest is the
//! same two pairs of fences as in [`crate::dirty`], under the same names: a bit that is left as it is because it is set already, and a
//! bell that is not rung.
//!
//! Generic over the words, so that the model checker can run it on words of its own.

use crate::word::Fence;
use core::sync::atomic::{self, AtomicU32, AtomicU64, Ordering};

/// A shared word of bits.
pub trait Bits {
    /// Loads it.
    fn load(&self) -> u64;
    /// Sets bits.
    fn set(&self, bits: u64);
    /// Clears all; those that were set.
    fn clear(&self) -> u64;
    /// A sequentially consistent fence.
    fn fence(which: Fence);
}

impl Bits for AtomicU64 {
    #[inline]
    fn load(&self) -> u64 {
        AtomicU64::load(self, Ordering::Acquire)
    }
    #[inline]
    fn set(&self, bits: u64) {
        self.fetch_or(bits, Ordering::AcqRel);
    }
    #[inline]
    fn clear(&self) -> u64 {
        self.swap(0, Ordering::AcqRel)
    }
    #[inline]
    fn fence(_: Fence) {
        atomic::fence(Ordering::SeqCst);
    }
}

/// The flag by which a reader asks for its bell.
pub trait Flag {
    /// Sets it.
    fn raise(&self);
    /// Takes it back.
    fn lower(&self);
    /// Is it set? If so it is taken: one bell is enough.
    fn take(&self) -> bool;
}

impl Flag for AtomicU32 {
    #[inline]
    fn raise(&self) {
        self.store(1, Ordering::Relaxed);
    }
    #[inline]
    fn lower(&self) {
        self.store(0, Ordering::Relaxed);
    }
    #[inline]
    fn take(&self) -> bool {
        self.load(Ordering::Relaxed) == 1 && self.compare_exchange(1, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

/// Slots of one word.
pub const WORD_SLOTS: u32 = u64::BITS;
/// Most slots of a board.
pub const MAX_SLOTS: u32 = WORD_SLOTS * u64::BITS;

/// A view of one board.
pub struct EventBitmap<'a, B = AtomicU64, F = AtomicU32> {
    /// Bit n: look at word n.
    summary: &'a B,
    /// Bit m of word n: slot 64 n + m.
    words: &'a [B],
    armed: &'a F,
}

impl<B, F> Clone for EventBitmap<'_, B, F> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<B, F> Copy for EventBitmap<'_, B, F> {}

impl<'a, B: Bits, F: Flag> EventBitmap<'a, B, F> {
    /// A board over these words, at most 64 of them.
    #[inline]
    pub fn over(summary: &'a B, words: &'a [B], armed: &'a F) -> Self {
        Self { summary, words, armed }
    }

    /// Puts `slot` on the board, after its state has been stored.
    #[inline]
    pub fn post(&self, slot: u32) {
        B::fence(Fence::Push);
        let (upper, lower) = (slot / WORD_SLOTS, 1u64 << (slot % WORD_SLOTS));
        let Some(word) = self.words.get(upper as usize) else { return };
        if word.load() & lower == 0 {
            word.set(lower);
        }
        // Even if the bit was there: its writer may have died before it came this far.
        if self.summary.load() & 1 << upper == 0 {
            self.summary.set(1 << upper);
        }
    }

    /// Is `slot` on the board and not taken yet?
    #[inline]
    pub fn is_posted(&self, slot: u32) -> bool {
        let word = self.words.get((slot / WORD_SLOTS) as usize);
        word.is_some_and(|word| word.load() & 1 << (slot % WORD_SLOTS) != 0)
    }

    /// After one or more posts: must the reader's bell be rung? Asked for once, it is answered once.
    #[inline]
    pub fn must_notify(&self) -> bool {
        B::fence(Fence::Notify);
        self.armed.take()
    }

    /// Takes everything off the board. Bounded, whatever the other side does: each word is looked at once.
    #[inline]
    pub fn take(&self, mut each: impl FnMut(u32)) {
        if self.summary.load() == 0 {
            return;
        }
        let mut upper = self.summary.clear();
        while upper != 0 {
            let n = upper.trailing_zeros();
            upper &= upper - 1;
            let Some(word) = self.words.get(n as usize) else { continue };
            let mut lower = word.clear();
            B::fence(Fence::Acknowledge);
            while lower != 0 {
                each(n * WORD_SLOTS + lower.trailing_zeros());
                lower &= lower - 1;
            }
        }
    }

    /// Is nothing on it?
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.summary.load() == 0
    }

    /// Reader: about to sleep. Look once more after it.
    #[inline]
    pub fn arm(&self) {
        self.armed.raise();
        B::fence(Fence::Arm);
    }

    /// Reader: awake again.
    #[inline]
    pub fn disarm(&self) {
        self.armed.lower();
    }
}
