//! Starts the fast stack: a loopback port and the queues of the interface for each flow group, and the slow path's
//! settings.

use crate::attach::{InterfaceError, mode_of};
use crate::health;
use crate::interface::{self, Opened};
use crate::network::held_ports::HeldPorts;
use crate::network::matching::matching;
use crate::network::netlink::Netlink;
use crate::network::{HostNetwork, Watcher};
use std::sync::Arc;
use towpath_fast::{FastStack, FastStackConfig};
use towpath_ports::Port;
use towpath_ports::listening::Listening;
use towpath_ports::memory::Loopback;
use towpath_runtime::{AdmissionPolicy, OrphanLimits};
use towpath_service::config::{Config, Selector};
use towpath_service::privileged;
use towpath_service::stack_factory::{ServedInterface, StackError, StartedStack};
use towpath_tcp::slow::SlowConfig;
use towpath_tcp::slow::congestion::Algorithm;

/// The most cores that the stack can use, which is the number of its flow groups.
pub fn most_cores(config: &Config) -> usize {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let most = config.cores.most(cpus, config.cpus.len());
    // More cores than the interface with the fewest queues has are of no use, so a range ends there. A fixed number is the
    // operator's choice: if it is too large, the start fails and says so.
    let queues =
        config.interface.iter().flat_map(|text| names_of(text)).map(|name| health::receive_queues(&name)).min();
    queues.filter(|_| config.cores.is_chosen()).map_or(most, |queues| most.min(queues))
}

/// The interfaces that are meant now.
fn names_of(text: &str) -> Vec<String> {
    let chosen = match Selector::parse(text) {
        Ok(Selector::Name(name)) => return vec![name],
        Ok(selector) => Netlink::connect().and_then(|mut netlink| matching(&mut netlink, &selector)),
        Err(_) => return Vec::new(),
    };
    chosen.unwrap_or_default().into_iter().map(|device| device.name).collect()
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
    let (network, mut opened) = if config.interface.is_empty() {
        // While there are privileges.
        let filter = Listening::alone();
        before_threads();
        if let Err(error) = &filter {
            tracing::debug!(%error, "no filter for listeners: rules cannot hold for what the kernel accepts for them");
        }
        (HostNetwork::with_filter(loopback_mtu, filter.ok()).map_err(netlink)?, None)
    } else {
        let (network, opened) = serve_interfaces(config, loopback_mtu, &mut ports, before_threads)?;
        slow.held_ports = true;
        (slow.first_port, slow.last_port) = interface::EPHEMERAL_PORTS.into_inner();
        (network, Some(opened))
    };
    let mut owners = vec![None];
    for (place, one) in opened.iter().flat_map(|opened| &opened.interfaces).enumerate() {
        owners.extend(std::iter::repeat_n(Some(place), one.ports_each));
    }
    let followers = opened.as_mut().map(|opened| std::mem::take(&mut opened.followers)).unwrap_or_default();
    let health = |opened: &Opened| {
        opened.interfaces.iter().map(|one| Arc::clone(&one.health) as Arc<dyn ServedInterface>).collect()
    };
    let health = opened.as_ref().map(health).unwrap_or_default();
    let watcher = Watcher::new(network.known(), followers).map_err(StackError::doing("starting the service"))?;
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
        interfaces: opened.map(|held| Box::new(held) as Box<dyn Send>),
        health,
        ports: owners,
    })
}

fn serve_interfaces(
    config: &Config,
    loopback_mtu: u16,
    ports: &mut [Vec<Box<dyn Port>>],
    before_threads: &dyn Fn(),
) -> Result<(HostNetwork, Opened), StackError> {
    // With a broker nothing here needs privilege.
    let has_broker = privileged::broker().is_some();
    if has_broker {
        before_threads();
    }
    let mut opened = interface::open(&config.interface, &config.vlan, mode_of(config.port), config.firewall, ports)
        .map_err(|error| match error {
            InterfaceError::Served { .. } | InterfaceError::ServedAlready(_) => StackError::taken(error),
            error => StackError::of(error),
        })?;
    if !has_broker {
        before_threads();
    }
    let (held, steer) = (HeldPorts::hold(interface::EPHEMERAL_PORTS), opened.steer.take());
    let held = held.map_err(StackError::doing("binding ports"))?;
    let network = HostNetwork::serving(loopback_mtu, &opened.interfaces, steer, held, config.firewall);
    Ok((network.map_err(netlink)?, opened))
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
