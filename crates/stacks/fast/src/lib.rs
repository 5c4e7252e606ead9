//! Runs the protocol's stages on flow groups and serves the ring contract with them.
//!
//! Threads: up to one fast-path thread per flow group (`group.rs`) and one slow thread (`slow.rs`). A flow belongs to one group,
//! for good, and a group to one thread at a time (`towpath_runtime::workers`). A slot's stack words are written by the slow thread until
//! its flow is installed, by the flow's group until the flow is removed, and by the slow thread after that. Groups and slow thread
//! share nothing but messages and counters. In the names of messages and in the ring contract a group is a flow group.

mod api;
mod client;
mod commands;
mod direct;
mod direct_end;
mod group;
#[cfg(test)]
mod group_tests;
mod host;
mod info;
mod limits;
mod listing;
mod messages;
mod metrics;
mod options;
mod owner;
mod pair_up;
mod pairs;
mod portset;
mod random;
mod requests;
mod rings;
mod sharing_class;
mod slow;
mod stack;

pub use api::{FastStackConfig, Network};
pub use stack::FastStack;
use towpath_runtime::{clients, events, mailbox, slots, thread};
