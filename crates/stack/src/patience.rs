//! Whether spinning before a sleep is worth it.

/// Most sleeps in a row without spinning before.
const LONGEST_REST: u32 = 63;

/// Whether spinning before a sleep is worth it. Where the thread has no CPU of its own it is in vain, because the CPU is taken from
/// whom it waits for; spinning in vain becomes rarer each time, down to every 64th sleep, and coming work makes it usual again.
#[derive(Debug, Default)]
pub struct Patience {
    /// Sleeps still to come without spinning.
    rest: u32,
    /// How many there were after the last time in vain.
    last_rest: u32,
}

impl Patience {
    /// Is the next sleep to come at once?
    pub fn is_spent(&self) -> bool {
        self.rest > 0
    }
    /// Work came. If it did while the thread was spinning, that was worth it.
    pub fn came(&mut self, spinning: bool) {
        if spinning {
            *self = Self::default();
        }
    }
    /// It has slept, after spinning in vain or at once.
    pub fn slept(&mut self, spun: bool) {
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

    /// Of `sleeps` sleeps that nothing came before, those with spinning.
    fn spun(patience: &mut Patience, sleeps: u32) -> u32 {
        let one = |_: &u32| {
            let spins = !patience.is_spent();
            patience.slept(spins);
            spins
        };
        (0..sleeps).filter(one).count() as u32
    }

    #[test]
    fn spinning_in_vain_becomes_rare_and_work_that_comes_makes_it_usual() {
        let mut patience = Patience::default();
        assert_eq!(spun(&mut patience, 640), 15, "1 of 2, of 4, of 8, then of 64");
        while patience.is_spent() {
            patience.slept(false);
        }
        patience.came(false);
        assert_eq!(spun(&mut patience, 64), 1, "work that came at once says nothing");
        patience.came(true);
        assert!(!patience.is_spent());
        assert_eq!(spun(&mut patience, 4), 2);
    }
}
