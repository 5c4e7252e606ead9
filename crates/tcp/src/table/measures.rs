//! The line of what is counted and measured on a flow.

use super::words::{Counter, Word};
use crate::flow::Window;

/// What is counted and measured on a flow. One line.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct Measures {
    pub segments_in: Counter,
    pub segments_out: Counter,
    /// Payload bytes received in order.
    pub bytes_in: Counter,
    /// Payload bytes acknowledged.
    pub bytes_acked: Counter,
    /// Smoothed round-trip time in µs; 0 = no sample yet.
    pub srtt_us: Word,
    pub rttvar_us: Word,
    /// The timed segment's end, if `bits::TIMING`.
    pub rtt_seq: Word,
    /// When it was sent, µs modulo 2^32.
    pub rtt_at: Word,
    /// The largest window the peer has offered, bytes.
    pub max_wnd: Word,
    /// Bytes acknowledged since congestion avoidance last grew the window.
    pub grown: Word,
    /// `Window::growth` and, in the high half, `Window::beta`.
    pub growth: Word,
    /// Slow-start threshold in bytes.
    pub ssthresh: Word,
}

impl Measures {
    /// All of the window but `cwnd`, which is in the protocol line.
    pub(crate) fn set_window(&self, window: &Window) {
        self.ssthresh.set(window.ssthresh);
        self.growth.set(u32::from(window.growth) | u32::from(window.beta) << 16);
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
