//! The protocol line of a flow: one cache line of words, which hold a [`Tcb`].

use super::bits::MARKS;
use super::permit::{Part, Permit};
use super::tcb::{Block, Received, Tcb, Written};
use super::words::{PlainCounter, PlainWord};

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
/// | 14, 15 | the other flags, as one word | a byte for each owner |
///
/// Each field that is read or written often has a word of its own, or lies in the one word of flags. So a stage keeps
/// the fields in registers, and takes none apart.
///
/// One thread runs all stages of a flow today, so a stage may store whole words. A stage that moves to another core
/// stores its own parts alone.
#[derive(Debug, Default)]
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
    /// A block with the stage's own words alone; all others are 0.
    #[inline(always)]
    pub(crate) fn load_own<S: Permit>(&self, _: S) -> Tcb {
        self.get(S::WORDS)
    }
    /// A block with what an application is shown of; all else is 0.
    #[inline(always)]
    pub(crate) fn load_shown(&self) -> Tcb {
        self.get(Received::WORDS | Written::WORDS | MARKS)
    }
    #[inline(always)]
    fn get(&self, which: u16) -> Tcb {
        let words = std::array::from_fn(|n| if which >> n & 1 != 0 { self.words[n].get() } else { 0 });
        Block { words, marks: if which & MARKS != 0 { self.marks.get() } else { 0 } }.into()
    }
    /// Stores the words that the stage, or one that it has handed the flow to, may have written.
    #[inline(always)]
    pub(crate) fn store<S: Permit>(&self, _: S, t: &Tcb) {
        self.set(S::WORDS, t);
    }
    /// [`Self::store`], by a stage that has handed the flow to none.
    #[inline(always)]
    pub(crate) fn store_own<S: Permit>(&self, _: S, t: &Tcb) {
        self.set(S::OWN, t);
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
