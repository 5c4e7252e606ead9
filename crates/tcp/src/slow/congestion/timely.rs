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

    /// A law beyond slow start that has seen this smallest round-trip time.
    fn law(smallest_us: u32) -> TimelyLaw {
        TimelyLaw { slow_start_over: true, smallest_us, ..TimelyLaw::default() }
    }

    /// A sample of this newest round-trip time, in which something was acknowledged.
    fn seen(rtt_us: u32, min_rtt_us: u32) -> Sample {
        let interval = Interval { us: 20, acked: 1000, ..Interval::default() };
        Sample { mss: 1250, srtt_us: 1000, rtt_us, min_rtt_us, interval, ..Sample::default() }
    }

    /// Algorithm 1 at 100 MB/s. The thresholds are 30 and 480 µs above the smallest round trip, or an eighth and a half
    /// of it if these are more.
    #[test]
    fn the_thresholds_are_queueing_delays_and_grow_with_the_path() {
        const RATE: u64 = 100_000_000;
        for (smallest_us, rtt_us, expected) in [
            (20, 49, RATE + DELTA),
            (20, 500, RATE + DELTA),
            (20, 501, 99_840_319),
            (240, 720, RATE + DELTA),
            (240, 721, 99_889_042),
            (1000, 1124, RATE + DELTA),
            (1000, 1500, RATE + DELTA),
            (1000, 1600, 95_000_000),
            (1000, 3000, 60_000_000),
        ] {
            assert_eq!(law(smallest_us).decide(RATE, &seen(rtt_us, 0)), expected, "{rtt_us} of {smallest_us} µs");
        }
        // A gradient counts from the lower threshold on: it rises by 200 µs of 1,000, times alpha, times beta.
        for (rtt_us, expected) in [(1124, RATE + DELTA), (1125, 86_000_000)] {
            let mut law = TimelyLaw { previous_us: f64::from(rtt_us - 200), ..law(1000) };
            assert_eq!(law.decide(RATE, &seen(rtt_us, 0)), expected, "{rtt_us} µs");
        }
    }

    /// Algorithm 1: the difference is an average, 7/8 of the newest and 1/8 of the old one.
    #[test]
    fn the_gradient_is_an_average_of_differences() {
        let mut law = TimelyLaw { previous_us: 1200.0, ..law(1000) };
        let mut decide = |rtt_us| law.decide(100_000_000, &seen(rtt_us, 0));
        // 0.875 * 80 = 70 of 1,000, times 0.8.
        assert_eq!(decide(1280), 94_400_000);
        // 70 / 8 + 0.875 * 10 = 17.5.
        assert_eq!(decide(1290), 98_600_000);
        // 17.5 / 8 + 0.875 * -2.5 = 0: not rising.
        assert_eq!(law.difference_us, 17.5);
        assert_eq!(law.decide(100_000_000, &seen(1287, 0)), 101_250_000);
        assert_eq!(law.falling, 1);
        law.decide(100_000_000, &seen(1400, 0));
        assert_eq!(law.falling, 0, "it rises again");
        (law.falling, law.previous_us) = (3, 1400.0);
        law.decide(100_000_000, &seen(1600, 0));
        assert_eq!(law.falling, 0, "the queue is full");
    }

    #[test]
    fn below_the_low_threshold_a_new_flow_doubles_and_an_idle_one_stays() {
        let decide = |over, app_limited, rtt_us| {
            let mut law = TimelyLaw { slow_start_over: over, ..law(20) };
            law.decide(10_000_000, &Sample { app_limited, ..seen(rtt_us, 0) })
        };
        assert_eq!(decide(false, false, 49), 20_000_000);
        assert_eq!(decide(false, false, 50), 11_250_000, "the threshold itself");
        assert_eq!(decide(true, false, 49), 11_250_000);
        assert_eq!([decide(false, true, 49), decide(true, true, 49), decide(true, true, 50)], [10_000_000; 3]);
    }

    #[test]
    fn a_decision_needs_a_round_trip_in_which_something_was_acknowledged() {
        let mut timely = law(0);
        let good = Sample { bytes_acked: 5000, flight: 3000, ..seen(40, 30) };
        assert_eq!(timely.next(10_000_000, &Sample { rtt_us: 0, ..good }), None);
        assert_eq!(timely.next(10_000_000, &Sample { interval: Interval::default(), ..good }), None);
        assert!(timely.next(10_000_000, &good).is_some());
        assert_eq!((timely.smallest_us, timely.round_end), (30, 8000));
        assert_eq!(timely.next(10_000_000, &Sample { bytes_acked: 7999, ..good }), None, "the round lasts");
        let next = Sample { bytes_acked: 8000, ..good };
        assert!(timely.next(10_000_000, &Sample { flight: 0, rtt_us: 25, min_rtt_us: 0, ..next }).is_some());
        assert_eq!(timely.smallest_us, 25, "what is not known is not the smallest");
        timely.next(10_000_000, &Sample { flight: 0, ..next });
        assert_eq!(timely.smallest_us, 25, "a longer one changes nothing");
    }

    #[test]
    fn slow_start_ends_with_the_first_rate_that_is_not_doubled() {
        for (rtt_us, app_limited, over) in [(49, false, false), (60, false, true), (60, true, false), (49, true, false)]
        {
            let mut law = TimelyLaw { smallest_us: 20, ..TimelyLaw::default() };
            law.next(10_000_000, &Sample { app_limited, ..seen(rtt_us, 0) });
            assert_eq!(law.slow_start_over, over, "{rtt_us} µs, {app_limited}");
        }
        assert_eq!(law(20).after_loss(10_000_000), Some(7_000_000), "RFC 9438 §4.6");
    }

    #[test]
    fn a_flow_taken_over_goes_on_in_slow_start_or_beyond_it_and_a_loss_ends_it() {
        let sample = Sample { cwnd: 5000, ssthresh: 6000, ..seen(40, 30) };
        let mut timely = Timely::default();
        for (ssthresh, over) in [(5001, false), (5000, true), (6000, false)] {
            timely.adopt(&Sample { ssthresh, ..sample });
            assert_eq!(timely.law.slow_start_over, over, "{ssthresh}");
        }
        timely.on_loss(&sample);
        assert!(timely.law.slow_start_over);
        timely.adopt(&sample);
        timely.on_timeout(&sample);
        assert!(timely.law.slow_start_over && timely.paced() && timely.per_round_trip());
        assert_eq!(timely.on_idle(&sample), None);
    }
}
