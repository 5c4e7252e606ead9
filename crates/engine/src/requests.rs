//! What the service's threads ask the slow thread for.

use crate::api::{ClientId, ClientSetup, PairHandle};
use crate::slots::Phase;
use crate::slow::SlowThread;
use crate::status::{ClientStatus, Connection};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use towpath_ring::command::not_ours::REASONS;
use towpath_tcp::counters::Counters;
use towpath_tcp::time::Micros;

/// One request. A `Sender` carries the answer; where it is a `Sender<()>`, its drop is the answer.
pub enum Request {
    /// See [`crate::Engine::add_client`].
    AddClient(ClientSetup, Sender<io::Result<ClientId>>),
    /// See [`crate::Engine::add_context`].
    Context(ClientId, u32, Option<OwnedFd>, Sender<()>),
    /// See [`crate::Engine::reserve`].
    Reserve(ClientId, u32, u32, OwnedFd),
    /// See [`crate::Engine::hangup`].
    Hangup(ClientId, u32, u32),
    /// See [`crate::Engine::departed`].
    Departed(ClientId),
    /// See [`crate::Engine::remove_client`].
    RemoveClient(ClientId),
    /// See [`crate::Engine::policy_changed`].
    Policy(Sender<()>),
    /// See [`crate::Engine::connections`].
    Connections(Sender<Vec<Connection>>),
    /// See [`crate::Engine::pair`].
    Pair(ClientId, u32, u32, Sender<Option<PairHandle>>),
    /// The slow path's counters and the clients.
    Status(Sender<(Counters, [u64; REASONS], Vec<ClientStatus>)>),
}

impl SlowThread {
    /// Serves one request.
    pub fn request(&mut self, now: Micros, request: Request) {
        match request {
            Request::AddClient(setup, reply) => {
                let _ = reply.send(self.add_client(setup));
            }
            Request::Context(id, context, wake, done) => self.set_context(id, context, wake, &done),
            Request::Reserve(id, raw, seq, socket) => self.reserve(now, id, raw, seq, socket),
            Request::Hangup(id, raw, generation) => self.hangup(now, id, raw, generation),
            Request::Departed(id) => self.departed(id),
            Request::RemoveClient(id) => self.remove_client(now, id),
            Request::Policy(done) => {
                self.apply_policy();
                drop(done);
            }
            Request::Pair(id, place, pair, reply) => {
                let index = self.index_of(id);
                let _ = reply.send(index.and_then(|index| self.host.pair_handle(index, place, pair)));
            }
            Request::Connections(reply) => {
                let _ = reply.send(self.connections());
            }
            Request::Status(reply) => {
                let _ = reply.send((*self.slow.counters(), self.not_ours, self.client_status()));
            }
        }
    }

    fn reserve(&mut self, now: Micros, id: ClientId, raw: u32, seq: u32, socket: OwnedFd) {
        let Some(client) = self.index_of(id).and_then(|index| self.host.client(index)) else { return };
        let layout = client.shared.region.layout();
        // Only those have commands.
        match layout.slot(raw).filter(|slot| layout.is_app_slot(*slot)) {
            Some(slot) => client.reserve(slot, seq, socket, now),
            None => client.shared.lied(),
        }
    }

    fn hangup(&mut self, now: Micros, id: ClientId, raw: u32, generation: u32) {
        let Some(index) = self.index_of(id) else { return };
        if let Some(slot) = self.host.client(index).and_then(|c| c.shared.region.slot(raw)) {
            self.close(now, index, slot, generation, false);
        }
    }

    fn departed(&mut self, id: ClientId) {
        let Some(client) = self.index_of(id).and_then(|index| self.host.client(index)) else { return };
        for (slot, _) in client.used().into_iter().filter(|(_, phase)| *phase == Phase::Listening) {
            client.offer_again(slot);
        }
    }

    fn client_status(&self) -> Vec<ClientStatus> {
        let clients = self.host.clients.iter().flatten();
        clients
            .map(|client| ClientStatus {
                id: client.shared.id,
                uid: client.shared.uid,
                pid: client.shared.pid,
                name: client.shared.name.clone(),
                slots: client.in_use,
                lies: client.shared.lies.load(Ordering::Relaxed),
                leaving: client.leaving,
            })
            .collect()
    }
}
