//! The common part of rate-based algorithms: a pacing rate, and a window around it that is only a safety limit.

use super::control::{CongestionControl, initial_window};
use super::sample::Sample;
use crate::flow::Window;

/// Lowest rate in bytes per second: 100 kbit/s. It must not be 0, which means no limit.
pub(super) const LEAST: u64 = 12_500;
/// Highest rate: 8 Tbit/s.
pub(super) const MOST: u64 = 1_000_000_000_000;
/// Additive increase per decision in bytes per second: 10 Mbit/s (TAS, TIMELY).
const STEP: u64 = 1_250_000;
/// Ratio of the window to rate times round trip.
const WINDOW_GAIN: u64 = 2;
/// The fast path does not cut the window after a loss, as the rate decides.
const BETA: u16 = 1024;

/// A flow's rate in bytes per second; 0 = not known yet.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rated {
    rate: u64,
}

impl Rated {
    /// The first window. It is not paced, as no round trip is known yet.
    pub(super) fn initial(self, mss: u32, syn_lost: bool) -> Window {
        let cwnd = if syn_lost { mss } else { initial_window(mss) };
        Window { cwnd, ssthresh: u32::MAX, growth: 256, beta: BETA, pacing: 0 }
    }

    /// The rate, once there is one.
    pub(super) fn known(self) -> Option<u64> {
        (self.rate != 0).then_some(self.rate)
    }

    /// Sets the first rate: the window per round trip.
    pub(super) fn begin(&mut self, sample: &Sample) -> Option<Window> {
        let us = round_trip_us(sample)?;
        Some(self.set(u64::from(sample.cwnd.max(sample.mss)) * 1_000_000 / us, sample))
    }

    /// Sets the rate.
    pub(super) fn set(&mut self, rate: u64, sample: &Sample) -> Window {
        self.rate = rate.clamp(LEAST, MOST);
        let product = u128::from(self.rate) * u128::from(round_trip_us(sample).unwrap_or(1_000)) / 1_000_000;
        let wanted = u32::try_from(product.saturating_mul(u128::from(WINDOW_GAIN))).unwrap_or(u32::MAX);
        let cwnd = wanted.max(initial_window(sample.mss));
        Window { cwnd, ssthresh: cwnd, growth: 0, beta: BETA, pacing: self.rate }
    }

    /// A time-out: half the rate, and one segment until the next decision.
    pub(super) fn timeout(&mut self, sample: &Sample) -> Window {
        let window = self.set(self.rate / 2, sample);
        Window { cwnd: sample.mss, growth: 256, ..window }
    }
}

/// The step of additive increase in bytes per second: that of the papers, but at most Reno's one segment per round
/// trip. On paths much slower than a data centre's the papers' step would be a large part of the rate.
pub(super) fn step(sample: &Sample) -> u64 {
    STEP.min(u64::from(sample.mss) * 1_000_000 / u64::from(sample.srtt_us.max(1))).max(1)
}

/// The law by which a rate changes. [`ByRate`] has the rest of such an algorithm.
pub trait RateLaw: Send {
    /// The next rate in bytes per second after `rate`; `None` = no decision yet.
    fn next(&mut self, rate: u64, sample: &Sample) -> Option<u64>;
    /// The rate after a loss; `None` = it stays.
    fn after_loss(&mut self, rate: u64) -> Option<u64>;
    /// Ends or restarts slow start, the fast search for the path's rate.
    fn set_slow_start_over(&mut self, over: bool);
}

/// An algorithm that sets a rate by a law.
#[derive(Clone, Copy, Debug, Default)]
pub struct ByRate<L> {
    pub(super) rated: Rated,
    pub(super) law: L,
}

impl<L: RateLaw> CongestionControl for ByRate<L> {
    fn initial(&mut self, mss: u32, syn_lost: bool) -> Window {
        self.rated.initial(mss, syn_lost)
    }

    fn adopt(&mut self, sample: &Sample) -> Window {
        self.law.set_slow_start_over(!sample.slow_start());
        self.rated.begin(sample).unwrap_or(self.rated.initial(sample.mss, false))
    }

    fn on_interval(&mut self, sample: &Sample) -> Option<Window> {
        let Some(rate) = self.rated.known() else { return self.rated.begin(sample) };
        let next = self.law.next(rate, sample)?;
        Some(self.rated.set(next, sample))
    }

    fn on_loss(&mut self, sample: &Sample) -> Option<Window> {
        self.law.set_slow_start_over(true);
        let less = self.law.after_loss(self.rated.known()?)?;
        Some(self.rated.set(less, sample))
    }

    fn on_timeout(&mut self, sample: &Sample) -> Window {
        self.law.set_slow_start_over(true);
        self.rated.timeout(sample)
    }

    fn on_idle(&mut self, _: &Sample) -> Option<Window> {
        None
    }

    fn paced(&self) -> bool {
        true
    }

    fn per_round_trip(&self) -> bool {
        true
    }
}

/// The round trip without queueing, if known, else the smoothed one.
fn round_trip_us(sample: &Sample) -> Option<u64> {
    let us = if sample.min_rtt_us != 0 { sample.min_rtt_us } else { sample.srtt_us };
    (us != 0).then_some(u64::from(us))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_round_trip_is_the_one_without_queueing_or_else_the_smoothed_one() {
        for (min_rtt_us, srtt_us, round_trip) in [(5, 9, Some(5)), (0, 9, Some(9)), (5, 0, Some(5)), (0, 0, None)] {
            let sample = Sample { min_rtt_us, srtt_us, ..Sample::default() };
            assert_eq!(round_trip_us(&sample), round_trip);
        }
    }

    /// TAS, TIMELY: 10 Mbit/s, but at most a segment per round trip, and at least a byte per second.
    #[test]
    fn the_step_is_ten_megabit_or_a_segment_per_round_trip() {
        for (mss, srtt_us, bytes_per_s) in [
            (1250, 1000, 1_250_000),
            (1250, 999, 1_250_000),
            (1250, 1001, 1_248_751),
            (1448, 100_000, 14_480),
            (1448, 0, 1_250_000),
            (1, 4_000_000, 1),
        ] {
            assert_eq!(step(&Sample { mss, srtt_us, ..Sample::default() }), bytes_per_s, "{mss} per {srtt_us} µs");
        }
    }

    /// The window is twice the rate times the round trip without queueing, at least the initial one.
    #[test]
    fn a_rate_and_its_window_are_within_their_limits() {
        for (rate, min_rtt_us, expected, cwnd) in [
            (10_000_000, 10_000, 10_000_000, 200_000),
            (10_000_000, 0, 10_000_000, 20_000),
            (1_000_000, 1000, 1_000_000, 10_000),
            (0, 1000, 12_500, 10_000),
            (u64::MAX, 1000, 1_000_000_000_000, 2_000_000_000),
            (u64::MAX, u32::MAX, 1_000_000_000_000, u32::MAX),
        ] {
            let mut rated = Rated::default();
            let sample = Sample { mss: 1000, min_rtt_us, ..Sample::default() };
            let window = Window { cwnd, ssthresh: cwnd, growth: 0, beta: 1024, pacing: expected };
            assert_eq!(rated.set(rate, &sample), window, "{rate} over {min_rtt_us} µs");
            assert_eq!(rated.known(), Some(expected));
        }
    }

    #[test]
    fn the_first_rate_is_the_window_per_round_trip_and_a_time_out_halves_it() {
        let sample = Sample { mss: 1000, cwnd: 50_000, min_rtt_us: 20_000, ..Sample::default() };
        let mut rated = Rated::default();
        assert_eq!((rated.known(), rated.begin(&Sample { min_rtt_us: 0, ..sample })), (None, None));
        let first = Window { cwnd: 100_000, ssthresh: 100_000, growth: 0, beta: 1024, pacing: 2_500_000 };
        assert_eq!(rated.begin(&sample), Some(first));
        let halved = Window { cwnd: 1000, ssthresh: 50_000, growth: 256, beta: 1024, pacing: 1_250_000 };
        assert_eq!(rated.timeout(&sample), halved);
        assert_eq!(rated.known(), Some(1_250_000));
        assert_eq!(rated.begin(&Sample { cwnd: 1, ..sample }).map(|window| window.pacing), Some(50_000), "a segment");
        let begin = |syn_lost| Rated::default().initial(1000, syn_lost);
        assert_eq!((begin(false).cwnd, begin(true).cwnd, begin(false).pacing), (10_000, 1000, 0));
        assert_eq!((begin(false).ssthresh, begin(false).growth, begin(false).beta), (u32::MAX, 256, 1024));
    }
}
