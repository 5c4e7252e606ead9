//! Congestion control: what a sender may have in flight, decided per control interval on counters that the fast path gathers.
//! An application cannot bypass it.

mod newreno;

use crate::flow::{FlowSnapshot, Window};
pub use newreno::NewReno;

/// What an algorithm is told about a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Payload bytes per packet.
    pub mss: u32,
    /// Bytes sent and not acknowledged (FlightSize).
    pub flight: u32,
    /// Congestion window in bytes.
    pub cwnd: u32,
    /// Slow-start threshold in bytes.
    pub ssthresh: u32,
    /// Payload bytes acknowledged since the connection began.
    pub bytes_acked: u64,
    /// Segments retransmitted since the connection began.
    pub retransmits: u64,
    /// Smoothed round-trip time in µs, 0 = no sample.
    pub srtt_us: u32,
    /// The how-manieth time-out in a row this is, from 1 (`on_timeout` only).
    pub timeouts: u32,
}

impl Sample {
    /// From a reading.
    pub fn new(snapshot: &FlowSnapshot) -> Self {
        Self {
            mss: u32::from(snapshot.mss).max(1),
            flight: snapshot.snd_max.bytes_since(snapshot.snd_una),
            cwnd: snapshot.cwnd,
            ssthresh: snapshot.ssthresh,
            bytes_acked: snapshot.bytes_acked,
            retransmits: snapshot.retransmits,
            srtt_us: snapshot.srtt_us,
            timeouts: 0,
        }
    }
}

/// An algorithm's state for one flow.
pub trait CongestionControl: Send {
    /// The first window; `syn_lost`: the handshake needed a retransmission (RFC 6928 §2, RFC 5681 §3.1).
    fn initial(&mut self, mss: u32, syn_lost: bool) -> Window;
    /// A control interval is over. `None` = the fast path's own growth is right.
    fn on_interval(&mut self, sample: &Sample) -> Option<Window>;
    /// The fast path has repaired a loss and reduced the window by [`Window::beta`]. `None` = that was right.
    fn on_loss(&mut self, sample: &Sample) -> Option<Window>;
    /// Retransmission time-out.
    fn on_timeout(&mut self, sample: &Sample) -> Window;
}

/// RFC 6928 §2: `min(10 MSS, max(2 MSS, 14600))` bytes.
pub fn initial_window(mss: u32) -> u32 {
    (10 * mss).min(14_600.max(2 * mss))
}
