//! Where the first slow start ends, before the queue overflows: HyStart++ (RFC 9406), which sees the round-trip time rise, and the
//! train of acknowledgements of HyStart, which sees the path full (Ha and Rhee, "Taming the elephants", §4.1).
//!
//! Every acknowledgement is a sample: the scoreboard knows when what it acknowledges was sent. A flow without one (without SACK)
//! leaves slow start at the first loss.

use super::protocol::Turn;
use crate::seq::Seq;
use crate::table::bits;

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
/// RFC 9406 §4.3: how much slower that grows.
const CSS_GROWTH_DIVISOR: u32 = 4;
/// Acknowledgements further apart than this are no train, in µs (Linux's `hystart_ack_delta_us`), nor if further than a quarter of a
/// round trip: two bursts are none.
const TRAIN_GAP_US: u32 = 2_000;
/// In a window of fewer segments a train says nothing (Linux's `hystart_low_window`).
const TRAIN_SEGMENTS: u32 = 16;

/// What an acknowledgement says about slow start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// It goes on.
    Standard,
    /// It goes on at a quarter of the pace.
    Conservative,
    /// It is over.
    Done,
}

/// What is known of the present slow start. Times in µs, modulo 2^32 where they are moments.
#[derive(Clone, Copy, Debug)]
pub(super) struct HyStart {
    /// The round is over when more than this is acknowledged, i.e. what the first acknowledgement of the round let go; `None` = none has
    /// begun.
    end: Option<Seq>,
    /// When it began.
    began: u32,
    /// The last acknowledgement of its train.
    train: u32,
    /// Its samples so far.
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
struct Ack {
    now: u32,
    ack: Seq,
    snd_max: Seq,
    /// Of what it acknowledges, if that was sent but once.
    rtt_us: Option<u32>,
    /// The smallest round trip of the connection; 0 = not known.
    min_rtt_us: u32,
    /// How long a train fills the path.
    full_us: u32,
    /// The window is large enough for a train.
    large: bool,
}

impl HyStart {
    fn acknowledged(&mut self, a: &Ack) -> Verdict {
        match self.end {
            Some(end) if !a.ack.after(end) => {
                if self.heard(a.now, a.min_rtt_us) && a.large && a.now.wrapping_sub(self.began) > a.full_us {
                    return Verdict::Done;
                }
            }
            _ => {
                self.next_round(a);
                if self.conservative > CSS_ROUNDS {
                    return Verdict::Done;
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
        if self.conservative == 0 { Verdict::Standard } else { Verdict::Conservative }
    }

    /// Something has arrived, perhaps out of order. Does it belong to the train?
    pub(super) fn heard(&mut self, now: u32, min_rtt_us: u32) -> bool {
        let belongs = now.wrapping_sub(self.train) <= TRAIN_GAP_US.min(min_rtt_us / 4);
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

    /// RFC 9406 §4.2: has the round-trip time risen, or was that spurious?
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

/// An acknowledgement up to `ack`, before the scoreboard hears of it, in a slow start that is to end by itself. Returns by how much the
/// window grows, as `Window::growth`.
#[inline(never)]
pub(super) fn growth(turn: &mut Turn<'_>, ack: Seq) -> u32 {
    let (t, m) = (&turn.t, &turn.lines.measures);
    let growth = m.growth();
    let Some(board) = turn.state.boards.get(turn.lines.recovery.board.get()) else { return growth };
    let now = turn.now.0 as u32;
    let min_rtt_us = turn.lines.rate.min_rtt_us.get();
    let verdict = board.hystart.acknowledged(&Ack {
        now,
        ack,
        snd_max: t.snd_max,
        rtt_us: board.sent_at(ack).map(|at| now.wrapping_sub(at)),
        min_rtt_us,
        // While the path is not full, a window that is sent as acknowledgements come takes less than half a round trip to come back,
        // as each lets two segments go; a paced one takes that long anyway (as Linux).
        full_us: if t.has(bits::PACED) { min_rtt_us } else { min_rtt_us / 2 },
        large: t.cwnd / TRAIN_SEGMENTS >= u32::from(t.mss),
    });
    match verdict {
        Verdict::Standard => growth,
        Verdict::Conservative => growth / CSS_GROWTH_DIVISOR,
        Verdict::Done => {
            m.ssthresh.set(t.cwnd);
            0
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

        fn round(&mut self, rtt_ms: u32, acks: u32, gap_us: u32) -> Verdict {
            let snd_max = self.ack.add(acks - 1);
            let mut verdict = Verdict::Standard;
            for _ in 0..acks {
                self.now = self.now.wrapping_add(gap_us);
                verdict = self.hystart.acknowledged(&Ack {
                    now: self.now,
                    ack: self.ack,
                    snd_max,
                    rtt_us: Some(rtt_ms * 1000),
                    min_rtt_us: self.min_rtt_us,
                    full_us: self.min_rtt_us / 2,
                    large: true,
                });
                if verdict == Verdict::Done {
                    return verdict;
                }
                self.ack = self.ack.add(1);
            }
            self.now = self.now.wrapping_add(self.min_rtt_us);
            verdict
        }
    }

    #[test]
    fn a_rising_round_trip_time_ends_slow_start_after_five_more_rounds() {
        for acks in [8, 9, 100] {
            let mut flow = Flow::new(50);
            for rtt_ms in [50, 50, 51, 52, 57] {
                assert_eq!(flow.round(rtt_ms, acks, 10), Verdict::Standard, "less than an eighth of 52 ms more");
            }
            for _ in 0..5 {
                assert_eq!(flow.round(66, acks, 10), Verdict::Conservative, "{acks} acknowledgements");
            }
            assert_eq!(flow.round(66, acks, 10), Verdict::Done);
        }
    }

    #[test]
    fn a_round_of_few_samples_is_not_judged() {
        let mut flow = Flow::new(8);
        for rtt_ms in [8, 8, 20, 40] {
            assert_eq!(flow.round(rtt_ms, 7, 10), Verdict::Standard);
        }
    }

    #[test]
    fn a_spurious_rise_lets_slow_start_go_on() {
        let mut flow = Flow::new(20);
        flow.round(20, 10, 10);
        flow.round(20, 10, 10);
        assert_eq!(flow.round(30, 10, 10), Verdict::Conservative);
        assert_eq!(flow.round(29, 10, 10), Verdict::Standard, "below the baseline again");
        assert_eq!(flow.round(29, 10, 10), Verdict::Standard);
    }

    #[test]
    fn a_rise_below_four_milliseconds_is_no_sign() {
        let mut flow = Flow::new(1);
        for rtt_ms in [1, 4, 7, 10] {
            assert_eq!(flow.round(rtt_ms, 10, 10), Verdict::Standard);
        }
    }

    #[test]
    fn a_train_of_half_a_round_trip_ends_slow_start() {
        let mut flow = Flow::new(10);
        assert_eq!(flow.round(10, 49, 100), Verdict::Standard, "4.9 ms");
        assert_eq!(flow.round(10, 60, 100), Verdict::Done);
        let mut flow = Flow::new(10);
        assert_eq!(flow.round(10, 4, 2_100), Verdict::Standard, "these are apart");
        let mut flow = Flow::new(4);
        assert_eq!(
            flow.round(4, 4, 1_100),
            Verdict::Standard,
            "and so are these: more than a quarter of the round trip"
        );
    }
}
