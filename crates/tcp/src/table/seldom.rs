//! The line of what happens seldom, and of counts that are kept only then.

use super::stages::Install;
use super::tcb::{Congestion, Received, Sent, Written};
use super::words::{Counter, Word};
use zerocopy::FromZeros;

/// Counts of rare events. One line, which no ordinary segment touches.
#[derive(Debug, Default, FromZeros)]
#[repr(C, align(64))]
pub(crate) struct Seldom {
    /// Payload bytes sent again.
    pub bytes_resent: Counter<Sent>,
    /// Received segments that were not acceptable. Anybody may have sent them, so the peer has not been heard.
    pub unheard: Word<Received>,
    /// Segments that came ahead of a hole.
    pub out_of_order: Word<Received>,
    /// Outstanding bytes that were sent again and are neither reported nor lost since, if `bits::TRACKED`.
    pub resent: Word<Congestion>,
    /// The peer's reports of what came twice (RFC 2883).
    pub duplicates: Word<Congestion>,
    /// Acknowledgements that showed that segments had overtaken each other.
    pub reorderings: Word<Congestion>,
    /// The position that `bits::PUSHED` is about, as sequence number.
    pub flush: Word<Written>,
    /// Ends of records (`MSG_EOR`), if `bits::MARKED`. Those at or before SND.UNA are none.
    pub records: [Word<Written>; RECORDS],
    /// The end of what has memory in the receive ring, as sequence number, if `bits::TRIMMED`.
    pub trimmed_to: Word<Received>,
}

/// Ends of records that are kept of a flow.
pub(crate) const RECORDS: usize = 6;

impl Seldom {
    /// Of a new flow.
    pub(crate) fn clear(&self, by: Install) {
        self.bytes_resent.set(by, 0);
        for word in [&self.unheard, &self.out_of_order] {
            word.set(by, 0);
        }
        for word in [&self.resent, &self.duplicates, &self.reorderings] {
            word.set(by, 0);
        }
    }
}
