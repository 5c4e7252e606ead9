//! The line of counts and measurements.

use super::permit::Writes;
use super::tcb::{Congestion, PeerWindow, Received, Sent};
use super::words::{Counter, Word};
use crate::flow::Window;
use zerocopy::FromZeros;

/// Counts and measurements of a flow. One line.
#[derive(Debug, Default, FromZeros)]
#[repr(C, align(64))]
pub(crate) struct Measures {
    /// Segments received, and those of them without data or FIN. All four wrap around.
    pub segments_in: Word<Received>,
    pub empty_in: Word<Received>,
    /// Segments sent with data, and without.
    pub data_out: Word<Sent>,
    pub empty_out: Word<Sent>,
    /// Payload bytes received in order.
    pub bytes_in: Counter<Received>,
    /// Payload bytes acknowledged.
    pub bytes_acked: Counter<Received>,
    /// Smoothed round-trip time in µs; 0 = no sample yet.
    pub srtt_us: Word<Received>,
    /// Its variation in µs.
    pub rttvar_us: Word<Received>,
    /// End of the segment that is timed, if `bits::TIMING`.
    pub rtt_seq: Word<Sent>,
    /// When it was sent, µs modulo 2^32.
    pub rtt_at: Word<Sent>,
    /// The largest window the peer has offered, bytes.
    pub max_wnd: Word<PeerWindow>,
    /// Bytes acknowledged since congestion avoidance last grew the window.
    pub grown: Word<Congestion>,
    /// `Window::growth` and, in the high half, `Window::beta`.
    pub growth: Word<Congestion>,
    /// Slow-start threshold in bytes.
    pub ssthresh: Word<Congestion>,
}

impl Measures {
    /// All of the window but `cwnd`, which is in the protocol line.
    pub(crate) fn set_window<S: Writes<Congestion>>(&self, by: S, window: &Window) {
        self.ssthresh.set(by, window.ssthresh);
        self.growth.set(by, u32::from(window.growth) | u32::from(window.beta) << 16);
    }
    #[inline]
    pub(crate) fn growth(&self) -> u32 {
        self.growth.get() & 0xffff
    }
    #[inline]
    pub(crate) fn beta(&self) -> u32 {
        self.growth.get() >> 16
    }
}
