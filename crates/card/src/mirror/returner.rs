//! The thread that carries what the stack writes: bytes of receive rings, lines.

use super::far::{Client, Inner, Job};
use super::key;
use super::record::Record;
use super::wire::{BEAT, Wire};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use towpath_link::Broken;
use towpath_ring::Slot;
use towpath_ring::carry::{Shown, Told, shown};
use towpath_ring::command::Accepted;
use towpath_ring::lines::state;
use towpath_stack::thread::wait;

/// How often it looks whether a slot has been freed, of which the stack does not tell.
const LOOK: Duration = Duration::from_millis(1);

/// What the near side knows of a slot.
struct Carried {
    shown: Shown,
    told: Told,
    /// Bytes of the receive ring that were carried.
    tail: u32,
}

struct Served {
    client: Arc<Client>,
    slots: HashMap<u32, Carried>,
}

/// The thread.
pub struct Returner {
    inner: Arc<Inner>,
    wire: Wire,
    served: Vec<Served>,
}

impl Returner {
    /// Without clients.
    pub fn new(inner: Arc<Inner>, wire: Wire) -> Self {
        Self { inner, wire, served: Vec::new() }
    }

    /// Until the link is over.
    pub fn run(mut self) {
        while !self.inner.over.load(Ordering::Acquire) {
            match self.turn() {
                Ok(0) => self.sleep(),
                Ok(_) => {}
                // Whoever reads is told of it, and does the rest.
                Err(_) => return self.inner.link.close(),
            }
        }
    }

    /// Everything that is there now; how much it was.
    fn turn(&mut self) -> Result<usize, Broken> {
        let mut work = 0;
        while let Some(job) = self.inner.jobs.take() {
            match job {
                Job::Message(lane, message) => self.wire.post(lane, &message),
                Job::Serve(client) => self.served.push(Served { client, slots: HashMap::new() }),
                Job::Left(place) => self.served.retain(|served| served.client.place != place),
            }
            work += 1;
        }
        for served in &mut self.served {
            work += served.carry_all(&mut self.wire)?;
        }
        Ok(work + self.wire.push()?)
    }

    fn sleep(&mut self) {
        self.inner.bell.arm();
        let pending = self.inner.over.load(Ordering::Acquire)
            || !self.inner.jobs.is_empty()
            || self.wire.is_pressed()
            || self.served.iter().any(|served| served.client.is_dirty() && self.wire.has_room(served.client.lane));
        if !pending {
            let closing = self.served.iter().any(|served| !served.client.closing().is_empty());
            wait(&self.inner.epoll, Some(if closing { LOOK } else { BEAT }.as_micros() as u64));
        }
        self.inner.bell.disarm();
    }
}

impl Served {
    fn carry_all(&mut self, wire: &mut Wire) -> Result<usize, Broken> {
        let client = Arc::clone(&self.client);
        let mut work = 0;
        for slot in client.closing() {
            if client.region.stack(slot).state.load(Ordering::Acquire) == state::FREE {
                client.is_closed(slot);
                client.dirty_again(slot);
            }
        }
        for slot in client.take_dirty() {
            if wire.has_room(client.lane) && self.carry(wire, slot)? {
                work += 1;
            } else {
                client.dirty_again(slot);
            }
        }
        Ok(work)
    }

    /// Carries what the stack has written for a slot: what is new in its receive ring, then its lines. False = there was no room for
    /// all of it.
    fn carry(&mut self, wire: &mut Wire, slot: Slot) -> Result<bool, Broken> {
        let client = Arc::clone(&self.client);
        let (region, raw) = (&client.region, slot.raw());
        client.attend(slot);
        let mut words = region.stack(slot).take_along();
        let bytes = region.geometry().rx_bytes;
        let known = self.slots.get(&raw);
        let same = known.is_some_and(|known| known.shown[shown::GENERATION] == words[shown::GENERATION]);
        let carried = known.filter(|_| same).map_or(0, |known| known.tail);
        let (listens, mut whole) = (words[shown::STATE] == state::LISTENING, true);
        let mut fresh = words[shown::RX_TAIL].wrapping_sub(carried);
        if listens && fresh <= bytes {
            let accepted = self.carry_accepted(wire, slot, carried, fresh)?;
            whole = accepted == fresh;
            fresh = accepted;
            words[shown::RX_TAIL] = carried.wrapping_add(accepted);
        }
        if fresh <= bytes {
            let at = (key(client.place), u64::from(raw) * u64::from(bytes));
            wire.copy(client.lane, at, region.rx(slot), (carried, fresh))?;
        }
        // They are read after the line: at least as new.
        let told = region.info(slot).take_along();
        let (place, known) = (client.place, self.slots.get(&raw));
        if known.is_none_or(|known| known.told != told) {
            wire.send(client.lane, &Record::Info { place, slot: raw, told: Box::new(told) })?;
        }
        // A listener's line also says that somebody is to look again.
        if listens || known.is_none_or(|known| known.shown != words) {
            wire.send(client.lane, &Record::Stack { place, slot: raw, shown: words })?;
        }
        let tail = words[shown::RX_TAIL];
        self.slots.insert(raw, Carried { shown: words, told, tail });
        Ok(whole)
    }

    /// The connections of a listener's records are known before the records are. How many bytes of them may be carried.
    fn carry_accepted(&mut self, wire: &mut Wire, slot: Slot, from: u32, fresh: u32) -> Result<u32, Broken> {
        let client = Arc::clone(&self.client);
        let mut done = 0;
        while done + Accepted::BYTES as u32 <= fresh && wire.has_room(client.lane) {
            let mut record = [0; Accepted::BYTES];
            client.region.rx(slot).read(from.wrapping_add(done), &mut record);
            if let Some(child) = client.region.slot(Accepted::from_bytes(&record).slot).filter(|child| *child != slot)
                && !self.carry(wire, child)?
            {
                break;
            }
            done += Accepted::BYTES as u32;
        }
        Ok(done)
    }
}
