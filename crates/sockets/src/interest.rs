//! The interest list of one epoll instance: which slots it watches, and which of them may be ready.

use crate::context::Context;
use crate::nested::Nested;
use crate::readiness;
use crate::session::{self, Session};
use crate::socket::Socket;
use crate::table;
use libc::{c_int, epoll_event};
use std::collections::{BTreeSet, VecDeque};
use towpath_ring::lines::state;

mod glance;
mod ready;
mod turn;

pub use turn::{forget, forget_undecided, take_slot, take_undecided, watch_promoted, watch_undecided};

const ET: u32 = libc::EPOLLET as u32;
const ONESHOT: u32 = libc::EPOLLONESHOT as u32;

/// The events that may be asked for together with EXCLUSIVE.
const WITH_EXCLUSIVE: u32 =
    (libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLERR | libc::EPOLLHUP | libc::EPOLLWAKEUP | libc::EPOLLET) as u32
        | EXCLUSIVE;
const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;

/// Stands for the descriptor where the library watches a socket for itself, which it holds as long as it does.
pub const UNNAMED: c_int = -2;

/// One descriptor of a watched slot. All zero = not watched.
#[derive(Clone, Copy, Default)]
struct Entry {
    data: u64,
    slot: u32,
    generation: u32,
    events: u32,
    /// -1: it has been closed, and copies of it have not.
    fd: i32,
    watched: bool,
    /// It stands in `ready`.
    queued: bool,
    /// ONESHOT has been served.
    disabled: bool,
    /// The events last told by edge, and what the socket's words said then.
    told: Option<(u32, [u32; 4])>,
}

impl Entry {
    #[inline]
    fn socket(&self, session: &'static Session) -> Option<Socket> {
        match session.region.slot(self.slot) {
            Some(slot) => Some(Socket { session, slot, generation: self.generation }),
            None => Socket::at(self.slot, self.generation),
        }
    }
}

/// The list, and what belongs to it. Under its epoll instance's lock.
pub struct Interest {
    /// By slot; as long as the slot table once anything is watched. After it those of further descriptors of the same slots, and
    /// those of other families' sockets.
    entries: Vec<Entry>,
    /// Slots in the table, 0 as long as nothing is watched.
    slots: usize,
    /// Entries to look at. Level-triggered ones stay as long as they are ready.
    ready: VecDeque<u32>,
    /// Entries whose other side holds bytes back that will be there in time.
    held: Vec<u32>,
    /// How many are watched.
    pub watched: usize,
    /// Where each entry behind the table is, by slot.
    further: BTreeSet<(u32, u32)>,
    /// Those of them that are not watched any more.
    free: Vec<u32>,
    /// Entries of which no context tells: of other families' sockets, or for want of one.
    untold: usize,
    /// Where the stack tells of events.
    pub context: Option<Context>,
    /// The same of other stacks.
    others: Vec<Context>,
    /// The process that `context` belongs to.
    pub pid: i32,
    /// Descriptors in the native set, about.
    pub native: usize,
    /// Other instances in the native set.
    pub nested: Vec<Nested>,
    /// Counts what has been raised, for instances that watch this one by edges.
    pub activity: u32,
    /// Undecided sockets in the native set, to be taken over when they are promoted.
    pub undecided: Vec<(c_int, epoll_event)>,
    /// Waits that found something without looking at the native set.
    pub since_native: u32,
    /// All have been looked at since the stacks of these sessions have gone, by bit.
    ended: u32,
}

impl Interest {
    /// An empty one.
    pub const fn new() -> Self {
        Self {
            entries: Vec::new(),
            slots: 0,
            ready: VecDeque::new(),
            held: Vec::new(),
            watched: 0,
            further: BTreeSet::new(),
            free: Vec::new(),
            untold: 0,
            context: None,
            others: Vec::new(),
            pid: 0,
            native: 0,
            nested: Vec::new(),
            activity: 0,
            undecided: Vec::new(),
            since_native: 0,
            ended: 0,
        }
    }

    /// Where the descriptor's entry is. Those of an earlier user of the slot do not count.
    fn find(&self, fd: c_int, socket: &Socket) -> Option<usize> {
        self.of_slot(socket.number()).find(|at| self.entries[*at].fd == fd && self.is_current(*at, socket))
    }

    fn is_current(&self, at: usize, socket: &Socket) -> bool {
        let entry = &self.entries[at];
        entry.watched && entry.slot == socket.number() && entry.generation == socket.generation
    }

    /// All places in which entries of a slot may be.
    fn of_slot(&self, slot: u32) -> impl Iterator<Item = usize> {
        let further = self.further.range((slot, 0)..=(slot, u32::MAX)).map(|(_, at)| *at as usize);
        (slot as usize..self.slots.min(slot as usize + 1)).chain(further)
    }

    /// The context at the stack of the session of this number.
    pub fn context_at(&self, session: u32) -> Option<&Context> {
        match session {
            0 => self.context.as_ref(),
            _ => self.others.iter().find(|context| context.session == session),
        }
    }

    /// One more context.
    pub fn put_context(&mut self, context: Context) {
        if context.session == 0 {
            self.context = Some(context);
        } else {
            self.others.push(context);
            self.count_untold();
        }
    }

    /// All contexts; none are left.
    pub fn take_contexts(&mut self) -> impl Iterator<Item = Context> {
        let taken = self.context.take().into_iter().chain(core::mem::take(&mut self.others));
        self.count_untold();
        taken
    }

    /// The session of this number, from 1 on, has ended and another will have the number. Returns its context.
    pub fn forget_session(&mut self, session: u32) -> Option<Context> {
        self.ended &= !(1 << session);
        let at = self.others.iter().position(|context| context.session == session)?;
        let context = self.others.swap_remove(at);
        self.count_untold();
        Some(context)
    }

    /// Is a socket watched of the session of this number, from 1 on?
    pub fn watches_of(&self, session: u32) -> bool {
        let first = session << table::SLOT_BITS;
        let last = first | ((1 << table::SLOT_BITS) - 1);
        self.further.range((first, 0)..=(last, u32::MAX)).any(|(_, at)| self.entries[*at as usize].watched)
    }

    fn is_told(&self, slot: u32) -> bool {
        let session = slot >> table::SLOT_BITS;
        session == 0 || self.context_at(session).is_some()
    }

    fn count_untold(&mut self) {
        let untold = |entry: &&Entry| entry.watched && !self.is_told(entry.slot);
        self.untold = self.entries.get(self.slots..).unwrap_or_default().iter().filter(untold).count();
    }

    /// A place for one more entry: the slot's own, else one behind the table.
    fn place(&mut self, socket: &Socket) -> usize {
        if self.entries.is_empty() {
            // The same in all regions of a service.
            self.slots = session::get().unwrap_or(socket.session).geometry.slots as usize;
            self.entries = vec![Entry::default(); self.slots];
        }
        let own = socket.slot.index();
        if socket.session.number == 0 && !self.is_current(own, socket) {
            return own;
        }
        let at = match self.free.iter().rposition(|at| !self.entries[*at as usize].queued) {
            Some(free) => self.free.swap_remove(free),
            None => {
                self.entries.push(Entry::default());
                self.entries.len() as u32 - 1
            }
        };
        self.further.insert((socket.number(), at));
        at as usize
    }

    /// EPOLL_CTL_ADD.
    pub fn add(&mut self, fd: c_int, socket: &Socket, event: &epoll_event) -> Result<(), i32> {
        if event.events & EXCLUSIVE != 0 && event.events & !WITH_EXCLUSIVE != 0 {
            return Err(libc::EINVAL);
        }
        if self.find(fd, socket).is_some() {
            return Err(libc::EEXIST);
        }
        let at = self.place(socket);
        let entry = &mut self.entries[at];
        let (stale, queued) = (entry.watched, entry.queued);
        let (data, generation, events, slot) = (event.u64, socket.generation, event.events, socket.number());
        *entry = Entry { data, slot, generation, events, fd, watched: true, queued, disabled: false, told: None };
        self.watched += usize::from(!stale);
        match self.context_at(socket.session.number).map(Context::bit) {
            Some(bit) => self.watch(socket, bit),
            None => self.untold += usize::from(socket.session.number != 0),
        }
        self.look_if_ready(at, socket);
        Ok(())
    }

    /// Has the stack tell the context of the socket's events; in its turn with others, if all entries ask for that. A connection that is
    /// watched for room, too, is told of all: an event does not say which it is, and another may wait for the other.
    fn watch(&self, socket: &Socket, bit: u64) {
        let mut current = self.of_slot(socket.number()).filter(|at| self.is_current(*at, socket));
        let listening = socket.state() == state::LISTENING;
        let takes_turns = |events: u32| events & EXCLUSIVE != 0 && (listening || events & readiness::OUT == 0);
        socket.share(bit, current.all(|at| takes_turns(self.entries[at].events)));
        socket.watch(bit, true);
    }

    /// EPOLL_CTL_MOD.
    pub fn modify(&mut self, fd: c_int, socket: &Socket, event: &epoll_event) -> Result<(), i32> {
        let at = self.find(fd, socket).ok_or(libc::ENOENT)?;
        let entry = &mut self.entries[at];
        if (event.events | entry.events) & EXCLUSIVE != 0 {
            return Err(libc::EINVAL);
        }
        (entry.data, entry.events, entry.disabled, entry.told) = (event.u64, event.events, false, None);
        self.look_if_ready(at, socket);
        Ok(())
    }

    /// EPOLL_CTL_DEL.
    pub fn remove(&mut self, fd: c_int, socket: &Socket, ours: bool) -> Result<(), i32> {
        let at = self.find(fd, socket).ok_or(libc::ENOENT)?;
        self.end(at, socket, ours);
        Ok(())
    }

    fn end(&mut self, at: usize, socket: &Socket, ours: bool) {
        self.entries[at].watched = false;
        self.watched -= 1;
        let others = self.of_slot(socket.number()).any(|at| self.is_current(at, socket));
        if let (Some(context), true, false) = (self.context_at(socket.session.number), ours, others) {
            socket.watch(context.bit(), false);
        }
        if at >= self.slots {
            self.untold -= usize::from(!self.is_told(self.entries[at].slot));
            self.further.remove(&(self.entries[at].slot, at as u32));
            self.free.push(at as u32);
        }
    }

    /// The descriptor is closed. As long as copies of it are open it is still watched, though no call can name it.
    fn closed(&mut self, fd: c_int, socket: &Socket, copies: bool, ours: bool) {
        if self.watched == 0 {
            return;
        }
        for at in self.of_slot(socket.number()).collect::<Vec<_>>() {
            if !self.is_current(at, socket) {
                continue;
            }
            if !copies && self.entries[at].fd != UNNAMED {
                self.end(at, socket, ours);
            } else if self.entries[at].fd == fd {
                self.entries[at].fd = -1;
            }
        }
    }

    /// By which descriptors a socket is watched, and for what.
    fn watching(&self, socket: &Socket) -> Vec<(c_int, epoll_event)> {
        let current = self.of_slot(socket.number()).filter(|at| self.is_current(*at, socket));
        current
            .map(|at| {
                (self.entries[at].fd, epoll_event { events: self.entries[at].events, u64: self.entries[at].data })
            })
            .collect()
    }

    fn look_if_ready(&mut self, at: usize, socket: &Socket) {
        if readiness::events_for(socket, self.entries[at].events) != 0 {
            self.queue(at);
        }
    }

    fn queue(&mut self, at: usize) {
        queue(&mut self.entries, &mut self.ready, at);
    }

    /// Looks at everything that is watched: when there is no context to tell what has changed, or it is another one now.
    pub fn look_at_all(&mut self) {
        for at in 0..self.entries.len() {
            self.queue(at);
        }
    }

    /// Stacks have gone (those of these sessions, by bit), which ends every connection of theirs: looks at all, once. False if
    /// that has been done.
    pub fn look_at_the_end(&mut self, gone: u32) -> bool {
        if gone & !self.ended == 0 {
            return false;
        }
        self.ended |= gone;
        self.look_at_all();
        true
    }

    /// Sets the context's bit in every watched slot.
    pub fn subscribe_all(&mut self, session: &'static Session) {
        let Some(bit) = self.context_at(session.number).map(Context::bit) else { return };
        let theirs = |entry: &&Entry| entry.watched && entry.slot >> table::SLOT_BITS == session.number;
        for entry in self.entries.iter().filter(theirs) {
            if let Some(socket) = Socket::at(entry.slot, entry.generation)
                && !socket.is_gone()
            {
                self.watch(&socket, bit);
            }
        }
    }

    /// Is a socket watched of which no context tells?
    #[inline]
    pub fn has_foreign(&self) -> bool {
        self.untold > 0
    }

    /// Forgets everything; returns the contexts to be closed.
    pub fn clear(&mut self, ours: bool) -> Vec<Context> {
        let contexts: Vec<Context> = self.take_contexts().collect();
        for entry in self.entries.iter().filter(|entry| entry.watched && ours) {
            let context = contexts.iter().find(|context| context.session == entry.slot >> table::SLOT_BITS);
            if let (Some(context), Some(socket)) = (context, Socket::at(entry.slot, entry.generation)) {
                socket.watch(context.bit(), false);
            }
        }
        *self = Self::new();
        contexts
    }
}

#[inline]
fn queue(entries: &mut [Entry], ready: &mut VecDeque<u32>, at: usize) {
    let Some(entry) = entries.get_mut(at) else { return };
    if entry.watched && !entry.queued {
        entry.queued = true;
        ready.push_back(at as u32);
    }
}
