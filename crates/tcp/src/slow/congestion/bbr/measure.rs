//! What BBR measures: rounds, the largest bandwidth, the smallest round-trip time.

use crate::slow::congestion::Sample;
use crate::time::Micros;

/// draft-ietf-ccwg-bbr §2.7: MinRTTFilterLen: 10 s.
const MIN_RTT_FILTER_US: u64 = 10_000_000;

/// One round trip's worth of deliveries.
#[derive(Clone, Copy, Debug)]
pub(super) struct Round {
    /// Delivered, in bytes per second.
    pub bandwidth: f64,
    /// Bytes delivered.
    pub acked: u64,
    /// Bytes lost.
    pub lost: u64,
    /// Was the application, at any time in it, what held the sender back?
    pub app_limited: bool,
}

impl Round {
    /// The part that was lost.
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

/// After so many rounds the bandwidth is measured anew even in the midst of a recovery.
const LONGEST: u32 = 8;

/// Counts rounds: one is over when what was in flight at its beginning has been acknowledged (§5.5.1).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rounds {
    end: u64,
    acked: u64,
    lost: u64,
    app_limited: bool,
    /// While a loss is repaired the cumulative acknowledgement stands still and then jumps, so that only the whole, from before it to
    /// after it, tells the bandwidth.
    delivery: Delivery,
    /// Rounds so far.
    pub count: u64,
}

impl Rounds {
    /// A look; the round that is over with it, if one is.
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
    /// §5.5.2.3: a sample of a sender that had too little to send counts only if it is larger.
    pub(super) fn add(&mut self, round: &Round) {
        if !round.app_limited || round.bandwidth >= self.get() {
            self.cycles[0] = self.cycles[0].max(round.bandwidth);
        }
    }
    /// A cycle is over (§5.5.6). One that brought nothing leaves things as they are.
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
    /// A look. True = it has become smaller, or has been confirmed.
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
