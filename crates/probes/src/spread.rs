//! How times are spread: a histogram whose buckets double.

/// Buckets. The last one has all times from 2^28 µs on.
pub const BUCKETS: usize = 29;

/// Counts of times, and their sum. Bucket `i` has those from 2^i to 2^(i+1) - 1 µs, and the first one 0 as well.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spread {
    /// By bucket.
    pub counts: [u64; BUCKETS],
    /// µs.
    pub sum_us: u64,
}

impl Spread {
    /// One more.
    #[inline(always)]
    pub fn add(&mut self, us: u32) {
        let bucket = (us | 1).ilog2() as usize;
        self.counts[if bucket < BUCKETS { bucket } else { BUCKETS - 1 }] += 1;
        self.sum_us += u64::from(us);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_in_the_bucket_of_its_highest_bit() {
        let mut spread = Spread::default();
        for us in [0, 1, 2, 3, 4, 1023, 1024, 1 << 28, u32::MAX] {
            spread.add(us);
        }
        let counted: Vec<(usize, u64)> =
            spread.counts.into_iter().enumerate().filter(|(_, count)| *count > 0).collect();
        assert_eq!(counted, [(0, 2), (1, 2), (2, 1), (9, 1), (10, 1), (28, 2)]);
        assert_eq!(spread.sum_us, 10 + 1023 + 1024 + (1 << 28) + u64::from(u32::MAX));
    }
}
