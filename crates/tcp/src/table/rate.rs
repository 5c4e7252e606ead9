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
    /// When `min_rtt_us` was sampled, in units of 2^20 µs.
    pub min_rtt_at: Word,
    /// End of what had been sent when the window was last reduced for a mark, if `bits::ECN_REDUCED`.
    pub ecn_recover: Word,
    /// RCV.NXT where marks began or ended, oldest first, if not yet acknowledged (`bits::ECN_EDGES`).
    pub ecn_edges: [Word; 2],
    /// What the flow may send now, or owes, at `credit_at`: millionths of a byte, two's complement. Of paced flows only.
    pub credit: Counter,
    /// When `credit` was reckoned, µs.
    pub credit_at: Counter,
}

/// How long the smallest round trip counts, in units of 2^20 µs: some 10 s.
const MIN_RTT_AGE: u32 = 10;

impl Rate {
    /// A new sample of the round-trip time.
    #[inline]
    pub(crate) fn round_trip(&self, now_us: u64, sample_us: u32) {
        let sample = sample_us.max(1);
        self.rtt_us.set(sample);
        let (min, now) = (self.min_rtt_us.get(), (now_us >> 20) as u32);
        if sample <= min || min == 0 || now.wrapping_sub(self.min_rtt_at.get()) >= MIN_RTT_AGE {
            self.min_rtt_us.set(sample);
            self.min_rtt_at.set(now);
        }
    }
}
