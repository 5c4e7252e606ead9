//! Starts the fast stack: a loopback port and the queues of the interface for each flow group, and the slow path's
//! settings.

use crate::attach::InterfaceError;
use crate::health;
use crate::interface::{self, Interface};
use crate::network::held_ports::HeldPorts;
use crate::network::{HostNetwork, Watcher};
use std::sync::Arc;
use towpath_fast::{FastStack, FastStackConfig};
use towpath_ports::Port;
use towpath_ports::listening::Listening;
use towpath_ports::memory::Loopback;
use towpath_runtime::{AdmissionPolicy, OrphanLimits};
use towpath_service::config::Config;
use towpath_service::privileged;
use towpath_service::stack_factory::{ServedInterface, StackError, StartedStack};
use towpath_tcp::slow::SlowConfig;
use towpath_tcp::slow::congestion::Algorithm;

/// The most cores that the stack can use, which is the number of its flow groups.
pub fn most_cores(config: &Config) -> usize {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let most = config.cores.most(cpus, config.cpus.len());
    match &config.interface {
        // Of a range only as many cores are useful as there are queues. A fixed number is the operator's choice: if it
        // is too large, the start fails and says so.
        Some(interface) if config.cores.is_chosen() => most.min(health::receive_queues(interface)),
        _ => most,
    }
}

/// Starts the stack.
pub fn start(
    config: &Config,
    guard: Box<dyn AdmissionPolicy>,
    before_threads: &dyn Fn(),
) -> Result<StartedStack, StackError> {
    let cores = most_cores(config);
    let mut ports: Vec<Vec<Box<dyn Port>>> = Vec::new();
    let mut loopback_mtu = u16::MAX;
    for _ in 0..cores {
        let loopback = Loopback::new();
        loopback_mtu = u16::try_from(loopback.capabilities().mtu_bytes).unwrap_or(u16::MAX);
        ports.push(vec![Box::new(loopback)]);
    }
    let mut slow = slow_config(config);
    let (network, mut interface) = match &config.interface {
        None => {
            // While there are privileges.
            let filter = Listening::alone();
            before_threads();
            if let Err(error) = &filter {
                tracing::debug!(%error, "no filter for listeners: rules cannot hold for what the kernel accepts for them");
            }
            (HostNetwork::with_filter(loopback_mtu, filter.ok()).map_err(netlink)?, None)
        }
        Some(name) => {
            let (network, interface) = serve_interface(config, name, loopback_mtu, &mut ports, before_threads)?;
            slow.held_ports = true;
            (slow.first_port, slow.last_port) = interface::EPHEMERAL_PORTS.into_inner();
            (network, Some(interface))
        }
    };
    let health = interface.as_ref().map(|interface| Arc::clone(&interface.health));
    let follower = interface.as_mut().and_then(|interface| interface.follower.take());
    let watcher = Watcher::new(network.known(), follower).map_err(StackError::doing("starting the service"))?;
    let settings = FastStackConfig {
        flow_groups: cores,
        max_flows: config.max_connections,
        spin_us: config.spin.as_micros(),
        delayed_ack_us: config.delayed_ack.as_micros(),
        cpus: config.cpus.clone(),
        direct: config.direct,
        orphans: OrphanLimits::default(),
        slow,
    };
    let stack = FastStack::start_guarded(settings, ports, Box::new(network), guard)
        .map_err(StackError::doing("starting the cores"))?;
    Ok(StartedStack {
        stack: Box::new(stack),
        network: Some(Box::new(watcher)),
        interface: interface.map(|held| Box::new(held) as Box<dyn Send>),
        health: health.map(|health| health as Arc<dyn ServedInterface>),
    })
}

fn serve_interface(
    config: &Config,
    name: &str,
    loopback_mtu: u16,
    ports: &mut [Vec<Box<dyn Port>>],
    before_threads: &dyn Fn(),
) -> Result<(HostNetwork, Interface), StackError> {
    let vlan = (config.vlan != 0).then_some(config.vlan);
    // With a broker nothing here needs privilege.
    let has_broker = privileged::broker().is_some();
    if has_broker {
        before_threads();
    }
    let (held, steer) = interface::open(0, name, vlan, ports).map_err(|error| match error {
        InterfaceError::Served { .. } | InterfaceError::ServedAlready(_) => StackError::taken(error),
        error => StackError::of(error),
    })?;
    if !has_broker {
        before_threads();
    }
    let ports = HeldPorts::hold(interface::EPHEMERAL_PORTS).map_err(StackError::doing("binding ports"))?;
    let network = HostNetwork::serving(loopback_mtu, held.mtu, held.index, vlan, steer, ports, config.firewall);
    let network = network.map_err(netlink)?;
    Ok((network, held))
}

fn netlink(error: std::io::Error) -> StackError {
    StackError::doing("asking the kernel for its addresses")(error)
}

fn slow_config(config: &Config) -> SlowConfig {
    SlowConfig {
        max_flows: config.max_connections,
        congestion: Algorithm::parse(&config.congestion).unwrap_or_default(),
        time_wait_s: config.time_wait.as_micros().div_ceil(1_000_000) as u32,
        timestamps: config.timestamps,
        sack: config.sack,
        window_scaling: config.window_scaling,
        ecn: config.ecn,
        syn_cookies: config.syn_cookies,
        mss_clamp: config.mss_clamp,
        ..SlowConfig::default()
    }
}
