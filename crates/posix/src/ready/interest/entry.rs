//! One watched descriptor of a slot.

use super::{ET, ONESHOT, swap};
use crate::ready::readiness::{self, IN, RDNORM, WRITE};
use libc::{c_int, epoll_event};
use towpath_client::backend::StackBackend;
use towpath_client::carrier::{Carrier, IsStack};
use towpath_client::direct::Next;
use towpath_client::session::{Session, SlotWords};
use towpath_client::socket::Socket;
use towpath_ring::{AppLine, Slot};

/// The name by which a call of the program refers to an entry.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub enum EntryName {
    /// A descriptor of the watched socket.
    Descriptor(c_int),
    /// None: the library watches the socket for itself, and keeps it in use.
    Library,
    /// None: the descriptor has been closed, but copies of it are open.
    #[default]
    Closed,
}

/// A slot, and where its words are.
#[derive(Clone, Copy)]
pub struct Words(Slot, SlotWords<'static>);

impl Words {
    /// The application's line.
    #[inline(always)]
    pub fn app(&self) -> &'static AppLine {
        &self.1.0.app
    }
}

/// One watched descriptor of a slot.
#[derive(Clone, Copy, Default)]
pub struct Entry {
    pub data: u64,
    words: Option<Words>,
    /// The key of its slot, see [`Interest::key`](super::Interest).
    pub slot: u32,
    pub generation: u32,
    /// The events for which the fast path looks. 0: it leaves the entry to the general path.
    plain: u32,
    /// The entry is in `ready`.
    pub queued: bool,
    pub state: EntryState,
    pub events: u32,
    pub name: EntryName,
    /// The events of the last report by edge, and the socket's words at that time.
    pub reported: Option<(u32, [u32; 4])>,
}

/// The state of an entry.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub enum EntryState {
    /// The entry is not in use.
    #[default]
    Free,
    /// Events are reported.
    Watching,
    /// EPOLLONESHOT: an event has been reported, and no more are.
    Served,
}

impl Entry {
    /// A new one. `slot` is its socket's key.
    pub fn of(name: EntryName, socket: &Socket, slot: u32, event: &epoll_event) -> Self {
        let Socket { session, slot: own, generation } = *socket;
        let words = Words(own, (session.region.lines(own), session.private(own)));
        let mut entry = Self { words: Some(words), slot, generation, name, ..Self::default() };
        entry.modify(event);
        entry
    }

    /// EPOLL_CTL_MOD.
    pub fn modify(&mut self, &epoll_event { events, u64: data }: &epoll_event) {
        (self.data, self.events, self.reported) = (data, events, None);
        self.state = EntryState::Watching;
        self.plain = if events & (ET | ONESHOT | WRITE) == 0 { events & (IN | RDNORM) } else { 0 };
    }

    /// It is not in use any more.
    pub fn end(&mut self) {
        self.state = EntryState::Free;
        self.plain = 0;
    }

    #[inline(always)]
    pub fn is_used(&self) -> bool {
        self.state != EntryState::Free
    }

    /// Its socket. `session` is the list's own.
    #[inline]
    pub fn socket(&self, session: &'static Session) -> Option<Socket> {
        match session.region.slot(self.slot) {
            Some(slot) => Some(Socket { session, slot, generation: self.generation }),
            None => Socket::at(swap(self.slot, session.number), self.generation),
        }
    }

    /// Where its words are, if the fast path looks for its events.
    #[inline(always)]
    pub fn plain_words(&self) -> Option<Words> {
        self.words.filter(|_| self.plain != 0)
    }

    /// The events of a connection that the stack carries, by level, in its ordinary state. 0: there are none, or it is
    /// something else. The words are its own, and the session is that of its socket.
    #[inline(always)]
    pub fn plain_events(&self, Words(slot, words): Words, session: &'static Session) -> u32 {
        match Carrier::is_stack(session, slot, words, self.generation) {
            IsStack::Yes(lines) => {
                let interest = self.plain & (IN | RDNORM);
                let events =
                    readiness::events_by(&StackBackend::<'_, true>(&lines), session.region.rx_space(), interest);
                events.unwrap_or(0)
            }
            _ => 0,
        }
    }

    /// [`Entry::plain_events`] of a direct connection. `next`: an event that seems to be of it.
    #[inline(always)]
    pub fn plain_events_directly(
        &self,
        Words(slot, words): Words,
        session: &'static Session,
        next: Option<&Next>,
    ) -> Option<u32> {
        let lines = Carrier::is_direct(session, slot, words, self.generation)?;
        let direct = match next {
            Some(next) => next.direct(lines.place())?,
            None => lines.find_mapped()?,
        };
        let backend = lines.backend(&direct);
        let events = readiness::events_by(&backend, direct.ring_bytes(), self.plain & (IN | RDNORM));
        // Held bytes are due at some time, which the general path looks after.
        events.filter(|_| !backend.holds_back())
    }
}
