//! The pipeline gives what run-to-completion gives: in one thread and virtual time, its stages take their steps in a random
//! order. Every frame, event, message and count must be the same, in the same order.
#![allow(clippy::unwrap_used)]

mod driver;
mod equality;
mod panics;
mod reference;
mod threads;
mod traces;

use crate::flow::{FlowId, PortId};
use crate::messages::{AppUpdate, AppView, ToFast};
use towpath_wire::offload::TxOffload;

/// A call of the flow group, or a batch of frames for it.
#[derive(Clone, Debug)]
pub enum Step {
    /// Time goes on by this many µs.
    Wait(u64),
    Batch(Vec<Vec<u8>>),
    Update(FlowId, AppUpdate),
    Message(ToFast),
    /// With room for this many frames; `None` = enough.
    Transmit(Option<usize>),
    /// Events, then messages.
    Publish,
}

/// What has left.
#[derive(Debug, PartialEq, Eq)]
pub enum Seen {
    Frame(PortId, Vec<u8>, TxOffload),
    Event(FlowId, u32, AppView),
    Message(String),
}

/// The port of all frames.
pub const PORT: PortId = PortId(1);
