//! The interest list of one epoll instance: the slots that it watches, and which of them may be ready.

use crate::ready::readiness;
use entry::{Entry, EntryState};
use halves::Halves;
use libc::{c_int, epoll_event};
use notice::Notice;
use ready::Ready;
use std::collections::BTreeSet;
use towpath_client::context::Context;
use towpath_client::private::flag;
use towpath_client::session::{self, Session};
use towpath_client::socket::{SLOT_BITS, Socket};
use towpath_ring::lines::state;

mod entry;
mod fast_path;
mod halves;
mod missed;
pub mod notice;
mod ready;
mod report;
mod settle;

pub use entry::EntryName;
pub use fast_path::Glance;

const ET: u32 = libc::EPOLLET as u32;
const ONESHOT: u32 = libc::EPOLLONESHOT as u32;

/// The longest time for which ready slots keep the kernel from being asked, in ticks of the time stamp counter: 10 to
/// 50 µs.
const NATIVE_TICKS: u64 = 50_000;
/// The same if only kernel halves of listeners wait there: 0.1 to 0.5 ms. A program with no other kernel descriptors
/// makes no system call in its waits while it is busy, but for every sixteenth.
const HALVES_TICKS: u64 = 500_000;

/// The events that may be combined with EXCLUSIVE.
const WITH_EXCLUSIVE: u32 =
    (libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLERR | libc::EPOLLHUP | libc::EPOLLWAKEUP | libc::EPOLLET) as u32
        | EXCLUSIVE;
const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;

/// Swaps the numbers 0 and `own` of sessions in the number of a slot.
#[inline]
fn swap(slot: u32, own: u32) -> u32 {
    match slot >> SLOT_BITS {
        0 => slot | own << SLOT_BITS,
        session if session == own => slot & ((1 << SLOT_BITS) - 1),
        _ => slot,
    }
}

/// An inner instance: one that this instance watches.
#[derive(Clone, Copy)]
pub struct Nested {
    /// Its descriptor.
    pub fd: c_int,
    /// Its number.
    pub id: u32,
    /// The program's data.
    pub data: u64,
    /// The events that the program asks for.
    pub events: u32,
    /// The inner instance's `activity` at the last report.
    pub seen: u32,
    /// EPOLLONESHOT: it has been reported.
    pub disabled: bool,
}

/// An interest list. It is used only under its instance's lock.
pub struct Interest {
    /// The first `slots` entries are by slot. Behind them are entries of further descriptors of the same slots, and of
    /// other clients' sockets.
    entries: Vec<Entry>,
    /// The number of entries by slot; 0 as long as nothing is watched.
    slots: usize,
    /// The number of the session whose slots the first entries are for: the process's own.
    pub own: u32,
    /// Entries to look at. A level-triggered one stays here while it is ready.
    ready: Ready,
    /// Entries for which the sender holds bytes back. They become due without an event.
    held: Vec<u32>,
    /// The number of watched descriptors.
    pub watched: usize,
    /// The entries behind the first `slots`: slot and place of each.
    further: BTreeSet<(u32, u32)>,
    /// The places of those that are free again.
    free: Vec<u32>,
    /// How many entries have no subscription: sockets of other clients, or there was no context.
    unsubscribed: usize,
    /// The context at the process's own stack (session 0).
    pub context: Option<Context>,
    /// Contexts at other stacks.
    others: Vec<Context>,
    /// The process that `context` belongs to.
    pub pid: i32,
    /// The number of descriptors in the native set, roughly. It counts the kernel halves too.
    pub native: usize,
    /// The kernel halves of watched listeners, in the native set.
    pub halves: Halves,
    /// Inner instances in the native set.
    pub nested: Vec<Nested>,
    /// Counts events for outer instances that watch this one by edge.
    pub activity: u32,
    /// Pending sockets in the native set, and epoll descriptors that were added before there was a session.
    pub pending: Vec<(c_int, epoll_event)>,
    /// How many waits in a row have found events without asking the kernel.
    pub since_native: u32,
    /// Sessions (bits) for whose end all entries have been looked at.
    ended: u32,
    /// The place of the entry that was last looked at for a missed event.
    last_looked_at: usize,
    /// When entries are looked at next, in ms of the coarse monotonic clock.
    next_look_ms: u64,
    /// As long as nobody has waited through the library.
    notice: Notice,
}

impl Interest {
    /// An empty list.
    pub const fn new() -> Self {
        Self {
            entries: Vec::new(),
            slots: 0,
            own: 0,
            ready: Ready::new(),
            held: Vec::new(),
            watched: 0,
            further: BTreeSet::new(),
            free: Vec::new(),
            unsubscribed: 0,
            context: None,
            others: Vec::new(),
            pid: 0,
            native: 0,
            halves: Halves::new(),
            nested: Vec::new(),
            activity: 0,
            pending: Vec::new(),
            since_native: 0,
            ended: 0,
            last_looked_at: 0,
            next_look_ms: 0,
            notice: Notice::new(),
        }
    }

    /// The key of a socket: its number, as if the list's own session were session 0.
    #[inline]
    fn key(&self, socket: &Socket) -> u32 {
        swap(socket.number(), self.own)
    }

    /// The place of the entry of this name. Entries of an earlier socket in the same slot are ignored.
    fn find(&self, name: EntryName, socket: &Socket) -> Option<usize> {
        self.of_slot(self.key(socket)).find(|at| self.entries[*at].name == name && self.is_current(*at, socket))
    }

    fn is_current(&self, at: usize, socket: &Socket) -> bool {
        let entry = &self.entries[at];
        entry.is_used() && entry.slot == self.key(socket) && entry.generation == socket.generation
    }

    /// All places where entries of a slot may be.
    fn of_slot(&self, slot: u32) -> impl Iterator<Item = usize> {
        let further = self.further.range((slot, 0)..=(slot, u32::MAX)).map(|(_, at)| *at as usize);
        (slot as usize..self.slots.min(slot as usize + 1)).chain(further)
    }

    /// The context at the stack of the session of this number.
    pub fn context_at(&self, session: u32) -> Option<&Context> {
        match session {
            own if own == self.own => self.context.as_ref(),
            _ => self.others.iter().find(|context| context.session.number == session),
        }
    }

    /// Adds a context.
    pub fn put_context(&mut self, context: Context) {
        if context.session.number == self.own {
            self.context = Some(context);
        } else {
            self.others.push(context);
            self.count_unsubscribed();
        }
    }

    /// Takes all contexts out.
    pub fn take_contexts(&mut self) -> impl Iterator<Item = Context> {
        let taken = self.context.take().into_iter().chain(core::mem::take(&mut self.others));
        self.count_unsubscribed();
        taken
    }

    /// A session has ended, and another may get its number. Returns its context.
    pub fn forget_session(&mut self, session: u32) -> Option<Context> {
        self.ended &= !(1 << session);
        let at = self.others.iter().position(|context| context.session.number == session)?;
        let context = self.others.swap_remove(at);
        self.count_unsubscribed();
        Some(context)
    }

    /// Does the list watch a socket of this session, which is not its own?
    pub fn watches_of(&self, session: u32) -> bool {
        let first = swap(session << SLOT_BITS, self.own);
        let last = first | ((1 << SLOT_BITS) - 1);
        self.further.range((first, 0)..=(last, u32::MAX)).any(|(_, at)| self.entries[*at as usize].is_used())
    }

    /// Does a context have the events of the slot with this key? Nothing comes any more from a session that has ended.
    fn is_subscribed(&self, key: u32) -> bool {
        let session = swap(key, self.own) >> SLOT_BITS;
        session == self.own
            || self.context_at(session).is_some()
            || session::numbered(session).is_none_or(Session::is_dead)
    }

    fn count_unsubscribed(&mut self) {
        let unsubscribed = |entry: &&Entry| entry.is_used() && !self.is_subscribed(entry.slot);
        self.unsubscribed = self.entries.get(self.slots..).unwrap_or_default().iter().filter(unsubscribed).count();
    }

    /// A place for a new entry: the slot's own, else one behind the first `slots`.
    fn place(&mut self, socket: &Socket) -> usize {
        if self.entries.is_empty() {
            // All regions of a service have the same number of slots.
            self.slots = session::numbered(self.own).unwrap_or(socket.session).geometry.slots as usize;
            self.entries = vec![Entry::default(); self.slots];
        }
        let own = socket.slot.index();
        if socket.session.number == self.own && !self.is_current(own, socket) {
            return own;
        }
        let at = match self.free.iter().rposition(|at| !self.entries[*at as usize].queued) {
            Some(free) => self.free.swap_remove(free),
            None => {
                self.entries.push(Entry::default());
                self.entries.len() as u32 - 1
            }
        };
        self.further.insert((self.key(socket), at));
        at as usize
    }

    /// EPOLL_CTL_ADD.
    pub fn add(&mut self, name: EntryName, socket: &Socket, event: &epoll_event) -> Result<(), i32> {
        if event.events & EXCLUSIVE != 0 && event.events & !WITH_EXCLUSIVE != 0 {
            return Err(libc::EINVAL);
        }
        if self.find(name, socket).is_some() {
            return Err(libc::EEXIST);
        }
        let at = self.place(socket);
        self.halves.entry_ended(at);
        let slot = self.key(socket);
        let entry = &mut self.entries[at];
        let (stale, queued) = (entry.is_used(), entry.queued);
        *entry = Entry::of(name, socket, slot, event);
        entry.queued = queued;
        self.watched += usize::from(!stale);
        match self.context_at(socket.session.number).map(Context::bit) {
            Some(bit) => self.watch(socket, bit),
            None => self.unsubscribed += usize::from(!self.is_subscribed(slot)),
        }
        self.look_if_ready(at, socket);
        Ok(())
    }

    /// Subscribes the context to the socket's events, exclusively if all entries ask for that. A connection that is
    /// also watched for room is never exclusive. An event does not say what has changed, and another waiter may want
    /// the other change.
    fn watch(&self, socket: &Socket, bit: u64) {
        let mut current = self.of_slot(self.key(socket)).filter(|at| self.is_current(*at, socket));
        let listening = socket.state() == state::LISTENING;
        let takes_turns = |events: u32| events & EXCLUSIVE != 0 && (listening || events & readiness::OUT == 0);
        socket.share(bit, current.all(|at| takes_turns(self.entries[at].events)));
        socket.subscribe(bit);
    }

    /// EPOLL_CTL_MOD.
    pub fn modify(&mut self, name: EntryName, socket: &Socket, event: &epoll_event) -> Result<(), i32> {
        let at = self.find(name, socket).ok_or(libc::ENOENT)?;
        let entry = &mut self.entries[at];
        if (event.events | entry.events) & EXCLUSIVE != 0 {
            return Err(libc::EINVAL);
        }
        entry.modify(event);
        self.look_if_ready(at, socket);
        Ok(())
    }

    /// EPOLL_CTL_DEL.
    pub fn remove(&mut self, name: EntryName, socket: &Socket, ours: bool) -> Result<(), i32> {
        let at = self.find(name, socket).ok_or(libc::ENOENT)?;
        self.remove_half(at);
        self.end(at, socket, ours);
        Ok(())
    }

    /// Ends an entry whose kernel half, if it has one, the kernel goes on watching.
    pub fn give_up(&mut self, name: EntryName, socket: &Socket, ours: bool) -> Result<(), i32> {
        let at = self.find(name, socket).ok_or(libc::ENOENT)?;
        self.end(at, socket, ours);
        Ok(())
    }

    fn end(&mut self, at: usize, socket: &Socket, ours: bool) {
        self.entries[at].end();
        self.halves.entry_ended(at);
        self.watched -= 1;
        let others = self.of_slot(self.key(socket)).any(|at| self.is_current(at, socket));
        if let (Some(context), true, false) = (self.context_at(socket.session.number), ours, others) {
            socket.unsubscribe(context.bit());
        }
        if at >= self.slots {
            self.unsubscribed -= usize::from(!self.is_subscribed(self.entries[at].slot));
            self.further.remove(&(self.entries[at].slot, at as u32));
            self.free.push(at as u32);
        }
    }

    /// The descriptor is closed. While copies of it are open it stays watched, though no call can name it.
    pub fn closed(&mut self, fd: c_int, socket: &Socket, copies: bool, ours: bool) {
        if self.watched == 0 {
            return;
        }
        for at in self.of_slot(self.key(socket)).collect::<Vec<_>>() {
            if !self.is_current(at, socket) {
                continue;
            }
            let name = &mut self.entries[at].name;
            if !copies && *name != EntryName::Library {
                self.close_half(at, socket.has(flag::SHARED));
                self.end(at, socket, ours);
            } else if *name == EntryName::Descriptor(fd) {
                *name = EntryName::Closed;
            }
        }
    }

    /// The names of a socket's entries, each with its event.
    pub fn watching(&self, socket: &Socket) -> Vec<(EntryName, epoll_event)> {
        let current = self.of_slot(self.key(socket)).filter(|at| self.is_current(*at, socket));
        current
            .map(|at| {
                (self.entries[at].name, epoll_event { events: self.entries[at].events, u64: self.entries[at].data })
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

    /// Looks at the entries of a socket.
    pub fn look_at(&mut self, socket: &Socket) {
        for at in self.of_slot(self.key(socket)).collect::<Vec<_>>() {
            if self.is_current(at, socket) {
                self.queue(at);
            }
        }
    }

    /// Looks at all watched entries: no context has their changes, or the context is new.
    pub fn look_at_all(&mut self) {
        for at in 0..self.entries.len() {
            self.queue(at);
        }
    }

    /// The stacks of these sessions (bits) have ended, and all their connections with them. Looks at all entries, once.
    /// False: that has been done before.
    pub fn look_at_the_end(&mut self, gone: u32) -> bool {
        if gone & !self.ended == 0 {
            return false;
        }
        self.ended |= gone;
        self.look_at_all();
        true
    }

    /// Subscribes the session's context to all its watched slots.
    pub fn subscribe_all(&mut self, session: &'static Session) {
        let Some(bit) = self.context_at(session.number).map(Context::bit) else { return };
        let (own, number) = (self.own, session.number);
        let theirs = |entry: &&Entry| entry.is_used() && swap(entry.slot, own) >> SLOT_BITS == number;
        for entry in self.entries.iter().filter(theirs) {
            if let Some(socket) = Socket::at(swap(entry.slot, own), entry.generation)
                && !socket.is_gone()
            {
                self.watch(&socket, bit);
            }
        }
    }

    /// Does the native set have more than kernel halves, so that the kernel is asked before the first sleep?
    #[inline]
    pub fn asks_first(&self) -> bool {
        self.native > self.halves.count()
    }

    /// For how long, in ticks of the time stamp counter, ready slots may keep the kernel from being asked.
    #[inline]
    pub fn longest_unasked(&self) -> u64 {
        if self.asks_first() { NATIVE_TICKS } else { HALVES_TICKS }
    }

    /// Does the list watch a socket without a subscription?
    #[inline]
    pub fn has_unsubscribed(&self) -> bool {
        self.unsubscribed > 0
    }

    /// Empties the list and returns the contexts, which the caller closes.
    pub fn clear(&mut self, ours: bool) -> Vec<Context> {
        let contexts: Vec<Context> = self.take_contexts().collect();
        for entry in self.entries.iter().filter(|entry| entry.is_used() && ours) {
            let slot = swap(entry.slot, self.own);
            let context = contexts.iter().find(|context| context.session.number == slot >> SLOT_BITS);
            if let (Some(context), Some(socket)) = (context, Socket::at(slot, entry.generation)) {
                socket.unsubscribe(context.bit());
            }
        }
        self.halves.release_all();
        self.forget_notice();
        *self = Self::new();
        contexts
    }
}

#[inline]
fn queue(entries: &mut [Entry], ready: &mut Ready, at: usize) {
    let Some(entry) = entries.get_mut(at) else { return };
    if entry.is_used() && !entry.queued {
        entry.queued = true;
        ready.push_back(at as u32);
    }
}
