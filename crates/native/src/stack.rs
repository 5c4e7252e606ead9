//! A thread's way to the stack: its event context, and who is watched by it.

use crate::connection::errno;
use crate::event::{Event, Readiness, Source};
use core::sync::atomic::Ordering;
use core::time::Duration;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd};
use std::collections::VecDeque;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Instant;
use towpath_ring::Slot;
use towpath_ring::lines::state;
use towpath_sockets::narrow::{self, Context, LIFE_CHECK, Session, Socket, used};

/// What is watched in a slot.
#[derive(Clone, Copy, Default)]
struct Entry {
    token: u64,
    generation: u32,
    watched: bool,
    /// That it is connected has not been told.
    connecting: bool,
    /// It stands in `later`.
    queued: bool,
    /// The collection that has told of it last.
    told: u32,
}

/// What a thread has of the stack. The first one of a process registers with the service; all share the process's region.
pub struct Stack {
    session: &'static Session,
    /// `None` only while it is dropped.
    context: Option<Context>,
    /// By slot; as long as the slot table.
    entries: Box<[Entry]>,
    /// To look at before anything new.
    later: VecDeque<u32>,
    /// Slots whose peer holds bytes back that will be there in time (`TCP_CORK` of a direct connection).
    held: Vec<u32>,
    /// Number of the latest collection: each token is told of once in it, so that the program may let go what it belongs to.
    collection: u32,
    /// The bell may ring, because somebody was told that he may sleep.
    armed: bool,
    /// All have been told that the service has gone.
    ended: bool,
}

impl Stack {
    /// Opens the stack whose service is at `TOWPATH_SOCKET`, as `towpath run` sets it.
    pub fn open() -> io::Result<Self> {
        let path = std::env::var_os("TOWPATH_SOCKET");
        Self::open_at(path.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "TOWPATH_SOCKET is not set"))?)
    }

    /// Opens the stack whose service is at `path`. A process stays with the service that it opened first; once that has gone, this is
    /// ENETDOWN.
    pub fn open_at(path: impl AsRef<Path>) -> io::Result<Self> {
        let session = narrow::open(path.as_ref().as_os_str().as_bytes())?;
        // ENFILE: the service has none left for this process.
        let context = Context::open(session).ok_or_else(|| errno(libc::ENFILE))?;
        let entries = vec![Entry::default(); session.geometry.slots as usize].into_boxed_slice();
        let (later, held) = (VecDeque::new(), Vec::new());
        Ok(Self { session, context: Some(context), entries, later, held, collection: 0, armed: false, ended: false })
    }

    pub(crate) fn session(&self) -> &'static Session {
        self.session
    }

    fn context(&self) -> io::Result<&Context> {
        self.context.as_ref().ok_or_else(|| errno(libc::EBADF))
    }

    /// Events of `source` are told here from now on, as `token`. Each is told once, when something changes, and once now if there is
    /// something to tell: take all there is, or remember that there is more.
    pub fn watch(&mut self, source: &impl Source, token: u64) -> io::Result<()> {
        let socket = source.socket();
        let bit = self.context()?.bit();
        let Some(entry) = self.entries.get_mut(socket.slot.index()) else { return Err(errno(libc::EINVAL)) };
        let connecting = source.is_awaited();
        let (queued, told) = (entry.queued, entry.told);
        *entry = Entry { token, generation: socket.generation, watched: true, connecting, queued, told };
        socket.watch(bit, true);
        self.look_later(socket.slot);
        Ok(())
    }

    /// No more events of `source` here. Needless before it is dropped; what has already been told stays told.
    pub fn unwatch(&mut self, source: &impl Source) -> io::Result<()> {
        let socket = source.socket();
        let bit = self.context()?.bit();
        match self.entries.get_mut(socket.slot.index()) {
            Some(entry) if entry.watched && entry.generation == socket.generation => {
                entry.watched = false;
                socket.watch(bit, false);
                Ok(())
            }
            _ => Err(errno(libc::ENOENT)),
        }
    }

    /// Fills `events` with what has happened, and returns how many; waits until something does, or the time is up (0), or a signal handler
    /// ran (`Interrupted`). With a time of 0 no system call is made. `None` = no limit.
    pub fn wait(&mut self, events: &mut [Event], timeout: Option<Duration>) -> io::Result<usize> {
        if events.is_empty() {
            return Err(errno(libc::EINVAL));
        }
        if self.armed {
            self.disarm()?;
        }
        let mut deadline = None;
        loop {
            let found = self.collect(events);
            if found > 0 || timeout == Some(Duration::ZERO) {
                return Ok(found);
            }
            let deadline =
                *deadline.get_or_insert_with(|| timeout.and_then(|timeout| Instant::now().checked_add(timeout)));
            let id = self.context()?.id;
            if narrow::spin(self.session, || !narrow::is_empty(self.session, id)) {
                continue;
            }
            if !self.sleep(deadline)? {
                return Ok(self.collect(events));
            }
        }
    }

    /// For programs with an event loop of their own: true = nothing has happened, and the descriptor ([`AsFd`]) will be readable when
    /// something does. Then, or if it is false, or after a second, call [`Stack::wait`] with a time of 0: what only time brings (a service
    /// that has been killed, bytes that the peer holds back by `TCP_CORK`) rings no bell.
    pub fn arm(&mut self) -> io::Result<bool> {
        self.armed = true;
        let context = self.context()?;
        context.arm(self.session);
        let nothing = narrow::is_empty(self.session, context.id);
        Ok(nothing && self.later.is_empty())
    }

    fn disarm(&mut self) -> io::Result<()> {
        self.armed = false;
        let context = self.context()?;
        context.disarm(self.session);
        towpath_ring::wake::drain(narrow::borrow(&context.wake));
        if !self.session.check_alive_if_due() {
            self.look_at_the_end();
        }
        Ok(())
    }

    fn look_later(&mut self, slot: Slot) {
        if let Some(entry) = self.entries.get_mut(slot.index()).filter(|entry| !entry.queued) {
            entry.queued = true;
            self.later.push_back(slot.raw());
        }
    }

    /// The service has gone, which ends everything: tells all who are watched, once. False if that has been done.
    fn look_at_the_end(&mut self) -> bool {
        if core::mem::replace(&mut self.ended, true) {
            return false;
        }
        for raw in 0..self.session.geometry.slots {
            if let Some(slot) = self.session.region.slot(raw) {
                self.look_later(slot);
            }
        }
        true
    }

    /// Looks later at those whose bytes are not held any more.
    #[cold]
    fn look_at_due(&mut self) {
        for raw in core::mem::take(&mut self.held) {
            let Some(slot) = self.session.region.slot(raw) else { continue };
            let Some(entry) = self.entries.get(slot.index()) else { continue };
            let socket = Socket { session: self.session, slot, generation: entry.generation };
            // Notes the time until when to sleep.
            socket.readable();
            if entry.watched && narrow::is_waited_for(&socket) {
                self.held.push(raw);
            } else {
                self.look_later(slot);
            }
        }
    }

    /// What is there now.
    fn collect(&mut self, events: &mut [Event]) -> usize {
        if !self.held.is_empty() {
            self.look_at_due();
        }
        self.collection = self.collection.wrapping_add(1);
        let mut found = 0;
        let Self { session, context: Some(context), entries, later, held, collection, .. } = self else { return 0 };
        let mut tell = |slot: Slot, entry: &mut Entry| {
            if found == events.len() || entry.told == *collection {
                return false;
            }
            if let Some(event) = look(session, slot, entry, held) {
                events[found] = event;
                found += 1;
                entry.told = *collection;
            }
            true
        };
        for _ in 0..later.len() {
            let Some(raw) = later.pop_front() else { break };
            let (Some(slot), Some(entry)) = (session.region.slot(raw), entries.get_mut(raw as usize)) else { continue };
            entry.queued = !tell(slot, entry);
            if entry.queued {
                later.push_front(raw);
                break;
            }
        }
        context.drain(session, |slot| {
            let Some(entry) = entries.get_mut(slot.index()) else { return };
            if !tell(slot, entry) && !entry.queued {
                entry.queued = true;
                later.push_back(slot.raw());
            }
        });
        found
    }

    /// Sleeps until something happens, with the bell armed. False: the time is up.
    fn sleep(&mut self, deadline: Option<Instant>) -> io::Result<bool> {
        if !self.session.check_alive_if_due() {
            return if self.look_at_the_end() { Ok(true) } else { Err(errno(libc::ENETDOWN)) };
        }
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let time = {
            let longest = narrow::sleep_of(LIFE_CHECK);
            left.map_or(longest, |left| left.min(longest))
        };
        let woken = if self.arm()? { self.sleep_armed(time) } else { Ok(true) };
        self.disarm()?;
        if woken? {
            return Ok(true);
        }
        self.session.check_alive();
        Ok(left != Some(time))
    }

    fn sleep_armed(&self, time: Duration) -> io::Result<bool> {
        let time = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
        let bell = self.as_fd();
        let mut waiting = [PollFd::new(&bell, PollFlags::IN)];
        let woken = poll(&mut waiting, Some(&time))? > 0;
        // Nobody is left to ring: the service has gone, most likely.
        if waiting[0].revents().intersects(PollFlags::HUP | PollFlags::ERR) {
            self.session.check_alive();
        }
        Ok(woken)
    }
}

/// What there is to tell of a slot that has been raised.
#[inline]
fn look(session: &'static Session, slot: Slot, entry: &mut Entry, held: &mut Vec<u32>) -> Option<Event> {
    if !entry.watched {
        return None;
    }
    let socket = Socket { session, slot, generation: entry.generation };
    // Dropped by the program, or used by another since.
    if socket.private().used.load(Ordering::Acquire) != used::LIVE
        || socket.app().generation.load(Ordering::Relaxed) != entry.generation
    {
        entry.watched = false;
        return None;
    }
    let wanted = socket.wants_room();
    if wanted {
        socket.event_seen();
    }
    let view = socket.view();
    let connecting = entry.connecting;
    if connecting {
        entry.connecting = view.state() == state::CONNECTING;
    }
    let readiness = Readiness::of(&view, wanted || connecting);
    if narrow::is_waited_for(&socket) && !held.contains(&slot.raw()) {
        held.push(slot.raw());
    }
    (!readiness.is_none()).then_some(Event { token: entry.token, readiness })
}

impl AsFd for Stack {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.context {
            Some(context) => narrow::borrow(&context.wake),
            None => narrow::borrow(&NO_DESCRIPTOR),
        }
    }
}

/// Of a stack that is being dropped, whom nobody can ask.
const NO_DESCRIPTOR: i32 = i32::MAX;

impl Drop for Stack {
    fn drop(&mut self) {
        let Some(context) = self.context.take() else { return };
        for (raw, entry) in self.entries.iter().enumerate().filter(|(_, entry)| entry.watched) {
            if let Some(slot) = self.session.region.slot(raw as u32) {
                let socket = Socket { session: self.session, slot, generation: entry.generation };
                if !socket.is_gone() {
                    socket.watch(context.bit(), false);
                }
            }
        }
        context.close(self.session);
    }
}
