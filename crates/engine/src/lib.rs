//! Runs the protocol's stages on cores and serves the ring contract with them.
//!
//! Threads: one fast-path thread per core (`core.rs`) and one slow thread (`slow.rs`). A flow is owned by one core; a slot's
//! stack words are written by the slow thread until its flow is installed, by the owning core until the flow is removed,
//! and by the slow thread after that. The threads share nothing but messages and counters.

mod api;
mod client;
mod commands;
mod core;
#[cfg(test)]
mod core_tests;
mod direct;
mod engine;
mod figures;
mod guard;
mod host;
mod listing;
mod messages;
mod metrics;
mod options;
mod owner;
mod pairs;
mod portset;
mod random;
mod requests;
mod rings;
mod slow;

pub use api::{EngineConfig, Network};
pub use engine::Engine;
use towpath_stack::{clients, events, mailbox, slots, thread};
