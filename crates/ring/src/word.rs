//! A shared 32-bit word and the fences of the protocols on it, as traits: the model checker has words of its own.

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
use core::sync::atomic;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The fences of the protocol, by name, so that a model can leave one out to show that it is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fence {
    /// Writer: between storing the slot's state and loading the acknowledgement.
    Push,
    /// Reader: between storing the acknowledgement and loading the slot's state.
    Acknowledge,
    /// Reader: between storing the armed flag and looking for entries once more.
    Arm,
    /// Writer: between storing the tail and loading the armed flag.
    Notify,
}

/// A shared 32-bit word. It has only loads and stores, because nothing else crosses to a device cheaply.
pub trait Word {
    /// Loads it.
    fn load(&self, order: Ordering) -> u32;
    /// Stores it.
    fn store(&self, value: u32, order: Ordering);
    /// A sequentially consistent fence.
    fn fence(which: Fence);
}

impl Word for AtomicU32 {
    #[inline]
    fn load(&self, order: Ordering) -> u32 {
        AtomicU32::load(self, order)
    }
    #[inline]
    fn store(&self, value: u32, order: Ordering) {
        AtomicU32::store(self, value, order);
    }
    #[inline]
    fn fence(_: Fence) {
        full_fence();
    }
}

/// The same as `fence(SeqCst)`. On x86-64 any locked instruction does that, in half of the time that `mfence` takes.
#[inline(always)]
pub fn full_fence() {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: it changes nothing, because it is a bitwise or with 0, in the red zone of this thread's stack.
    unsafe {
        core::arch::asm!("lock or dword ptr [rsp - 64], 0");
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    atomic::fence(Ordering::SeqCst);
}

/// Gives a word that is 0 this key, once for all. True: the word has it, from now on or from before.
pub(crate) fn claim(word: &AtomicU64, key: u64) -> bool {
    // Whoever finds a key there need not have the line for itself.
    let seen = word.load(Ordering::Acquire);
    seen == key || seen == 0 && claimed(word.compare_exchange(0, key, Ordering::AcqRel, Ordering::Acquire), key)
}

/// Has the word this key after an attempt to be the first? Another thread may have been, with the same key.
fn claimed(attempt: Result<u64, u64>, key: u64) -> bool {
    attempt.map_or_else(|other| other == key, |_| true)
}

#[cfg(test)]
mod claims {
    use super::*;

    #[test]
    fn a_word_has_the_first_key_that_comes_whoever_brings_it() {
        let word = AtomicU64::new(0);
        assert!(claim(&word, 5) && claim(&word, 5) && !claim(&word, 6));
        assert_eq!(word.into_inner(), 5);
        assert!(claimed(Ok(0), 5) && claimed(Err(5), 5) && !claimed(Err(6), 5));
    }
}

/// The models run on words of their own, so these tests hold the words of production to their fences.
#[cfg(all(test, target_arch = "x86_64", not(miri)))]
mod tests {
    use super::*;
    use crate::event_bitmap::Bits;

    /// `lock or dword ptr [rsp - 64], 0`.
    const LOCKED: [u8; 6] = [0xf0, 0x83, 0x4c, 0x24, 0xc0, 0x00];
    /// `ret`.
    const RETURN: u8 = 0xc3;

    /// The instructions of a function up to its first return.
    fn code(function: fn(Fence)) -> Vec<u8> {
        let begin = function as usize as *const u8;
        // SAFETY: the bytes of a function up to its return are mapped and readable.
        let bytes = (0..256).map(|at| unsafe { begin.add(at).read() });
        bytes.take_while(|byte| *byte != RETURN).collect()
    }

    #[test]
    fn the_words_of_production_fence() {
        for function in [<AtomicU32 as Word>::fence as fn(Fence), <AtomicU64 as Bits>::fence] {
            let code = code(function);
            assert!(code.windows(LOCKED.len()).any(|six| six == LOCKED), "no locked instruction: {code:x?}");
        }
    }
}
