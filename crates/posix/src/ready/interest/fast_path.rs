//! The fast path of a wait: connections are ready, and nothing else needs a look.

use super::{ET, Entry, EntryState, Interest, ONESHOT};
use crate::ready::readiness;
use core::sync::atomic::Ordering;
use libc::epoll_event;
use towpath_client::backend::StackBackend;
use towpath_client::carrier::Carrier;
use towpath_client::context::Queued;
use towpath_client::direct::OnlyEvent;
use towpath_client::session::Session;
use towpath_ring::Slot;
use towpath_ring::lines::want;

/// What a glance at a list that is plain has found.
pub enum Glance {
    /// One event, which has been reported.
    One,
    /// Nothing has been reported. A longer look is needed.
    Unclear,
}

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
                readiness::events_by(&StackBackend::<'_, true>(&lines), session.region.rx_space(), self.events)
            }
            Carrier::Direct(_) => self.steady_events_directly(session, slot),
            Carrier::Neither => None,
        }
    }

    /// [`Entry::steady_events`] of a direct connection. Inlined, it would cost the stack's connections registers.
    #[inline(never)]
    fn steady_events_directly(&self, session: &'static Session, slot: Slot) -> Option<u32> {
        let Carrier::Direct(lines) = Carrier::of_usual(session, slot, self.generation) else { return None };
        let direct = lines.find_mapped()?;
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

    /// The shortest look, at one entry, and that of a connection which a stack carries. At most one event is queued.
    ///
    /// The list must be plain for this session, and the process must have no direct connections. As in [`Interest::drain`], an event
    /// that is taken out of the queue is entered in the list, where the longer look finds it. Nothing is called, so the caller
    /// saves no register. `put` gets the event; false = it could not be stored.
    #[inline(always)]
    pub fn glance(
        &mut self,
        session: &'static Session,
        native_is_due: impl FnOnce(u32, u64) -> bool,
        put: impl FnOnce(epoll_event) -> bool,
    ) -> Glance {
        let has_more = !self.ready.has_no_second() || !self.further.is_empty();
        if has_more || self.native > 0 && native_is_due(self.since_native.saturating_add(1), self.longest_unasked()) {
            return Glance::Unclear;
        }
        let Self { context: Some(context), entries, ready, activity, .. } = self else { return Glance::Unclear };
        let entry = match context.queued() {
            Queued::One(next) => {
                let at = next.slot();
                let Some(entry) = entries.get_mut(at as usize).filter(|entry| entry.slot == at) else {
                    return Glance::Unclear;
                };
                let Some(words) = entry.plain_words() else { return Glance::Unclear };
                // Otherwise the entry is not all that the event is for, as in `drain_own`. Nobody asks for room of a direct
                // connection in a process without any.
                if words.app().want.load(Ordering::Relaxed) & want::WRITABLE != 0 || !ready.make_first(at, entry) {
                    return Glance::Unclear;
                }
                next.take();
                *activity = activity.wrapping_add(1);
                Some((&*entry, words))
            }
            Queued::Nothing => {
                let entry = ready.front().and_then(|first| entries.get(first as usize));
                entry.and_then(|entry| Some((entry, entry.plain_words()?)))
            }
            Queued::Several => None,
        };
        let Some((entry, words)) = entry else { return Glance::Unclear };
        let events = entry.plain_events(words, session);
        if events == 0 || !put(epoll_event { events, u64: entry.data }) {
            return Glance::Unclear;
        }
        if self.native > 0 {
            self.since_native = self.since_native.saturating_add(1);
        }
        Glance::One
    }

    /// [`Interest::glance`] of a process that has direct connections: at one of those.
    #[inline(always)]
    pub fn glance_directly(
        &mut self,
        session: &'static Session,
        native_is_due: impl FnOnce(u32, u64) -> bool,
        put: impl FnOnce(epoll_event) -> bool,
    ) -> Glance {
        let has_more = !self.ready.has_no_second() || !self.further.is_empty();
        if has_more || self.native > 0 && native_is_due(self.since_native.saturating_add(1), self.longest_unasked()) {
            return Glance::Unclear;
        }
        let Self { context: Some(context), entries, ready, activity, .. } = self else { return Glance::Unclear };
        if context.is_anything_queued() {
            return Glance::Unclear;
        }
        let (entry, events) = match context.only_direct() {
            OnlyEvent::One(next) => {
                let at = next.of();
                let Some(entry) = entries.get_mut(at as usize).filter(|entry| entry.slot == at) else {
                    return Glance::Unclear;
                };
                let Some(words) = entry.plain_words() else { return Glance::Unclear };
                next.fetch_ahead(words.app().rx_head.load(Ordering::Relaxed));
                if next.wants_room() || !ready.is_free_for(at) {
                    return Glance::Unclear;
                }
                if !context.take_direct(&next) {
                    self.drain_direct(session);
                    return Glance::Unclear;
                }
                ready.make_first(at, entry);
                *activity = activity.wrapping_add(1);
                (&*entry, entry.plain_events_directly(words, session, Some(&next)))
            }
            OnlyEvent::Nothing => {
                let first = ready.front().and_then(|first| entries.get(first as usize));
                let Some(entry) = first else { return Glance::Unclear };
                let Some(words) = entry.plain_words() else { return Glance::Unclear };
                (entry, entry.plain_events_directly(words, session, None))
            }
            OnlyEvent::Unclear => return Glance::Unclear,
        };
        let events = events.unwrap_or(0);
        if events == 0 || !put(epoll_event { events, u64: entry.data }) {
            return Glance::Unclear;
        }
        if self.native > 0 {
            self.since_native = self.since_native.saturating_add(1);
        }
        Glance::One
    }

    /// [`Interest::drain`] and [`Interest::collect`] in one, if nothing else has to be done. The list is plain for this session.
    /// `put` gets each event with its number; false = it could not be stored. `end` is told that the list is plain no longer.
    /// Returns the number of events, at least 1.
    /// `None`: nothing is ready, the general path is needed, or the kernel is due (`native_is_due`).
    #[inline(never)]
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
        self.report_several(session, put, room, end)
    }

    /// The rest of [`Interest::report_plain`].
    #[inline(always)]
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
            let Some(raw) = self.ready.front() else { break };
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
