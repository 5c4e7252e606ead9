//! Reporting: events are drained from the contexts, their slots looked at, and ready ones reported.

use super::entry::{Entry, EntryState};
use super::ready::Ready;
use super::{ET, Interest, ONESHOT, queue, swap};
use crate::io::hand_over;
use crate::ready::readiness;
use core::sync::atomic::Ordering;
use libc::epoll_event;
use std::collections::BTreeSet;
use towpath_client::private::flag;
use towpath_client::session::{self, Session};
use towpath_client::socket::{SLOT_BITS, Socket};
use towpath_client::{direct, held};
use towpath_ring::Slot;
use towpath_ring::lines::want;

impl Interest {
    /// Drains the events of all contexts into the list of entries to look at.
    #[inline(always)]
    pub fn drain(&mut self, session: &'static Session) {
        if !self.held.is_empty() {
            self.look_at_due(session);
        }
        if self.unsubscribed > 0 {
            self.look_at_unsubscribed();
        }
        if !self.others.is_empty() {
            self.drain_others();
        }
        self.drain_own(session);
    }

    /// [`Interest::drain`] for the process's own stack.
    #[inline(always)]
    pub(super) fn drain_own(&mut self, session: &'static Session) {
        let Self { context: Some(context), entries, ready, further, activity, .. } = self else {
            self.look_at_all();
            return;
        };
        context.drain_stack(session, |slot| {
            *activity = activity.wrapping_add(1);
            queue_slot(entries, ready, further, slot, |generation| {
                let lines = session.region.lines(slot);
                // Of a direct connection another word says whether room is asked for.
                if lines.stack.pair.load(Ordering::Relaxed) != 0
                    || lines.app.want.load(Ordering::Relaxed) & want::WRITABLE != 0
                {
                    event_seen(Socket { session, slot, generation });
                }
            });
        });
        if direct::is_used(session) {
            self.drain_direct(session);
        }
    }

    /// [`Interest::drain`] for the direct connections of the process's own session.
    #[inline(never)]
    pub(super) fn drain_direct(&mut self, session: &'static Session) {
        let Self { context: Some(context), entries, ready, further, activity, .. } = self else { return };
        let mut next = context.first_direct();
        while let Some(event) = next {
            next = context.next_direct();
            let Some(slot) = session.region.slot(event.slot()) else { continue };
            *activity = activity.wrapping_add(1);
            queue_slot(entries, ready, further, slot, |generation| {
                if event.wants_room() {
                    event_seen(Socket { session, slot, generation });
                }
            });
        }
    }

    /// [`Interest::drain`] for other stacks.
    #[cold]
    fn drain_others(&mut self) {
        let Self { others, entries, ready, further, activity, own, .. } = self;
        for context in others {
            let session = context.session;
            let first = swap(session.number << SLOT_BITS, *own);
            context.drain(|slot| {
                let number = first | slot.raw();
                let known = further.range((number, 0)..=(number, u32::MAX)).next();
                let entry = known.and_then(|(_, at)| entries.get(*at as usize));
                let socket = Socket { session, slot, generation: entry.map_or(0, |entry| entry.generation) };
                event_seen(socket);
                *activity = activity.wrapping_add(1);
                look_at(entries, ready, further, number);
            });
        }
    }

    /// Reports ready entries to `put`, at most `room`. Returns how many.
    #[inline(always)]
    pub fn collect(&mut self, session: &'static Session, put: &mut impl FnMut(epoll_event), room: usize) -> usize {
        let mut found = 0;
        // Each entry is looked at once: level-triggered ones go to the back of the queue.
        for _ in 0..self.ready.len() {
            if found == room {
                break;
            }
            let Some(raw) = self.ready.front() else { break };
            let (reported, stays) = self.report(session, raw, put);
            found += usize::from(reported);
            if !stays || self.ready.len() != 1 {
                self.ready.pop_front();
                if stays {
                    self.ready.push_back(raw);
                }
            }
        }
        found
    }

    /// Looks at an entry of `ready`. Returns whether it was reported, and whether it stays in `ready`.
    #[inline(always)]
    pub(super) fn report(
        &mut self,
        session: &'static Session,
        raw: u32,
        put: &mut impl FnMut(epoll_event),
    ) -> (bool, bool) {
        let Some(entry) = self.entries.get_mut(raw as usize) else { return (false, false) };
        entry.queued = false;
        if entry.state != EntryState::Watching {
            return (false, false);
        }
        let Some(socket) = entry.socket(session) else { return (false, false) };
        // The words are loaded before the events, so that a change in between counts as the next edge.
        let words = if entry.events & ET == 0 { None } else { Some(socket.words()) };
        let events = readiness::events_for(&socket, entry.events);
        if is_waited_for(&socket) && !self.held.contains(&raw) {
            self.held.push(raw);
        }
        // The stack notifies a moment after a change becomes visible, and once for several changes. Neither is another
        // edge.
        let reported = words.map(|words| (events, words));
        let is_owed = socket.has(flag::SPLICES)
            && events & (readiness::IN | readiness::RDNORM) != 0
            && hand_over::is_readable(&socket);
        let is_edge = events & readiness::ERR != 0 || is_owed;
        if events == 0 || (reported.is_some() && reported == entry.reported && !is_edge) {
            return (false, false);
        }
        if reported.is_some() {
            entry.reported = reported;
        }
        put(epoll_event { events, u64: entry.data });
        if socket.has(flag::SPLICES) {
            hand_over::shown(&socket, events);
        }
        let is_oneshot = entry.events & ONESHOT != 0;
        if is_oneshot {
            entry.state = EntryState::Served;
        }
        entry.queued = entry.events & (ET | ONESHOT) == 0;
        let stays = entry.queued;
        if is_oneshot && self.halves.count() > 0 {
            self.disarm_half(raw as usize);
        }
        (true, stays)
    }

    /// Would `collect` find an entry?
    pub fn any_ready(&mut self) -> bool {
        let Some(session) = session::numbered(self.own) else { return false };
        if !self.held.is_empty() {
            self.look_at_due(session);
        }
        self.ready.iter().any(|at| {
            let Some(entry) = self.entries.get(at as usize).filter(|entry| entry.state == EntryState::Watching) else {
                return false;
            };
            entry.socket(session).is_some_and(|socket| readiness::events_for(&socket, entry.events) != 0)
        })
    }

    /// Looks at entries whose held bytes are due.
    #[cold]
    fn look_at_due(&mut self, session: &'static Session) {
        let Self { entries, ready, held, .. } = self;
        held.retain(|at| {
            let waits = entries.get(*at as usize).and_then(|entry| entry.socket(session)).is_some_and(|socket| {
                // Computes until when a wait may sleep.
                socket.readable();
                is_waited_for(&socket)
            });
            if !waits {
                queue(entries, ready, *at as usize);
            }
            waits
        });
    }

    #[cold]
    fn look_at_unsubscribed(&mut self) {
        for at in self.slots..self.entries.len() {
            if !self.is_subscribed(self.entries[at].slot) {
                self.queue(at);
            }
        }
    }
}

/// Will it have an event of which nobody tells?
#[inline]
fn is_waited_for(socket: &Socket) -> bool {
    held::is_waited_for(socket) || hand_over::is_waited_for(socket)
}

/// Asks the stack to notify about room again, after an event has used up the request.
#[cold]
#[inline(never)]
fn event_seen(socket: Socket) {
    if !socket.is_gone() && socket.wants_room() {
        socket.event_seen();
    }
}

/// Queues all entries of a slot of the process's own session. `seen` is told the generation of the first one.
#[inline(always)]
fn queue_slot(
    entries: &mut [Entry],
    ready: &mut Ready,
    further: &BTreeSet<(u32, u32)>,
    slot: Slot,
    seen: impl FnOnce(u32),
) {
    if let Some(entry) = entries.get_mut(slot.index()).filter(|entry| entry.slot == slot.raw()) {
        seen(entry.generation);
        if entry.is_used() && !entry.queued {
            entry.queued = true;
            ready.push_back(slot.raw());
        }
    }
    if !further.is_empty() {
        look_at(entries, ready, further, slot.raw());
    }
}

/// Queues the further entries of a slot.
fn look_at(entries: &mut [Entry], ready: &mut Ready, further: &BTreeSet<(u32, u32)>, slot: u32) {
    further.range((slot, 0)..=(slot, u32::MAX)).for_each(|(_, at)| queue(entries, ready, *at as usize));
}
