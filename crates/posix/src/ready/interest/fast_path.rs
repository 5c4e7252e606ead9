//! The fast path of a wait: connections are ready, and nothing else needs a look.

use super::{ET, Entry, EntryState, Interest, ONESHOT};
use crate::ready::readiness;
use libc::epoll_event;
use towpath_client::backend::{Carrier, StackBackend};
use towpath_client::session::Session;
use towpath_ring::Slot;

impl Entry {
    /// The events of a level-triggered connection in its ordinary state. `None`: the general path is needed.
    #[inline(always)]
    fn steady_events(&self, session: &'static Session) -> Option<u32> {
        if self.state != EntryState::Watching || self.events & (ET | ONESHOT) != 0 {
            return None;
        }
        let slot = session.region.slot(self.slot)?;
        match Carrier::of_usual(session, slot, self.generation) {
            Carrier::Stack(lines) => {
                readiness::events_by(&StackBackend(&lines), session.region.rx_space(), self.events)
            }
            Carrier::Direct(_) => self.steady_events_directly(session, slot),
            Carrier::Neither => None,
        }
    }

    /// [`Entry::steady_events`] of a direct connection. Inlined, it would cost the stack's connections registers.
    #[inline(never)]
    fn steady_events_directly(&self, session: &'static Session, slot: Slot) -> Option<u32> {
        let Carrier::Direct(lines) = Carrier::of_usual(session, slot, self.generation) else { return None };
        let direct = lines.find()?;
        let backend = lines.backend(&direct);
        let events = readiness::events_by(&backend, direct.ring_bytes(), self.events);
        // Held bytes are due at some time, which the general path looks after.
        events.filter(|_| !backend.holds_back())
    }
}

impl Interest {
    /// The process's own session, if its stack and the kernel's descriptors are the only sources of events. The fast path looks at
    /// nothing else.
    pub fn plain(&self) -> Option<&'static Session> {
        let session = self.context.as_ref()?.session;
        let is_plain = self.watched > 0
            && self.own == session.number
            && self.pid == towpath_client::process::pid()
            && self.unsubscribed == 0
            && self.held.is_empty()
            && self.others.is_empty()
            && self.pending.is_empty()
            && self.nested.is_empty();
        is_plain.then_some(session)
    }

    /// [`Interest::drain`] and [`Interest::collect`] in one, if nothing else has to be done. The list is plain for this session.
    /// `put` gets each event with its number; false = it could not be stored. `end` is told that the list is plain no longer.
    /// Returns the number of events, at least 1.
    /// `None`: nothing is ready, the general path is needed, or the kernel is due (`native_is_due`).
    #[inline(always)]
    pub fn report_plain(
        &mut self,
        session: &'static Session,
        native_is_due: impl FnOnce(u32, u64) -> bool,
        put: impl Fn(usize, epoll_event) -> bool,
        room: usize,
        end: impl Fn(),
    ) -> Option<usize> {
        self.drain_own(session);
        if self.native > 0 && native_is_due(self.since_native.saturating_add(1), self.longest_unasked()) {
            return None;
        }
        if self.ready.len() == 1
            && let Some(raw) = self.ready.front().copied()
            && let Some(entry) = self.entries.get(raw as usize)
            && let Some(events @ 1..) = entry.steady_events(session)
            && put(0, epoll_event { events, u64: entry.data })
        {
            if self.native > 0 {
                self.since_native = self.since_native.saturating_add(1);
            }
            return Some(1);
        }
        self.report_several(session, put, room, end)
    }

    /// The rest of [`Interest::report_plain`].
    #[inline(never)]
    fn report_several(
        &mut self,
        session: &'static Session,
        put: impl Fn(usize, epoll_event) -> bool,
        room: usize,
        end: impl Fn(),
    ) -> Option<usize> {
        let mut found = 0;
        for _ in 0..self.ready.len() {
            if found == room {
                break;
            }
            let Some(raw) = self.ready.front().copied() else { break };
            let steady =
                self.entries.get(raw as usize).and_then(|entry| Some((entry.steady_events(session)?, entry.data)));
            let (event, stays) = match steady {
                Some((events, data)) => ((events != 0).then_some(epoll_event { events, u64: data }), events != 0),
                None => {
                    let reported = self.report_one(session, raw);
                    if self.plain().is_none() {
                        end();
                    }
                    reported
                }
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
