//! Takes over a client that another stack has served until now. Its region says how far that stack has come: positions,
//! generations, states. A client that writes wrong values there harms only itself.

use crate::slots::{Listener, Phase, ServedClient};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use towpath_ring::Slot;
use towpath_ring::command::Accepted;
use towpath_ring::dirty::DirtySet;
use towpath_ring::dirty::acknowledge;
use towpath_ring::lines::state;

/// Takes everything out of a queue and returns its reader's position. The caller must look at every slot then.
pub fn skip(queue: DirtySet<'_>, slots: u32) -> u32 {
    let mut head = queue.position();
    // The bound ends the loop even if the writer pushes meanwhile.
    for _ in 0..2 * slots {
        if queue.pop(&mut head).is_none() {
            break;
        }
    }
    head
}

impl<C, S: Default> ServedClient<C, S> {
    /// Goes on where another stack has stopped. Returns the slots in use, with their states. They are still free here;
    /// the caller claims each according to its state.
    pub fn resume(&mut self) -> Vec<(Slot, u32)> {
        let region = Arc::clone(&self.shared.region);
        let (slots, layout) = (region.geometry().slots, region.layout());
        self.out.resume(&region);
        self.command_head = skip(region.commands(), slots);
        let mut used = Vec::new();
        for slot in (0..slots).filter_map(|raw| region.slot(raw)) {
            let (app, line) = (region.app(slot), region.stack(slot));
            acknowledge(&app.data_seq, &line.data_ack);
            acknowledge(&app.ctl_seq, &line.ctl_ack);
            let (generation, done) =
                (line.generation.load(Ordering::Relaxed), line.command_done.load(Ordering::Relaxed));
            if done != 0 {
                self.slot(slot).command_seq = done;
            }
            if generation == 0 {
                continue;
            }
            let words = self.shared.words(slot);
            words.generation.store(generation, Ordering::Relaxed);
            words.events.resume(&line.event_seq);
            let state = line.state.load(Ordering::Relaxed);
            if !layout.is_app_slot(slot) {
                self.fresh.start = slot.raw() + 1;
            }
            match state {
                state::FREE if layout.is_app_slot(slot) => {}
                state::FREE => self.free.push(slot),
                _ => used.push((slot, state)),
            }
        }
        used
    }

    /// Takes a slot into use as it is, for the same use as by the previous stack.
    pub fn claim(&mut self, slot: Slot, phase: Phase) {
        let entry = self.slots.entry(slot.index());
        entry.phase = phase;
        entry.app_closed = false;
        entry.own = S::default();
        entry.counted = phase != Phase::Listening;
        if phase != Phase::Listening {
            self.connections += 1;
            self.under.iter().for_each(|under| _ = under.fetch_add(1, Ordering::Relaxed));
        }
        self.in_use += 1;
    }

    /// Takes over the accept queue of a listener as the previous stack has left it.
    pub fn resume_listener(&mut self, slot: Slot, backlog: u32) {
        let region = Arc::clone(&self.shared.region);
        let mut listener = Listener::new(backlog);
        let tail = region.stack(slot).rx_tail.load(Ordering::Relaxed);
        let head = self.shared.app_words(slot).map_or(0, |words| words.rx_head);
        let (waiting, ring) = (tail.wrapping_sub(head), region.rx(slot));
        (listener.head, listener.tail) = (tail, tail);
        if waiting <= ring.capacity() && (waiting as usize).is_multiple_of(Accepted::BYTES) {
            listener.head = head;
            for number in 0..waiting / Accepted::BYTES as u32 {
                let mut record = [0; Accepted::BYTES];
                ring.read(head.wrapping_add(number * Accepted::BYTES as u32), &mut record);
                let Accepted { slot: child, generation, .. } = Accepted::from_bytes(&record);
                // A record with an invalid slot number takes its place in the ring all the same.
                listener.queue.push_back((region.slot(child).unwrap_or(slot), generation));
            }
        }
        self.slot(slot).listener = Some(Box::new(listener));
    }

    /// Raises every event again, because the last events of the previous stack may have been lost with it.
    pub fn tell_again(&mut self) {
        for (slot, _) in self.used() {
            self.out.raise_again(&self.shared, slot);
        }
    }
}
