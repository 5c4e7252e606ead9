//! The time that a module may take of a core. Some of its runs are timed, at distances that a module cannot foresee. The
//! clock is that of the thread, so time in which another program has the CPU is charged to nobody. Asking that clock is a
//! system call, so few runs are timed while there is no suspicion.

use std::sync::OnceLock;

/// Most time that a module may save up, ns.
const SAVED_NS: u64 = 100_000_000;
/// Average distance of two timed runs of a chain without suspicion, frames.
const USUAL_GAP: u32 = 128;

/// A time: of the thread's own clock, and of the wall.
#[derive(Clone, Copy, Debug, Default)]
pub struct Now {
    /// Time that the thread has run, ns.
    pub thread_ns: u64,
    /// Time that has passed, ns.
    pub wall_ns: u64,
}

/// What a module was detached for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overrun {
    /// The flow group where it was seen.
    pub flow_group: usize,
    /// What the last timed run took, ns.
    pub run_ns: u64,
}

/// The share of a core's time that a module may take, on each flow group and port. All places where it stands share this.
#[derive(Debug)]
pub struct Budget {
    module: Box<str>,
    percent: u64,
    overrun: OnceLock<Overrun>,
}

impl Budget {
    /// Of 1 to 100 percent. With 100 a module is never detached, as no thread runs longer than time passes.
    pub fn new(module: &str, percent: u8) -> Self {
        Self { module: module.into(), percent: percent.clamp(1, 100).into(), overrun: OnceLock::new() }
    }
    /// The module's name.
    pub fn module(&self) -> &str {
        &self.module
    }
    /// The share.
    pub fn percent(&self) -> u64 {
        self.percent
    }
    /// Does it forbid anything?
    pub fn is_limit(&self) -> bool {
        self.percent < 100
    }
    /// Has the module taken more? It runs nowhere then.
    pub fn overrun(&self) -> Option<Overrun> {
        self.overrun.get().copied()
    }
    fn saved(&self) -> i64 {
        (SAVED_NS * self.percent / 100).cast_signed()
    }
}

/// How a module stands after a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It has time left.
    Good,
    /// It has used so much that each run is to be timed.
    Suspected,
    /// It has taken more than its budget, and nobody has seen that before.
    Detached,
}

/// What a module has left at one place.
#[derive(Debug)]
pub struct Account {
    left_ns: i64,
    /// When it was given time last.
    since_ns: u64,
}

impl Account {
    /// A full one.
    pub fn new(budget: &Budget, now: Now) -> Self {
        Self { left_ns: budget.saved(), since_ns: now.wall_ns }
    }

    /// A run that took `run_ns` stands for `runs`.
    ///
    /// An estimate takes half of what can be saved at most, so nobody is detached for one. What goes beyond was all timed.
    pub fn charge(&mut self, budget: &Budget, flow_group: usize, run_ns: u64, runs: u32, now: Now) -> Standing {
        let (saved, passed) = (budget.saved(), now.wall_ns.saturating_sub(self.since_ns).min(SAVED_NS));
        self.since_ns = now.wall_ns;
        self.left_ns = (self.left_ns + (passed * budget.percent / 100).cast_signed()).min(saved);
        let taken = run_ns.saturating_mul(runs.into()).min(SAVED_NS).cast_signed();
        let least = if runs == 1 { i64::MIN } else { self.left_ns.min(saved / 2) };
        self.left_ns = (self.left_ns - taken).max(least);
        if self.left_ns < 0 && budget.overrun.set(Overrun { flow_group, run_ns }).is_ok() {
            return Standing::Detached;
        }
        if self.left_ns <= saved / 2 { Standing::Suspected } else { Standing::Good }
    }
}

/// Chooses the runs that are timed: at first each, then ever fewer, and each again while one is suspected.
#[derive(Debug)]
pub struct Sampling {
    /// Frames until one is timed, with it.
    left: u32,
    /// The runs that the next timed one stands for.
    gap: u32,
    /// The average gap. `None`: there is nothing to find out.
    usual: Option<u32>,
    /// The state of a generator of random numbers.
    random: u64,
}

impl Sampling {
    /// The first frame is timed. `seed` is one that modules do not know.
    pub fn new(seed: u64) -> Self {
        Self { left: 1, gap: 1, usual: Some(1), random: seed | 1 }
    }

    /// For modules without limits: one frame of 2^32 is timed.
    pub fn none() -> Self {
        Self { left: u32::MAX, gap: u32::MAX, usual: None, random: 1 }
    }

    /// Another frame: is it timed?
    #[inline]
    pub fn is_due(&mut self) -> bool {
        self.left -= 1;
        self.left == 0
    }

    /// Is none of the next frames timed, of which there are so many? They count as gone then.
    #[inline]
    pub fn skips(&mut self, frames: usize) -> bool {
        let skips = frames < self.left as usize;
        self.left -= if skips { frames as u32 } else { 0 };
        skips
    }

    /// Of so many frames: how many come before one that is timed? They count as gone.
    #[inline]
    pub fn skip(&mut self, frames: usize) -> usize {
        let count = (self.left - 1).min(u32::try_from(frames).unwrap_or(u32::MAX));
        self.left -= count;
        count as usize
    }

    /// The runs that the timed one stands for.
    pub fn gap(&self) -> u32 {
        self.gap
    }

    /// Chooses the next. `all`: it is the next frame.
    pub fn choose(&mut self, all: bool) {
        let Some(usual) = &mut self.usual else { return *self = Self::none() };
        *usual = if all { 1 } else { (2 * *usual).min(USUAL_GAP) };
        let spread = u64::from(2 * *usual - 1);
        // Marsaglia's xorshift, and not testing/rng: the fewest instructions, on the way of each frame.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.gap = 1 + ((self.random >> 32) % spread) as u32;
        self.left = self.gap;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Charges runs of this length, one after the other with this much time between them. Returns how many until it is over.
    fn runs(percent: u8, run_ns: u64, between_ns: u64, most: u64) -> Option<u64> {
        let budget = Budget::new("test", percent);
        let (mut account, mut sampling) = (Account::new(&budget, Now::default()), Sampling::new(7));
        let mut wall_ns = 0;
        for run in 1..=most {
            wall_ns += run_ns + between_ns;
            if sampling.is_due() {
                let now = Now { wall_ns, ..Now::default() };
                let standing = account.charge(&budget, 3, run_ns, sampling.gap(), now);
                assert_eq!(standing == Standing::Detached, budget.overrun().is_some());
                sampling.choose(standing != Standing::Good);
            }
            if let Some(over) = budget.overrun() {
                assert_eq!(over, Overrun { flow_group: 3, run_ns });
                return Some(run);
            }
        }
        None
    }

    #[test]
    fn a_module_that_takes_less_than_its_share_stays() {
        assert_eq!(runs(50, 100, 1_000, 1_000_000), None, "a twelfth");
        assert_eq!(runs(50, 480, 520, 1_000_000), None, "just below");
        assert_eq!(runs(100, 1_000, 0, 1_000_000), None, "all of it, and more is not to be had");
        assert_eq!(runs(1, MS, 120 * MS, 10_000), None, "long runs, and few of them");
    }

    #[test]
    fn a_module_that_takes_more_goes_within_a_tenth_of_a_second_of_its_own_time() {
        for (percent, run_ns) in [(50, MS), (50, 250_000), (20, 5_000), (1, 1_000), (99, MS)] {
            let count = runs(percent, run_ns, 0, 10_000_000);
            let taken = count.expect("it is over its budget") * run_ns;
            // It takes what was saved and what is given meanwhile. The longest gap passes before it is suspected.
            let most = SAVED_NS * u64::from(percent) / u64::from(100 - percent) + 2 * u64::from(USUAL_GAP) * run_ns;
            assert!(taken <= most.max(SAVED_NS / 100), "{percent} %, {run_ns} ns: {taken} ns");
        }
        assert!(runs(50, 600, 400, 10_000_000).is_some(), "just above");
    }

    #[test]
    fn a_long_run_among_many_short_ones_is_no_reason() {
        let budget = Budget::new("test", 10);
        let mut account = Account::new(&budget, Now::default());
        let mut wall_ns = 0;
        for run in 0..100_000u64 {
            wall_ns += 1_000;
            let long = run % 20_000 == 0;
            // The long ones happen to be timed while most are not, and so stand for 64 each.
            let (run_ns, runs) = if long { (MS, 64) } else { (50, 1) };
            account.charge(&budget, 0, run_ns, runs, Now { wall_ns, ..Now::default() });
        }
        assert_eq!(budget.overrun(), None);
    }

    #[test]
    fn timed_runs_become_rare_at_distances_that_differ_and_dense_again_on_suspicion() {
        let mut sampling = Sampling::new(1);
        let mut gaps = Vec::new();
        for frame in 0..100_000u32 {
            if sampling.is_due() {
                gaps.push((frame, sampling.gap()));
                sampling.choose(false);
            }
        }
        assert_eq!(gaps[0], (0, 1));
        // Each timed run stands for itself and those since the one before.
        assert!(gaps.windows(2).all(|two| two[1].0 - two[0].0 == two[1].1));
        let average = 100_000 / gaps.len() as u32;
        assert!((USUAL_GAP * 9 / 10..=USUAL_GAP * 11 / 10).contains(&average), "{average}");
        let different: std::collections::BTreeSet<_> = gaps.iter().map(|(_, gap)| gap).collect();
        assert!(different.len() > 100, "{different:?}");
        sampling.choose(true);
        assert!(sampling.is_due() && sampling.gap() == 1);
        // Of a batch, the same ones are timed.
        let [mut batches, mut alone] = [(); 2].map(|()| Sampling::new(5));
        for frames in (0..2000).map(|batch| batch % 70) {
            let mut timed = Vec::new();
            let mut frame = if batches.skips(frames) { frames } else { batches.skip(frames) };
            while frame < frames {
                assert!(batches.is_due());
                timed.push(frame);
                batches.choose(false);
                frame += 1;
                frame += batches.skip(frames - frame);
            }
            let due = |alone: &mut Sampling| {
                let is_due = alone.is_due();
                if is_due {
                    alone.choose(false);
                }
                is_due
            };
            assert_eq!(timed, (0..frames).filter(|_| due(&mut alone)).collect::<Vec<_>>());
        }
        let mut none = Sampling::none();
        none.choose(true);
        assert!(!(0..1_000_000).any(|_| none.is_due()));
    }
}
