//! Time as an argument.

/// A moment, in microseconds of a monotonic clock with any origin (virtual in the simulator).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Micros(pub u64);

impl Micros {
    /// The moment `us` microseconds later.
    pub fn after(self, us: u64) -> Self {
        Self(self.0.saturating_add(us))
    }
    /// Microseconds since `earlier`; 0 if that is in the future.
    pub fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}
