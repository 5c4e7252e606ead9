//! Starting, asking and stopping the threads.

use crate::ahead::Lists;
use crate::batch::Batch;
use crate::group::{ClientGroup, Counts};
use crate::moving::{Given, Move, Moved};
use crate::rate::{Buckets, Rates};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use towpath_stack::crew::{Crew, CrewConfig};
use towpath_stack::guard::Gate;
use towpath_stack::mailbox::Bell;
use towpath_stack::requests::{Caller, Request};
use towpath_stack::thread::epoll_with;
use towpath_stack::{
    ClientId, ClientSetup, Connection, Cores, Executed, Files, Guard, PairHandle, SharedFile, Stack, Status,
};

/// How a kernel stack is built. The clients' regions must be made for one core: a client belongs to one of the groups.
#[derive(Clone, Debug)]
pub struct KernelConfig {
    /// Groups of clients, and most threads, 1 to 16; clients are given to the groups in turn.
    pub cores: usize,
    /// How long a thread spins without work before it sleeps, µs.
    pub spin_us: u64,
    /// Thread `i` is pinned to CPU `cpus[i]`; missing entries are not pinned.
    pub cpus: Vec<usize>,
}

/// Running threads. Their sockets are those of the network namespace in which they were started.
pub struct Kernel {
    groups: Vec<Caller>,
    moves: Vec<Sender<Move>>,
    next: AtomicUsize,
    crew: Crew<ClientGroup>,
}

impl Kernel {
    /// Starts the threads, one per group of clients; each group has a policy of its own to ask.
    pub fn start(config: &KernelConfig, guard: impl Fn() -> Box<dyn Guard>) -> io::Result<Self> {
        if !(1..=16).contains(&config.cores) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "1 to 16 cores are needed"));
        }
        let (mut callers, mut movers, mut groups) = (Vec::new(), Vec::new(), Vec::new());
        let buckets = Buckets::default();
        for number in 0..config.cores {
            let bell = Bell::new()?;
            let (caller, requests) = Caller::new(Arc::clone(&bell));
            let (mover, moves) = channel();
            groups.push(Box::new(ClientGroup {
                number,
                groups: config.cores,
                clients: Vec::new(),
                gate: Gate::new(guard()),
                requests,
                moves,
                epoll: epoll_with(&bell)?,
                bell,
                noticed: Vec::new(),
                batch: Batch::new(),
                lists: Lists::default(),
                again: Vec::new(),
                resets: Vec::new(),
                crowded: Vec::new(),
                crowded_at: None,
                rates: Rates::of(&buckets),
                not_ours: Default::default(),
                last_id: 0,
                counts: Counts::default(),
                sampler: Default::default(),
                now_us: 0,
                events: Vec::new(),
                told_all: false,
            }));
            callers.push(caller);
            movers.push(mover);
        }
        let crew = CrewConfig { name: "kernel", spin_us: config.spin_us, cpus: config.cpus.clone() };
        let crew = Crew::start(&crew, groups)?;
        Ok(Self { groups: callers, moves: movers, next: AtomicUsize::new(0), crew })
    }

    /// Asks group `number` about a client that moves.
    fn ask_to_move<T>(&self, number: usize, request: impl FnOnce(Sender<T>) -> Move) -> Option<T> {
        let (reply, answer) = channel();
        let _ = self.moves[number].send(request(reply));
        self.groups[number].strike();
        answer.recv().ok()
    }
    /// Gives up a client with its connections, for another stack to [`Kernel::adopt`]. Needs CAP_NET_ADMIN. Connections that cannot move
    /// (only established ones do) are reset. Whatever reserves its ports is given up too.
    pub fn give(&self, client: ClientId) -> Given {
        let number = client.0 as usize % self.groups.len();
        self.ask_to_move(number, |reply| Move::Give(client, reply)).unwrap_or_default()
    }
    /// Takes over a client whose region another stack has served until now. Its listeners listen again. `moved` are slot and local
    /// address of its connections, whose records follow by [`Kernel::put`]; all others are reset. After that, [`Kernel::open`].
    pub fn adopt(&self, setup: ClientSetup, moved: Vec<(u32, SocketAddr)>) -> io::Result<ClientId> {
        let number = self.next.fetch_add(1, Ordering::Relaxed) % self.groups.len();
        let gone = || io::Error::from(io::ErrorKind::BrokenPipe);
        self.ask_to_move(number, |reply| Move::Adopt(setup, moved, reply)).ok_or_else(gone)?
    }
    /// Puts connections of an adopted client into this kernel, which has their addresses now. How many it did not take; they are reset.
    pub fn put(&self, client: ClientId, moved: Vec<Moved>) -> usize {
        let (number, all) = (client.0 as usize % self.groups.len(), moved.len());
        self.ask_to_move(number, |reply| Move::Put(client, moved, reply)).unwrap_or(all)
    }
    /// Lets in the packets of an adopted client, and has everybody look.
    pub fn open(&self, client: ClientId) {
        let number = client.0 as usize % self.groups.len();
        self.ask_to_move::<()>(number, |reply| Move::Open(client, reply));
    }
    /// Forgets a file that a process of a client has shown; returns when it is closed, unless a part of it is still to be sent.
    pub fn forget_file(&self, client: ClientId, process: u32, file: u32) {
        self.of(client).answer::<()>(|done| Request::ForgetFile(client, process, file, done));
    }

    /// The group that has a client.
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
    fn reserve(&self, client: ClientId, slot: u32, seq: u32, socket: OwnedFd) {
        self.of(client).ask(Request::Reserve(client, slot, seq, socket));
    }
    fn hangup(&self, client: ClientId, slot: u32, generation: u32) {
        self.of(client).ask(Request::Hangup(client, slot, generation));
    }
    fn departed(&self, client: ClientId, process: u32) {
        self.of(client).ask(Request::Departed(client, process));
    }
    fn remove_client(&self, client: ClientId) {
        self.of(client).ask(Request::RemoveClient(client));
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
    fn connections(&self) -> Vec<Connection> {
        self.groups.iter().filter_map(|core| core.answer(Request::Connections)).flatten().collect()
    }
    fn status(&self) -> Status {
        let mut all = Status { threads: self.crew.threads(), ..Status::default() };
        for status in self.groups.iter().filter_map(|core| core.answer(Request::Status)) {
            all.cores.extend(status.cores);
            all.clients.extend(status.clients);
            all.panics += status.panics;
            all.not_ours.iter_mut().zip(status.not_ours).for_each(|(sum, more)| *sum += more);
        }
        all
    }
    fn cores(&self) -> Cores {
        self.crew.cores()
    }
    fn set_cores(&self, running: usize) -> io::Result<()> {
        self.crew.set_cores(running)
    }
    /// The kernel knows its routes itself.
    fn network_changed(&self) {}
    fn policy_changed(&self) {
        for core in &self.groups {
            core.answer::<()>(Request::Policy);
        }
    }
    fn execute(&self, words: &[String]) -> io::Result<Executed> {
        // Whoever started the threads has their network namespace.
        towpath_stack::execute::execute(words)
    }
    fn stop(self: Box<Self>) {
        drop(self);
    }
}
