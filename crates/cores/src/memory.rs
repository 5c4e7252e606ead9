//! What is remembered: how long a size is not to be tried, and how sizes did, load by load.

use crate::config::Config;
use crate::observation::Observation;
use crate::trial::differs_by;
use std::collections::VecDeque;

/// So many loads are remembered. One that comes back is known; of more than these nobody would see why it is.
const LOADS_MOST: usize = 8;

/// How long a size is kept away.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Ban {
    /// Not before this tick.
    not_before: u64,
    /// How long it will be kept away next time, ticks; 0 = as the configuration says.
    backoff: u64,
}

/// How one size did with one load.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Size {
    cores: u32,
    /// How much better than the first that was seen with this load: what trials said, added up. Never compared across time by itself.
    value: f64,
    /// What was seen of it: by that the load is known again.
    seen: Usual,
    /// Applications have starved with it.
    starving: bool,
}

/// What was learned while the load was the same.
type Load = Vec<Size>;

/// Which load it is that is met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Met {
    /// The present one.
    Same,
    /// One of those that are remembered.
    Again,
    /// One of which nothing is known.
    New,
}

/// Of all sizes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Memory {
    bans: Vec<Ban>,
    /// The present one is the last.
    loads: VecDeque<Load>,
}

impl Memory {
    /// This size was bad: away with it, for twice as long as the last time.
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
    /// May it be tried?
    pub fn allows(&self, cores: u32, tick: u64) -> bool {
        self.bans.get(cores as usize).is_none_or(|ban| ban.not_before <= tick)
    }
    /// Sizes that are not to be tried yet, and until which tick.
    pub fn resting(&self, tick: u64) -> impl Iterator<Item = (u32, u64)> {
        let bans = self.bans.iter().enumerate().filter(move |(_, ban)| ban.not_before > tick);
        bans.map(|(cores, ban)| (cores as u32, ban.not_before))
    }

    fn find(&self, cores: u32) -> Option<&Size> {
        self.loads.back()?.iter().find(|size| size.cores == cores)
    }
    fn find_mut(&mut self, cores: u32) -> Option<&mut Size> {
        self.loads.back_mut()?.iter_mut().find(|size| size.cores == cores)
    }

    /// Is this what was seen of this size with the present load, if that has been seen with it?
    pub fn is_present(&self, cores: u32, now: &Usual, config: &Config) -> bool {
        self.find(cores).is_none_or(|size| size.seen.is_like(now, config))
    }
    /// With so many cores this is seen. If that is another load than the present one, what is known of it comes back; of a new one nothing
    /// is known. Sizes that were bad with one load may be good with another.
    pub fn meet(&mut self, cores: u32, now: &Usual, config: &Config) -> Met {
        let knows = |load: &Load| load.iter().any(|size| size.cores == cores && size.seen.is_like(now, config));
        if self.loads.back().is_some_and(knows) {
            return Met::Same;
        }
        // Who does not know what this size was like cannot say that anything has changed.
        if self.find(cores).is_some() {
            self.bans.clear();
        }
        if let Some(load) = self.loads.iter().position(knows).and_then(|place| self.loads.remove(place)) {
            self.loads.push_back(load);
            return Met::Again;
        }
        self.loads.push_back(vec![Size { cores, value: 0.0, seen: *now, starving: false }]);
        if self.loads.len() > LOADS_MOST {
            self.loads.pop_front();
        }
        Met::New
    }
    /// `to` cores are by so much better than `from`, of which something is known.
    pub fn learn(&mut self, (from, to): (u32, u32), gain: f64, seen: Usual) {
        let Some(value) = self.find(from).map(|size| size.value + gain) else { return };
        match self.find_mut(to) {
            Some(size) => (size.value, size.seen) = (value, seen),
            None => {
                let new = Size { cores: to, value, seen, starving: false };
                self.loads.back_mut().into_iter().for_each(|load| load.push(new));
            }
        }
    }
    /// What `to` seemed to be better than `from` may be noise.
    pub fn no_better(&mut self, from: u32, to: u32) {
        let Some(value) = self.value(from) else { return };
        self.find_mut(to).into_iter().for_each(|size| size.value = size.value.min(value));
    }
    /// Applications starve with so many.
    pub fn starves(&mut self, cores: u32) {
        self.find_mut(cores).into_iter().for_each(|size| size.starving = true);
    }
    /// They starve with fewer as well, and this many are better.
    pub fn pardon(&mut self, cores: u32) {
        self.find_mut(cores).into_iter().for_each(|size| size.starving = false);
        self.bans.get_mut(cores as usize).into_iter().for_each(|ban| *ban = Ban::default());
    }

    /// How much better than others this size is with the present load, if that is known.
    pub fn value(&self, cores: u32) -> Option<f64> {
        self.find(cores).map(|size| size.value)
    }
    /// How much worse it is than the best that is known.
    pub fn lags(&self, cores: u32) -> f64 {
        self.value(cores).map_or(0.0, |value| (self.best() - value).max(0.0))
    }
    fn best(&self) -> f64 {
        let usable = self.loads.back().into_iter().flatten().filter(|size| !size.starving);
        usable.map(|size| size.value).fold(f64::MIN, f64::max)
    }
    /// Is it as good as the best that is known?
    pub fn is_good(&self, cores: u32, config: &Config) -> bool {
        self.find(cores).is_some_and(|size| !size.starving && self.best() - size.value <= config.fine())
    }
    /// Of the sizes that are as good as the best that is known and that may be, the one of the fewest cores.
    pub fn fewest_good(&self, config: &Config, may_be: impl Fn(u32) -> bool) -> Option<u32> {
        let best = self.best();
        let good = |size: &&Size| !size.starving && best - size.value <= config.fine() && may_be(size.cores);
        self.loads.back()?.iter().filter(good).map(|size| size.cores).min()
    }
    /// Of the sizes from `fewest` to `most` the one of the fewest cores that is as good as the best of them, if anything is known of any.
    pub fn fewest_of_best(&self, fewest: u32, most: u32, config: &Config) -> Option<u32> {
        let within = || self.loads.back().into_iter().flatten().filter(|size| (fewest..=most).contains(&size.cores));
        let best = within().filter(|size| !size.starving).map(|size| size.value).fold(f64::MIN, f64::max);
        within().filter(|size| !size.starving && best - size.value <= config.fine()).map(|size| size.cores).min()
    }
    /// The nearest sizes below and above of which something is known; below, none at all is not one of them.
    pub fn beside(&self, cores: u32) -> (Option<u32>, Option<u32>) {
        let known = || self.loads.back().into_iter().flatten().map(|size| size.cores);
        (known().filter(|n| (1..cores).contains(n)).max(), known().filter(|n| *n > cores).min())
    }
}

/// What a load looks like with some size: medians, because bursts come and go with the same load.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usual {
    offered: Figure,
    latency_us: Figure,
}

/// A median, and how far off it may be, as a part.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Figure {
    median: f64,
    error: f64,
}

impl Usual {
    /// In these ticks.
    pub fn of<'a>(seen: impl Iterator<Item = &'a Observation> + Clone) -> Self {
        let latency_us =
            Figure::of(seen.clone().map(|o| o.outcome.map_or(0.0, |outcome| outcome.latency_us)).collect());
        Self { offered: Figure::of(seen.map(|o| o.offered).collect()), latency_us }
    }

    /// Is it the same load, as one size sees it? Where latency has not changed either, nothing that was compared has.
    fn is_like(&self, other: &Self, config: &Config) -> bool {
        let told = self.latency_us.median > 0.0 && other.latency_us.median > 0.0;
        self.offered.is_like(&other.offered, 0.75 * config.alike)
            && (!told || self.latency_us.is_like(&other.latency_us, 2.0 * config.alike))
    }
}

impl Figure {
    fn of(mut values: Vec<f64>) -> Self {
        let count = values.len() as f64;
        let median = middle(&mut values);
        values.iter_mut().for_each(|value| *value = (*value - median).abs());
        // As of normal noise: its deviation is 1.48 times what half of it keeps within, and a median is off by 1.25 times as much as a mean.
        let error = 1.48 * 1.25 * middle(&mut values) / count.sqrt();
        Self { median, error: if median > 0.0 { error / median } else { 0.0 } }
    }
    /// Do they differ by no more than this part, or than noise may make them?
    fn is_like(&self, other: &Self, part: f64) -> bool {
        differs_by(self.median, other.median) <= part.max(NOISE * self.error.hypot(other.error))
    }
}

/// Two medians that differ by so many times their error are not the same.
const NOISE: f64 = 2.5;

fn middle(values: &mut [f64]) -> f64 {
    let place = values.len() / 2;
    if values.is_empty() { 0.0 } else { *values.select_nth_unstable_by(place, f64::total_cmp).1 }
}
