//! What the service needs of the engine, so that tests can stand in for it.

use std::io;
use std::os::fd::OwnedFd;
use towpath_engine::{ClientId, ClientSetup, Connection, Engine, PairHandle, Status};

/// A stack that serves clients. See [`Engine`] for the meaning of each call.
pub trait Stack: Send + Sync {
    /// Serves a client from now on.
    fn add_client(&self, setup: ClientSetup) -> io::Result<ClientId>;
    /// Opens an event context.
    fn add_context(&self, client: ClientId, context: u32, wake: OwnedFd);
    /// Closes an event context.
    fn drop_context(&self, client: ClientId, context: u32);
    /// Keeps `socket` open until the use of the slot that begins with command `seq` ends.
    fn reserve(&self, client: ClientId, slot: u32, seq: u32, socket: OwnedFd);
    /// The last descriptor of a socket is gone.
    fn hangup(&self, client: ClientId, slot: u32, generation: u32);
    /// One of the client's processes is gone.
    fn departed(&self, client: ClientId);
    /// No process of the client is left.
    fn remove_client(&self, client: ClientId);
    /// What a client needs to use the pair of number `pair` in its place `place`.
    fn pair(&self, client: ClientId, place: u32, pair: u32) -> Option<PairHandle>;
    /// All sockets.
    fn connections(&self) -> Vec<Connection>;
    /// Counters.
    fn status(&self) -> Status;
    /// Routes, addresses or neighbours have changed.
    fn network_changed(&self);
    /// The policy's rules or its knowledge of clients have changed.
    fn policy_changed(&self);
    /// Ends its threads.
    fn stop(self: Box<Self>);
}

impl Stack for Engine {
    fn add_client(&self, setup: ClientSetup) -> io::Result<ClientId> {
        Engine::add_client(self, setup)
    }
    fn add_context(&self, client: ClientId, context: u32, wake: OwnedFd) {
        Engine::add_context(self, client, context, wake);
    }
    fn drop_context(&self, client: ClientId, context: u32) {
        Engine::drop_context(self, client, context);
    }
    fn reserve(&self, client: ClientId, slot: u32, seq: u32, socket: OwnedFd) {
        Engine::reserve(self, client, slot, seq, socket);
    }
    fn hangup(&self, client: ClientId, slot: u32, generation: u32) {
        Engine::hangup(self, client, slot, generation);
    }
    fn departed(&self, client: ClientId) {
        Engine::departed(self, client);
    }
    fn remove_client(&self, client: ClientId) {
        Engine::remove_client(self, client);
    }
    fn pair(&self, client: ClientId, place: u32, pair: u32) -> Option<PairHandle> {
        Engine::pair(self, client, place, pair)
    }
    fn connections(&self) -> Vec<Connection> {
        Engine::connections(self)
    }
    fn status(&self) -> Status {
        Engine::status(self)
    }
    fn network_changed(&self) {
        Engine::network_changed(self);
    }
    fn policy_changed(&self) {
        Engine::policy_changed(self);
    }
    fn stop(self: Box<Self>) {
        Engine::stop(*self);
    }
}
