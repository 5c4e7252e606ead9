//! What most waits find: connections that are ready, and nothing else to look at.

use super::{ET, Entry, Interest, ONESHOT};
use crate::readiness;
use crate::session::Session;
use crate::usual::Way;
use libc::epoll_event;

impl Entry {
    /// The events of a connection that the stack carries, watched by level, in which nothing is out of the ordinary. `None`: all has to be looked
    /// at.
    #[inline(always)]
    fn steady_events(&self, session: &'static Session) -> Option<u32> {
        if !self.watched || self.disabled || self.events & (ET | ONESHOT) != 0 {
            return None;
        }
        match Way::of(session, session.region.slot(self.slot)?, self.generation) {
            Way::Stack(lines) => readiness::events_by_stack(session, &lines, self.events),
            Way::Direct | Way::Neither => None,
        }
    }
}

impl Interest {
    /// Is there nothing to look at but what the own stack tells, and the kernel's descriptors?
    #[inline(always)]
    fn is_plain(&self) -> bool {
        self.watched > 0
            && self.context.is_some()
            && self.pid == crate::fork::pid()
            && self.untold == 0
            && self.held.is_empty()
            && self.others.is_empty()
            && self.undecided.is_empty()
            && self.nested.is_empty()
    }

    /// [`Interest::drain`] and [`Interest::collect`] if that is all there is to do: `put` gets each event and its number; false = it found no
    /// place for it. How many there were, 1 at least. `None`: none, or all has to be looked at. `native_is_due`: so has the kernel.
    #[inline(always)]
    pub fn glance(
        &mut self,
        session: &'static Session,
        native_is_due: impl FnOnce(u32) -> bool,
        mut put: impl FnMut(usize, epoll_event) -> bool,
        room: usize,
    ) -> Option<usize> {
        if !self.is_plain() {
            return None;
        }
        self.drain_own(session);
        if self.native > 0 && native_is_due(self.since_native.saturating_add(1)) {
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
                None => self.tell_one(session, raw),
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

    /// An entry at the front could not be told of: it stays there as if nobody had tried.
    #[cold]
    fn put_back(&mut self, raw: u32) {
        if let Some(entry) = self.entries.get_mut(raw as usize) {
            (entry.queued, entry.told) = (true, None);
        }
    }

    /// [`Interest::tell`] of one entry: its event, and whether it stays.
    #[inline(never)]
    fn tell_one(&mut self, session: &'static Session, raw: u32) -> (Option<epoll_event>, bool) {
        let mut told = None;
        let (_, stays) = self.tell(session, raw, &mut |event| told = Some(event));
        (told, stays)
    }
}
