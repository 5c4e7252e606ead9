//! DCTCP as a rate, as in TAS (EuroSys 2019, §3.2 and §4), whose slow path sets rates.

use super::dctcp::Marks;
use super::rate::{ByRate, RateLaw, step};
use super::sample::Sample;

/// TAS: the rate grows to at most 1.2 times the delivered rate.
const HEADROOM: f64 = 1.2;
/// If the rate is below this part of the delivered rate, the queue is already draining and marks are ignored. This is
/// not in TAS, whose round trips are short. A rate, unlike a window, does not fall by itself when a queue grows.
const DRAINING: f64 = 0.97;

/// The algorithm.
pub type DctcpRate = ByRate<DctcpLaw>;

/// State for one flow.
#[derive(Clone, Copy, Debug, Default)]
pub struct DctcpLaw {
    marks: Marks,
    slow_start_over: bool,
    /// Acknowledged in this observation window, bytes and µs.
    acked: u64,
    us: u64,
    /// A loss in this observation window has been answered.
    halved: bool,
}

impl DctcpLaw {
    fn grown(&self, rate: u64, delivered: f64, sample: &Sample) -> u64 {
        // In slow start the delivered rate is the previous rate, which was half as large.
        let (more, headroom) = match self.slow_start_over {
            false => (rate.saturating_mul(2), 2.0 * HEADROOM),
            true => (rate.saturating_add(step(sample)), HEADROOM),
        };
        more.min(((delivered * headroom) as u64).max(rate))
    }
}

impl RateLaw for DctcpLaw {
    fn next(&mut self, rate: u64, sample: &Sample) -> Option<u64> {
        self.acked = self.acked.saturating_add(sample.interval.acked);
        self.us = self.us.saturating_add(sample.interval.us);
        let marked = self.marks.look(sample)?;
        let delivered = self.acked as f64 * 1e6 / self.us.max(1) as f64;
        (self.acked, self.us, self.halved) = (0, 0, false);
        self.slow_start_over |= marked;
        Some(match () {
            () if marked && (rate as f64) < DRAINING * delivered => rate,
            () if marked => (rate as f64 * (1.0 - self.marks.alpha / 2.0)) as u64,
            () if sample.app_limited => rate,
            () => self.grown(rate, delivered, sample),
        })
    }

    fn after_loss(&mut self, rate: u64) -> Option<u64> {
        (!std::mem::replace(&mut self.halved, true)).then_some(rate / 2)
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

    const STEP: u64 = 1_250_000;

    /// A flow of 10 MB/s; each call is one round trip of 1 ms at the full rate.
    struct Bench {
        control: DctcpRate,
        sample: Sample,
    }

    impl Bench {
        fn new() -> Self {
            let mut control = DctcpRate::default();
            let sample = Sample { mss: 1250, cwnd: 10_000, srtt_us: 1000, min_rtt_us: 1000, ..Sample::default() };
            assert_eq!(control.on_interval(&sample).unwrap().pacing, 10_000_000, "window over round trip");
            Self { control, sample }
        }
        fn round(&mut self, marked_percent: u64) -> u64 {
            let acked = self.control.rated.known().unwrap() / 1000;
            self.sample.interval =
                Interval { us: 1000, acked, marked: acked * marked_percent / 100, ..Interval::default() };
            self.sample.bytes_acked += acked;
            self.sample.flight = 1;
            self.control.on_interval(&self.sample).unwrap().pacing
        }
    }

    #[test]
    fn doubles_until_the_first_mark_and_then_adds_ten_megabit_a_round() {
        let mut bench = Bench::new();
        assert_eq!(bench.round(0), 20_000_000);
        assert_eq!(bench.round(0), 40_000_000);
        let cut = bench.round(100);
        assert!((20_000_000..30_000_000).contains(&cut), "{cut}");
        assert_eq!(bench.round(0), cut + STEP);
        assert_eq!(bench.round(0), cut + 2 * STEP);
        bench.sample.srtt_us = 10_000;
        assert_eq!(bench.round(0), cut + 2 * STEP + STEP / 10, "a segment per round trip on a long path");
    }

    #[test]
    fn a_sender_that_does_not_use_its_rate_gets_no_more() {
        let mut bench = Bench::new();
        bench.sample.app_limited = true;
        assert_eq!(bench.round(0), 10_000_000);
    }

    #[test]
    fn a_loss_halves_it_once_per_round() {
        let mut bench = Bench::new();
        let sample = bench.sample;
        assert_eq!(bench.control.on_loss(&sample).unwrap().pacing, 5_000_000);
        assert_eq!(bench.control.on_loss(&sample), None);
        bench.round(0);
        assert!(bench.control.on_loss(&sample).is_some());
    }

    #[test]
    fn it_never_falls_to_nothing() {
        let mut bench = Bench::new();
        for _ in 0..100 {
            bench.round(100);
            let timeouts = 1;
            assert!(bench.control.on_timeout(&Sample { timeouts, ..bench.sample }).pacing >= super::super::rate::LEAST);
        }
    }

    /// TAS §3.2: at most 1.2 times the delivered rate, and twice that in slow start, but never less than before.
    #[test]
    fn growth_is_limited_by_the_delivered_rate() {
        let sample = Sample { mss: 1250, srtt_us: 1000, ..Sample::default() };
        for (slow_start_over, delivered, expected) in [
            (false, 6e6, 14_400_000),
            (false, 20e6, 20_000_000),
            (false, 1e6, 10_000_000),
            (true, 9e6, 10_800_000),
            (true, 20e6, 11_250_000),
            (true, 1e6, 10_000_000),
        ] {
            let law = DctcpLaw { slow_start_over, ..DctcpLaw::default() };
            assert_eq!(law.grown(10_000_000, delivered, &sample), expected, "{slow_start_over} {delivered}");
        }
    }

    /// With marks the rate falls by half of alpha, unless it is below 0.97 of what is delivered.
    #[test]
    fn a_mark_cuts_by_half_of_alpha_unless_the_queue_is_draining() {
        for (rate, acked, expected) in [(9_600, 10, 9_600), (9_700, 10, 4_850), (9_800, 10, 4_900), (9_600, 9, 4_800)] {
            let interval = Interval { us: 1000, acked, marked: acked, ..Interval::default() };
            let sample = Sample { mss: 1250, srtt_us: 1000, bytes_acked: acked, interval, ..Sample::default() };
            let mut law = DctcpLaw::default();
            assert_eq!(law.next(rate, &sample), Some(expected), "{rate} of {acked} bytes per ms");
            assert!(law.slow_start_over);
            assert_eq!((law.acked, law.us), (0, 0));
            law.next(rate, &Sample { bytes_acked: 2 * acked, ..sample });
            assert!(law.slow_start_over, "a second mark does not begin it again");
        }
    }

    /// The delivered rate is that of the whole observation window: 4,000 bytes in 2 ms.
    #[test]
    fn what_was_delivered_is_counted_over_the_observation_window() {
        let mut law = DctcpLaw { slow_start_over: true, ..DctcpLaw::default() };
        let interval = |acked| Interval { us: 1000, acked, ..Interval::default() };
        let sample = Sample { mss: 1250, srtt_us: 1000, flight: 4000, ..Sample::default() };
        law.next(1_000_000, &Sample { interval: interval(1), bytes_acked: 1, ..sample });
        assert_eq!(law.next(1_000_000, &Sample { interval: interval(1000), bytes_acked: 1001, ..sample }), None);
        let last = Sample { interval: interval(3000), bytes_acked: 4001, ..sample };
        assert_eq!(law.next(1_900_000, &last), Some(2_400_000), "1.2 times 2 MB/s");
    }

    #[test]
    fn a_flow_taken_over_beyond_slow_start_does_not_double() {
        for (ssthresh, over) in [(10_001, false), (10_000, true)] {
            let mut bench = Bench::new();
            bench.control.adopt(&Sample { ssthresh, ..bench.sample });
            assert_eq!(bench.control.law.slow_start_over, over, "{ssthresh}");
        }
    }
}
