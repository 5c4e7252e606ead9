//! The process has joined another service: its new session takes the first entries of every interest list.

use super::{Entry, Interest, swap};
use towpath_client::context::Context;
use towpath_client::session::Session;

impl Interest {
    /// From now on the first entries are for the slots of `own`. Entries of the session before it, which has ended, go
    /// behind them. Returns that session's context.
    #[cold]
    pub fn settle(&mut self, own: &Session) -> Option<Context> {
        let former = core::mem::replace(&mut self.own, own.number);
        if !self.entries.is_empty() {
            self.move_entries(former, own.geometry.slots as usize);
        }
        self.ended &= !(1 << own.number);
        let ended = self.context.take();
        self.context = self
            .others
            .iter()
            .position(|context| context.session.number == own.number)
            .map(|at| self.others.swap_remove(at));
        self.count_unsubscribed();
        ended
    }

    fn move_entries(&mut self, former: u32, slots: usize) {
        let before = core::mem::replace(&mut self.entries, vec![Entry::default(); slots]);
        self.slots = slots;
        self.further.clear();
        self.free.clear();
        let mut places = vec![None; before.len()];
        for (place, entry) in places.iter_mut().zip(&before).filter(|(_, entry)| entry.is_used()) {
            let slot = swap(swap(entry.slot, former), self.own);
            let at = match self.entries.get(slot as usize) {
                Some(own) if (slot as usize) < slots && !own.is_used() => slot as usize,
                _ => {
                    self.entries.push(Entry::default());
                    self.entries.len() - 1
                }
            };
            if at >= slots {
                self.further.insert((slot, at as u32));
            }
            self.entries[at] = *entry;
            self.entries[at].slot = slot;
            *place = Some(at as u32);
        }
        let moved = |at: u32| places.get(at as usize).copied().flatten();
        self.ready = self.ready.iter().filter_map(moved).collect();
        self.held = self.held.iter().filter_map(|at| moved(*at)).collect();
        self.halves.moved_entries(moved);
    }
}
