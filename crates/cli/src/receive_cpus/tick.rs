//! One tick of the policy, as the outputs get it.

use towpath_feedback::Heard;
use towpath_rxcpus::{Pool, Sensed};
use towpath_scaling::{Config, PolicyState, Reason};

/// A tick, after the decision.
pub struct Tick<'a> {
    /// The network device and the machine.
    pub pool: &'a Pool,
    /// The policy's limits.
    pub config: &'a Config,
    /// The policy's state after the decision.
    pub state: &'a PolicyState,
    /// CPUs reserved before it.
    pub from: u32,
    /// The reason.
    pub reason: Reason,
    /// The observation.
    pub sensed: &'a Sensed,
    /// The news of each source of feedback.
    pub heard: &'a [Heard],
    /// Settings that another program has changed.
    pub drifted: Vec<String>,
}
