//! How many CPUs a stack gets, and which.
//!
//! One policy for every kind of stack: the fast stack's cores, the CPUs that the kernel receives on, the kernel stack's threads. What
//! differs between them is what a core *is* and how one is added; that is for adapters. What is here does no I/O and reads no clock:
//! [`step`] takes what was seen in one tick and says how many cores there shall be, and why.

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
pub use policy::{Bar, Measure, OnTrial, Rule, State, Term, View, step};
pub use trace::{Replayed, Trace, TraceError};
pub use trial::Means;
pub use words::counted;
