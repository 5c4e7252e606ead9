//! The interface between the service and a stack.

use crate::capture::{Capture, Wish};
use crate::client_setup::{ClientId, ClientMemory, ClientSetup};
use crate::ended_socket::EndedSocket;
use crate::execute::Executed;
use crate::files::{Files, SharedFile};
use crate::reservation::Reservation;
use crate::status::{SocketStatus, Status};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use towpath_modules::Chains;
use towpath_ring::{Geometry, PairGeometry};

/// A pair region, for one of the two clients that share it.
#[derive(Debug)]
pub struct PairHandle {
    /// Its memfd.
    pub memfd: OwnedFd,
    /// Its sizes.
    pub geometry: PairGeometry,
    /// The other client.
    pub peer: ClientId,
}

/// Says which selectors of modules choose a client: their bits ([`towpath_modules::Attached::selector`]).
pub type Selectors = Arc<dyn Fn(ClientId) -> u32 + Send + Sync>;

/// The result of moving clients to another kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Movement {
    /// Clients.
    pub clients: usize,
    /// Their connections.
    pub connections: usize,
    /// Connections that could not be moved, and were reset.
    pub lost: usize,
    /// How long nobody served them, µs.
    pub took_us: u64,
}

/// How many threads move bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerCount {
    /// Threads that have flow groups to serve. The others are parked and use no CPU.
    pub running: usize,
    /// Most that can run: there are as many flow groups.
    pub most: usize,
}

/// A stack that serves clients.
pub trait Stack: Send + Sync {
    /// Its name for people: `fast`, `kernel`.
    fn name(&self) -> &'static str;
    /// Does it bind its own kernel sockets to the addresses of the sockets that reserve its ports? Then those are made
    /// with `SO_REUSEADDR`.
    fn shares_ports(&self) -> bool {
        false
    }
    /// Does it use ports that no kernel socket of its own has? Then the service proves each reservation, and the stack
    /// refuses commands without a [`Grant`](crate::Grant).
    fn needs_proof(&self) -> bool {
        false
    }
    /// The network namespace whose network it carries, by the kernel's cookie. Sockets of others are their kernels'. `None`: it
    /// has a network of its own, which all its clients use.
    fn namespace(&self) -> Option<u64> {
        None
    }
    /// Does the descriptor of a listener stay a listening socket of the kernel, whose connections its program accepts beside
    /// the stack's?
    fn listens_in_kernel(&self) -> bool {
        false
    }
    /// The BPF program that takes first SYNs from such a socket; `None`: the stack needs none. The service attaches it to
    /// the socket that a client shows. It takes the SYNs of those listeners only that the stack has accepted, so it may
    /// be attached before the stack decides.
    fn listener_filter(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    /// The sizes of its regions, if they are fixed.
    fn geometry(&self) -> Option<Geometry> {
        None
    }
    /// Does a client make the memory of its region? So the kernel charges it to the client's control group. A stack must
    /// share this host's memory with its clients, and no page of a region may have to be the service's own.
    fn takes_client_memory(&self) -> bool {
        false
    }
    /// Memory and doorbells for the next client, which is added (or dropped) after that. Only for clients that make none.
    fn client_memory(&self, geometry: Geometry) -> io::Result<ClientMemory> {
        ClientMemory::new(geometry)
    }
    /// Serves a client from now on.
    fn add_client(&self, setup: ClientSetup) -> io::Result<ClientId>;
    /// Opens an event context; returns when every thread knows it.
    fn add_context(&self, client: ClientId, context: u32, wake: OwnedFd);
    /// Closes an event context; returns when no thread notifies it any more.
    fn drop_context(&self, client: ClientId, context: u32);
    /// Keeps the reservation of a slot's port. The command of sequence number `seq` begins the use of the slot; the
    /// reservation is kept until that use ends. The command may come before or after this.
    fn reserve(&self, client: ClientId, slot: u32, seq: u32, reservation: Reservation);
    /// The last descriptor of this socket is gone. The stack acts as if the application had closed it.
    fn hangup(&self, client: ClientId, slot: u32, generation: u32);
    /// One of the client's processes has exited. A thread of it may have been woken for a new connection, so the others
    /// are told. Sockets with which it was about to connect or listen (`CommandLine::holder`) are closed.
    fn departed(&self, client: ClientId, process: u32);
    /// No process of this client is left: its sockets are closed as by `hangup`, and it is forgotten when they are
    /// drained. Its memory is given up when this returns or soon after, but for what is still to be sent.
    fn remove_client(&self, client: ClientId);
    /// The files that it takes.
    fn files(&self) -> Files {
        Files::None
    }
    /// Takes a file that [`Files::take`] has allowed. Returns its number, which is never 0 and never given twice.
    fn add_file(&self, _: ClientId, _: SharedFile) -> io::Result<u32> {
        Err(io::ErrorKind::Unsupported.into())
    }
    /// The pair region of number `pair`, which the client uses in its place `place`.
    fn pair(&self, client: ClientId, place: u32, pair: u32) -> Option<PairHandle>;
    /// All sockets.
    fn connections(&self) -> Vec<SocketStatus>;
    /// The connections that have ended last, the newest first. `None`: the stack does not know how its connections end.
    fn ended(&self) -> Option<Vec<EndedSocket>> {
        None
    }
    /// Ends the connections with these local and remote ends: the peer sees a reset, and the program ECONNABORTED. Returns
    /// how many there were.
    fn cut(&self, _: Vec<(SocketAddr, SocketAddr)>) -> io::Result<usize> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "the connections are a kernel's: use its `ss -K`"))
    }
    /// Counters.
    fn status(&self) -> Status;
    /// How many threads move bytes now. In a stack with a fixed number all of them run.
    fn workers(&self) -> WorkerCount {
        let most = self.status().flow_groups.len();
        WorkerCount { running: most, most }
    }
    /// Lets the first `n` threads run (1 to [`WorkerCount::most`]) and parks the others. Flow groups move so that their
    /// numbers per thread differ by at most one. Nothing is lost or reordered. Returns when all have moved.
    fn set_workers(&self, _: usize) -> io::Result<()> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "the threads of this stack are fixed"))
    }
    /// Routes, addresses or neighbours have changed.
    fn network_changed(&self);
    /// The policy's rules or its knowledge of clients have changed. Returns when limits and weights are in force.
    fn policy_changed(&self);
    /// Tells the policy of the peers that have been refused since it was told last. Returns when it knows them.
    fn count_refusals(&self) {}
    /// Returns when each of its threads has taken a turn. It never does if one hangs.
    fn wait_for_threads(&self) {
        self.status();
    }
    /// Runs a program where its sockets are.
    fn execute(&self, _: &[String]) -> io::Result<Executed> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "this stack has no kernel in which a program could run"))
    }
    /// Moves all clients, with their connections, to another of its kernels: `host`, `uml`.
    fn move_to(&self, _: &str) -> io::Result<Movement> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "this stack has no other place (see --standby)"))
    }
    /// Begins to leave copies of its frames for the operator. There is one capture at a time.
    fn capture(&self, _: &Wish) -> io::Result<Box<dyn Capture>> {
        let why = "the frames of this stack are in another kernel; run tcpdump there";
        Err(io::Error::new(io::ErrorKind::Unsupported, why))
    }
    /// Lets frames go through these modules from now on, and through no others. Returns when no thread runs another one.
    /// No frame is lost by the change. A module with a selector has only frames of connections and listeners of the clients that
    /// `selectors` says. They are asked about all when it comes, and then about each new one.
    fn modules(&self, _: &Chains, _selectors: &Selectors) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
    /// How many threads at most run a module at a time, each with its own copy of what maps have per CPU; `None` = this stack has
    /// no frames of its own.
    fn module_rows(&self) -> Option<usize> {
        None
    }
    /// Ends its threads. Connections are forgotten.
    fn stop(self: Box<Self>);
}
