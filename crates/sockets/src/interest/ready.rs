//! What of the list is ready: taken from what the stack has raised, looked at, told.

use super::{ET, Entry, Interest, ONESHOT, queue};
use crate::cork;
use crate::readiness;
use crate::session::{self, Session};
use crate::socket::Socket;
use crate::table;
use core::sync::atomic::Ordering;
use libc::epoll_event;
use std::collections::{BTreeSet, VecDeque};
use towpath_ring::lines::want;

impl Interest {
    /// Takes what the stack has raised into the list of slots to look at.
    #[inline(always)]
    pub fn drain(&mut self, session: &'static Session) {
        if !self.held.is_empty() {
            self.look_at_due(session);
        }
        if self.untold > 0 {
            self.look_at_foreign();
        }
        if !self.others.is_empty() {
            self.drain_others();
        }
        self.drain_own(session);
    }

    /// The same of the own stack alone.
    #[inline(always)]
    pub(super) fn drain_own(&mut self, session: &'static Session) {
        let Self { context: Some(context), entries, ready, further, activity, .. } = self else {
            self.look_at_all();
            return;
        };
        context.drain(session, |slot| {
            *activity = activity.wrapping_add(1);
            if let Some(entry) = entries.get_mut(slot.index()).filter(|entry| entry.slot == slot.raw()) {
                let lines = session.region.lines(slot);
                let socket = Socket { session, slot, generation: entry.generation };
                let wants_room = match lines.stack.pair.load(Ordering::Relaxed) {
                    0 => lines.app.want.load(Ordering::Relaxed) & want::WRITABLE != 0,
                    _ => !socket.is_gone() && socket.wants_room(),
                };
                if wants_room {
                    event_seen(socket);
                }
                if entry.watched && !entry.queued {
                    entry.queued = true;
                    ready.push_back(slot.raw());
                }
            }
            if !further.is_empty() {
                look_at(entries, ready, further, slot.raw());
            }
        });
    }

    /// The same of other stacks.
    #[cold]
    fn drain_others(&mut self) {
        let Self { others, entries, ready, further, activity, .. } = self;
        for context in others {
            let Some(session) = session::numbered(context.session) else { continue };
            let first = context.session << table::SLOT_BITS;
            context.drain(session, |slot| {
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

    /// Hands what is ready to `put`.
    #[inline(always)]
    pub fn collect(&mut self, session: &'static Session, put: &mut impl FnMut(epoll_event), room: usize) -> usize {
        let mut found = 0;
        // Each slot once at most: the level-triggered ones go to the back.
        for _ in 0..self.ready.len() {
            if found == room {
                break;
            }
            let Some(raw) = self.ready.front().copied() else { break };
            let (told, stays) = self.tell(session, raw, put);
            found += usize::from(told);
            if !stays || self.ready.len() != 1 {
                self.ready.pop_front();
                if stays {
                    self.ready.push_back(raw);
                }
            }
        }
        found
    }

    /// Looks at an entry out of `ready`: was there something to tell, and does it stay there?
    #[inline(always)]
    pub(super) fn tell(
        &mut self,
        session: &'static Session,
        raw: u32,
        put: &mut impl FnMut(epoll_event),
    ) -> (bool, bool) {
        let Some(entry) = self.entries.get_mut(raw as usize) else { return (false, false) };
        entry.queued = false;
        if !entry.watched || entry.disabled {
            return (false, false);
        }
        let Some(socket) = entry.socket(session) else { return (false, false) };
        // Before the events: what comes in between is an edge of its own.
        let words = if entry.events & ET == 0 { None } else { Some(socket.words()) };
        let events = readiness::events_for(&socket, entry.events);
        if cork::is_waited_for(&socket) && !self.held.contains(&raw) {
            self.held.push(raw);
        }
        // The stack tells of a change a moment after it can be seen, and tells of several at once: none of that is one more edge.
        let told = words.map(|words| (events, words));
        if events == 0 || (told.is_some() && told == entry.told && events & readiness::ERR == 0) {
            return (false, false);
        }
        if told.is_some() {
            entry.told = told;
        }
        put(epoll_event { events, u64: entry.data });
        entry.disabled = entry.events & ONESHOT != 0;
        entry.queued = entry.events & (ET | ONESHOT) == 0;
        (true, entry.queued)
    }

    /// Would `collect` find something?
    pub fn any_ready(&mut self, session: &'static Session) -> bool {
        if !self.held.is_empty() {
            self.look_at_due(session);
        }
        self.ready.iter().any(|at| {
            let Some(entry) = self.entries.get(*at as usize).filter(|e| e.watched && !e.disabled) else {
                return false;
            };
            entry.socket(session).is_some_and(|socket| readiness::events_for(&socket, entry.events) != 0)
        })
    }

    /// Looks at those whose bytes are not held any more.
    #[cold]
    fn look_at_due(&mut self, session: &'static Session) {
        let Self { entries, ready, held, .. } = self;
        held.retain(|at| {
            let waits = entries.get(*at as usize).and_then(|entry| entry.socket(session)).is_some_and(|socket| {
                // Notes the time until when to sleep.
                socket.readable();
                cork::is_waited_for(&socket)
            });
            if !waits {
                queue(entries, ready, *at as usize);
            }
            waits
        });
    }

    #[cold]
    fn look_at_foreign(&mut self) {
        for at in self.slots..self.entries.len() {
            if !self.is_told(self.entries[at].slot) {
                self.queue(at);
            }
        }
    }
}

/// An event of the socket has come: what it was asked for is asked for anew.
#[cold]
#[inline(never)]
fn event_seen(socket: Socket) {
    if !socket.is_gone() && socket.wants_room() {
        socket.event_seen();
    }
}

/// Puts the entries of a slot that stand behind the table among those to look at.
fn look_at(entries: &mut [Entry], ready: &mut VecDeque<u32>, further: &BTreeSet<(u32, u32)>, slot: u32) {
    further.range((slot, 0)..=(slot, u32::MAX)).for_each(|(_, at)| queue(entries, ready, *at as usize));
}
