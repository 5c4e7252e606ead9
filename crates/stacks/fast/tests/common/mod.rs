//! A minimal application side: it speaks the ring contract and nothing else.
#![allow(dead_code, clippy::unwrap_used)]

pub use towpath_contract_tests::LOCAL;

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU16, Ordering};
use towpath_fast::{FastStack, FastStackConfig, Network};
use towpath_ports::Port;
use towpath_ports::memory::Loopback;
use towpath_runtime::{AdmissionPolicy, OrphanLimits};
use towpath_tcp::flow::{FourTuple, Link, PortId};
use towpath_tcp::slow::{Route, SlowConfig, Steered};

/// Everything in 127.0.0.0/8 is on port 0, if we have a listener there.
#[derive(Default)]
pub struct TestNetwork {
    listeners: HashSet<(IpAddr, u16)>,
}

impl Network for TestNetwork {
    fn route(&mut self, remote: IpAddr, local: Option<IpAddr>) -> Route {
        if !remote.is_loopback() || self.listeners.is_empty() {
            return Route::NotOurs;
        }
        let link = Link { port: PortId(0), source: [2, 0, 0, 0, 0, 1], destination: [2, 0, 0, 0, 0, 1], vlan: None };
        Route::Via { link, source: local.unwrap_or(LOCAL), mtu: 65_535 }
    }
    fn is_local(&self, addr: IpAddr) -> bool {
        addr.is_loopback()
    }
    fn steer(&mut self, _: &FourTuple, _: Steered) {}
    fn steer_listener(&mut self, addr: IpAddr, port: u16, on: bool) {
        if on {
            self.listeners.insert((addr, port));
        } else {
            self.listeners.remove(&(addr, port));
        }
    }
    fn shares_ports_with_kernel(&self) -> bool {
        false
    }
    fn changed(&mut self) -> bool {
        false
    }
}

/// A fast stack with nothing but loopback ports.
pub fn stack(flow_groups: usize) -> FastStack {
    let (config, ports) = loopback_only(flow_groups);
    FastStack::start(config, ports, Box::new(TestNetwork::default())).unwrap()
}

/// The same with bounds of what clients leave that have ended.
pub fn bounded(orphans: OrphanLimits) -> FastStack {
    let (config, ports) = loopback_only(1);
    FastStack::start(FastStackConfig { orphans, ..config }, ports, Box::new(TestNetwork::default())).unwrap()
}

/// The same with this many connections at most.
pub fn small_stack(max_flows: u32) -> FastStack {
    let (config, ports) = loopback_only(1);
    FastStack::start(FastStackConfig { max_flows, ..config }, ports, Box::new(TestNetwork::default())).unwrap()
}

/// The same with direct connections.
pub fn direct() -> FastStack {
    let (config, ports) = loopback_only(1);
    FastStack::start(FastStackConfig { direct: true, ..config }, ports, Box::new(TestNetwork::default())).unwrap()
}

/// The same with direct connections, under a policy.
pub fn direct_and_guarded(guard: Box<dyn AdmissionPolicy>) -> FastStack {
    let (config, ports) = loopback_only(1);
    let config = FastStackConfig { direct: true, ..config };
    FastStack::start_guarded(config, ports, Box::new(TestNetwork::default()), guard).unwrap()
}

/// The same under a policy.
pub fn guarded(flow_groups: usize, guard: Box<dyn AdmissionPolicy>) -> FastStack {
    let (config, ports) = loopback_only(flow_groups);
    FastStack::start_guarded(config, ports, Box::new(TestNetwork::default()), guard).unwrap()
}

fn loopback_only(flow_groups: usize) -> (FastStackConfig, Vec<Vec<Box<dyn Port>>>) {
    let slow = SlowConfig { time_wait_s: 1, ..SlowConfig::default() };
    let config = FastStackConfig {
        flow_groups,
        max_flows: 8192,
        spin_us: 0,
        delayed_ack_us: 1000,
        cpus: Vec::new(),
        direct: false,
        orphans: OrphanLimits::default(),
        slow,
    };
    let ports = (0..flow_groups).map(|_| vec![Box::new(Loopback::new()) as Box<dyn Port>]).collect();
    (config, ports)
}

/// A port that no other test of this run uses.
pub fn port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(1000);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
