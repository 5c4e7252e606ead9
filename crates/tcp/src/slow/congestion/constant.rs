//! A constant rate, whatever the network does, for measurements and for reserved paths.

use super::control::CongestionControl;
use super::rate::{LEAST, Rated};
use super::sample::Sample;
use crate::flow::Window;

/// State for one flow.
#[derive(Clone, Copy, Debug)]
pub struct Constant {
    rated: Rated,
    bytes_per_s: u64,
}

impl Constant {
    /// This rate in bytes per second.
    pub fn new(bytes_per_s: u64) -> Self {
        Self { rated: Rated::default(), bytes_per_s: bytes_per_s.max(LEAST) }
    }
}

impl CongestionControl for Constant {
    fn initial(&mut self, mss: u32, syn_lost: bool) -> Window {
        Window { pacing: self.bytes_per_s, ..self.rated.initial(mss, syn_lost) }
    }

    fn adopt(&mut self, sample: &Sample) -> Window {
        self.rated.set(self.bytes_per_s, sample)
    }

    fn on_interval(&mut self, sample: &Sample) -> Option<Window> {
        Some(self.rated.set(self.bytes_per_s, sample))
    }

    fn on_loss(&mut self, _: &Sample) -> Option<Window> {
        None
    }

    fn on_timeout(&mut self, sample: &Sample) -> Window {
        self.rated.set(self.bytes_per_s, sample)
    }

    fn on_idle(&mut self, _: &Sample) -> Option<Window> {
        None
    }

    fn paced(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_constant_rate_stays_whatever_happens() {
        let sample = Sample { mss: 1000, cwnd: 5000, min_rtt_us: 10_000, timeouts: 1, ..Sample::default() };
        let mut constant = Constant::new(1_000_000);
        let window = Window { cwnd: 20_000, ssthresh: 20_000, growth: 0, beta: 1024, pacing: 1_000_000 };
        assert_eq!(constant.initial(1000, false).pacing, 1_000_000);
        assert_eq!(constant.on_interval(&sample), Some(window));
        assert_eq!([constant.adopt(&sample), constant.on_timeout(&sample)], [window; 2]);
        assert_eq!([constant.on_loss(&sample), constant.on_idle(&sample)], [None; 2]);
        assert!(constant.paced() && !constant.per_round_trip());
        assert_eq!(Constant::new(1).initial(1000, false).pacing, LEAST);
    }
}
