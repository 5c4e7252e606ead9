//! Every change is on trial: what comes after it is compared with what was before it.

use crate::config::Config;
use crate::decision::Reason;
use crate::observation::{Observation, Outcome};
use std::collections::VecDeque;

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
}

impl Means {
    /// Of these; `None` of none.
    pub fn of(seen: &VecDeque<Observation>) -> Option<Self> {
        if seen.is_empty() {
            return None;
        }
        let count = seen.len() as f64;
        let mean = |value: &dyn Fn(&Observation) -> f64| seen.iter().map(value).sum::<f64>() / count;
        let told = seen.iter().all(|o| o.outcome.is_some());
        let outcome = told.then(|| {
            let part = |value: &dyn Fn(Outcome) -> f64| mean(&|o| o.outcome.map_or(0.0, value));
            Outcome {
                throughput: part(&|o| o.throughput),
                latency_us: part(&|o| o.latency_us),
                p99_us: part(&|o| o.p99_us),
            }
        });
        Some(Self {
            busy: mean(&|o| o.busy),
            offered: mean(&|o| o.offered),
            outcome,
            pressed: mean(&|o| f64::from(u8::from(o.pressure))),
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

/// Is `after` worse than `before`? The tail is the noisiest, and counts least.
pub fn is_worse(before: &Outcome, after: &Outcome, config: &Config) -> bool {
    let rose = |before: f64, after: f64, by: f64| before > 0.0 && after > before * (1.0 + by);
    after.throughput < before.throughput * (1.0 - config.tolerance)
        || rose(before.latency_us, after.latency_us, 2.0 * config.tolerance)
        || rose(before.p99_us, after.p99_us, 6.0 * config.tolerance)
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
        let explored = self.reason == Reason::Explore;
        if self.before.outcome.is_some() && after.outcome.is_none() {
            return Verdict::Revert(Reason::FeedbackLost);
        }
        if self.reason == Reason::Pressure && after.pressed >= 0.5 && !self.helps(&after, config) {
            return Verdict::Revert(Reason::NoCure);
        }
        if !after.is_like(&self.before, config) {
            // Nothing can be said: what was called for stays, what was tried does not.
            return if explored { Verdict::Revert(Reason::NoBetter) } else { Verdict::Keep };
        }
        let (Some(before), Some(after)) = (self.before.outcome, after.outcome) else { return Verdict::Keep };
        if is_worse(&before, &after, config) && self.reason != Reason::Starved {
            return Verdict::Revert(Reason::Worse);
        }
        // A core more has to be worth its place; a core less only has to do no harm.
        if explored && to > self.from && !is_worse(&after, &before, config) {
            return Verdict::Revert(Reason::NoBetter);
        }
        Verdict::Keep
    }

    /// Has the change, so far, made the stack do more?
    pub fn helps(&self, after: &Means, config: &Config) -> bool {
        match (self.before.outcome, after.outcome) {
            (Some(before), Some(after)) => after.throughput > before.throughput * (1.0 + config.tolerance),
            _ => after.busy > self.before.busy * (1.0 + config.tolerance),
        }
    }
}
