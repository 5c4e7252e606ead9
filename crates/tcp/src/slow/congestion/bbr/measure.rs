//! BBR's measurements: rounds, the largest bandwidth, the smallest round-trip time.

use crate::slow::congestion::sample::Sample;
use crate::time::Micros;

/// draft-ietf-ccwg-bbr §2.7: MinRTTFilterLen: 10 s.
const MIN_RTT_FILTER_US: u64 = 10_000_000;

/// The deliveries of one round trip.
#[derive(Clone, Copy, Debug)]
pub(super) struct Round {
    /// Delivered, in bytes per second.
    pub bandwidth: f64,
    /// Bytes delivered.
    pub acked: u64,
    /// Bytes lost.
    pub lost: u64,
    /// Did the application limit the sender at any time in it?
    pub app_limited: bool,
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
    /// During a repair the cumulative acknowledgement stops and then jumps. So the bandwidth is measured from before it
    /// to after.
    delivery: Delivery,
    /// Rounds so far.
    pub count: u64,
}

impl Rounds {
    /// Adds a sample. Returns the round that ends with it, if any.
    pub(super) fn look(&mut self, sample: &Sample) -> Option<Round> {
        let interval = &sample.interval;
        let again = interval.retransmits.saturating_mul(u64::from(sample.mss));
        self.acked = self.acked.saturating_add(interval.acked);
        self.lost = self.lost.saturating_add(interval.lost.max(again));
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
        };
        if !sample.recovering || delivery.rounds >= LONGEST {
            *delivery = Delivery::default();
        }
        (self.acked, self.lost, self.app_limited) = (0, 0, false);
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
