//! The observation of a pool in one tick.

use serde::{Deserialize, Serialize};

/// The throughput and latency that applications report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Requests per second.
    pub throughput: f64,
    /// Average latency of a request, µs; 0 = not reported.
    pub latency_us: f64,
    /// Its 99th percentile, µs; 0 = not reported.
    pub p99_us: f64,
}

/// One tick. All are rates over the tick.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Observation {
    /// CPU time of the stack's work, seconds per second. Spinning does not count. For the kernel's receive path it is
    /// the time of softirqs and their threads, on any CPU.
    pub busy: f64,
    /// More came than the stack could take: drops, full rings, softirqs that ran out of time.
    pub pressure: bool,
    /// CPU time of applications, seconds per second.
    pub app_busy: f64,
    /// The part of their time that applications were ready to run and waited for a CPU (PSI `some`, or run delay).
    pub app_waiting: f64,
    /// The applications' report, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
    /// The offered load, in any unit (packets per second). It only decides whether two times can be compared.
    pub offered: f64,
}

impl Observation {
    /// True if every number is possible.
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
