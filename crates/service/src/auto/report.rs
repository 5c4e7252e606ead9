//! The part of `towpath status` about `auto`.

use super::class::{Class, ClassName};
use super::decide::{Phase, Summary};
use super::statistics::{Auto, Shown};
use serde::{Deserialize, Serialize};
use towpath_ring::stats::CarriedBy;

/// A class of sockets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassReport {
    /// The program's name.
    pub program: String,
    /// Its user.
    pub uid: u32,
    /// `connect` or `accept`.
    pub direction: String,
    /// The place of the peer of a connect: `host` or `network`.
    pub scope: Option<String>,
    /// The peer's port, or the listener's. 0 stands for all ports that the kernel picks (32768 and above).
    pub port: u16,
    /// `stack`, `kernel`, `trial` (both, in turn), or `follows` (the carrier on which the peer listens).
    pub decision: String,
    /// The reason, in words.
    pub reason: String,
    /// Age of the decision, µs. `None`: it follows, or nothing was decided yet.
    pub since_us: Option<u64>,
    /// Time until the next trial, µs. `None`: it is running, or comes with the program's next start.
    pub again_us: Option<u64>,
    /// Trials that have ended.
    pub trials: u32,
    /// Measurements over the stack.
    pub stack: WayReport,
    /// Measurements over the program's own kernel.
    pub kernel: WayReport,
}

/// The measurements of one carrier in its last trial. During a trial: those so far.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WayReport {
    /// All connections that were measured.
    pub connections: u64,
    /// Requests and answers.
    pub turns: u64,
    /// Bytes in both directions.
    pub bytes: u64,
    /// Is it bulk traffic? Then CPU time is per KiB.
    pub bulk: bool,
    /// The program's CPU time per turn, or per KiB, ns.
    pub cpu_ns: Option<u64>,
    /// Time from sending to the next byte received that half of them did not exceed, ns.
    pub p50_ns: Option<u64>,
    /// Bytes per second while data was moving.
    pub goodput: Option<u64>,
}

impl Auto {
    /// Reports all classes of users for which `seen` is true.
    pub fn rows(&self, seen: impl Fn(u32) -> bool) -> Vec<ClassReport> {
        self.classes(seen, row)
    }
}

fn row(name: &ClassName, class: &Class, shown: Shown) -> ClassReport {
    let state = class.state.as_ref();
    let settled = state.and_then(|state| state.settled());
    let summaries = match state {
        Some(state) if settled.is_some() => &state.seen,
        _ => &shown.recent,
    };
    let side = |carrier: CarriedBy| side(&summaries[carrier as usize], shown.connections[carrier as usize]);
    let again = state.and_then(|state| match state.phase {
        Phase::Settled(until) if !name.key.accepts => Some(until.saturating_sub(shown.now_us)),
        _ => None,
    });
    ClassReport {
        program: name.program.clone(),
        uid: name.uid,
        direction: if name.key.accepts { "accept" } else { "connect" }.into(),
        scope: (!name.key.accepts).then(|| if name.key.local { "host" } else { "network" }.into()),
        port: name.key.port,
        decision: match (state, settled) {
            (None, _) => "follows",
            (_, None) => "trial",
            (_, Some(CarriedBy::Stack)) => "stack",
            (_, Some(CarriedBy::Kernel)) => "kernel",
        }
        .into(),
        reason: state.map_or("goes where the other side listens".into(), |state| {
            if settled.is_some() { state.reason.to_string() } else { "both ways are being tried".into() }
        }),
        since_us: state
            .filter(|state| state.decision.is_some())
            .map(|state| shown.now_us.saturating_sub(state.since_us)),
        again_us: again,
        trials: state.map_or(0, |state| state.trials),
        stack: side(CarriedBy::Stack),
        kernel: side(CarriedBy::Kernel),
    }
}

fn side(summary: &Summary, connections: u64) -> WayReport {
    WayReport {
        connections,
        turns: summary.turns,
        bytes: summary.bytes,
        bulk: summary.bulk,
        cpu_ns: summary.cpu_ns.map(|ns| ns.round() as u64),
        p50_ns: summary.wait_ns.map(|ns| ns.round() as u64),
        goodput: summary.goodput.map(|rate| rate.round() as u64),
    }
}
