//! Telling an application that something has happened on a slot.

use crate::clients::ClientShared;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use towpath_ring::Slot;
use towpath_ring::wake::{futex_wake, must_wake, ring};

/// Most contexts that a region has.
const CONTEXTS: usize = 64;

/// One thread's way to tell one client. The positions in the event queues are private, because the client can write over
/// the shared ones.
pub struct EventOut {
    thread: usize,
    tails: [u32; CONTEXTS],
    wakes: [Option<Arc<OwnedFd>>; CONTEXTS],
    valid: u64,
    pending: u64,
}

impl EventOut {
    /// For stack thread `thread` (the cores, then the slow thread).
    pub fn new(thread: usize) -> Self {
        Self { thread, tails: [0; CONTEXTS], wakes: [const { None }; CONTEXTS], valid: 0, pending: 0 }
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
    /// Raises an event: the slot's words must be stored before. True if [`EventOut::ring`] must follow.
    pub fn raise(&mut self, client: &ClientShared, slot: Slot) -> bool {
        let words = client.words(slot);
        let (app, stack) = (client.region.app(slot), client.region.stack(slot));
        let seq = words.event_seq.load(Ordering::Relaxed).wrapping_add(1);
        words.event_seq.store(seq, Ordering::Relaxed);
        stack.event_seq.store(seq, Ordering::Release);
        // `must_wake` fences, against the application's "announce, then look again": either it sees our words or we see its
        // announcement, as a sleeper or in `ctx_mask`.
        if must_wake(&app.sleepers) {
            futex_wake(&stack.event_seq);
        }
        // A line that is meant for another generation asks for nothing.
        if app.generation.load(Ordering::Acquire) != words.generation.load(Ordering::Relaxed) {
            return self.pending != 0;
        }
        let mut mask = app.ctx_mask.load(Ordering::Acquire) & self.valid;
        while mask != 0 {
            let context = mask.trailing_zeros() as usize;
            mask &= mask - 1;
            let (seq, ack) = client.region.event_words(context, self.thread, slot);
            client.region.events(context, self.thread).push(&mut self.tails[context], slot, seq, ack);
            self.pending |= 1 << context;
        }
        self.pending != 0
    }
    /// An urgent byte is announced: rings the bell that the application has named for that, whether it sleeps or not.
    pub fn announce(&self, client: &ClientShared, slot: Slot) {
        let app = client.region.app(slot);
        if app.generation.load(Ordering::Acquire) != client.generation(slot) {
            return;
        }
        let context = app.urgent_bell.load(Ordering::Relaxed).wrapping_sub(1) as usize;
        if let Some(Some(wake)) = self.wakes.get(context) {
            ring(wake.as_fd());
        }
    }
    /// Wakes the contexts that have got something since the last call and sleep.
    pub fn ring(&mut self, client: &ClientShared) {
        while self.pending != 0 {
            let context = self.pending.trailing_zeros() as usize;
            self.pending &= self.pending - 1;
            if !client.region.events(context, self.thread).must_ring() {
                continue;
            }
            if let Some(wake) = &self.wakes[context] {
                ring(wake.as_fd());
            }
        }
    }
}
