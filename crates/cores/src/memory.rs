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
    /// This size did so.
    pub fn saw(&mut self, cores: u32, means: Means) {
        self.of(cores).means = Some(means);
    }

    /// What sizes did with about this load. Twice as far apart as what a trial compares: else a load that wavers around the border would
    /// be news again and again.
    fn alike(&self, offered: f64, config: &Config) -> impl Iterator<Item = Outcome> {
        let most = 2.0 * config.alike;
        let means = self.0.iter().filter_map(|size| size.means);
        means.filter(move |means| differs_by(means.offered, offered) <= most).filter_map(|means| means.outcome)
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
        let Some(means) = means.filter(|means| differs_by(means.offered, offered) <= 2.0 * config.alike) else {
            return Known::No;
        };
        match (self.best(offered, config), means.outcome) {
            (Some(best), Some(outcome)) if !is_worse(&best, &outcome, config) => Known::Good,
            (Some(_), _) => Known::Worse,
            (None, _) => Known::No,
        }
    }
}
