//! The end of the first slow start, before the queue overflows. HyStart++ (RFC 9406) sees the round-trip time rise. The
//! train of acknowledgements of HyStart sees the path full (Ha and Rhee, "Taming the elephants", §4.1).
//!
//! Every acknowledgement is a sample: the scoreboard knows when what it acknowledges was sent. A flow without a
//! scoreboard (without SACK) leaves slow start at the first loss.

use crate::seq::Seq;

/// RFC 9406 §4.3: least rise of the round-trip time that counts, in µs.
const MIN_RTT_THRESH_US: u32 = 4_000;
/// RFC 9406 §4.3: largest rise that may be waited for, in µs.
const MAX_RTT_THRESH_US: u32 = 16_000;
/// RFC 9406 §4.3: the rise, as a part of the last round's smallest round-trip time.
const MIN_RTT_DIVISOR: u32 = 8;
/// RFC 9406 §4.3: samples after which a round is judged.
const N_RTT_SAMPLE: u8 = 8;
/// RFC 9406 §4.3: rounds of conservative slow start before congestion avoidance.
const CSS_ROUNDS: u8 = 5;
/// RFC 9406 §4.3: how much slower the window grows in those rounds.
pub(super) const CSS_GROWTH_DIVISOR: u32 = 4;
/// Acknowledgements of a train are at most this far apart, in µs (Linux's `hystart_ack_delta_us`). They are at most a
/// quarter of a round trip apart too: two bursts are no train.
const TRAIN_GAP_US: u32 = 2_000;
/// In a window of fewer segments a train says nothing (Linux's `hystart_low_window`).
pub(super) const TRAIN_SEGMENTS: u32 = 16;

/// The effect of an acknowledgement on slow start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// It goes on.
    Standard,
    /// It goes on at a quarter of the pace.
    Conservative,
    /// It is over.
    Done,
}

/// The present slow start. Times are in µs, modulo 2^32 where they are moments.
#[derive(Clone, Copy, Debug)]
pub(super) struct HyStart {
    /// The round is over when more than this is acknowledged: SND.MAX at its first acknowledgement. `None` = no round
    /// has begun.
    end: Option<Seq>,
    /// When the round began.
    began: u32,
    /// The last acknowledgement of the round's train.
    train: u32,
    /// Smallest round-trip time of this slow start's data; `u32::MAX` = none. The handshake is no sample (as in Linux's
    /// CUBIC): beside its small segments each train would look long.
    min_us: u32,
    /// The round's samples so far.
    samples: u8,
    /// Rounds of conservative slow start, this one included; 0 = standard.
    conservative: u8,
    /// Smallest round-trip times of the last and of this round; `u32::MAX` = none.
    last_us: u32,
    now_us: u32,
    /// Of the round in which conservative slow start began.
    baseline_us: u32,
}

impl Default for HyStart {
    fn default() -> Self {
        Self {
            end: None,
            began: 0,
            train: 0,
            min_us: u32::MAX,
            samples: 0,
            conservative: 0,
            last_us: u32::MAX,
            now_us: u32::MAX,
            baseline_us: u32::MAX,
        }
    }
}

/// An acknowledgement that lets the window grow.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ack {
    pub now: u32,
    pub ack: Seq,
    pub snd_max: Seq,
    /// Round trip of what it acknowledges, if that was sent but once.
    pub rtt_us: Option<u32>,
    /// The flow is paced.
    pub paced: bool,
    /// The window is large enough for a train.
    pub large: bool,
}

impl HyStart {
    /// Takes an acknowledgement, before the scoreboard does.
    pub fn acknowledged(&mut self, a: &Ack) -> Phase {
        self.min_us = self.min_us.min(a.rtt_us.unwrap_or(u32::MAX));
        match self.end {
            Some(end) if !a.ack.after(end) => {
                // While the path is not full, each acknowledgement lets two segments go. So a window that is sent as
                // acknowledgements come takes less than half a round trip to come back. A paced one takes that long
                // anyway (as Linux).
                let full_us = if a.paced { self.min_us } else { self.min_us / 2 };
                if self.heard(a.now) && a.large && a.now.wrapping_sub(self.began) > full_us {
                    return Phase::Done;
                }
            }
            _ => {
                self.next_round(a);
                if self.conservative > CSS_ROUNDS {
                    return Phase::Done;
                }
            }
        }
        if let Some(rtt_us) = a.rtt_us {
            self.now_us = self.now_us.min(rtt_us);
            self.samples = self.samples.saturating_add(1);
            if self.samples >= N_RTT_SAMPLE {
                self.judge();
            }
        }
        if self.conservative == 0 { Phase::Standard } else { Phase::Conservative }
    }

    /// Something has arrived, perhaps out of order. True if it belongs to the train.
    pub fn heard(&mut self, now: u32) -> bool {
        let belongs = now.wrapping_sub(self.train) <= TRAIN_GAP_US.min(self.min_us / 4);
        if belongs {
            self.train = now;
        }
        belongs
    }

    fn next_round(&mut self, a: &Ack) {
        if self.conservative > 0 {
            self.conservative += 1;
        }
        if self.samples > 0 {
            self.last_us = self.now_us;
        }
        (self.now_us, self.samples) = (u32::MAX, 0);
        (self.end, self.began, self.train) = (Some(a.snd_max), a.now, a.now);
    }

    /// RFC 9406 §4.2: the round-trip time has risen, or its rise was spurious.
    fn judge(&mut self) {
        if self.conservative > 0 {
            if self.now_us < self.baseline_us {
                (self.conservative, self.baseline_us) = (0, u32::MAX);
            }
        } else if self.last_us != u32::MAX {
            let rise = (self.last_us / MIN_RTT_DIVISOR).clamp(MIN_RTT_THRESH_US, MAX_RTT_THRESH_US);
            if self.now_us >= self.last_us.saturating_add(rise) {
                (self.conservative, self.baseline_us) = (1, self.now_us);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A flow whose rounds are `acks` acknowledgements `gap_us` apart.
    struct Flow {
        hystart: HyStart,
        now: u32,
        ack: Seq,
        min_rtt_us: u32,
    }

    impl Flow {
        fn new(min_rtt_ms: u32) -> Self {
            Self { hystart: HyStart::default(), now: 0, ack: Seq(0), min_rtt_us: min_rtt_ms * 1000 }
        }

        fn round(&mut self, rtt_ms: u32, acks: u32, gap_us: u32) -> Phase {
            let snd_max = self.ack.add(acks - 1);
            let mut phase = Phase::Standard;
            for _ in 0..acks {
                self.now = self.now.wrapping_add(gap_us);
                phase = self.hystart.acknowledged(&Ack {
                    now: self.now,
                    ack: self.ack,
                    snd_max,
                    rtt_us: Some(rtt_ms * 1000),
                    paced: false,
                    large: true,
                });
                if phase == Phase::Done {
                    return phase;
                }
                self.ack = self.ack.add(1);
            }
            self.now = self.now.wrapping_add(self.min_rtt_us);
            phase
        }
    }

    #[test]
    fn a_rising_round_trip_time_ends_slow_start_after_five_more_rounds() {
        for acks in [8, 9, 100] {
            let mut flow = Flow::new(50);
            for rtt_ms in [50, 50, 51, 52, 57] {
                assert_eq!(flow.round(rtt_ms, acks, 10), Phase::Standard, "less than an eighth of 52 ms more");
            }
            for _ in 0..5 {
                assert_eq!(flow.round(66, acks, 10), Phase::Conservative, "{acks} acknowledgements");
            }
            assert_eq!(flow.round(66, acks, 10), Phase::Done);
        }
    }

    #[test]
    fn a_round_of_few_samples_is_not_judged() {
        let mut flow = Flow::new(8);
        for rtt_ms in [8, 8, 20, 40] {
            assert_eq!(flow.round(rtt_ms, 7, 10), Phase::Standard);
        }
    }

    #[test]
    fn a_spurious_rise_lets_slow_start_go_on() {
        let mut flow = Flow::new(20);
        flow.round(20, 10, 10);
        flow.round(20, 10, 10);
        assert_eq!(flow.round(30, 10, 10), Phase::Conservative);
        assert_eq!(flow.round(29, 10, 10), Phase::Standard, "below the baseline again");
        assert_eq!(flow.round(29, 10, 10), Phase::Standard);
    }

    #[test]
    fn a_round_without_samples_leaves_the_last_one_to_compare_with() {
        for (rtt_ms, phase) in [(57, Phase::Conservative), (56, Phase::Standard)] {
            let mut flow = Flow::new(50);
            flow.round(50, 8, 10);
            flow.hystart.acknowledged(&Ack {
                now: flow.now,
                ack: flow.ack,
                snd_max: flow.ack,
                rtt_us: None,
                paced: false,
                large: false,
            });
            flow.ack = flow.ack.add(1);
            assert_eq!(flow.round(rtt_ms, 8, 10), phase, "{rtt_ms} ms: an eighth more than 50 is 56.25");
        }
    }

    #[test]
    fn a_rise_below_four_milliseconds_is_no_sign() {
        let mut flow = Flow::new(1);
        for rtt_ms in [1, 4, 7, 10] {
            assert_eq!(flow.round(rtt_ms, 10, 10), Phase::Standard);
        }
    }

    #[test]
    fn a_train_of_half_a_round_trip_ends_slow_start() {
        let mut flow = Flow::new(10);
        assert_eq!(flow.round(10, 49, 100), Phase::Standard, "4.9 ms");
        assert_eq!(flow.round(10, 60, 100), Phase::Done);
        let mut flow = Flow::new(10);
        assert_eq!(flow.round(10, 4, 2_100), Phase::Standard, "these are apart");
        let mut flow = Flow::new(4);
        assert_eq!(flow.round(4, 4, 1_100), Phase::Standard, "and so are these: more than a quarter of the round trip");
    }
}
