//! A class of sockets: its measurements, and the carrier that its next connection uses.

use super::decide::{self, ClassState, Phase, Rules, Summary};
use std::sync::atomic::Ordering::Relaxed;
use towpath_ring::stats::{CarriedBy, ClassKey, ClassStats, StatsRegion};

/// The name of a class: a user, a program's name, and a direction with a port.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClassName {
    /// The program's name.
    pub program: String,
    /// Its user.
    pub uid: u32,
    /// Direction and port.
    pub key: ClassKey,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Class {
    /// The decision. `None`: there is none to make, because these connections go where the other side listens.
    pub state: Option<ClassState>,
    /// Connections that have used each carrier since the trial began. Of a listener: runs of the program.
    placed: [u64; 2],
    /// Measurements of programs that have ended.
    retired: [ClassStats; 2],
    /// Measurements at the beginning of the trial, or of a listener's newest run.
    base: [ClassStats; 2],
    /// Decides the order in which a trial uses the carriers.
    seed: u64,
}

/// On trial, one in 32 calls is measured, on every connection.
const ON_TRIAL: (u32, u32) = (32, 1);
/// Later, one in 128 calls is measured, on one in 8 connections, so that it costs next to nothing.
const LATER: (u32, u32) = (128, 8);

impl Class {
    /// A class without measurements.
    pub fn new(state: Option<ClassState>, seed: u64) -> Self {
        Self { state, placed: [0; 2], retired: Default::default(), base: Default::default(), seed }
    }

    /// All measurements, with those of living programs.
    pub fn totals(&self, key: ClassKey, stats_regions: &[&StatsRegion]) -> [ClassStats; 2] {
        stats_regions.iter().filter_map(|region| region.find(key)).fold(self.retired.clone(), |sum, class| {
            [0, 1].map(|carrier: usize| sum[carrier].plus(&class.by_carrier[carrier].read()))
        })
    }

    /// A summary of each carrier since the trial or the newest run began.
    pub fn seen(&self, totals: &[ClassStats; 2], rules: &Rules) -> [Summary; 2] {
        [0, 1].map(|carrier: usize| Summary::of(&totals[carrier].since(&self.base[carrier]), rules))
    }

    /// A program ends: the measurements in its stats region are kept.
    pub fn retire(&mut self, key: ClassKey, stats_region: &StatsRegion) {
        if let Some(class) = stats_region.find(key) {
            self.retired = [0, 1].map(|carrier: usize| self.retired[carrier].plus(&class.by_carrier[carrier].read()));
        }
    }

    /// Evaluates the measurements and decides if there are enough of them.
    pub fn step(&mut self, key: ClassKey, stats_regions: &[&StatsRegion], rules: &Rules, now_us: u64) {
        let Some(state) = self.state else { return };
        // A server is not started for a trial.
        if key.accepts && matches!(state.phase, Phase::Settled(_)) {
            return self.advise(key, stats_regions, state);
        }
        let totals = self.totals(key, stats_regions);
        let seen = self.seen(&totals, rules);
        let measured = totals.iter().any(|carrier| carrier.calls > 0) || !stats_regions.is_empty();
        // A listener's trial may take any number of runs, and so any time.
        let rules = Rules { trial_most_us: if key.accepts { u64::MAX } else { rules.trial_most_us }, ..*rules };
        let next = decide::step(&rules, state, key.accepts, measured.then_some(&seen), now_us);
        if next.settled() != state.settled() {
            (self.placed, self.base) = ([0; 2], totals);
        }
        self.state = Some(next);
        self.advise(key, stats_regions, next);
    }

    /// A run of a listener begins: the run before it is judged.
    pub fn run(&mut self, key: ClassKey, stats_regions: &[&StatsRegion], rules: &Rules, now_us: u64) {
        let Some(state) = self.state else { return };
        if let Some(carrier) = state.settled() {
            let totals = self.totals(key, stats_regions);
            let seen = self.seen(&totals, rules)[carrier as usize];
            self.state = Some(decide::rerun(rules, state, seen, now_us));
            self.base = totals;
        }
    }

    /// The carrier of the next connection or run.
    pub fn place(&mut self, key: ClassKey) -> Option<CarriedBy> {
        let state = self.state?;
        let carrier = state.settled().unwrap_or_else(|| match self.placed {
            [stack, kernel] if stack < kernel => CarriedBy::Stack,
            [stack, kernel] if stack > kernel => CarriedBy::Kernel,
            // A listener is first tried on the stack, where its user has put the program.
            _ if key.accepts => CarriedBy::Stack,
            // Of each two connections one uses each carrier. The first is drawn, so that no pattern of the program is
            // followed.
            [pairs, _] => CarriedBy::BOTH[drawn(self.seed, u64::from(state.trials) << 32 | pairs) as usize],
        });
        self.placed[carrier as usize] += 1;
        Some(carrier)
    }

    fn advise(&self, key: ClassKey, stats_regions: &[&StatsRegion], state: ClassState) {
        let (interval, one_of) = if state.settled().is_some() { LATER } else { ON_TRIAL };
        for class in stats_regions.iter().filter_map(|region| region.find(key)) {
            class.interval.store(interval, Relaxed);
            class.one_of.store(one_of, Relaxed);
        }
    }
}

/// One pseudo-random bit for a number, the same for the same seed (SplitMix64).
fn drawn(seed: u64, number: u64) -> u64 {
    let mut z = seed.wrapping_add(number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)) & 1
}
