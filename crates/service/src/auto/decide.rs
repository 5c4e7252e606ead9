//! Which way suits a class of sockets: a function of what was measured, without clock or memory of its own.
//!
//! A class begins with a trial, in which its connections take both ways. When enough has been measured of each, the better way is chosen
//! for all, and the other tried again ever more rarely. The stack is chosen only where it gains; what is as good either way stays on
//! the host.

use towpath_ring::figures::{Figures, Way};

/// How much must be measured, and what counts as a gain.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rules {
    /// Connections of each way.
    pub connections: u64,
    /// Turns (requests and answers) of each way ...
    pub turns: u64,
    /// ... or bytes.
    pub bytes: u64,
    /// Bytes per turn from which on a class is bulk: what counts is CPU time per byte and goodput, not CPU time per request and waits.
    pub bulk: u64,
    /// The stack is taken if it is better by this factor in one respect, and not worse by it in the other.
    pub gain: f64,
    /// It is left again if it is not better by this factor. Less than `gain`: what lies between stays as it is.
    pub keep: f64,
    /// Time from a decision to the next trial, µs; doubled after each that changes nothing.
    pub again_us: u64,
    /// At most.
    pub again_most_us: u64,
    /// A new trial that does not see enough in this time ends without a result, µs.
    pub patience_us: u64,
}

impl Default for Rules {
    fn default() -> Self {
        const MINUTE: u64 = 60_000_000;
        Self {
            connections: 2,
            // One call in 32 is measured: 250 measurements, whose mean is within some 3 % where single ones scatter by half.
            turns: 4_000,
            bytes: 32 << 20,
            bulk: 64 << 10,
            gain: 1.10,
            keep: 1.03,
            again_us: 5 * MINUTE,
            again_most_us: 24 * 60 * MINUTE,
            patience_us: 10 * MINUTE,
        }
    }
}

/// What one way costs and gives.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Summary {
    /// Connections that were measured.
    pub connections: u64,
    /// Turns.
    pub turns: u64,
    /// Bytes both ways.
    pub bytes: u64,
    /// Is it bulk?
    pub bulk: bool,
    /// The program's CPU time per turn, or per KiB of bulk, ns.
    pub cpu_ns: Option<f64>,
    /// The wait for an answer that half of them do not exceed, ns.
    pub wait_ns: Option<f64>,
    /// Bytes per second while some went.
    pub goodput: Option<f64>,
}

impl Summary {
    /// Of what was measured.
    pub fn of(figures: &Figures, rules: &Rules) -> Self {
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

/// Why a class is where it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reason {
    /// Nothing is known yet.
    Trial,
    /// The stack gains: by this factor where it gains most.
    Gains(f64),
    /// It gains less than would be worth it; below 1 it loses: by this factor where it loses most.
    NoGain(f64),
    /// Neither enough to go nor to come: as before.
    Between(f64),
    /// The trial saw too little: as before.
    TooLittle,
    /// Nothing is measured: as before.
    NoFigures,
}

/// What is being done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Connections take both ways, since this time, µs.
    Trial(u64),
    /// All take one until then, µs.
    Settled(u64),
}

/// What is known of a class. A new one is on trial.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct State {
    /// See there.
    pub phase: Phase,
    /// The way of all connections, or after a trial without result and before the first: `None`.
    pub decision: Option<Way>,
    /// Since when the decision is as it is, µs.
    pub since_us: u64,
    /// Why.
    pub reason: Reason,
    /// From the next decision to the trial after it, µs.
    pub again_us: u64,
    /// Trials that have ended.
    pub trials: u32,
    /// What the last trial with a result saw of each way.
    pub seen: [Summary; 2],
}

impl State {
    /// Of a class that is seen for the first time.
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

    /// The way that all connections take; `None` = both, in turn.
    pub fn settled(&self) -> Option<Way> {
        match self.phase {
            Phase::Settled(_) => self.decision,
            Phase::Trial(_) => None,
        }
    }
}

/// How much better the stack is: the greater gain as a factor, or, where it loses more than `tolerance` in one respect, that (below 1).
/// Half of waits is no respect for what the program accepts: it includes the peer's leisure.
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

/// One step. `seen`: what this trial has measured of each way, `None` = nobody measures.
pub fn step(rules: &Rules, state: State, accepts: bool, seen: Option<&[Summary; 2]>, now_us: u64) -> State {
    match state.phase {
        Phase::Settled(until) if now_us < until => state,
        Phase::Settled(_) => State { phase: Phase::Trial(now_us), ..state },
        Phase::Trial(since) => {
            let over = now_us.saturating_sub(since) >= rules.patience_us;
            match seen {
                Some(seen) if seen.iter().all(|way| way.is_enough(rules)) => judge(rules, state, accepts, seen, now_us),
                Some(_) if over && state.decision.is_some() => settle(rules, state, None, Reason::TooLittle, now_us),
                None if over => settle(rules, state, None, Reason::NoFigures, now_us),
                _ => state,
            }
        }
    }
}

/// A listener's port goes one way as a whole, and a server is not started for a trial: so its newest run on the way that was chosen is
/// held against what the other way was when it was tried last.
pub fn rerun(rules: &Rules, state: State, seen: Summary, now_us: u64) -> State {
    let Some(way) = state.settled().filter(|_| seen.is_enough(rules)) else { return state };
    let mut both = state.seen;
    both[way as usize] = seen;
    judge(rules, state, true, &both, now_us)
}

/// The trial has seen enough.
fn judge(rules: &Rules, state: State, accepts: bool, seen: &[Summary; 2], now_us: u64) -> State {
    let state = State { seen: *seen, ..state };
    let on_stack = state.decision == Some(Way::Stack);
    // Whoever is there already is not sent away for what would not have kept it from coming, and some more.
    let tolerance = if on_stack { rules.gain * rules.gain / rules.keep } else { rules.gain };
    let Some(benefit) = benefit(seen, accepts, tolerance) else {
        return settle(rules, state, None, Reason::NoFigures, now_us);
    };
    let (way, reason) = match benefit {
        gain if gain >= rules.gain => (Way::Stack, Reason::Gains(gain)),
        gain if gain >= rules.keep && on_stack => (Way::Stack, Reason::Between(gain)),
        gain => (Way::Kernel, Reason::NoGain(gain)),
    };
    settle(rules, state, Some(way), reason, now_us)
}

/// The trial ends. A change is tried again soon, and what has stood the test ever more rarely.
fn settle(rules: &Rules, state: State, way: Option<Way>, reason: Reason, now_us: u64) -> State {
    let decision = way.or(state.decision).unwrap_or(Way::Kernel);
    let changed = state.decision != Some(decision);
    let again_us = if changed { rules.again_us } else { state.again_us.saturating_mul(2).min(rules.again_most_us) };
    State {
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
