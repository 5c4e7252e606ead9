//! Chooses the number of threads that the stack runs, and remembers why. It is pure: observations and time are
//! arguments, and the caller carries out the decision.

use super::host_cpu::{HostCpu, ProgramsCpu};
use super::stack_totals::StackTotals;
use crate::api::{Seen, Sizing, WorkerChange};
use crate::config::CoresSetting;
use std::collections::VecDeque;
use std::time::Duration;
use towpath_scaling::{Config, Decision, Observation, Outcome, PolicyState, Reason, step};

/// Ticks without traffic after which the stack counts as quiet.
const QUIET_TICKS: u32 = 100;
/// Most changes that are remembered.
pub const CHANGES: usize = 256;

/// One observation of the stack and the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sample {
    /// The stack's counters.
    pub stack: StackTotals,
    /// The machine's CPU usage.
    pub host: HostCpu,
}

/// The reason of the present number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    /// The configuration gives it.
    Configured,
    /// An operator has fixed it (`towpath cores set`).
    Fixed,
    /// The scaling policy has decided it.
    Decided(Reason),
    /// There is no client.
    Unused,
    /// The stack could not carry out the last decision.
    Refused,
}

impl Cause {
    fn name(self) -> &'static str {
        match self {
            Self::Configured => "configured",
            Self::Fixed => "set",
            Self::Decided(reason) => reason.name(),
            Self::Unused => "unused",
            Self::Refused => "refused",
        }
    }
    fn sentence(self) -> &'static str {
        match self {
            Self::Configured => "the configuration says so",
            Self::Fixed => "set by `towpath cores set`",
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
    wanted: CoresSetting,
    /// Most threads that the stack can run.
    most: usize,
    /// An operator has fixed the number, so nothing is decided.
    fixed: bool,
    state: PolicyState,
    ticks: u64,
    cause: Cause,
    /// A change is on trial.
    trying: bool,
    /// When the number last changed, since the service's start, µs.
    since_us: u64,
    before: Option<(Sample, u64)>,
    seen: Observation,
    latency_us: f64,
    /// Ticks without traffic.
    quiet: u32,
    changes: VecDeque<WorkerChange>,
}

impl Sizer {
    /// For a stack that can run `most` threads on `cpus` CPUs, and now runs as many as `wanted` begins with.
    pub fn new(wanted: CoresSetting, most: usize, cpus: usize) -> Self {
        // The threads of a remote stack are configured there.
        let wanted = if wanted.is_chosen() { wanted } else { CoresSetting::Fixed(most) };
        let config = limits(wanted, most, cpus);
        let begin = if wanted.is_chosen() { config.min } else { most as u32 };
        let state = PolicyState::new(begin, &config);
        Self {
            config,
            wanted,
            most,
            fixed: false,
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

    /// The number of workers.
    pub fn workers(&self) -> usize {
        self.state.cores() as usize
    }
    /// The most.
    pub fn most(&self) -> usize {
        self.most
    }
    /// Is there anything to decide?
    pub fn decides(&self) -> bool {
        let refused = self.cause == Cause::Refused;
        let room = self.config.min < self.config.most() || self.state.cores() > self.config.most();
        self.wanted.is_chosen() && !self.fixed && !refused && room
    }
    /// There is no client. True if nothing will change until there is one: the number is the least, and nothing is on
    /// trial.
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
    /// No client has done anything for ten seconds, so observations may be rare.
    pub fn is_quiet(&self) -> bool {
        self.may_rest() && self.quiet >= QUIET_TICKS
    }

    /// Has the number of usable CPUs changed since the last observation? CPUs can be reserved, and a cpuset can change.
    pub fn has_other_cpus(&self, sample: &Sample) -> bool {
        self.before.is_some_and(|(before, _)| before.host.cpus != sample.host.cpus)
    }
    /// Sets the number of usable CPUs. Earlier observations say nothing about it and are dropped.
    pub fn set_cpus(&mut self, cpus: usize) {
        self.config = limits(self.wanted, self.most, cpus);
        self.before = None;
    }

    /// Takes one observation. Returns the new number if it changes.
    pub fn tick(&mut self, sample: Sample, now_us: u64) -> Option<usize> {
        let before = self.before.replace((sample, now_us));
        let (before, at) = before?;
        if !self.decides() || now_us <= at {
            return None;
        }
        self.seen = self.observe(&sample, &before, Duration::from_micros(now_us - at));
        self.quiet = if self.seen.offered > 0.0 { 0 } else { self.quiet.saturating_add(1) };
        self.ticks += 1;
        let state = std::mem::replace(&mut self.state, PolicyState::new(0, &self.config));
        let (state, decision, reason) = step(&self.config, state, &self.seen);
        self.state = state;
        self.cause = Cause::Decided(reason);
        self.trying = decision != Decision::Hold || matches!(reason, Reason::Settling | Reason::OnTrial);
        let Decision::Change { from, to } = decision else { return None };
        self.remember(from as usize, to as usize, now_us);
        Some(to as usize)
    }

    /// The stack could not carry out the decision; it runs `has` threads.
    pub fn refused(&mut self, has: usize) {
        self.state = PolicyState::new(has as u32, &self.config);
        (self.cause, self.trying) = (Cause::Refused, false);
        self.changes.pop_back();
    }

    /// Fixes the number. `None`: the configuration decides again. Returns the new number, or why it is refused.
    pub fn fix(&mut self, workers: Option<usize>, now_us: u64) -> Result<usize, String> {
        let from = self.workers();
        let to = match workers {
            Some(workers) if (1..=self.most).contains(&workers) => workers,
            Some(workers) => {
                return Err(format!("{workers} is outside 1 to {}, the most that `cores` allows", self.most));
            }
            None if self.wanted.is_chosen() => from.clamp(self.config.min as usize, self.config.most() as usize),
            None => self.most,
        };
        self.fixed = workers.is_some();
        self.cause = if self.fixed { Cause::Fixed } else { Cause::Configured };
        self.state = PolicyState::new(to as u32, &self.config);
        (self.before, self.trying) = (None, false);
        if to != from {
            self.remember(from, to, now_us);
        }
        Ok(to)
    }

    fn remember(&mut self, from: usize, to: usize, now_us: u64) {
        self.since_us = now_us;
        if self.changes.len() == CHANGES {
            self.changes.pop_front();
        }
        self.changes.push_back(WorkerChange {
            tick: self.ticks,
            at_us: now_us,
            from,
            to,
            reason: self.cause.name().into(),
            why: self.cause.sentence().into(),
            seen: Seen::from(&self.seen),
        });
    }

    /// The rates between two observations.
    fn observe(&mut self, now: &Sample, before: &Sample, elapsed: Duration) -> Observation {
        let stack = now.stack.since(&before.stack, elapsed);
        let busy = thousandths(stack.busy);
        let ProgramsCpu { busy: app_busy, waiting: app_waiting } = now.host.since(&before.host, elapsed);
        let (app_busy, app_waiting) = (thousandths(app_busy), thousandths(app_waiting));
        if let Some(latency_us) = stack.latency_us {
            self.latency_us = thousandths(latency_us);
        }
        // Without traffic there is nothing to judge, so no trial begins. A running trial is judged all the same.
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
        let set = self.fixed.then_some(self.workers());
        Sizing {
            stack: stack.into(),
            workers: self.workers(),
            fewest: self.config.min as usize,
            most: self.most,
            configured: self.wanted.to_string(),
            set,
            reason: self.cause.name().into(),
            why: self.cause.sentence().into(),
            tick: self.ticks,
            since_us: self.since_us,
            seen: Seen::from(&self.seen),
            changes,
        }
    }
    /// The last change.
    pub fn last_change(&self) -> Option<&WorkerChange> {
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

/// Rounds a number as it is shown.
fn thousandths(number: f64) -> f64 {
    (number * 1000.0).round() / 1000.0
}

/// The scaling policy's limits, for ticks of 100 ms. An operator's range may take all CPUs; `auto` leaves half of them.
fn limits(wanted: CoresSetting, most: usize, cpus: usize) -> Config {
    let total = cpus.max(1) as u32;
    let fewest = (wanted.fewest() as u32).min(most as u32);
    Config {
        min: fewest,
        max: most as u32,
        app_min: total.saturating_sub(most as u32),
        // A range that ends above the number of CPUs is cut there, unless it begins above it.
        total: total.max(fewest),
        ..Config::new(total)
    }
}

#[cfg(test)]
#[path = "sizer_tests.rs"]
mod tests;
