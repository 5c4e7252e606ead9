//! HyStart++ (RFC 9406): leaves the initial slow start when the round-trip time rises, before the queue overflows.

use super::Sample;

/// RFC 9406 §4.3: least rise of the round-trip time that counts, in µs.
const MIN_RTT_THRESH_US: u32 = 4_000;
/// RFC 9406 §4.3: largest rise that may be waited for, in µs.
const MAX_RTT_THRESH_US: u32 = 16_000;
/// RFC 9406 §4.3: the rise, as a part of the last round's smallest round-trip time.
const MIN_RTT_DIVISOR: u32 = 8;
/// Samples after which a round is judged, before its end. RFC 9406 §4.3 says 8; here a sample is what one look shows, and a round
/// trip has hardly more than two looks.
const N_RTT_SAMPLE: u32 = 2;
/// RFC 9406 §4.3: rounds of conservative slow start before congestion avoidance.
const CSS_ROUNDS: u32 = 5;

/// Where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Slow start.
    Standard,
    /// Conservative slow start: a quarter of the growth.
    Conservative,
    /// Congestion avoidance shall begin.
    Done,
}

/// What it knows of one flow.
#[derive(Clone, Copy, Debug)]
pub(super) struct HyStart {
    stage: Stage,
    /// The round is over when so many bytes have been acknowledged in all.
    round_end: u64,
    samples: u32,
    /// Smallest round-trip times of the last and of this round in µs; `u32::MAX` = none.
    last_us: u32,
    now_us: u32,
    /// Of the round in which conservative slow start began.
    baseline_us: u32,
    conservative_rounds: u32,
}

impl Default for HyStart {
    fn default() -> Self {
        Self {
            stage: Stage::Standard,
            round_end: 0,
            samples: 0,
            last_us: u32::MAX,
            now_us: u32::MAX,
            baseline_us: u32::MAX,
            conservative_rounds: 0,
        }
    }
}

impl HyStart {
    /// A look at a flow in slow start.
    pub(super) fn look(&mut self, sample: &Sample) -> Stage {
        if sample.bytes_acked >= self.round_end {
            self.judge();
            self.next_round(sample);
        }
        if sample.interval.acked > 0 && sample.rtt_us > 0 {
            self.now_us = self.now_us.min(sample.rtt_us);
            self.samples += 1;
        }
        if self.samples >= N_RTT_SAMPLE {
            self.judge();
        }
        self.stage
    }

    /// RFC 9406 §4.2: has the round-trip time risen, or was that spurious?
    fn judge(&mut self) {
        if self.now_us == u32::MAX {
            return;
        }
        match self.stage {
            Stage::Standard if self.last_us != u32::MAX => {
                let rise = (self.last_us / MIN_RTT_DIVISOR).clamp(MIN_RTT_THRESH_US, MAX_RTT_THRESH_US);
                if self.now_us >= self.last_us.saturating_add(rise) {
                    self.baseline_us = self.now_us;
                    (self.stage, self.conservative_rounds) = (Stage::Conservative, 0);
                }
            }
            Stage::Conservative if self.now_us < self.baseline_us => {
                self.baseline_us = u32::MAX;
                self.stage = Stage::Standard;
            }
            _ => {}
        }
    }

    fn next_round(&mut self, sample: &Sample) {
        if self.stage == Stage::Conservative {
            self.conservative_rounds += 1;
            if self.conservative_rounds >= CSS_ROUNDS {
                self.stage = Stage::Done;
            }
        }
        if self.now_us != u32::MAX {
            self.last_us = self.now_us;
        }
        (self.now_us, self.samples) = (u32::MAX, 0);
        self.round_end = sample.bytes_acked.saturating_add(u64::from(sample.flight));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One round of `looks` looks that show `rtt_ms`.
    fn round(hystart: &mut HyStart, sample: &mut Sample, rtt_ms: u32, looks: u64) -> Stage {
        let mut stage = Stage::Standard;
        for _ in 0..looks {
            sample.interval.acked = u64::from(sample.flight) / looks;
            sample.bytes_acked += sample.interval.acked;
            sample.rtt_us = rtt_ms * 1000;
            stage = hystart.look(sample);
        }
        stage
    }

    fn begin() -> (HyStart, Sample) {
        (HyStart::default(), Sample { flight: 90_000, ..Sample::default() })
    }

    #[test]
    fn a_rising_round_trip_time_ends_slow_start_after_five_more_rounds() {
        for looks in [2, 3, 10] {
            let (mut hystart, mut sample) = begin();
            for rtt_ms in [50, 50, 51, 52] {
                assert_eq!(round(&mut hystart, &mut sample, rtt_ms, looks), Stage::Standard);
            }
            assert_eq!(
                round(&mut hystart, &mut sample, 57, looks),
                Stage::Standard,
                "less than an eighth of 52 ms more"
            );
            assert_eq!(round(&mut hystart, &mut sample, 66, looks), Stage::Conservative, "{looks} looks");
            let stages: Vec<Stage> = (0..7).map(|_| round(&mut hystart, &mut sample, 67, looks)).collect();
            assert!(stages[..4].iter().all(|stage| *stage == Stage::Conservative), "{stages:?}");
            assert_eq!(stages[6], Stage::Done);
        }
    }

    #[test]
    fn a_round_of_one_look_is_judged_at_its_end() {
        let (mut hystart, mut sample) = begin();
        for rtt_ms in [8, 8, 8] {
            assert_eq!(round(&mut hystart, &mut sample, rtt_ms, 1), Stage::Standard);
        }
        assert_eq!(round(&mut hystart, &mut sample, 20, 1), Stage::Standard, "the round has just begun");
        assert_eq!(round(&mut hystart, &mut sample, 20, 1), Stage::Conservative);
    }

    #[test]
    fn a_spurious_rise_lets_slow_start_go_on() {
        let (mut hystart, mut sample) = begin();
        for rtt_ms in [20, 20, 20] {
            round(&mut hystart, &mut sample, rtt_ms, 3);
        }
        assert_eq!(round(&mut hystart, &mut sample, 30, 3), Stage::Conservative);
        assert_eq!(round(&mut hystart, &mut sample, 29, 3), Stage::Standard, "below the baseline again");
        assert_eq!(round(&mut hystart, &mut sample, 29, 3), Stage::Standard);
    }

    #[test]
    fn a_rise_below_four_milliseconds_is_no_sign() {
        let (mut hystart, mut sample) = begin();
        for rtt_ms in [1, 4, 7, 10] {
            assert_eq!(round(&mut hystart, &mut sample, rtt_ms, 2), Stage::Standard);
        }
    }
}
