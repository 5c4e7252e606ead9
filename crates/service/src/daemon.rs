//! The life of a service: start what the configuration names, serve, and end cleanly.

use crate::activation;
use crate::admission::{Admission, UnknownName};
use crate::affinity_guard::AffinityGuard;
use crate::auto::{Auto, Reach};
use crate::background;
use crate::config::{Config, ConfigError, FirewallSetting, StackKind};
use crate::cpus;
use crate::default_socket::default_socket;
use crate::descriptor_table;
use crate::events;
use crate::firewall_rules;
use crate::geometry::geometry;
use crate::guard::ServiceGuard;
use crate::known_namespaces::{KnownNamespaces, names_of};
use crate::live::LiveSettings;
use crate::log;
use crate::namespace_watch;
use crate::netns;
use crate::options::Options;
use crate::other_stacks::OtherStacks;
use crate::paths::PathError;
use crate::policy::Policy;
use crate::policy::list::{Entry, PROGRAM_IS_NO_BOUNDARY};
use crate::privileged;
use crate::pulse;
use crate::sandbox::{self, Sandbox};
use crate::server::{Ended, ListenError, Server, Sockets};
use crate::source::Source;
use crate::stack_factory::{NetworkWatcher, StackError, StackFactory};
use crate::state::{ServiceState, Settings};
use crate::stop_wait::stopped_within;
use crate::threads;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::fd::AsFd;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use towpath_broker::pulse::Pulse;
use towpath_broker::supervise::{Beginning, supervise};
use towpath_ring::Geometry;
use towpath_runtime::AdmissionPolicy;

/// Why the service could not start or had to end. The text says what to do.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The stack.
    #[error(transparent)]
    Stack(StackError),
    /// `admit`.
    #[error(transparent)]
    Admit(#[from] UnknownName),
    /// The socket's directory.
    #[error(transparent)]
    Path(#[from] PathError),
    /// The socket.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The network namespace.
    #[error("netns {}: {source}; `ip netns` lists those with names, and entering one needs root", path.display())]
    Namespace {
        /// Its path.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// A step failed.
    #[error("{doing}: {source}")]
    Io {
        /// The step.
        doing: &'static str,
        /// The error.
        source: io::Error,
    },
}

impl ServiceError {
    /// The exit code for this error.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Config(_) | Self::Admit(_) => background::exit::USAGE,
            Self::Listen(ListenError::Running(_)) | Self::Stack(StackError::Taken(_)) => background::exit::RUNNING,
            _ => background::exit::FAILED,
        }
    }
}

impl From<StackError> for ServiceError {
    fn from(error: StackError) -> Self {
        match error {
            StackError::Config(error) => Self::Config(error),
            error => Self::Stack(error),
        }
    }
}

fn doing(doing: &'static str) -> impl FnOnce(io::Error) -> ServiceError {
    move |source| ServiceError::Io { doing, source }
}

/// How a start goes, for the process that waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Startup<'a> {
    /// Clients are served.
    Serving,
    /// The service cannot start, or has failed; why.
    Failed(&'a str),
}

/// Runs a service to its end, reports errors on standard error, and returns the exit code. `tell` is called when
/// clients are served, and with an error.
pub fn main(options: &Options, stacks: &impl StackFactory, tell: impl Fn(Startup<'_>)) -> ExitCode {
    let config = log::start().and_then(|()| options.configuration());
    let entered = |config: Config| match &config.netns {
        Some(netns) => enter(netns).map(|()| config),
        None => Ok(config),
    };
    let config = config.and_then(activation::take).map_err(ServiceError::from).and_then(entered);
    if let Ok(config) = config.as_ref()
        && !config.interface.is_empty()
    {
        match config.firewall {
            FirewallSetting::Own => {
                tracing::warn!(
                    "firewall = \"own\": the policy alone judges accelerated connections, and no rule of the kernel's"
                );
            }
            FirewallSetting::Respect => firewall_rules::passed_by().iter().for_each(|rules| tracing::warn!("{rules}")),
        }
    }
    if let Ok(config) = &config {
        events::open(stacks.flow_groups(config));
    }
    match config {
        Ok(config) if sandbox::has_broker(&config) => supervised(&config, options, stacks, &tell),
        config => {
            ended(config.and_then(|config| run(&config, options, stacks, || tell(Startup::Serving), None)), &tell)
        }
    }
}

/// Starts a worker, and stays as its broker.
fn supervised(config: &Config, options: &Options, stacks: &impl StackFactory, tell: &impl Fn(Startup<'_>)) -> ExitCode {
    let worker = |Beginning { broker, first, configuration, pulse }: Beginning| {
        // Without it the worker's lines come by the broker's way.
        let _ = log::apart();
        privileged::set_broker(broker);
        if config.stack == StackKind::Fast {
            privileged::map_code();
        }
        let reread = configuration.and_then(|text| options.configuration_of(&text).ok()).map(activation::named);
        let config = &reread.map_or_else(|| config.clone(), |new| config.with_changeable_of(&new));
        let ready = || {
            // The broker knows it first: from then on it replaces a worker that dies.
            if let Some(broker) = privileged::broker() {
                let _ = broker.serving();
            }
            if first {
                tell(Startup::Serving);
            }
        };
        exit_code(run(config, options, stacks, ready, Some(pulse)), &|startup| {
            if first {
                tell(startup)
            }
        })
    };
    match supervise(&mut *stacks.privileges(config), &events::inherit, &worker) {
        Ok(code) => ExitCode::from(code),
        Err(source) => ended(Err(ServiceError::Io { doing: "starting the process that serves", source }), tell),
    }
}

fn ended(result: Result<Ended, ServiceError>, tell: &impl Fn(Startup<'_>)) -> ExitCode {
    ExitCode::from(exit_code(result, tell))
}

/// Says how the service has ended.
fn exit_code(result: Result<Ended, ServiceError>, tell: &impl Fn(Startup<'_>)) -> u8 {
    match result {
        Ok(ended) => {
            tracing::info!(
                "ended: {}",
                match ended {
                    Ended::Signal => "signal",
                    Ended::Stopped => "told to stop",
                    Ended::Idle => "no client for as long as idle_exit says",
                }
            );
            0
        }
        Err(error) => {
            let why = error.to_string();
            let _ = writeln!(io::stderr(), "towpathd: {why}");
            tell(Startup::Failed(&why));
            error.exit_code()
        }
    }
}

/// Starts everything, serves until told to end, and ends everything.
fn run(
    config: &Config,
    options: &Options,
    factory: &impl StackFactory,
    ready: impl FnOnce(),
    pulse: Option<Pulse>,
) -> Result<Ended, ServiceError> {
    events::take_over();
    cpus::check(config)?;
    // Signals are blocked before any thread starts, because threads inherit the mask.
    let signals = end_signals().map_err(doing("signals"))?;
    // The affinity is inherited, too. A configuration with CPUs needs no guard.
    let affinity = config.cpus.is_empty().then(AffinityGuard::begin);
    let limit = descriptor_table::raise_limit();
    let mut admission = Admission::new(rustix::process::geteuid().as_raw(), &config.admit)?;
    if config.stack.is_guest() && !admission.restrict_clients_to_one() {
        tracing::warn!(
            "all programs of a guest share one memory, so it serves the service's own user alone, and nobody else whom \
             `admit` names; start a guest for each user"
        );
    }
    let socket = match &config.socket {
        Some(path) => path.clone(),
        None => default_socket(config)?,
    };
    let sockets = Sockets::listen(&socket, admission.opens_to_others())?;
    let geometry = geometry(config, limit, factory.flow_groups(config));
    let stacks = OtherStacks::of(config, &socket);
    let namespaces = KnownNamespaces::of(config);
    let (rules, beside) = (config.own_policy(), namespaces.names().clone());
    let policy = Policy::with_namespaces(rules, config.policy_default, stacks.names(), beside);
    let policy = policy.map_err(ConfigError::Value)?;
    if config.policy.iter().any(Entry::names_a_program) {
        tracing::info!("policy: {PROGRAM_IS_NO_BOUNDARY}");
    }
    let auto = Auto::new(reach(config.stack), config.auto);
    let guard = || Box::new(ServiceGuard::new(policy.clone(), auto.clone())) as Box<dyn AdmissionPolicy>;
    let sandbox = Arc::new(Sandbox::new(config));
    let started = factory.start(config, geometry, &guard, &|| sandbox.before_threads())?;
    let settings = settings(config, socket, (geometry, limit), (admission, policy, stacks, auto), sandbox.clone());
    let settings = Settings { namespaces: Arc::new(namespaces), ..settings };
    let source = Arc::new(Source::new(options.clone(), config.clone()));
    let settings = Settings { source, interfaces: started.health, ports: started.ports, ..settings };
    let name = options.stack_name.clone().unwrap_or_else(|| started.stack.name().into());
    log::of_service([("stack", name), ("interface", config.interface.join(","))]);
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        socket = %settings.socket.display(),
        stack = started.stack.name(),
        interface = if config.interface.is_empty() { "none".into() } else { config.interface.join(", ") },
        cores = %config.cores,
        "serving"
    );
    let mut server = Server::new(settings, started.stack, sockets).map_err(doing("starting the service"))?;
    if server.state().stack.module_rows().is_some() {
        match privileged::successor_memory() {
            Some(Ok(memory)) => server.state().modules.inherit(&*server.state().stack, memory),
            Some(Err(error)) => tracing::warn!(%error, "modules are lost when the worker process dies"),
            None => {}
        }
    }
    let watcher = started.network.map(|network| start_watching(server.state(), network));
    let watcher = watcher.transpose().map_err(doing("starting the service"))?;
    let sizer = start_sizing(server.state()).map_err(doing("starting the service"))?;
    let affinity = affinity.map(|guard| guard.start(server.state().stop_fd.try_clone()?));
    let affinity = affinity.transpose().map_err(doing("starting the service"))?;
    // The first table's stack is the service, which its operator ends.
    let watched = config.of.is_some() && config.netns.is_some();
    let namespace = watched.then(|| namespace_watch::start(server.state(), names_of(config))).transpose();
    let namespace = namespace.map_err(doing("starting the service"))?.flatten();
    let pulse = pulse.map(|pulse| pulse::start(server.state(), pulse)).transpose();
    let pulse = pulse.map_err(doing("starting the service"))?;
    sandbox.before_clients();
    ready();
    let ended = server.run(Some(&signals)).map_err(doing("waiting"));
    if let Some(stack) = server.stop() {
        stack.stop();
    }
    for thread in watcher.into_iter().chain(sizer).chain(affinity).chain(namespace).chain(pulse) {
        let _ = thread.join();
    }
    // The interfaces' ports are released only after the connections that used them.
    drop(started.interfaces);
    ended
}

/// Blocks the signals that end a program, in this thread and those that it starts, and returns a descriptor to read
/// them.
pub fn end_signals() -> io::Result<SignalFd> {
    let mut set = SigSet::empty();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        set.add(signal);
    }
    set.thread_block()?;
    Ok(SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?)
}

/// Enters a network namespace, for this thread and those that it starts.
fn enter(netns: &str) -> Result<(), ServiceError> {
    let path = netns::path(netns);
    netns::enter_for_good(&path).map_err(|source| ServiceError::Namespace { path, source })
}

fn settings(
    config: &Config,
    socket: PathBuf,
    (geometry, descriptors): (Geometry, u64),
    (admission, policy, stacks, auto): (Admission, Policy, OtherStacks, Auto),
    sandbox: Arc<Sandbox>,
) -> Settings {
    Settings {
        socket,
        geometry,
        idle_ms: idle_ms(config),
        live: LiveSettings::new(admission, config.clients_per_user, config.idle_exit.map(|time| time.to_std())),
        source: Arc::default(),
        policy,
        stacks: Arc::new(stacks),
        namespaces: Arc::default(),
        auto,
        cores: config.cores,
        descriptors,
        interfaces: Vec::new(),
        sandbox,
        ports: Vec::new(),
    }
}

/// Other stacks than the fast one need all memory of a ring at any time.
fn idle_ms(config: &Config) -> u32 {
    if config.stack == StackKind::Fast { (config.idle_memory.as_micros() / 1000) as u32 } else { 0 }
}

/// The destinations that a connection reaches equally over this stack and over the program's kernel.
fn reach(stack: StackKind) -> Reach {
    match stack {
        // A listener on this stack accepts only what arrives over this stack.
        StackKind::Fast => Reach::Network,
        StackKind::Kernel => Reach::All,
        StackKind::Uml | StackKind::Qemu | StackKind::Remote => Reach::Apart,
    }
}

/// Starts the thread that waits for changes of routes, addresses and neighbours.
fn start_watching(state: &Arc<ServiceState>, mut network: Box<dyn NetworkWatcher>) -> io::Result<JoinHandle<()>> {
    let stop = state.stop_fd.try_clone()?;
    let state = Arc::downgrade(state);
    let changed = move || {
        if let Some(state) = Weak::upgrade(&state) {
            state.stack.network_changed();
        }
    };
    std::thread::Builder::new().name("network".into()).spawn(move || {
        if let Err(error) = network.run(stop.as_fd(), &changed) {
            tracing::error!(%error, "changes of addresses and routes are not noticed any more");
        }
    })
}

/// Starts the thread that chooses the number of the stack's threads, if there is anything to choose.
fn start_sizing(state: &Arc<ServiceState>) -> io::Result<Option<JoinHandle<()>>> {
    if !state.threads.decides() {
        return Ok(None);
    }
    let stop = state.stop_fd.try_clone()?;
    let state = Arc::downgrade(state);
    let run = move || {
        let mut pause = threads::TICK_MS;
        while !stopped_within(stop.as_fd(), pause) {
            let Some(state) = state.upgrade() else { return };
            let clients = !state.registry().connections.is_empty();
            pause = state.threads.tick(&*state.stack, clients);
        }
    };
    std::thread::Builder::new().name("sizer".into()).spawn(run).map(Some)
}
