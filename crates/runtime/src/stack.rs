//! What the service asks of a stack.

use crate::client_setup::{ClientId, ClientMemory, ClientSetup};
use crate::execute::Executed;
use crate::files::{Files, SharedFile};
use crate::status::{ConnectionStatus, Status};
use std::io;
use std::os::fd::OwnedFd;
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

/// What has moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Movement {
    /// Clients.
    pub clients: usize,
    /// Their connections.
    pub connections: usize,
    /// Connections that could not be moved, and were reset.
    pub lost: usize,
    /// How long nobody has served them, µs.
    pub took_us: u64,
}

/// How many threads move bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerCount {
    /// Those that have flow groups to serve; the others are parked and use no CPU.
    pub running: usize,
    /// Most that can run: there are as many flow groups.
    pub most: usize,
}

/// A stack that serves clients.
pub trait Stack: Send + Sync {
    /// Its name for people: `fast`, `kernel`.
    fn name(&self) -> &'static str;
    /// Does it use kernel sockets of its own at the addresses of those that reserve its ports? Then these let it
    /// (`SO_REUSEADDR`).
    fn shares_ports(&self) -> bool {
        false
    }
    /// The sizes of its regions, if they cannot be others.
    fn geometry(&self) -> Option<Geometry> {
        None
    }
    /// Memory and doorbells for the next client, which is added (or dropped) after that.
    fn client_memory(&self, geometry: Geometry) -> io::Result<ClientMemory> {
        ClientMemory::new(geometry)
    }
    /// Serves a client from now on.
    fn add_client(&self, setup: ClientSetup) -> io::Result<ClientId>;
    /// Opens an event context; returns when every thread knows it.
    fn add_context(&self, client: ClientId, context: u32, wake: OwnedFd);
    /// Closes an event context; returns when no thread rings it any more.
    fn drop_context(&self, client: ClientId, context: u32);
    /// Keeps what reserves the port of a slot until the use of the slot ends that begins with the command of sequence number
    /// `seq`. That command may come before or after this.
    fn reserve(&self, client: ClientId, slot: u32, seq: u32, socket: OwnedFd);
    /// The last descriptor of this socket is gone: as if the application had closed it.
    fn hangup(&self, client: ClientId, slot: u32, generation: u32);
    /// One of the client's processes is gone, and with it perhaps somebody who was woken for a new connection: the others are told. What it
    /// was about to connect or to listen with (`CommandLine::holder`) is closed.
    fn departed(&self, client: ClientId, process: u32);
    /// No process of this client is left: its sockets are closed as by `hangup`, and it is forgotten when they are drained.
    fn remove_client(&self, client: ClientId);
    /// Which files it takes.
    fn files(&self) -> Files {
        Files::None
    }
    /// Takes a file ([`Files::take`] has been asked) and says its number, never 0 and never given twice.
    fn add_file(&self, _: ClientId, _: SharedFile) -> io::Result<u32> {
        Err(io::ErrorKind::Unsupported.into())
    }
    /// What a client needs to use the pair of number `pair` in its place `place`.
    fn pair(&self, client: ClientId, place: u32, pair: u32) -> Option<PairHandle>;
    /// All sockets.
    fn connections(&self) -> Vec<ConnectionStatus>;
    /// Counters.
    fn status(&self) -> Status;
    /// How many threads move bytes now. A stack that cannot change it has all of them running.
    fn workers(&self) -> WorkerCount {
        let most = self.status().flow_groups.len();
        WorkerCount { running: most, most }
    }
    /// From now on the first `n` threads run (1 to [`WorkerCount::most`]) and the others are parked; flow groups move so that the numbers per
    /// thread differ by at most one. Nothing is lost or reordered by that. Returns when all are where they belong.
    fn set_workers(&self, _: usize) -> io::Result<()> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "the threads of this stack are fixed"))
    }
    /// Routes, addresses or neighbours have changed.
    fn network_changed(&self);
    /// The policy's rules or its knowledge of clients have changed: returns when limits and weights are in force.
    fn policy_changed(&self);
    /// Runs a program where its sockets are.
    fn execute(&self, _: &[String]) -> io::Result<Executed> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "this stack has no kernel in which a program could run"))
    }
    /// Moves all clients, with their connections, to another place of its: `host`, `uml`.
    fn move_to(&self, _: &str) -> io::Result<Movement> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "this stack has no other place (see --standby)"))
    }
    /// Ends its threads. Connections are forgotten.
    fn stop(self: Box<Self>);
}
