//! NewReno (RFC 5681, RFC 6582). The fast path grows and reduces the window, so only time-outs need a decision here.

use super::control::{CongestionControl, initial_window, timeout_threshold};
use super::sample::Sample;
use crate::flow::Window;

/// One MSS per window (RFC 5681 §3.1).
const GROWTH: u16 = 256;
/// Half the window is left after a loss (RFC 5681 §3.1, equation 4).
const BETA: u16 = 512;

/// NewReno's state for one flow: none.
#[derive(Clone, Copy, Debug, Default)]
pub struct NewReno;

impl CongestionControl for NewReno {
    fn initial(&mut self, mss: u32, syn_lost: bool) -> Window {
        let cwnd = if syn_lost { mss } else { initial_window(mss) };
        Window { cwnd, ssthresh: u32::MAX, growth: GROWTH, beta: BETA, pacing: 0 }
    }
    fn adopt(&mut self, _: &Sample) -> Window {
        Window { cwnd: Window::KEEP, ssthresh: Window::KEEP, growth: GROWTH, beta: BETA, pacing: 0 }
    }
    fn on_interval(&mut self, _: &Sample) -> Option<Window> {
        None
    }
    fn on_loss(&mut self, _: &Sample) -> Option<Window> {
        None
    }
    fn on_timeout(&mut self, sample: &Sample) -> Window {
        let ssthresh = timeout_threshold(sample, BETA);
        Window { cwnd: sample.mss, ssthresh, growth: GROWTH, beta: BETA, pacing: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn initial_window_follows_rfc_6928() {
        assert_eq!(initial_window(536), 5360);
        assert_eq!(initial_window(1448), 14_480);
        assert_eq!(initial_window(1460), 14_600);
        assert_eq!(initial_window(2000), 14_600);
        assert_eq!(initial_window(65_483), 130_966);
        assert_eq!(NewReno.initial(1448, true).cwnd, 1448);
    }

    #[test]
    fn timeout_halves_the_flight_once() {
        let first =
            Sample { mss: 1000, flight: 20_000, cwnd: 30_000, ssthresh: u32::MAX, timeouts: 1, ..Sample::default() };
        assert_eq!(
            NewReno.on_timeout(&first),
            Window { cwnd: 1000, ssthresh: 10_000, growth: 256, beta: 512, pacing: 0 }
        );
        let second = Sample { ssthresh: 10_000, timeouts: 2, ..first };
        assert_eq!(NewReno.on_timeout(&second).ssthresh, 10_000);
        let small = Sample { flight: 1000, ..first };
        assert_eq!(NewReno.on_timeout(&small).ssthresh, 2000);
    }
}
