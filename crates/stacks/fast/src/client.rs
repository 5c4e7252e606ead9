//! The fast stack's own state of a client and of a slot.

use crate::direct_end::{DirectEnd, places};
use crate::sharing_class::class_of;
use towpath_runtime::slots::ServedClient;
use towpath_tcp::flow::FlowId;
use towpath_tcp::slow::Ending;
use towpath_tcp::time::Micros;

/// A client, as the slow path knows it.
pub type SlowClient = ServedClient<OfClient, OfSlot>;

/// The fast stack's state of a client.
pub struct OfClient {
    /// The sharing class of its flows (`FlowSetup::class`).
    pub class: u16,
    /// Its half-open connections.
    pub half_open: usize,
    /// Its pairs, by place.
    pub pairs: Vec<Option<usize>>,
    /// Flow groups that have still to forget it; only while it is being forgotten.
    pub forgetting: Option<usize>,
}

impl OfClient {
    /// The state of a new client in place `index`.
    pub fn new(index: u32) -> Self {
        Self { class: class_of(index, None), half_open: 0, pairs: places(), forgetting: None }
    }
}

/// The fast stack's state of a slot.
#[derive(Default)]
pub struct OfSlot {
    /// The congestion control that the policy has chosen for it, 0 = none.
    pub congestion: u8,
    /// The flow group that owns the flow.
    pub flow_group: usize,
    /// The flow.
    pub flow: Option<FlowId>,
    /// The place of its rings, if it is direct.
    pub direct: Option<DirectEnd>,
    /// What has ended it, if it is direct and neither application has closed it.
    pub ending: Option<Ending>,
    /// Its application wants to hear how much of a splice has gone on.
    pub is_told: bool,
}

/// The clock of all threads.
#[inline]
pub fn now() -> Micros {
    Micros(towpath_runtime::thread::now_us())
}
