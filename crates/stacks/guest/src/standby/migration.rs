//! Moving all clients from one side to the other.

use super::{Standby, StandbyClient, StandbySide};
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::time::Instant;
use towpath_forward::chunks;
use towpath_forward::host::calls::{ANSWER, StackCalls, done};
use towpath_forward::lock::lock;
use towpath_forward::message::{ToHost, ToStack};
use towpath_kernel::MovedConnection;
use towpath_runtime::{ClientId, Movement, Stack};

/// A client between the two sides.
struct TravellingClient {
    id: ClientId,
    moved: Vec<MovedConnection>,
    reservations: Vec<(u32, u32, OwnedFd)>,
}

impl Standby {
    /// Moves all clients.
    pub(super) fn move_clients(&self, from: StandbySide, to: StandbySide) -> io::Result<Movement> {
        if to == StandbySide::Guest {
            if self.guest.shared.dead.load(Ordering::Acquire) {
                return Err(io::Error::from_raw_os_error(libc::ENETDOWN));
            }
            // The interface is up before it is needed.
            self.raise_guest_interface()?;
        }
        self.settle(from);
        let since = Instant::now();
        // Packets that arrive while neither side has the address are lost, and not answered.
        self.take_address(from)?;
        let mut movement = Movement::default();
        let mut clients = lock(&self.clients);
        self.prune(&mut clients);
        let mut given: Vec<(&mut StandbyClient, TravellingClient)> = Vec::new();
        // These keep this host from answering. The guest has its own.
        let mut drop_filters = Vec::new();
        for (id, known) in clients.iter_mut() {
            let (travelling, lost) = match from {
                StandbySide::Host => self.give_from_host(*id, known, &mut drop_filters),
                StandbySide::Guest => self.give_from_guest(*id, known),
            };
            movement.lost += lost;
            movement.clients += 1;
            movement.connections += travelling.moved.len();
            given.push((known, travelling));
        }
        self.guest.shared.serves.store(to == StandbySide::Guest, Ordering::Release);
        *lock(&self.guest.shared.at_revival) =
            if to == StandbySide::Guest { self.guest_address_commands() } else { Vec::new() };
        for (known, travelling) in &mut given {
            if let Err(error) = self.adopt(to, known, travelling) {
                tracing::error!(%error, client = known.client.name, "a client could not move");
            }
        }
        if let Err(error) = self.give_address(to) {
            tracing::error!(%error, "the address could not move");
        }
        for (known, travelling) in given {
            movement.lost += self.put_connections(to, known, travelling);
        }
        drop(drop_filters);
        movement.took_us = since.elapsed().as_micros() as u64;
        Ok(movement)
    }

    /// Forgets clients that are gone.
    pub(super) fn prune(&self, clients: &mut HashMap<ClientId, StandbyClient>) {
        clients.retain(|id, known| self.guest.shared.table.get(known.index).is_some_and(|client| client.id == *id));
    }
    fn give_from_host(
        &self,
        id: ClientId,
        known: &mut StandbyClient,
        drop_filters: &mut Vec<OwnedFd>,
    ) -> (TravellingClient, usize) {
        let Some(host_id) = known.host_id.take() else {
            return (TravellingClient { id, moved: Vec::new(), reservations: Vec::new() }, 0);
        };
        known.client.moving.store(true, Ordering::Release);
        let given = self.host.give(host_id);
        lock(&self.ids).remove(&host_id);
        drop_filters.extend(given.drop_filters);
        (TravellingClient { id, moved: given.moved, reservations: given.reservations }, given.lost)
    }
    fn give_from_guest(&self, id: ClientId, known: &StandbyClient) -> (TravellingClient, usize) {
        known.client.moving.store(true, Ordering::Release);
        // Reservations that the guest frees from now on must stay here.
        let reservations = known.client.take_reservations();
        let answer = self.guest.shared.ask(ToStack::Give { index: known.index }, ANSWER);
        let moved = self.guest.shared.chunks.take(known.index);
        let lost = if let Some(ToHost::Given { lost }) = answer { lost as usize } else { 0 };
        (TravellingClient { id, moved, reservations }, lost)
    }

    fn adopt(&self, to: StandbySide, known: &mut StandbyClient, travelling: &TravellingClient) -> io::Result<()> {
        let moved: Vec<_> = travelling.moved.iter().map(|moved| (moved.slot, moved.record.local)).collect();
        let client = &known.client;
        if to == StandbySide::Guest {
            let (uid, pid, name) = (client.uid, client.pid, client.name.clone());
            let adopt = ToStack::Adopt { index: known.index, uid, pid, name, moved };
            return done(self.guest.shared.ask(adopt, ANSWER));
        }
        let host_id = self.host.adopt(self.setup(known)?, moved)?;
        known.host_id = Some(host_id);
        lock(&self.ids).insert(host_id, travelling.id);
        Ok(())
    }

    /// Puts a client's connections into the new side. Returns how many were refused.
    fn put_connections(&self, to: StandbySide, known: &StandbyClient, travelling: TravellingClient) -> usize {
        let TravellingClient { moved, reservations, id } = travelling;
        let (index, count) = (known.index, moved.len());
        match (to, known.host_id) {
            (StandbySide::Guest, _) => {
                for chunk in moved.iter().flat_map(|moved| chunks::cut(index, moved)) {
                    self.guest.shared.tell(0, &ToStack::Record(chunk));
                }
                let put = self.guest.shared.ask(ToStack::Put { index }, ANSWER);
                reservations
                    .into_iter()
                    .for_each(|(slot, seq, socket)| self.guest.reserve(id, slot, seq, socket.into()));
                for (context, _) in known.client.contexts() {
                    self.guest.shared.ask(ToStack::Context { index, context, open: true }, ANSWER);
                }
                self.guest.shared.ask(ToStack::Open { index }, ANSWER);
                if let Some(ToHost::Put { failed }) = put { failed as usize } else { count }
            }
            (StandbySide::Host, Some(host_id)) => {
                let failed = self.host.put(host_id, moved);
                reservations
                    .into_iter()
                    .for_each(|(slot, seq, socket)| self.host.reserve(host_id, slot, seq, socket.into()));
                for (context, doorbell) in known.client.contexts() {
                    if let Ok(doorbell) = doorbell.try_clone() {
                        self.host.add_context(host_id, context, doorbell);
                    }
                }
                self.host.open(host_id);
                failed
            }
            (StandbySide::Host, None) => count,
        }
    }
}
