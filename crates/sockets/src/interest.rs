//! The interest list of one epoll instance: which slots it watches, and which of them may be ready.

use crate::context::Context;
use crate::epoll;
use crate::readiness;
use crate::session::Session;
use crate::socket::Socket;
use core::sync::atomic::Ordering;
use libc::{c_int, epoll_event};
use std::collections::VecDeque;
use towpath_hook::real;

const ET: u32 = libc::EPOLLET as u32;
const ONESHOT: u32 = libc::EPOLLONESHOT as u32;

/// One watched slot. All zero = not watched.
#[derive(Clone, Copy, Default)]
struct Entry {
    data: u64,
    generation: u32,
    events: u32,
    fd: i32,
    watched: bool,
    /// It stands in `ready`.
    queued: bool,
    /// ONESHOT has been served.
    disabled: bool,
}

/// The list, and what belongs to it. Under its epoll instance's lock.
pub struct Interest {
    /// By slot; as long as the slot table once anything is watched.
    entries: Vec<Entry>,
    /// Slots to look at. Level-triggered ones stay as long as they are ready.
    ready: VecDeque<u32>,
    /// How many are watched.
    pub watched: usize,
    /// Where the stack tells of events.
    pub context: Option<Context>,
    /// The process that `context` belongs to.
    pub pid: i32,
    /// Descriptors in the native set, about.
    pub native: usize,
    /// Undecided sockets in the native set, to be taken over when they are promoted.
    pub undecided: Vec<(c_int, epoll_event)>,
    /// Waits that found something without looking at the native set.
    pub since_native: u32,
    /// All have been looked at since the service has gone.
    ended: bool,
}

impl Interest {
    /// An empty one.
    pub const fn new() -> Self {
        Self {
            entries: Vec::new(),
            ready: VecDeque::new(),
            watched: 0,
            context: None,
            pid: 0,
            native: 0,
            undecided: Vec::new(),
            since_native: 0,
            ended: false,
        }
    }

    fn entry(&mut self, socket: &Socket) -> &mut Entry {
        if self.entries.is_empty() {
            self.entries = vec![Entry::default(); socket.session.geometry.slots as usize];
        }
        &mut self.entries[socket.slot.index()]
    }

    /// Is this descriptor's socket watched? An entry of an earlier user of the slot does not count.
    fn current(&mut self, socket: &Socket) -> bool {
        let generation = socket.generation;
        let entry = self.entry(socket);
        entry.watched && entry.generation == generation
    }

    /// EPOLL_CTL_ADD.
    pub fn add(&mut self, fd: c_int, socket: &Socket, event: &epoll_event) -> Result<(), i32> {
        if self.current(socket) {
            return Err(libc::EEXIST);
        }
        let entry = self.entry(socket);
        let (stale, queued) = (entry.watched, entry.queued);
        let (data, generation, events) = (event.u64, socket.generation, event.events);
        *entry = Entry { data, generation, events, fd, watched: true, queued, disabled: false };
        self.watched += usize::from(!stale);
        if let Some(context) = &self.context {
            socket.app().ctx_mask.fetch_or(context.bit(), Ordering::SeqCst);
        }
        self.look_at(socket.slot.raw());
        Ok(())
    }

    /// EPOLL_CTL_MOD.
    pub fn modify(&mut self, socket: &Socket, event: &epoll_event) -> Result<(), i32> {
        if !self.current(socket) {
            return Err(libc::ENOENT);
        }
        let entry = self.entry(socket);
        (entry.data, entry.events, entry.disabled) = (event.u64, event.events, false);
        self.look_at(socket.slot.raw());
        Ok(())
    }

    /// EPOLL_CTL_DEL; also when the descriptor `fd` is closed (`None` = whichever descriptor).
    pub fn remove(&mut self, fd: Option<c_int>, socket: &Socket, ours: bool) -> Result<(), i32> {
        if self.watched == 0 || !self.current(socket) || fd.is_some_and(|fd| self.entry(socket).fd != fd) {
            return Err(libc::ENOENT);
        }
        self.entry(socket).watched = false;
        self.watched -= 1;
        if let Some(context) = self.context.as_ref().filter(|_| ours) {
            socket.app().ctx_mask.fetch_and(!context.bit(), Ordering::SeqCst);
        }
        Ok(())
    }

    /// Puts a slot among those to look at.
    pub fn look_at(&mut self, slot: u32) {
        if let Some(entry) = self.entries.get_mut(slot as usize)
            && entry.watched
            && !entry.queued
        {
            entry.queued = true;
            self.ready.push_back(slot);
        }
    }

    /// Looks at everything that is watched: when there is no context to tell what has changed, or it is another one now.
    pub fn look_at_all(&mut self) {
        for slot in 0..self.entries.len() {
            self.look_at(slot as u32);
        }
    }

    /// The service has gone, which ends every connection: looks at all, once. False if that has been done.
    pub fn look_at_the_end(&mut self) -> bool {
        if self.ended {
            return false;
        }
        self.ended = true;
        self.look_at_all();
        true
    }

    /// Sets the context's bit in every watched slot.
    pub fn subscribe_all(&mut self, session: &Session) {
        let Some(bit) = self.context.as_ref().map(Context::bit) else { return };
        for (raw, entry) in self.entries.iter().enumerate().filter(|(_, entry)| entry.watched) {
            if let Some(slot) = session.region.slot(raw as u32) {
                let socket_is_same = session.region.stack(slot).generation.load(Ordering::Acquire) == entry.generation;
                if socket_is_same {
                    session.region.app(slot).ctx_mask.fetch_or(bit, Ordering::SeqCst);
                }
            }
        }
    }

    /// Takes what the stack has raised into the list of slots to look at.
    pub fn drain(&mut self, session: &'static Session) {
        let Some(mut context) = self.context.take() else {
            self.look_at_all();
            return;
        };
        context.drain(session, |slot| {
            let generation = self.entries.get(slot.index()).map_or(0, |entry| entry.generation);
            let socket = Socket { session, slot, generation };
            if !socket.is_gone() {
                socket.event_seen();
            }
            self.look_at(slot.raw());
        });
        self.context = Some(context);
    }

    /// Fills `out` with what is ready.
    pub fn collect(&mut self, session: &'static Session, mut put: impl FnMut(epoll_event), room: usize) -> usize {
        let mut found = 0;
        // Each slot once at most: the level-triggered ones go to the back.
        for _ in 0..self.ready.len() {
            if found == room {
                break;
            }
            let Some(raw) = self.ready.pop_front() else { break };
            let Some(entry) = self.entries.get_mut(raw as usize) else { continue };
            entry.queued = false;
            if !entry.watched || entry.disabled {
                continue;
            }
            let Some(slot) = session.region.slot(raw) else { continue };
            let events = readiness::events_for(&Socket { session, slot, generation: entry.generation }, entry.events);
            if events == 0 {
                continue;
            }
            put(epoll_event { events, u64: entry.data });
            found += 1;
            if entry.events & ONESHOT != 0 {
                entry.disabled = true;
            } else if entry.events & ET == 0 {
                entry.queued = true;
                self.ready.push_back(raw);
            }
        }
        found
    }

    /// Would `collect` find something?
    pub fn any_ready(&mut self, session: &'static Session) -> bool {
        self.ready.iter().any(|raw| {
            let Some(entry) = self.entries.get(*raw as usize).filter(|e| e.watched && !e.disabled) else {
                return false;
            };
            let Some(slot) = session.region.slot(*raw) else { return false };
            readiness::events_for(&Socket { session, slot, generation: entry.generation }, entry.events) != 0
        })
    }

    /// Forgets everything; returns the context to be closed.
    pub fn clear(&mut self, session: &Session, ours: bool) -> Option<Context> {
        let context = self.context.take();
        for (raw, _) in self.entries.iter().enumerate().filter(|(_, entry)| entry.watched) {
            if let (true, Some(context), Some(slot)) = (ours, &context, session.region.slot(raw as u32)) {
                session.region.app(slot).ctx_mask.fetch_and(!context.bit(), Ordering::SeqCst);
            }
        }
        *self = Self::new();
        context
    }
}

/// An undecided socket is the kernel's for good or closed.
pub fn forget_undecided(fd: c_int) {
    epoll::each(|_, interest| interest.undecided.retain(|(watched, _)| *watched != fd));
}

/// Takes an undecided socket, which is about to be promoted, out of the native sets; returns who watched it.
pub fn take_undecided(fd: c_int) -> Vec<(u32, epoll_event)> {
    let mut watchers = Vec::new();
    epoll::each(|id, interest| {
        if let Some(at) = interest.undecided.iter().position(|(watched, _)| *watched == fd) {
            let (_, event) = interest.undecided.swap_remove(at);
            // SAFETY: a deletion reads no event.
            unsafe { real::epoll_ctl(epoll::descriptor(id), libc::EPOLL_CTL_DEL, fd, core::ptr::null_mut()) };
            watchers.push((id, event));
        }
    });
    watchers
}

/// Lets the instances that watched an undecided socket watch the slot that it has become.
pub fn watch_promoted(fd: c_int, socket: &Socket, watchers: Vec<(u32, epoll_event)>) {
    for (id, event) in watchers {
        let _ = epoll::control_slot(id, libc::EPOLL_CTL_ADD, fd, socket, Some(&event));
    }
}

/// The descriptor `fd` of a socket is being closed: nobody watches it any more.
pub fn forget(fd: c_int, socket: &Socket) {
    let contexts = socket.app().ctx_mask.load(Ordering::SeqCst);
    epoll::each_told(contexts, |interest| {
        let ours = interest.pid == crate::fork::pid();
        let _ = interest.remove(Some(fd), socket, ours);
    });
}
