//! The protocol line of a flow: one cache line of words, which hold a [`Tcb`].

use super::permit::Permit;
use super::tcb::Tcb;
use super::words::PlainCounter;

/// The protocol state of a flow: one line, word by word as a [`Tcb`] lies in memory, so that loading and storing are
/// plain copies.
///
/// | word | parts | written by |
/// |---|---|---|
/// | 0, 1 | `Received` | receiving stage |
/// | 2 | `Received`, `PeerSegment`, `Ahead` | receiving stage; `Ahead` also at a flow's end |
/// | 3 | `Sent` | egress |
/// | 4 | `Next`, `Advertised` | shared by both |
/// | 5 | `Written`, `Room` | application; `Room` also receiving stage |
/// | 6 | `Congestion`, `SegmentSize`, `DuplicateAcks`, `LossFlags` | loss recovery; the size by the slow path's messages |
/// | 7 | the other flags | a byte for each owner |
///
/// One thread runs all stages of a flow today, so a stage may store whole words. A stage that moves to another core
/// stores its own parts alone.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct ProtocolLine([PlainCounter; 8]);

impl ProtocolLine {
    #[inline]
    pub(crate) fn load(&self) -> Tcb {
        let [a, b, c, d, e, f, g, h] = &self.0;
        let words = [a.get(), b.get(), c.get(), d.get(), e.get(), f.get(), g.get(), h.get()];
        zerocopy::transmute!(words)
    }
    /// A block with the stage's own words alone; all others are 0.
    #[inline(always)]
    pub(crate) fn load_own<S: Permit>(&self, _: S) -> Tcb {
        let own = |n: usize| if S::WORDS >> n & 1 != 0 { self.0[n].get() } else { 0 };
        let words: [u64; 8] = [own(0), own(1), own(2), own(3), own(4), own(5), own(6), own(7)];
        zerocopy::transmute!(words)
    }
    /// Stores the words that the stage, or one that it has handed the flow to, may have written.
    #[inline(always)]
    pub(crate) fn store<S: Permit>(&self, _: S, t: &Tcb) {
        let words: [u64; 8] = zerocopy::transmute!(*t);
        for (n, (word, value)) in self.0.iter().zip(&words).enumerate() {
            if S::WORDS >> n & 1 != 0 {
                word.set(*value);
            }
        }
    }
}
