//! The policy's memory: how long a size must not be tried, and how sizes did, load by load.

use crate::config::Config;
use crate::observation::Observation;
use crate::trial::differs_by;
use std::collections::VecDeque;

/// Loads that are remembered. With more, nobody could follow the decisions.
const LOADS_MOST: usize = 8;

/// How long a size must not be tried.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Ban {
    /// Not before this tick.
    not_before: u64,
    /// The next back-off, ticks. 0: as configured.
    backoff: u64,
}

/// How one size did with one load.
#[derive(Clone, Copy, Debug, PartialEq)]
struct SizeRecord {
    cores: u32,
    /// How much better it is than the first size of this load: the sum of the trials' gains.
    value: f64,
    /// The load as it looks with this size. The load is recognised by it.
    seen: LoadProfile,
    /// Applications have starved with it.
    starving: bool,
}

/// The sizes that were tried with one load.
type Load = Vec<SizeRecord>;

/// How an observed load relates to the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Met {
    /// It is the present load.
    Same,
    /// It is a remembered load.
    Again,
    /// It is new.
    New,
}

/// The memory of all sizes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Memory {
    bans: Vec<Ban>,
    /// The last is the present load.
    loads: VecDeque<Load>,
}

impl Memory {
    /// Bans a size that was bad, for twice as long as the last time.
    pub fn ban(&mut self, cores: u32, tick: u64, config: &Config) {
        let place = cores as usize;
        if self.bans.len() <= place {
            self.bans.resize(place + 1, Ban::default());
        }
        let ban = &mut self.bans[place];
        let backoff = ban.backoff.max(config.backoff_ticks);
        ban.not_before = tick.saturating_add(backoff);
        ban.backoff = backoff.saturating_mul(2).min(config.backoff_most_ticks);
    }
    /// True if the size may be tried.
    pub fn allows(&self, cores: u32, tick: u64) -> bool {
        self.bans.get(cores as usize).is_none_or(|ban| ban.not_before <= tick)
    }
    /// The banned sizes, and the tick at which each ban ends.
    pub fn resting(&self, tick: u64) -> impl Iterator<Item = (u32, u64)> {
        let bans = self.bans.iter().enumerate().filter(move |(_, ban)| ban.not_before > tick);
        bans.map(|(cores, ban)| (cores as u32, ban.not_before))
    }

    fn find(&self, cores: u32) -> Option<&SizeRecord> {
        self.loads.back()?.iter().find(|size| size.cores == cores)
    }
    fn find_mut(&mut self, cores: u32) -> Option<&mut SizeRecord> {
        self.loads.back_mut()?.iter_mut().find(|size| size.cores == cores)
    }

    /// True unless this size has been seen with the present load and looked different.
    pub fn is_present(&self, cores: u32, now: &LoadProfile, config: &Config) -> bool {
        self.find(cores).is_none_or(|size| size.seen.is_like(now, config))
    }
    /// Makes the observed load the present one. A remembered load brings its sizes back, and a new one has none. All
    /// bans end when the load changes: a size that was bad with one load may be good with another.
    pub fn meet(&mut self, cores: u32, now: &LoadProfile, config: &Config) -> Met {
        let knows = |load: &Load| load.iter().any(|size| size.cores == cores && size.seen.is_like(now, config));
        if self.loads.back().is_some_and(knows) {
            return Met::Same;
        }
        // Without a record of this size there is no sign that the load has changed.
        if self.find(cores).is_some() {
            self.bans.clear();
        }
        if let Some(load) = self.loads.iter().position(knows).and_then(|place| self.loads.remove(place)) {
            self.loads.push_back(load);
            return Met::Again;
        }
        self.loads.push_back(vec![SizeRecord { cores, value: 0.0, seen: *now, starving: false }]);
        if self.loads.len() > LOADS_MOST {
            self.loads.pop_front();
        }
        Met::New
    }
    /// Records that `to` cores are better than `from` by `gain`.
    pub fn learn(&mut self, (from, to): (u32, u32), gain: f64, seen: LoadProfile) {
        let Some(value) = self.find(from).map(|size| size.value + gain) else { return };
        match self.find_mut(to) {
            Some(size) => (size.value, size.seen) = (value, seen),
            None => {
                let new = SizeRecord { cores: to, value, seen, starving: false };
                self.loads.back_mut().into_iter().for_each(|load| load.push(new));
            }
        }
    }
    /// Caps the value of `to` at that of `from`: its gain may be noise.
    pub fn no_better(&mut self, from: u32, to: u32) {
        let Some(value) = self.value(from) else { return };
        self.find_mut(to).into_iter().for_each(|size| size.value = size.value.min(value));
    }
    /// Records that applications starve with this size.
    pub fn starves(&mut self, cores: u32) {
        self.find_mut(cores).into_iter().for_each(|size| size.starving = true);
    }
    /// Clears that and the ban: applications starve with fewer cores too, and this size is better.
    pub fn pardon(&mut self, cores: u32) {
        self.find_mut(cores).into_iter().for_each(|size| size.starving = false);
        self.bans.get_mut(cores as usize).into_iter().for_each(|ban| *ban = Ban::default());
    }

    /// The value of this size with the present load, if known.
    pub fn value(&self, cores: u32) -> Option<f64> {
        self.find(cores).map(|size| size.value)
    }
    /// How much worse it is than the best known size.
    pub fn lags(&self, cores: u32) -> f64 {
        self.value(cores).map_or(0.0, |value| (self.best() - value).max(0.0))
    }
    fn best(&self) -> f64 {
        let usable = self.loads.back().into_iter().flatten().filter(|size| !size.starving);
        usable.map(|size| size.value).fold(f64::MIN, f64::max)
    }
    /// True if it is as good as the best known size.
    pub fn is_good(&self, cores: u32, config: &Config) -> bool {
        self.find(cores).is_some_and(|size| !size.starving && self.best() - size.value <= config.fine())
    }
    /// The fewest cores that are as good as the best known size, among those that `may_be` allows.
    pub fn fewest_good(&self, config: &Config, may_be: impl Fn(u32) -> bool) -> Option<u32> {
        let best = self.best();
        let good = |size: &&SizeRecord| !size.starving && best - size.value <= config.fine() && may_be(size.cores);
        self.loads.back()?.iter().filter(good).map(|size| size.cores).min()
    }
    /// The fewest cores that are as good as the best known size from `fewest` to `most`. `None`: none of these is
    /// known.
    pub fn fewest_of_best(&self, fewest: u32, most: u32, config: &Config) -> Option<u32> {
        let within = || self.loads.back().into_iter().flatten().filter(|size| (fewest..=most).contains(&size.cores));
        let best = within().filter(|size| !size.starving).map(|size| size.value).fold(f64::MIN, f64::max);
        within().filter(|size| !size.starving && best - size.value <= config.fine()).map(|size| size.cores).min()
    }
    /// The nearest known sizes below and above. Size 0 does not count.
    pub fn beside(&self, cores: u32) -> (Option<u32>, Option<u32>) {
        let known = || self.loads.back().into_iter().flatten().map(|size| size.cores);
        (known().filter(|n| (1..cores).contains(n)).max(), known().filter(|n| *n > cores).min())
    }
}

/// A load as it looks with some size. It uses medians, because bursts come and go with the same load.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LoadProfile {
    offered: NoisyMedian,
    latency_us: NoisyMedian,
}

/// A median, and its error relative to it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct NoisyMedian {
    median: f64,
    error: f64,
}

impl LoadProfile {
    /// The profile of these ticks.
    pub fn of<'a>(seen: impl Iterator<Item = &'a Observation> + Clone) -> Self {
        let latency_us =
            NoisyMedian::of(seen.clone().map(|o| o.outcome.map_or(0.0, |outcome| outcome.latency_us)).collect());
        Self { offered: NoisyMedian::of(seen.map(|o| o.offered).collect()), latency_us }
    }

    /// True if both are the same load, as one size sees it.
    fn is_like(&self, other: &Self, config: &Config) -> bool {
        let told = self.latency_us.median > 0.0 && other.latency_us.median > 0.0;
        self.offered.is_like(&other.offered, 0.75 * config.alike)
            && (!told || self.latency_us.is_like(&other.latency_us, 2.0 * config.alike))
    }
}

impl NoisyMedian {
    fn of(mut values: Vec<f64>) -> Self {
        let count = values.len() as f64;
        let median = middle(&mut values);
        values.iter_mut().for_each(|value| *value = (*value - median).abs());
        // For normal noise the deviation is 1.48 times the median deviation, and a median errs by 1.25 times as much as
        // a mean.
        let error = 1.48 * 1.25 * middle(&mut values) / count.sqrt();
        Self { median, error: if median > 0.0 { error / median } else { 0.0 } }
    }
    /// True if they differ by no more than this part, or by no more than noise explains.
    fn is_like(&self, other: &Self, part: f64) -> bool {
        differs_by(self.median, other.median) <= part.max(NOISE * self.error.hypot(other.error))
    }
}

/// Two medians differ if their distance is more than this many times their error.
const NOISE: f64 = 2.5;

fn middle(values: &mut [f64]) -> f64 {
    let place = values.len() / 2;
    if values.is_empty() { 0.0 } else { *values.select_nth_unstable_by(place, f64::total_cmp).1 }
}
