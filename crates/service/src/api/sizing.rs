//! The number of workers that the stack runs, and its history.

use serde::{Deserialize, Serialize};

/// The observations that a decision about the number of workers is based on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Seen {
    /// Workers that had work, on average over the tick.
    pub busy: f64,
    /// More arrived than was handled.
    pub pressure: bool,
    /// CPUs that programs used.
    pub app_busy: f64,
    /// The part of the time in which some thread waited for a CPU.
    pub app_waiting: f64,
    /// Bytes per second that applications sent and received. `None`: there was nothing to judge.
    pub throughput: Option<f64>,
    /// Latency of an application with its rings, on average, µs.
    pub latency_us: Option<f64>,
}

/// Answer to [`super::Command::Cores`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sizing {
    /// The stack: `fast`, `kernel` ...
    pub stack: String,
    /// The workers that run now.
    pub workers: usize,
    /// The fewest that the configuration allows.
    pub fewest: usize,
    /// The most.
    pub most: usize,
    /// The configured value: `2`, `1-4`, `auto`.
    pub configured: String,
    /// The number that an operator has fixed.
    pub set: Option<usize>,
    /// The last decision's reason, in one word.
    pub reason: String,
    /// The same in a sentence.
    pub why: String,
    /// Decisions so far.
    pub tick: u64,
    /// The last change, since the service's start, µs.
    pub since_us: u64,
    /// The observations of the last tick.
    #[serde(flatten)]
    pub seen: Seen,
    /// The last changes, oldest first. They are not part of [`super::Command::Status`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<WorkerChange>,
}

/// A change of the number of workers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerChange {
    /// The decision's number.
    pub tick: u64,
    /// Since the service's start, µs.
    pub at_us: u64,
    /// The number before.
    pub from: usize,
    /// The number after.
    pub to: usize,
    /// See [`Sizing::reason`].
    pub reason: String,
    /// See [`Sizing::why`].
    pub why: String,
    /// The observations of the tick before it.
    #[serde(flatten)]
    pub seen: Seen,
}
