//! The kernel stack as the service sees it: starts the groups and asks them.

use crate::batch::{Batch, BatchLists};
use crate::capture::KernelCapture;
use crate::group::{ClientGroup, Counts};
use crate::moved::{GivenClient, MoveRequest, MovedConnection};
use crate::rate::{Buckets, Rates};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use towpath_runtime::admission::AdmissionState;
use towpath_runtime::capture::Wish;
use towpath_runtime::mailbox::Doorbell;
use towpath_runtime::requests::{Caller, Request};
use towpath_runtime::reservation::Reservation;
use towpath_runtime::thread::epoll_with;
use towpath_runtime::workers::{Workers, WorkersConfig};
use towpath_runtime::{
    AdmissionPolicy, Capture, ClientId, ClientSetup, Executed, Files, OrphanLimits, Orphans, PairHandle, SharedFile,
    SocketStatus, Stack, Status, WorkerCount,
};

/// Configuration of a kernel stack. A client's region must be made for one flow group, because a client belongs to one
/// group.
#[derive(Clone, Debug)]
pub struct KernelConfig {
    /// Groups of clients, and most threads: 1 to 16. Clients are dealt out to the groups in turn.
    pub cores: usize,
    /// How long a thread spins without work before it sleeps, µs.
    pub spin_us: u64,
    /// Thread `i` is pinned to CPU `cpus[i]`; missing entries are not pinned.
    pub cpus: Vec<usize>,
    /// Bounds of what clients leave that have ended.
    pub orphans: OrphanLimits,
}

/// A running kernel stack. Its sockets belong to the network namespace in which it was started.
pub struct Kernel {
    groups: Vec<Caller>,
    moves: Vec<Sender<MoveRequest>>,
    next: AtomicUsize,
    workers: Workers<ClientGroup>,
    /// Somebody captures.
    capturing: Arc<AtomicBool>,
}

impl Kernel {
    /// Starts the threads and one group for each. Every group has its own handle to the policy.
    pub fn start(config: &KernelConfig, guard: impl Fn() -> Box<dyn AdmissionPolicy>) -> io::Result<Self> {
        if !(1..=16).contains(&config.cores) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "1 to 16 cores are needed"));
        }
        let (mut callers, mut movers, mut groups) = (Vec::new(), Vec::new(), Vec::new());
        let (buckets, orphans) = (Buckets::default(), Orphans::new(config.orphans));
        for number in 0..config.cores {
            let doorbell = Doorbell::new()?;
            let (caller, requests) = Caller::new(Arc::clone(&doorbell));
            let (mover, moves) = channel();
            groups.push(Box::new(ClientGroup {
                number,
                groups: config.cores,
                clients: Vec::new(),
                gate: AdmissionState::new(guard()),
                requests,
                moves,
                epoll: epoll_with(&doorbell)?,
                doorbell,
                scheduled: Vec::new(),
                batch: Batch::new(),
                batch_lists: BatchLists::default(),
                next_turn: Vec::new(),
                resets: Vec::new(),
                full_listeners: Vec::new(),
                retry_listeners_at: None,
                rates: Rates::of(&buckets),
                not_ours: Default::default(),
                orphans: Arc::clone(&orphans),
                last_id: 0,
                counts: Counts::default(),
                sampler: Default::default(),
                now_us: 0,
                events: Vec::new(),
                drained: false,
            }));
            callers.push(caller);
            movers.push(mover);
        }
        let workers = WorkersConfig { name: "kernel", spin_us: config.spin_us, cpus: config.cpus.clone() };
        let workers = Workers::start(&workers, groups)?;
        let (next, capturing) = (AtomicUsize::new(0), Arc::default());
        Ok(Self { groups: callers, moves: movers, next, workers, capturing })
    }

    /// Sends a group a request about a client that moves.
    fn ask_to_move<T>(&self, number: usize, request: impl FnOnce(Sender<T>) -> MoveRequest) -> Option<T> {
        let (reply, answer) = channel();
        let _ = self.moves[number].send(request(reply));
        self.groups[number].notify_always();
        answer.recv().ok()
    }
    /// Gives up a client with its connections and port reservations, for another stack to [`Kernel::adopt`].
    /// Connections that cannot move are reset. Needs CAP_NET_ADMIN.
    pub fn give(&self, client: ClientId) -> GivenClient {
        let number = client.0 as usize % self.groups.len();
        self.ask_to_move(number, |reply| MoveRequest::Give(client, reply)).unwrap_or_default()
    }
    /// Takes over a client whose region another stack has served. Its listeners are restored. `moved` lists its
    /// connections, by slot and local address; all others are reset. [`Kernel::put`] and then [`Kernel::open`] follow.
    pub fn adopt(&self, setup: ClientSetup, moved: Vec<(u32, SocketAddr)>) -> io::Result<ClientId> {
        let number = self.next.fetch_add(1, Ordering::Relaxed) % self.groups.len();
        let gone = || io::Error::from(io::ErrorKind::BrokenPipe);
        self.ask_to_move(number, |reply| MoveRequest::Adopt(setup, moved, reply)).ok_or_else(gone)?
    }
    /// Puts connections of an adopted client into this kernel, which must have their addresses now. Returns how many
    /// it refused; these are reset.
    pub fn put(&self, client: ClientId, moved: Vec<MovedConnection>) -> usize {
        let (number, all) = (client.0 as usize % self.groups.len(), moved.len());
        self.ask_to_move(number, |reply| MoveRequest::Put(client, moved, reply)).unwrap_or(all)
    }
    /// Lets in the packets of an adopted client, and wakes the client.
    pub fn open(&self, client: ClientId) {
        let number = client.0 as usize % self.groups.len();
        self.ask_to_move::<()>(number, |reply| MoveRequest::Open(client, reply));
    }
    /// Forgets a file that a process of a client has shown. When this returns the file is closed, unless a part of it
    /// is still to be sent.
    pub fn forget_file(&self, client: ClientId, process: u32, file: u32) {
        self.of(client).answer::<()>(|done| Request::ForgetFile(client, process, file, done));
    }

    /// The group of a client.
    fn of(&self, client: ClientId) -> &Caller {
        &self.groups[client.0 as usize % self.groups.len()]
    }
}

impl Stack for Kernel {
    fn name(&self) -> &'static str {
        "kernel"
    }
    fn shares_ports(&self) -> bool {
        true
    }
    fn takes_client_memory(&self) -> bool {
        true
    }
    fn add_client(&self, setup: ClientSetup) -> io::Result<ClientId> {
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        self.groups[turn % self.groups.len()].add_client(setup)
    }
    fn add_context(&self, client: ClientId, context: u32, wake: OwnedFd) {
        self.of(client).set_context(client, context, Some(wake));
    }
    fn drop_context(&self, client: ClientId, context: u32) {
        self.of(client).set_context(client, context, None);
    }
    fn reserve(&self, client: ClientId, slot: u32, seq: u32, reservation: Reservation) {
        self.of(client).ask(Request::Reserve(client, slot, seq, reservation));
    }
    fn hangup(&self, client: ClientId, slot: u32, generation: u32) {
        self.of(client).ask(Request::Hangup(client, slot, generation));
    }
    fn departed(&self, client: ClientId, process: u32) {
        self.of(client).ask(Request::Departed(client, process));
    }
    fn remove_client(&self, client: ClientId) {
        self.of(client).answer::<()>(|done| Request::RemoveClient(client, done));
    }
    fn files(&self) -> Files {
        Files::Local
    }
    fn add_file(&self, client: ClientId, file: SharedFile) -> io::Result<u32> {
        let gone = || io::Error::from(io::ErrorKind::BrokenPipe);
        self.of(client).answer(|reply| Request::File(client, file, reply)).ok_or_else(gone)?
    }
    fn pair(&self, _: ClientId, _: u32, _: u32) -> Option<PairHandle> {
        None
    }
    fn connections(&self) -> Vec<SocketStatus> {
        self.groups.iter().filter_map(|core| core.answer(Request::Connections)).flatten().collect()
    }
    fn status(&self) -> Status {
        let mut all = Status { workers: self.workers.status(), ..Status::default() };
        for status in self.groups.iter().filter_map(|core| core.answer(Request::Status)) {
            all.flow_groups.extend(status.flow_groups);
            all.clients.extend(status.clients);
            all.panics += status.panics;
            all.not_ours.iter_mut().zip(status.not_ours).for_each(|(sum, more)| *sum += more);
        }
        all
    }
    fn wait_for_threads(&self) {
        self.workers.wait_for_all();
    }
    fn workers(&self) -> WorkerCount {
        self.workers.count()
    }
    fn set_workers(&self, running: usize) -> io::Result<()> {
        self.workers.set_workers(running)
    }
    /// The kernel knows its routes itself.
    fn network_changed(&self) {}
    fn policy_changed(&self) {
        for core in &self.groups {
            core.answer::<()>(Request::Policy);
        }
    }
    fn execute(&self, words: &[String]) -> io::Result<Executed> {
        // The caller's threads are in the same network namespace.
        towpath_runtime::execute::execute(words)
    }
    fn capture(&self, wish: &Wish) -> io::Result<Box<dyn Capture>> {
        KernelCapture::begin(wish, &self.groups, &self.capturing)
    }
    fn stop(self: Box<Self>) {
        drop(self);
    }
}
