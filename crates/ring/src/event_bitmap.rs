//! Event bitmaps: sets of slot numbers. Any thread of the other side puts slots in, and this side empties the set. Two
//! levels of bits make emptying cost as much as there is in it. The set cannot be full, and nobody keeps a position.
//!
//! Writer: store the slot's new state, then [`EventBitmap::post`], then [`EventBitmap::must_notify`]. Reader:
//! [`EventBitmap::take`], then load the state of each slot it hands out. Before sleeping: [`EventBitmap::arm`], look at
//! [`EventBitmap::is_empty`] and at the state once more, sleep.
//!
//! Both sides do read-modify-write on the bits, which words between processors of one host allow. A writer sets the
//! upper bit after the lower one. The reader clears the upper one first, so no lower bit stays behind without its upper
//! one. A writer sets bits that are set already, too. So whoever takes a bit sees all states that were stored before it
//! was set last. Looking first would cost a writer the cache line twice: once to read it, and once to write it.
//!
//! Two fences of [`crate::dirty`] remain, under the same names: they cover a notification that is left out.
//!
//! Generic over the words, so that the model checker can run it on words of its own.

use crate::word::{Fence, full_fence};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, compiler_fence};

/// A shared word of bits.
pub trait Bits {
    /// Loads it.
    fn load(&self) -> u64;
    /// Sets bits.
    fn set(&self, bits: u64);
    /// Clears all bits and returns those that were set.
    fn clear(&self) -> u64;
    /// A sequentially consistent fence. [`Fence::Notify`] follows [`Bits::set`].
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
    fn fence(which: Fence) {
        // On x86-64 the instruction that has set a bit before is a full fence for the processor.
        match which {
            Fence::Notify if cfg!(all(target_arch = "x86_64", not(miri))) => compiler_fence(Ordering::SeqCst),
            _ => full_fence(),
        }
    }
}

/// The flag by which a reader asks to be notified.
pub trait Flag {
    /// Sets it.
    fn raise(&self);
    /// Takes it back.
    fn lower(&self);
    /// Is it set? If so it is taken: one notification is enough.
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
/// Most slots of an event bitmap.
pub const MAX_SLOTS: u32 = WORD_SLOTS * u64::BITS;

/// The part of an event bitmap that has been taken.
#[derive(Clone, Copy, Debug)]
pub struct Begun {
    /// The first slot of the word.
    first: u32,
    /// The slots of the word that were set.
    lower: u64,
    /// The words that are still to be looked at.
    upper: u64,
}

impl Begun {
    /// The slot, if there is one and nothing else is left to take.
    #[inline(always)]
    pub fn only(&self) -> Option<u32> {
        (self.upper == 0 && self.lower.is_power_of_two()).then(|| self.first + self.lower.trailing_zeros())
    }
}

/// The only slot of a bitmap, as a look has found it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The number of its word.
    word: u32,
    /// The bit of that word, and the bit of the slot in it.
    upper: u64,
    lower: u64,
}

impl Seen {
    /// The slot.
    #[inline(always)]
    pub fn slot(&self) -> u32 {
        self.word * WORD_SLOTS + self.lower.trailing_zeros()
    }
}

/// What a look at a bitmap tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Only {
    /// No slot is in it.
    Nothing,
    /// This one, and perhaps more by now.
    Slot(Seen),
    /// There are several, or another thread is about to enter or to take one.
    Unclear,
}

/// A view of one event bitmap.
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
    /// An event bitmap over these words, at most 64 of them.
    #[inline]
    pub fn over(summary: &'a B, words: &'a [B], armed: &'a F) -> Self {
        Self { summary, words, armed }
    }

    /// Puts `slot` into the bitmap, after its state has been stored.
    #[inline]
    pub fn post(&self, slot: u32) {
        let (upper, lower) = (slot / WORD_SLOTS, 1u64 << (slot % WORD_SLOTS));
        let Some(word) = self.words.get(upper as usize) else { return };
        word.set(lower);
        // This is done even if the lower bit was set: its writer may have died before it came this far.
        self.summary.set(1u64 << upper);
    }

    /// The only slot that is in the bitmap, as far as a look tells. It stays there.
    #[inline(always)]
    pub fn only(&self) -> Only {
        let upper = self.summary.load();
        if upper == 0 {
            return Only::Nothing;
        }
        let word = upper.trailing_zeros();
        let lower = self.words.get(word as usize).map_or(0, Bits::load);
        if upper.is_power_of_two() && lower.is_power_of_two() {
            Only::Slot(Seen { word, upper, lower })
        } else {
            Only::Unclear
        }
    }

    /// The lowest slot that is in the bitmap. It stays there.
    #[inline]
    pub fn first(&self) -> Option<u32> {
        let upper = self.summary.load().trailing_zeros();
        let lower = self.words.get(upper as usize)?.load();
        (lower != 0).then(|| upper * WORD_SLOTS + lower.trailing_zeros())
    }

    /// After one or more posts: must the reader be notified? One request gets one notification.
    #[inline]
    pub fn must_notify(&self) -> bool {
        B::fence(Fence::Notify);
        self.armed.take()
    }

    /// Empties the bitmap. It looks at each word once, so it ends whatever the other side does.
    #[inline]
    pub fn take(&self, each: impl FnMut(u32)) {
        if let Some(begun) = self.begin() {
            self.go_on(begun, each);
        }
    }

    /// Begins to empty the bitmap, which [`EventBitmap::go_on`] ends. `None`: there is nothing to take.
    #[inline(always)]
    pub fn begin(&self) -> Option<Begun> {
        if self.summary.load() == 0 {
            return None;
        }
        let upper = self.summary.clear();
        let word = upper.trailing_zeros();
        let lower = self.words.get(word as usize).map_or(0, Bits::clear);
        Some(Begun { first: word * WORD_SLOTS, lower, upper: upper & upper.wrapping_sub(1) })
    }

    /// Takes the only slot, as [`EventBitmap::only`] has seen it. `Err`: it is not the only one any more, and all that have been
    /// taken are in that, for [`EventBitmap::go_on`].
    #[inline(always)]
    pub fn take_only(&self, seen: Seen) -> Result<(), Begun> {
        // In this order, as in `begin`.
        let upper = self.summary.clear();
        let lower = self.words.get(seen.word as usize).map_or(0, Bits::clear);
        if upper == seen.upper && lower == seen.lower {
            return Ok(());
        }
        Err(Begun { first: seen.word * WORD_SLOTS, lower, upper: upper & !seen.upper })
    }

    /// Takes what is left, after the slots that [`EventBitmap::begin`] has taken.
    #[inline]
    pub fn go_on(&self, Begun { mut first, mut lower, mut upper }: Begun, mut each: impl FnMut(u32)) {
        loop {
            while lower != 0 {
                each(first + lower.trailing_zeros());
                lower &= lower - 1;
            }
            if upper == 0 {
                return;
            }
            let word = upper.trailing_zeros();
            upper &= upper - 1;
            (first, lower) = (word * WORD_SLOTS, self.words.get(word as usize).map_or(0, Bits::clear));
        }
    }

    /// Is nothing in it?
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.summary.load() == 0
    }

    /// Reader: about to sleep. It must look once more after this.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn none() -> AtomicU64 {
        AtomicU64::new(0)
    }

    fn taken(bitmap: EventBitmap<'_>) -> Vec<u32> {
        let mut slots = Vec::new();
        bitmap.take(|slot| slots.push(slot));
        slots
    }

    #[test]
    fn each_slot_of_every_word_is_taken_once_under_its_own_number() {
        let (summary, words, armed) = (none(), std::array::from_fn::<_, 64, _>(|_| none()), AtomicU32::new(0));
        let bitmap = EventBitmap::over(&summary, &words, &armed);
        for slot in 0..MAX_SLOTS {
            assert!(bitmap.first().is_none() && bitmap.is_empty(), "{slot}");
            bitmap.post(slot);
            assert!(bitmap.first() == Some(slot) && !bitmap.is_empty(), "{slot}");
            assert_eq!(only(bitmap).map(|seen| seen.slot()), Some(slot));
            assert_eq!(taken(bitmap), [slot]);
            assert!(bitmap.first().is_none() && taken(bitmap).is_empty(), "{slot}");
        }
        bitmap.post(131);
        assert_eq!(bitmap.begin().and_then(|begun| begun.only()), Some(131));
        assert!(bitmap.is_empty() && bitmap.begin().is_none() && bitmap.only() == Only::Nothing);
        for two in [[130, 131], [0, 64]] {
            two.iter().for_each(|slot| bitmap.post(*slot));
            assert_eq!(bitmap.only(), Only::Unclear, "{two:?}");
            let (begun, mut rest) = (bitmap.begin().expect("two"), Vec::new());
            assert_eq!(begun.only(), None, "{two:?}");
            bitmap.go_on(begun, |slot| rest.push(slot));
            assert_eq!(rest, two);
        }
        let some = [0, 1, 63, 64, 130, 131, 4095];
        some.iter().rev().for_each(|slot| bitmap.post(*slot));
        assert_eq!(bitmap.first(), Some(0), "which stays");
        assert_eq!(taken(bitmap), some);
    }

    fn only(bitmap: EventBitmap<'_>) -> Option<Seen> {
        match bitmap.only() {
            Only::Slot(seen) => Some(seen),
            Only::Nothing | Only::Unclear => None,
        }
    }

    /// The second slot comes between the look and the taking: in the same word, or in one before or behind it.
    #[test]
    fn the_only_slot_is_taken_as_such_unless_another_has_come_since() {
        let (summary, words, armed) = (none(), std::array::from_fn::<_, 64, _>(|_| none()), AtomicU32::new(0));
        let bitmap = EventBitmap::over(&summary, &words, &armed);
        bitmap.post(131);
        let seen = only(bitmap).expect("one");
        assert!(bitmap.take_only(seen).is_ok() && bitmap.is_empty() && taken(bitmap).is_empty());
        for second in [0, 128, 130, 191, 192, 4095] {
            bitmap.post(131);
            let seen = only(bitmap).expect("one");
            bitmap.post(second);
            let (begun, mut all) = (bitmap.take_only(seen).expect_err("two"), Vec::new());
            bitmap.go_on(begun, |slot| all.push(slot));
            all.sort_unstable();
            assert_eq!(all, [131.min(second), 131.max(second)]);
            assert!(bitmap.is_empty() && bitmap.only() == Only::Nothing, "{second}");
        }
        // Another thread has taken it.
        bitmap.post(131);
        let seen = only(bitmap).expect("one");
        assert_eq!(taken(bitmap), [131]);
        bitmap.go_on(bitmap.take_only(seen).expect_err("none"), |slot| panic!("{slot} is there twice"));
    }

    #[test]
    fn a_slot_beyond_the_words_is_never_posted() {
        let (summary, words, armed) = (none(), [none(), none()], AtomicU32::new(0));
        let bitmap = EventBitmap::over(&summary, &words, &armed);
        for slot in [128, MAX_SLOTS, u32::MAX] {
            bitmap.post(slot);
            assert!(bitmap.is_empty() && taken(bitmap).is_empty());
        }
    }

    #[test]
    fn the_next_post_makes_up_for_a_writer_that_died_between_word_and_summary() {
        let (summary, words, armed) = (none(), [none(), AtomicU64::new(1 << 3)], AtomicU32::new(0));
        let bitmap = EventBitmap::over(&summary, &words, &armed);
        assert!(bitmap.is_empty() && bitmap.only() == Only::Nothing);
        bitmap.post(67);
        assert_eq!(taken(bitmap), [67]);
    }

    #[test]
    fn a_reader_that_is_awake_again_is_not_notified() {
        let (summary, words, armed) = (none(), [none()], AtomicU32::new(0));
        let bitmap = EventBitmap::over(&summary, &words, &armed);
        bitmap.arm();
        bitmap.disarm();
        assert!(!bitmap.must_notify());
        bitmap.arm();
        assert!(bitmap.must_notify() && !bitmap.must_notify());
    }
}
