//! Starting, asking and stopping the threads.

use crate::batch::Batch;
use crate::core::{Core, Counts};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use towpath_stack::guard::Gate;
use towpath_stack::mailbox::Bell;
use towpath_stack::requests::{Caller, Request};
use towpath_stack::thread::epoll_with;
use towpath_stack::{ClientId, ClientSetup, Connection, Executed, Guard, PairHandle, Stack, Status};

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
        let mut kernel = Self { cores: Vec::new(), next: AtomicUsize::new(0), stop, threads: Vec::new() };
        for number in 0..config.cores {
            let bell = Bell::new()?;
            let (caller, requests) = Caller::new(Arc::clone(&bell));
            let core = Core {
                number,
                cores: config.cores,
                clients: Vec::new(),
                gate: Gate::new(guard()),
                requests,
                epoll: epoll_with(&bell)?,
                bell,
                stop: Arc::clone(&kernel.stop),
                spin_us: config.spin_us,
                cpu: config.cpus.get(number).copied(),
                noticed: Vec::new(),
                batch: Batch::new(),
                again: Vec::new(),
                crowded: Vec::new(),
                crowded_at: None,
                not_ours: Default::default(),
                last_id: 0,
                counts: Counts::default(),
                events: Vec::new(),
            };
            kernel.cores.push(caller);
            let thread = std::thread::Builder::new().name(format!("kernel-{number}"));
            kernel.threads.push(thread.spawn(move || core.run())?);
        }
        Ok(kernel)
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
