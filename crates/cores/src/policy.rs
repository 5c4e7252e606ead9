//! The policy: what was seen in one tick, and what there is to be remembered, make a decision and its reason.
//!
//! Three things ask for a change. The *band*: cores that are busier than `high`, or so idle that fewer would do, with a gap between the
//! two. *Pressure* and *starvation*: losses on the stack's side, waiting on the applications'. *Exploration*: after a calm time a size is
//! tried of which it is not known how it does with this load, fewest first. What the applications achieve is the judge of each of them:
//! a change that makes it worse is taken back, and where an exploration has shown what is better, the band is not asked any more while
//! the load is the same. So a reading that misleads (softirq time as the kernel's ticks count it) costs trials, and not cores.

mod view;

pub use view::{Bar, Measure, OnTrial, Rule, Term, View};

use crate::config::Config;
use crate::decision::{Decision, Reason};
use crate::memory::{Known, Memory};
use crate::observation::Observation;
use crate::trial::{Means, Trial, Verdict, differs_by};
use std::collections::VecDeque;

/// Less CPU time than this is none, in seconds per second: then the fewest cores will do.
const NOTHING: f64 = 0.03;
/// A pool whose work takes less than this part of what would be left can give a core back to those who starve.
const FITS: f64 = 0.95;
/// Explorations that find nothing come twice as late each time, at most this late, ticks.
const EXPLORE_MOST: u64 = 36_000;

/// What is remembered from tick to tick.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    tick: u64,
    cores: u32,
    /// Smoothed: fast upwards, slow downwards.
    busy: Option<f64>,
    up: u32,
    down: u32,
    pressed: u32,
    starved: u32,
    settle: u32,
    /// The last ticks, as many as a trial has.
    recent: VecDeque<Observation>,
    trial: Option<Trial>,
    memory: Memory,
    /// When there were changes, and when some of them turned out bad.
    changes: VecDeque<u64>,
    failures: VecDeque<u64>,
    /// After the fuse has blown: nothing before this tick.
    rest_until: u64,
    /// And so long the next time: twice as long each time, until a change turns out well.
    rest: u64,
    /// Ticks since the last change or trial.
    calm: u64,
    /// How long it has to be calm before the next exploration.
    explore_after: u64,
    /// What was offered when a trial showed that this size is the right one.
    chosen_at: Option<f64>,
}

impl State {
    /// With so many cores, and nothing known.
    pub fn new(cores: u32, config: &Config) -> Self {
        Self {
            tick: 0,
            cores,
            busy: None,
            up: 0,
            down: 0,
            pressed: 0,
            starved: 0,
            settle: 0,
            recent: VecDeque::new(),
            trial: None,
            memory: Memory::default(),
            changes: VecDeque::new(),
            failures: VecDeque::new(),
            rest_until: 0,
            rest: config.backoff_most_ticks,
            calm: 0,
            explore_after: config.explore_ticks,
            chosen_at: None,
        }
    }

    /// How many cores there are to be.
    pub fn cores(&self) -> u32 {
        self.cores
    }
    /// Ticks so far.
    pub fn tick(&self) -> u64 {
        self.tick
    }

    /// Takes the observation in.
    fn see(&mut self, config: &Config, seen: &Observation) {
        let before = self.busy.unwrap_or(seen.busy);
        let weight = if seen.busy > before { 0.5 } else { 0.125 };
        self.busy = Some(before + weight * (seen.busy - before));
        self.recent.push_back(*seen);
        while self.recent.len() > config.trial_ticks as usize {
            self.recent.pop_front();
        }
        let cores = f64::from(self.cores);
        let app_cpus = f64::from(config.total.saturating_sub(self.cores));
        let count = |counter: &mut u32, held: bool| *counter = if held { counter.saturating_add(1) } else { 0 };
        // Raw samples upwards: no single spike counts, however the mean has taken it.
        count(&mut self.up, self.cores > 0 && seen.busy > config.high * cores);
        let fewer_would_do = before.max(seen.busy) < config.high * (cores - 1.0) - config.gap || before < NOTHING;
        count(&mut self.down, self.cores > config.min && fewer_would_do);
        count(&mut self.pressed, seen.pressure);
        let all_used = seen.app_busy > config.app_high * app_cpus;
        count(&mut self.starved, seen.app_waiting > config.waiting && all_used);
        for times in [&mut self.changes, &mut self.failures] {
            while times.front().is_some_and(|at| at + Config::RATE_TICKS <= self.tick) {
                times.pop_front();
            }
        }
    }

    fn is_pressed(&self, config: &Config) -> bool {
        self.pressed >= config.pressure_ticks
    }
    fn is_starved(&self, config: &Config) -> bool {
        self.starved >= config.up_ticks
    }
    /// May there be so many now?
    fn may_have(&self, config: &Config, cores: u32) -> bool {
        // One change is kept for taking this one back.
        let room = self.changes.len() as u32 + 1 < config.most_changes;
        room && config.allows(cores) && self.memory.allows(cores, self.tick)
    }

    fn change(&mut self, config: &Config, to: u32) -> Decision {
        let from = std::mem::replace(&mut self.cores, to);
        self.changes.push_back(self.tick);
        self.settle = config.settle_ticks;
        (self.up, self.down, self.pressed, self.starved, self.calm) = (0, 0, 0, 0, 0);
        self.trial = None;
        self.chosen_at = None;
        Decision::Change { from, to }
    }
    /// A change that is on trial from now on.
    fn attempt(&mut self, config: &Config, to: u32, reason: Reason) -> (Decision, Reason) {
        let from = self.cores;
        let mut before = Means::of(&self.recent).unwrap_or_default();
        self.memory.saw(from, before);
        if reason == Reason::Explore && to < from {
            // What is given up bit by bit is measured by what there was at first.
            before.outcome = self.memory.best(before.offered, config).or(before.outcome);
        }
        let decision = self.change(config, to);
        self.trial = Some(Trial { from, reason, before, after: VecDeque::new() });
        (decision, reason)
    }
    /// What was called for, if it may be.
    fn called_for(&mut self, config: &Config, to: Option<u32>, reason: Reason) -> (Decision, Reason) {
        match to.filter(|to| self.may_have(config, *to)) {
            Some(to) => self.attempt(config, to, reason),
            None => (Decision::Hold, Reason::Limited),
        }
    }

    /// Out of none at once so many as the work takes.
    fn one_more(&self, config: &Config) -> u32 {
        if self.cores > 0 {
            return self.cores + 1;
        }
        let wanted = (self.busy.unwrap_or(0.0) / config.high).ceil().max(1.0);
        (wanted as u32).clamp(config.min.max(1), config.most().max(1))
    }

    fn judge(&mut self, config: &Config, trial: &Trial) -> Option<(Decision, Reason)> {
        let after = Means::of(&trial.after).unwrap_or_default();
        self.memory.saw(self.cores, after);
        let explored = trial.reason == Reason::Explore;
        let verdict = trial.judge(self.cores, config);
        if explored {
            let found = verdict == Verdict::Keep;
            self.explore_after =
                if found { config.explore_ticks } else { self.explore_after.saturating_mul(2).min(EXPLORE_MOST) };
        }
        let Verdict::Revert(reason) = verdict else {
            if trial.quickened(&after, config) {
                self.memory.outdone(self.cores, (trial.before.offered, after.offered), config);
            }
            self.chosen_at = explored.then_some(after.offered);
            self.rest = config.backoff_most_ticks;
            return None;
        };
        if trial.slowed(&after, config) {
            // That is what it makes of the load before.
            self.memory.saw(self.cores, Means { offered: trial.before.offered, ..after });
        }
        self.memory.ban(self.cores, self.tick, config);
        // An exploration is expected to fail often; what was called for is not.
        if !explored || reason == Reason::FeedbackLost {
            self.failures.push_back(self.tick);
        }
        if self.failures.len() as u32 >= config.fuse {
            self.failures.clear();
            self.rest_until = self.tick.saturating_add(self.rest);
            self.rest = self.rest.saturating_mul(2);
            return Some((self.change(config, config.min), Reason::Fused));
        }
        let decision = self.change(config, trial.from);
        let judged = matches!(reason, Reason::Worse | Reason::NoBetter);
        self.chosen_at = judged.then_some(trial.before.offered);
        Some((decision, reason))
    }

    /// A trial is under way. `None`: it is over, or something more urgent has come.
    fn try_on(&mut self, config: &Config, seen: &Observation) -> Option<(Decision, Reason)> {
        let mut trial = self.trial.take()?;
        trial.after.push_back(*seen);
        if trial.after.len() >= config.trial_ticks as usize {
            return self.judge(config, &trial);
        }
        if self.is_starved(config) {
            return None;
        }
        if self.is_pressed(config) {
            if self.cores < trial.from {
                // So soon after a core was taken there is no need to wait for the judgement.
                let offered = Means::of(&trial.after).unwrap_or_default().offered;
                self.memory.saw(self.cores, Means { offered, ..Means::default() });
                self.memory.ban(self.cores, self.tick, config);
                if trial.reason == Reason::Explore {
                    self.explore_after = self.explore_after.saturating_mul(2).min(EXPLORE_MOST);
                }
                return Some((self.change(config, trial.from), Reason::Pressure));
            }
            let after = Means::of(&trial.after).unwrap_or_default();
            if trial.helps(&after, config) {
                return None;
            }
        }
        self.trial = Some(trial);
        Some((Decision::Hold, Reason::OnTrial))
    }

    /// What the band, pressure and starvation say.
    fn wanted(&mut self, config: &Config) -> Option<(Decision, Reason)> {
        let busy = self.busy.unwrap_or(0.0);
        let more = Some(self.one_more(config));
        if self.is_starved(config) {
            let left = f64::from(self.cores.saturating_sub(1));
            // Without any core of its own the stack runs wherever there is time.
            let fits = self.cores == 1 || busy < FITS * left;
            if self.cores == config.min || !fits {
                return Some((Decision::Hold, Reason::Saturated));
            }
            let (too_many, fewer) = (self.cores, self.cores - 1);
            let answer = self.called_for(config, Some(fewer), Reason::Starved);
            if answer.0 != Decision::Hold {
                self.memory.ban(too_many, self.tick, config);
            }
            return Some(answer);
        }
        if self.is_pressed(config) {
            return Some(self.called_for(config, more, Reason::Pressure));
        }
        let offered = Means::of(&self.recent).unwrap_or_default().offered;
        if self.chosen_at.is_some_and(|then| differs_by(then, offered) <= 2.0 * config.alike) {
            return None;
        }
        self.chosen_at = None;
        if self.up >= config.up_ticks {
            return Some(self.called_for(config, more, Reason::Busy));
        }
        if self.down >= config.down_ticks {
            return Some(self.called_for(config, self.cores.checked_sub(1), Reason::Idle));
        }
        None
    }

    /// After a calm time: fewer cores that are known to do as well, or a size of which that is not known. None at all first, because a
    /// few can be worse than either none or many.
    fn explore(&mut self, config: &Config) -> Option<(Decision, Reason)> {
        if self.calm < self.explore_after || self.recent.len() < config.trial_ticks as usize {
            return None;
        }
        let now = Means::of(&self.recent)?;
        now.outcome?;
        self.memory.saw(self.cores, now);
        let beside = self.cores.checked_sub(1);
        let worth_it = |to: &u32| match self.memory.knows(*to, now.offered, config) {
            Known::No => *to == config.min || Some(*to) == beside,
            Known::Good => true,
            Known::Worse => false,
        };
        let fewer = (config.min..self.cores).filter(worth_it).find(|to| self.may_have(config, *to));
        let more = Some(self.one_more(config))
            .filter(|to| self.memory.knows(*to, now.offered, config) == Known::No && self.may_have(config, *to));
        let to = fewer.or(more)?;
        Some(self.attempt(config, to, Reason::Explore))
    }
}

/// One tick. Pure: the same arguments give the same answer.
pub fn step(config: &Config, mut state: State, seen: &Observation) -> (State, Decision, Reason) {
    let (decision, reason) = state.advance(config, seen);
    (state, decision, reason)
}

impl State {
    fn advance(&mut self, config: &Config, seen: &Observation) -> (Decision, Reason) {
        self.tick += 1;
        if !seen.is_sound() {
            (self.up, self.down, self.pressed, self.starved) = (0, 0, 0, 0);
            return (Decision::Hold, Reason::Unsound);
        }
        self.see(config, seen);
        if !config.allows(self.cores) && self.changes.len() < config.most_changes as usize {
            let to = self.cores.clamp(config.min, config.most().max(config.min));
            return (self.change(config, to), Reason::Bounds);
        }
        if self.settle > 0 {
            self.settle -= 1;
            return (Decision::Hold, Reason::Settling);
        }
        self.calm += 1;
        if self.trial.is_some() {
            self.calm = 0;
            if let Some(answer) = self.try_on(config, seen) {
                return answer;
            }
        }
        if self.tick < self.rest_until {
            return (Decision::Hold, Reason::Fused);
        }
        let answer = self.wanted(config).or_else(|| self.explore(config));
        answer.unwrap_or((Decision::Hold, Reason::Steady))
    }
}
