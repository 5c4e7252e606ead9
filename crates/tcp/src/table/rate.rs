//! The line of sending rate and congestion signals.

use super::bits::{AckDebt, QueueFlags};
use super::permit::Writes;
use super::tcb::{Congestion, Received};
use super::words::{Counter, Word};
use zerocopy::FromZeros;

/// How fast a flow may send, and the signals of the path. One line.
#[derive(Debug, Default, FromZeros)]
#[repr(C, align(64))]
pub(crate) struct Rate {
    /// Pacing rate in bytes per second, 0 = not paced (`Window::pacing`).
    pub pacing: Counter<QueueFlags>,
    /// Payload bytes that were acknowledged with ECN echo.
    pub bytes_marked: Counter<Congestion>,
    /// Payload bytes that were judged lost.
    pub bytes_lost: Counter<Congestion>,
    /// Newest round-trip sample in µs, 0 = none.
    pub rtt_us: Word<Received>,
    /// Smallest round-trip sample lately in µs, 0 = none.
    pub min_rtt_us: Word<Received>,
    /// When `min_rtt_us` was sampled, in units of 2^20 µs.
    pub min_rtt_at: Word<Received>,
    /// End of what had been sent when the window was last reduced for a mark, if `bits::ECN_REDUCED`.
    pub ecn_recover: Word<Congestion>,
    /// RCV.NXT where marks began or ended, oldest first, if not yet acknowledged (`bits::ECN_EDGES`).
    pub ecn_edges: [Word<AckDebt>; 2],
    /// Credit or debt of a paced flow at `credit_at`: millionths of a byte, two's complement.
    pub credit: Counter<QueueFlags>,
    /// When `credit` was computed, µs.
    pub credit_at: Counter<QueueFlags>,
}

/// How long the smallest round trip is valid, in units of 2^20 µs: about 10 s.
const MIN_RTT_AGE: u32 = 10;

impl Rate {
    /// A new sample of the round-trip time, which is not 0.
    #[inline]
    pub(crate) fn round_trip<S: Writes<Received>>(&self, by: S, now_us: u64, sample_us: u32) {
        self.rtt_us.set(by, sample_us);
        let (min, now) = (self.min_rtt_us.get(), (now_us >> 20) as u32);
        // Without a smallest one, 0 less 1 is more than any sample.
        let larger = sample_us.wrapping_sub(1) > min.wrapping_sub(1);
        if !larger || now.wrapping_sub(self.min_rtt_at.get()) >= MIN_RTT_AGE {
            self.min_rtt_us.set(by, sample_us);
            self.min_rtt_at.set(by, now);
        }
    }
}
