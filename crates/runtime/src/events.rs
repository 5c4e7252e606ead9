//! Events: a stack tells an application that something has happened on a slot.

use crate::clients::{ClientShared, SlotWords};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use towpath_ring::exclusive::notify_one;
use towpath_ring::lines::{state, status};
use towpath_ring::wake::{has_changed, must_wake, must_wake_fenced};
use towpath_ring::{AppLine, EventSet, Region, Slot, StackLine};

/// Most contexts that a region has.
const CONTEXTS: usize = 64;

/// Does the connection go on? If it ends, every context is told, as on Linux.
fn is_open(stack: &StackLine) -> bool {
    let ended = status::RX_EOF | status::RESET | status::TX_CLOSED;
    stack.state.load(Ordering::Relaxed) == state::ESTABLISHED && stack.status.load(Ordering::Relaxed) & ended == 0
}

/// Counts an event of a slot, on any thread.
fn count(client: &ClientShared, slot: Slot) {
    client.words(slot).events.add(&client.region.stack(slot).event_seq);
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
    /// Slots whose events are counted but not yet told of, each with the generation of its use.
    raised: Vec<(Slot, u32)>,
}

impl EventOut {
    /// For stack thread `thread` (the flow groups, then the slow thread).
    pub fn new(thread: usize) -> Self {
        Self {
            thread,
            tails: [0; CONTEXTS],
            wakes: [const { None }; CONTEXTS],
            valid: 0,
            pending: 0,
            turn: 0,
            raised: Vec::new(),
        }
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
    /// Raises an event, on any thread. The slot's words must be stored before. True if [`EventOut::notify`] must follow.
    #[inline]
    pub fn raise(&mut self, client: &ClientShared, slot: Slot) -> bool {
        count(client, slot);
        has_changed::<AtomicU32>();
        let contexts = self.tell(client, slot, client.generation(slot));
        self.post(client, slot, contexts);
        self.pending != 0
    }
    /// Raises an event of a slot's use of this generation, as part of a turn of the thread that serves it: [`EventOut::notify`]
    /// tells of all of them, after one fence. The slot's words must be stored before, in `line`; `words` are its private ones. True
    /// for the first of a turn.
    #[inline]
    pub fn raise_in_turn(&mut self, words: &SlotWords, slot: Slot, line: &StackLine, generation: u32) -> bool {
        words.events.serve(&line.event_seq);
        self.raised.push((slot, generation));
        self.raised.len() == 1
    }
    /// Tells the threads that sleep of a slot's event, and one of the contexts that share it. Returns the contexts that are to be
    /// told, too.
    ///
    /// The caller has fenced since it stored the slot's words ([`has_changed`]). That pairs with the application, which
    /// announces itself as a sleeper or in `ctx_mask`, and looks again then. So the application sees our words, or we see
    /// its announcement. It pairs with the acknowledgement of the slot's last event, too ([`towpath_ring::dirty`]).
    #[inline]
    fn tell(&mut self, client: &ClientShared, slot: Slot, generation: u32) -> u64 {
        let lines = client.region.lines(slot);
        let app = &lines.app;
        if must_wake_fenced(&app.sleepers) {
            client.wake(slot, false);
        }
        let mut mask = self.watching(app, generation);
        let exclusive = app.exclusive.load(Ordering::Acquire) & mask;
        if exclusive != 0 && is_open(&lines.stack) {
            mask &= !exclusive;
            self.post_one(client, slot, exclusive);
        }
        mask
    }
    /// Wakes the threads that sleep on a slot, for an answer that is not an event. No context is told of it.
    pub fn wake(&mut self, client: &ClientShared, slot: Slot) {
        count(client, slot);
        if must_wake(&client.region.app(slot).sleepers) {
            client.wake(slot, false);
        }
    }
    /// Raises the event of a new connection that waits in a listener's queue. As on Linux it wakes the first of the
    /// threads that sleep in `accept`. Of the contexts that share the listener (`EPOLLEXCLUSIVE`) it wakes one, in
    /// turn. It wakes all other contexts.
    pub fn offer(&mut self, client: &ClientShared, slot: Slot) {
        count(client, slot);
        let app = client.region.app(slot);
        if must_wake(&app.sleepers) {
            // A thread in `accept` counts itself among the sleepers first. So if the counts are equal, all sleepers are
            // in `accept`.
            let accepting = client.region.command(slot).accepting.load(Ordering::Acquire);
            client.wake(slot, accepting != 0 && accepting == app.sleepers.load(Ordering::Acquire));
        }
        let mask = self.watching(app, client.generation(slot));
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
        count(client, slot);
        client.wake(slot, false);
        let mut contexts = self.watching(client.region.app(slot), client.generation(slot));
        while contexts != 0 {
            let context = contexts.trailing_zeros() as usize;
            contexts &= contexts - 1;
            client.region.queue_event_again(context, self.thread, slot, &mut self.tails[context]);
            self.pending |= 1 << context;
        }
    }
    /// The open contexts that are to be told of events of a slot's use. A line of another generation asks for nothing.
    #[inline]
    fn watching(&self, app: &AppLine, generation: u32) -> u64 {
        if app.generation.load(Ordering::Acquire) != generation {
            return 0;
        }
        app.ctx_mask.load(Ordering::Acquire) & self.valid
    }
    /// Queues an event for these contexts. The caller has fenced since the slot's words were stored.
    #[inline]
    fn post(&mut self, client: &ClientShared, slot: Slot, mut contexts: u64) {
        while contexts != 0 {
            let context = contexts.trailing_zeros() as usize;
            contexts &= contexts - 1;
            let (seq, ack) = client.region.event_words(context, self.thread, slot);
            client.region.events(context, self.thread).push_fenced(&mut self.tails[context], slot, seq, ack);
            self.pending |= 1 << context;
        }
    }
    /// Queues the events of a turn. The caller has fenced since the slots' words were stored.
    #[inline]
    fn post_raised(&mut self, client: &ClientShared) {
        let mut raised = std::mem::take(&mut self.raised);
        // Most events go to the context of the one before. There is none of this number.
        let mut context = CONTEXTS;
        let mut set = EventSet::of(&client.region, 0, self.thread);
        for &(slot, generation) in &raised {
            let mut contexts = self.tell(client, slot, generation);
            while contexts != 0 {
                let next = contexts.trailing_zeros() as usize;
                contexts &= contexts - 1;
                if next != context {
                    (context, set) = (next, EventSet::of(&client.region, next, self.thread));
                    self.pending |= 1 << next;
                }
                set.push_fenced(&mut self.tails[next], slot);
            }
        }
        raised.clear();
        self.raised = raised;
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
    /// Tells of the events of a turn ([`EventOut::raise_in_turn`]). Wakes the contexts that sleep and have got an event since the
    /// last call.
    #[inline]
    pub fn notify(&mut self, client: &ClientShared) {
        if !self.raised.is_empty() {
            has_changed::<AtomicU32>();
            self.post_raised(client);
        }
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::client_setup::{ClientId, ClientSetup};
    use std::os::fd::AsFd;
    use towpath_ring::Geometry;
    use towpath_ring::wake::{doorbell, drain};

    #[test]
    fn events_of_a_turn_are_told_together_to_the_contexts_that_watch_this_use_of_their_slots() {
        let geometry = Geometry { slots: 16, app_slots: 8, tx_bytes: 4096, rx_bytes: 4096, ..Geometry::DEFAULT };
        let setup = ClientSetup::of_nobody(Region::create(geometry).unwrap().0, Vec::new());
        let client = ClientShared::new(ClientId(1), 0, setup);
        let wakes = [(); 3].map(|()| Arc::new(doorbell().unwrap()));
        let mut out = EventOut::new(1);
        for (context, wake) in wakes.iter().enumerate() {
            out.set_context(context, Some(Arc::clone(wake)));
        }
        client.region.events(1, 1).arm();
        let slots = [2, 5, 9, 11].map(|raw| client.region.slot(raw).unwrap());
        for (slot, contexts) in slots.into_iter().zip([0b010, 0b111, 0b101, 0b111]) {
            client.region.app(slot).generation.store(7, Ordering::Relaxed);
            client.region.app(slot).ctx_mask.store(contexts, Ordering::Relaxed);
        }
        let raise = |out: &mut EventOut, slot, generation| {
            out.raise_in_turn(client.words(slot), slot, client.region.stack(slot), generation)
        };
        // The last one is another use by now.
        let first: Vec<bool> =
            slots.into_iter().zip([7, 7, 7, 6]).map(|(slot, generation)| raise(&mut out, slot, generation)).collect();
        assert_eq!(first, [true, false, false, false]);
        let counted = slots.map(|slot| client.region.stack(slot).event_seq.load(Ordering::Relaxed));
        let mut heads = [0; 3];
        let mut queued = |context: usize| {
            let queue = client.region.events(context, 1);
            std::iter::from_fn(|| queue.pop(&mut heads[context])).collect::<Vec<u32>>()
        };
        assert_eq!((counted, queued(1)), ([1; 4], vec![]), "counted, and not told of");
        out.notify(&client);
        assert_eq!([0, 1, 2].map(&mut queued), [vec![5, 9], vec![2, 5], vec![5, 9]]);
        assert_eq!([0, 1, 2].map(|context: usize| drain(wakes[context].as_fd())), [false, true, false]);
        assert!(raise(&mut out, slots[0], 7), "the first of the next turn");
    }
}
