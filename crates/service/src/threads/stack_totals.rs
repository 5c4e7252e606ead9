//! Totals of a stack since its start, and their rates over a time.

use std::time::Duration;
use towpath_runtime::Status;
use towpath_runtime::sampler::Achieved;

/// The share of full turns above which the stack is under pressure: more arrives than it handles.
const FULL: f64 = 0.25;
/// Fewer turns than this do not count as pressure.
const LEAST_TURNS: u64 = 20;

/// Counters of all its threads and flow groups together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StackTotals {
    /// Time in turns with work, µs.
    pub busy_us: u64,
    /// Turns with work.
    pub turns: u64,
    /// Turns that handled as much as one turn may.
    pub full: u64,
    /// Frames that a port had no room for.
    pub dropped: u64,
    /// Bytes and latency of the applications.
    pub achieved: Achieved,
}

/// Rates over a time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    /// Threads that had work, on average.
    pub busy: f64,
    /// More arrived than was handled.
    pub pressure: bool,
    /// Bytes a second.
    pub throughput: f64,
    /// Geometric mean of the sampled latencies of applications with their rings, if there were samples, µs.
    pub latency_us: Option<f64>,
}

impl StackTotals {
    /// The totals of a stack.
    pub fn of(status: &Status) -> Self {
        let mut sum = Self::default();
        for thread in &status.workers {
            sum.busy_us += thread.busy_us;
            sum.turns += thread.turns;
        }
        for group in &status.flow_groups {
            sum.full += group.full;
            sum.achieved = sum.achieved.plus(group.achieved);
            sum.dropped += group.ports.iter().map(|port| port.rx_dropped).sum::<u64>();
        }
        sum
    }

    /// The rates since `before`. Counters that have gone back, because the stack was started again, count as unchanged.
    pub fn since(&self, before: &Self, elapsed: Duration) -> Rates {
        let elapsed_us = (elapsed.as_micros() as f64).max(1.0);
        let more = |of: fn(&Self) -> u64| of(self).saturating_sub(of(before));
        let turns = more(|t| t.turns);
        let full = turns >= LEAST_TURNS && more(|t| t.full) as f64 > FULL * turns as f64;
        Rates {
            busy: more(|t| t.busy_us) as f64 / elapsed_us,
            pressure: full || more(|t| t.dropped) > 0,
            throughput: more(|t| t.achieved.bytes) as f64 / elapsed_us * 1e6,
            latency_us: self.achieved.latency_us(&before.achieved),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_what_came_in_the_time() {
        let achieved = Achieved { bytes: 500, samples: 4, logarithms: 100 };
        let before = StackTotals { busy_us: 1000, turns: 10, full: 2, dropped: 1, achieved };
        let achieved = Achieved { bytes: 1500, samples: 6, logarithms: 100 + 2 * 5 * Achieved::OCTAVE };
        let now = StackTotals { busy_us: 51_000, turns: 110, full: 12, dropped: 1, achieved };
        let rates = now.since(&before, Duration::from_millis(100));
        let expected = Rates { busy: 0.5, pressure: false, throughput: 10_000.0, latency_us: Some(32.0) };
        assert_eq!(rates, expected);
        assert_eq!(before.since(&now, Duration::from_millis(100)), Rates::default());
    }

    #[test]
    fn pressure_is_a_drop_or_a_quarter_of_many_turns_that_were_full() {
        let pressed = |turns, full, dropped| {
            let now = StackTotals { turns, full, dropped, ..StackTotals::default() };
            now.since(&StackTotals::default(), Duration::from_millis(100)).pressure
        };
        assert!(pressed(100, 26, 0) && pressed(0, 0, 1));
        assert!(!pressed(100, 25, 0) && !pressed(19, 19, 0));
    }
}
