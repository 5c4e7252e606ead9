//! What is seen of the kernel's receive path, and of what applications say.
//!
//! Softirq time as `/proc/stat` has it is counted by ticks, and can say several times too much in a short time; so the shortest
//! time between two samples that says anything is [`SHORTEST`], and the policy asks what applications achieve before it believes it.

use crate::tree::Tree;
use std::time::Duration;
use towpath_cores::{Observation, Outcome};

/// The shortest time between two samples that says anything.
pub const SHORTEST: Duration = Duration::from_secs(1);
/// The kernel's clock ticks in a second, as user space sees them (`USER_HZ`).
const TICKS: f64 = 100.0;

/// Counters at one time; they only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Softirq and interrupt time of all CPUs, ticks.
    softirq: u64,
    /// What programs used, ticks.
    programs: u64,
    /// Packets that found the backlog full, and rounds that ended with work left (`softnet_stat`).
    squeezed: u64,
    /// Time in which somebody waited for a CPU, µs (`/proc/pressure/cpu`, `some`).
    waited_us: u64,
    /// Packets that the card has received.
    packets: u64,
}

impl Sample {
    /// Now. `None`: this machine does not say.
    pub fn read(tree: &Tree, interface: &str) -> Option<Self> {
        let stat = tree.text("/proc/stat")?;
        // proc_stat(5): user nice system idle iowait irq softirq steal.
        let cpu: Vec<u64> =
            stat.lines().next()?.split_whitespace().skip(1).map_while(|field| field.parse().ok()).collect();
        let field = |place: usize| cpu.get(place).copied().unwrap_or(0);
        let squeezed = tree.text("/proc/net/softnet_stat").unwrap_or_default();
        let squeezed = squeezed.lines().flat_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            [1, 2].map(|place| fields.get(place).and_then(|text| u64::from_str_radix(text, 16).ok()).unwrap_or(0))
        });
        let pressure = tree.text("/proc/pressure/cpu").unwrap_or_default();
        let waited =
            pressure.lines().find(|line| line.starts_with("some")).and_then(|line| line.split("total=").nth(1));
        Some(Self {
            softirq: field(5) + field(6),
            programs: field(0) + field(1) + field(2),
            squeezed: squeezed.fold(0, u64::wrapping_add),
            waited_us: waited.and_then(|text| text.trim().parse().ok()).unwrap_or(0),
            packets: tree.number(&format!("/sys/class/net/{interface}/statistics/rx_packets")).unwrap_or(0),
        })
    }

    /// What has been since `before`.
    pub fn since(&self, before: &Self, time: Duration, outcome: Option<Outcome>) -> Observation {
        let seconds = time.as_secs_f64().max(1e-3);
        let rate = |now: u64, then: u64| now.saturating_sub(then) as f64 / seconds;
        Observation {
            busy: rate(self.softirq, before.softirq) / TICKS,
            pressure: self.squeezed > before.squeezed,
            app_busy: rate(self.programs, before.programs) / TICKS,
            app_waiting: (rate(self.waited_us, before.waited_us) / 1e6).min(1.0),
            outcome,
            offered: rate(self.packets, before.packets),
        }
    }
}

/// A line of an application: `thr=12000 lat_us=83 p99_us=240`, requests per second and µs. Words that are not known are left out.
/// `None`: it says no throughput.
pub fn outcome_of(line: &str) -> Option<Outcome> {
    let value = |name: &str| {
        let word = line.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='))?;
        word.parse::<f64>().ok().filter(|value| value.is_finite() && *value >= 0.0)
    };
    let optional = |name| value(name).unwrap_or(0.0);
    Some(Outcome { throughput: value("thr")?, latency_us: optional("lat_us"), p99_us: optional("p99_us") })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_applications_say_is_read_and_nonsense_is_not() {
        let outcome = outcome_of("p99_us=240 thr=12000 lat_us=83 colour=green\n").unwrap();
        assert_eq!(outcome, Outcome { throughput: 12000.0, latency_us: 83.0, p99_us: 240.0 });
        for line in ["", "lat_us=3", "thr=", "thr=-1", "thr=NaN", "thr=inf", "throughput=3"] {
            assert_eq!(outcome_of(line), None, "{line}");
        }
    }

    #[test]
    fn rates_are_over_the_time_between() {
        let before = Sample { softirq: 100, programs: 1000, squeezed: 5, waited_us: 0, packets: 10 };
        let after = Sample { softirq: 250, programs: 1400, squeezed: 5, waited_us: 200_000, packets: 4010 };
        let seen = after.since(&before, Duration::from_secs(2), None);
        assert_eq!((seen.busy, seen.app_busy, seen.app_waiting, seen.offered), (0.75, 2.0, 0.1, 2000.0));
        assert!(!seen.pressure);
        assert!(Sample { squeezed: 6, ..after }.since(&before, Duration::from_secs(2), None).pressure);
        assert!(before.since(&after, Duration::ZERO, None).is_sound(), "counters that go back, and no time at all");
    }
}
