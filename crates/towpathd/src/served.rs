//! What is known of a served interface once it is open.

use crate::health::Health;
use std::sync::Arc;
use towpath_tcp::flow::PortId;

/// A served interface.
pub struct Interface {
    /// Its number in the configuration.
    pub number: u32,
    /// Its index.
    pub index: u32,
    /// The tag of its frames.
    pub vlan: Option<u16>,
    /// The largest packet that its ports take, bytes.
    pub mtu: u32,
    /// The place of its first port in each flow group.
    pub port: PortId,
    /// How many it has in each.
    pub ports_each: usize,
    /// Its state.
    pub health: Arc<Health>,
}
