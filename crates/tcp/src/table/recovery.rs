//! The line of loss recovery; touched only while something is lost or out of order.

use super::words::Word;

/// What is known of losses on a flow. One line.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct Recovery {
    /// Segments retransmitted.
    pub retransmits: Word,
    /// SND.UP: one beyond the newest urgent byte of the application's, if `bits::URGENT_OUT`.
    pub snd_up: Word,
    /// The newest urgent byte of the peer's, if `bits::URGENT_IN`.
    pub rcv_up: Word,
    /// What has come twice and is to be reported, if `bits::DSACK`: its first sequence number, and the one after its last.
    pub duplicate: [Word; 2],
    /// The flow's scoreboard, if `bits::TRACKED`.
    pub board: Word,
    /// Outstanding bytes that have left the network: reported or lost; if `bits::SCORED`.
    pub left: Word,
    /// When the flow is to be looked at, µs modulo 2^32 with bit 0 set; 0 = no timer runs.
    pub deadline: Word,
    /// When its timer on the wheel comes due, in the same form: not later than that.
    pub queued: Word,
    /// What has been learnt about reordering (`fast::rack`).
    pub reordering: Word,
    /// The reordering window does not grow again before this is acknowledged.
    pub duplicate_round: Word,
    /// Congestion window before the last reduction, if `bits::UNDO`.
    pub prior_cwnd: Word,
    /// Slow-start threshold before it.
    pub prior_ssthresh: Word,
    /// The first byte that was sent again since.
    pub undo_from: Word,
    /// Bytes sent again since, less those that arrived twice.
    pub undo_bytes: Word,
    /// Our timestamp when the first of them was sent again.
    pub resent_ts: Word,
}

impl Recovery {
    /// The bit of `reordering` that says that some has been seen.
    pub(crate) const REORDERING_SEEN: u32 = 1 << 16;
}
