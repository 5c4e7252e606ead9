//! A limit on answers that anybody may provoke.

use crate::time::Micros;

/// A limit per second that is not known outside. If it were known, an attacker could count the answers that others
/// provoke (RFC 5961 §7; CVE-2016-5696).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RateLimit {
    second: u64,
    left: u32,
}

impl RateLimit {
    /// True if one more is allowed. The limit is between half of `per_second` and all of it. `key` must not be
    /// guessable.
    pub(crate) fn allow(&mut self, now: Micros, per_second: u32, key: u64) -> bool {
        // Counted from 1, so that a fresh limit belongs to an earlier second.
        let second = now.0 / 1_000_000 + 1;
        if second != self.second {
            let half = per_second / 2;
            let more = mix(key ^ second) % (u64::from(per_second - half) + 1);
            *self = Self { second, left: half + more as u32 };
        }
        let allowed = self.left > 0;
        self.left -= u32::from(allowed);
        allowed
    }
}

/// SplitMix64's finaliser.
fn mix(mut word: u64) -> u64 {
    word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first outputs of SplitMix64 for the seed 1234567, as its authors' program prints them. Its state grows by the
    /// golden ratio.
    #[test]
    fn the_finaliser_gives_the_numbers_of_splitmix64() {
        let state = |n: u64| 1_234_567u64.wrapping_add(n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let expected = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
            4_593_380_528_125_082_431,
            16_408_922_859_458_223_821,
        ];
        assert_eq!([1, 2, 3, 4, 5].map(|n| mix(state(n))), expected);
    }

    /// Half of the limit, and between none and all of the other half: `mix(key ^ (second + 1))` modulo one more.
    #[test]
    fn a_second_allows_the_half_and_a_part_of_the_rest_that_follows_from_the_key() {
        for (per_second, expected) in [
            (1, [1, 1, 1, 0, 0, 0, 1, 0]),
            (2, [2, 2, 2, 1, 1, 1, 2, 1]),
            (7, [3, 4, 7, 5, 4, 5, 5, 6]),
            (1000, [718, 886, 950, 515, 927, 599, 576, 807]),
            (1001, [615, 637, 879, 984, 562, 540, 755, 904]),
        ] {
            let mut limit = RateLimit::default();
            for (second, expected) in (0..).zip(expected) {
                // Asked at the first and at the last microsecond of the second.
                let mut allowed = |us: u64| {
                    (0..600).filter(|_| limit.allow(Micros(second * 1_000_000 + us), per_second, 0xab_cdef)).count()
                };
                assert_eq!(allowed(0) + allowed(999_999), expected, "{per_second} in second {second}");
            }
        }
    }

    #[test]
    fn a_rate_limit_is_another_in_every_second_and_never_above_what_is_said() {
        let counts = |key| -> Vec<usize> {
            let mut limit = RateLimit::default();
            let mut second = |s: u64| (0..5000).filter(|_| limit.allow(Micros(s * 1_000_000), 1000, key)).count();
            (0..100).map(&mut second).collect()
        };
        let (a, b) = (counts(1), counts(2));
        assert!(a.iter().chain(&b).all(|n| (500..=1000).contains(n)));
        let distinct: std::collections::BTreeSet<_> = a.iter().collect();
        assert!(distinct.len() > 50 && a != b, "{a:?}");
        assert_eq!((0..9).filter(|_| RateLimit::default().allow(Micros(0), 0, 1)).count(), 0);
    }
}
