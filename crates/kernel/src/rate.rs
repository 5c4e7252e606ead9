//! The policy's `rate`: how many bytes the applications under a limit may give the kernel, all of them together, whoever serves them.

use crate::group::ClientGroup;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use towpath_ring::Slot;
use towpath_stack::guard::Limit;
use towpath_stack::thread::now_us;

/// How soon one that may not send now is looked at again, µs.
const PAUSE_US: u64 = 1000;
/// Fewer bytes are not worth a segment.
const LEAST: u64 = 1448;
/// What may go at once is what has gathered in this time, ns.
const BURST_NS: u64 = 50_000_000;
const SECOND_NS: u64 = 1_000_000_000;

/// The time up to which what was sent under a limit has used its rate, ns (the generic cell rate algorithm, ITU-T I.371).
#[derive(Debug, Default)]
pub struct Bucket(AtomicU64);

impl Bucket {
    fn burst(rate: u64) -> u64 {
        BURST_NS.max(2 * LEAST * SECOND_NS / rate.max(1))
    }
    /// Bytes that may go now under a rate of so many per second.
    fn allowed(&self, rate: u64, now_ns: u64) -> u32 {
        let used = self.0.load(Ordering::Relaxed).max(now_ns.saturating_sub(Self::burst(rate)));
        let bytes = u128::from(now_ns.saturating_sub(used)) * u128::from(rate) / u128::from(SECOND_NS);
        if bytes < LEAST.into() { 0 } else { bytes.min(u32::MAX.into()) as u32 }
    }
    /// So many have gone. Two threads at a time may give more than there is: what follows waits for that.
    fn spend(&self, bytes: u32, rate: u64, now_ns: u64) {
        let (least, time) = (now_ns.saturating_sub(Self::burst(rate)), u64::from(bytes) * SECOND_NS / rate.max(1));
        let spent = |used: u64| Some(used.max(least).saturating_add(time));
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, spent);
    }
}

/// The buckets of all limits, by id: what the groups of a stack share. Locked only when the policy changes.
pub type Buckets = Arc<Mutex<HashMap<u64, Arc<Bucket>>>>;

/// What a group knows of them.
#[derive(Default)]
pub struct Rates {
    buckets: Buckets,
    /// Connections that have more to send than they may.
    waiting: Vec<(u32, Slot)>,
    /// When to look at them, µs.
    pub at: Option<u64>,
}

impl Rates {
    /// With those of the stack.
    pub fn of(buckets: &Buckets) -> Self {
        Self { buckets: Arc::clone(buckets), ..Self::default() }
    }
    /// The bucket for a limit with a rate.
    pub fn bucket(&self, limit: Option<&Limit>) -> Option<Arc<Bucket>> {
        let limit = limit.filter(|limit| limit.rate != 0)?;
        let mut all = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|id, bucket| *id == limit.id || Arc::strong_count(bucket) > 1);
        Some(Arc::clone(all.entry(limit.id).or_default()))
    }
}

impl ClientGroup {
    /// Bytes that a client may send now; `None` = as many as it likes.
    pub fn allowed(&mut self, index: u32) -> Option<u32> {
        let client = self.client(index)?;
        let (bucket, limit) = client.own.bucket.as_ref().zip(client.limit)?;
        Some(bucket.allowed(limit.rate, now_us() * 1000))
    }

    /// It has sent so many.
    pub fn has_sent(&mut self, index: u32, bytes: u32) {
        let Some(client) = self.client(index) else { return };
        if let Some((bucket, limit)) = client.own.bucket.as_ref().zip(client.limit) {
            bucket.spend(bytes, limit.rate, now_us() * 1000);
        }
    }

    /// A connection has more to send than its client may.
    pub fn wait_for_rate(&mut self, index: u32, slot: Slot) {
        if self.own(index, slot).is_some_and(|own| !std::mem::replace(&mut own.paced, true)) {
            self.rates.waiting.push((index, slot));
        }
        self.rates.at.get_or_insert_with(|| now_us() + PAUSE_US);
    }

    /// Looks at those whose time has come; how many they were.
    pub fn rates_due(&mut self, now: u64) -> usize {
        if self.rates.at.is_none_or(|at| at > now) {
            return 0;
        }
        self.rates.at = None;
        let mut waiting = std::mem::take(&mut self.rates.waiting);
        // Each is the first in its turn: the first takes all that there is.
        if !waiting.is_empty() {
            waiting.rotate_left(1);
        }
        let all = waiting.len();
        for (index, slot) in waiting {
            let Some(own) = self.own(index, slot) else { continue };
            own.paced = false;
            if self.allowed(index) == Some(0) {
                self.wait_for_rate(index, slot);
            } else {
                self.look(index, slot);
            }
        }
        all
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
