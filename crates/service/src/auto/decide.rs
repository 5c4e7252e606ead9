//! Which carrier suits a class of sockets: a pure function of measurements and time.
//!
//! A class begins with a trial, in which its connections use both carriers in turn. When enough has been measured of
//! each, all connections use the better carrier, and the trial is repeated ever more rarely. The stack must gain to be
//! chosen: a class that does as well on the kernel stays there.

use std::fmt;
use towpath_ring::stats::{CarriedBy, ClassStats};

/// How much must be measured, and how much better counts as a gain.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rules {
    /// Least connections of each carrier.
    pub connections: u64,
    /// Least turns (requests and answers) of each carrier ...
    pub turns: u64,
    /// ... or bytes.
    pub bytes: u64,
    /// Bytes per turn from which a class counts as bulk. Bulk is judged by CPU time per byte and goodput, other classes
    /// by CPU time per turn and waiting time.
    pub bulk: u64,
    /// The stack is chosen if it is better by this factor in one respect, and not worse by it in the other.
    pub gain: f64,
    /// The stack is left again if it is not better by this factor. It is less than `gain`; between the two nothing
    /// changes.
    pub keep: f64,
    /// Time from a decision to the next trial, µs. It doubles after each trial that changes nothing.
    pub again_us: u64,
    /// The most that this time becomes, µs.
    pub again_most_us: u64,
    /// A new trial that has not measured enough after this time ends without a result, µs.
    pub trial_most_us: u64,
}

impl Default for Rules {
    fn default() -> Self {
        const MINUTE: u64 = 60_000_000;
        Self {
            connections: 2,
            // One call in 32 is measured, which makes 250 measurements. Single ones scatter by half; their mean by some
            // 3 %.
            turns: 4_000,
            bytes: 32 << 20,
            bulk: 64 << 10,
            gain: 1.10,
            keep: 1.03,
            again_us: 5 * MINUTE,
            again_most_us: 24 * 60 * MINUTE,
            trial_most_us: 10 * MINUTE,
        }
    }
}

/// Cost and performance of one carrier.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Summary {
    /// Connections that were measured.
    pub connections: u64,
    /// Turns.
    pub turns: u64,
    /// Bytes in both directions.
    pub bytes: u64,
    /// Is it bulk traffic?
    pub bulk: bool,
    /// The program's CPU time per turn, or per KiB of bulk, ns.
    pub cpu_ns: Option<f64>,
    /// The median wait for an answer, ns.
    pub wait_ns: Option<f64>,
    /// Bytes per second while data was moving.
    pub goodput: Option<f64>,
}

impl Summary {
    /// Summarises measurements.
    pub fn of(figures: &ClassStats, rules: &Rules) -> Self {
        let (turns, bytes) = (figures.turns, figures.bytes());
        let bulk = bytes / turns.max(1) >= rules.bulk;
        let units = if bulk { bytes as f64 / 1024.0 } else { turns as f64 };
        Self {
            connections: figures.connections,
            turns,
            bytes,
            bulk,
            cpu_ns: figures.all_cpu_ns().filter(|_| units > 0.0).map(|cpu| cpu / units),
            wait_ns: figures.median_wait_ns(),
            goodput: figures.goodput(),
        }
    }

    fn is_enough(&self, rules: &Rules) -> bool {
        let traffic = self.turns >= rules.turns || self.bytes >= rules.bytes;
        self.connections >= rules.connections && traffic && self.cpu_ns.is_some()
    }
}

/// Why a class has its carrier.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reason {
    /// The first trial is running.
    Trial,
    /// The stack gains, by this factor in its better respect.
    Gains(f64),
    /// The stack gains too little. Below 1 it loses, by this factor in its worse respect.
    NoGain(f64),
    /// The stack gains too little to be chosen and enough to stay.
    Between(f64),
    /// The trial saw too little traffic, so nothing changes.
    TooLittle,
    /// Nothing was measured, so nothing changes.
    NoMeasurements,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |factor: &f64| format!("{:+.0} %", 100.0 * (factor - 1.0));
        match self {
            Self::Trial => f.write_str("both ways are being tried"),
            Self::Gains(gain) => write!(f, "the stack gains ({})", percent(gain)),
            Self::NoGain(gain) if *gain < 1.0 => write!(f, "the stack loses ({})", percent(gain)),
            Self::NoGain(gain) => write!(f, "the stack gains too little ({})", percent(gain)),
            Self::Between(gain) => write!(f, "the stack gains little ({}), and stays", percent(gain)),
            Self::TooLittle => f.write_str("too little traffic to try both ways: as before"),
            Self::NoMeasurements => f.write_str("nothing is measured: as before"),
        }
    }
}

/// The phase of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Connections have used both carriers since this time, µs.
    Trial(u64),
    /// All connections use one carrier until this time, µs.
    Settled(u64),
}

/// The state of a class. A new one is on trial.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClassState {
    /// The phase.
    pub phase: Phase,
    /// The carrier that was chosen. `None` before the first decision.
    pub decision: Option<CarriedBy>,
    /// When the decision was last changed, µs.
    pub since_us: u64,
    /// The reason.
    pub reason: Reason,
    /// Time from the next decision to the trial after it, µs.
    pub again_us: u64,
    /// Trials that have ended.
    pub trials: u32,
    /// Each carrier in the last trial that had a result.
    pub seen: [Summary; 2],
}

impl ClassState {
    /// The state of a new class.
    pub fn new(rules: &Rules, now_us: u64) -> Self {
        Self {
            phase: Phase::Trial(now_us),
            decision: None,
            since_us: now_us,
            reason: Reason::Trial,
            again_us: rules.again_us,
            trials: 0,
            seen: [Summary::default(); 2],
        }
    }

    /// The carrier that all connections use. `None`: both, in turn.
    pub fn settled(&self) -> Option<CarriedBy> {
        match self.phase {
            Phase::Settled(_) => self.decision,
            Phase::Trial(_) => None,
        }
    }
}

/// How much better the stack is, as a factor: its greater gain, or its greater loss (below 1) if that exceeds
/// `tolerance`. The median wait does not count for accepted connections, because it includes the time that the peer
/// thinks.
pub fn benefit([stack, kernel]: &[Summary; 2], accepts: bool, tolerance: f64) -> Option<f64> {
    let ratio = |more: Option<f64>, less: Option<f64>| match (more, less) {
        (Some(more), Some(less)) if more > 0.0 && less > 0.0 => Some(more / less),
        _ => None,
    };
    let cpu = ratio(kernel.cpu_ns, stack.cpu_ns)?;
    let bulk = stack.bulk || kernel.bulk;
    let speed = match (bulk, accepts) {
        (true, _) => ratio(stack.goodput, kernel.goodput),
        (false, true) => None,
        (false, false) => ratio(kernel.wait_ns, stack.wait_ns),
    }
    .unwrap_or(1.0);
    let (least, most) = (cpu.min(speed), cpu.max(speed));
    Some(if least < 1.0 / tolerance { least } else { most })
}

/// One step. `seen` is what this trial has measured of each carrier. `None`: nothing measures.
pub fn step(rules: &Rules, state: ClassState, accepts: bool, seen: Option<&[Summary; 2]>, now_us: u64) -> ClassState {
    match state.phase {
        Phase::Settled(until) if now_us < until => state,
        Phase::Settled(_) => ClassState { phase: Phase::Trial(now_us), ..state },
        Phase::Trial(since) => {
            let over = now_us.saturating_sub(since) >= rules.trial_most_us;
            match seen {
                Some(seen) if seen.iter().all(|carrier| carrier.is_enough(rules)) => {
                    judge(rules, state, accepts, seen, now_us)
                }
                Some(_) if over && state.decision.is_some() => settle(rules, state, None, Reason::TooLittle, now_us),
                None if over => settle(rules, state, None, Reason::NoMeasurements, now_us),
                _ => state,
            }
        }
    }
}

/// Judges a new run of a listener. A port uses one carrier as a whole, and no server is started for a trial. So the
/// newest run on the chosen carrier is compared with the last trial of the other carrier.
pub fn rerun(rules: &Rules, state: ClassState, seen: Summary, now_us: u64) -> ClassState {
    let Some(carrier) = state.settled().filter(|_| seen.is_enough(rules)) else { return state };
    let mut both = state.seen;
    both[carrier as usize] = seen;
    judge(rules, state, true, &both, now_us)
}

/// Decides after a trial that has measured enough.
fn judge(rules: &Rules, state: ClassState, accepts: bool, seen: &[Summary; 2], now_us: u64) -> ClassState {
    let state = ClassState { seen: *seen, ..state };
    let on_stack = state.decision == Some(CarriedBy::Stack);
    // A class on the stack tolerates a greater loss than one that would come to it, so that it does not go back and
    // forth.
    let tolerance = if on_stack { rules.gain * rules.gain / rules.keep } else { rules.gain };
    let Some(benefit) = benefit(seen, accepts, tolerance) else {
        return settle(rules, state, None, Reason::NoMeasurements, now_us);
    };
    let (carrier, reason) = match benefit {
        gain if gain >= rules.gain => (CarriedBy::Stack, Reason::Gains(gain)),
        gain if gain >= rules.keep && on_stack => (CarriedBy::Stack, Reason::Between(gain)),
        gain => (CarriedBy::Kernel, Reason::NoGain(gain)),
    };
    settle(rules, state, Some(carrier), reason, now_us)
}

/// Ends the trial. A changed decision is tried again soon, a confirmed one ever more rarely.
fn settle(rules: &Rules, state: ClassState, carrier: Option<CarriedBy>, reason: Reason, now_us: u64) -> ClassState {
    let decision = carrier.or(state.decision).unwrap_or(CarriedBy::Kernel);
    let changed = state.decision != Some(decision);
    let again_us = if changed { rules.again_us } else { state.again_us.saturating_mul(2).min(rules.again_most_us) };
    ClassState {
        phase: Phase::Settled(now_us.saturating_add(again_us)),
        decision: Some(decision),
        since_us: if changed { now_us } else { state.since_us },
        reason,
        again_us,
        trials: state.trials.saturating_add(1),
        ..state
    }
}

#[cfg(test)]
#[path = "decide_tests.rs"]
mod tests;
