//! A histogram of request times.

use std::collections::BTreeMap;

/// Most buckets that are kept. Further ones are dropped.
const MOST: usize = 4096;

/// Counts by upper bound in µs. Infinity is a bound. Counts of an earlier time can be subtracted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Buckets(BTreeMap<u64, f64>);

impl Buckets {
    /// Adds `count` requests that took at most `bound_us`, and longer than the bound below it. Impossible bounds and
    /// counts are dropped.
    pub fn add(&mut self, bound_us: f64, count: f64) {
        let possible = bound_us >= 0.0 && count >= 0.0 && count.is_finite();
        // The bit patterns of positive numbers are ordered as the numbers are.
        let key = (bound_us + 0.0).to_bits();
        if possible && (self.0.len() < MOST || self.0.contains_key(&key)) {
            *self.0.entry(key).or_insert(0.0) += count;
        }
    }
    /// True if nothing was counted.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Turns cumulative buckets, each with all below it, into separate ones.
    pub fn of_cumulative(self) -> Self {
        let mut below = 0.0;
        let part = |(bound, count): (u64, f64)| {
            let part = (count - below).max(0.0);
            below = below.max(count);
            (bound, part)
        };
        Self(self.0.into_iter().map(part).collect())
    }

    /// The counts since `before`. `None`: a count has gone back.
    pub fn since(&self, before: &Self) -> Option<Self> {
        let part = |(bound, count): (&u64, &f64)| {
            let part = count - before.0.get(bound).unwrap_or(&0.0);
            (part >= 0.0).then_some((*bound, part))
        };
        self.0.iter().map(part).collect::<Option<BTreeMap<_, _>>>().map(Self)
    }

    /// The time that this part of the requests took at most, µs, interpolated within a bucket. `None`: nothing was
    /// counted.
    pub fn quantile(&self, part: f64) -> Option<f64> {
        let all: f64 = self.0.values().sum();
        if all <= 0.0 {
            return None;
        }
        let (wanted, mut below, mut low) = (part * all, 0.0, 0.0);
        for (bound, count) in &self.0 {
            let bound = f64::from_bits(*bound);
            if bound.is_infinite() {
                break;
            }
            if below + count >= wanted && *count > 0.0 {
                return Some(low + (bound - low) * (wanted - below) / count);
            }
            (below, low) = (below + count, bound);
        }
        // It is beyond the largest finite bound.
        Some(low)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn of(counts: &[(f64, f64)]) -> Buckets {
        let mut buckets = Buckets::default();
        counts.iter().for_each(|(bound, count)| buckets.add(*bound, *count));
        buckets
    }

    #[test]
    fn a_quantile_lies_within_its_bucket() {
        let buckets = of(&[(100.0, 50.0), (200.0, 40.0), (400.0, 10.0)]);
        assert_eq!(buckets.quantile(0.5), Some(100.0));
        assert_eq!(buckets.quantile(0.7), Some(150.0));
        assert_eq!(buckets.quantile(0.99), Some(380.0));
        assert_eq!(of(&[(100.0, 1.0), (f64::INFINITY, 99.0)]).quantile(0.99), Some(100.0), "beyond the last bound");
        assert_eq!(of(&[(100.0, 0.0)]).quantile(0.99), None, "nothing was counted");
    }

    #[test]
    fn only_what_was_counted_since_counts() {
        let before = of(&[(100.0, 50.0), (200.0, 40.0)]).of_cumulative();
        assert_eq!(before, of(&[(100.0, 50.0), (200.0, 0.0)]), "40 below 200 after 50 below 100 cannot be");
        let before = of(&[(100.0, 50.0), (200.0, 60.0)]).of_cumulative();
        let after = of(&[(100.0, 50.0), (200.0, 160.0)]).of_cumulative();
        assert_eq!(after.since(&before), Some(of(&[(100.0, 0.0), (200.0, 100.0)])));
        assert_eq!(before.since(&after), None);
    }

    #[test]
    fn what_cannot_be_is_left_out_and_so_is_too_much() {
        assert!(of(&[(f64::NAN, 1.0), (-1.0, 1.0), (1.0, f64::NAN), (1.0, -1.0), (1.0, f64::INFINITY)]).is_empty());
        let mut many = Buckets::default();
        (0..10_000).for_each(|bound| many.add(f64::from(bound), 1.0));
        assert_eq!(many.0.len(), MOST);
    }
}
