//! What is seen of a pool in one tick.

use serde::{Deserialize, Serialize};

/// What applications say they have achieved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Requests per second.
    pub throughput: f64,
    /// Average latency of a request, µs; 0 = not said.
    pub latency_us: f64,
    /// Its 99th percentile, µs; 0 = not said.
    pub p99_us: f64,
}

/// One tick. All are rates over the tick.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Observation {
    /// CPU time that the stack's work took, seconds per second. Of a spinning core what it spent on work, of the kernel's receive path
    /// what softirqs and their threads took, on whatever CPU.
    pub busy: f64,
    /// More came than was taken: drops, full rings, softirqs that ran out of time.
    pub pressure: bool,
    /// CPU time of applications, seconds per second.
    pub app_busy: f64,
    /// The part of their time that applications were ready to run and waited for a CPU (PSI `some`, or run delay).
    pub app_waiting: f64,
    /// What applications say of it, if they do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
    /// What has been asked for, in whatever unit (packets per second): only to see whether two times can be compared.
    pub offered: f64,
}

impl Observation {
    /// Is every number one that can be?
    pub fn is_sound(&self) -> bool {
        let outcome = self.outcome.unwrap_or_default();
        let numbers = [
            self.busy,
            self.app_busy,
            self.app_waiting,
            self.offered,
            outcome.throughput,
            outcome.latency_us,
            outcome.p99_us,
        ];
        numbers.iter().all(|number| (0.0..1e18).contains(number))
    }
}
