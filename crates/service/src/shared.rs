//! What the service's threads share: the clients, their connections, and the stack.

use crate::admission::Admission;
use crate::auto::Auto;
use crate::cores::{Allocator, Cores};
use crate::names::Names;
use crate::policy::{Identity, Policy};
use crate::stacks::Stacks;
use rustix::fd::AsRawFd;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;
use towpath_ring::control::{Reply, Request, recv_request, send_reply, send_request};
use towpath_ring::{Geometry, Region, wake};
use towpath_stack::{ClientId, ClientSetup, Ground, SharedFile, Stack};

/// Most processes that the idle exit waits for beside clients.
const MAX_EXPECTED: usize = 1024;

/// What the service tells of itself and is built from.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The registration socket.
    pub socket: PathBuf,
    /// Sizes of a client's region.
    pub geometry: Geometry,
    /// Who may come.
    pub admission: Admission,
    /// Who may do what.
    pub policy: Policy,
    /// The other stacks that it names.
    pub stacks: Arc<Stacks>,
    /// Which way suits what.
    pub auto: Auto,
    /// How many cores the stack has.
    pub cores: Cores,
    /// Client processes of one user.
    pub clients_per_user: u32,
    /// End after so long without a client.
    pub idle_exit: Option<std::time::Duration>,
    /// The interface served.
    pub interface: Option<String>,
    /// Names of the ports of each core, in the order of their numbers.
    pub ports: Vec<String>,
}

/// A client: one program, or several processes of it after fork.
pub struct Client {
    /// The stack's name for it.
    pub id: ClientId,
    /// Its user.
    pub uid: u32,
    region: Arc<Region>,
    /// The region's memfd, then the doorbells: what `Welcome` carries.
    descriptors: Arc<Vec<OwnedFd>>,
    /// Event contexts in use, by bit.
    contexts: u64,
    /// The ends to ring of their bells, for the other sides of direct connections.
    bells: HashMap<u32, OwnedFd>,
    /// Keepers that still serve it.
    keepers: u32,
}

/// A client as its keeper sees it. Holds no descriptors.
#[derive(Clone)]
pub struct Membership {
    /// The stack's name for it.
    pub id: ClientId,
    /// Key of [`Client`].
    pub token: u64,
    /// Its region.
    pub region: Arc<Region>,
}

/// One connection to the registration socket. Held in the shared table until its keeper has ended.
pub struct Connection {
    /// The connection.
    pub socket: Arc<OwnedFd>,
    /// The peer's user.
    pub uid: u32,
    /// Its keeper.
    pub thread: Option<JoinHandle<()>>,
}

/// Everything that changes.
#[derive(Default)]
pub struct Registry {
    /// Clients by token.
    pub clients: HashMap<u64, Client>,
    /// Connections by number.
    pub connections: HashMap<u64, Connection>,
    next_connection: u64,
    /// Sockets that may turn up elsewhere.
    pub names: Names,
    /// When there was last a client or a question.
    pub last_use: Option<Instant>,
    /// Processes (pidfds) that are started to be clients but have not registered yet, perhaps never will.
    pub expected: Vec<Arc<OwnedFd>>,
}

/// What keepers, which live in descriptor tables of their own, have done for them in the shared table.
pub enum Call {
    /// Open an event context; the end to ring of its bell comes through the transfer socket.
    Context {
        /// Of which client.
        token: u64,
        /// Gets its number.
        done: SyncSender<Option<u32>>,
    },
    /// Send a pair region over a connection.
    Pair {
        /// Number of the connection.
        connection: u64,
        /// The client that asks.
        id: ClientId,
        /// Which pair: its place and number.
        pair: (u32, u32),
    },
    /// Send the bell of a context of the other client of a pair over a connection.
    Bell {
        /// Number of the connection.
        connection: u64,
        /// The client that asks.
        id: ClientId,
        /// Which pair: its place and number.
        pair: (u32, u32),
        /// The other client's context.
        context: u32,
    },
    /// Close these event contexts (bits).
    DropContexts {
        /// Of which client.
        token: u64,
        /// Which.
        contexts: u64,
    },
    /// Keep the descriptor that comes through the transfer socket until the slot is freed.
    Reserve {
        /// Whose.
        id: ClientId,
        /// Its slot.
        slot: u32,
        /// The command that it is for.
        seq: u32,
        /// Told when it is done.
        done: SyncSender<Option<u32>>,
    },
    /// Take the file in that comes through the transfer socket.
    File {
        /// Whose.
        id: ClientId,
        /// Number of the process.
        process: u32,
        /// Which other is not needed any more.
        replaces: u32,
        /// Gets its number.
        done: SyncSender<Option<u32>>,
    },
    /// All descriptors of a socket are closed.
    Hangup {
        /// Whose.
        id: ClientId,
        /// Its slot.
        slot: u32,
        /// The generation that its descriptors belonged to.
        generation: u32,
    },
    /// A process of this client is gone; others may be left.
    Departed {
        /// Which client.
        id: ClientId,
        /// Number of the process.
        process: u32,
    },
    /// A keeper serves this client no more.
    Left {
        /// Which client.
        token: u64,
    },
    /// The keeper of this connection ends.
    Ended {
        /// Its number.
        connection: u64,
    },
    /// No more calls.
    Quit,
}

/// See the module.
pub struct Shared {
    /// How it was set up.
    pub settings: Settings,
    /// Since when it runs.
    pub started: Instant,
    /// The stack.
    pub stack: Box<dyn Stack>,
    /// How many cores it has, and why.
    pub cores: Allocator,
    registry: Mutex<Registry>,
    calls: Mutex<Sender<Call>>,
    /// Sending end of the transfer socket; the lock is held until the desk has taken the descriptor.
    transfer: Mutex<()>,
    /// Its descriptor, in every keeper's table under the same number.
    pub transfer_fd: OwnedFd,
    /// Readable once all threads shall end.
    pub stop_fd: OwnedFd,
    /// Wakes the main loop.
    wake_fd: OwnedFd,
    stopping: AtomicBool,
    /// One more reference per conversation on the control socket.
    pub conversations: Arc<()>,
}

impl Shared {
    /// With a sending end of the transfer socket and a channel to the desk.
    pub fn new(
        settings: Settings,
        stack: Box<dyn Stack>,
        calls: Sender<Call>,
        transfer_fd: OwnedFd,
    ) -> io::Result<Self> {
        let cores = Allocator::new(settings.cores, stack.cores().most);
        cores.begin(&*stack);
        Ok(Self {
            settings,
            cores,
            started: Instant::now(),
            stack,
            registry: Mutex::default(),
            calls: Mutex::new(calls),
            transfer: Mutex::new(()),
            transfer_fd,
            stop_fd: wake::doorbell()?,
            wake_fd: wake::doorbell()?,
            stopping: AtomicBool::new(false),
            conversations: Arc::default(),
        })
    }

    /// The registry. A thread that panicked while it held the lock has left it whole: every change is one step.
    pub fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the main loop, e.g. because the last client is gone.
    pub fn wake(&self) {
        wake::ring(self.wake_fd.as_fd());
    }

    /// What the main loop waits on beside its sockets.
    pub fn wake_fd(&self) -> &OwnedFd {
        &self.wake_fd
    }

    /// Ends the main loop.
    pub fn request_stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.wake();
    }

    /// Has the end been asked for?
    pub fn stop_requested(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Puts the idle exit off.
    pub fn used(&self) {
        self.registry().last_use = Some(Instant::now());
    }

    /// Puts the idle exit off until this process has ended: a program may compute for an hour before its first socket.
    pub fn hold(&self, pid: i32) {
        if self.settings.idle_exit.is_none() {
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

    /// Has the desk do something; nobody waits for it.
    pub fn call(&self, call: Call) {
        // No receiver: the service is ending.
        let _ = self.calls.lock().unwrap_or_else(PoisonError::into_inner).send(call);
    }

    /// Hands a descriptor over to the shared table and has the desk use it. `None` = it did not.
    pub fn call_with(&self, fd: &OwnedFd, make: impl FnOnce(SyncSender<Option<u32>>) -> Call) -> Option<u32> {
        let _one_at_a_time = self.transfer.lock().unwrap_or_else(PoisonError::into_inner);
        // Any request with one descriptor carries it.
        send_request(self.transfer_fd.as_fd(), &Request::Reserve { slot: 0, seq: 0 }, &[fd.as_fd()]).ok()?;
        let (done, answer) = sync_channel(1);
        self.call(make(done));
        answer.recv().ok().flatten()
    }

    /// Notes a new connection; gives its number, or `None` if this user has too many.
    pub fn admit(&self, socket: &Arc<OwnedFd>, uid: u32) -> Option<u64> {
        let mut registry = self.registry();
        registry.last_use = Some(Instant::now());
        let same = registry.connections.values().filter(|c| c.uid == uid).count();
        if same >= self.settings.clients_per_user as usize {
            return None;
        }
        let number = registry.next_connection;
        registry.next_connection += 1;
        registry.connections.insert(number, Connection { socket: socket.clone(), uid, thread: None });
        Some(number)
    }

    /// A new client with a region of its own. The descriptors are those of `Welcome`.
    pub fn new_client(&self, identity: Identity) -> io::Result<(Membership, Arc<Vec<OwnedFd>>)> {
        let Identity { uid, pid, .. } = identity;
        let Ground { region, memfd, doorbells } = self.stack.ground(self.settings.geometry)?;
        let region = Arc::new(region);
        let copies: Vec<OwnedFd> = doorbells.iter().map(OwnedFd::try_clone).collect::<io::Result<_>>()?;
        let descriptors: Vec<OwnedFd> = [memfd].into_iter().chain(doorbells).collect();
        let setup =
            ClientSetup { region: region.clone(), doorbells: copies, uid, pid, name: program_name(pid), far: None };
        let id = self.stack.add_client(setup)?;
        // Before the client has its region, and with that the first word in it.
        self.settings.policy.enter(id, identity);
        self.stack.policy_changed();
        let (token, descriptors) = (region.token(), Arc::new(descriptors));
        let membership = Membership { id, token, region: region.clone() };
        let client = Client {
            id,
            uid,
            region,
            descriptors: descriptors.clone(),
            contexts: 0,
            bells: HashMap::new(),
            keepers: 1,
        };
        self.registry().clients.insert(token, client);
        Ok((membership, descriptors))
    }

    /// One more process of an existing client; `None` = this user has no such client.
    pub fn join_client(&self, identity: Identity, token: u64) -> Option<(Membership, Arc<Vec<OwnedFd>>)> {
        let mut registry = self.registry();
        let client = registry.clients.get_mut(&token).filter(|client| client.uid == identity.uid)?;
        if !self.settings.policy.enter(client.id, identity) {
            return None;
        }
        client.keepers += 1;
        let membership = Membership { id: client.id, token, region: client.region.clone() };
        Some((membership, client.descriptors.clone()))
    }

    /// Keeps the end to ring of a new context's bell.
    fn keep_bell(&self, token: u64, context: u32, bell: &OwnedFd) {
        if let (Some(client), Ok(bell)) = (self.registry().clients.get_mut(&token), bell.try_clone()) {
            client.bells.insert(context, bell);
        }
    }

    /// The end to ring of a client's bell as an open file of its own: what somebody does with its flags concerns nobody else.
    fn bell_of(&self, id: ClientId, context: u32) -> Option<OwnedFd> {
        let registry = self.registry();
        let bell = registry.clients.values().find(|client| client.id == id)?.bells.get(&context)?;
        let path = format!("/proc/thread-self/fd/{}", bell.as_raw_fd());
        rustix::fs::open(path, OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty()).ok()
    }

    /// Answers a process that has asked for a descriptor.
    fn answer(&self, connection: u64, answer: Option<(Reply, OwnedFd)>) {
        let Some(socket) = self.registry().connections.get(&connection).map(|c| c.socket.clone()) else { return };
        // It does not block; who does not take his answers gets none.
        let _ = match answer {
            Some((reply, descriptor)) => send_reply(socket.as_fd(), &reply, &[descriptor.as_fd()]),
            None => send_reply(socket.as_fd(), &Reply::Refused { errno: Errno::NOENT.raw_os_error() }, &[]),
        };
    }

    /// The lowest free event context of a client.
    fn take_context(&self, token: u64) -> Option<(ClientId, u32)> {
        let mut registry = self.registry();
        let client = registry.clients.get_mut(&token)?;
        let number = client.contexts.trailing_ones();
        if number >= self.settings.geometry.contexts.min(u64::BITS) {
            return None;
        }
        client.contexts |= 1 << number;
        Some((client.id, number))
    }
}

/// The desk: does what keepers ask for, in the shared descriptor table. Runs until [`Call::Quit`].
pub fn desk(shared: &Shared, calls: &std::sync::mpsc::Receiver<Call>, transfer: &OwnedFd) {
    let taken = || match recv_request(transfer.as_fd()) {
        Ok(Some((_, mut descriptors))) => descriptors.pop(),
        _ => None,
    };
    while let Ok(call) = calls.recv() {
        match call {
            Call::Context { token, done } => {
                // The descriptor must be taken from the socket whether it is used or not.
                let opened = taken().zip(shared.take_context(token)).map(|(wake, (id, number))| {
                    shared.keep_bell(token, number, &wake);
                    shared.stack.add_context(id, number, wake);
                    number
                });
                let _ = done.send(opened);
            }
            Call::Pair { connection, id, pair } => {
                let found = shared.stack.pair(id, pair.0, pair.1);
                let found = found.map(|p| (Reply::Pair { pair: pair.1, geometry: p.geometry }, p.memfd));
                shared.answer(connection, found);
            }
            Call::Bell { connection, id, pair, context } => {
                let peer = shared.stack.pair(id, pair.0, pair.1).map(|pair| pair.peer);
                let bell = peer.and_then(|peer| shared.bell_of(peer, context));
                shared.answer(connection, bell.map(|bell| (Reply::Bell { context }, bell)));
            }
            Call::DropContexts { token, contexts } => drop_contexts(shared, token, contexts),
            Call::Reserve { id, slot, seq, done } => {
                let socket = taken().map(|socket| shared.stack.reserve(id, slot, seq, socket));
                let _ = done.send(socket.map(|()| slot));
            }
            Call::File { id, process, replaces, done } => {
                let file = taken().map(|file| SharedFile { process, replaces, file });
                let _ = done.send(file.and_then(|file| shared.stack.add_file(id, file).ok()));
            }
            Call::Hangup { id, slot, generation } => shared.stack.hangup(id, slot, generation),
            Call::Departed { id, process } => shared.stack.departed(id, process),
            Call::Left { token } => left(shared, token),
            Call::Ended { connection } => ended(shared, connection),
            Call::Quit => break,
        }
    }
}

fn drop_contexts(shared: &Shared, token: u64, contexts: u64) {
    let Some(id) = shared.registry().clients.get(&token).map(|client| client.id) else { return };
    for number in (0..u64::BITS).filter(|n| contexts & (1 << n) != 0) {
        shared.stack.drop_context(id, number);
    }
    // Only now may another connection get these numbers.
    if let Some(client) = shared.registry().clients.get_mut(&token) {
        client.contexts &= !contexts;
        client.bells.retain(|number, _| client.contexts & 1 << number != 0);
    }
}

fn left(shared: &Shared, token: u64) {
    let mut registry = shared.registry();
    let Some(client) = registry.clients.get_mut(&token) else { return };
    client.keepers -= 1;
    if client.keepers == 0 {
        let gone = registry.clients.remove(&token);
        registry.names.forget_client(token);
        drop(registry);
        if let Some(client) = gone {
            tracing::debug!(client = client.id.0, "client has gone");
            shared.stack.remove_client(client.id);
            shared.settings.policy.leave(client.id);
            shared.settings.auto.leave(client.id);
        }
    }
}

fn ended(shared: &Shared, number: u64) {
    let thread = shared.registry().connections.get_mut(&number).and_then(|c| c.thread.take());
    // The keeper must have dropped its handle of the socket before ours goes, so that it is closed in this table.
    if let Some(thread) = thread {
        let _ = thread.join();
    }
    let mut registry = shared.registry();
    registry.connections.remove(&number);
    registry.last_use = Some(Instant::now());
    drop(registry);
    shared.wake();
}

/// The program's name, for people.
fn program_name(pid: i32) -> String {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    // A program may call itself anything; control characters would spoil a terminal.
    name.trim_end().chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// The errno for a refusal that fits an error.
pub fn errno_of(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(Errno::IO.raw_os_error())
}
