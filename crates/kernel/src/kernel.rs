//! Starting, asking and stopping the threads.

use crate::ahead::Lists;
use crate::batch::Batch;
use crate::core::{Core, Counts};
use crate::moving::{Given, Move, Moved};
use crate::sleep::Patience;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use towpath_stack::guard::Gate;
use towpath_stack::mailbox::Bell;
use towpath_stack::requests::{Caller, Request};
use towpath_stack::thread::epoll_with;
use towpath_stack::{ClientId, ClientSetup, Connection, Executed, Files, Guard, PairHandle, SharedFile, Stack, Status};

/// How a kernel stack is built. The clients' regions must be made for one core: a client belongs to one of the threads.
#[derive(Clone, Debug)]
pub struct KernelConfig {
    /// Threads, 1 to 16; clients are given to them in turn.
    pub cores: usize,
    /// How long a thread spins without work before it sleeps, µs.
    pub spin_us: u64,
    /// Thread `i` is pinned to CPU `cpus[i]`; missing entries are not pinned.
    pub cpus: Vec<usize>,
}

/// Running threads. Their sockets are those of the network namespace in which they were started.
pub struct Kernel {
    cores: Vec<Caller>,
    moves: Vec<Sender<Move>>,
    next: AtomicUsize,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Kernel {
    /// Starts the threads; each has a policy of its own to ask.
    pub fn start(config: &KernelConfig, guard: impl Fn() -> Box<dyn Guard>) -> io::Result<Self> {
        if !(1..=16).contains(&config.cores) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "1 to 16 cores are needed"));
        }
        let stop = Arc::new(AtomicBool::new(false));
        let mut kernel =
            Self { cores: Vec::new(), moves: Vec::new(), next: AtomicUsize::new(0), stop, threads: Vec::new() };
        for number in 0..config.cores {
            let bell = Bell::new()?;
            let (caller, requests) = Caller::new(Arc::clone(&bell));
            let (mover, moves) = channel();
            let core = Core {
                number,
                cores: config.cores,
                clients: Vec::new(),
                gate: Gate::new(guard()),
                requests,
                moves,
                epoll: epoll_with(&bell)?,
                bell,
                stop: Arc::clone(&kernel.stop),
                spin_us: config.spin_us,
                patience: Patience::default(),
                cpu: config.cpus.get(number).copied(),
                noticed: Vec::new(),
                batch: Batch::new(),
                lists: Lists::default(),
                again: Vec::new(),
                crowded: Vec::new(),
                crowded_at: None,
                not_ours: Default::default(),
                last_id: 0,
                counts: Counts::default(),
                events: Vec::new(),
            };
            kernel.cores.push(caller);
            kernel.moves.push(mover);
            let thread = std::thread::Builder::new().name(format!("kernel-{number}"));
            kernel.threads.push(thread.spawn(move || core.run())?);
        }
        Ok(kernel)
    }

    /// Asks thread `number` about a client that moves.
    fn ask_to_move<T>(&self, number: usize, request: impl FnOnce(Sender<T>) -> Move) -> Option<T> {
        let (reply, answer) = channel();
        let _ = self.moves[number].send(request(reply));
        self.cores[number].strike();
        answer.recv().ok()
    }
    /// Gives up a client with its connections, for another stack to [`Kernel::adopt`]. Needs CAP_NET_ADMIN. Connections that cannot move
    /// (only established ones do) are reset. Whatever reserves its ports is given up too.
    pub fn give(&self, client: ClientId) -> Given {
        let number = client.0 as usize % self.cores.len();
        self.ask_to_move(number, |reply| Move::Give(client, reply)).unwrap_or_default()
    }
    /// Takes over a client whose region another stack has served until now. Its listeners listen again. `moved` are slot and local
    /// address of its connections, whose records follow by [`Kernel::put`]; all others are reset. After that, [`Kernel::open`].
    pub fn adopt(&self, setup: ClientSetup, moved: Vec<(u32, SocketAddr)>) -> io::Result<ClientId> {
        let number = self.next.fetch_add(1, Ordering::Relaxed) % self.cores.len();
        let gone = || io::Error::from(io::ErrorKind::BrokenPipe);
        self.ask_to_move(number, |reply| Move::Adopt(setup, moved, reply)).ok_or_else(gone)?
    }
    /// Puts connections of an adopted client into this kernel, which has their addresses now. How many it did not take; they are reset.
    pub fn put(&self, client: ClientId, moved: Vec<Moved>) -> usize {
        let (number, all) = (client.0 as usize % self.cores.len(), moved.len());
        self.ask_to_move(number, |reply| Move::Put(client, moved, reply)).unwrap_or(all)
    }
    /// Lets in the packets of an adopted client, and has everybody look.
    pub fn open(&self, client: ClientId) {
        let number = client.0 as usize % self.cores.len();
        self.ask_to_move::<()>(number, |reply| Move::Open(client, reply));
    }
    /// Forgets a file that a process of a client has shown; returns when it is closed, unless a part of it is still to be sent.
    pub fn forget_file(&self, client: ClientId, process: u32, file: u32) {
        self.of(client).answer::<()>(|done| Request::ForgetFile(client, process, file, done));
    }

    /// The thread that has a client.
    fn of(&self, client: ClientId) -> &Caller {
        &self.cores[client.0 as usize % self.cores.len()]
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
        self.cores[turn % self.cores.len()].add_client(setup)
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
        self.cores.iter().filter_map(|core| core.answer(Request::Connections)).flatten().collect()
    }
    fn status(&self) -> Status {
        let mut all = Status::default();
        for status in self.cores.iter().filter_map(|core| core.answer(Request::Status)) {
            all.cores.extend(status.cores);
            all.clients.extend(status.clients);
            all.panics += status.panics;
            all.not_ours.iter_mut().zip(status.not_ours).for_each(|(sum, more)| *sum += more);
        }
        all
    }
    /// The kernel knows its routes itself.
    fn network_changed(&self) {}
    fn policy_changed(&self) {
        for core in &self.cores {
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

impl Drop for Kernel {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        for core in &self.cores {
            core.strike();
        }
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the kernel stack ended by a panic");
            }
        }
    }
}
