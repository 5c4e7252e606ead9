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
            return match () {
                // Who waits for an answer before asking again asks for less because it was made worse.
                () if self.slowed(&after, config) => Verdict::Revert(Reason::Worse),
                () if self.quickened(&after, config) => Verdict::Keep,
                // Nothing can be said: what was called for stays, what was tried does not.
                () if explored => Verdict::Revert(Reason::NoBetter),
                () => Verdict::Keep,
            };
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

    /// Is less asked for, and takes longer all the same? Load that falls by itself is answered sooner, or as soon.
    pub fn slowed(&self, after: &Means, config: &Config) -> bool {
        let longer = self.latencies(after).is_some_and(|(before, now)| now > before * (1.0 + 2.0 * config.tolerance));
        let less = after.offered < self.before.offered && !after.is_like(&self.before, config);
        less && longer && self.reason != Reason::Starved
    }

    /// Is more asked for, and answered sooner all the same? Clients that wait for answers do that when they come sooner.
    pub fn quickened(&self, after: &Means, config: &Config) -> bool {
        let sooner = self.latencies(after).is_some_and(|(before, now)| now < before * (1.0 - config.tolerance));
        after.offered > self.before.offered && !after.is_like(&self.before, config) && sooner
    }

    /// Average latencies before and after, µs, if both were said.
    fn latencies(&self, after: &Means) -> Option<(f64, f64)> {
        let (before, now) = (self.before.outcome?.latency_us, after.outcome?.latency_us);
        (before > 0.0 && now > 0.0).then_some((before, now))
    }

    /// Has the change, so far, made the stack do more?
    pub fn helps(&self, after: &Means, config: &Config) -> bool {
        match (self.before.outcome, after.outcome) {
            (Some(before), Some(after)) => after.throughput > before.throughput * (1.0 + config.tolerance),
            _ => after.busy > self.before.busy * (1.0 + config.tolerance),
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
        let before = Means::of(&VecDeque::from([tick(10_000.0, 100.0)])).unwrap_or_default();
        let trial = Trial { from: 1, reason, before, after: VecDeque::from([after]) };
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
