//! A thread's access to the stack: its event context, and the sources that it watches.

use crate::error::errno;
use crate::event::{Event, Readiness, Source};
use crate::kernel_half::KernelHalf;
use core::mem::ManuallyDrop;
use core::sync::atomic::Ordering;
use core::time::Duration;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd};
use std::collections::VecDeque;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Instant;
use towpath_client::context::{self, Context, Queued};
use towpath_client::direct::{self, OnlyEvent};
use towpath_client::held;
use towpath_client::liveness::LIFE_CHECK;
use towpath_client::private::used;
use towpath_client::session::Session;
use towpath_client::sessions;
use towpath_client::socket::Socket;
use towpath_client::sys;
use towpath_ring::Slot;
use towpath_ring::lines::state;

/// A watched slot.
#[derive(Clone, Copy, Default)]
struct Entry {
    token: u64,
    generation: u32,
    watched: bool,
    /// The end of its handshake has not been reported.
    connecting: bool,
    /// It is in `later`.
    queued: bool,
}

/// A thread's access to the stack. The first one of a process registers with the service; all share the process's
/// region.
pub struct Stack {
    session: &'static Session,
    /// `Drop` takes it out, and nothing else.
    context: ManuallyDrop<Context>,
    /// By slot; as long as the slot table.
    entries: Box<[Entry]>,
    /// Slots to look at before any new event.
    later: VecDeque<u32>,
    /// Slots whose peer holds bytes back that will be due (`TCP_CORK` of a direct connection).
    held: Vec<u32>,
    /// The kernel's sockets of watched listeners.
    kernels: Vec<Weak<KernelHalf>>,
    /// The context is armed: the program was told that it may sleep.
    armed: bool,
    /// The service has gone, and all sources have been reported.
    ended: bool,
}

impl Stack {
    /// Opens the stack whose service is at `TOWPATH_SOCKET`, as `towpath run` sets it.
    pub fn open() -> io::Result<Self> {
        let path = std::env::var_os("TOWPATH_SOCKET");
        Self::open_at(path.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "TOWPATH_SOCKET is not set"))?)
    }

    /// Opens the stack whose service is at `path`. A process stays with the first service that it opened; after that
    /// has gone, this fails with ENETDOWN.
    pub fn open_at(path: impl AsRef<Path>) -> io::Result<Self> {
        let session = sessions::open(path.as_ref().as_os_str().as_bytes())?;
        // ENFILE: the service has no context left for this process.
        let context = Context::open(session).ok_or_else(|| errno(libc::ENFILE))?;
        let entries = vec![Entry::default(); session.geometry.slots as usize].into_boxed_slice();
        let (later, held) = (VecDeque::new(), Vec::new());
        Ok(Self {
            session,
            context: ManuallyDrop::new(context),
            entries,
            later,
            held,
            kernels: Vec::new(),
            armed: false,
            ended: false,
        })
    }

    pub(crate) fn session(&self) -> &'static Session {
        self.session
    }

    /// Reports events of `source` here from now on, as `token`. Each change is reported once, and the present state
    /// now if there is anything to report. Take everything there is, or remember that there is more.
    pub fn watch(&mut self, source: &impl Source, token: u64) -> io::Result<()> {
        let socket = source.socket();
        let bit = self.context.bit();
        let Some(entry) = self.entries.get_mut(socket.slot.index()) else { return Err(errno(libc::EINVAL)) };
        let connecting = source.is_awaited();
        let queued = entry.queued;
        *entry = Entry { token, generation: socket.generation, watched: true, connecting, queued };
        socket.subscribe(bit);
        if let Some(kernels) = source.kernel_half() {
            let kernels = Arc::downgrade(kernels);
            self.kernels.retain(|other| other.strong_count() > 0 && !other.ptr_eq(&kernels));
            self.kernels.push(kernels);
        }
        self.look_later(socket.slot);
        Ok(())
    }

    /// Ends reporting of `source` here. Not needed before it is dropped. Events that were reported stay reported.
    pub fn unwatch(&mut self, source: &impl Source) -> io::Result<()> {
        let socket = source.socket();
        let bit = self.context.bit();
        match self.entries.get_mut(socket.slot.index()) {
            Some(entry) if entry.watched && entry.generation == socket.generation => {
                entry.watched = false;
                socket.unsubscribe(bit);
                Ok(())
            }
            _ => Err(errno(libc::ENOENT)),
        }
    }

    /// Fills `events` and returns how many. Waits until something happens, the time is up (0), or a signal handler
    /// has run (`Interrupted`). With a time of 0 there is no system call. `None` = no limit.
    pub fn wait(&mut self, events: &mut [Event], timeout: Option<Duration>) -> io::Result<usize> {
        if events.is_empty() {
            return Err(errno(libc::EINVAL));
        }
        if self.armed {
            self.disarm();
        }
        let (mut deadline, mut in_vain) = (None, false);
        loop {
            if let Some(event) = self.glance() {
                events[0] = event;
                return Ok(1);
            }
            let found = self.collect(events);
            if found > 0 || timeout == Some(Duration::ZERO) {
                return Ok(found);
            }
            let deadline =
                *deadline.get_or_insert_with(|| timeout.and_then(|timeout| Instant::now().checked_add(timeout)));
            let id = self.context.id;
            // A hostile peer of a direct connection can raise events for ever that show nothing. The clock, which costs
            // a tenth of a request, is asked after the first of them.
            let is_over = || in_vain && deadline.is_some_and(|deadline: Instant| Instant::now() >= deadline);
            if direct::spin(self.session, || !context::is_empty(self.session, id)) && !is_over() {
                in_vain = true;
                continue;
            }
            if !self.sleep(deadline)? || is_over() {
                return Ok(self.collect(events));
            }
            in_vain = true;
        }
    }

    /// For programs with an event loop of their own. True: nothing has happened, and the descriptor ([`AsFd`]) will
    /// be readable when something does. Then, or if this is false, or after a second, call [`Stack::wait`] with a
    /// time of 0. Some events come with time only and notify no doorbell: a service that was killed, bytes that the
    /// peer holds back by `TCP_CORK`.
    pub fn arm(&mut self) -> io::Result<bool> {
        self.armed = true;
        self.context.arm();
        let nothing = context::is_empty(self.session, self.context.id);
        Ok(nothing && self.later.is_empty())
    }

    fn disarm(&mut self) {
        self.armed = false;
        self.context.disarm();
        towpath_ring::wake::drain(self.as_fd());
        if !self.session.check_alive_if_due() {
            self.look_at_the_end();
        }
    }

    fn look_later(&mut self, slot: Slot) {
        if let Some(entry) = self.entries.get_mut(slot.index()).filter(|entry| !entry.queued) {
            entry.queued = true;
            self.later.push_back(slot.raw());
        }
    }

    /// The service has gone, which ends everything: looks at all sources, once. False if that has been done.
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

    /// Queues slots whose held bytes are due.
    #[cold]
    fn look_at_due(&mut self) {
        for raw in core::mem::take(&mut self.held) {
            let Some(slot) = self.session.region.slot(raw) else { continue };
            let Some(entry) = self.entries.get(slot.index()) else { continue };
            let socket = Socket { session: self.session, slot, generation: entry.generation };
            // This notes until when to sleep.
            socket.readable();
            if entry.watched && held::is_waited_for(&socket) {
                self.held.push(raw);
            } else {
                self.look_later(slot);
            }
        }
    }

    /// The event of the only slot that has changed, if nothing else is to be looked at: most waits of a busy program find this.
    /// `None`: what there is, [`Stack::collect`] finds.
    #[inline]
    fn glance(&mut self) -> Option<Event> {
        if !self.later.is_empty() || !self.held.is_empty() {
            return None;
        }
        let Self { session, context, entries, held, .. } = self;
        let (raw, slot) = if direct::is_used(session) {
            if context.is_anything_queued() {
                return None;
            }
            let OnlyEvent::One(next) = context.only_direct() else { return None };
            let slot = session.region.slot(next.of())?;
            next.fetch_ahead(session.region.app(slot).rx_head.load(Ordering::Relaxed));
            if !context.take_direct(&next) {
                return None;
            }
            (next.of(), slot)
        } else {
            let Queued::One(next) = context.queued() else { return None };
            let (raw, slot) = (next.slot(), session.region.slot(next.slot())?);
            next.take();
            (raw, slot)
        };
        look(session, slot, entries.get_mut(raw as usize)?, held)
    }

    /// Collects the present events.
    fn collect(&mut self, events: &mut [Event]) -> usize {
        if !self.held.is_empty() {
            self.look_at_due();
        }
        let Self { session, context, entries, later, held, .. } = self;
        // All events are taken before anything is looked at. So each token is reported once, and the program may free its state
        // on an event.
        context.drain(|slot| {
            if let Some(entry) = entries.get_mut(slot.index()).filter(|entry| !entry.queued) {
                entry.queued = true;
                later.push_back(slot.raw());
            }
        });
        let mut found = 0;
        for _ in 0..later.len() {
            if found == events.len() {
                break;
            }
            let Some(raw) = later.pop_front() else { break };
            let (Some(slot), Some(entry)) = (session.region.slot(raw), entries.get_mut(raw as usize)) else { continue };
            entry.queued = false;
            if let Some(event) = look(session, slot, entry, held) {
                events[found] = event;
                found += 1;
            }
        }
        found
    }

    /// Sleeps until something happens, with the context armed. False: the time is up.
    fn sleep(&mut self, deadline: Option<Instant>) -> io::Result<bool> {
        if !self.session.check_alive_if_due() {
            return if self.look_at_the_end() { Ok(true) } else { Err(errno(libc::ENETDOWN)) };
        }
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let time = {
            let longest = held::sleep_of(LIFE_CHECK);
            left.map_or(longest, |left| left.min(longest))
        };
        let woken = if self.arm()? { self.sleep_armed(time) } else { Ok(true) };
        self.disarm();
        if woken? {
            return Ok(true);
        }
        self.session.check_alive();
        Ok(left != Some(time))
    }

    fn sleep_armed(&self, time: Duration) -> io::Result<bool> {
        let time = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
        let doorbell = self.as_fd();
        let kernels: Vec<_> = self.kernels.iter().filter_map(Weak::upgrade).collect();
        let mut waiting: Vec<_> = [PollFd::from_borrowed_fd(doorbell, PollFlags::IN)].into();
        waiting.extend(kernels.iter().map(|half| PollFd::from_borrowed_fd(half.as_fd(), PollFlags::IN)));
        let woken = poll(&mut waiting, Some(&time))? > 0;
        kernels
            .iter()
            .zip(&waiting[1..])
            .filter(|(_, it)| !it.revents().is_empty())
            .for_each(|(half, _)| half.refuse());
        // No process is left to notify: most likely the service has gone.
        if waiting[0].revents().intersects(PollFlags::HUP | PollFlags::ERR) {
            self.session.check_alive();
        }
        Ok(woken)
    }
}

/// The event of a slot, if there is anything to report.
#[inline]
fn look(session: &'static Session, slot: Slot, entry: &mut Entry, held: &mut Vec<u32>) -> Option<Event> {
    if !entry.watched {
        return None;
    }
    let socket = Socket { session, slot, generation: entry.generation };
    // The program has dropped it, or another socket uses the slot.
    if socket.private().used.load(Ordering::Acquire) != used::LIVE
        || socket.app().generation.load(Ordering::Relaxed) != entry.generation
    {
        entry.watched = false;
        return None;
    }
    let view = socket.view();
    let wanted = view.wants_room();
    if wanted {
        socket.event_seen();
    }
    let connecting = entry.connecting;
    if connecting {
        entry.connecting = view.state() == state::CONNECTING;
    }
    let readiness = Readiness::of(&view, wanted || connecting);
    if held::is_waited_for(&socket) && !held.contains(&slot.raw()) {
        held.push(slot.raw());
    }
    (!readiness.is_none()).then_some(Event { token: entry.token, readiness })
}

impl AsFd for Stack {
    fn as_fd(&self) -> BorrowedFd<'_> {
        sys::borrow(&self.context.wake)
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: the field is not used after this.
        let context = unsafe { ManuallyDrop::take(&mut self.context) };
        for (raw, entry) in self.entries.iter().enumerate().filter(|(_, entry)| entry.watched) {
            if let Some(slot) = self.session.region.slot(raw as u32) {
                let socket = Socket { session: self.session, slot, generation: entry.generation };
                if !socket.is_gone() {
                    socket.unsubscribe(context.bit());
                }
            }
        }
        context.close();
    }
}
