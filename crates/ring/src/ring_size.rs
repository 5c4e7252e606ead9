//! How large the two rings of a slot are now. A ring has room for its largest size, and begins smaller.
//!
//! The writer of a ring doubles it, and shows the new size before the position of the first byte behind the old one. That
//! takes no copy and no answer. The writer waits until all bytes in the ring are from a range of positions `[2kN, 2kN + N)`, N
//! being the old size. Such positions lie in the same place of both sizes ([`may_double`]). A reader that loads the position
//! first, and then the size, reads all bytes before that position by it.
//!
//! A size is kept as the number of times that the largest one is halved. So 0 is the whole ring, and no number leads out of it.
//! More halvings than those of the first size mean the first size.
//!
//! A ring does not shrink. Of an idle one the application gives memory back. It sets [`IDLE`]; the stack agrees by [`IDLE`] in its
//! own word, and from then on fills no more than the next [`IDLE_BYTES`]. Now the application may give the rest back. For the places
//! of those bytes it makes the number [`GIVING`] odd. The stack repeats the number, and while it is odd it fills nothing. The
//! application makes it even as soon as the memory has gone; the stack repeats that, and may fill those places again. The
//! application clears `IDLE` when all memory is there again, and then the stack does so. Who does not answer holds up nobody else.

use core::sync::atomic::{AtomicU32, Ordering};

/// One of the sizes in the words of a slot: four bits.
#[derive(Clone, Copy)]
pub struct Halvings {
    shift: u32,
}

/// In [`AppLine::want`](crate::AppLine::want): the send ring.
pub const SEND: Halvings = Halvings { shift: 8 };
/// In `AppLine::want`: up to this size the application has memory for the receive ring.
pub const RECEIVE_GRANTED: Halvings = Halvings { shift: 12 };
/// In [`StackLine::flow_group`](crate::StackLine::flow_group): the receive ring.
pub const RECEIVE: Halvings = Halvings { shift: 8 };
/// In `StackLine::flow_group`: the size that the stack would make use of if the application granted it.
pub const RECEIVE_WANTED: Halvings = Halvings { shift: 12 };
/// In `StackLine::flow_group`: the size of the send ring that the network would make use of.
pub const SEND_WANTED: Halvings = Halvings { shift: 16 };
/// In `StackLine::flow_group`: the flow group.
pub const FLOW_GROUP: u32 = 0xff;

/// In `AppLine::want`: the memory of the receive ring has gone, or is about to, but for the next [`IDLE_BYTES`]. In
/// `StackLine::flow_group`: the stack has seen that, and fills no more.
pub const IDLE: u32 = 1 << 20;

/// In both words, no size but a number that counts up. In `AppLine::want` it is odd while the memory of the next [`IDLE_BYTES`]
/// goes. In `StackLine::flow_group` the same odd number says that nothing is filled meanwhile. That lasts for microseconds, and what
/// comes then comes again. An answer to an earlier number is none to this one.
pub const GIVING: Halvings = Halvings { shift: 21 };

/// All that either word says of rings.
pub const SIZES: u32 = 0xf << 21 | IDLE | 0xf_ff00;

/// An idle receive ring takes so many bytes: the next ones to come when the stack agrees. A sender that was idle, too, begins with
/// no more (RFC 6928: ten segments).
pub const IDLE_BYTES: u32 = 16_384;

const BITS: u32 = 15;

impl Halvings {
    /// The number in such a word.
    #[inline(always)]
    pub fn of(self, word: u32) -> u32 {
        word >> self.shift & BITS
    }
    /// A word of nothing but this number.
    #[inline]
    pub fn word(self, halvings: u32) -> u32 {
        (halvings & BITS) << self.shift
    }
    /// Makes the size twice as large, if it is as it was loaded. The caller is the word's only writer of this number, and it is
    /// not 0.
    #[inline]
    pub fn double(self, word: &AtomicU32) {
        word.fetch_sub(1 << self.shift, Ordering::AcqRel);
    }
    /// Stores this number, as the only one who does so.
    pub fn set(self, word: &AtomicU32, halvings: u32) {
        let more = self.word(halvings).wrapping_sub(word.load(Ordering::Relaxed) & BITS << self.shift);
        word.fetch_add(more, Ordering::AcqRel);
    }
}

/// How often `space` is halved to get `bytes`. Both are powers of two.
#[inline]
pub fn halvings(space: u32, bytes: u32) -> u32 {
    space.ilog2().saturating_sub(bytes.ilog2())
}

/// May a ring of `bytes` be doubled that holds nothing but bytes from `begin` on and before `end`?
#[inline]
pub fn may_double(bytes: u32, begin: u32, end: u32) -> bool {
    begin == end || (begin & bytes == 0 && end.wrapping_sub(1) & bytes == 0 && end.wrapping_sub(begin) <= bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_one_word_do_not_touch_each_other() {
        let word = AtomicU32::new(0xabc0_0001);
        for (kind, halvings) in [(RECEIVE, 5), (RECEIVE_WANTED, 4), (SEND_WANTED, 15), (RECEIVE, 12)] {
            kind.set(&word, halvings);
        }
        RECEIVE.double(&word);
        let word = word.into_inner();
        assert_eq!([RECEIVE.of(word), RECEIVE_WANTED.of(word), SEND_WANTED.of(word)], [11, 4, 15]);
        assert_eq!((word & FLOW_GROUP, word & 0xfff0_0000), (1, 0xabc0_0000));
        assert_eq!(RECEIVE.word(11) | RECEIVE_WANTED.word(4) | SEND_WANTED.word(15), word & 0xf_ff00);
        assert_eq!((halvings(4096, 4096), halvings(65_536, 4096), halvings(4096, 8192)), (0, 4, 0));
    }

    #[test]
    fn a_ring_is_doubled_only_while_all_its_bytes_lie_in_the_same_place_of_both_sizes() {
        const N: u32 = 8;
        for begin in (0..64).chain(u32::MAX - 40..=u32::MAX) {
            for len in 0..=N {
                let same = (0..len).map(|at| begin.wrapping_add(at)).all(|at| at & (N - 1) == at & (2 * N - 1));
                assert_eq!(may_double(N, begin, begin.wrapping_add(len)), same || len == 0, "{begin} {len}");
            }
        }
        assert!(!may_double(N, 0, 4 * N + 1), "more bytes than it holds are none");
    }
}
