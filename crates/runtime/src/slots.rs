//! A stack's view of a client: the use of each slot, and who may allocate it. A particular stack adds its own state:
//! `C` for a client, `S` for a slot.

use crate::clients::ClientShared;
use crate::events::EventOut;
use crate::info::show_over;
use crate::orphans::ClientOrphans;
use crate::policy::Limit;
use crate::reservation::Reservation;
use crate::sparse::Sparse;
use crate::status::ClientStatus;
use std::collections::{BTreeSet, VecDeque};
use std::net::Ipv6Addr;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use towpath_ring::command::Accepted;
use towpath_ring::lines::{app_flags, state};
use towpath_ring::ring_size::{RECEIVE, RECEIVE_WANTED, SEND_WANTED};
use towpath_ring::{Slot, StackLine};

/// The use of a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// Nothing.
    #[default]
    Free,
    /// A connection that the application opens, not yet established.
    Opening,
    /// A listener.
    Listening,
    /// A connection to a listener, not yet established.
    Child,
    /// A connection through which data may go.
    Open,
    /// A connection that needs no stack: both ends are applications of this host, joined ring to ring.
    Direct,
    /// The stack has forgotten it; the application has not closed it.
    Over,
}

/// The accept queue of a listener.
#[derive(Debug, Default)]
pub struct Listener {
    /// The backlog of `listen`. One more connection may wait (as in Linux).
    pub backlog: u32,
    /// Waiting connections with their generations, oldest first.
    pub(crate) queue: VecDeque<(Slot, u32)>,
    /// Position after the last record (bytes).
    pub(crate) tail: u32,
    /// Position up to which the application has been seen to read (bytes).
    pub(crate) head: u32,
}

impl Listener {
    /// An empty queue.
    pub fn new(backlog: u32) -> Self {
        Self { backlog, ..Self::default() }
    }
    /// Forgets what the application has accepted. False = its position is impossible.
    fn advance(&mut self, rx_head: u32) -> bool {
        let read = rx_head.wrapping_sub(self.head);
        if read > self.tail.wrapping_sub(self.head) || !(read as usize).is_multiple_of(Accepted::BYTES) {
            return false;
        }
        self.queue.drain(..read as usize / Accepted::BYTES);
        self.head = rx_head;
        true
    }
    /// Connections that wait.
    pub fn waiting(&self) -> u32 {
        self.queue.len() as u32
    }
    /// True if no more connections may wait, or a ring of `capacity` bytes has no room for one more.
    fn full(&self, capacity: usize) -> bool {
        self.waiting() > self.backlog || self.waiting() as usize >= capacity / Accepted::BYTES
    }
}

/// One slot.
#[derive(Default)]
pub struct SlotState<S> {
    /// Its use.
    pub phase: Phase,
    /// The application has closed it (or is gone).
    pub app_closed: bool,
    /// The last command taken.
    pub command_seq: u32,
    /// Counts as one of the client's connections.
    pub counted: bool,
    /// The last options taken.
    pub options_seq: u32,
    /// The reservation of the port, and since when it has been here, µs.
    pub reservation: Option<(Reservation, u64)>,
    /// The accept queue.
    pub listener: Option<Box<Listener>>,
    /// The stack's own, new with every use.
    pub own: S,
}

/// How many exited processes are remembered. A command of one may still be seen later, and only the last ones can have
/// such commands.
const MOST_GONE: usize = 64;

/// The result of queueing an accepted connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queued {
    /// The application has been told.
    Yes,
    /// The queue is full, or there is no listener.
    Full,
    /// The listener's words contradict the contract.
    ContractViolation,
}

/// One client, as the thread of a stack knows it that takes its commands.
pub struct ServedClient<C, S> {
    /// The state that all threads share.
    pub shared: Arc<ClientShared>,
    /// Events to it.
    pub out: EventOut,
    /// Position in the command queue.
    pub command_head: u32,
    /// Its slots.
    pub slots: Sparse<SlotState<S>>,
    /// Slots in use.
    pub in_use: u32,
    /// Slots in use for connections.
    pub connections: u32,
    /// The policy's limit for it.
    pub limit: Option<Limit>,
    /// The connections of all clients under that limit.
    pub under: Option<Arc<AtomicU64>>,
    /// No process of it is left.
    pub leaving: bool,
    /// Its connections that are still to be completed then.
    pub orphans: Option<ClientOrphans>,
    /// The stack's own.
    pub own: C,
    /// Slots that are not in use but have a port reserved.
    pub loose_reservations: BTreeSet<Slot>,
    /// Its processes that exited last.
    gone: VecDeque<u32>,
    /// Slots of the stack's own range that have been freed.
    pub(crate) free: Vec<Slot>,
    /// Slots of that range that were never used.
    pub(crate) fresh: Range<u32>,
}

impl<C, S: Default> ServedClient<C, S> {
    /// A client with nothing but free slots, for the thread that raises events as `thread`.
    pub fn new(shared: Arc<ClientShared>, thread: usize, own: C) -> Self {
        let layout = shared.region.layout();
        let geometry = layout.geometry();
        Self {
            slots: Sparse::new(geometry.slots as usize),
            out: EventOut::new(thread),
            command_head: 0,
            in_use: 0,
            connections: 0,
            limit: None,
            under: None,
            leaving: false,
            orphans: None,
            own,
            loose_reservations: BTreeSet::new(),
            gone: VecDeque::new(),
            free: Vec::new(),
            fresh: geometry.app_slots..geometry.slots,
            shared,
        }
    }
    /// State of a slot.
    pub fn slot(&mut self, slot: Slot) -> &mut SlotState<S> {
        self.slots.entry(slot.index())
    }
    /// The slots in use, and their uses.
    pub fn used(&self) -> Vec<(Slot, Phase)> {
        let used = self.slots.iter().filter(|(_, entry)| entry.phase != Phase::Free);
        used.filter_map(|(i, entry)| Some((self.shared.region.slot(i as u32)?, entry.phase))).collect()
    }
    /// The shared line of a slot.
    pub fn line(&self, slot: Slot) -> &StackLine {
        self.shared.region.stack(slot)
    }
    /// Its state for listings.
    pub fn status(&self) -> ClientStatus {
        ClientStatus {
            id: self.shared.id,
            uid: self.shared.uid,
            pid: self.shared.pid,
            name: self.shared.name.clone(),
            slots: self.in_use,
            contract_violations: self.shared.contract_violations.load(Ordering::Relaxed),
            leaving: self.leaving,
            busy_us: self.shared.busy_ns.load(Ordering::Relaxed) / 1000,
        }
    }
    /// Answers the command of number `seq`.
    pub fn answer(&mut self, slot: Slot, seq: u32, result: i32) {
        self.decide(slot, seq, result);
        self.raise(slot);
    }
    /// Answers a command that changes nothing. It raises no event, because an epoll instance would see an edge.
    pub fn answer_asker(&mut self, slot: Slot, seq: u32, result: i32) {
        self.decide(slot, seq, result);
        self.out.wake(&self.shared, slot);
    }
    fn decide(&self, slot: Slot, seq: u32, result: i32) {
        let line = self.line(slot);
        line.command_result.store(result, Ordering::Relaxed);
        line.command_done.store(seq, Ordering::Release);
    }
    /// Takes a free slot into use under a new generation, which is not shown to the application yet.
    pub fn take(&mut self, slot: Slot, phase: Phase) {
        let words = self.shared.words(slot);
        words.generation.store(words.generation.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        self.claim(slot, phase);
    }
    /// Takes a slot of the stack's own range, the one freed last.
    pub fn take_child(&mut self) -> Option<Slot> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => self.shared.region.slot(self.fresh.next()?)?,
        };
        self.take(slot, Phase::Child);
        Some(slot)
    }
    /// How many slots of the stack's own range are free.
    pub fn children_left(&self) -> usize {
        self.free.len() + self.fresh.len()
    }
    /// Undoes `take` for an application's slot whose command was refused, and frees the reserved port.
    pub fn refuse(&mut self, slot: Slot) {
        let entry = self.slot(slot);
        entry.phase = Phase::Free;
        entry.reservation = None;
        entry.listener = None;
        let counted = std::mem::take(&mut entry.counted);
        self.discount(counted);
    }
    /// One slot less is in use; it `counted` as a connection.
    fn discount(&mut self, counted: bool) {
        if counted {
            self.connections -= 1;
            self.under.iter().for_each(|under| _ = under.fetch_sub(1, Ordering::Relaxed));
        }
        self.in_use -= 1;
    }
    /// Frees a slot for its allocator.
    pub fn free(&mut self, slot: Slot) {
        let entry = self.slots.entry(slot.index());
        if entry.phase == Phase::Free {
            return;
        }
        let (command_seq, counted) = (entry.command_seq, entry.counted);
        // The stack's own socket at the port is closed before the reservation. Without the reservation the application
        // takes the port for free.
        entry.own = S::default();
        *entry = SlotState { command_seq, ..SlotState::default() };
        self.discount(counted);
        self.line(slot).state.store(state::FREE, Ordering::Release);
        if !self.shared.region.layout().is_app_slot(slot) {
            self.free.push(slot);
        }
    }
    /// Shows a new use of a slot to the application. Flow group `queue` takes its data queue. The generation is stored first, so that
    /// whoever has seen a word of this use does not take it for the last one's. The state is stored last.
    pub fn show(&self, slot: Slot, new_state: u32, queue: usize) {
        self.show_paired(slot, new_state, queue, (0, 0));
    }
    /// The same of a connection that a pair region carries: `StackLine::pair` and `StackLine::pair_slot`.
    pub fn show_paired(&self, slot: Slot, new_state: u32, queue: usize, pair: (u32, u32)) {
        let line = self.line(slot);
        line.generation.store(self.shared.generation(slot), Ordering::Relaxed);
        line.tx_head.store(0, Ordering::Release);
        line.rx_tail.store(0, Ordering::Release);
        line.status.store(0, Ordering::Release);
        line.error.store(0, Ordering::Release);
        // The count goes on. Else the next error could look like one that was reported for an earlier connection.
        let soft_errors = line.soft_error.load(Ordering::Relaxed) & !0xffff;
        line.soft_error.store(soft_errors, Ordering::Relaxed);
        let (send, receive) = self.shared.region.geometry().first_halvings();
        let sizes = RECEIVE.word(receive) | RECEIVE_WANTED.word(receive) | SEND_WANTED.word(send);
        line.flow_group.store(queue as u32 | sizes, Ordering::Relaxed);
        line.pair.store(pair.0, Ordering::Release);
        line.pair_slot.store(pair.1, Ordering::Release);
        line.state.store(new_state, Ordering::Release);
    }
    /// The stack is done with a slot. If the application is, too, this frees it; else it shows the end, with an error
    /// if there is one.
    pub fn over(&mut self, slot: Slot, errno: i32) {
        let closed = self.shared.app_words(slot).is_some_and(|w| w.flags & app_flags::CLOSED != 0);
        let entry = self.slot(slot);
        entry.own = S::default();
        entry.phase = Phase::Over;
        if entry.app_closed || closed {
            return self.free(slot);
        }
        show_over(&self.shared.region, slot, errno);
        self.raise(slot);
    }
    /// Shows an error that does not end the connection.
    pub fn soft_error(&mut self, slot: Slot, errno: i32) {
        let word = &self.line(slot).soft_error;
        let count = (word.load(Ordering::Relaxed) >> 16).wrapping_add(1);
        word.store(count << 16 | (errno as u32 & 0xffff), Ordering::Release);
        self.raise(slot);
    }
    /// Raises an event.
    pub fn raise(&mut self, slot: Slot) {
        self.out.raise(&self.shared, slot);
    }
    /// Tells everybody of the connections that wait in a listener's queue. A thread that was told before may have
    /// exited without taking them.
    pub fn offer_again(&mut self, slot: Slot) {
        if self.sync_listener(slot) && self.slot(slot).listener.as_ref().is_some_and(|l| l.waiting() > 0) {
            self.raise(slot);
        }
    }
    /// A process of the client has exited. Returns the slots that nobody else knows, with their generations.
    pub fn process_exited(&mut self, process: u32) -> Vec<(Slot, u32)> {
        self.gone.truncate(MOST_GONE - 1);
        self.gone.push_front(process);
        let mut slots: Vec<Slot> = self.used().into_iter().map(|(slot, _)| slot).collect();
        slots.retain(|slot| self.holder(*slot) == process);
        slots.into_iter().map(|slot| (slot, self.shared.generation(slot))).collect()
    }
    /// Has the process exited that gave the slot's command?
    pub fn holder_exited(&self, slot: Slot) -> bool {
        !self.gone.is_empty() && self.gone.contains(&self.holder(slot))
    }
    fn holder(&self, slot: Slot) -> u32 {
        self.shared.region.command(slot).holder.load(Ordering::Relaxed)
    }
    /// Forgets the connections that a listener's application has accepted. False = its position is impossible.
    pub fn sync_listener(&mut self, slot: Slot) -> bool {
        let Some(words) = self.shared.app_words(slot) else { return true };
        let Some(listener) = self.slot(slot).listener.as_mut() else { return true };
        listener.advance(words.rx_head)
    }
    /// Up to where a listener's application has accepted (bytes), if connections wait and other programs may have the
    /// listener's descriptor.
    pub fn accepted_to(&mut self, slot: Slot) -> Option<u32> {
        self.shared.app_words(slot).filter(|words| words.flags & app_flags::PASSED != 0)?;
        self.sync_listener(slot);
        self.slot(slot).listener.as_ref().filter(|listener| listener.waiting() > 0).map(|listener| listener.head)
    }
    /// Appends a connection to a listener's accept queue.
    pub fn queue(&mut self, listener_slot: Slot, child: Slot, remote_addr: Ipv6Addr, remote_port: u16) -> Queued {
        let generation = self.shared.generation(child);
        if !self.sync_listener(listener_slot) {
            return Queued::ContractViolation;
        }
        let ring = self.shared.region.rx(listener_slot);
        let Some(listener) = self.slots.entry(listener_slot.index()).listener.as_mut() else { return Queued::Full };
        if listener.full(ring.capacity() as usize) {
            return Queued::Full;
        }
        let record = Accepted { slot: child.raw(), generation, remote_addr, remote_port };
        ring.write(listener.tail, &record.to_bytes());
        listener.tail = listener.tail.wrapping_add(Accepted::BYTES as u32);
        listener.queue.push_back((child, generation));
        let tail = listener.tail;
        self.line(listener_slot).rx_tail.store(tail, Ordering::Release);
        self.out.offer(&self.shared, listener_slot);
        Queued::Yes
    }
    /// Would `queue` take one more?
    pub fn has_room(&mut self, listener_slot: Slot) -> bool {
        let capacity = self.shared.region.rx(listener_slot).capacity() as usize;
        self.sync_listener(listener_slot)
            && self.slot(listener_slot).listener.as_ref().is_some_and(|listener| !listener.full(capacity))
    }
    /// Takes the queue of a listener that is closed: connections that nobody will accept, with their generations.
    pub fn take_queue(&mut self, slot: Slot) -> Vec<(Slot, u32)> {
        let _ = self.sync_listener(slot);
        self.slot(slot).listener.take().map(|l| l.queue.into()).unwrap_or_default()
    }
    /// Keeps the reservation of the port of the command with number `seq`. It may come before its command. If the use
    /// of the slot is over already, the reservation is dropped, so that the port does not stay taken.
    pub fn reserve(&mut self, slot: Slot, seq: u32, reservation: Reservation, now_us: u64) {
        let entry = self.slots.entry(slot.index());
        let ahead = seq.wrapping_sub(entry.command_seq) as i32;
        match entry.phase {
            Phase::Free if ahead > 0 => {
                entry.reservation = Some((reservation, now_us));
                self.loose_reservations.insert(slot);
            }
            Phase::Free => {}
            // Another one for the same use is dropped: the port of the first must stay taken.
            _ if ahead == 0 && entry.reservation.is_none() => entry.reservation = Some((reservation, now_us)),
            _ => {}
        }
    }
    /// Drops reservations that have been here for `limit_us` without a command for their slots.
    pub fn expire_reservations(&mut self, now_us: u64, limit_us: u64) {
        let slots = &mut self.slots;
        self.loose_reservations.retain(|slot| {
            let entry = slots.entry(slot.index());
            let loose = entry.phase == Phase::Free && entry.reservation.is_some();
            let old = entry.reservation.as_ref().is_some_and(|(_, since)| now_us.saturating_sub(*since) >= limit_us);
            if loose && old {
                entry.reservation = None;
            }
            loose && !old
        });
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::client_setup::{ClientId, ClientSetup};
    use towpath_ring::{Geometry, Region};

    #[test]
    fn a_port_that_is_reserved_again_and_again_is_kept_once() {
        let geometry = Geometry { slots: 16, app_slots: 8, tx_bytes: 4096, rx_bytes: 4096, ..Geometry::DEFAULT };
        let (region, memfd) = Region::create(geometry).unwrap();
        let setup = ClientSetup::of_nobody(region, Vec::new());
        let mut client: ServedClient<(), ()> =
            ServedClient::new(Arc::new(ClientShared::new(ClientId(1), 0, setup)), 0, ());
        let slot = client.shared.region.slot(3).unwrap();
        for seq in 1..1000 {
            client.reserve(slot, seq, memfd.try_clone().unwrap().into(), u64::from(seq));
            client.expire_reservations(u64::from(seq), 500);
        }
        assert_eq!(client.loose_reservations.len(), 1);
        client.expire_reservations(1499, 500);
        assert!(client.loose_reservations.is_empty() && client.slot(slot).reservation.is_none());
    }
}
