//! The line of sending rate and congestion signals.

use super::words::{Counter, Word};

/// How fast a flow may send, and what tells how fast it could. One line.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct Rate {
    /// Pacing rate in bytes per second, 0 = not paced (`Window::pacing`).
    pub pacing: Counter,
    /// Payload bytes that were acknowledged with ECN echo.
    pub bytes_marked: Counter,
    /// Payload bytes that were judged lost.
    pub bytes_lost: Counter,
    /// Newest round-trip sample in µs, 0 = none.
    pub rtt_us: Word,
    /// Smallest round-trip sample lately in µs, 0 = none.
    pub min_rtt_us: Word,
    /// What the flow may send now, or owes, at `credit_at`: millionths of a byte, two's complement. Of paced flows only.
    pub credit: Counter,
    /// When `credit` was reckoned, µs.
    pub credit_at: Counter,
}
