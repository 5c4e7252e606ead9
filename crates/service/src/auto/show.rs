//! What `towpath status` shows of `auto`.

use super::books::{Auto, Shown};
use super::class::{Class, Name};
use super::decide::{Phase, Reason, Summary};
use serde::{Deserialize, Serialize};
use towpath_ring::figures::Way;

/// A class of sockets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    /// The program's name.
    pub program: String,
    /// Its user.
    pub uid: u32,
    /// `connect` or `accept`.
    pub direction: String,
    /// Of connections: `host` or `network`, where the peer is.
    pub scope: Option<String>,
    /// The peer's port, or the listener's; 0 = one of those that the kernel picks (32768 and above).
    pub port: u16,
    /// `stack`, `kernel`, `trial` (both, in turn), or `follows` (the way on which the peer listens).
    pub decision: String,
    /// Why.
    pub reason: String,
    /// Since when the decision is as it is, µs ago; `None` = it follows, or nothing was decided yet.
    pub since_us: Option<u64>,
    /// When it is tried again, µs from now; `None` = now, or at the program's next start.
    pub again_us: Option<u64>,
    /// Trials that have ended.
    pub trials: u32,
    /// Of the stack.
    pub stack: Side,
    /// Of the program's own kernel.
    pub kernel: Side,
}

/// What a way has shown, when it was tried last; on trial, as yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Side {
    /// Connections that were measured, in all.
    pub connections: u64,
    /// Requests and answers.
    pub turns: u64,
    /// Bytes both ways.
    pub bytes: u64,
    /// Is it bulk, and are the next ones therefore per KiB?
    pub bulk: bool,
    /// The program's CPU time per turn, or per KiB, ns.
    pub cpu_ns: Option<u64>,
    /// Time from sending to the next byte received that half of them did not exceed, ns.
    pub p50_ns: Option<u64>,
    /// Bytes per second while some went.
    pub goodput: Option<u64>,
}

impl Auto {
    /// All classes of users that may be seen.
    pub fn rows(&self, seen: impl Fn(u32) -> bool) -> Vec<Row> {
        self.classes(seen, row)
    }
}

fn row(name: &Name, class: &Class, shown: Shown) -> Row {
    let state = class.state.as_ref();
    let settled = state.and_then(|state| state.settled());
    let summaries = match state {
        Some(state) if settled.is_some() => &state.seen,
        _ => &shown.recent,
    };
    let side = |way: Way| side(&summaries[way as usize], shown.connections[way as usize]);
    let again = state.and_then(|state| match state.phase {
        Phase::Settled(until) if !name.key.accepts => Some(until.saturating_sub(shown.now_us)),
        _ => None,
    });
    Row {
        program: name.program.clone(),
        uid: name.uid,
        direction: if name.key.accepts { "accept" } else { "connect" }.into(),
        scope: (!name.key.accepts).then(|| if name.key.local { "host" } else { "network" }.into()),
        port: name.key.port,
        decision: match (state, settled) {
            (None, _) => "follows",
            (_, None) => "trial",
            (_, Some(Way::Stack)) => "stack",
            (_, Some(Way::Kernel)) => "kernel",
        }
        .into(),
        reason: state.map_or("goes where the other side listens".into(), |state| {
            if settled.is_some() { reason(&state.reason) } else { "both ways are being tried".into() }
        }),
        since_us: state
            .filter(|state| state.decision.is_some())
            .map(|state| shown.now_us.saturating_sub(state.since_us)),
        again_us: again,
        trials: state.map_or(0, |state| state.trials),
        stack: side(Way::Stack),
        kernel: side(Way::Kernel),
    }
}

fn side(summary: &Summary, connections: u64) -> Side {
    Side {
        connections,
        turns: summary.turns,
        bytes: summary.bytes,
        bulk: summary.bulk,
        cpu_ns: summary.cpu_ns.map(|ns| ns.round() as u64),
        p50_ns: summary.wait_ns.map(|ns| ns.round() as u64),
        goodput: summary.goodput.map(|rate| rate.round() as u64),
    }
}

/// In words.
pub fn reason(reason: &Reason) -> String {
    let percent = |factor: f64| format!("{:+.0} %", 100.0 * (factor - 1.0));
    match reason {
        Reason::Trial => "both ways are being tried".into(),
        Reason::Gains(gain) => format!("the stack gains ({})", percent(*gain)),
        Reason::NoGain(gain) if *gain < 1.0 => format!("the stack loses ({})", percent(*gain)),
        Reason::NoGain(gain) => format!("the stack gains too little ({})", percent(*gain)),
        Reason::Between(gain) => format!("the stack gains little ({}), and stays", percent(*gain)),
        Reason::TooLittle => "too little traffic to try both ways: as before".into(),
        Reason::NoFigures => "nothing is measured: as before".into(),
    }
}
