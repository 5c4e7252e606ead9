//! Every change is on trial: what comes after it is compared with what was before it.

use crate::config::Config;
use crate::decision::Reason;
use crate::observation::{Observation, Outcome};
use std::collections::VecDeque;

/// A trial takes so many times as long where noise hides which size is better.
pub const LONGER: usize = 4;
/// What latency counts for beside throughput.
const LATENCY: f64 = 0.2;

/// Means of some ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Means {
    /// Of [`Observation::busy`].
    pub busy: f64,
    /// Of [`Observation::offered`].
    pub offered: f64,
    /// Of the outcomes, if there was one in every tick.
    pub outcome: Option<Outcome>,
    /// The part of the ticks with pressure.
    pub pressed: f64,
    /// The part of the ticks in which applications starved.
    pub starved: f64,
    /// How wrong the means of the outcomes may be, as a part: their standard error.
    pub error: f64,
}

impl Means {
    /// Of these; `None` of none.
    pub fn of<'a>(seen: impl IntoIterator<Item = &'a Observation, IntoIter: Clone>) -> Option<Self> {
        let seen = seen.into_iter();
        let count = seen.clone().count() as f64;
        if count == 0.0 {
            return None;
        }
        let mean = |value: &dyn Fn(&Observation) -> f64| seen.clone().map(value).sum::<f64>() / count;
        let told = seen.clone().all(|o| o.outcome.is_some());
        let part = |value: &dyn Fn(Outcome) -> f64| mean(&|o| o.outcome.map_or(0.0, value));
        // How far single ticks are from their mean, squared and as a part of it.
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

    /// Was as much asked for, about?
    pub fn is_like(&self, other: &Self, config: &Config) -> bool {
        differs_by(self.offered, other.offered) <= config.alike
    }
}

/// By which part of the larger they differ.
pub fn differs_by(a: f64, b: f64) -> f64 {
    let larger = a.max(b);
    if larger > 0.0 { (a - b).abs() / larger } else { 0.0 }
}

/// A change that is on trial.
#[derive(Clone, Debug, PartialEq)]
pub struct Trial {
    /// How many cores there were.
    pub from: u32,
    /// Why it was made.
    pub reason: Reason,
    /// What was before it.
    pub before: Means,
    /// Was the load before it one load? Else it is nothing to compare with.
    pub fair: bool,
    /// Was it known before it that applications starve with any size?
    pub anyway: bool,
    /// How much worse than the best that is known it was before.
    pub lags: f64,
    /// What has been seen since it has settled.
    pub after: VecDeque<Observation>,
}

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It stays.
    Keep,
    /// Back, for this reason.
    Revert(Reason),
}

impl Trial {
    /// The judgement on a change to `to` cores.
    pub fn judge(&self, to: u32, config: &Config) -> Verdict {
        let Some(after) = Means::of(&self.after) else { return Verdict::Keep };
        if self.before.outcome.is_some() && after.outcome.is_none() {
            return Verdict::Revert(Reason::FeedbackLost);
        }
        if self.reason == Reason::Pressure && after.pressed >= 0.5 && !self.helps(&after, config) {
            return Verdict::Revert(Reason::NoCure);
        }
        let Some(gain) = self.gain(&after, config).filter(|_| self.fair) else { return Verdict::Keep };
        match self.reason {
            Reason::Starved => Verdict::Keep,
            // A core more has to be worth its place; a core less only has to do no harm, to the best that was known.
            Reason::Explore | Reason::Idle if to < self.from && gain < self.lags - config.fine() => {
                Verdict::Revert(Reason::Worse)
            }
            Reason::Explore if to > self.from && gain <= config.fine().max(self.error(&after)) => {
                Verdict::Revert(if gain < -config.tolerance { Reason::Worse } else { Reason::NoBetter })
            }
            _ if gain < -config.tolerance || self.tail_grew(&after, config) => Verdict::Revert(Reason::Worse),
            _ => Verdict::Keep,
        }
    }

    /// Has the load changed meanwhile? Then nothing follows for any size.
    pub fn met_another_load(&self, after: &Means, config: &Config) -> bool {
        !after.is_like(&self.before, config) && self.gain(after, config).is_none_or(|gain| gain == 0.0)
    }

    /// Has enough been seen? A size that is tried is looked at for longer where noise hides which is better.
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
    /// How far off what it has gained may be.
    fn error(&self, after: &Means) -> f64 {
        self.before.error.hypot(after.error)
    }

    /// By which part it has become better. `None`: nobody says.
    ///
    /// Who waits for an answer before asking again asks for more when answers come sooner: then both say the same, and that is the gain.
    /// If what is asked for has changed and answers do not come accordingly sooner or later, the load has changed by itself, and only latency
    /// counts, for little: who asks for no more has no more of it. Where there are losses or applications starve, throughput is what can be done.
    pub fn gain(&self, after: &Means, config: &Config) -> Option<f64> {
        let (before, now) = (self.before.outcome?, after.outcome?);
        let by = |from: f64, to: f64| if from > 0.0 && to > 0.0 { (to / from).ln().clamp(-3.0, 3.0) } else { 0.0 };
        let done = by(before.throughput, now.throughput);
        let asked = by(self.before.offered, after.offered);
        let sooner = by(now.latency_us, before.latency_us);
        if asked * sooner < 0.0 && !after.is_like(&self.before, config) {
            // Another load takes longer if it is more.
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

    /// Is, or was, there more to do than can be done?
    fn is_limited(&self, after: &Means) -> bool {
        [&self.before, after].iter().any(|means| means.pressed >= 0.5 || means.starved >= 0.5)
    }

    /// The tail is the noisiest, and counts least: only while as much is asked for.
    fn tail_grew(&self, after: &Means, config: &Config) -> bool {
        let (Some(before), Some(now)) = (self.before.outcome, after.outcome) else { return false };
        !self.is_limited(after)
            && before.p99_us > 0.0
            && now.p99_us > before.p99_us * (1.0 + 6.0 * config.tolerance)
            && after.is_like(&self.before, config)
    }

    /// Has the change, so far, made the stack do more? Half as much more as there are more cores is enough.
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

    /// A tick with so many requests, each answered in so many µs, of clients that ask again when they are answered.
    fn tick(throughput: f64, latency_us: f64) -> Observation {
        let outcome = Some(Outcome { throughput, latency_us, p99_us: 0.0 });
        Observation { busy: 1.0, outcome, offered: throughput, ..Observation::default() }
    }

    fn judged(reason: Reason, after: Observation) -> Verdict {
        let before = Means::of(&[tick(10_000.0, 100.0)]).unwrap_or_default();
        let trial =
            Trial { from: 1, reason, before, fair: true, anyway: false, lags: 0.0, after: VecDeque::from([after]) };
        trial.judge(2, &Config::new(4))
    }

    #[test]
    fn who_asks_for_less_because_answers_take_longer_was_harmed_and_who_just_asks_for_less_was_not() {
        assert_eq!(judged(Reason::Busy, tick(5_000.0, 200.0)), Verdict::Revert(Reason::Worse));
        assert_eq!(judged(Reason::Idle, tick(5_000.0, 200.0)), Verdict::Revert(Reason::Worse));
        assert_eq!(judged(Reason::Busy, tick(5_000.0, 95.0)), Verdict::Keep);
        assert_eq!(
            judged(Reason::Busy, tick(20_000.0, 200.0)),
            Verdict::Keep,
            "more is asked for: it may well take longer"
        );
        assert_eq!(judged(Reason::Starved, tick(5_000.0, 200.0)), Verdict::Keep);
        assert_eq!(judged(Reason::Explore, tick(5_000.0, 95.0)), Verdict::Revert(Reason::NoBetter));
    }

    #[test]
    fn who_asks_for_more_because_answers_come_sooner_was_helped_and_who_just_asks_for_more_was_not() {
        assert_eq!(judged(Reason::Explore, tick(13_000.0, 77.0)), Verdict::Keep);
        assert_eq!(judged(Reason::Explore, tick(13_000.0, 100.0)), Verdict::Revert(Reason::NoBetter));
        assert_eq!(judged(Reason::Explore, tick(13_000.0, 0.0)), Verdict::Revert(Reason::NoBetter), "nobody says");
    }
}
