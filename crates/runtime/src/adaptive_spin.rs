//! How long a thread spins before it sleeps.

/// Most sleeps in a row without a spin before.
const LONGEST_REST: u32 = 63;
/// A thread spins this many times as long as usual while short sleeps show that work comes soon.
const REACH: u64 = 5;
/// So many short sleeps in a row show that.
const SHORT_SLEEPS: u32 = 8;

/// Learns how long a thread should spin before it sleeps. A thread that shares its CPU with its clients spins in vain,
/// because it takes the CPU from those that it waits for. Each vain spin makes the next one rarer, down to every 64th
/// sleep; work that comes during a spin makes spins usual again. Sometimes the next work always comes soon after the
/// last, as with a client that waits for each answer. Then a longer spin is worth it, because to wake a thread on
/// another CPU may cost more than the work itself.
#[derive(Debug)]
pub struct AdaptiveSpin {
    /// Length of a usual spin, µs.
    usual_us: u64,
    /// Sleeps still to come without a spin.
    rest: u32,
    /// The number of sleeps without a spin after the last vain spin.
    last_rest: u32,
    /// Sleeps in a row that a longer spin would have spared.
    short: u32,
}

impl AdaptiveSpin {
    /// For a thread that usually spins for `usual_us`; with 0 it never does.
    pub const fn new(usual_us: u64) -> Self {
        Self { usual_us, rest: 0, last_rest: 0, short: 0 }
    }
    /// How long to spin before the next sleep, µs.
    pub const fn spin_us(&self) -> u64 {
        match self.rest {
            0 if self.short >= SHORT_SLEEPS => self.usual_us * REACH,
            0 => self.usual_us,
            _ => 0,
        }
    }
    /// Work came. `spinning`: it came during a spin, so the spin was worth it.
    pub fn came(&mut self, spinning: bool) {
        if spinning {
            (self.rest, self.last_rest) = (0, 0);
        }
    }
    /// The thread has slept, and work came `gap_us` after the last. `spun`: it had spun in vain before it slept.
    pub fn slept(&mut self, spun: bool, gap_us: u64) {
        self.short = if gap_us <= self.usual_us * REACH { (self.short + 1).min(SHORT_SLEEPS) } else { 0 };
        if spun {
            self.last_rest = (2 * self.last_rest + 1).min(LONGEST_REST);
            self.rest = self.last_rest;
        } else {
            self.rest = self.rest.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USUAL_US: u64 = 20;

    /// The number of spins in `sleeps` sleeps of `gap_us`.
    fn spun(spin: &mut AdaptiveSpin, sleeps: u32, gap_us: u64) -> u32 {
        let one = |_: &u32| {
            let spins = spin.spin_us() > 0;
            spin.slept(spins, gap_us);
            spins
        };
        (0..sleeps).filter(one).count() as u32
    }

    #[test]
    fn spinning_in_vain_becomes_rare_and_work_that_comes_makes_it_usual() {
        let mut spin = AdaptiveSpin::new(USUAL_US);
        assert_eq!(spun(&mut spin, 640, 5_000), 15, "1 of 2, of 4, of 8, then of 64");
        while spin.spin_us() == 0 {
            spin.slept(false, 5_000);
        }
        spin.came(false);
        assert_eq!(spun(&mut spin, 64, 5_000), 1, "work that came at once says nothing");
        spin.came(true);
        assert_eq!(spin.spin_us(), USUAL_US);
        assert_eq!(spun(&mut spin, 4, 5_000), 2);
    }

    #[test]
    fn what_always_comes_soon_is_waited_for_until_it_does_not() {
        let mut spin = AdaptiveSpin::new(USUAL_US);
        assert_eq!(spun(&mut spin, 13, 60), 3, "in vain");
        assert_eq!(spin.spin_us(), 0);
        spin.slept(false, 60);
        assert_eq!(spin.spin_us(), REACH * USUAL_US);
        for _ in 0..1000 {
            spin.came(true);
            assert_eq!(spin.spin_us(), REACH * USUAL_US, "as long as that finds work");
        }
        spin.slept(true, 5_000);
        assert_eq!(spin.spin_us(), 0, "once in vain");
        spin.slept(false, 5_000);
        assert_eq!(spin.spin_us(), USUAL_US);
    }

    #[test]
    fn where_the_cpu_is_taken_from_whom_it_waits_for_longer_spinning_becomes_as_rare() {
        let mut spin = AdaptiveSpin::new(USUAL_US);
        // Work comes only when the thread sleeps, and then soon.
        let (mut long, mut sleeps) = (0, 0);
        while sleeps < 6400 {
            let spin_us = spin.spin_us();
            long += u32::from(spin_us > USUAL_US);
            spin.slept(spin_us > 0, spin_us + 30);
            sleeps += 1;
        }
        assert!((1..=sleeps / 60 + 10).contains(&long), "{long} of {sleeps}");
    }

    #[test]
    fn a_thread_that_is_not_to_spin_never_does() {
        let mut spin = AdaptiveSpin::new(0);
        assert_eq!(spun(&mut spin, 100, 0), 0);
    }
}
