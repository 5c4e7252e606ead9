//! Every change is on trial: the time after it is compared with the time before it.

use crate::config::Config;
use crate::decision::Reason;
use crate::observation::{Observation, Outcome};
use std::collections::VecDeque;

/// A trial takes up to this many times as long where noise hides which size is better.
pub const LONGER: usize = 4;
/// The weight of latency beside throughput.
const LATENCY: f64 = 0.2;

/// Means of some ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Means {
    /// Of [`Observation::busy`].
    pub busy: f64,
    /// Of [`Observation::offered`].
    pub offered: f64,
    /// Means of the outcomes, if every tick had one.
    pub outcome: Option<Outcome>,
    /// The part of the ticks with pressure.
    pub pressed: f64,
    /// The part of the ticks in which applications starved.
    pub starved: f64,
    /// Relative standard error of the outcomes' means.
    pub error: f64,
}

impl Means {
    /// The means of these ticks. `None`: there are no ticks.
    pub fn of<'a>(seen: impl IntoIterator<Item = &'a Observation, IntoIter: Clone>) -> Option<Self> {
        let seen = seen.into_iter();
        let count = seen.clone().count() as f64;
        if count == 0.0 {
            return None;
        }
        let mean = |value: &dyn Fn(&Observation) -> f64| seen.clone().map(value).sum::<f64>() / count;
        let told = seen.clone().all(|o| o.outcome.is_some());
        let part = |value: &dyn Fn(Outcome) -> f64| mean(&|o| o.outcome.map_or(0.0, value));
        // The relative variance of single ticks.
        let spread = |value: &dyn Fn(Outcome) -> f64| {
            let usual = part(value);
            if usual > 0.0 { part(&|o| (value(o) / usual - 1.0).powi(2)) } else { 0.0 }
        };
        let outcome = told.then(|| Outcome {
            throughput: part(&|o| o.throughput),
            latency_us: part(&|o| o.latency_us),
            p99_us: part(&|o| o.p99_us),
        });
        Some(Self {
            busy: mean(&|o| o.busy),
            offered: mean(&|o| o.offered),
            outcome,
            pressed: mean(&|o| f64::from(u8::from(o.pressure))),
            starved: 0.0,
            error: ((spread(&|o| o.throughput) + spread(&|o| o.latency_us)) / 2.0 / count).sqrt(),
        })
    }

    /// True if the offered loads are about the same.
    pub fn is_like(&self, other: &Self, config: &Config) -> bool {
        differs_by(self.offered, other.offered) <= config.alike
    }
}

/// Their difference, relative to the larger one.
pub fn differs_by(a: f64, b: f64) -> f64 {
    let larger = a.max(b);
    if larger > 0.0 { (a - b).abs() / larger } else { 0.0 }
}

/// A change that is on trial.
#[derive(Clone, Debug, PartialEq)]
pub struct Trial {
    /// The size before it.
    pub from: u32,
    /// Why it was made.
    pub reason: Reason,
    /// The means before it.
    pub before: Means,
    /// True if the load before it was steady. Else there is nothing to compare with.
    pub fair: bool,
    /// True if it was known before that applications starve with any size.
    pub anyway: bool,
    /// How much worse the size before was than the best known one.
    pub lags: f64,
    /// The observations since it has settled.
    pub after: VecDeque<Observation>,
}

/// The end of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrialResult {
    /// It stays.
    Keep,
    /// It is taken back, for this reason.
    Revert(Reason),
}

impl Trial {
    /// The judgement on a change to `to` cores.
    pub fn judge(&self, to: u32, config: &Config) -> TrialResult {
        let Some(after) = Means::of(&self.after) else { return TrialResult::Keep };
        if self.before.outcome.is_some() && after.outcome.is_none() {
            return TrialResult::Revert(Reason::FeedbackLost);
        }
        if self.reason == Reason::Pressure && after.pressed >= 0.5 && !self.helps(&after, config) {
            return TrialResult::Revert(Reason::NoCure);
        }
        let Some(gain) = self.gain(&after, config).filter(|_| self.fair) else { return TrialResult::Keep };
        match self.reason {
            Reason::Starved => TrialResult::Keep,
            // A core more must pay for itself. A core less must only do no harm, compared with the best known size.
            Reason::Explore | Reason::Idle if to < self.from && gain < self.lags - config.fine() => {
                TrialResult::Revert(Reason::Worse)
            }
            Reason::Explore if to > self.from && gain <= config.fine().max(self.error(&after)) => {
                TrialResult::Revert(if gain < -config.tolerance { Reason::Worse } else { Reason::NoBetter })
            }
            _ if gain < -config.tolerance || self.tail_grew(&after, config) => TrialResult::Revert(Reason::Worse),
            _ => TrialResult::Keep,
        }
    }

    /// True if the load has changed meanwhile. Then nothing follows for any size.
    pub fn met_another_load(&self, after: &Means, config: &Config) -> bool {
        !after.is_like(&self.before, config) && self.gain(after, config).is_none_or(|gain| gain == 0.0)
    }

    /// True if enough has been seen. A size that is explored needs longer where noise hides which is better.
    pub fn is_over(&self, to: u32, config: &Config) -> bool {
        let (seen, enough) = (self.after.len(), config.trial_ticks as usize);
        let compares = matches!(self.reason, Reason::Explore | Reason::Idle);
        if seen < enough || !compares || seen >= LONGER * enough {
            return seen >= enough;
        }
        let Some(after) = Means::of(&self.after) else { return false };
        let Some(gain) = self.gain(&after, config) else { return true };
        let border = if to < self.from { self.lags - config.fine() } else { config.fine() };
        (gain - border).abs() > 2.0 * self.error(&after)
    }
    /// The error of its gain.
    fn error(&self, after: &Means) -> f64 {
        self.before.error.hypot(after.error)
    }

    /// The relative gain. `None`: there is no feedback.
    ///
    /// Clients that wait for answers ask for more when answers come sooner. Then throughput and latency agree, and that
    /// is the gain. If the offered load has changed and latency has not changed accordingly, the load has changed by
    /// itself. Then only latency counts, and for little. With losses or starving applications, throughput is the limit
    /// of the machine, and counts in full.
    pub fn gain(&self, after: &Means, config: &Config) -> Option<f64> {
        let (before, now) = (self.before.outcome?, after.outcome?);
        let by = |from: f64, to: f64| if from > 0.0 && to > 0.0 { (to / from).ln().clamp(-3.0, 3.0) } else { 0.0 };
        let done = by(before.throughput, now.throughput);
        let asked = by(self.before.offered, after.offered);
        let sooner = by(now.latency_us, before.latency_us);
        if asked * sooner < 0.0 && !after.is_like(&self.before, config) {
            // A larger load by itself takes longer.
            return Some(0.0);
        }
        if self.is_limited(after) {
            return Some(done + (LATENCY * sooner).clamp(-2.0 * config.fine(), 2.0 * config.fine()));
        }
        let more = (done + asked) / 2.0;
        if more * sooner > 0.0 && more.abs() > sooner.abs() / 3.0 {
            return Some((more + sooner) / 2.0);
        }
        let lost = done - asked;
        let lost = if done.abs().min(lost.abs()) > config.tolerance { lost } else { 0.0 };
        Some(lost + LATENCY * sooner)
    }

    /// True if there is, or was, more to do than the machine can.
    fn is_limited(&self, after: &Means) -> bool {
        [&self.before, after].iter().any(|means| means.pressed >= 0.5 || means.starved >= 0.5)
    }

    /// True if the tail grew. The tail is noisy, so it counts only while the offered load is the same.
    fn tail_grew(&self, after: &Means, config: &Config) -> bool {
        let (Some(before), Some(now)) = (self.before.outcome, after.outcome) else { return false };
        !self.is_limited(after)
            && before.p99_us > 0.0
            && now.p99_us > before.p99_us * (1.0 + 6.0 * config.tolerance)
            && after.is_like(&self.before, config)
    }

    /// True if the change has made the stack do more so far. Half of the growth in cores is enough.
    pub fn helps(&self, after: &Means, config: &Config) -> bool {
        let enough = config.tolerance.min(0.5 / f64::from(self.from.max(1)));
        match (self.before.outcome, after.outcome) {
            (Some(before), Some(after)) => after.throughput > before.throughput * (1.0 + enough),
            _ => after.busy > self.before.busy * (1.0 + enough),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tick with this throughput and latency, of clients that wait for each answer.
    fn tick(throughput: f64, latency_us: f64) -> Observation {
        let outcome = Some(Outcome { throughput, latency_us, p99_us: 0.0 });
        Observation { busy: 1.0, outcome, offered: throughput, ..Observation::default() }
    }

    fn judged(reason: Reason, after: Observation) -> TrialResult {
        let before = Means::of(&[tick(10_000.0, 100.0)]).unwrap_or_default();
        let trial =
            Trial { from: 1, reason, before, fair: true, anyway: false, lags: 0.0, after: VecDeque::from([after]) };
        trial.judge(2, &Config::new(4))
    }

    #[test]
    fn who_asks_for_less_because_answers_take_longer_was_harmed_and_who_just_asks_for_less_was_not() {
        assert_eq!(judged(Reason::Busy, tick(5_000.0, 200.0)), TrialResult::Revert(Reason::Worse));
        assert_eq!(judged(Reason::Idle, tick(5_000.0, 200.0)), TrialResult::Revert(Reason::Worse));
        assert_eq!(judged(Reason::Busy, tick(5_000.0, 95.0)), TrialResult::Keep);
        assert_eq!(
            judged(Reason::Busy, tick(20_000.0, 200.0)),
            TrialResult::Keep,
            "more is asked for: it may well take longer"
        );
        assert_eq!(judged(Reason::Starved, tick(5_000.0, 200.0)), TrialResult::Keep);
        assert_eq!(judged(Reason::Explore, tick(5_000.0, 95.0)), TrialResult::Revert(Reason::NoBetter));
    }

    #[test]
    fn who_asks_for_more_because_answers_come_sooner_was_helped_and_who_just_asks_for_more_was_not() {
        assert_eq!(judged(Reason::Explore, tick(13_000.0, 77.0)), TrialResult::Keep);
        assert_eq!(judged(Reason::Explore, tick(13_000.0, 100.0)), TrialResult::Revert(Reason::NoBetter));
        assert_eq!(judged(Reason::Explore, tick(13_000.0, 0.0)), TrialResult::Revert(Reason::NoBetter), "nobody says");
    }
}
