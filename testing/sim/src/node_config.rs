//! The settings of a node.

use std::net::{IpAddr, Ipv4Addr};
use towpath_tcp::fast::FastConfig;
use towpath_tcp::slow::SlowConfig;

/// The settings of a node.
#[derive(Clone)]
pub struct NodeConfig {
    /// Its address.
    pub address: IpAddr,
    /// Its MAC address.
    pub mac: [u8; 6],
    /// VLAN that its frames are tagged with.
    pub vlan: Option<u16>,
    /// Seed of its sequence numbers, ports and keys.
    pub seed: u64,
    /// Send and receive ring of each socket in bytes, powers of two.
    pub rings: (u32, u32),
    /// Most flows at a time.
    pub max_flows: u32,
    /// Check every frame that it sends against TCP's rules ([`crate::invariants`])? Off where only speed matters.
    pub check_invariants: bool,
    /// Does its fast path run as a pipeline, and with which order of steps (a seed)? `None`: to completion.
    pub pipeline: Option<u64>,
    /// The slow path's settings.
    pub slow: SlowConfig,
    /// The fast path's settings.
    pub fast: FastConfig,
}

impl NodeConfig {
    /// Host `n` of a test network: address 10.0.0.`n`, rings of 64 KiB.
    pub fn numbered(n: u8, seed: u64) -> Self {
        let max_flows = 64;
        Self {
            address: IpAddr::V4(Ipv4Addr::new(10, 0, 0, n)),
            mac: [2, 0, 0, 0, 0, n],
            vlan: None,
            seed,
            rings: (64 << 10, 64 << 10),
            max_flows,
            check_invariants: true,
            pipeline: pipeline_from_environment(),
            slow: SlowConfig { max_flows, ..SlowConfig::default() },
            fast: FastConfig { seed, ..FastConfig::default() },
        }
    }
}

/// `TOWPATH_PIPELINE` puts the hosts of all tests into the pipeline: it is the seed of the order of steps.
fn pipeline_from_environment() -> Option<u64> {
    std::env::var("TOWPATH_PIPELINE").ok()?.parse().ok()
}
