//! What is remembered of each size: how long it is not to be tried, and how it did with which load.

use crate::config::Config;
use crate::observation::Outcome;
use crate::trial::{Means, differs_by, is_worse};

/// Of one size.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Size {
    /// Not before this tick.
    not_before: u64,
    /// How long it will be kept away next time, ticks; 0 = as the configuration says.
    backoff: u64,
    /// How it did when it was in use last.
    means: Option<Means>,
}

/// Of all sizes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Memory(Vec<Size>);

/// How a size does with a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// Nobody knows.
    No,
    /// As well as the best.
    Good,
    /// Worse than the best.
    Worse,
}

impl Memory {
    fn of(&mut self, cores: u32) -> &mut Size {
        let place = cores as usize;
        if self.0.len() <= place {
            self.0.resize(place + 1, Size::default());
        }
        &mut self.0[place]
    }

    /// This size was bad: away with it, for twice as long as the last time.
    pub fn ban(&mut self, cores: u32, tick: u64, config: &Config) {
        let size = self.of(cores);
        let backoff = size.backoff.max(config.backoff_ticks);
        size.not_before = tick.saturating_add(backoff);
        size.backoff = backoff.saturating_mul(2).min(config.backoff_most_ticks);
    }
    /// May it be tried?
    pub fn allows(&self, cores: u32, tick: u64) -> bool {
        self.0.get(cores as usize).is_none_or(|size| size.not_before <= tick)
    }
    /// Sizes that are not to be tried yet, and until which tick.
    pub fn resting(&self, tick: u64) -> impl Iterator<Item = (u32, u64)> {
        let sizes = self.0.iter().enumerate().filter(move |(_, size)| size.not_before > tick);
        sizes.map(|(cores, size)| (cores as u32, size.not_before))
    }
    /// This size did so.
    pub fn saw(&mut self, cores: u32, means: Means) {
        self.of(cores).means = Some(means);
    }

    /// Clients that wait for answers have asked for more since there are so many cores: `to` instead of `from`. The other sizes that had
    /// the old load would have no more of the new one than they had, and are known to be worse with it.
    pub fn outdone(&mut self, cores: u32, (from, to): (f64, f64), config: &Config) {
        let others = self.0.iter_mut().enumerate().filter(|(size, _)| *size != cores as usize);
        let means = others.filter_map(|(_, size)| size.means.as_mut());
        means.filter(|means| alike(means.offered, from, config)).for_each(|means| means.offered = to);
    }

    /// What sizes did with about this load.
    fn alike(&self, offered: f64, config: &Config) -> impl Iterator<Item = Outcome> {
        let means = self.0.iter().filter_map(|size| size.means);
        means.filter(move |means| alike(means.offered, offered, config)).filter_map(|means| means.outcome)
    }
    /// The best that any size did with about this load: of those with the most throughput the one with the lowest latency.
    pub fn best(&self, offered: f64, config: &Config) -> Option<Outcome> {
        let most = self.alike(offered, config).map(|outcome| outcome.throughput).fold(0.0, f64::max);
        let able = self.alike(offered, config).filter(|outcome| outcome.throughput >= most * (1.0 - config.tolerance));
        able.min_by(|a, b| a.latency_us.total_cmp(&b.latency_us))
    }
    /// How this size does with about this load.
    pub fn knows(&self, cores: u32, offered: f64, config: &Config) -> Known {
        let means = self.0.get(cores as usize).and_then(|size| size.means);
        let Some(means) = means.filter(|means| alike(means.offered, offered, config)) else { return Known::No };
        match (self.best(offered, config), means.outcome) {
            (Some(best), Some(outcome)) if !is_worse(&best, &outcome, config) => Known::Good,
            (Some(_), _) => Known::Worse,
            (None, _) => Known::No,
        }
    }
}

/// Is it about the same load? Twice as far apart as what a trial compares: else one that wavers around the border would be news again and
/// again.
fn alike(a: f64, b: f64, config: &Config) -> bool {
    differs_by(a, b) <= 2.0 * config.alike
}
