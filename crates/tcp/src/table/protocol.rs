//! The protocol line of a flow: one cache line of words, which hold a [`Tcb`].

use super::bits::MARKS;
use super::permit::Permit;
use super::tcb::{Block, Tcb};
use super::words::{PlainCounter, PlainWord};
use zerocopy::FromZeros;

/// Single 32-bit words of the line, one bit each, for paths that need no others. [`word::MARKS`] are both words of flags.
pub(crate) mod word {
    pub const SND_UNA: u16 = 1;
    pub const SND_WND: u16 = 1 << 1;
    pub const SND_WL1: u16 = 1 << 2;
    pub const RCV_NXT: u16 = 1 << 3;
    pub const TS_RECENT: u16 = 1 << 4;
    pub const RCV_MSS: u16 = 1 << 5;
    pub const SND_MAX: u16 = 1 << 6;
    pub const LAST_ACK: u16 = 1 << 7;
    pub const SND_NXT: u16 = 1 << 8;
    pub const RCV_ADV: u16 = 1 << 9;
    pub const SND_QUEUED: u16 = 1 << 10;
    pub const RCV_LIMIT: u16 = 1 << 11;
    pub const CWND: u16 = 1 << 12;
    pub const MSS: u16 = 1 << 13;
    pub const MARKS: u16 = super::MARKS;
}

/// Stands in a block for a word that was not loaded. In debug builds it is nonsense, so that a test sees who uses it.
const UNREAD: u32 = if cfg!(debug_assertions) { 0x9e37_79b9 } else { 0 };

/// The protocol state of a flow: one line, word by word as a [`Tcb`] lies in memory.
///
/// | 32-bit words | parts | written by |
/// |---|---|---|
/// | 0-4 | `Received` | receiving stage |
/// | 5 | `PeerSegment`, `Ahead` | receiving stage; `Ahead` also at a flow's end |
/// | 6, 7 | `Sent` | egress |
/// | 8, 9 | `Next`, `Advertised` | shared by both |
/// | 10, 11 | `Written`, `Room` | application; `Room` also receiving stage |
/// | 12, 13 | `Congestion`, `SegmentSize`, `DuplicateAcks`, `LossFlags` | loss recovery; the size by the slow path's messages |
/// | 14, 15 | the other flags, as one word | a byte, or half of one, for each owner |
///
/// Each field that is read or written often has a word of its own, or lies in the one word of flags. So a stage keeps
/// the fields in registers, and takes none apart.
///
/// One thread runs all stages of a flow today, so a stage may store whole words. A stage that moves to another core
/// stores its own parts alone.
#[derive(Debug, Default, FromZeros)]
#[repr(C, align(64))]
pub(crate) struct ProtocolLine {
    words: [PlainWord; 14],
    marks: PlainCounter,
}

impl ProtocolLine {
    #[inline]
    pub(crate) fn load(&self) -> Tcb {
        let words = self.words.each_ref().map(PlainWord::get);
        Block { words, marks: self.marks.get() }.into()
    }
    /// A block with the stage's own words alone.
    #[inline(always)]
    pub(crate) fn load_own<S: Permit>(&self, _: S) -> Tcb {
        self.get(S::WORDS)
    }
    /// A block with these words alone, for a path that reads no others. A load of an atomic word is made even if nothing
    /// comes of it. In builds with assertions the other words are such that a path which did read them would go wrong.
    #[inline(always)]
    pub(crate) fn load_words<const WORDS: u16>(&self) -> Tcb {
        self.get(WORDS)
    }
    /// Loads these words, too. A word that is loaded long before it is read takes a register until then.
    #[inline(always)]
    pub(crate) fn load_more<const WORDS: u16>(&self, t: &mut Tcb) {
        let mut block = Block::from(*t);
        for (n, word) in block.words.iter_mut().enumerate() {
            if WORDS >> n & 1 != 0 {
                *word = self.words[n].get();
            }
        }
        *t = block.into();
    }
    #[inline(always)]
    fn get(&self, which: u16) -> Tcb {
        let mut words = [UNREAD; 14];
        for (n, word) in words.iter_mut().enumerate() {
            if which >> n & 1 != 0 {
                *word = self.words[n].get();
            }
        }
        Block { words, marks: if which & MARKS != 0 { self.marks.get() } else { 0 } }.into()
    }
    /// Stores the words that the stage, or one that it has handed the flow to, may have written.
    #[inline(always)]
    pub(crate) fn store<S: Permit>(&self, _: S, t: &Tcb) {
        self.set(S::WORDS, t);
    }
    /// Stores these words alone.
    #[inline(always)]
    pub(crate) fn store_only<S: Permit, const WORDS: u16>(&self, _: S, t: &Tcb) {
        debug_assert_eq!(WORDS & !S::WORDS, 0, "the stage may write all of them");
        self.set(WORDS, t);
    }
    /// Stores `STORED` of a block that `load_words` has made with `LOADED`; no other word has been changed.
    #[inline(always)]
    pub(crate) fn store_words<S: Permit, const LOADED: u16, const STORED: u16>(&self, _: S, t: &Tcb) {
        debug_assert_eq!(STORED & !S::WORDS, 0, "the stage may write all of them");
        if cfg!(debug_assertions) {
            let words = Block::from(*t).words;
            for n in (0..words.len()).filter(|n| STORED >> n & 1 == 0) {
                assert_eq!(words[n], if LOADED >> n & 1 != 0 { self.words[n].get() } else { UNREAD }, "word {n}");
            }
        }
        self.set(STORED, t);
    }
    #[inline(always)]
    fn set(&self, which: u16, t: &Tcb) {
        let Block { words, marks } = (*t).into();
        for (n, (word, value)) in self.words.iter().zip(words).enumerate() {
            if which >> n & 1 != 0 {
                word.set(value);
            }
        }
        if which & MARKS != 0 {
            self.marks.set(marks);
        }
    }
}
