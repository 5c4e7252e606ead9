//! The choice of the size to explore after a calm time.

use super::{NOTHING, PolicyState};
use crate::config::Config;
use crate::decision::{Decision, Reason};

impl PolicyState {
    /// After a calm time, tries a size that is known to be better, or an unknown one.
    pub(super) fn explore(&mut self, config: &Config, may_grow: bool) -> Option<(Decision, Reason)> {
        if self.calm < self.explore_after || self.strange > 0 || self.recent.len() < config.trial_ticks as usize {
            return None;
        }
        let told = self.recent.iter().rev().take(config.trial_ticks as usize).all(|seen| seen.outcome.is_some());
        if !told {
            return None;
        }
        if self.memory.value(self.cores).is_none() {
            self.meet(config, &self.usual(config.trial_ticks as usize));
        }
        let to = self.better(config).or_else(|| self.unknown(config)).filter(|to| may_grow || *to < self.cores)?;
        Some(self.attempt(config, to, Reason::Explore))
    }

    /// The fewest cores that are as good as the best known size, if the present size is not one of those.
    fn better(&self, config: &Config) -> Option<u32> {
        let fewest = self.memory.fewest_good(config, |n| n == self.cores || self.may_have(config, n))?;
        (fewest < self.cores || (fewest > self.cores && !self.memory.is_good(self.cores, config))).then_some(fewest)
    }

    /// A size that is unknown with this load. The fewest comes first, because a few cores can be worse than either none
    /// or many. From 0 it is the stack's share of the work. Else it lies beside the best one, in strides that double
    /// while they lead to better sizes and are halved when they do not.
    fn unknown(&self, config: &Config) -> Option<u32> {
        let untried = |to: &u32| self.memory.value(*to).is_none() && self.may_have(config, *to);
        if let Some(fewest) = Some(config.min).filter(untried) {
            return Some(fewest);
        }
        let (busy, app_busy) = (self.busy.unwrap_or(0.0), self.recent.back().map_or(0.0, |seen| seen.app_busy));
        let least =
            self.recent.iter().rev().take(config.trial_ticks as usize).map(|seen| seen.busy).fold(f64::MAX, f64::min);
        if self.cores == 0 && least < NOTHING {
            return None;
        }
        let (fewest, most) = (config.min.max(1), config.most().max(1));
        let Some(at) = self.memory.fewest_of_best(fewest, most, config) else {
            let share = f64::from(config.total) * busy / (busy + app_busy).max(NOTHING);
            return Some((share.round() as u32).clamp(fewest, most)).filter(untried);
        };
        let (below, above) = self.memory.beside(at);
        let good = |n: u32| self.memory.value(n) >= self.memory.value(at).map(|value| value - config.fine());
        let stride = (at / 4).max(1);
        let fewer = match (below, above) {
            (Some(bad), _) => (bad + at) / 2,
            (None, Some(came)) if good(came) => at.saturating_sub(2 * (came - at)),
            (None, _) => at.saturating_sub(stride),
        };
        let more = match (below, above) {
            (_, Some(known)) if good(known) && at == self.cores => at,
            // The best may lie between two that are equally good.
            (_, Some(known)) => (at + known).div_ceil(2),
            (Some(came), None) => at + 2 * (at - came),
            (None, None) => at + stride,
        };
        let app_cpus = f64::from(config.total.saturating_sub(self.cores)).max(1.0);
        let wants = busy * app_cpus > app_busy * f64::from(self.cores);
        let order = if wants { [more, fewer] } else { [fewer, more] }.map(|cores| cores.clamp(fewest, most));
        order.into_iter().find(untried)
    }
}
