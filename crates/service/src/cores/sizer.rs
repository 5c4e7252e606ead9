//! What is known of the stack's size: how many cores it has, since when and why, and what has changed before. Pure: what was seen and the
//! time are arguments, and who asks it does what it says.

use super::host::{Host, Programs};
use super::totals::Totals;
use super::wanted::Cores;
use crate::api::{CoreChange, Seen, Sizing};
use std::collections::VecDeque;
use std::time::Duration;
use towpath_cores::{Config, Decision, Observation, Outcome, Reason, State, step};

/// So many ticks without anything done are quiet.
const QUIET: u32 = 100;
/// Changes that are remembered.
pub const CHANGES: usize = 256;

/// One look at the stack and the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sample {
    /// The stack's counters.
    pub stack: Totals,
    /// The machine's.
    pub host: Host,
}

/// Why the cores are as many as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    /// The configuration says so.
    Configured,
    /// Somebody has said so (`towpath cores set`).
    Said,
    /// The policy.
    Decided(Reason),
    /// There is nobody to serve.
    Unused,
    /// The stack could not do what the policy said.
    Refused,
}

impl Cause {
    fn name(self) -> &'static str {
        match self {
            Self::Configured => "configured",
            Self::Said => "set",
            Self::Decided(reason) => reason.name(),
            Self::Unused => "unused",
            Self::Refused => "refused",
        }
    }
    fn sentence(self) -> &'static str {
        match self {
            Self::Configured => "the configuration says so",
            Self::Said => "set by `towpath cores set`",
            Self::Decided(reason) => reason.sentence(),
            Self::Unused => "no program uses the stack",
            Self::Refused => "the stack could not be given another number",
        }
    }
}

/// See the module.
#[derive(Debug)]
pub struct Sizer {
    config: Config,
    wanted: Cores,
    /// Most that the stack has.
    most: usize,
    /// Somebody has said how many: nothing is decided.
    said: bool,
    state: State,
    ticks: u64,
    cause: Cause,
    /// A change is on trial.
    trying: bool,
    /// Since the service's start, µs.
    since_us: u64,
    before: Option<(Sample, u64)>,
    seen: Observation,
    latency_us: f64,
    /// Ticks in which nothing was done.
    quiet: u32,
    changes: VecDeque<CoreChange>,
}

impl Sizer {
    /// For a stack with so many cores at most, on so many CPUs, that has now as many as `wanted` begins with.
    pub fn new(wanted: Cores, most: usize, cpus: usize) -> Self {
        // A stack elsewhere has as many as it was given there.
        let wanted = if wanted.is_chosen() { wanted } else { Cores::Fixed(most) };
        let config = limits(wanted, most, cpus);
        let begin = if wanted.is_chosen() { config.min } else { most as u32 };
        let state = State::new(begin, &config);
        Self {
            config,
            wanted,
            most,
            said: false,
            state,
            ticks: 0,
            cause: Cause::Configured,
            trying: false,
            since_us: 0,
            before: None,
            seen: Observation::default(),
            latency_us: 0.0,
            quiet: 0,
            changes: VecDeque::new(),
        }
    }

    /// As many as there are to be.
    pub fn cores(&self) -> usize {
        self.state.cores() as usize
    }
    /// Most.
    pub fn most(&self) -> usize {
        self.most
    }
    /// Is there anything to decide?
    pub fn decides(&self) -> bool {
        let refused = self.cause == Cause::Refused;
        let room = self.config.min < self.config.most() || self.state.cores() > self.config.most();
        self.wanted.is_chosen() && !self.said && !refused && room
    }
    /// There is no client. True = nothing will change until there is one: there are as few cores as there can be, and nothing is on trial.
    pub fn rest(&mut self) -> bool {
        let rests = self.may_rest();
        if rests && self.decides() && self.cause != Cause::Configured {
            (self.cause, self.seen) = (Cause::Unused, Observation::default());
        }
        rests
    }

    fn may_rest(&self) -> bool {
        !self.decides() || self.state.cores() == self.config.min && !self.trying
    }
    /// Nobody has done anything for ten seconds: it is enough to look now and then.
    pub fn is_quiet(&self) -> bool {
        self.may_rest() && self.quiet >= QUIET
    }

    /// Are there other CPUs than at the last look? Some were reserved or came back, or the process's group has others now.
    pub fn has_other_cpus(&self, sample: &Sample) -> bool {
        self.before.is_some_and(|(before, _)| before.host.cpus != sample.host.cpus)
    }
    /// There are so many. What programs did on those before says nothing of these.
    pub fn set_cpus(&mut self, cpus: usize) {
        self.config = limits(self.wanted, self.most, cpus);
        self.before = None;
    }

    /// One look, at this time. The number of cores there is to be, if it is another now.
    pub fn tick(&mut self, sample: Sample, now_us: u64) -> Option<usize> {
        let before = self.before.replace((sample, now_us));
        let (before, at) = before?;
        if !self.decides() || now_us <= at {
            return None;
        }
        self.seen = self.observe(&sample, &before, Duration::from_micros(now_us - at));
        self.quiet = if self.seen.offered > 0.0 { 0 } else { self.quiet.saturating_add(1) };
        self.ticks += 1;
        let state = std::mem::replace(&mut self.state, State::new(0, &self.config));
        let (state, decision, reason) = step(&self.config, state, &self.seen);
        self.state = state;
        self.cause = Cause::Decided(reason);
        self.trying = decision != Decision::Hold || matches!(reason, Reason::Settling | Reason::OnTrial);
        let Decision::Change { from, to } = decision else { return None };
        self.note(from as usize, to as usize, now_us);
        Some(to as usize)
    }

    /// The stack could not do what was said: it has so many.
    pub fn refused(&mut self, has: usize) {
        self.state = State::new(has as u32, &self.config);
        (self.cause, self.trying) = (Cause::Refused, false);
        self.changes.pop_back();
    }

    /// So many from now on, whatever happens; `None`: as the configuration says. The number there is to be, or why it cannot be.
    pub fn say(&mut self, cores: Option<usize>, now_us: u64) -> Result<usize, String> {
        let from = self.cores();
        let to = match cores {
            Some(cores) if (1..=self.most).contains(&cores) => cores,
            Some(cores) => return Err(format!("{cores} is outside 1 to {}, the most that `cores` allows", self.most)),
            None if self.wanted.is_chosen() => from.clamp(self.config.min as usize, self.config.most() as usize),
            None => self.most,
        };
        self.said = cores.is_some();
        self.cause = if self.said { Cause::Said } else { Cause::Configured };
        self.state = State::new(to as u32, &self.config);
        (self.before, self.trying) = (None, false);
        if to != from {
            self.note(from, to, now_us);
        }
        Ok(to)
    }

    fn note(&mut self, from: usize, to: usize, now_us: u64) {
        self.since_us = now_us;
        if self.changes.len() == CHANGES {
            self.changes.pop_front();
        }
        self.changes.push_back(CoreChange {
            tick: self.ticks,
            at_us: now_us,
            from,
            to,
            reason: self.cause.name().into(),
            why: self.cause.sentence().into(),
            seen: Seen::from(&self.seen),
        });
    }

    /// What was between two looks.
    fn observe(&mut self, now: &Sample, before: &Sample, elapsed: Duration) -> Observation {
        let stack = now.stack.since(&before.stack, elapsed);
        let busy = thousandths(stack.busy);
        let Programs { busy: app_busy, waiting: app_waiting } = now.host.since(&before.host, elapsed);
        let (app_busy, app_waiting) = (thousandths(app_busy), thousandths(app_waiting));
        if let Some(latency_us) = stack.latency_us {
            self.latency_us = thousandths(latency_us);
        }
        // What is not used achieves nothing: no size is tried for it. A trial that has begun is judged all the same.
        let throughput = stack.throughput.round();
        let outcome = (throughput > 0.0 || self.trying).then_some(Outcome {
            throughput,
            latency_us: self.latency_us,
            p99_us: 0.0,
        });
        let offered = throughput;
        Observation { busy, pressure: stack.pressure, app_busy, app_waiting, outcome, offered }
    }

    /// For `towpath status` (without the changes) and `towpath cores`.
    pub fn sizing(&self, stack: &str, with_changes: bool) -> Sizing {
        let changes = self.changes.iter().filter(|_| with_changes).cloned().collect();
        let said = self.said.then_some(self.cores());
        Sizing {
            stack: stack.into(),
            cores: self.cores(),
            fewest: self.config.min as usize,
            most: self.most,
            configured: self.wanted.to_string(),
            set: said,
            reason: self.cause.name().into(),
            why: self.cause.sentence().into(),
            tick: self.ticks,
            since_us: self.since_us,
            seen: Seen::from(&self.seen),
            changes,
        }
    }
    /// The last change.
    pub fn last_change(&self) -> Option<&CoreChange> {
        self.changes.back()
    }
}

impl From<&Observation> for Seen {
    fn from(observation: &Observation) -> Self {
        let Observation { busy, pressure, app_busy, app_waiting, outcome, .. } = *observation;
        let (throughput, latency_us) = outcome.map(|outcome| (outcome.throughput, outcome.latency_us)).unzip();
        Self { busy, pressure, app_busy, app_waiting, throughput, latency_us }
    }
}

/// As it is shown.
fn thousandths(number: f64) -> f64 {
    (number * 1000.0).round() / 1000.0
}

/// The policy's limits, with ticks of 100 ms, for which its times are made. What the operator has named as the most may be all CPUs; whoever
/// leaves it to the service keeps half of them.
fn limits(wanted: Cores, most: usize, cpus: usize) -> Config {
    let total = cpus.max(1) as u32;
    let fewest = (wanted.fewest() as u32).min(most as u32);
    Config {
        min: fewest,
        max: most as u32,
        app_min: total.saturating_sub(most as u32),
        // A range of the operator's that is more than there are CPUs ends at the CPUs, if it does not begin above them.
        total: total.max(fewest),
        ..Config::new(total)
    }
}

#[cfg(test)]
#[path = "sizer_tests.rs"]
mod tests;
