//! The registered clients, their connections, and the processes that are expected to register.

use crate::descriptor_budget::DescriptorBudget;
use crate::lease::{RegionCounts, Shares};
use crate::passed_sockets::{Location, PassedSockets};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;
use towpath_ring::Region;
use towpath_ring::control::Reply;
use towpath_runtime::{ClientId, ClientNamespace};

/// A client: one program with all processes that it has forked.
pub struct RegisteredClient {
    /// The stack's number for it.
    pub id: ClientId,
    /// Its user.
    pub uid: u32,
    /// Its region.
    pub region: Arc<Region>,
    /// The region's memfd, then the doorbells, as `Welcome` carries them.
    pub descriptors: Arc<Vec<OwnedFd>>,
    namespace: ClientNamespace,
    /// Event contexts in use, one bit each.
    contexts: u64,
    /// The writing ends of the contexts' doorbells, for the other sides of direct connections.
    doorbells: HashMap<u32, OwnedFd>,
    /// Client connections that serve it.
    connections: u32,
    /// How many of them are those of processes that have ended.
    ended: u32,
}

impl RegisteredClient {
    /// A client with one connection.
    pub fn new(
        id: ClientId,
        uid: u32,
        region: Arc<Region>,
        descriptors: Arc<Vec<OwnedFd>>,
        namespace: ClientNamespace,
    ) -> Self {
        let (contexts, doorbells, connections, ended) = (0, HashMap::new(), 1, 0);
        Self { id, uid, region, descriptors, namespace, contexts, doorbells, connections, ended }
    }

    /// One more process has joined it, from this network namespace.
    pub fn joined(&mut self, namespace: Option<u64>) {
        self.namespace.join(namespace);
        self.connections += 1;
    }
}

/// One connection to the registration socket. It stays in the service's table until its thread has ended.
pub struct AcceptedConnection {
    /// The connection.
    pub socket: Arc<OwnedFd>,
    /// The peer's user.
    pub uid: u32,
    /// The thread that serves it.
    pub thread: Option<JoinHandle<()>>,
}

/// Descriptors of an event context in the service's table: the stack's and the registry's.
const CONTEXT: u64 = 2;

/// See the module.
pub struct Registry {
    /// Clients by token.
    pub clients: HashMap<u64, RegisteredClient>,
    /// Connections by number.
    pub connections: HashMap<u64, AcceptedConnection>,
    next_connection: u64,
    /// Sockets that may turn up in other processes.
    pub passed_sockets: PassedSockets,
    /// The kernel's listening sockets that clients have shown for their listeners, by cookie.
    shown_listeners: HashSet<u64>,
    /// When the service was last used: by a client or by a control command.
    pub last_use: Option<Instant>,
    /// Processes (pidfds) that may register later. Some never do.
    pub expected: Vec<Arc<OwnedFd>>,
    /// Event contexts that a region allows.
    max_contexts: u32,
    /// The users' shares of the service's descriptors.
    pub budget: Arc<DescriptorBudget>,
    /// How many regions each user has.
    pub regions: Arc<RegionCounts>,
}

impl Registry {
    /// An empty registry. A region allows `max_contexts` event contexts, and the process so many descriptors.
    pub fn new(max_contexts: u32, descriptors: u64) -> Self {
        Self {
            clients: HashMap::new(),
            connections: HashMap::new(),
            next_connection: 0,
            passed_sockets: PassedSockets::default(),
            shown_listeners: HashSet::new(),
            last_use: None,
            expected: Vec::new(),
            max_contexts,
            budget: Arc::new(DescriptorBudget::new(descriptors)),
            regions: Arc::default(),
        }
    }

    /// Notes a connection and gives it a number. `None` if its user has `most` already.
    pub fn add_connection(&mut self, socket: &Arc<OwnedFd>, uid: u32, most: u32) -> Option<u64> {
        self.last_use = Some(Instant::now());
        if self.connections.values().filter(|c| c.uid == uid).count() >= most as usize {
            return None;
        }
        let number = self.next_connection;
        self.next_connection += 1;
        self.connections.insert(number, AcceptedConnection { socket: socket.clone(), uid, thread: None });
        Some(number)
    }

    /// Forgets a connection whose thread has ended.
    pub fn remove_connection(&mut self, number: u64) {
        if let Some(connection) = self.connections.remove(&number) {
            self.budget.give_back(connection.uid, 1);
        }
        self.last_use = Some(Instant::now());
    }

    /// The shares that clients cost.
    pub fn shares(&self) -> Shares {
        Shares { descriptors: Arc::clone(&self.budget), regions: Arc::clone(&self.regions) }
    }

    /// The lowest free event context of a client, if its user's share of descriptors allows one.
    pub fn take_context(&mut self, token: u64, operator: impl Fn(u32) -> bool) -> Option<(ClientId, u32)> {
        let client = self.clients.get_mut(&token)?;
        let number = client.contexts.trailing_ones();
        if number >= self.max_contexts.min(u64::BITS) || !self.budget.take(client.uid, operator(client.uid), CONTEXT) {
            return None;
        }
        client.contexts |= 1 << number;
        Some((client.id, number))
    }

    /// These contexts (bits) may be used again.
    pub fn free_contexts(&mut self, token: u64, contexts: u64) {
        if let Some(client) = self.clients.get_mut(&token) {
            self.budget.give_back(client.uid, CONTEXT * u64::from((client.contexts & contexts).count_ones()));
            client.contexts &= !contexts;
            client.doorbells.retain(|number, _| client.contexts & 1 << number != 0);
        }
    }

    /// Keeps the writing end of a new context's doorbell.
    pub fn keep_doorbell(&mut self, token: u64, context: u32, doorbell: &OwnedFd) {
        if let (Some(client), Ok(doorbell)) = (self.clients.get_mut(&token), doorbell.try_clone()) {
            client.doorbells.insert(context, doorbell);
        }
    }

    /// Opens the writing end of a client's doorbell anew. The new open file has file status flags of its own, so a
    /// holder that changes them affects nobody else.
    pub fn open_doorbell(&self, id: ClientId, context: u32) -> Option<OwnedFd> {
        let doorbell = self.clients.values().find(|client| client.id == id)?.doorbells.get(&context)?;
        let path = format!("/proc/thread-self/fd/{}", doorbell.as_raw_fd());
        rustix::fs::open(path, OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty()).ok()
    }

    /// A client shows the listening socket with this cookie. False: one listener has it already.
    pub fn add_listener(&mut self, cookie: u64) -> bool {
        self.shown_listeners.insert(cookie)
    }

    /// The stack has freed the slot of this listener, of the client with this token.
    pub fn remove_listener(&mut self, cookie: u64, token: u64) {
        self.shown_listeners.remove(&cookie);
        self.passed_sockets.forget_listener(cookie, token);
    }

    /// A process of this client has ended. Its connection may serve on.
    pub fn process_ended(&mut self, token: u64) {
        if let Some(client) = self.clients.get_mut(&token) {
            client.ended += 1;
        }
    }

    /// Have all processes of this client ended?
    pub fn is_deserted(&self, token: u64) -> bool {
        self.clients.get(&token).is_some_and(|client| client.ended == client.connections)
    }

    /// The connection of a process that has ended is about to stop serving this client.
    pub fn stops_serving(&mut self, token: u64) {
        if let Some(client) = self.clients.get_mut(&token) {
            client.ended -= 1;
        }
    }

    /// A connection stops serving this client. If it was the last, the client is removed and returned.
    pub fn leave(&mut self, token: u64) -> Option<RegisteredClient> {
        let client = self.clients.get_mut(&token)?;
        client.connections -= 1;
        if client.connections > 0 {
            return None;
        }
        self.passed_sockets.forget_client(token);
        let client = self.clients.remove(&token)?;
        self.budget.give_back(client.uid, CONTEXT * u64::from(client.contexts.count_ones()));
        Some(client)
    }

    /// Answers a process of user `uid` that shows the socket with this cookie. EAGAIN: no process has named the socket
    /// yet. EPERM: it belongs to another user, whose region this one must not reach.
    pub fn locate(&self, cookie: Option<u64>, uid: u32) -> Reply {
        let refused = |errno: Errno| Reply::Refused { errno: errno.raw_os_error() };
        let Some(cookie) = cookie else { return refused(Errno::INVAL) };
        let Some(Location { token, slot, generation }) = self.passed_sockets.location(cookie) else {
            let stack = self.passed_sockets.other_stack(cookie, uid);
            return stack.map_or(refused(Errno::AGAIN), |stack| Reply::AdoptedAt { stack });
        };
        match self.clients.get(&token) {
            Some(client) if client.uid == uid => Reply::Adopted { token, slot, generation },
            Some(_) => refused(Errno::PERM),
            None => refused(Errno::NOENT),
        }
    }
}

#[cfg(test)]
mod tests;
