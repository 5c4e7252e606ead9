//! The busy and idle times of a flow group.

/// Turns and times of one group, on all threads that have served it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupTimes {
    /// Turns with work.
    pub turns: u64,
    /// Time in them, µs.
    pub busy_us: u64,
    /// All other time since its first turn, µs: turns without work, other groups' turns, sleep.
    pub idle_us: u64,
    /// Times that its thread went to sleep.
    pub sleeps: u64,
    /// When its last turn was over, µs.
    seen_us: u64,
}

impl GroupTimes {
    /// A turn is over at `now_us` and has taken `took_us`.
    #[inline]
    pub fn turned(&mut self, now_us: u64, took_us: u64, worked: bool) {
        if self.seen_us == 0 {
            self.seen_us = now_us - took_us;
        }
        let busy = if worked { took_us } else { 0 };
        self.turns += u64::from(worked);
        self.busy_us += busy;
        self.idle_us += now_us.saturating_sub(self.seen_us + busy);
        self.seen_us = now_us;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_time_from_the_first_turn_on_is_busy_or_idle() {
        let mut times = GroupTimes::default();
        times.turned(1010, 10, true);
        // Other groups had their turns for 30 µs.
        times.turned(1045, 5, true);
        times.turned(1050, 5, false);
        // A sleep, and a turn that found nothing.
        times.turned(1200, 10, false);
        let expected = GroupTimes { turns: 2, busy_us: 15, idle_us: 185, sleeps: 0, seen_us: 1200 };
        assert_eq!(times, expected);
    }
}
