//! Runs the protocol's stages on cores and serves the ring contract with them.
//!
//! Threads: one fast-path thread per core (`core.rs`) and one slow thread (`slow.rs`). A flow is owned by one core; a slot's
//! stack words are written by the slow thread until its flow is installed, by the owning core until the flow is removed,
//! and by the slow thread after that. The threads share nothing but messages and counters.

mod api;
mod clients;
mod commands;
mod core;
#[cfg(test)]
mod core_tests;
mod direct;
mod engine;
mod events;
mod figures;
mod guard;
mod host;
mod listing;
mod mailbox;
mod messages;
mod metrics;
mod options;
mod pairs;
mod portset;
mod random;
mod requests;
mod rings;
mod slots;
mod slow;
mod sparse;
mod status;
mod thread;

pub use api::{ClientId, ClientSetup, EngineConfig, Network, PairHandle};
pub use engine::Engine;
pub use guard::{Exceeded, Guard, Limit, Verdict};
pub use status::{ClientStatus, Connection, CoreStatus, Status};
