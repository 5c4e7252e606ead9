//! The line of loss recovery; touched only while something is lost or out of order.

use super::bits::AckDebt;
use super::tcb::{Congestion, Received, Sent, Written};
use super::words::Word;
use zerocopy::FromZeros;

/// The losses of a flow. One line.
#[derive(Debug, Default, FromZeros)]
#[repr(C, align(64))]
pub(crate) struct Recovery {
    /// Segments retransmitted.
    pub retransmits: Word<Sent>,
    /// SND.UP: one beyond the newest urgent byte of the application's, if `bits::URGENT_OUT`.
    pub snd_up: Word<Written>,
    /// The newest urgent byte of the peer's, if `bits::URGENT_IN`.
    pub rcv_up: Word<Received>,
    /// Range that has come twice and is to be reported, if `bits::DSACK`: first sequence number, and the one after the
    /// last.
    pub duplicate: [Word<AckDebt>; 2],
    /// The flow's scoreboard, if `bits::TRACKED`.
    pub scoreboard: Word<Congestion>,
    /// Outstanding bytes that have left the network: reported or lost; if `bits::SCORED`.
    pub left: Word<Congestion>,
    /// Deadline of the flow's timer, µs modulo 2^32 with bit 0 set; 0 = no timer runs.
    pub deadline: Word<Congestion>,
    /// When the timer on the wheel comes due, in the same form. Never after `deadline`.
    pub queued: Word<Congestion>,
    /// The knowledge about reordering on this path ([`learnt`]).
    pub reordering: Word<Congestion>,
    /// The reordering window does not grow again before this is acknowledged.
    pub duplicate_round: Word<Congestion>,
    /// Congestion window before the last reduction, if `bits::UNDO`.
    pub prior_cwnd: Word<Congestion>,
    /// Slow-start threshold before it.
    pub prior_ssthresh: Word<Congestion>,
    /// The first byte that was sent again since.
    pub undo_from: Word<Congestion>,
    /// Bytes sent again since, less those that arrived twice.
    pub undo_bytes: Word<Congestion>,
    /// Our timestamp when the first of them was sent again.
    pub resent_ts: Word<Congestion>,
}

/// [`Recovery::reordering`]: what has been learnt about reordering on this path.
pub(crate) mod learnt {
    /// Low byte: windows of a quarter of the round trip (RACK.reo_wnd_mult), less one.
    pub const WIDER: u32 = 0xff;
    /// Next byte: recoveries until it shrinks (RACK.reo_wnd_persist).
    pub const PERSIST_SHIFT: u32 = 8;
    /// Some reordering has been seen.
    pub const SEEN: u32 = 1 << 16;
    /// `Recovery::duplicate_round` is to be reached before the window grows again.
    pub const ROUND: u32 = 1 << 17;
}
