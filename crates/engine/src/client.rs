//! What this stack keeps of a client and of a slot beside what every stack does.

use crate::guard::group_of;
use crate::pairs::{DirectEnd, places};
use towpath_stack::slots::Client;
use towpath_tcp::flow::FlowId;
use towpath_tcp::time::Micros;

/// A client, as the slow thread knows it.
pub type SlowClient = Client<OfClient, OfSlot>;

/// Of a client.
pub struct OfClient {
    /// The group of its flows (`FlowSetup::group`).
    pub group: u16,
    /// Its pairs, by place.
    pub pairs: Vec<Option<usize>>,
    /// Cores that have still to forget it; only while it is being forgotten.
    pub forgetting: Option<usize>,
}

impl OfClient {
    /// Of the client in place `index`.
    pub fn new(index: u32) -> Self {
        Self { group: group_of(index, None), pairs: places(), forgetting: None }
    }
}

/// Of a slot.
#[derive(Default)]
pub struct OfSlot {
    /// The congestion control that the policy has chosen for it, 0 = none.
    pub congestion: u8,
    /// Core that owns the flow.
    pub core: usize,
    /// The flow.
    pub flow: Option<FlowId>,
    /// Where its rings are, if it is direct.
    pub direct: Option<DirectEnd>,
}

/// The clock of all threads.
#[inline]
pub fn now() -> Micros {
    Micros(towpath_stack::thread::now_us())
}
