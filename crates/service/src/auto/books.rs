//! The books of `auto`: which programs are measured, and what is known of their sockets' classes.

use super::class::{Class, Name};
use super::decide::{Rules, State, Summary};
use crate::policy::{Identity, Policy};
use rustix::fd::OwnedFd;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use towpath_ring::figures::{Board, Key, Way};
use towpath_stack::{ClientId, Exceeded, Guard, Limit, Verdict};

/// Most classes; connections of others go as if nothing were measured.
const MAX_CLASSES: usize = 1024;
/// Most boards of one client: one for each of its programs.
const MAX_BOARDS: usize = 16;
/// The figures of a class are looked at again after this time, µs: reading them takes some microseconds.
const LOOK_US: u64 = 50_000;
/// Addresses that are remembered to be this host's or not, and for how long, µs.
const MAX_ADDRESSES: usize = 256;
/// See [`MAX_ADDRESSES`].
const ADDRESSES_US: u64 = 10_000_000;

/// What the service's stack is, seen from a program's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Has its own network: no connection could go either way.
    Apart,
    /// The network is the same, but who listens on this host does so on one way only: his peers must follow.
    Network,
    /// Everything can be reached either way.
    All,
}

/// A program that is measured.
#[derive(Default)]
struct Client {
    uid: u32,
    program: String,
    boards: Vec<Arc<Board>>,
    /// Which way its listeners have gone.
    listeners: HashMap<Key, Way>,
}

/// What is known.
struct Books {
    rules: Rules,
    classes: HashMap<Name, Tracked>,
    clients: HashMap<ClientId, Client>,
    addresses: HashMap<IpAddr, bool>,
    addresses_us: u64,
}

/// A class, and when its figures were last looked at, µs.
struct Tracked {
    class: Class,
    looked_us: Option<u64>,
}

/// See the module. Cheap to hand on.
#[derive(Clone)]
pub struct Auto {
    reach: Reach,
    /// Every program is to be measured, not only those that are started with `--auto`.
    pub always: bool,
    started: Instant,
    books: Arc<Mutex<Books>>,
}

impl std::fmt::Debug for Auto {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Auto").field("reach", &self.reach).field("always", &self.always).finish_non_exhaustive()
    }
}

impl Auto {
    /// Nothing is known yet.
    pub fn new(reach: Reach, always: bool) -> Self {
        Self::with(Rules::default(), reach, always)
    }

    /// With other rules.
    pub fn with(rules: Rules, reach: Reach, always: bool) -> Self {
        let (classes, clients, addresses) = Default::default();
        let books = Books { rules, classes, clients, addresses, addresses_us: 0 };
        Self { reach, always, started: Instant::now(), books: Arc::new(Mutex::new(books)) }
    }

    /// The books. A thread that panicked while it held the lock has left them whole: no change is in parts that need each other.
    fn lock(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_us(&self) -> u64 {
        self.started.elapsed().as_micros() as u64
    }

    /// A program of this client will measure: the memory for it, or why not.
    pub fn measure(&self, id: ClientId, program: &Identity) -> Result<OwnedFd, String> {
        if self.reach == Reach::Apart {
            return Err("this stack has a network of its own".into());
        }
        let network = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/net")).ok();
        if network(&program.pid.to_string()).is_none_or(|theirs| Some(theirs) != network("thread-self")) {
            return Err("it is in another network namespace, or that cannot be seen".into());
        }
        let (board, memfd) = Board::create().map_err(|error| error.to_string())?;
        let mut books = self.lock();
        let client = books.clients.entry(id).or_default();
        if client.boards.len() >= MAX_BOARDS {
            return Err("it has asked too often".into());
        }
        if client.boards.is_empty() {
            (client.uid, client.program) = (program.uid, program.name().to_owned());
        }
        client.boards.push(Arc::new(board));
        Ok(memfd)
    }

    /// The client is gone; what it has measured is kept.
    pub fn leave(&self, id: ClientId) {
        let now_us = self.now_us();
        let mut books = self.lock();
        let Some(client) = books.clients.remove(&id) else { return };
        for board in &client.boards {
            for key in board.keys() {
                let name = Name { program: client.program.clone(), uid: client.uid, key };
                if let Some(tracked) = books.class(&name, || None) {
                    tracked.class.retire(key, board);
                }
                books.look(&name, now_us);
            }
        }
    }

    /// Where this connection goes; `None` = as if nothing were measured.
    fn connect(&self, id: ClientId, remote: SocketAddr) -> Option<Way> {
        let now_us = self.now_us();
        let mut books = self.lock();
        let (program, uid) = books.clients.get(&id).map(|client| (client.program.clone(), client.uid))?;
        let local = books.is_local(remote.ip(), now_us);
        if local && self.reach == Reach::Network {
            return None;
        }
        books.place(Name { program, uid, key: Key::connected(remote.port(), local) }, now_us)
    }

    /// Where this listener goes. All of one port go one way as long as one of their programs lives.
    fn listen(&self, id: ClientId, port: u16) -> Option<Way> {
        let now_us = self.now_us();
        let key = Key::accepted(port);
        let mut books = self.lock();
        let client = books.clients.get(&id)?;
        let same = |other: &&Client| (other.uid, &other.program) == (client.uid, &client.program);
        let others = books.clients.values().filter(same).find_map(|other| other.listeners.get(&key));
        let gone = client.listeners.get(&key).or(others).copied();
        let name = Name { program: client.program.clone(), uid: client.uid, key };
        let way = match gone {
            Some(way) => way,
            None => {
                books.begin_run(&name, now_us);
                books.place(name, now_us)?
            }
        };
        books.clients.get_mut(&id)?.listeners.insert(key, way);
        Some(way)
    }

    /// Every class that `seen` may see: the state, what the trial or the newest run has shown, and the connections of each way in all.
    pub(super) fn classes<T>(&self, seen: impl Fn(u32) -> bool, show: impl Fn(&Name, &Class, Shown) -> T) -> Vec<T> {
        let now_us = self.now_us();
        let mut books = self.lock();
        let of = |client: &Client| {
            let keys = client.boards.iter().flat_map(|board| board.keys());
            keys.map(|key| Name { program: client.program.clone(), uid: client.uid, key }).collect::<Vec<_>>()
        };
        let live: Vec<Name> = books.clients.values().flat_map(of).collect();
        for name in &live {
            books.class(name, || None);
        }
        let mut names: Vec<Name> = books.classes.keys().filter(|name| seen(name.uid)).cloned().collect();
        names.sort();
        let mut rows = Vec::new();
        for name in names {
            books.look(&name, now_us);
            let boards = books.boards(&name);
            let boards: Vec<&Board> = boards.iter().map(|board| &**board).collect();
            if let Some(tracked) = books.classes.get(&name) {
                let totals = tracked.class.totals(name.key, &boards);
                let connections = totals.each_ref().map(|way| way.connections);
                let recent = tracked.class.seen(&totals, &books.rules);
                rows.push(show(&name, &tracked.class, Shown { now_us, connections, recent }));
            }
        }
        rows
    }
}

/// What is shown of a class beside its state.
pub(super) struct Shown {
    /// Now.
    pub now_us: u64,
    /// Connections of each way that were measured, in all.
    pub connections: [u64; 2],
    /// Since the trial or the newest run began.
    pub recent: [Summary; 2],
}

impl Books {
    /// A class; one that is not known begins with this state. `None` = there are too many.
    fn class(&mut self, name: &Name, state: impl FnOnce() -> Option<State>) -> Option<&mut Tracked> {
        if !self.classes.contains_key(name) {
            if self.classes.len() >= MAX_CLASSES {
                return None;
            }
            let seed = name.key.port.into();
            self.classes.insert(name.clone(), Tracked { class: Class::new(state(), seed), looked_us: None });
        }
        self.classes.get_mut(name)
    }

    /// The boards of the programs of a class.
    fn boards(&self, name: &Name) -> Vec<Arc<Board>> {
        let its = self.clients.values().filter(|client| (client.uid, &client.program) == (name.uid, &name.program));
        its.flat_map(|client| client.boards.iter().cloned()).collect()
    }

    /// Decides what can be decided of a class, if it was not looked at a moment ago.
    fn look(&mut self, name: &Name, now_us: u64) {
        let due = |tracked: &Tracked| tracked.looked_us.is_none_or(|last| now_us.saturating_sub(last) >= LOOK_US);
        if !self.classes.get(name).is_some_and(due) {
            return;
        }
        let boards = self.boards(name);
        let boards: Vec<&Board> = boards.iter().map(|board| &**board).collect();
        if let Some(tracked) = self.classes.get_mut(name) {
            tracked.looked_us = Some(now_us);
            let before = tracked.class.state.and_then(|state| state.settled());
            tracked.class.step(name.key, &boards, &self.rules, now_us);
            note(name, before, &tracked.class);
        }
    }

    fn begin_run(&mut self, name: &Name, now_us: u64) {
        let boards = self.boards(name);
        let boards: Vec<&Board> = boards.iter().map(|board| &**board).collect();
        if let Some(tracked) = self.classes.get_mut(name) {
            let before = tracked.class.state.and_then(|state| state.settled());
            tracked.class.run(name.key, &boards, &self.rules, now_us);
            note(name, before, &tracked.class);
        }
    }

    fn place(&mut self, name: Name, now_us: u64) -> Option<Way> {
        let rules = self.rules;
        let fresh = State::new(&rules, now_us);
        let tracked = self.class(&name, || Some(fresh))?;
        // It was known by its figures only.
        tracked.class.state.get_or_insert(fresh);
        self.look(&name, now_us);
        self.classes.get_mut(&name)?.class.place(name.key)
    }

    /// Is this an address of this host? The library goes by the same: whether both ends of a connection have one address.
    fn is_local(&mut self, address: IpAddr, now_us: u64) -> bool {
        let address = address.to_canonical();
        if now_us.saturating_sub(self.addresses_us) > ADDRESSES_US || self.addresses.len() >= MAX_ADDRESSES {
            self.addresses.clear();
            self.addresses_us = now_us;
        }
        *self.addresses.entry(address).or_insert_with(|| address.is_loopback() || reaches_itself(address))
    }
}

/// Would a connection to this address come from it? Nothing is sent to find out.
fn reaches_itself(address: IpAddr) -> bool {
    let any: IpAddr = match address {
        IpAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
    };
    let local = UdpSocket::bind((any, 0)).and_then(|socket| {
        // Any port will do.
        socket.connect((address, 9))?;
        socket.local_addr()
    });
    local.is_ok_and(|local| local.ip() == address)
}

/// A line of the log for each change.
fn note(name: &Name, before: Option<Way>, class: &Class) {
    let Some(state) = class.state.filter(|state| state.settled() != before) else { return };
    let (program, port) = (&name.program, name.key.port);
    let direction = if name.key.accepts { "accept" } else { "connect" };
    match state.settled() {
        Some(way) => tracing::info!(program, direction, port, ?way, "auto: {}", super::show::reason(&state.reason)),
        None => tracing::info!(program, direction, port, "auto: both ways are tried again"),
    }
}

/// The operator's policy, and where it allows something, `auto`.
pub struct Chooser {
    policy: Policy,
    auto: Auto,
}

impl Chooser {
    /// Asks both.
    pub fn new(policy: Policy, auto: Auto) -> Self {
        Self { policy, auto }
    }
}

fn chosen(allowed: Verdict, way: impl FnOnce() -> Option<Way>) -> Verdict {
    match allowed {
        Verdict::Allow(_) if way() == Some(Way::Kernel) => Verdict::Kernel,
        verdict => verdict,
    }
}

impl Guard for Chooser {
    fn connect(&mut self, client: ClientId, remote: SocketAddr) -> Verdict {
        chosen(self.policy.connect(client, remote), || self.auto.connect(client, remote))
    }
    fn listen(&mut self, client: ClientId, local: SocketAddr, dual: bool) -> Verdict {
        chosen(self.policy.listen(client, local, dual), || self.auto.listen(client, local.port()))
    }
    fn accept(&mut self, client: ClientId, local: SocketAddr, remote: SocketAddr) -> Verdict {
        self.policy.accept(client, local, remote)
    }
    fn limit(&mut self, client: ClientId) -> Option<Limit> {
        self.policy.limit(client)
    }
    fn exceeded(&mut self, client: ClientId, limit: &Limit, what: Exceeded) {
        self.policy.exceeded(client, limit, what);
    }
}

#[cfg(test)]
#[path = "books_tests.rs"]
mod tests;
