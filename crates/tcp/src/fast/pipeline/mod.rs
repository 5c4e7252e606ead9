//! The stages as objects of their own, for several cores. Each owns its state and hands work on by rings of one producer and
//! one consumer. They call the functions that run-to-completion calls, with other inputs; no rule of TCP stands here.
//!
//! ```text
//!               ┌─► pre ──┐                           ┌─► deliver ─┐
//!   sequencer ──┤         ├─►(order)─► flow group ────┤            ├─►(order)─► commit ─► ports, applications,
//!               └─► pre ──┘    protocol, post, plan   └─► build ───┘                      slow path
//! ```
//!
//! 1. [`Sequencer`] gives each received frame a number, and owns it no longer.
//! 2. [`Pre`], replicated, parses, checks and hashes. Whether there is such a flow is asked later: the tables change with messages
//!    to the flow group, so a replica's answer could be old.
//! 3. [`FlowGroup`], one for a group of flows, takes whole batches in the order of their numbers. It looks flows up and runs
//!    protocol and post. Post stays there: half of what it writes has several writers ([`stages`](crate::table::stages)).
//!    It also plans what is sent: headers, without payload and checksum.
//! 4. [`Deliver`], replicated, copies payload into receive rings.
//! 5. [`Build`], replicated, copies payload into frames and computes their checksums.
//! 6. [`Commit`] lets out frames, events and messages, in the order in which the flow group has made them. Each waits until
//!    everything is copied that the flow group had accepted before. So nothing is acknowledged or shown before it is copied.
//!
//! The flow group decides in the order of run-to-completion, so the result is the same, frame by frame. Replicas can only
//! delay it. An abandoned item's number is passed on at once, so nothing waits for it.
//!
//! A stage outlives its thread. If that has panicked, another one calls the stage's `recover` and goes on. What was in hand is as if
//! lost on the wire, or is done once more; a connection that is left half done is reset.

mod build;
mod commit;
mod copies;
mod deliver;
mod doing;
mod group;
mod items;
mod order;
mod parts;
mod plans;
mod pre;
mod recover;
mod sequencer;
#[cfg(test)]
mod tests;

pub use build::Build;
pub use commit::Commit;
pub use deliver::Deliver;
pub use group::FlowGroup;
pub use items::{Abilities, Output};
pub use parts::{BadShape, Parts, Shape};
pub use pre::Pre;
pub use sequencer::Sequencer;
