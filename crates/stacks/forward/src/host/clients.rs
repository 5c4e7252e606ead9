//! The host's table of clients, by the index of their region.

use crate::lock::lock;
use crate::message::{Question, ToStack};
use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use towpath_ring::detach::Unsent;
use towpath_ring::lines::state;
use towpath_ring::wake::{futex_wake, futex_wake_one, notify};
use towpath_ring::{Region, Slot};
use towpath_runtime::policy::Exceeded;
use towpath_runtime::{AdmissionPolicy, ClientId, Lease, SocketStatus, Status, Verdict, memory_return};

/// A client as the host knows it. None of this comes from the other kernel.
pub struct HostClient {
    /// Its number.
    pub id: ClientId,
    /// Its region.
    pub region: Arc<Region>,
    /// User id.
    pub uid: u32,
    /// Process id.
    pub pid: i32,
    /// Name of its program.
    pub name: String,
    /// Doorbells of its event contexts.
    contexts: Mutex<HashMap<u32, Arc<OwnedFd>>>,
    /// Sockets that reserve ports, by slot and number of the command.
    reservations: Mutex<HashMap<(u32, u32), OwnedFd>>,
    /// The stack that serves the client gives it up to another one.
    pub moving: AtomicBool,
    /// What the service counts for it.
    lease: Mutex<Option<Lease>>,
}

impl HostClient {
    /// Without contexts and reservations.
    pub fn new(id: ClientId, region: Arc<Region>, (uid, pid, name): (u32, i32, String), lease: Option<Lease>) -> Self {
        Self {
            id,
            region,
            uid,
            pid,
            name,
            contexts: Mutex::default(),
            reservations: Mutex::default(),
            moving: AtomicBool::new(false),
            lease: Mutex::new(lease),
        }
    }
    /// Opens or closes a context.
    pub fn set_context(&self, context: u32, doorbell: Option<OwnedFd>) {
        let mut contexts = lock(&self.contexts);
        match doorbell {
            Some(doorbell) => _ = contexts.insert(context, Arc::new(doorbell)),
            None => _ = contexts.remove(&context),
        }
    }
    /// The doorbell of a context.
    pub fn doorbell(&self, context: u32) -> Option<Arc<OwnedFd>> {
        lock(&self.contexts).get(&context).cloned()
    }
    /// Wakes the calls that sleep on a slot, or the first of them.
    pub fn wake(&self, slot: Slot, first: bool) {
        let word = &self.region.stack(slot).event_seq;
        if first { futex_wake_one(word) } else { futex_wake(word) }
    }
    /// Wakes an event context.
    pub fn notify_context(&self, context: u32) {
        if let Some(doorbell) = self.doorbell(context) {
            notify(doorbell.as_fd());
        }
    }
    /// All contexts that are open.
    pub fn contexts(&self) -> Vec<(u32, Arc<OwnedFd>)> {
        lock(&self.contexts).iter().map(|(context, doorbell)| (*context, Arc::clone(doorbell))).collect()
    }
    /// Keeps the socket that reserves a command's port. A slot has one command at a time.
    pub fn reserve(&self, slot: u32, seq: u32, socket: OwnedFd) {
        let mut reservations = lock(&self.reservations);
        reservations.retain(|(other, _), _| *other != slot);
        reservations.insert((slot, seq), socket);
    }
    /// All reservations: slot and number of the command.
    pub fn reservations(&self) -> Vec<(u32, u32)> {
        lock(&self.reservations).keys().copied().collect()
    }
    /// Takes all reservations.
    pub fn take_reservations(&self) -> Vec<(u32, u32, OwnedFd)> {
        lock(&self.reservations).drain().map(|((slot, seq), socket)| (slot, seq, socket)).collect()
    }
    /// Drops a reservation.
    pub fn release(&self, slot: u32, seq: u32) {
        let gone = lock(&self.reservations).remove(&(slot, seq));
        drop(gone);
    }
    /// Drops every reservation of a slot.
    pub fn release_all(&self, slot: u32) {
        lock(&self.reservations).retain(|(other, _), _| *other != slot);
    }
    /// No process of it is left: gives back the memory of its rings, but for what is still to be sent.
    pub fn vacate(&self) {
        let in_use = |slot: &Slot| self.region.stack(*slot).state.load(Ordering::Acquire) != state::FREE;
        let unsent: Vec<_> = self.slots().filter(in_use).filter_map(|slot| self.region.unsent(slot)).collect();
        self.give_back(unsent, None);
    }
    /// Nothing of it is left to be sent: gives back the memory of all its rings.
    pub fn vacate_all(&self) {
        self.give_back(Vec::new(), None);
    }
    /// No stack serves it any more: gives back the memory of all its rings, and what the service counts for it.
    fn end(&self) {
        let lease = lock(&self.lease).take();
        self.give_back(Vec::new(), lease);
    }
    /// A memfd that only this client has is given back by a thread that may wait for it. A place in a guest's memory must be
    /// empty before another client has it, so this thread does it. All clients of a guest are one user's.
    fn give_back(&self, unsent: Vec<Unsent>, lease: Option<Lease>) {
        let region = Arc::clone(&self.region);
        let work = move || {
            region.vacate(&unsent);
            drop(lease);
        };
        if self.region.offset() == 0 { memory_return::later(work) } else { work() }
    }
    /// Its slots.
    pub fn slots(&self) -> impl Iterator<Item = Slot> + '_ {
        (0..self.region.geometry().slots).filter_map(|raw| self.region.slot(raw))
    }
}

/// State of an index.
enum TableEntry {
    Free,
    /// The region is made. The client is not added yet.
    Reserved,
    Taken(Arc<HostClient>),
}

/// All clients of one other kernel, by index.
pub struct ClientTable(Mutex<Vec<TableEntry>>);

impl ClientTable {
    /// A table of `count` free indexes.
    pub fn new(count: u32) -> Self {
        Self(Mutex::new((0..count).map(|_| TableEntry::Free).collect()))
    }
    /// Takes a free index.
    pub fn take_free(&self) -> Option<u32> {
        let mut table = lock(&self.0);
        let index = table.iter().position(|index| matches!(index, TableEntry::Free))?;
        table[index] = TableEntry::Reserved;
        Some(index as u32)
    }
    /// Assigns an index to a client.
    pub fn assign(&self, index: u32, client: Arc<HostClient>) {
        if let Some(entry) = lock(&self.0).get_mut(index as usize) {
            *entry = TableEntry::Taken(client);
        }
    }
    /// Frees an index.
    pub fn free(&self, index: u32) {
        // Before another client can have the same memory.
        if let Some(client) = self.get(index) {
            client.end();
        }
        let gone = lock(&self.0).get_mut(index as usize).map(|entry| std::mem::replace(entry, TableEntry::Free));
        drop(gone);
    }
    /// The stack that served a client has forgotten it. Frees the index, unless another stack serves the client from
    /// now on.
    pub fn forgotten(&self, index: u32) {
        if !self.get(index).is_some_and(|client| client.moving.swap(false, Ordering::AcqRel)) {
            self.free(index);
        }
    }
    /// The client of an index.
    pub fn get(&self, index: u32) -> Option<Arc<HostClient>> {
        match lock(&self.0).get(index as usize) {
            Some(TableEntry::Taken(client)) => Some(Arc::clone(client)),
            _ => None,
        }
    }
    /// The index of a client.
    pub fn find(&self, id: ClientId) -> Option<(u32, Arc<HostClient>)> {
        self.all().into_iter().find(|(_, client)| client.id == id)
    }
    /// All clients with their indexes.
    pub fn all(&self) -> Vec<(u32, Arc<HostClient>)> {
        let table = lock(&self.0);
        let taken = table.iter().enumerate().filter_map(|(index, entry)| match entry {
            TableEntry::Taken(client) => Some((index as u32, Arc::clone(client))),
            _ => None,
        });
        taken.collect()
    }
}

/// Translates the other kernel's answers into the service's numbers.
impl ClientTable {
    /// Names the clients of a list of sockets.
    pub fn connections(&self, mut all: Vec<SocketStatus>) -> Vec<SocketStatus> {
        for one in &mut all {
            let client = one.client.and_then(|index| self.get(index.0));
            one.client = client.as_ref().map(|client| client.id);
            if let Some(client) = client {
                (one.uid, one.pid, one.program) = (client.uid, client.pid, client.name.clone());
            }
        }
        all
    }
    /// Names the clients in a status.
    pub fn status(&self, mut status: Status) -> Status {
        status.clients.retain_mut(|one| match self.get(one.id.0) {
            Some(client) => {
                (one.id, one.uid, one.pid, one.name) = (client.id, client.uid, client.pid, client.name.clone());
                true
            }
            None => false,
        });
        status
    }
    /// Asks the operator's policy the other kernel's question. `None` if there is nothing to answer.
    pub fn decide(&self, guard: &mut dyn AdmissionPolicy, question: Question) -> Option<ToStack> {
        let id = |index| self.get(index).map(|client| client.id);
        let refused = Verdict::Refuse(libc::EACCES);
        let verdict = match question {
            Question::Connect { index, remote } => id(index).map(|id| guard.connect(id, remote)),
            Question::Listen { index, local, dual } => id(index).map(|id| guard.listen(id, local, dual)),
            Question::Accept { index, local, remote } => id(index).map(|id| guard.accept(id, local, remote)),
            Question::Limit { index } => return Some(ToStack::Limit(id(index).and_then(|id| guard.limit(id)))),
            Question::Exceeded { index, limit, connections } => {
                let what = if connections { Exceeded::Connections } else { Exceeded::NewPerSecond };
                if let Some(id) = id(index) {
                    guard.exceeded(id, &limit, what);
                }
                return None;
            }
        };
        Some(ToStack::Verdict(verdict.unwrap_or(refused)))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;
    use towpath_ring::Geometry;
    use towpath_runtime::ClientLease;

    struct Counted(#[allow(dead_code, reason = "its count is looked at")] Arc<()>);

    impl ClientLease for Counted {
        fn take_descriptor(&self) -> bool {
            true
        }
        fn give_descriptor_back(&self) {}
    }

    fn eventually(holds: &dyn Fn() -> bool) {
        let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while !holds() {
            assert!(std::time::Instant::now() < end);
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }

    #[test]
    fn a_client_that_ends_leaves_what_is_to_be_sent_and_then_nothing() {
        let geometry = Geometry { slots: 16, app_slots: 8, tx_bytes: 16384, rx_bytes: 16384, ..Geometry::DEFAULT };
        let (region, memfd) = Region::create(geometry).unwrap();
        let memory = || rustix::fs::fstat(&memfd).unwrap().st_blocks as u64 * 512;
        let counted = Arc::new(());
        let lease: Lease = Box::new(Counted(Arc::clone(&counted)));
        let client = HostClient::new(ClientId(7), Arc::new(region), (1000, 1, String::new()), Some(lease));
        let (table, client) = (ClientTable::new(2), Arc::new(client));
        let index = table.take_free().unwrap();
        table.assign(index, Arc::clone(&client));
        client.slots().for_each(|slot| client.region.tx(slot).write(0, &[1; 16384]));
        let slot = client.region.slot(3).unwrap();
        client.region.stack(slot).state.store(state::ESTABLISHED, Relaxed);
        client.region.app(slot).tx_tail.store(5000, Relaxed);
        assert!(memory() > 16 * 16384);
        client.vacate();
        let mut got = [0; 5000];
        client.region.tx(slot).read(0, &mut got);
        assert_eq!(got, [1; 5000]);
        eventually(&|| memory() < 5 * 16384);
        client.region.tx(slot).read(0, &mut got);
        assert_eq!(got, [1; 5000], "the lines and two pages are left");
        table.forgotten(index);
        // Others may still know the client.
        eventually(&|| Arc::strong_count(&counted) == 1);
        client.region.tx(slot).read(0, &mut got);
        assert_eq!(got, [0; 5000]);
        assert_eq!(table.take_free(), Some(index));
    }
}
