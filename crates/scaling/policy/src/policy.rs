//! The policy: an observation and the state make a decision and its reason.
//!
//! Three things call for a change.
//!
//! - The *band*: cores are busier than `high`, or so idle that fewer would do. There is a gap between the two.
//! - *Pressure* and *starvation*: losses on the stack's side, waiting on the applications'.
//! - *Exploration*: after a calm time a size is tried whose outcome with this load is unknown. No core at all comes
//!   first.
//!
//! The outcome of the applications judges every change. A change that makes it worse is taken back. Once an exploration
//! has shown which size is better, the band is not asked while the load stays. Nor is it asked for a size that was no
//! better. So a misleading reading (softirq time by the kernel's ticks) costs trials, and not cores.

mod search;
mod view;

pub use view::{Measure, Obstacle, OnTrial, PolicyView, Rule, Term};

use crate::config::Config;
use crate::decision::{Decision, Reason};
use crate::memory::{LoadProfile, Memory, Met};
use crate::observation::Observation;
use crate::trial::{LONGER, Means, Trial, TrialResult, differs_by};
use std::collections::VecDeque;

/// Less CPU time than this counts as none, in seconds per second. Then the fewest cores will do.
const NOTHING: f64 = 0.03;
/// A pool gives a core back to starving applications if its work takes less than this part of the remaining cores.
const FITS: f64 = 0.95;
/// Explorations that find nothing wait twice as long each time, at most this many ticks.
const EXPLORE_MOST: u64 = 36_000;
/// The wait doubles only after this many with the same load: some sizes must always be ruled out.
const MISSES: u32 = 6;

/// The state of the policy from tick to tick.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicyState {
    tick: u64,
    cores: u32,
    /// Smoothed: fast upwards, slow downwards.
    busy: Option<f64>,
    up: u32,
    down: u32,
    pressed: u32,
    starved: u32,
    settle: u32,
    /// The last ticks, as many as the longest trial has.
    recent: VecDeque<Observation>,
    trial: Option<Trial>,
    memory: Memory,
    /// The ticks of changes, and of those that turned out bad.
    changes: VecDeque<u64>,
    failures: VecDeque<u64>,
    /// After the fuse has blown, nothing is changed before this tick.
    rest_until: u64,
    /// The next rest. It doubles each time, until a change turns out well.
    rest: u64,
    /// Ticks since the last change or trial.
    calm: u64,
    /// Calm ticks before the next exploration.
    explore_after: u64,
    /// Explorations that found nothing with this load.
    misses: u32,
    /// 1 if the last observations do not look like the known load.
    strange: u32,
    /// An exploration has found this size better than no core, with which applications starved as well.
    starved_anyway: bool,
    /// The offered load when a trial showed that this size is the right one.
    chosen_at: Option<f64>,
}

impl PolicyState {
    /// A state with this many cores and an empty memory.
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
            misses: 0,
            strange: 0,
            starved_anyway: false,
            chosen_at: None,
        }
    }

    /// The decided number of cores.
    pub fn cores(&self) -> u32 {
        self.cores
    }
    /// Ticks so far.
    pub fn tick(&self) -> u64 {
        self.tick
    }

    /// Adds an observation.
    fn see(&mut self, config: &Config, seen: &Observation) {
        let before = self.busy.unwrap_or(seen.busy);
        let weight = if seen.busy > before { 0.5 } else { 0.125 };
        self.busy = Some(before + weight * (seen.busy - before));
        self.recent.push_back(*seen);
        while self.recent.len() > LONGER * config.trial_ticks as usize {
            self.recent.pop_front();
        }
        let cores = f64::from(self.cores);
        let app_cpus = f64::from(config.total.saturating_sub(self.cores));
        let count = |counter: &mut u32, held: bool| *counter = if held { counter.saturating_add(1) } else { 0 };
        // Upwards the raw samples count: the mean would remember a single spike for several ticks.
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

    /// Means of the last ticks, as many as a trial has. `longer`: of all since the last change, if there are enough.
    fn lately(&self, config: &Config, longer: bool) -> Means {
        let ticks = config.trial_ticks as usize;
        let ticks = if longer { ticks.max(usize::try_from(self.calm).unwrap_or(usize::MAX)) } else { ticks };
        let means = Means::of(self.recent.iter().skip(self.recent.len().saturating_sub(ticks)));
        Means { starved: f64::from(u8::from(self.is_starved(config))), ..means.unwrap_or_default() }
    }

    /// True if the offered load was about the same in all of the last ticks.
    fn was_steady(&self, config: &Config) -> bool {
        let half = (config.trial_ticks as usize).min(self.recent.len()) / 2;
        let mean = |skip: usize| self.recent.iter().rev().skip(skip).take(half).map(|seen| seen.offered).sum::<f64>();
        half > 0 && differs_by(mean(0), mean(half)) <= config.alike
    }

    /// The mean offered load of the last ticks.
    fn offered(&self, config: &Config) -> f64 {
        let ticks = (config.trial_ticks as usize).min(self.recent.len());
        self.recent.iter().rev().take(ticks).map(|seen| seen.offered).sum::<f64>() / ticks.max(1) as f64
    }

    fn is_pressed(&self, config: &Config) -> bool {
        self.pressed >= config.pressure_ticks
    }
    fn is_starved(&self, config: &Config) -> bool {
        self.starved >= config.up_ticks
    }
    /// True if this size may be taken now.
    fn may_have(&self, config: &Config, cores: u32) -> bool {
        // One change is kept in reserve, to take this one back.
        let room = self.changes.len() as u32 + 1 < config.most_changes;
        room && config.allows(cores) && self.memory.allows(cores, self.tick)
    }

    fn change(&mut self, config: &Config, to: u32) -> Decision {
        let from = std::mem::replace(&mut self.cores, to);
        self.changes.push_back(self.tick);
        self.settle = config.settle_ticks;
        self.recent.clear();
        (self.up, self.down, self.pressed, self.starved, self.calm) = (0, 0, 0, 0, 0);
        self.trial = None;
        self.chosen_at = None;
        self.starved_anyway = false;
        Decision::Change { from, to }
    }
    /// Makes a change and puts it on trial.
    fn attempt(&mut self, config: &Config, to: u32, reason: Reason) -> (Decision, Reason) {
        let from = self.cores;
        let before = self.lately(config, reason == Reason::Explore);
        let fair = reason == Reason::Explore || self.was_steady(config);
        if fair {
            let ticks = if reason == Reason::Explore { self.recent.len() } else { config.trial_ticks as usize };
            self.meet(config, &self.usual(ticks));
        }
        let lags = self.memory.lags(from);
        let anyway = self.starved_anyway;
        let decision = self.change(config, to);
        self.trial = Some(Trial { from, reason, before, fair, anyway, lags, after: VecDeque::new() });
        (decision, reason)
    }
    /// Goes back to the size before a trial.
    fn back(&mut self, config: &Config, trial: &Trial) -> Decision {
        let decision = self.change(config, trial.from);
        self.starved_anyway = trial.anyway;
        decision
    }
    /// Makes the change that was called for, if it is allowed.
    fn called_for(&mut self, config: &Config, to: Option<u32>, reason: Reason) -> (Decision, Reason) {
        match to.filter(|to| self.may_have(config, *to)) {
            Some(to) => self.attempt(config, to, reason),
            None => (Decision::Hold, Reason::Limited),
        }
    }

    /// The next larger size. From 0 it is as many cores as the work takes.
    fn one_more(&self, config: &Config) -> u32 {
        if self.cores > 0 {
            return self.cores + 1;
        }
        let wanted = (self.busy.unwrap_or(0.0) / config.high).ceil().max(1.0);
        (wanted as u32).clamp(config.min.max(1), config.most().max(1))
    }

    /// Makes the observed load the present one. If it is new, sizes are tried anew.
    fn meet(&mut self, config: &Config, now: &LoadProfile) {
        self.strange = 0;
        match self.memory.meet(self.cores, now, config) {
            Met::Same => return,
            Met::Again => {}
            Met::New => self.misses = 0,
        }
        self.explore_after = config.explore_ticks;
    }

    /// The profile of the last ticks.
    fn usual(&self, ticks: usize) -> LoadProfile {
        LoadProfile::of(self.recent.iter().skip(self.recent.len().saturating_sub(ticks)))
    }

    /// Checks whether the load is still the known one.
    fn recognise(&mut self, config: &Config) {
        let ticks = 2 * config.trial_ticks as usize;
        if self.calm == 0 || !self.calm.is_multiple_of(ticks as u64) || self.recent.len() < ticks {
            return;
        }
        let now = self.usual(ticks);
        if self.memory.value(self.cores).is_none() {
            self.meet(config, &now);
        } else if self.memory.is_present(self.cores, &now, config) {
            self.strange = 0;
        } else if self.strange == 0 {
            // One window may be noise, or cover two loads.
            self.strange = 1;
        } else {
            self.meet(config, &now);
            self.forget_choice();
            self.calm = ticks as u64;
        }
    }

    /// The band is asked again, with its counters at zero.
    fn forget_choice(&mut self) {
        if self.chosen_at.take().is_some() {
            (self.up, self.down) = (0, 0);
        }
        self.starved_anyway = false;
    }

    /// Learns from a trial, also from one that ends early.
    fn learn(&mut self, config: &Config, trial: &Trial) -> Means {
        let starved = f64::from(u8::from(self.is_starved(config)));
        let after = Means { starved, ..Means::of(&trial.after).unwrap_or_default() };
        let fair = trial.fair && !trial.met_another_load(&after, config);
        if let Some(gain) = trial.gain(&after, config).filter(|_| fair) {
            self.memory.learn((trial.from, self.cores), gain, LoadProfile::of(trial.after.iter()));
        }
        after
    }

    fn missed(&mut self) {
        self.misses = self.misses.saturating_add(1);
        if self.misses > MISSES {
            self.explore_after = self.explore_after.saturating_mul(2).min(EXPLORE_MOST);
        }
    }

    fn judge(&mut self, config: &Config, trial: &Trial) -> Option<(Decision, Reason)> {
        let after = self.learn(config, trial);
        let explored = trial.reason == Reason::Explore;
        let mut result = trial.judge(self.cores, config);
        let lost = trial.gain(&after, config).is_some_and(|gain| trial.fair && gain < -config.fine());
        if trial.reason == Reason::Starved && self.cores == 0 && lost {
            result = TrialResult::Revert(Reason::NoCure);
        }
        if result == TrialResult::Revert(Reason::NoBetter) {
            self.memory.no_better(trial.from, self.cores);
        }
        let TrialResult::Revert(reason) = result else {
            if explored {
                self.explore_after = config.explore_ticks;
            }
            self.chosen_at = explored.then_some(after.offered);
            self.starved_anyway = explored && trial.from == 0;
            self.rest = config.backoff_most_ticks;
            return None;
        };
        if explored {
            self.missed();
        }
        self.memory.ban(self.cores, self.tick, config);
        // Explorations often fail. Only changes that were called for count towards the fuse.
        if !(explored || trial.reason == Reason::Starved) || reason == Reason::FeedbackLost {
            self.failures.push_back(self.tick);
        }
        if self.failures.len() as u32 >= config.fuse {
            self.failures.clear();
            self.rest_until = self.tick.saturating_add(self.rest);
            self.rest = self.rest.saturating_mul(2);
            return Some((self.change(config, config.min), Reason::Fused));
        }
        let decision = self.back(config, trial);
        if reason == Reason::NoCure && trial.reason == Reason::Starved {
            self.memory.pardon(self.cores);
            self.starved_anyway = true;
        }
        let judged = matches!(reason, Reason::Worse | Reason::NoBetter);
        self.chosen_at = judged.then_some(trial.before.offered);
        Some((decision, reason))
    }

    /// Goes on with a trial. `None`: it is over, or something more urgent has come.
    fn try_on(&mut self, config: &Config, seen: &Observation) -> Option<(Decision, Reason)> {
        let mut trial = self.trial.take()?;
        trial.after.push_back(*seen);
        if trial.is_over(self.cores, config) {
            return self.judge(config, &trial);
        }
        let explored = trial.reason == Reason::Explore;
        // Compared with no core, the outcome decides and waiting does not.
        let compared = explored && (trial.from == 0 || self.cores < trial.from);
        if self.is_starved(config) && !compared && !(trial.reason == Reason::Starved && self.cores == 0) {
            self.learn(config, &trial);
            if !explored {
                return None;
            }
            self.memory.starves(self.cores);
            self.memory.ban(self.cores, self.tick, config);
            self.missed();
            return Some((self.back(config, &trial), Reason::Starved));
        }
        if self.is_pressed(config) {
            if self.cores < trial.from {
                // Pressure so soon after a core was taken is judgement enough.
                self.memory.learn((trial.from, self.cores), -1.0, LoadProfile::of(trial.after.iter()));
                self.memory.ban(self.cores, self.tick, config);
                if explored {
                    self.missed();
                }
                if trial.reason == Reason::Starved {
                    self.memory.pardon(trial.from);
                }
                return Some((self.back(config, &trial), Reason::Pressure));
            }
            let after = Means::of(&trial.after).unwrap_or_default();
            if !explored && trial.helps(&after, config) {
                self.learn(config, &trial);
                return None;
            }
        }
        self.trial = Some(trial);
        Some((Decision::Hold, Reason::OnTrial))
    }

    /// True if a trial with this load has shown that this size is no better.
    fn is_known_worse(&self, config: &Config, cores: Option<u32>) -> bool {
        let Some(cores) = cores.filter(|cores| self.memory.value(*cores).is_some()) else { return false };
        let gained = self.memory.value(cores) > self.memory.value(self.cores).map(|value| value + config.fine());
        !self.memory.is_good(cores, config) || (cores > self.cores && !gained)
    }

    /// The answer of the band, pressure and starvation.
    fn wanted(&mut self, config: &Config) -> Option<(Decision, Reason)> {
        let busy = self.busy.unwrap_or(0.0);
        let more = Some(self.one_more(config));
        if self.is_starved(config) {
            let left = f64::from(self.cores.saturating_sub(1));
            // Without a core of its own the stack runs wherever there is time.
            let fits = self.cores == 1 || busy < FITS * left;
            if self.cores == config.min || !fits || self.starved_anyway {
                return Some((Decision::Hold, Reason::Saturated));
            }
            let (too_many, fewer) = (self.cores, self.cores - 1);
            let answer = self.called_for(config, Some(fewer), Reason::Starved);
            if answer.0 != Decision::Hold {
                self.memory.starves(too_many);
                self.memory.ban(too_many, self.tick, config);
            }
            return Some(answer);
        }
        if self.is_pressed(config) {
            if self.is_known_worse(config, more) {
                return Some((Decision::Hold, Reason::Limited));
            }
            return Some(self.called_for(config, more, Reason::Pressure));
        }
        let offered = self.offered(config);
        if self.chosen_at.is_some_and(|then| differs_by(then, offered) <= 2.0 * config.alike) {
            return None;
        }
        self.forget_choice();
        let fewer = self.cores.checked_sub(1);
        if self.up >= config.up_ticks && !self.is_known_worse(config, more) {
            return Some(self.called_for(config, more, Reason::Busy));
        }
        if self.down >= config.down_ticks && !self.is_known_worse(config, fewer) {
            return Some(self.called_for(config, fewer, Reason::Idle));
        }
        None
    }
}

/// One tick. It is pure: the same arguments give the same answer.
pub fn step(config: &Config, mut state: PolicyState, seen: &Observation) -> (PolicyState, Decision, Reason) {
    let (decision, reason) = state.advance(config, seen);
    (state, decision, reason)
}

impl PolicyState {
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
        if self.trial.is_none() {
            self.recognise(config);
        }
        if self.trial.is_some() {
            self.calm = 0;
            if let Some(answer) = self.try_on(config, seen) {
                return answer;
            }
        }
        if self.tick < self.rest_until {
            return (Decision::Hold, Reason::Fused);
        }
        let wanted = self.wanted(config);
        if wanted.is_some_and(|(decision, _)| decision != Decision::Hold) {
            return wanted.unwrap_or((Decision::Hold, Reason::Steady));
        }
        // Explore also if a change was called for and is not possible. But do not grow while applications starve.
        let starved = self.cores > 0 && matches!(wanted, Some((_, Reason::Saturated))) && !self.starved_anyway;
        self.explore(config, !starved).or(wanted).unwrap_or((Decision::Hold, Reason::Steady))
    }
}
