//! Starting, asking and stopping the threads.

use crate::api::{ClientId, ClientSetup, EngineConfig, Network, PairHandle};
use crate::core::{Core, Scratch};
use crate::guard::{Guard, Open};
use crate::host::{CoreLink, SlowHost};
use crate::mailbox::{Bell, mailbox};
use crate::metrics::Metrics;
use crate::portset::PortSet;
use crate::requests::Request;
use crate::rings::Endpoints;
use crate::slow::SlowThread;
use crate::status::{Connection, Status};
use crate::thread::epoll_with;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use towpath_ports::Port;
use towpath_ring::command::not_ours::REASONS;
use towpath_tcp::fast::{FastConfig, FastPath, FlowTable};
use towpath_tcp::slow::SlowPath;
use towpath_tcp::time::Micros;

/// Messages between the slow thread and one core, each way; more wait at the sender.
const MAILBOX: usize = 4096;

/// Running threads.
pub struct Engine {
    requests: mpsc::Sender<Request>,
    bells: Vec<Arc<Bell>>,
    slow_bell: Arc<Bell>,
    stop: Arc<AtomicBool>,
    panics: Arc<AtomicU64>,
    metrics: Arc<Metrics>,
    threads: Vec<JoinHandle<()>>,
}

impl Engine {
    /// Starts the threads. `ports[core]` are that core's ports in the order of their `PortId`; port 0 of every core is its
    /// loopback.
    pub fn start(
        config: EngineConfig,
        ports: Vec<Vec<Box<dyn Port>>>,
        network: Box<dyn Network>,
    ) -> io::Result<Engine> {
        Self::start_guarded(config, ports, network, Box::new(Open))
    }

    /// [`Engine::start`] under a policy.
    pub fn start_guarded(
        mut config: EngineConfig,
        ports: Vec<Vec<Box<dyn Port>>>,
        network: Box<dyn Network>,
        guard: Box<dyn Guard>,
    ) -> io::Result<Engine> {
        if !(1..=16).contains(&config.cores) || ports.len() != config.cores || ports.iter().any(Vec::is_empty) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "1 to 16 cores with at least one port each are needed",
            ));
        }
        config.slow.max_flows = config.max_flows;
        let stop = Arc::new(AtomicBool::new(false));
        let panics = Arc::new(AtomicU64::new(0));
        let slow_bell = Bell::new()?;
        let table = Arc::new(FlowTable::new(config.max_flows));
        let (requests, from_service) = mpsc::channel();
        let (mut cores, mut links, mut inbox) = (Vec::new(), Vec::new(), Vec::new());
        let mut bells = Vec::new();
        let metrics = Metrics::new(ports.iter().map(Vec::len).collect())?;
        for (number, ports) in ports.into_iter().enumerate() {
            let bell = Bell::new()?;
            let (to_core, core_inbox) = mailbox(MAILBOX, Arc::clone(&bell));
            let (outbox, from_core) = mailbox(MAILBOX, Arc::clone(&slow_bell));
            links.push(CoreLink { to: to_core, ports: ports.len() });
            inbox.push(from_core);
            let fast = FastConfig { delayed_ack_us: config.delayed_ack_us, ..FastConfig::default() };
            cores.push(Core {
                number,
                fast: FastPath::new(number, fast, Arc::clone(&table)),
                ports: PortSet::new(ports),
                rings: Endpoints::default(),
                inbox: core_inbox,
                outbox,
                epoll: epoll_with(&bell)?,
                stop: Arc::clone(&stop),
                panics: Arc::clone(&panics),
                metrics: Arc::clone(&metrics),
                spin_us: config.spin_us,
                cpu: config.cpus.get(number).copied(),
                scratch: Scratch::default(),
                bell: Arc::clone(&bell),
            });
            bells.push(bell);
        }
        let mut host = SlowHost::new(links, network, guard)?;
        host.pairs.enabled = config.direct;
        let slow = SlowThread {
            slow: SlowPath::new(config.slow),
            host,
            table,
            inbox,
            requests: from_service,
            epoll: epoll_with(&slow_bell)?,
            bell: Arc::clone(&slow_bell),
            stop: Arc::clone(&stop),
            panics: Arc::clone(&panics),
            metrics: Arc::clone(&metrics),
            publish_at: Micros(0),
            active: Vec::new(),
            is_active: Vec::new(),
            refresh_at: Micros(0),
            not_ours: [0; REASONS],
            last_id: 0,
            cores: config.cores,
        };
        let mut engine = Engine { requests, bells, slow_bell, stop, panics, metrics, threads: Vec::new() };
        engine.spawn("slow".into(), move || slow.run())?;
        for core in cores {
            engine.spawn(format!("core-{}", core.number), move || core.run())?;
        }
        Ok(engine)
    }

    fn spawn(&mut self, name: String, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
        self.threads.push(std::thread::Builder::new().name(name).spawn(run)?);
        Ok(())
    }

    fn ask(&self, request: Request) {
        // The receiver lives as long as this engine.
        let _ = self.requests.send(request);
        self.slow_bell.strike();
    }

    fn answer<T>(&self, request: impl FnOnce(mpsc::Sender<T>) -> Request) -> Option<T> {
        let (reply, answer) = mpsc::channel();
        self.ask(request(reply));
        answer.recv().ok()
    }

    /// Serves a client from now on.
    pub fn add_client(&self, setup: ClientSetup) -> io::Result<ClientId> {
        let gone = || io::Error::from(io::ErrorKind::BrokenPipe);
        self.answer(|reply| Request::AddClient(setup, reply)).ok_or_else(gone)?
    }
    /// Opens an event context; returns when every thread knows it.
    pub fn add_context(&self, client: ClientId, context: u32, wake: OwnedFd) {
        self.answer::<()>(|done| Request::Context(client, context, Some(wake), done));
    }
    /// Closes an event context; returns when no thread rings it any more.
    pub fn drop_context(&self, client: ClientId, context: u32) {
        self.answer::<()>(|done| Request::Context(client, context, None, done));
    }
    /// Keeps the kernel socket that reserves the port of a slot until the use of the slot ends that begins with the command
    /// of sequence number `seq`. That command may come before or after this.
    pub fn reserve(&self, client: ClientId, slot: u32, seq: u32, socket: OwnedFd) {
        self.ask(Request::Reserve(client, slot, seq, socket));
    }
    /// The last descriptor of this socket is gone: as if the application had closed it.
    pub fn hangup(&self, client: ClientId, slot: u32, generation: u32) {
        self.ask(Request::Hangup(client, slot, generation));
    }
    /// One of the client's processes is gone, and with it perhaps somebody who was woken for a new connection: the others are told.
    pub fn departed(&self, client: ClientId) {
        self.ask(Request::Departed(client));
    }
    /// No process of this client is left: its sockets are closed as by `hangup`, and it is forgotten when they are drained.
    pub fn remove_client(&self, client: ClientId) {
        self.ask(Request::RemoveClient(client));
    }
    /// The policy's rules or its knowledge of clients have changed: returns when limits and weights are in force.
    pub fn policy_changed(&self) {
        self.answer::<()>(Request::Policy);
    }
    /// [`Network::changed`] will now answer true.
    pub fn network_changed(&self) {
        self.slow_bell.strike();
    }
    /// What a client needs to use the pair of number `pair` in its place `place`.
    pub fn pair(&self, client: ClientId, place: u32, pair: u32) -> Option<PairHandle> {
        self.answer(|reply| Request::Pair(client, place, pair, reply)).flatten()
    }
    /// All sockets.
    pub fn connections(&self) -> Vec<Connection> {
        self.answer(Request::Connections).unwrap_or_default()
    }
    /// Counters.
    pub fn status(&self) -> Status {
        let (slow, not_ours, clients) = self.answer(Request::Status).unwrap_or_default();
        Status { cores: self.metrics.cores(), slow, panics: self.panics.load(Ordering::Relaxed), not_ours, clients }
    }
    /// The counters of all threads as a [`towpath_ring::metrics`] region that can be mapped but not written: a row per core, then
    /// one for the slow thread.
    pub fn metrics(&self) -> io::Result<OwnedFd> {
        self.metrics.memfd()
    }
    /// Ends the threads. Connections are forgotten without a word to their peers.
    pub fn stop(mut self) {
        self.end();
    }
    fn end(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.slow_bell.strike();
        for bell in &self.bells {
            bell.strike();
        }
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the engine ended by a panic");
            }
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.end();
    }
}
