//! Runs the protocol's stages on cores and serves the ring contract with them.
//!
//! Threads: up to one fast-path thread per flow group (`group.rs`) and one slow thread (`slow.rs`). A flow belongs to one group,
//! for good, and a group to one thread at a time (`towpath_stack::crew`). A slot's stack words are written by the slow thread until
//! its flow is installed, by the flow's group until the flow is removed, and by the slow thread after that. Groups and slow thread
//! share nothing but messages and counters. In the names of messages and in the ring contract a group is a core.

mod api;
mod client;
mod commands;
mod direct;
mod engine;
mod figures;
mod group;
#[cfg(test)]
mod group_tests;
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
