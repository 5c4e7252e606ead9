//! The trait of congestion control algorithms, and the rules of RFC 5681 and RFC 6928 that several share.

use super::sample::Sample;
use crate::flow::Window;

/// An algorithm's state for one flow. In the windows that it returns, a `cwnd` or `ssthresh` of [`Window::KEEP`] keeps
/// the current value, except in `initial` and `on_timeout`.
pub trait CongestionControl: Send {
    /// The first window; `syn_lost`: the handshake needed a retransmission (RFC 6928 §2, RFC 5681 §3.1).
    fn initial(&mut self, mss: u32, syn_lost: bool) -> Window;
    /// Takes a flow over from another algorithm, with its current window.
    fn adopt(&mut self, sample: &Sample) -> Window;
    /// A control interval is over. `None` = the last decision still holds.
    fn on_interval(&mut self, sample: &Sample) -> Option<Window>;
    /// The fast path repairs a loss and has reduced the window by [`Window::beta`]. `None` = no further change.
    fn on_loss(&mut self, sample: &Sample) -> Option<Window>;
    /// Retransmission time-out.
    fn on_timeout(&mut self, sample: &Sample) -> Window;
    /// The last loss or time-out was spurious (RFC 3522, RFC 5682), and the fast path has restored its old window.
    fn on_undo(&mut self, _: &Sample) -> Option<Window> {
        None
    }
    /// Nothing was sent for the time of a retransmission time-out. `None` = the window stays.
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

/// RFC 5681 §4.1: after a pause the window is the restart window, `min(IW, cwnd)`, as the ACK clock has stopped. The
/// threshold keeps three quarters of the old window (RFC 7661 §4.4.1), so that slow start returns to it.
pub fn restart(sample: &Sample) -> Option<Window> {
    let cwnd = initial_window(sample.mss);
    let ssthresh = sample.ssthresh.max(sample.cwnd - sample.cwnd / 4);
    (sample.cwnd > cwnd).then_some(Window { cwnd, ssthresh, growth: 256, beta: 512, pacing: 0 })
}

/// RFC 5681 §3.1: the threshold after a time-out is `left`/256 of the flight. It stays while the same segment times out
/// again.
pub fn timeout_threshold(sample: &Sample, left: u16) -> u32 {
    if sample.timeouts > 1 {
        return sample.ssthresh;
    }
    let part = (u64::from(sample.flight) * u64::from(left)) >> 10;
    (part as u32).max(sample.mss.saturating_mul(2))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 5681 §4.1, RFC 7661 §4.4.1.
    #[test]
    fn a_restart_leaves_the_initial_window_and_three_quarters_as_the_threshold() {
        for (cwnd, ssthresh, expected) in [
            (10_000, 5000, None),
            (10_001, 5000, Some(7501)),
            (40_000, 5000, Some(30_000)),
            (40_000, 30_001, Some(30_001)),
            (40_000, u32::MAX, Some(u32::MAX)),
        ] {
            let window = restart(&Sample { mss: 1000, cwnd, ssthresh, ..Sample::default() });
            let window = window.map(|window| (window.cwnd, window.ssthresh, window.growth));
            assert_eq!(window, expected.map(|ssthresh| (10_000, ssthresh, 256)), "{cwnd}");
        }
    }

    /// RFC 5681 §3.1, equation 4, and its step for the second time-out of a segment.
    #[test]
    fn a_time_outs_threshold_is_a_part_of_the_flight_and_at_least_two_segments() {
        for (flight, timeouts, left, expected) in [
            (20_000, 1, 512, 10_000),
            (20_001, 1, 717, 14_004),
            (u32::MAX, 1, 1024, u32::MAX),
            (4000, 1, 512, 2000),
            (3999, 1, 512, 2000),
            (0, 0, 512, 2000),
            (20_000, 2, 512, 7777),
        ] {
            let sample = Sample { mss: 1000, flight, timeouts, ssthresh: 7777, ..Sample::default() };
            assert_eq!(timeout_threshold(&sample, left), expected, "{flight} after {timeouts}");
        }
    }
}
