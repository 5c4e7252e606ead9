//! The generator of random numbers for tests and simulations: SplitMix64 (Steele, Lea, Flood 2014).
//!
//! A seed gives the same sequence on every machine and in every version. Recorded seeds and corpora depend on it, and
//! the golden values below guard it. It must never make secrets.
#![forbid(unsafe_code)]

/// A stream of random numbers that is fixed by its seed. The default is the stream of seed 0.
#[derive(Clone, Debug, Default)]
pub struct Rng {
    state: u64,
}

impl Rng {
    /// The stream of this seed.
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in `0..n`; 0 if `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(n)) >> 64) as u64
    }

    /// A number in `low..=high`. `high` must not be below `low`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// True with a probability of `ppm` millionths. With `ppm` = 0 it takes no number from the stream.
    pub fn chance(&mut self, ppm: u32) -> bool {
        ppm > 0 && self.below(1_000_000) < u64::from(ppm)
    }

    /// Fills `out` with random bytes.
    pub fn fill(&mut self, out: &mut [u8]) {
        for chunk in out.chunks_mut(8) {
            let bytes = self.next_u64().to_le_bytes();
            chunk.copy_from_slice(&bytes[..chunk.len()]);
        }
    }

    /// An independent stream, fixed by this one's position.
    #[must_use]
    pub fn fork(&mut self) -> Self {
        Self::new(self.next_u64())
    }
}

#[cfg(test)]
mod tests {
    use super::Rng;

    #[test]
    fn first_numbers_of_seed_zero_are_those_of_splitmix64() {
        let mut rng = Rng::new(0);
        assert_eq!(rng.next_u64(), 0xe220_a839_7b1d_cdaf);
        assert_eq!(rng.next_u64(), 0x6e78_9e6a_a1b9_65f4);
    }

    #[test]
    fn sequences_of_a_seed_never_change() {
        let mut rng = Rng::new(42);
        assert_eq!([0; 4].map(|_| rng.below(1000)), [741, 159, 278, 344]);
        assert_eq!([0; 4].map(|_| rng.between(3, 6)), [3, 6, 3, 6]);
        let mut bytes = [0; 11];
        rng.fill(&mut bytes);
        assert_eq!(bytes, [213, 125, 61, 11, 119, 184, 5, 87, 174, 119, 127]);
        assert_eq!(rng.fork().next_u64(), 0xd440_3a5b_fe88_1589);
        assert_eq!(rng.next_u64(), 0x7e34_8a0e_4516_50be);
    }

    #[test]
    fn chance_keeps_its_rate() {
        let mut rng = Rng::new(7);
        let hits = (0..100_000).filter(|_| rng.chance(50_000)).count();
        assert!((4_700..5_300).contains(&hits), "{hits} of 100000 at 5 %");
        assert!(!(0..1000).any(|_| rng.chance(0)));
    }

    #[test]
    fn between_reaches_both_ends() {
        let mut rng = Rng::new(1);
        let seen: std::collections::BTreeSet<_> = (0..200).map(|_| rng.between(3, 6)).collect();
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), [3, 4, 5, 6]);
    }
}
