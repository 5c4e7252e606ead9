//! The use of each CPU, by the kernel's ticks.

use crate::tree::Tree;
use std::collections::BTreeMap;

/// The kernel's clock ticks in a second, as user space sees them (`USER_HZ`).
const TICKS: f64 = 100.0;

/// The use of one CPU, ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    softirq: u64,
    programs: u64,
}

/// The use between two times, seconds per second.
pub struct Rate {
    /// Softirqs and interrupts.
    pub softirq: f64,
    /// Programs, and the kernel for them.
    pub programs: f64,
}

impl Used {
    /// The rate since `before`.
    pub fn since(&self, before: Option<&Self>, seconds: f64) -> Rate {
        let before = before.unwrap_or(self);
        let rate = |now: u64, then: u64| now.saturating_sub(then) as f64 / TICKS / seconds;
        Rate { softirq: rate(self.softirq, before.softirq), programs: rate(self.programs, before.programs) }
    }
}

/// The use of every CPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ticks(pub BTreeMap<u32, Used>);

impl Ticks {
    /// Reads it. `None`: there is no `/proc/stat`.
    pub fn read(tree: &Tree) -> Option<Self> {
        let stat = tree.text("/proc/stat")?;
        // proc_stat(5): cpuN user nice system idle iowait irq softirq steal.
        let cpu = |line: &str| {
            let mut words = line.split_whitespace();
            let number = words.next()?.strip_prefix("cpu")?.parse().ok()?;
            let fields: Vec<u64> = words.map_while(|field| field.parse().ok()).collect();
            let field = |place: usize| fields.get(place).copied().unwrap_or(0);
            let sum = |places: &[usize]| places.iter().fold(0, |sum: u64, place| sum.saturating_add(field(*place)));
            Some((number, Used { softirq: sum(&[5, 6]), programs: sum(&[0, 1, 2]) }))
        };
        Some(Self(stat.lines().filter_map(cpu).collect()))
    }
}
