//! The life of a service: start what the configuration says, serve, end cleanly.

use crate::admission::{Admission, UnknownName};
use crate::auto::{Auto, Chooser, Reach};
use crate::background;
use crate::choice::StackKind;
use crate::config::{Config, ConfigError};
use crate::cores::{self, Aside};
use crate::interface::{self, Interface, InterfaceError};
use crate::network::{HostNetwork, Known, Watcher};
use crate::paths::{self, PathError};
use crate::policy::Policy;
use crate::server::{Ended, ListenError, Server, Sockets};
use crate::shared::{Settings, Shared};
use crate::stacks::Stacks;
use crate::table;
use crate::units::Bytes;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::fd::AsFd;
use rustix::thread::LinkNameSpaceType;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Weak};
use towpath_card::machine::{Kind, MachineConfig, Wire};
use towpath_card::mirror::address::Address;
use towpath_card::mirror::near::{Near, NearError};
use towpath_card::{Card, CardConfig, CardError, Standby, StandbyConfig};
use towpath_engine::{Engine, EngineConfig};
use towpath_kernel::{Kernel, KernelConfig};
use towpath_ports::Port;
use towpath_ports::memory::Loopback;
use towpath_ring::Geometry;
use towpath_stack::Stack;
use towpath_tcp::slow::SlowConfig;
use towpath_tcp::slow::congestion::Algorithm;

/// Descriptors of a keeper beside those of its client's sockets.
const OTHER_DESCRIPTORS: u64 = 64;
/// Event contexts (epoll descriptors and threads that poll) of one client: what a region allows.
const CONTEXTS: u32 = 64;

/// Socket slots of a card's client where no number is asked for: its memory is small.
const CARD_SLOTS: u32 = 1024;
/// Clients of a card.
const CARD_CLIENTS: u32 = towpath_ring::card::MAX_CLIENTS;
/// Rings of a card where no size is asked for, bytes.
const CARD_RING: u64 = 64 << 10;

/// Why the service could not start or had to end. The text says what to do.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// Configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The second kernel.
    #[error(transparent)]
    Card(#[from] CardError),
    /// The other side of a far stack.
    #[error(transparent)]
    Far(#[from] NearError),
    /// `admit`.
    #[error(transparent)]
    Admit(#[from] UnknownName),
    /// The socket's directory.
    #[error(transparent)]
    Path(#[from] PathError),
    /// The socket.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The interface.
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    /// The network namespace.
    #[error("netns {}: {source}; `ip netns` lists those with names, and entering one needs root", path.display())]
    Namespace {
        /// Where it is.
        path: PathBuf,
        /// What is wrong with it.
        source: io::Error,
    },
    /// A step failed for want of something.
    #[error("{doing}: {source}")]
    Io {
        /// What was being done.
        doing: &'static str,
        /// Why it failed.
        source: io::Error,
    },
}

impl ServiceError {
    /// The exit code for it.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Config(_) | Self::Admit(_) => background::exit::USAGE,
            Self::Listen(ListenError::Running(_)) => background::exit::RUNNING,
            _ => background::exit::FAILED,
        }
    }
}

fn doing(doing: &'static str) -> impl FnOnce(io::Error) -> ServiceError {
    move |source| ServiceError::Io { doing, source }
}

/// Runs a service to its end, reports errors on standard error, and gives the exit code. `ready` is called once
/// when clients are served.
pub fn main(config: Result<Config, ConfigError>, ready: impl FnOnce()) -> ExitCode {
    start_log();
    match config.map_err(ServiceError::from).and_then(|config| run(config, ready)) {
        Ok(ended) => {
            tracing::info!(
                "ended: {}",
                match ended {
                    Ended::Signal => "signal",
                    Ended::Stopped => "told to stop",
                    Ended::Idle => "no client for as long as idle_exit says",
                }
            );
            ExitCode::SUCCESS
        }
        Err(error) => {
            let _ = writeln!(io::stderr(), "towpathd: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}

/// Log lines go to standard error; `TOWPATH_LOG` chooses them (`debug`, `towpath_service=debug`; default `info`).
pub(crate) fn start_log() {
    let filter = tracing_subscriber::EnvFilter::try_from_env("TOWPATH_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    let ansi = io::stderr().is_terminal();
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).with_ansi(ansi).try_init();
}

/// Starts everything, serves until it is told to end, ends everything.
pub fn run(config: Config, ready: impl FnOnce()) -> Result<Ended, ServiceError> {
    // Before any thread: they all inherit the mask.
    let signals = end_signals().map_err(doing("signals"))?;
    // Before any thread, too. Who names CPUs has said where they are to be.
    let aside = config.cpus.is_empty().then(Aside::begin);
    let limit = table::raise_limit();
    if let Some(netns) = &config.netns {
        enter(netns)?;
    }
    let admission = Admission::new(rustix::process::geteuid().as_raw(), &config.admit)?;
    let socket = match &config.socket {
        Some(path) => path.clone(),
        None => default_socket(&config)?,
    };
    let sockets = Sockets::listen(&socket, admission.opens_to_others())?;
    let geometry = geometry(&config, limit);
    let stacks = Stacks::of(&config, &socket);
    let policy = Policy::with_stacks(config.policy.clone(), config.policy_default, stacks.names());
    let policy = policy.map_err(ConfigError::Value)?;
    let auto = Auto::new(reach(config.stack), config.auto);
    let guard = || Box::new(Chooser::new(policy.clone(), auto.clone()));
    let started = start_stack(&config, geometry, guard)?;
    let settings = settings(&config, socket, geometry, (admission, policy, stacks, auto));
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        socket = %settings.socket.display(),
        stack = started.stack.name(),
        interface = config.interface.as_deref().unwrap_or("none"),
        cores = %config.cores,
        "serving"
    );
    let mut server = Server::new(settings, started.stack, sockets).map_err(doing("starting the service"))?;
    let watcher = started.known.map(|known| start_watching(server.shared(), known));
    let watcher = watcher.transpose().map_err(doing("starting the service"))?;
    let sizer = cores::start(server.shared()).map_err(doing("starting the service"))?;
    let aside = aside.map(|aside| aside.start(server.shared().stop_fd.try_clone()?));
    let aside = aside.transpose().map_err(doing("starting the service"))?;
    ready();
    let ended = server.run(Some(signals.as_fd())).map_err(doing("waiting"));
    if let Some(stack) = server.stop() {
        stack.stop();
    }
    for thread in watcher.into_iter().chain(sizer).chain(aside) {
        let _ = thread.join();
    }
    // Only now, as connections had their ports from it.
    drop(started.interface);
    ended
}

/// The signals that end a program are read from this from now on, by this thread and those that it starts.
pub fn end_signals() -> io::Result<SignalFd> {
    let mut set = SigSet::empty();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        set.add(signal);
    }
    set.thread_block()?;
    Ok(SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?)
}

/// The network namespace of all threads to come.
fn enter(netns: &str) -> Result<(), ServiceError> {
    let path = if netns.starts_with('/') { netns.into() } else { Path::new("/run/netns").join(netns) };
    let entered = std::fs::File::open(&path).and_then(|namespace| {
        rustix::thread::move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
            .map_err(io::Error::from)
    });
    entered.map_err(|source| ServiceError::Namespace { path, source })
}

fn settings(
    config: &Config,
    socket: PathBuf,
    geometry: Geometry,
    (admission, policy, stacks, auto): (Admission, Policy, Stacks, Auto),
) -> Settings {
    Settings {
        socket,
        geometry,
        admission,
        policy,
        stacks: Arc::new(stacks),
        auto,
        cores: config.cores,
        clients_per_user: config.clients_per_user,
        idle_exit: config.idle_exit.map(|time| time.to_std()),
        interface: config.interface.clone(),
        ports: ["memory".to_owned()].into_iter().chain(config.interface.clone()).collect(),
    }
}

/// The sizes of every client's region. A client cannot have more sockets than its keeper can have descriptors.
fn geometry(config: &Config, descriptors: u64) -> Geometry {
    let fit = descriptors.saturating_sub(OTHER_DESCRIPTORS).clamp(16, 65_536) as u32;
    let most = 1 << fit.ilog2();
    // The memory of a card has its page tables in it, whether it is used or not.
    let is_rdma =
        || config.stack == StackKind::Far && config.far.as_deref().is_some_and(|far| far.starts_with("rdma:"));
    // What an adapter may write into is locked in memory.
    let is_card = config.stack.card().is_some() || is_rdma();
    let default = Config::default();
    let asked = match config.sockets_per_client {
        slots if is_card && slots == default.sockets_per_client => CARD_SLOTS,
        slots => slots,
    };
    let slots = asked.min(most);
    if slots < asked {
        tracing::warn!(
            "the limit of {descriptors} open files allows {slots} sockets per client, not {asked}; raise it with \
             `ulimit -Hn` or LimitNOFILE="
        );
    }
    let ring = |size: Bytes, default: Bytes| {
        let small = is_card && size == default;
        (if small { CARD_RING } else { size.get() }) as u32
    };
    Geometry {
        slots,
        app_slots: slots / 2,
        tx_bytes: ring(config.send_buffer, default.send_buffer),
        rx_bytes: ring(config.receive_buffer, default.receive_buffer),
        contexts: CONTEXTS,
        // Of the kernel stack a client has one core for itself, whichever it is.
        cores: if config.stack == StackKind::Fast { most_cores(config) as u32 } else { 1 },
    }
}

/// As many cores as the stack can have.
fn most_cores(config: &Config) -> usize {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let most = config.cores.most(cpus, config.cpus.len());
    match &config.interface {
        // A core without a queue of its own would have nothing to do; a number is the operator's word, and its failure is told.
        Some(interface) if config.cores.is_chosen() => most.min(interface::receive_queues(interface)),
        _ => most,
    }
}

/// The registration socket of a service for which none is named.
pub fn default_socket(config: &Config) -> Result<PathBuf, PathError> {
    match config.stack {
        StackKind::Fast => paths::service_socket(config.interface.is_some()),
        StackKind::Kernel => paths::kernel_stack_socket(None),
        StackKind::Uml | StackKind::Qemu => paths::kernel_stack_socket(config.stack.card().map(Kind::name)),
        StackKind::Far => paths::kernel_stack_socket(Some("far")),
    }
}

/// A stack that runs.
struct Started {
    stack: Box<dyn Stack>,
    /// What it knows of the network, to be kept up to date.
    known: Option<Arc<Known>>,
    interface: Option<Interface>,
}

/// Where the connections of a program end up that leaves this stack out.
fn reach(stack: StackKind) -> Reach {
    match stack {
        // Listeners on it have none but its own connections.
        StackKind::Fast => Reach::Network,
        StackKind::Kernel => Reach::All,
        StackKind::Uml | StackKind::Qemu | StackKind::Far => Reach::Apart,
    }
}

fn start_stack(config: &Config, geometry: Geometry, guard: impl Fn() -> Box<Chooser>) -> Result<Started, ServiceError> {
    if config.stack == StackKind::Fast {
        let (engine, known, interface) = start_engine(config, guard())?;
        return Ok(Started { stack: Box::new(engine), known: Some(known), interface });
    }
    if let Some(kind) = config.stack.card() {
        let card = card_config(config, kind, geometry)?;
        if let Some(device) = &config.standby {
            let kernel = KernelConfig { cores: 1, spin_us: config.spin.as_micros(), cpus: Vec::new() };
            let standby = StandbyConfig { card, kernel, device: device.clone() };
            let standby = Standby::start(standby, || guard())?;
            return Ok(Started { stack: Box::new(standby), known: None, interface: None });
        }
        let card = Card::start(card, guard())?;
        return Ok(Started { stack: Box::new(card), known: None, interface: None });
    }
    if config.stack == StackKind::Far {
        let near = start_near(config, geometry, guard())?;
        return Ok(Started { stack: Box::new(near), known: None, interface: None });
    }
    if config.standby.is_some() {
        tracing::warn!("only the stack \"uml\" can stand by");
    }
    let spin_us = config.spin.as_micros();
    let kernel = KernelConfig { cores: most_cores(config), spin_us, cpus: config.cpus.clone() };
    let kernel = Kernel::start(&kernel, || guard()).map_err(doing("starting the cores"))?;
    Ok(Started { stack: Box::new(kernel), known: None, interface: None })
}

fn start_near(config: &Config, geometry: Geometry, guard: Box<Chooser>) -> Result<Near, ServiceError> {
    let far = config.far.as_deref().unwrap_or_default();
    let address = far.parse::<Address>().map_err(ConfigError::Value)?;
    let link = address.connect(config.trust_network);
    let link = link.map_err(|error| io::Error::new(error.kind(), format!("{address}: {error}")));
    Ok(Near::start(link.map_err(NearError::from)?, geometry, guard)?)
}

fn card_config(config: &Config, kind: Kind, geometry: Geometry) -> Result<CardConfig, ServiceError> {
    let init = std::env::current_exe().map_err(doing("finding this program"))?;
    let wire = config.card_tap.clone().map_or(Wire::None, Wire::Tap);
    let machine = MachineConfig {
        kind,
        program: None,
        init,
        kernel: config.card_kernel.clone(),
        cores: config.cores.fewest(),
        memory_mib: (config.card_memory.get() >> 20) as u32,
        wire,
        address: config.card_address.clone(),
        gateway: config.card_gateway.clone(),
    };
    Ok(CardConfig { machine, geometry, clients: CARD_CLIENTS })
}

fn start_engine(config: &Config, guard: Box<Chooser>) -> Result<(Engine, Arc<Known>, Option<Interface>), ServiceError> {
    let mut ports: Vec<Vec<Box<dyn Port>>> = Vec::new();
    let mut loopback_mtu = u16::MAX;
    let cores = most_cores(config);
    for _ in 0..cores {
        let loopback = Loopback::new();
        loopback_mtu = u16::try_from(loopback.capabilities().mtu_bytes).unwrap_or(u16::MAX);
        ports.push(vec![Box::new(loopback)]);
    }
    let mut slow = SlowConfig {
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
    };
    let netlink = doing("asking the kernel for its addresses");
    let (network, interface) = match &config.interface {
        None => (HostNetwork::new(loopback_mtu).map_err(netlink)?, None),
        Some(name) => {
            let vlan = (config.vlan != 0).then_some(config.vlan);
            let (held, steer) = interface::open(name, vlan, &mut ports)?;
            (slow.first_port, slow.last_port) = interface::EPHEMERAL_PORTS.into_inner();
            (HostNetwork::serving(loopback_mtu, held.mtu, held.index, vlan, steer).map_err(netlink)?, Some(held))
        }
    };
    let known = network.known();
    let engine = EngineConfig {
        cores,
        max_flows: config.max_connections,
        spin_us: config.spin.as_micros(),
        delayed_ack_us: config.delayed_ack.as_micros(),
        cpus: config.cpus.clone(),
        direct: config.direct,
        slow,
    };
    let engine = Engine::start_guarded(engine, ports, Box::new(network), guard).map_err(doing("starting the cores"))?;
    Ok((engine, known, interface))
}

/// The thread that waits for changes of routes, addresses and neighbours.
fn start_watching(shared: &Arc<Shared>, known: Arc<Known>) -> io::Result<std::thread::JoinHandle<()>> {
    let stop = shared.stop_fd.try_clone()?;
    let shared = Arc::downgrade(shared);
    let tell = move || {
        if let Some(shared) = Weak::upgrade(&shared) {
            shared.stack.network_changed();
        }
    };
    let mut watcher = Watcher::new(known)?;
    std::thread::Builder::new().name("network".into()).spawn(move || {
        if let Err(error) = watcher.run(stop.as_fd(), tell) {
            tracing::error!(%error, "changes of addresses and routes are not noticed any more");
        }
    })
}
