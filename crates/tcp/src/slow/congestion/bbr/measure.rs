//! BBR's measurements: rounds, the largest bandwidth, the smallest round-trip time.

use crate::slow::congestion::sample::Sample;
use crate::time::Micros;

/// draft-ietf-ccwg-bbr §2.7: MinRTTFilterLen: 10 s.
const MIN_RTT_FILTER_US: u64 = 10_000_000;

/// The deliveries of one round trip.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Round {
    /// Delivered, in bytes per second.
    pub bandwidth: f64,
    /// Bytes delivered.
    pub acked: u64,
    /// Bytes lost.
    pub lost: u64,
    /// Did the application limit the sender at any time in it?
    pub app_limited: bool,
    /// Were losses repaired both when it began and when it ended?
    pub recovering: bool,
}

impl Round {
    /// The lost part.
    pub(super) fn loss_rate(&self) -> f64 {
        self.lost as f64 / (self.acked as f64 + self.lost as f64).max(1.0)
    }
}

/// Deliveries over some time.
#[derive(Clone, Copy, Debug, Default)]
struct Delivery {
    us: u64,
    acked: u64,
    rounds: u32,
}

/// Rounds after which a bandwidth measurement ends even during recovery.
const LONGEST: u32 = 8;

/// Counts rounds. A round is over when the data in flight at its start has been acknowledged (§5.5.1).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rounds {
    end: u64,
    acked: u64,
    lost: u64,
    app_limited: bool,
    recovering: bool,
    /// Bytes lost and not sent again so far.
    unrepaired: u64,
    /// During a repair the cumulative acknowledgement stops and then jumps. So the bandwidth is measured from before it
    /// to after.
    delivery: Delivery,
    /// Rounds so far.
    pub count: u64,
}

impl Rounds {
    /// What was measured so far says nothing of the path.
    pub(super) fn forget_delivery(&mut self) {
        self.delivery = Delivery::default();
    }

    /// Losses that were none need no repair.
    pub(super) fn undo(&mut self) {
        self.unrepaired = 0;
    }

    /// Adds a sample. Returns the round that ends with it, if any.
    pub(super) fn look(&mut self, sample: &Sample) -> Option<Round> {
        let interval = &sample.interval;
        let again = interval.retransmits.saturating_mul(u64::from(sample.mss));
        self.acked = self.acked.saturating_add(interval.acked);
        // A flow without a scoreboard knows only what it sends again.
        self.lost = self.lost.saturating_add(interval.lost.max(again.saturating_sub(self.unrepaired)));
        self.unrepaired = self.unrepaired.saturating_add(interval.lost).saturating_sub(again);
        self.app_limited |= sample.app_limited;
        let delivery = &mut self.delivery;
        delivery.us = delivery.us.saturating_add(interval.us);
        delivery.acked = delivery.acked.saturating_add(interval.acked);
        if sample.bytes_acked < self.end || self.acked == 0 || delivery.us == 0 {
            return None;
        }
        delivery.rounds += 1;
        let round = Round {
            bandwidth: delivery.acked as f64 * 1e6 / delivery.us as f64,
            acked: self.acked,
            lost: self.lost,
            app_limited: self.app_limited,
            recovering: self.recovering && sample.recovering,
        };
        if !sample.recovering || delivery.rounds >= LONGEST {
            *delivery = Delivery::default();
        }
        (self.acked, self.lost, self.app_limited, self.recovering) = (0, 0, false, sample.recovering);
        self.end = sample.bytes_acked.saturating_add(u64::from(sample.flight));
        self.count += 1;
        Some(round)
    }
}

/// BBR.max_bw: the largest of the last two probing cycles (§5.5.5, MaxBwFilterLen = 2).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MaxBandwidth {
    cycles: [f64; 2],
}

impl MaxBandwidth {
    pub(super) fn get(&self) -> f64 {
        self.cycles[0].max(self.cycles[1])
    }
    /// §5.5.2.3: an application-limited sample counts only if it is larger.
    pub(super) fn add(&mut self, round: &Round) {
        if !round.app_limited || round.bandwidth >= self.get() {
            self.cycles[0] = self.cycles[0].max(round.bandwidth);
        }
    }
    /// Ends a cycle (§5.5.6). One without samples changes nothing.
    pub(super) fn advance(&mut self) {
        if self.cycles[0] > 0.0 {
            self.cycles = [0.0, self.cycles[0]];
        }
    }
}

/// BBR.min_rtt (§5.5.7).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MinRtt {
    /// In µs, 0 = not known.
    pub us: u32,
    at: Micros,
}

impl MinRtt {
    /// Adds a sample. True = the minimum has become smaller, or has been confirmed.
    pub(super) fn look(&mut self, sample: &Sample) -> bool {
        let newest = sample.rtt_us;
        let expired = sample.now.since(self.at) > MIN_RTT_FILTER_US;
        if newest == 0 || (self.us != 0 && newest > self.us && !expired) {
            return false;
        }
        (self.us, self.at) = (newest, sample.now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slow::congestion::Interval;

    /// Rounds, and the flow's samples of a millisecond each.
    #[derive(Default)]
    struct Flow {
        rounds: Rounds,
        sample: Sample,
    }

    impl Flow {
        fn new() -> Self {
            Self { rounds: Rounds::default(), sample: Sample { mss: 1000, ..Sample::default() } }
        }
        /// Adds a sample. Returns bandwidth, bytes delivered and bytes lost of the round that it ends.
        fn look(&mut self, acked: u64, lost: u64, retransmits: u64) -> Option<(f64, u64, u64)> {
            self.sample.interval = Interval { us: 1000, acked, lost, retransmits, ..Interval::default() };
            self.sample.bytes_acked += acked;
            self.rounds.look(&self.sample).map(|round| (round.bandwidth, round.acked, round.lost))
        }
    }

    /// Draft §5.5.1: the round ends with the acknowledgement of what was in flight at its start.
    #[test]
    fn a_round_has_all_that_was_delivered_and_lost_until_its_data_are_acknowledged() {
        let mut flow = Flow::new();
        assert_eq!(flow.look(0, 0, 0), None, "nothing is delivered");
        flow.sample.flight = 6000;
        assert_eq!(flow.look(4000, 0, 0), Some((2e6, 4000, 0)), "in two milliseconds");
        assert_eq!(flow.look(5000, 700, 0), None, "9,000 of 10,000");
        assert_eq!(
            flow.look(1000, 300, 2),
            Some((3e6, 6000, 2000)),
            "two segments sent again are more than 1,000 bytes"
        );
        assert_eq!(flow.look(5999, 0, 0), None);
        assert_eq!(flow.look(2, 0, 0), Some((3_000_500.0, 6001, 0)), "the last round's losses are forgotten");
        assert_eq!(flow.rounds.count, 3);
        flow.sample.interval = Interval { acked: 90_000, ..Interval::default() };
        flow.sample.bytes_acked += 90_000;
        assert!(Rounds::default().look(&flow.sample).is_none(), "no time has passed");
    }

    #[test]
    fn a_round_is_app_limited_if_any_of_its_samples_is() {
        for limited in [[true, false, false], [true, true, false], [false, false, true], [true, true, true]] {
            let mut flow = Flow::new();
            flow.sample.flight = 3000;
            flow.look(1, 0, 0);
            let mut last = None;
            for app_limited in limited {
                flow.sample.app_limited = app_limited;
                flow.sample.interval = Interval { us: 1000, acked: 1000, ..Interval::default() };
                flow.sample.bytes_acked += 1000;
                last = flow.rounds.look(&flow.sample);
            }
            assert!(last.is_some_and(|round| round.app_limited), "{limited:?}");
            flow.sample.app_limited = false;
            flow.sample.bytes_acked += 9000;
            assert!(flow.rounds.look(&flow.sample).is_some_and(|round| !round.app_limited), "the next one");
        }
    }

    /// Draft §5.3.1.3.
    #[test]
    fn a_round_of_recovery_recovers_from_its_start_to_its_end() {
        let mut flow = Flow::new();
        let mut recovers = |recovering| {
            flow.sample.recovering = recovering;
            flow.sample.interval = Interval { us: 1000, acked: 1, ..Interval::default() };
            flow.rounds.look(&flow.sample).map(|round| round.recovering)
        };
        assert_eq!([true, true, false, true].map(&mut recovers), [false, true, false, false].map(Some));
    }

    #[test]
    fn a_loss_counts_when_it_is_found_and_not_when_it_is_repaired() {
        let mut flow = Flow::new();
        let mut lost = |lost, again| flow.look(1, lost, again).map(|(.., lost)| lost);
        assert_eq!(
            [lost(3000, 1), lost(0, 2), lost(0, 2)],
            [3000, 0, 2000].map(Some),
            "the last were not known as lost"
        );
        assert_eq!([lost(3000, 0), lost(0, 0)], [3000, 0].map(Some));
        flow.rounds.undo();
        assert_eq!(flow.look(1, 0, 1).map(|(.., lost)| lost), Some(1000), "nothing of the 3,000 is to be repaired");
    }

    /// A repair stops the cumulative acknowledgement. So bandwidth counts from its start, for eight rounds at most.
    #[test]
    fn during_a_repair_bandwidth_is_measured_over_up_to_eight_rounds() {
        let mut flow = Flow::new();
        flow.sample.recovering = true;
        let mut bandwidths = |acked| flow.look(acked, 0, 0).map(|(bandwidth, ..)| bandwidth);
        assert_eq!([8000, 2000, 2000].map(&mut bandwidths), [Some(8e6), Some(5e6), Some(4e6)]);
        assert_eq!([4000, 4000, 4000].map(&mut bandwidths), [Some(4e6); 3]);
        assert_eq!([4000, 12_000].map(&mut bandwidths), [Some(4e6), Some(5e6)], "the eighth");
        assert_eq!([1000, 3000].map(&mut bandwidths), [Some(1e6), Some(2e6)], "it begins anew");
        flow.sample.recovering = false;
        assert_eq!(flow.look(5000, 0, 0).map(|(bandwidth, ..)| bandwidth), Some(3e6), "with the repair's rounds");
        assert_eq!(flow.look(5000, 0, 0).map(|(bandwidth, ..)| bandwidth), Some(5e6), "without them");
    }

    #[test]
    fn the_loss_rate_is_the_lost_part_of_all_that_was_sent() {
        for (acked, lost, rate) in [(98, 2, 0.02), (3, 1, 0.25), (0, 5, 1.0), (5, 0, 0.0), (0, 0, 0.0)] {
            assert_eq!(Round { acked, lost, ..Round::default() }.loss_rate(), rate, "{acked} {lost}");
        }
    }

    /// Draft §5.5.5, §5.5.6: two cycles. An application-limited round counts if it is not smaller (§5.5.2.3).
    #[test]
    fn the_largest_bandwidth_is_that_of_two_cycles() {
        let mut most = MaxBandwidth::default();
        let add = |most: &mut MaxBandwidth, bandwidth, app_limited| {
            most.add(&Round { bandwidth, app_limited, ..Round::default() });
            most.cycles
        };
        assert_eq!(add(&mut most, 10.0, false), [10.0, 0.0]);
        assert_eq!(add(&mut most, 4.0, false), [10.0, 0.0]);
        most.advance();
        assert_eq!((most.cycles, most.get()), ([0.0, 10.0], 10.0));
        most.advance();
        assert_eq!(most.cycles, [0.0, 10.0], "a cycle without samples is none");
        assert_eq!(add(&mut most, 9.0, true), [0.0, 10.0]);
        assert_eq!(add(&mut most, 10.0, true), [10.0, 10.0]);
        assert_eq!(add(&mut most, 11.0, true), [11.0, 10.0]);
        most.advance();
        assert_eq!(add(&mut most, 3.0, false), [3.0, 11.0]);
        assert_eq!(most.get(), 11.0);
        most.advance();
        assert_eq!(most.get(), 3.0);
    }

    /// Draft §5.5.7 with a filter of ten seconds.
    #[test]
    fn the_smallest_round_trip_holds_for_ten_seconds_unless_it_is_confirmed() {
        let mut min = MinRtt::default();
        for (now, rtt_us, confirmed, us) in [
            (1_000_000, 0, false, 0),
            (1_000_000, 100, true, 100),
            (2_000_000, 101, false, 100),
            (2_000_000, 100, true, 100),
            (3_000_000, 99, true, 99),
            (13_000_000, 150, false, 99),
            (13_000_001, 0, false, 99),
            (13_000_001, 150, true, 150),
            (23_000_001, 151, false, 150),
        ] {
            let sample = Sample { now: Micros(now), rtt_us, ..Sample::default() };
            assert_eq!((min.look(&sample), min.us), (confirmed, us), "{rtt_us} at {now}");
        }
    }
}
