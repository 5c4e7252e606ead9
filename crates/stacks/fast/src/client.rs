//! What this stack keeps of a client and of a slot beside what every stack does.

use crate::direct_end::{DirectEnd, places};
use crate::sharing_class::class_of;
use towpath_runtime::slots::ServedClient;
use towpath_tcp::flow::FlowId;
use towpath_tcp::time::Micros;

/// A client, as the slow thread knows it.
pub type SlowClient = ServedClient<OfClient, OfSlot>;

/// Of a client.
pub struct OfClient {
    /// The sharing class of its flows (`FlowSetup::class`).
    pub class: u16,
    /// Its pairs, by place.
    pub pairs: Vec<Option<usize>>,
    /// Cores that have still to forget it; only while it is being forgotten.
    pub forgetting: Option<usize>,
}

impl OfClient {
    /// Of the client in place `index`.
    pub fn new(index: u32) -> Self {
        Self { class: class_of(index, None), pairs: places(), forgetting: None }
    }
}

/// Of a slot.
#[derive(Default)]
pub struct OfSlot {
    /// The congestion control that the policy has chosen for it, 0 = none.
    pub congestion: u8,
    /// Core that owns the flow.
    pub flow_group: usize,
    /// The flow.
    pub flow: Option<FlowId>,
    /// Where its rings are, if it is direct.
    pub direct: Option<DirectEnd>,
}

/// The clock of all threads.
#[inline]
pub fn now() -> Micros {
    Micros(towpath_runtime::thread::now_us())
}
