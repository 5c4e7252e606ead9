//! TIMELY (SIGCOMM 2015): a rate that follows the gradient of the round-trip time.
//!
//! The paper's thresholds are round-trip times of one data centre. Here they are queueing delays above the smallest
//! round trip, so that a longer path is not taken for a full queue.

use super::rate::{ByRate, RateLaw, step};
use super::sample::Sample;

/// Algorithm 1: beta, multiplicative decrement.
const BETA: f64 = 0.8;
/// Algorithm 1: alpha, weight of the newest difference of round-trip times.
const ALPHA: f64 = 0.875;
/// §4.4: T_low of 50 µs at a smallest round trip of 20 µs.
const LOW_US: u32 = 30;
/// §4.4: T_high of 500 µs likewise.
const HIGH_US: u32 = 480;
/// §4.3: consecutive decreasing gradients that start hyperactive increase.
const HAI_AFTER: u32 = 5;
/// §4.3: steps at once in hyperactive increase.
const HAI_STEPS: u64 = 5;

/// The algorithm.
pub type Timely = ByRate<TimelyLaw>;

/// State for one flow.
#[derive(Clone, Copy, Debug, Default)]
pub struct TimelyLaw {
    previous_us: f64,
    difference_us: f64,
    falling: u32,
    smallest_us: u32,
    slow_start_over: bool,
    /// The next decision is due when this many bytes have been acknowledged in all.
    round_end: u64,
}

impl TimelyLaw {
    /// Algorithm 1 for one new round-trip time.
    fn decide(&mut self, rate: u64, sample: &Sample) -> u64 {
        let rtt = f64::from(sample.rtt_us);
        if self.previous_us == 0.0 {
            self.previous_us = rtt;
        }
        let (difference, smallest) = (rtt - self.previous_us, f64::from(self.smallest_us.max(1)));
        self.previous_us = rtt;
        self.difference_us = (1.0 - ALPHA) * self.difference_us + ALPHA * difference;
        let gradient = self.difference_us / smallest;
        let low = smallest + f64::from(LOW_US).max(smallest / 8.0);
        let high = smallest + f64::from(HIGH_US).max(smallest / 2.0);
        let cut = |by: f64| (rate as f64 * (1.0 - BETA * by.clamp(0.0, 1.0))) as u64;
        let add = |steps: u64| if sample.app_limited { rate } else { rate.saturating_add(steps * step(sample)) };
        match () {
            () if rtt < low && !self.slow_start_over && !sample.app_limited => rate.saturating_mul(2),
            () if rtt < low => add(1),
            () if rtt > high => {
                self.falling = 0;
                cut(1.0 - high / rtt)
            }
            () if gradient <= 0.0 => {
                self.falling += 1;
                add(if self.falling >= HAI_AFTER { HAI_STEPS } else { 1 })
            }
            () => {
                self.falling = 0;
                cut(gradient)
            }
        }
    }
}

impl RateLaw for TimelyLaw {
    fn next(&mut self, rate: u64, sample: &Sample) -> Option<u64> {
        if sample.rtt_us == 0 || sample.interval.acked == 0 || sample.bytes_acked < self.round_end {
            return None;
        }
        self.round_end = sample.bytes_acked.saturating_add(u64::from(sample.flight));
        for us in [sample.rtt_us, sample.min_rtt_us] {
            if us != 0 && (self.smallest_us == 0 || us < self.smallest_us) {
                self.smallest_us = us;
            }
        }
        let next = self.decide(rate, sample);
        // Not in the paper, whose flows start at a fixed rate: the first sign of a queue ends the doubling.
        self.slow_start_over |= next < rate.saturating_mul(2) && !sample.app_limited;
        Some(next)
    }

    /// The paper's network loses nothing. Elsewhere a loss means a full queue, and CUBIC's reduction is used (RFC 9438
    /// §4.6).
    fn after_loss(&mut self, rate: u64) -> Option<u64> {
        Some(rate / 10 * 7)
    }

    fn set_slow_start_over(&mut self, over: bool) {
        self.slow_start_over = over;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::slow::congestion::{CongestionControl, Interval};

    const DELTA: u64 = 1_250_000;

    /// Rates after one decision for each of these round-trip times, at a smallest one of 20 µs and 100 MB/s.
    fn rates(rtts_us: &[u32]) -> Vec<u64> {
        let law = TimelyLaw { slow_start_over: true, smallest_us: 20, ..TimelyLaw::default() };
        let mut timely = Timely { law, ..Timely::default() };
        let mut sample = Sample { mss: 1000, cwnd: 2_000, srtt_us: 20, min_rtt_us: 20, ..Sample::default() };
        timely.on_interval(&sample);
        sample.interval = Interval { us: 20, acked: 1000, ..Interval::default() };
        let rate = |rtt_us: &u32| {
            sample.bytes_acked += 1000;
            sample.rtt_us = *rtt_us;
            timely.on_interval(&sample).unwrap().pacing
        };
        rtts_us.iter().map(rate).collect()
    }

    #[test]
    fn below_the_low_threshold_it_adds() {
        assert_eq!(rates(&[20, 45, 30]), [101_250_000, 102_500_000, 103_750_000]);
    }

    #[test]
    fn above_the_high_threshold_it_cuts_by_the_excess() {
        // 1 - 0.8 * (1 - 500 / 1000)
        assert_eq!(rates(&[1000]), [60_000_000]);
    }

    #[test]
    fn between_them_it_follows_the_gradient() {
        let rising = rates(&[100, 104]);
        // 0.875 * 4 / 20 = 0.175, times 0.8.
        assert_eq!(rising[1], (rising[0] as f64 * (1.0 - 0.8 * 0.175)) as u64);
        let falling = rates(&[200, 190, 180, 170, 160, 150, 140]);
        let steps: Vec<u64> = falling.windows(2).map(|pair| (pair[1] - pair[0]) / DELTA).collect();
        assert_eq!(steps, [1, 1, 1, 5, 5, 5], "hyperactive from the fifth on");
    }
}
