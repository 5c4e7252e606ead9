//! The scaling policy: how many CPUs a stack gets, and which.
//!
//! One policy serves every stack: the fast stack's threads, the CPUs on which the kernel receives, the kernel stack's
//! threads. An adapter knows how to add a core to each. The policy does no I/O and reads no clock: [`step`] takes the
//! observation of one tick and returns the number of cores, and why.
#![forbid(unsafe_code)]

mod config;
mod cpus;
mod decision;
mod indirection;
mod memory;
mod observation;
mod policy;
mod trace;
mod trial;
mod words;

pub use config::{Config, ConfigError};
pub use cpus::{Cpu, CpuOrder};
pub use decision::{Decision, Reason};
pub use indirection::rebalance;
pub use observation::{Observation, Outcome};
pub use policy::{Measure, Obstacle, OnTrial, PolicyState, PolicyView, Rule, Term, step};
pub use trace::{Replayed, Trace, TraceError};
pub use trial::Means;
pub use words::counted;
