//! Congestion control: what a sender may have in flight, decided per control interval on counters that the fast path gathers.
//! An application cannot bypass it; it may choose among several (RFC 9293 §3.8.2 MAY-18).
//!
//! The fast path enforces window and pacing rate, and between two decisions grows the window as [`Window::growth`] says and cuts it
//! to [`Window::beta`] when it repairs a loss. An algorithm changes these; it names a window itself only where it must, as what the
//! fast path has done since the reading would be overwritten.

mod algorithm;
mod bbr;
mod choice;
mod constant;
mod controller;
mod cubic;
mod dctcp;
mod dctcp_rate;
mod newreno;
mod rate;
mod sample;
#[cfg(test)]
mod tests;
mod timely;

use crate::flow::Window;
pub use algorithm::Algorithm;
pub use bbr::Bbr;
pub use constant::Constant;
pub(super) use controller::{Controller, Idle};
pub use cubic::Cubic;
pub use dctcp::Dctcp;
pub use dctcp_rate::DctcpRate;
pub use newreno::NewReno;
pub use sample::{Interval, Sample};
pub use timely::Timely;

/// An algorithm's state for one flow. In the windows that it returns, a `cwnd` or `ssthresh` of [`Window::KEEP`] leaves the present
/// one; but not in `initial` and `on_timeout`.
pub trait CongestionControl: Send {
    /// The first window; `syn_lost`: the handshake needed a retransmission (RFC 6928 §2, RFC 5681 §3.1).
    fn initial(&mut self, mss: u32, syn_lost: bool) -> Window;
    /// It takes a flow over from another algorithm, with the window that this one has left.
    fn adopt(&mut self, sample: &Sample) -> Window;
    /// A control interval is over. `None` = what was last said is still right.
    fn on_interval(&mut self, sample: &Sample) -> Option<Window>;
    /// The fast path repairs a loss and has reduced the window by [`Window::beta`]. `None` = that was right.
    fn on_loss(&mut self, sample: &Sample) -> Option<Window>;
    /// Retransmission time-out.
    fn on_timeout(&mut self, sample: &Sample) -> Window;
    /// The last loss or time-out was none (RFC 3522, RFC 5682): the fast path has its old window back, as it was before.
    fn on_undo(&mut self, _: &Sample) -> Option<Window> {
        None
    }
    /// Nothing was sent for a retransmission time-out. `None` = the window stays.
    fn on_idle(&mut self, sample: &Sample) -> Option<Window> {
        restart(sample)
    }
    /// Does it set the pacing rate itself?
    fn paced(&self) -> bool {
        false
    }
    /// Does it decide once per round trip, even if that is shorter than the control interval?
    fn per_round_trip(&self) -> bool {
        false
    }
}

/// RFC 6928 §2: `min(10 MSS, max(2 MSS, 14600))` bytes.
pub fn initial_window(mss: u32) -> u32 {
    mss.saturating_mul(10).min(14_600.max(mss.saturating_mul(2)))
}

/// RFC 5681 §4.1: after a pause the window is the restart window, `min(IW, cwnd)`, as no ACK clock is left. The threshold keeps three
/// quarters of the old window (RFC 7661 §4.4.1), so that slow start finds the way back.
pub fn restart(sample: &Sample) -> Option<Window> {
    let cwnd = initial_window(sample.mss);
    let ssthresh = sample.ssthresh.max(sample.cwnd - sample.cwnd / 4);
    (sample.cwnd > cwnd).then_some(Window { cwnd, ssthresh, growth: 256, beta: 128, pacing: 0 })
}

/// RFC 5681 §3.1: the threshold after a time-out is `left`/256 of the flight, and stays while the same segment times out again.
pub fn timeout_threshold(sample: &Sample, left: u16) -> u32 {
    if sample.timeouts > 1 {
        return sample.ssthresh;
    }
    let part = (u64::from(sample.flight) * u64::from(left)) >> 8;
    (part as u32).max(sample.mss.saturating_mul(2))
}
