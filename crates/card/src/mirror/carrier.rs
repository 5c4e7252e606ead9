//! The thread that carries what applications write: bytes of send rings, lines, commands. It reads their dirty sets as a stack would.

use super::key;
use super::near::{Client, Inner, Job};
use super::record::Record;
use super::wire::{BEAT, Wire};
use crate::places::lock;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use towpath_link::Broken;
use towpath_ring::Slot;
use towpath_ring::carry::app;
use towpath_ring::lines::state;
use towpath_stack::thread::wait;

/// Doors and commands of one client in a turn.
const PER_CLIENT: usize = 64;
/// How often it looks at listeners whose applications may have accepted.
const LOOK: Duration = Duration::from_millis(1);

/// What is known of a slot.
#[derive(Default)]
struct Carried {
    /// Of its application's line.
    generation: u32,
    /// Bytes of the send ring that were carried.
    tail: u32,
    /// Bytes of the receive ring that the other side knows to be taken.
    head: u32,
    /// See `CommandLine::holder`.
    holder: u32,
}

/// A client and how far it is.
struct Served {
    client: Arc<Client>,
    door_head: u32,
    command_head: u32,
    slots: HashMap<u32, Carried>,
}

/// The thread.
pub struct Carrier {
    inner: Arc<Inner>,
    wire: Wire,
    served: Vec<Served>,
}

impl Carrier {
    /// Without clients.
    pub fn new(inner: Arc<Inner>, wire: Wire) -> Self {
        Self { inner, wire, served: Vec::new() }
    }

    /// Until the link is broken.
    pub fn run(mut self) {
        while !self.inner.stopping.load(Ordering::Acquire) && !self.inner.dead.load(Ordering::Acquire) {
            let turn = self.turn();
            match turn {
                Ok(0) => self.sleep(),
                Ok(_) => {}
                Err(error) => {
                    tracing::error!(%error, "the far stack");
                    // Whoever reads is told of it, and does the rest.
                    return self.inner.link.close();
                }
            }
        }
    }

    /// Everything that is there now; how much it was.
    fn turn(&mut self) -> Result<usize, Broken> {
        let mut work = 0;
        while let Some(job) = self.inner.jobs.take() {
            self.job(job)?;
            work += 1;
        }
        for served in &mut self.served {
            work += served.commands(&mut self.wire)? + served.doors(&mut self.wire)?;
        }
        work += self.look_at_listeners()?;
        Ok(work + self.wire.push()?)
    }

    fn job(&mut self, job: Job) -> Result<(), Broken> {
        let (client, message) = match job {
            Job::Message(lane, message) => {
                self.wire.post(lane, &message);
                return Ok(());
            }
            Job::Serve(client) => {
                self.served.push(Served { client, door_head: 0, command_head: 0, slots: HashMap::new() });
                return Ok(());
            }
            Job::Hangup(client, raw, message) => {
                let slot = client.shared.region.slot(raw);
                if let (Some(served), Some(slot)) = (find(&mut self.served, &client), slot) {
                    served.carry(&mut self.wire, slot, false)?;
                }
                (client, message)
            }
            Job::Departed(client, process, message) => {
                if let Some(served) = find(&mut self.served, &client) {
                    served.let_go(&mut self.wire, process)?;
                }
                (client, message)
            }
            Job::Remove(client, message) => {
                if let Some(served) = find(&mut self.served, &client) {
                    served.last_words(&mut self.wire)?;
                }
                self.served.retain(|served| served.client.place != client.place);
                lock(&self.inner.watched).retain(|(place, _)| *place != client.place);
                (client, message)
            }
        };
        self.wire.post(client.lane, &message);
        Ok(())
    }

    /// Applications take connections without ringing; the stack has to know for how many it has room.
    fn look_at_listeners(&mut self) -> Result<usize, Broken> {
        let watched = std::mem::take(&mut *lock(&self.inner.watched));
        let (mut work, mut left) = (0, Vec::new());
        for (place, raw) in watched {
            let Some(served) = self.served.iter_mut().find(|served| served.client.place == place) else { continue };
            let region = Arc::clone(&served.client.shared.region);
            let Some(slot) = region.slot(raw) else { continue };
            let head = region.app(slot).rx_head.load(Ordering::Acquire);
            if served.slots.get(&raw).is_none_or(|carried| carried.head != head)
                && self.wire.has_room(served.client.lane)
            {
                served.carry(&mut self.wire, slot, false)?;
                work += 1;
            }
            let line = region.stack(slot);
            let listens = line.state.load(Ordering::Acquire) == state::LISTENING;
            if listens && line.rx_tail.load(Ordering::Acquire) != head {
                left.push((place, raw));
            }
        }
        let mut watched = lock(&self.inner.watched);
        left.retain(|one| !watched.contains(one));
        watched.extend(left);
        Ok(work)
    }

    /// Sleeps until somebody rings.
    fn sleep(&mut self) {
        self.inner.bell.arm();
        let mut pending = !self.inner.jobs.is_empty() || self.wire.is_pressed();
        pending |= self.inner.dead.load(Ordering::Acquire) || self.inner.stopping.load(Ordering::Acquire);
        for served in &self.served {
            let region = &served.client.shared.region;
            region.doors(0).arm();
            region.commands().arm();
            let waits = !region.doors(0).is_empty(served.door_head) || !region.commands().is_empty(served.command_head);
            pending |= waits && self.wire.has_room(served.client.lane);
        }
        if !pending {
            let look = !lock(&self.inner.watched).is_empty();
            wait(&self.inner.epoll, Some(if look { LOOK } else { BEAT }.as_micros() as u64));
        }
        self.inner.bell.disarm();
        for served in &self.served {
            served.client.shared.region.doors(0).disarm();
            served.client.shared.region.commands().disarm();
        }
    }
}

fn find<'a>(all: &'a mut [Served], client: &Arc<Client>) -> Option<&'a mut Served> {
    all.iter_mut().find(|served| Arc::ptr_eq(&served.client, client))
}

impl Served {
    fn commands(&mut self, wire: &mut Wire) -> Result<usize, Broken> {
        let mut work = 0;
        while work < PER_CLIENT && wire.has_room(self.client.lane) {
            let Some(slot) = self.client.shared.next_command(&mut self.command_head) else { break };
            work += 1;
            if let Some(slot) = slot {
                self.carry(wire, slot, true)?;
            }
        }
        Ok(work)
    }

    fn doors(&mut self, wire: &mut Wire) -> Result<usize, Broken> {
        let mut work = 0;
        while work < PER_CLIENT && wire.has_room(self.client.lane) {
            let Some(slot) = self.client.shared.next_door(0, &mut self.door_head) else { break };
            work += 1;
            if let Some(slot) = slot {
                self.carry(wire, slot, false)?;
            }
        }
        Ok(work)
    }

    /// Carries what an application has written for a slot: what is new in its send ring, then its lines.
    fn carry(&mut self, wire: &mut Wire, slot: Slot, command: bool) -> Result<(), Broken> {
        let (client, raw) = (&self.client, slot.raw());
        let region = &client.shared.region;
        // The order of a command's words and those of the line that goes with it is the stack's order of reading.
        let line = region.command(slot).take_along();
        let options = region.options(slot).take_along();
        let words = region.app(slot).take_along();
        let carried = self.slots.entry(raw).or_default();
        if carried.generation != words[app::GENERATION] {
            (carried.generation, carried.tail) = (words[app::GENERATION], 0);
        }
        let (tail, bytes) = (words[app::TX_TAIL], region.geometry().tx_bytes);
        let fresh = tail.wrapping_sub(carried.tail);
        // A tail that is a lie is carried as it is: the stack judges it.
        if fresh <= bytes {
            let at = (key(client.place), u64::from(raw) * u64::from(bytes));
            wire.copy(client.lane, at, region.tx(slot), (carried.tail, fresh))?;
        }
        (carried.tail, carried.head) = (tail, words[app::RX_HEAD]);
        let place = client.place;
        if command {
            carried.holder = line[0];
            return wire.send(client.lane, &Record::Command { place, slot: raw, app: words, options, command: line });
        }
        wire.send(client.lane, &Record::App { place, slot: raw, app: words })
    }

    /// A process has ended: the other side must know what does not depend on it any more.
    fn let_go(&mut self, wire: &mut Wire, process: u32) -> Result<(), Broken> {
        let region = Arc::clone(&self.client.shared.region);
        let held = self.slots.iter().filter(|(_, carried)| carried.holder == process).map(|(raw, _)| *raw);
        for slot in held.collect::<Vec<_>>().into_iter().filter_map(|raw| region.slot(raw)) {
            if region.command(slot).holder.load(Ordering::Relaxed) != process {
                self.carry(wire, slot, true)?;
            }
        }
        Ok(())
    }

    /// Nobody is left: what was written last counts.
    fn last_words(&mut self, wire: &mut Wire) -> Result<(), Broken> {
        let client = Arc::clone(&self.client);
        let in_use = |slot: &Slot| client.shared.region.stack(*slot).state.load(Ordering::Acquire) != state::FREE;
        for slot in client.served.slots().filter(in_use) {
            self.carry(wire, slot, false)?;
        }
        Ok(())
    }
}
