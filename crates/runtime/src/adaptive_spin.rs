//! How long spinning before a sleep is worth it.

/// Most sleeps in a row without spinning before.
const LONGEST_REST: u32 = 63;
/// How many times as long as usual a thread spins that has something to wait for.
const REACH: u64 = 5;
/// So many sleeps in a row that were over within that time show that there is.
const SHORT_SLEEPS: u32 = 8;

/// How long spinning before a sleep is worth it. Where the thread has no CPU of its own it is in vain, because the CPU is taken from
/// whom it waits for; spinning in vain becomes rarer each time, down to every 64th sleep, and coming work makes it usual again.
/// Where the next work always comes soon after the last, as with a client that waits for each answer, it is worth to spin for longer
/// than is usual: to wake a thread on another CPU may cost more than the work itself.
#[derive(Debug)]
pub struct AdaptiveSpin {
    /// How long it usually spins, µs.
    usual_us: u64,
    /// Sleeps still to come without spinning.
    rest: u32,
    /// How many there were after the last time in vain.
    last_rest: u32,
    /// Sleeps in a row that longer spinning would have spared.
    short: u32,
}

impl AdaptiveSpin {
    /// Of a thread that usually spins for so long, µs; 0: it never does.
    pub const fn new(usual_us: u64) -> Self {
        Self { usual_us, rest: 0, last_rest: 0, short: 0 }
    }
    /// How long to look for work before the next sleep, µs.
    pub const fn spin_us(&self) -> u64 {
        match self.rest {
            0 if self.short >= SHORT_SLEEPS => self.usual_us * REACH,
            0 => self.usual_us,
            _ => 0,
        }
    }
    /// Work came. If it did while the thread was spinning, that was worth it.
    pub fn came(&mut self, spinning: bool) {
        if spinning {
            (self.rest, self.last_rest) = (0, 0);
        }
    }
    /// It has slept, after spinning in vain or at once, until there was something to do `gap_us` after the last work.
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

    /// Of `sleeps` sleeps of `gap_us`, those with spinning.
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
        // Whoever is waited for comes only when the thread sleeps, and then soon.
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
