//! What the service asks of an engine.

use crate::status::{Connection, Status};
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use towpath_ports::Port;
use towpath_ring::Region;
use towpath_tcp::flow::FourTuple;

/// Stands in until the slow path is here.
#[derive(Clone, Debug, Default)]
pub struct SlowConfig {}

/// How an engine is built.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Fast-path threads, 1 to 16; the clients' regions must be made for as many.
    pub cores: usize,
    /// Connections that can be established at one time, over all cores.
    pub max_flows: u32,
    /// How long a core spins without work before it sleeps, µs.
    pub spin_us: u64,
    /// Core `i` is pinned to CPU `cpus[i]`; missing entries are not pinned.
    pub cpus: Vec<usize>,
    /// The slow path's settings.
    pub slow: SlowConfig,
}

/// Routes and steering, as the service knows them. Called by the slow thread only.
pub trait Network: Send {
    /// The way to `remote` (from `local` if the socket is bound).
    fn route(&mut self, remote: Ipv4Addr, local: Option<Ipv4Addr>) -> towpath_tcp::slow::Route;
    /// Is this one of our own addresses?
    fn is_local(&self, addr: Ipv4Addr) -> bool;
    /// Packets of this tuple shall come to us from now on / no more.
    fn steer(&mut self, tuple: &FourTuple, on: bool);
    /// Segments to this listener shall come to us from now on / no more (`0.0.0.0` = every address).
    fn steer_listener(&mut self, addr: Ipv4Addr, port: u16, on: bool);
    /// Have routes or neighbours changed since the last call? Polled by the slow thread whenever it runs.
    fn changed(&mut self) -> bool;
}

/// A new client.
pub struct ClientSetup {
    /// Its region, made by [`Region::create`].
    pub region: Arc<Region>,
    /// Its doorbell eventfds: one per core, then the command queue's. They are never read.
    pub doorbells: Vec<OwnedFd>,
    /// Its user.
    pub uid: u32,
    /// Its process.
    pub pid: i32,
    /// Its program's name.
    pub name: String,
}

/// A client, by number; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientId(pub u32);

/// Running threads.
pub struct Engine {}

impl Engine {
    /// Starts the threads. `ports[core]` are that core's ports in the order of their `PortId`; port 0 of every core is its
    /// loopback.
    pub fn start(config: EngineConfig, ports: Vec<Vec<Box<dyn Port>>>, network: Box<dyn Network>) -> io::Result<Engine> {
        let _ = (config, ports, network);
        todo!()
    }
    /// Serves a client from now on.
    pub fn add_client(&self, setup: ClientSetup) -> io::Result<ClientId> {
        let _ = setup;
        todo!()
    }
    /// Opens an event context; returns when every thread knows it.
    pub fn add_context(&self, client: ClientId, context: u32, wake: OwnedFd) {
        let _ = (client, context, wake);
        todo!()
    }
    /// Closes an event context; returns when no thread rings it any more.
    pub fn drop_context(&self, client: ClientId, context: u32) {
        let _ = (client, context);
        todo!()
    }
    /// Keeps the kernel socket that reserves the port of a slot until the slot is freed.
    pub fn reserve(&self, client: ClientId, slot: u32, socket: OwnedFd) {
        let _ = (client, slot, socket);
        todo!()
    }
    /// The last descriptor of this socket is gone: as if the application had closed it.
    pub fn hangup(&self, client: ClientId, slot: u32, generation: u32) {
        let _ = (client, slot, generation);
        todo!()
    }
    /// No process of this client is left: its sockets are closed as by `hangup`, and it is forgotten when they are drained.
    pub fn remove_client(&self, client: ClientId) {
        let _ = client;
        todo!()
    }
    /// [`Network::changed`] will now answer true.
    pub fn network_changed(&self) {
        todo!()
    }
    /// All sockets.
    pub fn connections(&self) -> Vec<Connection> {
        todo!()
    }
    /// Counters.
    pub fn status(&self) -> Status {
        todo!()
    }
    /// Ends the threads. Connections are forgotten without a word to their peers.
    pub fn stop(self) {
        todo!()
    }
}
