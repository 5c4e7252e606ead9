//! The clients of a card, by the place of their region.

use crate::message::{Question, ToCard};
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use towpath_ring::{Region, Slot};
use towpath_stack::guard::Exceeded;
use towpath_stack::{ClientId, Connection, Guard, Status, Verdict};

/// A client, as the host knows it. The card is believed nothing of this.
pub struct Served {
    /// Its number.
    pub id: ClientId,
    /// Its region.
    pub region: Arc<Region>,
    /// Its user.
    pub uid: u32,
    /// Its process.
    pub pid: i32,
    /// Its program.
    pub name: String,
    /// The bells of its event contexts.
    contexts: Mutex<HashMap<u32, Arc<OwnedFd>>>,
    /// What reserves ports, by slot and number of the command.
    reservations: Mutex<HashMap<(u32, u32), OwnedFd>>,
    /// Whoever serves it gives it up to somebody else.
    pub moving: AtomicBool,
}

impl Served {
    /// Without contexts and ports.
    pub fn new(id: ClientId, region: Arc<Region>, (uid, pid, name): (u32, i32, String)) -> Self {
        Self {
            id,
            region,
            uid,
            pid,
            name,
            contexts: Mutex::default(),
            reservations: Mutex::default(),
            moving: AtomicBool::new(false),
        }
    }
    /// Opens or closes a context.
    pub fn set_context(&self, context: u32, bell: Option<OwnedFd>) {
        let mut contexts = lock(&self.contexts);
        match bell {
            Some(bell) => _ = contexts.insert(context, Arc::new(bell)),
            None => _ = contexts.remove(&context),
        }
    }
    /// The bell of a context.
    pub fn bell(&self, context: u32) -> Option<Arc<OwnedFd>> {
        lock(&self.contexts).get(&context).cloned()
    }
    /// All contexts that are open.
    pub fn contexts(&self) -> Vec<(u32, Arc<OwnedFd>)> {
        lock(&self.contexts).iter().map(|(context, bell)| (*context, Arc::clone(bell))).collect()
    }
    /// Keeps what reserves the port of a command. A slot has one command at a time.
    pub fn reserve(&self, slot: u32, seq: u32, kept: OwnedFd) {
        let mut reservations = lock(&self.reservations);
        reservations.retain(|(other, _), _| *other != slot);
        reservations.insert((slot, seq), kept);
    }
    /// What it has of them: slot and number of the command.
    pub fn reservations(&self) -> Vec<(u32, u32)> {
        lock(&self.reservations).keys().copied().collect()
    }
    /// Takes all of them.
    pub fn take_reservations(&self) -> Vec<(u32, u32, OwnedFd)> {
        lock(&self.reservations).drain().map(|((slot, seq), kept)| (slot, seq, kept)).collect()
    }
    /// Lets it go.
    pub fn free(&self, slot: u32, seq: u32) {
        let gone = lock(&self.reservations).remove(&(slot, seq));
        drop(gone);
    }
    /// Lets go whatever a slot has.
    pub fn free_all(&self, slot: u32) {
        lock(&self.reservations).retain(|(other, _), _| *other != slot);
    }
    /// Its slots.
    pub fn slots(&self) -> impl Iterator<Item = Slot> + '_ {
        (0..self.region.geometry().slots).filter_map(|raw| self.region.slot(raw))
    }
}

/// What a place is used for.
enum Place {
    Free,
    /// Its region is made; the client is not added yet.
    Made,
    Taken(Arc<Served>),
}

/// All places.
pub struct Places(Mutex<Vec<Place>>);

impl Places {
    /// So many, all free.
    pub fn new(count: u32) -> Self {
        Self(Mutex::new((0..count).map(|_| Place::Free).collect()))
    }
    /// Takes a free one.
    pub fn take(&self) -> Option<u32> {
        let mut places = lock(&self.0);
        let place = places.iter().position(|place| matches!(place, Place::Free))?;
        places[place] = Place::Made;
        Some(place as u32)
    }
    /// Notes whose it is.
    pub fn give(&self, place: u32, client: Arc<Served>) {
        if let Some(entry) = lock(&self.0).get_mut(place as usize) {
            *entry = Place::Taken(client);
        }
    }
    /// It is free again.
    pub fn free(&self, place: u32) {
        let gone = lock(&self.0).get_mut(place as usize).map(|entry| std::mem::replace(entry, Place::Free));
        drop(gone);
    }
    /// Whoever has served its client has forgotten that: the place is free, unless somebody else serves it from now on.
    pub fn left(&self, place: u32) {
        if !self.of(place).is_some_and(|client| client.moving.swap(false, Ordering::AcqRel)) {
            self.free(place);
        }
    }
    /// Whose is it?
    pub fn of(&self, place: u32) -> Option<Arc<Served>> {
        match lock(&self.0).get(place as usize) {
            Some(Place::Taken(client)) => Some(Arc::clone(client)),
            _ => None,
        }
    }
    /// Where is this client?
    pub fn find(&self, id: ClientId) -> Option<(u32, Arc<Served>)> {
        self.all().into_iter().find(|(_, client)| client.id == id)
    }
    /// All clients.
    pub fn all(&self) -> Vec<(u32, Arc<Served>)> {
        let places = lock(&self.0);
        let taken = places.iter().enumerate().filter_map(|(place, entry)| match entry {
            Place::Taken(client) => Some((place as u32, Arc::clone(client))),
            _ => None,
        });
        taken.collect()
    }
}

/// What a card says, in the service's numbers.
impl Places {
    /// Its sockets, with their clients.
    pub fn connections(&self, mut all: Vec<Connection>) -> Vec<Connection> {
        for one in &mut all {
            let client = one.client.and_then(|place| self.of(place.0));
            one.client = client.as_ref().map(|client| client.id);
            if let Some(client) = client {
                (one.uid, one.pid, one.program) = (client.uid, client.pid, client.name.clone());
            }
        }
        all
    }
    /// Its counters, with its clients.
    pub fn status(&self, mut status: Status) -> Status {
        status.clients.retain_mut(|one| match self.of(one.id.0) {
            Some(client) => {
                (one.id, one.uid, one.pid, one.name) = (client.id, client.uid, client.pid, client.name.clone());
                true
            }
            None => false,
        });
        status
    }
    /// Asks the operator's policy what a card asks; `None` = there is nothing to answer.
    pub fn decide(&self, guard: &mut dyn Guard, question: Question) -> Option<ToCard> {
        let id = |place| self.of(place).map(|client| client.id);
        let refused = Verdict::Refuse(libc::EACCES);
        let verdict = match question {
            Question::Connect { place, remote } => id(place).map(|id| guard.connect(id, remote)),
            Question::Listen { place, local, dual } => id(place).map(|id| guard.listen(id, local, dual)),
            Question::Accept { place, local, remote } => id(place).map(|id| guard.accept(id, local, remote)),
            Question::Limit { place } => return Some(ToCard::Limit(id(place).and_then(|id| guard.limit(id)))),
            Question::Exceeded { place, limit, connections } => {
                let what = if connections { Exceeded::Connections } else { Exceeded::NewPerSecond };
                if let Some(id) = id(place) {
                    guard.exceeded(id, &limit, what);
                }
                return None;
            }
        };
        Some(ToCard::Verdict(verdict.unwrap_or(refused)))
    }
}

/// The lock. Whoever panicked with it has left what it guards whole: every change is one step.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
