//! Starts, asks and stops the threads.

use crate::api::{FastStackConfig, Network};
use crate::capture::FastCapture;
use crate::direct_frames::DirectThread;
use crate::flood_notice::FloodNotice;
use crate::group::{FlowGroup, Scratch};
use crate::host::{GroupLink, SlowHost};
use crate::kernel_listeners::ListenerCheck;
use crate::mailbox::{Doorbell, mailbox};
use crate::metrics::Metrics;
use crate::portset::PortSet;
use crate::rings::Endpoints;
use crate::shared_slow::{SharedSlow, TAKES_SYNS};
use crate::slow::SlowState;
use crate::thread::{epoll_with, watch};
use crate::waiting::{RouteWaits, WaitingCommands};
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use towpath_modules::Chains;
use towpath_ports::Port;
use towpath_ring::command::not_ours::REASONS;
use towpath_runtime::capture::Wish;
use towpath_runtime::ended::Ended;
use towpath_runtime::policy::AllowAll;
use towpath_runtime::requests::{Caller, Request};
use towpath_runtime::reservation::Reservation;
use towpath_runtime::workers::{Workers, WorkersConfig};
use towpath_runtime::{
    AdmissionPolicy, Capture, ClientId, ClientSetup, EndedSocket, Orphans, PairHandle, Selectors, SocketStatus, Stack,
    Status, WorkerCount,
};
use towpath_tcp::fast::{FastConfig, FastPath, FlowTable};
use towpath_tcp::slow::SlowPath;
use towpath_tcp::time::Micros;

/// Messages between the slow path and one flow group, each way. More messages wait at the sender.
const MAILBOX: usize = 4096;

/// Running threads.
pub struct FastStack {
    slow: Caller,
    needs_proof: bool,
    namespace: Option<u64>,
    listens_in_kernel: bool,
    listener_filter: Option<OwnedFd>,
    stop: Arc<AtomicBool>,
    metrics: Arc<Metrics>,
    slow_thread: Option<JoinHandle<()>>,
    workers: Workers<FlowGroup>,
    /// By flow group: how many ports it has.
    ports: Vec<usize>,
    /// Somebody captures.
    capturing: Arc<AtomicBool>,
    /// It runs modules on frames of direct connections.
    direct: DirectThread,
}

impl FastStack {
    /// Starts the threads, one for each flow group. `ports[group]` are that group's ports in the order of their
    /// `PortId`. Port 0 of every group is its loopback.
    pub fn start(
        config: FastStackConfig,
        ports: Vec<Vec<Box<dyn Port>>>,
        network: Box<dyn Network>,
    ) -> io::Result<FastStack> {
        Self::start_guarded(config, ports, network, Box::new(AllowAll))
    }

    /// [`FastStack::start`] under a policy.
    pub fn start_guarded(
        mut config: FastStackConfig,
        ports: Vec<Vec<Box<dyn Port>>>,
        network: Box<dyn Network>,
        guard: Box<dyn AdmissionPolicy>,
    ) -> io::Result<FastStack> {
        if !(1..=16).contains(&config.flow_groups)
            || ports.len() != config.flow_groups
            || ports.iter().any(Vec::is_empty)
        {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "1 to 16 flow groups with at least one port each are needed",
            ));
        }
        config.slow.max_flows = config.max_flows;
        let mut network = network;
        let (needs_proof, namespace) = (network.shares_ports_with_kernel(), network.namespace());
        let (listens_in_kernel, listener_filter) = (network.listens_in_kernel(), network.listener_filter()?);
        let stop = Arc::new(AtomicBool::new(false));
        let panics = Arc::new(AtomicU64::new(0));
        let slow_doorbell = Doorbell::new()?;
        let table = Arc::new(FlowTable::new(config.max_flows));
        let (caller, from_service) = Caller::new(Arc::clone(&slow_doorbell));
        let (mut groups, mut links, mut inbox) = (Vec::new(), Vec::new(), Vec::new());
        let port_counts: Vec<usize> = ports.iter().map(Vec::len).collect();
        let metrics = Metrics::new(port_counts.clone())?;
        for (number, ports) in ports.into_iter().enumerate() {
            let doorbell = Doorbell::new()?;
            let (to_group, group_inbox) = mailbox(MAILBOX, Arc::clone(&doorbell));
            let (outbox, from_group) = mailbox(MAILBOX, Arc::clone(&slow_doorbell));
            links.push(GroupLink { to: to_group, ports: ports.len() });
            inbox.push(from_group);
            let fast = FastConfig { delayed_ack_us: config.delayed_ack_us, ..FastConfig::default() };
            let group = FlowGroup {
                number,
                fast: FastPath::new(number, fast, Arc::clone(&table)),
                ports: PortSet::new(ports),
                rings: Endpoints::default(),
                inbox: group_inbox,
                outbox,
                epoll: epoll_with(&doorbell)?,
                panics: Arc::clone(&panics),
                metrics: Arc::clone(&metrics),
                scratch: Scratch::default(),
                doorbell,
                slow: None,
            };
            group.watch_ports()?;
            groups.push(Box::new(group));
        }
        let mut host = SlowHost::new(links, network, guard)?;
        let epoll = epoll_with(&slow_doorbell)?;
        if let Some(syns) = host.network.syns() {
            watch(&groups[TAKES_SYNS].epoll, syns, true)?;
        }
        let syns_wait = host.network.syns_wait()?;
        if let Some(strays) = host.network.strays() {
            watch(&epoll, strays, true)?;
        }
        host.pairs.enabled = config.direct;
        let direct = DirectThread::new(Arc::clone(&host.direct_frames));
        let slow = SlowState {
            slow: SlowPath::new(config.slow),
            host,
            table,
            inbox,
            requests: from_service,
            epoll: Arc::new(epoll),
            wakes_at: None,
            doorbell: Arc::clone(&slow_doorbell),
            panics: Arc::clone(&panics),
            metrics: Arc::clone(&metrics),
            publish_at: Micros(0),
            active: VecDeque::new(),
            closing: Vec::new(),
            is_active: Vec::new(),
            refresh_at: Micros(0),
            not_ours: [0; REASONS],
            ended: Ended::default(),
            orphans: Orphans::new(config.orphans),
            needs_proof,
            flood_notice: FloodNotice::default(),
            waiting: WaitingCommands::default(),
            route_waits: RouteWaits::default(),
            listener_check: ListenerCheck::default(),
            joined_at: Micros(0),
            naps_until: Micros(0),
            after_ends: VecDeque::new(),
            last_id: 0,
            flow_groups: config.flow_groups,
        };
        let slow = SharedSlow::new(slow, Arc::clone(&stop), syns_wait);
        groups.iter_mut().for_each(|group| group.slow = Some(Arc::clone(&slow)));
        let workers = WorkersConfig { name: "fast", spin_us: config.spin_us, cpus: config.cpus };
        let workers = Workers::start(&workers, groups)?;
        let slow_thread = Some(std::thread::Builder::new().name("slow".into()).spawn(move || slow.run())?);
        let capturing = Arc::default();
        Ok(FastStack {
            slow: caller,
            needs_proof,
            namespace,
            listens_in_kernel,
            listener_filter,
            stop,
            metrics,
            slow_thread,
            workers,
            ports: port_counts,
            capturing,
            direct,
        })
    }

    /// The counters of all threads as a [`towpath_ring::metrics`] region that others can map but not write. It has a
    /// row for each flow group, then one for the slow thread.
    pub fn metrics(&self) -> io::Result<OwnedFd> {
        self.metrics.memfd()
    }
    fn end(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.slow.notify_always();
        self.workers.stop();
        if let Some(thread) = self.slow_thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the slow thread ended by a panic");
        }
        self.direct.end();
    }
}

impl Stack for FastStack {
    fn name(&self) -> &'static str {
        "fast"
    }
    fn needs_proof(&self) -> bool {
        self.needs_proof
    }
    fn namespace(&self) -> Option<u64> {
        self.namespace
    }
    fn takes_client_memory(&self) -> bool {
        true
    }
    fn listens_in_kernel(&self) -> bool {
        self.listens_in_kernel
    }
    fn listener_filter(&self) -> Option<BorrowedFd<'_>> {
        self.listener_filter.as_ref().map(AsFd::as_fd)
    }
    fn add_client(&self, setup: ClientSetup) -> io::Result<ClientId> {
        self.slow.add_client(setup)
    }
    fn add_context(&self, client: ClientId, context: u32, wake: OwnedFd) {
        self.slow.set_context(client, context, Some(wake));
    }
    fn drop_context(&self, client: ClientId, context: u32) {
        self.slow.set_context(client, context, None);
    }
    fn reserve(&self, client: ClientId, slot: u32, seq: u32, reservation: Reservation) {
        self.slow.ask(Request::Reserve(client, slot, seq, reservation));
    }
    fn hangup(&self, client: ClientId, slot: u32, generation: u32) {
        self.slow.ask(Request::Hangup(client, slot, generation));
    }
    fn departed(&self, client: ClientId, process: u32) {
        self.slow.ask(Request::Departed(client, process));
    }
    fn remove_client(&self, client: ClientId) {
        self.slow.answer::<()>(|done| Request::RemoveClient(client, done));
    }
    fn policy_changed(&self) {
        self.slow.answer::<()>(Request::Policy);
    }
    fn count_refusals(&self) {
        self.slow.answer::<()>(Request::Refusals);
    }
    /// [`Network::changed`] will now answer true.
    fn network_changed(&self) {
        self.slow.notify_always();
    }
    fn pair(&self, client: ClientId, place: u32, pair: u32) -> Option<PairHandle> {
        self.slow.answer(|reply| Request::Pair(client, place, pair, reply)).flatten()
    }
    fn connections(&self) -> Vec<SocketStatus> {
        self.slow.answer(Request::Connections).unwrap_or_default()
    }
    fn ended(&self) -> Option<Vec<EndedSocket>> {
        self.slow.answer(Request::Ended)
    }
    fn cut(&self, ends: Vec<(SocketAddr, SocketAddr)>) -> io::Result<usize> {
        Ok(self.slow.answer(|reply| Request::Cut(ends, reply)).unwrap_or_default())
    }
    fn status(&self) -> Status {
        let status = self.slow.answer(Request::Status).unwrap_or_default();
        Status { workers: self.workers.status(), ..status }
    }
    fn wait_for_threads(&self) {
        self.slow.answer(Request::Status);
        self.workers.wait_for_all();
    }
    fn workers(&self) -> WorkerCount {
        self.workers.count()
    }
    fn set_workers(&self, running: usize) -> io::Result<()> {
        self.workers.set_workers(running)
    }
    fn capture(&self, wish: &Wish) -> io::Result<Box<dyn Capture>> {
        FastCapture::begin(wish, &self.ports, &self.slow, &self.capturing)
    }
    fn modules(&self, chains: &Chains, selectors: &Selectors) -> io::Result<()> {
        let modules = (!chains.is_empty()).then(|| (chains.clone(), Arc::clone(selectors)));
        self.direct.change(chains, || {
            self.slow.answer::<()>(|done| Request::Modules(modules, done));
        })
    }
    fn module_rows(&self) -> Option<usize> {
        // The last one is of direct connections.
        Some(self.ports.len() + 1)
    }
    /// Connections are forgotten; nothing is sent to their peers.
    fn stop(self: Box<Self>) {
        drop(self);
    }
}

impl Drop for FastStack {
    fn drop(&mut self) {
        self.end();
    }
}
