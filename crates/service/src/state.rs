//! The state that the service's threads share: its settings, its clients and its stack.

use crate::auto::Auto;
use crate::broker_handle::BrokerHandle;
use crate::config::CoresSetting;
use crate::conversation::Places;
use crate::known_namespaces::KnownNamespaces;
use crate::lease::{ClientLease, Full};
use crate::live::LiveSettings;
use crate::modules::Modules;
use crate::other_stacks::OtherStacks;
use crate::policy::{Identity, Policy};
use crate::registry::{RegisteredClient, Registry};
use crate::sandbox::Sandbox;
use crate::source::Source;
use crate::stack_factory::{MEMORY_PORT, ServedInterface};
use crate::threads::ThreadController;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use towpath_ring::control::features;
use towpath_ring::{Geometry, Region, wake};
use towpath_runtime::log_throttle::LogThrottle;
use towpath_runtime::{ClientId, ClientMemory, ClientNamespace, ClientSetup, Stack};

/// Most expected processes that the idle exit waits for.
const MAX_EXPECTED: usize = 1024;
/// How much longer than asked a service drains that nobody tells to end.
const DRAIN_GRACE: Duration = Duration::from_secs(2);

/// The settings that the service is built from and reports.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The registration socket.
    pub socket: PathBuf,
    /// Sizes of a client's region.
    pub geometry: Geometry,
    /// After how long without data an open connection gives back what its rings hold, ms; 0 = never.
    pub idle_ms: u32,
    /// What a reload changes.
    pub live: LiveSettings,
    /// What a reload reads.
    pub source: Arc<Source>,
    /// The operator's policy.
    pub policy: Policy,
    /// The network namespaces of the configuration's other stacks.
    pub namespaces: Arc<KnownNamespaces>,
    /// The other stacks that the configuration names.
    pub stacks: Arc<OtherStacks>,
    /// The measurements and decisions of `auto`.
    pub auto: Auto,
    /// The number of cores that the stack may use.
    pub cores: CoresSetting,
    /// The limit on open files. The users' shares follow from it.
    pub descriptors: u64,
    /// The served interfaces.
    pub interfaces: Vec<Arc<dyn ServedInterface>>,
    /// What this process has given up.
    pub sandbox: Arc<Sandbox>,
    /// Whose the ports of each flow group are, by number: see `StartedStack::ports`.
    pub ports: Vec<Option<usize>>,
}

impl Settings {
    /// The names of the ports of each flow group, as they are now.
    pub fn port_names(&self) -> Vec<String> {
        let name = |place: &Option<usize>| {
            let interface = place.and_then(|place| self.interfaces.get(place));
            interface.map_or_else(|| MEMORY_PORT.to_owned(), |interface| interface.name())
        };
        self.ports.iter().map(name).collect()
    }
}

/// A client as its connection's thread knows it. It holds no descriptors.
#[derive(Clone)]
pub struct Membership {
    /// The stack's number for the client.
    pub id: ClientId,
    /// The key of its [`RegisteredClient`].
    pub token: u64,
    /// Its region.
    pub region: Arc<Region>,
}

/// Why a client is refused.
#[derive(Debug)]
pub struct Refusal {
    /// The errno for the client.
    pub errno: i32,
    /// The reason, for the log.
    pub why: String,
}

/// See the module.
pub struct ServiceState {
    /// How it was set up.
    pub settings: Settings,
    /// When it was started.
    pub started: Instant,
    /// The stack.
    pub stack: Box<dyn Stack>,
    /// Decides how many threads the stack runs.
    pub threads: ThreadController,
    /// Reaches the descriptor broker.
    pub broker: BrokerHandle,
    /// The modules that frames go through.
    pub modules: Modules,
    registry: Mutex<Registry>,
    /// Limits the log lines that clients can provoke by what they send.
    pub client_lines: LogThrottle,
    /// Readable once all threads shall end.
    pub stop_fd: OwnedFd,
    /// Wakes the main loop.
    wake_fd: OwnedFd,
    main_turns: AtomicU64,
    stopping: AtomicBool,
    /// When a service that drains ends by itself.
    ends_at: Mutex<Option<Instant>>,
    /// The conversations on the control socket.
    pub conversations: Arc<Places>,
}

impl ServiceState {
    /// The state of a service whose stack runs already.
    pub fn new(settings: Settings, stack: Box<dyn Stack>, broker: BrokerHandle) -> io::Result<Self> {
        let threads = ThreadController::new(settings.cores, stack.workers().most);
        threads.begin(&*stack);
        let registry = Registry::new(settings.geometry.contexts, settings.descriptors);
        let modules = Modules::new(settings.policy.clone());
        Ok(Self {
            settings,
            threads,
            broker,
            started: Instant::now(),
            modules,
            stack,
            registry: Mutex::new(registry),
            client_lines: LogThrottle::new(),
            stop_fd: wake::doorbell()?,
            wake_fd: wake::doorbell()?,
            main_turns: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
            ends_at: Mutex::default(),
            conversations: Arc::default(),
        })
    }

    /// The registry. Every change of it is one step, so a thread that panicked with the lock has left it consistent.
    pub fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a library must know of the contract ([`towpath_ring::control::features`]).
    pub fn features(&self) -> u32 {
        let listens = if self.stack.listens_in_kernel() { features::LISTENS_IN_KERNEL } else { 0 };
        let one = if self.stack.namespace().is_some() { features::ONE_NAMESPACE } else { 0 };
        let others = if self.settings.namespaces.have_stacks() { features::OTHER_NAMESPACES } else { 0 };
        let memory = if self.stack.takes_client_memory() { features::CLIENT_MEMORY } else { 0 };
        listens | one | others | memory
    }

    /// The sizes of a new region for a library that has said these features.
    pub fn geometry_for(&self, said: u32) -> Geometry {
        let all = self.settings.geometry;
        if said & features::SMALL_REGION == 0 {
            return all;
        }
        Geometry { tx_most: all.tx_bytes.min(all.tx_most), rx_most: all.rx_bytes.min(all.rx_most), ..all }
    }

    /// Takes descriptors of the service's table for a user. False: he has his share.
    pub fn take_descriptors(&self, uid: u32, count: u64) -> bool {
        let operator = self.settings.live.admission().is_operator(uid);
        self.registry().budget.take(uid, operator, count)
    }

    /// The main loop takes a turn.
    pub fn main_turns(&self) {
        self.main_turns.fetch_add(1, Ordering::Relaxed);
    }

    /// The turns that the main loop has taken.
    pub fn turns_of_main(&self) -> u64 {
        self.main_turns.load(Ordering::Relaxed)
    }

    /// Wakes the main loop, e.g. because the last client is gone.
    pub fn wake(&self) {
        wake::notify(self.wake_fd.as_fd());
    }

    /// The descriptor that the main loop waits on beside its sockets.
    pub fn wake_fd(&self) -> &OwnedFd {
        &self.wake_fd
    }

    /// Ends the main loop.
    pub fn request_stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.wake();
    }

    /// Leaves new sockets and the listeners to the kernel, and ends the main loop after this time, unless it is told to end
    /// before. Who waits for the connections has a little longer to say so.
    pub fn drain(&self, time: Duration) {
        let begins = !self.settings.policy.drains();
        *self.ends_at.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now().checked_add(time + DRAIN_GRACE);
        if begins {
            self.settings.policy.drain();
            self.stack.policy_changed();
            tracing::info!("draining: new sockets are the kernel's; the service ends within {} s", time.as_secs());
        }
        self.wake();
    }

    /// Time until a service that drains ends by itself.
    pub fn drains_for(&self) -> Option<Duration> {
        let at = *self.ends_at.lock().unwrap_or_else(PoisonError::into_inner);
        at.map(|at| at.saturating_duration_since(Instant::now()))
    }

    /// Has the end been asked for?
    pub fn stop_requested(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Is no client there, and none expected?
    pub fn is_unused(&self) -> bool {
        let registry = self.registry();
        registry.connections.is_empty() && registry.expected.is_empty()
    }

    /// Postpones the idle exit.
    pub fn used(&self) {
        self.registry().last_use = Some(Instant::now());
    }

    /// Postpones the idle exit until this process has ended: a program may compute for an hour before its first socket.
    pub fn hold(&self, pid: i32) {
        if self.settings.live.values().idle_exit.is_none() {
            return;
        }
        let Some(pid) = rustix::process::Pid::from_raw(pid) else { return };
        let Ok(process) = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()) else { return };
        let mut registry = self.registry();
        if registry.expected.len() < MAX_EXPECTED {
            registry.expected.push(Arc::new(process));
            drop(registry);
            self.wake();
        }
    }

    /// Registers a client with a new region. The descriptors are those of `Welcome`. Where clients make the memory of their
    /// regions, `ask` gets it, after the client's place has been found free.
    pub fn new_client(
        &self,
        identity: Identity,
        namespace: Option<u64>,
        geometry: Geometry,
        ask: impl FnOnce() -> Result<OwnedFd, Refusal>,
    ) -> Result<(Membership, Arc<Vec<OwnedFd>>), Refusal> {
        let live = self.settings.live.values();
        let (uid, most, operator) = (identity.uid, live.clients_per_user, live.admission.is_operator(identity.uid));
        let cost = (client_descriptors(&geometry), most);
        let shares = self.registry().shares();
        let lease = ClientLease::take(&shares, uid, operator, cost).map_err(|full| match full {
            Full::Descriptors => {
                let why = format!("uid {uid} has its share of descriptors; raise the limit with `ulimit -Hn`");
                Refusal { errno: Errno::NFILE.raw_os_error(), why }
            }
            Full::Regions => {
                let why = format!(
                    "uid {uid} has {most} clients already, with those that have ended and whose connections are not \
                     completed; raise `clients_per_user`"
                );
                Refusal { errno: Errno::USERS.raw_os_error(), why }
            }
        })?;
        let memory = self.stack.takes_client_memory().then(ask).transpose()?;
        self.make_client(identity, namespace, geometry, lease, memory)
            .map_err(|error| Refusal { errno: errno_of(&error), why: error.to_string() })
    }

    fn make_client(
        &self,
        identity: Identity,
        namespace: Option<u64>,
        geometry: Geometry,
        lease: ClientLease,
        memory: Option<OwnedFd>,
    ) -> io::Result<(Membership, Arc<Vec<OwnedFd>>)> {
        let Identity { uid, pid, .. } = identity;
        let ClientMemory { region, memfd, doorbells } = match memory {
            Some(memfd) => ClientMemory::brought(memfd, geometry)?,
            None => self.stack.client_memory(geometry)?,
        };
        let region = Arc::new(region);
        let copies: Vec<OwnedFd> = doorbells.iter().map(OwnedFd::try_clone).collect::<io::Result<_>>()?;
        let descriptors: Arc<Vec<OwnedFd>> = Arc::new([memfd].into_iter().chain(doorbells).collect());
        let namespace = ClientNamespace::new(namespace);
        let setup = ClientSetup {
            region: region.clone(),
            doorbells: copies,
            uid,
            pid,
            name: program_name(pid),
            remote_waker: None,
            namespace: namespace.clone(),
            lease: Some(Box::new(lease)),
        };
        let id = self.stack.add_client(setup)?;
        // The policy must know the client before it has its region, and can post its first command.
        self.settings.policy.enter(id, identity);
        self.stack.policy_changed();
        let membership = Membership { id, token: region.token(), region: region.clone() };
        let client = RegisteredClient::new(id, uid, region, descriptors.clone(), namespace);
        self.registry().clients.insert(membership.token, client);
        Ok((membership, descriptors))
    }

    /// Adds a process to an existing client. `None` if this user has no such client.
    pub fn join_client(
        &self,
        identity: Identity,
        namespace: Option<u64>,
        token: u64,
    ) -> Option<(Membership, Arc<Vec<OwnedFd>>)> {
        let mut registry = self.registry();
        let client = registry.clients.get_mut(&token).filter(|client| client.uid == identity.uid)?;
        let policy = &self.settings.policy;
        let before = policy.version();
        if !policy.enter(client.id, identity) {
            return None;
        }
        client.joined(namespace);
        let membership = Membership { id: client.id, token, region: client.region.clone() };
        let descriptors = client.descriptors.clone();
        drop(registry);
        // The rules about this process hold for listeners that its client has.
        if policy.version() != before {
            self.stack.policy_changed();
        }
        Some((membership, descriptors))
    }
}

/// Descriptors of a client in the service's table: its memory, and each doorbell twice, for the stack and for
/// processes that join.
fn client_descriptors(geometry: &Geometry) -> u64 {
    1 + 2 * (u64::from(geometry.flow_groups) + 1)
}

/// The program's name, for people.
fn program_name(pid: i32) -> String {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    // A program may call itself anything; control characters would spoil a terminal.
    name.trim_end().chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// The errno of a refusal that reports an error.
pub fn errno_of(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(Errno::IO.raw_os_error())
}
