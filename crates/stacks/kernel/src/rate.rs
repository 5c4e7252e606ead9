//! The policy's `rate`: bytes per second that all applications under one limit may give the kernel, together.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use towpath_ring::Slot;
use towpath_runtime::policy::Limit;

/// Fewer bytes are not worth a segment.
const LEAST: u64 = 1448;
/// A burst is the amount that gathers in this time, ns.
const BURST_NS: u64 = 50_000_000;
const SECOND_NS: u64 = 1_000_000_000;

/// The theoretical arrival time of the generic cell rate algorithm (ITU-T I.371), ns: until then the rate is used up.
#[derive(Debug, Default)]
pub struct Bucket(AtomicU64);

impl Bucket {
    fn burst(rate: u64) -> u64 {
        BURST_NS.max(2 * LEAST * SECOND_NS / rate.max(1))
    }
    /// Bytes that may be sent now, under a rate in bytes per second.
    pub fn allowed(&self, rate: u64, now_ns: u64) -> u32 {
        let used = self.0.load(Ordering::Relaxed).max(now_ns.saturating_sub(Self::burst(rate)));
        let bytes = u128::from(now_ns.saturating_sub(used)) * u128::from(rate) / u128::from(SECOND_NS);
        if bytes < LEAST.into() { 0 } else { bytes.min(u32::MAX.into()) as u32 }
    }
    /// Accounts sent bytes. Two threads at a time may overspend; later sends wait for that.
    pub fn spend(&self, bytes: u32, rate: u64, now_ns: u64) {
        let (least, time) = (now_ns.saturating_sub(Self::burst(rate)), u64::from(bytes) * SECOND_NS / rate.max(1));
        let spent = |used: u64| Some(used.max(least).saturating_add(time));
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, spent);
    }
}

/// The buckets of all limits, by id, shared by the groups of a stack. Locked only when the policy changes.
pub type Buckets = Arc<Mutex<HashMap<u64, Arc<Bucket>>>>;

/// The rates as one group sees them.
#[derive(Default)]
pub struct Rates {
    buckets: Buckets,
    /// Connections that have more to send than they may.
    pub waiting: Vec<(u32, Slot)>,
    /// When to retry them, µs.
    pub at: Option<u64>,
}

impl Rates {
    /// With the stack's buckets.
    pub fn of(buckets: &Buckets) -> Self {
        Self { buckets: Arc::clone(buckets), ..Self::default() }
    }
    /// The bucket of a limit that has a rate.
    pub fn bucket(&self, limit: Option<&Limit>) -> Option<Arc<Bucket>> {
        let limit = limit.filter(|limit| limit.rate != 0)?;
        let mut all = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|id, bucket| *id == limit.id || Arc::strong_count(bucket) > 1);
        Some(Arc::clone(all.entry(limit.id).or_default()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_in_a_second_is_the_rate_and_one_burst() {
        let (bucket, rate) = (Bucket::default(), 4_000_000);
        let (begin, mut sent) = (100 * SECOND_NS, 0);
        for now in (begin..begin + SECOND_NS).step_by(1_000_000) {
            let allowed = bucket.allowed(rate, now);
            bucket.spend(allowed, rate, now);
            sent += u64::from(allowed);
        }
        let burst = rate * BURST_NS / SECOND_NS;
        assert!((rate - 2 * LEAST..=rate + burst).contains(&sent), "{sent}");
    }

    #[test]
    fn a_slow_rate_gathers_until_it_is_worth_a_segment() {
        let (bucket, now) = (Bucket::default(), 1000 * SECOND_NS);
        assert_eq!(bucket.allowed(100, now), 2896);
        bucket.spend(2896, 100, now);
        assert_eq!(bucket.allowed(100, now + 14 * SECOND_NS), 0, "1,400 bytes are none");
        assert_eq!(bucket.allowed(100, now + 15 * SECOND_NS), 1500);
    }

    #[test]
    fn who_has_sent_more_than_there_was_waits_for_it() {
        let (bucket, now, rate) = (Bucket::default(), 1000 * SECOND_NS, 1_000_000);
        for _ in 0..2 {
            bucket.spend(50_000, rate, now);
        }
        assert_eq!(bucket.allowed(rate, now + BURST_NS), 0);
        assert_eq!(bucket.allowed(rate, now + 3 * BURST_NS / 2), 25_000);
    }
}
