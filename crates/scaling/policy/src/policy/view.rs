//! A view of the state for people and logs: the observation, the condition of each rule, and the trial. It decides
//! nothing.

use super::{FITS, NOTHING, PolicyState};
use crate::config::Config;
use crate::decision::Reason;
use crate::trial::Means;

/// A number that is compared with a limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Term {
    /// The measured number.
    pub what: Measure,
    /// The present value.
    pub seen: f64,
    /// The limit.
    pub limit: f64,
    /// True if it must be above the limit, false if below.
    pub above: bool,
}

impl Term {
    /// True if it is on the side that the rule asks for.
    pub fn holds(&self) -> bool {
        if self.above { self.seen > self.limit } else { self.seen < self.limit }
    }
}

/// A measured number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// The part of its time for which each core works.
    BusyPerCore,
    /// The work, in cores.
    Busy,
    /// 1 with losses, 0 without.
    Pressure,
    /// The part of their time that applications wait for a CPU.
    Waiting,
    /// The part of the applications' CPUs that is in use.
    ApplicationBusy,
    /// Ticks without a change or a trial.
    Calm,
}

impl Measure {
    /// One word, for logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::BusyPerCore => "busy-per-core",
            Self::Busy => "busy",
            Self::Pressure => "pressure",
            Self::Waiting => "waiting",
            Self::ApplicationBusy => "application-busy",
            Self::Calm => "calm",
        }
    }
}

/// Why a size is forbidden.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// A limit of the configuration.
    Bounds,
    /// The size was worse, and must not be tried before this tick.
    BackOff(u64),
    /// There have been too many changes in the last [`Config::RATE_TICKS`].
    Rate,
    /// Too many changes were for the worse. Nothing is changed before this tick.
    Fuse(u64),
}

/// A rule that can call for a change.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// The reason that it would give.
    pub reason: Reason,
    /// The size that it would lead to, if that is fixed.
    pub to: Option<u32>,
    /// The conditions. All must hold.
    pub terms: Vec<Term>,
    /// Ticks for which they have held.
    pub held: u32,
    /// Ticks for which they must hold.
    pub needed: u32,
    /// Why it is forbidden now, if it is.
    pub barred: Option<Obstacle>,
}

/// A change on trial.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OnTrial {
    /// The size before it.
    pub from: u32,
    /// Why it was made.
    pub reason: Reason,
    /// The means before it.
    pub before: Means,
    /// The means since it, if anything was seen.
    pub after: Option<Means>,
    /// Ticks seen.
    pub seen: u32,
    /// Ticks that it needs.
    pub needed: u32,
}

/// A view of the policy's state.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicyView {
    /// The tick.
    pub tick: u64,
    /// The decided number of cores.
    pub cores: u32,
    /// The rules that can call for a change.
    pub rules: Vec<Rule>,
    /// The last change, if it is on trial.
    pub trial: Option<OnTrial>,
    /// Ticks until the last change has taken effect.
    pub settling: u32,
    /// Sizes that were worse, each with the tick before which it is not tried again.
    pub resting: Vec<(u32, u64)>,
    /// The offered load for which a trial has shown that this size is right. The band is not asked then.
    pub chosen_at: Option<f64>,
    /// Changes in the last [`Config::RATE_TICKS`].
    pub changes: u32,
    /// Those of them that were for the worse.
    pub failures: u32,
}

impl PolicyState {
    /// The view of this state.
    pub fn view(&self, config: &Config) -> PolicyView {
        let trial = self.trial.as_ref().map(|trial| OnTrial {
            from: trial.from,
            reason: trial.reason,
            before: trial.before,
            after: Means::of(&trial.after),
            seen: trial.after.len() as u32,
            needed: config.trial_ticks,
        });
        PolicyView {
            tick: self.tick,
            cores: self.cores,
            rules: self.rules(config),
            trial,
            settling: self.settle,
            resting: self.memory.resting(self.tick).collect(),
            chosen_at: self.chosen_at,
            changes: self.changes.len() as u32,
            failures: self.failures.len() as u32,
        }
    }

    fn barred(&self, config: &Config, to: u32) -> Option<Obstacle> {
        let back_off = self.memory.resting(self.tick).find(|(cores, _)| *cores == to);
        if self.tick < self.rest_until {
            return Some(Obstacle::Fuse(self.rest_until));
        }
        if !config.allows(to) {
            return Some(Obstacle::Bounds);
        }
        back_off
            .map(|(_, until)| Obstacle::BackOff(until))
            .or_else(|| (!self.may_have(config, to)).then_some(Obstacle::Rate))
    }

    fn rules(&self, config: &Config) -> Vec<Rule> {
        let (cores, seen) = (f64::from(self.cores), self.recent.back().copied().unwrap_or_default());
        let term = |what, seen, limit, above| Term { what, seen, limit, above };
        let rule = |reason, to: Option<u32>, terms, held, needed| {
            let barred = to.and_then(|to| self.barred(config, to));
            Rule { reason, to, terms, held, needed, barred }
        };
        let (more, fewer) = (self.one_more(config), self.cores.checked_sub(1));
        let mut rules = Vec::new();
        if self.cores > 0 {
            let busy = vec![term(Measure::BusyPerCore, seen.busy / cores, config.high, true)];
            rules.push(rule(Reason::Busy, Some(more), busy, self.up, config.up_ticks));
        }
        let pressed = vec![term(Measure::Pressure, f64::from(u8::from(seen.pressure)), 0.5, true)];
        rules.push(rule(Reason::Pressure, Some(more), pressed, self.pressed, config.pressure_ticks));
        if self.cores > config.min {
            let few = (config.high * (cores - 1.0) - config.gap).max(NOTHING);
            let busy = self.busy.unwrap_or(0.0).max(seen.busy);
            let idle = vec![term(Measure::Busy, busy, few, false)];
            rules.push(rule(Reason::Idle, fewer, idle, self.down, config.down_ticks));
            let app_cpus = f64::from(config.total.saturating_sub(self.cores)).max(1.0);
            let mut starved = vec![
                term(Measure::Waiting, seen.app_waiting, config.waiting, true),
                term(Measure::ApplicationBusy, seen.app_busy / app_cpus, config.app_high, true),
            ];
            if self.cores > 1 {
                starved.push(term(Measure::Busy, self.busy.unwrap_or(0.0), FITS * (cores - 1.0), false));
            }
            rules.push(rule(Reason::Starved, fewer, starved, self.starved, config.up_ticks));
        }
        if seen.outcome.is_some() {
            let calm = vec![term(Measure::Calm, self.calm as f64, self.explore_after as f64, true)];
            let (held, needed) = (self.calm.min(u32::MAX.into()), self.explore_after.min(u32::MAX.into()));
            rules.push(rule(Reason::Explore, None, calm, held as u32, needed as u32));
        }
        rules
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{Decision, Observation, Outcome, step};

    fn run(config: &Config, mut state: PolicyState, seen: &Observation, ticks: u32) -> (PolicyState, Decision, Reason) {
        let mut last = (Decision::Hold, Reason::Steady);
        for _ in 0..ticks {
            let (after, decision, reason) = step(config, state, seen);
            (state, last) = (after, (decision, reason));
        }
        (state, last.0, last.1)
    }
    fn find(view: &PolicyView, reason: Reason) -> Rule {
        view.rules.iter().find(|rule| rule.reason == reason).unwrap().clone()
    }

    #[test]
    fn a_rule_that_has_held_for_one_tick_less_than_it_must_is_the_next_decision() {
        let config = Config::new(8);
        let busy = Observation { busy: 1.8, app_busy: 1.0, offered: 1e5, ..Observation::default() };
        let (state, decision, _) = run(&config, PolicyState::new(2, &config), &busy, config.up_ticks - 1);
        assert_eq!(decision, Decision::Hold);
        let rule = find(&state.view(&config), Reason::Busy);
        assert_eq!((rule.held, rule.needed, rule.to, rule.barred), (2, 3, Some(3), None));
        assert!(rule.terms[0].holds() && (rule.terms[0].seen - 0.9).abs() < 1e-9, "{rule:?}");
        assert_eq!(run(&config, state, &busy, 1).1, Decision::Change { from: 2, to: 3 });
    }

    #[test]
    fn a_trial_shows_what_was_before_and_what_is() {
        let config = Config::new(8);
        let outcome = |throughput| Some(Outcome { throughput, latency_us: 80.0, p99_us: 0.0 });
        let busy = Observation { busy: 1.8, outcome: outcome(100.0), offered: 1e5, ..Observation::default() };
        let (state, ..) = run(&config, PolicyState::new(2, &config), &busy, config.up_ticks);
        let settling = state.view(&config);
        assert_eq!((settling.settling, settling.trial.unwrap().after), (config.settle_ticks, None));
        let after = Observation { outcome: outcome(50.0), ..busy };
        let (state, _, reason) = run(&config, state, &after, config.settle_ticks + 3);
        let trial = state.view(&config).trial.unwrap();
        assert_eq!((reason, trial.from, trial.reason, trial.seen), (Reason::OnTrial, 2, Reason::Busy, 3));
        assert_eq!(trial.before.outcome.unwrap().throughput, 100.0);
        assert_eq!(trial.after.unwrap().outcome.unwrap().throughput, 50.0);
        // It turns out worse: that size rests, and the rule says until when.
        let (state, decision, reason) = run(&config, state, &after, config.trial_ticks - 3);
        assert_eq!((decision, reason), (Decision::Change { from: 3, to: 2 }, Reason::Worse));
        let view = state.view(&config);
        let until = view.tick + config.backoff_ticks;
        assert_eq!((view.resting.as_slice(), view.failures, view.trial), ([(3, until)].as_slice(), 1, None));
        assert_eq!(find(&view, Reason::Busy).barred, Some(Obstacle::BackOff(until)));
    }

    #[test]
    fn what_cannot_be_says_why() {
        let config = Config::new(4);
        let view = PolicyState::new(2, &config).view(&config);
        assert_eq!(find(&view, Reason::Busy).barred, Some(Obstacle::Bounds), "two of four is the most");
        let none = PolicyState::new(0, &config).view(&config);
        assert!(none.rules.iter().all(|rule| rule.reason == Reason::Pressure), "without a core only losses: {none:?}");
    }
}
