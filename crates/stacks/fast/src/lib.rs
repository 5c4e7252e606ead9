//! Runs the protocol's stages on flow groups and serves the ring contract with them.
//!
//! There are at most as many workers as flow groups (`group.rs`), and one slow path (`slow.rs`). A flow belongs to
//! one group for good, and a group to one worker at a time (`towpath_runtime::workers`). The slow path has a thread of its own,
//! and workers give it turns, too (`shared_slow.rs`). It writes a slot's stack words until its flow is installed, and again
//! after the flow is removed. In between the flow's group writes them. Groups and slow path share nothing but messages and
//! counters.
#![forbid(unsafe_code)]

mod api;
mod applications;
mod beside;
#[cfg(test)]
mod beside_tests;
mod between;
pub mod by_hand;
mod capture;
mod client;
mod commands;
mod cut;
mod departure;
mod direct;
mod direct_end;
mod direct_frames;
mod direct_modules;
mod ended;
pub mod filter;
mod flood_notice;
mod forwarding;
mod goes;
mod group;
#[cfg(test)]
mod group_tests;
#[cfg(test)]
mod growth_tests;
mod host;
mod info;
mod joins;
mod kernel_listeners;
mod limits;
mod listener_check;
mod listing;
mod messages;
mod metrics;
mod module_port;
#[cfg(test)]
mod module_port_tests;
mod modules;
mod options;
mod owner;
mod pair_up;
mod pairs;
mod peers;
mod port_proof;
pub mod portset;
mod random;
mod remember;
mod requests;
mod ring_growth;
mod rings;
mod room;
mod route_wait;
mod selection;
mod send_back;
#[cfg(test)]
mod send_back_tests;
mod shared_slow;
mod sharing_class;
mod slow;
mod splice_command;
mod splices;
mod stack;
mod strays;
mod taken_syns;
mod tapped_port;
mod waiting;

pub use api::{FastStackConfig, FirstSyn, KernelListener, Network, NewPort, SynCounts, SynsWait, TakenSyn};
pub use stack::FastStack;
use towpath_runtime::{clients, events, mailbox, slots, thread};
