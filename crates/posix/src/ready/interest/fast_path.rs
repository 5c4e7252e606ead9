//! The fast path of a wait: connections are ready, and nothing else needs a look.

use super::{ET, Entry, EntryState, Interest, ONESHOT};
use crate::ready::readiness;
use libc::epoll_event;
use towpath_client::backend::{Carrier, StackBackend};
use towpath_client::session::Session;
use towpath_client::socket::Socket;
use towpath_ring::Slot;

impl Entry {
    /// The events of a level-triggered connection in its ordinary state. `None`: the general path is needed.
    #[inline(always)]
    fn steady_events(&self, session: &'static Session) -> Option<u32> {
        if self.state != EntryState::Watching || self.events & (ET | ONESHOT) != 0 {
            return None;
        }
        let slot = session.region.slot(self.slot)?;
        match Carrier::of(session, slot, self.generation) {
            Carrier::Stack(lines) => {
                readiness::events_by(&StackBackend(&lines), session.geometry.rx_space(), self.events)
            }
            Carrier::Direct => self.steady_events_directly(session, slot),
            Carrier::Neither => None,
        }
    }

    /// [`Entry::steady_events`] of a direct connection. Inlined, it would cost the stack's connections registers.
    #[inline(never)]
    fn steady_events_directly(&self, session: &'static Session, slot: Slot) -> Option<u32> {
        let view = Socket { session, slot, generation: self.generation }.view();
        let backend = view.direct_backend()?;
        let events = readiness::events_by(&backend, backend.direct.ring_bytes(), self.events);
        // Held bytes are due at some time, which the general path looks after.
        events.filter(|_| !backend.holds_back())
    }
}

impl Interest {
    /// Are the process's own stack and the kernel's descriptors the only sources of events?
    #[inline(always)]
    fn is_plain(&self, session: &Session) -> bool {
        self.watched > 0
            && self.own == session.number
            && self.context.is_some()
            && self.pid == towpath_client::process::pid()
            && self.unsubscribed == 0
            && self.held.is_empty()
            && self.others.is_empty()
            && self.pending.is_empty()
            && self.nested.is_empty()
    }

    /// [`Interest::drain`] and [`Interest::collect`] in one, if nothing else has to be done. `put` gets each event with
    /// its number; false = it could not be stored. Returns the number of events, at least 1.
    /// `None`: nothing is ready, the general path is needed, or the kernel is due (`native_is_due`).
    #[inline(always)]
    pub fn report_plain(
        &mut self,
        session: &'static Session,
        native_is_due: impl FnOnce(u32, u64) -> bool,
        mut put: impl FnMut(usize, epoll_event) -> bool,
        room: usize,
    ) -> Option<usize> {
        if !self.is_plain(session) {
            return None;
        }
        self.drain_own(session);
        if self.native > 0 && native_is_due(self.since_native.saturating_add(1), self.longest_unasked()) {
            return None;
        }
        let mut found = 0;
        for _ in 0..self.ready.len() {
            if found == room {
                break;
            }
            let raw = *self.ready.front()?;
            let steady =
                self.entries.get(raw as usize).and_then(|entry| Some((entry.steady_events(session)?, entry.data)));
            let (event, stays) = match steady {
                Some((events, data)) => ((events != 0).then_some(epoll_event { events, u64: data }), events != 0),
                None => self.report_one(session, raw),
            };
            if let Some(event) = event {
                if !put(found, event) {
                    self.put_back(raw);
                    break;
                }
                found += 1;
            }
            if stays && self.ready.len() == 1 {
                continue;
            }
            self.ready.pop_front();
            if stays {
                self.ready.push_back(raw);
            } else if steady.is_some()
                && let Some(entry) = self.entries.get_mut(raw as usize)
            {
                entry.queued = false;
            }
        }
        if self.native > 0 && found > 0 {
            self.since_native = self.since_native.saturating_add(1);
        }
        (found > 0).then_some(found)
    }

    /// Puts the entry back to the front: its event could not be stored.
    #[cold]
    fn put_back(&mut self, raw: u32) {
        if let Some(entry) = self.entries.get_mut(raw as usize) {
            (entry.queued, entry.reported) = (true, None);
        }
    }

    /// [`Interest::report`] of one entry: its event, and whether it stays in `ready`.
    #[inline(never)]
    fn report_one(&mut self, session: &'static Session, raw: u32) -> (Option<epoll_event>, bool) {
        let mut reported = None;
        let (_, stays) = self.report(session, raw, &mut |event| reported = Some(event));
        (reported, stays)
    }
}
