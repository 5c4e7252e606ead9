//! Events: a stack tells an application that something has happened on a slot.

use crate::clients::ClientShared;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use towpath_ring::exclusive::notify_one;
use towpath_ring::lines::{state, status};
use towpath_ring::wake::must_wake;
use towpath_ring::{Region, Slot, StackLine};

/// Most contexts that a region has.
const CONTEXTS: usize = 64;

/// Does the connection go on? If it ends, every context is told, as on Linux.
fn is_open(stack: &StackLine) -> bool {
    let ended = status::RX_EOF | status::RESET | status::TX_CLOSED;
    stack.state.load(Ordering::Relaxed) == state::ESTABLISHED && stack.status.load(Ordering::Relaxed) & ended == 0
}

/// The events of one thread to one client. The positions in the event queues are private, because the client can
/// overwrite the shared ones.
pub struct EventOut {
    thread: usize,
    tails: [u32; CONTEXTS],
    wakes: [Option<Arc<OwnedFd>>; CONTEXTS],
    valid: u64,
    pending: u64,
    /// The context after the one that was last woken alone.
    turn: u32,
}

impl EventOut {
    /// For stack thread `thread` (the flow groups, then the slow thread).
    pub fn new(thread: usize) -> Self {
        Self { thread, tails: [0; CONTEXTS], wakes: [const { None }; CONTEXTS], valid: 0, pending: 0, turn: 0 }
    }
    /// Goes on with the queues of a region where another stack has stopped.
    pub fn resume(&mut self, region: &Region) {
        for context in 0..(region.geometry().contexts as usize).min(CONTEXTS) {
            self.tails[context] = region.events(context, self.thread).written();
        }
    }
    /// Opens (`Some`) or closes a context.
    pub fn set_context(&mut self, context: usize, wake: Option<Arc<OwnedFd>>) {
        let Some(place) = self.wakes.get_mut(context) else { return };
        let bit = 1u64 << context;
        self.valid = if wake.is_some() { self.valid | bit } else { self.valid & !bit };
        self.pending &= self.valid;
        *place = wake;
    }
    /// The open contexts, by bit.
    pub fn open(&self) -> u64 {
        self.valid
    }
    /// Raises an event. The slot's words must be stored before. True if [`EventOut::notify`] must follow.
    #[inline]
    pub fn raise(&mut self, client: &ClientShared, slot: Slot) -> bool {
        self.count(client, slot);
        let app = client.region.app(slot);
        // `must_wake` fences. It pairs with the application, which announces itself as a sleeper or in `ctx_mask`, and
        // looks again then. So the application sees our words, or we see its announcement.
        if must_wake(&app.sleepers) {
            client.wake(slot, false);
        }
        let mut mask = self.watching(client, slot);
        let exclusive = app.exclusive.load(Ordering::Acquire) & mask;
        if exclusive != 0 && is_open(client.region.stack(slot)) {
            mask &= !exclusive;
            self.post_one(client, slot, exclusive);
        }
        self.post(client, slot, mask);
        self.pending != 0
    }
    /// Wakes the threads that sleep on a slot, for an answer that is not an event. No context is told of it.
    pub fn wake(&mut self, client: &ClientShared, slot: Slot) {
        self.count(client, slot);
        if must_wake(&client.region.app(slot).sleepers) {
            client.wake(slot, false);
        }
    }
    /// Raises the event of a new connection that waits in a listener's queue. As on Linux it wakes the first of the
    /// threads that sleep in `accept`. Of the contexts that share the listener (`EPOLLEXCLUSIVE`) it wakes one, in
    /// turn. It wakes all other contexts.
    pub fn offer(&mut self, client: &ClientShared, slot: Slot) {
        self.count(client, slot);
        let app = client.region.app(slot);
        if must_wake(&app.sleepers) {
            // A thread in `accept` counts itself among the sleepers first. So if the counts are equal, all sleepers are
            // in `accept`.
            let accepting = client.region.command(slot).accepting.load(Ordering::Acquire);
            client.wake(slot, accepting != 0 && accepting == app.sleepers.load(Ordering::Acquire));
        }
        let mask = self.watching(client, slot);
        let exclusive = app.exclusive.load(Ordering::Acquire) & mask;
        self.post(client, slot, mask & !exclusive);
        self.post_one(client, slot, exclusive);
    }
    /// Queues an event for those of these contexts that are awake, and for one that sleeps, in turn.
    #[cold]
    fn post_one(&mut self, client: &ClientShared, slot: Slot, exclusive: u64) {
        let next = notify_one(exclusive, self.turn, |context| {
            self.post(client, slot, 1 << context);
            client.region.events(context, self.thread).must_notify()
        });
        self.turn = next;
    }
    /// Raises an event whether the last one has been seen or not. The stack that raised the last one may have died
    /// meanwhile.
    pub fn raise_again(&mut self, client: &ClientShared, slot: Slot) {
        self.count(client, slot);
        client.wake(slot, false);
        let mut contexts = self.watching(client, slot);
        while contexts != 0 {
            let context = contexts.trailing_zeros() as usize;
            contexts &= contexts - 1;
            client.region.queue_event_again(context, self.thread, slot, &mut self.tails[context]);
            self.pending |= 1 << context;
        }
    }
    /// Counts an event.
    fn count(&self, client: &ClientShared, slot: Slot) {
        let words = client.words(slot);
        let seq = words.event_seq.load(Ordering::Relaxed).wrapping_add(1);
        words.event_seq.store(seq, Ordering::Relaxed);
        client.region.stack(slot).event_seq.store(seq, Ordering::Release);
    }
    /// The open contexts that are to be told of the slot's events. A line of another generation asks for nothing.
    fn watching(&self, client: &ClientShared, slot: Slot) -> u64 {
        let app = client.region.app(slot);
        if app.generation.load(Ordering::Acquire) != client.words(slot).generation.load(Ordering::Relaxed) {
            return 0;
        }
        app.ctx_mask.load(Ordering::Acquire) & self.valid
    }
    /// Queues an event for these contexts. The caller has fenced since the slot's words were stored.
    fn post(&mut self, client: &ClientShared, slot: Slot, mut contexts: u64) {
        while contexts != 0 {
            let context = contexts.trailing_zeros() as usize;
            contexts &= contexts - 1;
            let (seq, ack) = client.region.event_words(context, self.thread, slot);
            client.region.events(context, self.thread).push_fenced(&mut self.tails[context], slot, seq, ack);
            self.pending |= 1 << context;
        }
    }
    /// Announces an urgent byte through the doorbell that the application has named for that, whether it sleeps or not.
    pub fn announce(&self, client: &ClientShared, slot: Slot) {
        let app = client.region.app(slot);
        if app.generation.load(Ordering::Acquire) != client.generation(slot) {
            return;
        }
        let context = app.urgent_doorbell.load(Ordering::Relaxed).wrapping_sub(1) as usize;
        if let Some(Some(wake)) = self.wakes.get(context) {
            client.notify(context, wake);
        }
    }
    /// Wakes the contexts that sleep and have got an event since the last call.
    #[inline]
    pub fn notify(&mut self, client: &ClientShared) {
        while self.pending != 0 {
            let context = self.pending.trailing_zeros() as usize;
            self.pending &= self.pending - 1;
            if !client.region.events(context, self.thread).must_notify() {
                continue;
            }
            if let Some(wake) = &self.wakes[context] {
                client.notify(context, wake);
            }
        }
    }
}
