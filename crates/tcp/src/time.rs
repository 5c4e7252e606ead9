//! Time as an argument.

/// A moment, in microseconds of a monotonic clock with any origin (virtual in the simulator).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Micros(pub u64);

impl Micros {
    /// The moment `us` microseconds later.
    pub fn after(self, us: u64) -> Self {
        Self(self.0.saturating_add(us))
    }
    /// Whole milliseconds, modulo 2^32.
    pub fn ms(self) -> u32 {
        (self.0 / 1000) as u32
    }
    /// Microseconds since `earlier`; 0 if that is in the future.
    pub fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_never_before_the_first_or_behind_the_last() {
        assert_eq!((Micros(5).after(7), Micros(u64::MAX).after(1)), (Micros(12), Micros(u64::MAX)));
        assert_eq!((Micros(12).since(Micros(5)), Micros(5).since(Micros(12))), (7, 0));
    }
}
