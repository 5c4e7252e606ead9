//! Epoll instances: `epoll_create`, `epoll_ctl`. The program holds a real epoll descriptor, which watches the kernel's
//! descriptors and one eventfd of ours; slots are in the instance's interest list.

use crate::context::{self, Context};
use crate::interest::Interest;
use crate::lock::Lock;
use crate::session::{self, SESSIONS, Session};
use crate::socket::Socket;
use crate::sys::{self, Sys};
use crate::table::{self, Kind};
use crate::{fork, nested, readiness, user};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use libc::{c_int, epoll_event};
use std::sync::OnceLock;
use towpath_hook::{Answer, outcome, real};

/// Instances of one process at most; further ones are the kernel's and cannot watch slots.
const INSTANCES: usize = 1024;
const NO_CONTEXT: u32 = u32::MAX;
const LAST_CONTEXT: u32 = NO_CONTEXT - 1;

/// One epoll instance. Never freed, only used again: another thread may be waiting on it while it is closed.
pub struct Instance {
    lock: Lock,
    interest: UnsafeCell<Interest>,
    /// Descriptors of it; 0 = not in use.
    copies: AtomicU32,
    fd: AtomicI32,
    /// Number of the context, for threads that do not hold the lock.
    context: AtomicU32,
    /// The context's bell, likewise.
    wake: AtomicI32,
    /// The same of contexts at other stacks, by session from 1 on.
    others: OnceLock<Box<[Other; SESSIONS - 1]>>,
    /// Threads asleep in `epoll_wait` (or in a `poll` on the epoll descriptor), which keep the context armed.
    sleepers: AtomicU32,
    /// `nudge` has left something in the native set.
    nudged: AtomicBool,
    /// When the kernel was asked last, in ticks.
    native_at: AtomicU64,
    /// A call that should have asked it had no room.
    pub native_first: AtomicBool,
}

/// A context at another stack, for threads that do not hold the lock.
#[derive(Default)]
struct Other {
    /// Its number and one; 0 = there is none.
    context: AtomicU32,
    /// Its bell.
    wake: AtomicI32,
}

// SAFETY: the interest list is only used under the lock.
unsafe impl Sync for Instance {}

static ALL: [Instance; INSTANCES] = [const {
    Instance {
        lock: Lock::new(),
        interest: UnsafeCell::new(Interest::new()),
        copies: AtomicU32::new(0),
        fd: AtomicI32::new(-1),
        context: AtomicU32::new(NO_CONTEXT),
        wake: AtomicI32::new(-1),
        others: OnceLock::new(),
        sleepers: AtomicU32::new(0),
        nudged: AtomicBool::new(false),
        native_at: AtomicU64::new(0),
        native_first: AtomicBool::new(false),
    }
}; INSTANCES];
/// No instance from this number on has ever been in use.
static HIGHEST: AtomicU32 = AtomicU32::new(0);

/// The instance of a number from the descriptor table.
#[inline]
pub fn instance(id: u32) -> &'static Instance {
    &ALL[id as usize % INSTANCES]
}

/// Its descriptor.
pub fn descriptor(id: u32) -> c_int {
    instance(id).fd.load(Ordering::Relaxed)
}

impl Instance {
    /// Works on the interest list; `None` in a signal handler that has interrupted such work.
    #[inline]
    pub fn with<R>(&self, work: impl FnOnce(&mut Interest) -> R) -> Option<R> {
        let _locked = self.lock.lock()?;
        // SAFETY: locked.
        Some(work(unsafe { &mut *self.interest.get() }))
    }

    /// [`Instance::with`] if that takes no waiting.
    #[inline(always)]
    pub fn try_with<R>(&self, work: impl FnOnce(&mut Interest) -> R) -> Option<R> {
        let _locked = self.lock.try_lock(false)?;
        // SAFETY: locked.
        Some(work(unsafe { &mut *self.interest.get() }))
    }

    /// The mark by which events of our own eventfd are known among the native ones.
    pub fn mark(&self) -> u64 {
        core::ptr::from_ref(self) as u64
    }

    /// Has a stack raised anything?
    #[inline]
    pub fn raised(&self, session: &Session) -> bool {
        let home = match self.context.load(Ordering::Relaxed) {
            NO_CONTEXT => false,
            id => !context::is_empty(session, id),
        };
        home || self.others().any(|(session, id, _)| !context::is_empty(session, id))
    }

    /// Its contexts at other stacks: session, number and bell.
    #[inline]
    fn others(&self) -> impl Iterator<Item = (&'static Session, u32, i32)> {
        self.others.get().into_iter().flat_map(|others| others.iter().zip(1..)).filter_map(|(other, number)| {
            let id = other.context.load(Ordering::SeqCst).checked_sub(1)?;
            Some((session::numbered(number)?, id, other.wake.load(Ordering::SeqCst)))
        })
    }

    fn each_context(&self, session: &Session, work: impl Fn(&Session, u32)) {
        if let id @ 0..=LAST_CONTEXT = self.context.load(Ordering::SeqCst) {
            work(session, id);
        }
        self.others().for_each(|(session, id, _)| work(session, id));
    }

    /// About to sleep on the native descriptor. Afterwards look once more.
    pub fn falling_asleep(&self, session: &Session) {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        self.each_context(session, context::arm);
    }

    /// Awake again.
    pub fn awake(&self, session: &Session) {
        let last = self.sleepers.fetch_sub(1, Ordering::SeqCst) == 1;
        if last {
            self.each_context(session, context::disarm);
        }
        // Another thread may have fallen asleep in between; and a bell that was rung for this one is not armed for others any more.
        if self.sleepers.load(Ordering::SeqCst) != 0 {
            self.each_context(session, context::arm);
        }
    }

    /// As `falling_asleep`, before there is a session. Afterwards look once more whether there is one.
    pub fn falling_asleep_unserved(&self) {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
    }

    /// Awake again, with a session or still without one.
    pub fn awake_at_last(&self) {
        match session::get() {
            Some(session) => self.awake(session),
            None => _ = self.sleepers.fetch_sub(1, Ordering::SeqCst),
        }
    }

    /// In a forked child the inherited context is the parent's.
    fn leave_parents(&self, interest: &mut Interest) {
        interest.take_contexts().for_each(|parents| session::unprotect(parents.wake));
        interest.pid = fork::pid();
        self.no_contexts();
    }

    fn no_contexts(&self) {
        self.context.store(NO_CONTEXT, Ordering::SeqCst);
        self.others.get().into_iter().flat_map(|others| others.iter()).for_each(|other| {
            other.context.store(0, Ordering::SeqCst);
        });
    }

    /// Makes sure that there is a context of this process at the session's stack.
    fn subscribe(&self, session: &'static Session, interest: &mut Interest) {
        if interest.pid != fork::pid() {
            self.leave_parents(interest);
        }
        if interest.context_at(session.number).is_some() {
            return;
        }
        let Some(context) = Context::open(session) else { return };
        let mut event = epoll_event { events: (libc::EPOLLIN | libc::EPOLLET) as u32, u64: self.mark() };
        let fd = self.fd.load(Ordering::Relaxed);
        // SAFETY: a valid event.
        if unsafe { real::epoll_ctl(fd, libc::EPOLL_CTL_ADD, context.wake, &raw mut event) } != 0 {
            context.close(session);
            return;
        }
        match session.number.checked_sub(1) {
            None => {
                self.wake.store(context.wake, Ordering::SeqCst);
                self.context.store(context.id, Ordering::SeqCst);
            }
            Some(at) => {
                let other = &self.others.get_or_init(Box::default)[at as usize];
                other.wake.store(context.wake, Ordering::SeqCst);
                other.context.store(context.id + 1, Ordering::SeqCst);
            }
        }
        if self.sleepers.load(Ordering::SeqCst) != 0 {
            context.arm(session);
        }
        interest.put_context(context);
        interest.subscribe_all(session);
        interest.look_at_all();
    }

    /// The kernel has been asked.
    pub fn looked_at_native(&self) {
        self.native_at.store(sys::ticks(), Ordering::Relaxed);
    }

    /// Ticks since the kernel was asked.
    pub fn since_native_look(&self) -> u64 {
        sys::ticks().wrapping_sub(self.native_at.load(Ordering::Relaxed))
    }

    /// Its native descriptor.
    pub fn descriptor(&self) -> c_int {
        self.fd.load(Ordering::Relaxed)
    }

    /// After the bell's event came: silences it, so that the next ring is heard.
    pub fn silence(&self) {
        let wake = self.wake.load(Ordering::Relaxed);
        if self.context.load(Ordering::Relaxed) != NO_CONTEXT && wake >= 0 {
            towpath_ring::wake::drain(session::borrow(&wake));
        }
        self.others().for_each(|(_, _, wake)| _ = towpath_ring::wake::drain(session::borrow(&wake)));
    }

    /// Wakes a thread of this process that sleeps on it: an eventfd that is always readable is put into the native set
    /// (or put on again), which counts as an edge.
    pub fn nudge(&self) {
        if self.sleepers.load(Ordering::SeqCst) == 0 {
            return;
        }
        let Some(ready) = always_readable() else { return };
        self.nudged.store(true, Ordering::SeqCst);
        let events = (libc::EPOLLIN | libc::EPOLLET | libc::EPOLLONESHOT) as u32;
        let mut event = epoll_event { events, u64: self.mark() };
        let fd = self.fd.load(Ordering::Relaxed);
        // SAFETY: a valid event.
        unsafe {
            if real::epoll_ctl(fd, libc::EPOLL_CTL_MOD, ready, &raw mut event) != 0 {
                real::epoll_ctl(fd, libc::EPOLL_CTL_ADD, ready, &raw mut event);
            }
        }
    }
}

impl Instance {
    /// Takes what `nudge` has put into the native set out again.
    pub fn calm(&self) {
        if self.nudged.swap(false, Ordering::SeqCst)
            && let Some(ready) = always_readable()
        {
            // SAFETY: a deletion reads no event.
            unsafe { real::epoll_ctl(self.descriptor(), libc::EPOLL_CTL_DEL, ready, core::ptr::null_mut()) };
        }
    }
}

/// One eventfd of this process that is always readable.
fn always_readable() -> Option<c_int> {
    static READY: AtomicI32 = AtomicI32::new(-1);
    let fd = READY.load(Ordering::Acquire);
    if fd >= 0 {
        return Some(fd);
    }
    let made = towpath_ring::wake::doorbell().ok()?;
    towpath_ring::wake::ring(rustix::fd::AsFd::as_fd(&made));
    let made = session::protect(made).ok()?;
    match READY.compare_exchange(-1, made, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => Some(made),
        Err(other) => {
            session::unprotect(made);
            Some(other)
        }
    }
}

/// Works on the interest lists of all instances in use.
pub fn each(mut work: impl FnMut(u32, &mut Interest)) {
    for id in 0..HIGHEST.load(Ordering::Relaxed) {
        if instance(id).copies.load(Ordering::Relaxed) != 0 {
            instance(id).with(|interest| work(id, interest));
        }
    }
}

/// As `each`, but only those that may watch a slot whose events go to these contexts.
pub fn each_told(contexts: u64, mut work: impl FnMut(&mut Interest)) {
    for id in 0..HIGHEST.load(Ordering::Relaxed) {
        let instance = instance(id);
        let told = match instance.context.load(Ordering::Relaxed) {
            NO_CONTEXT => true,
            context => contexts & 1 << (context & 63) != 0,
        };
        if told && instance.copies.load(Ordering::Relaxed) != 0 {
            instance.with(&mut work);
        }
    }
}

/// The session of this number (from 1 on) has ended and another will have the number.
pub fn forget_session(number: u32) {
    each(|id, interest| {
        let instance = instance(id);
        let Some(other) = instance.others.get().and_then(|others| others.get(number as usize - 1)) else { return };
        other.context.store(0, Ordering::SeqCst);
        if let Some(context) = interest.forget_session(number) {
            // SAFETY: a deletion reads no event.
            unsafe { real::epoll_ctl(instance.descriptor(), libc::EPOLL_CTL_DEL, context.wake, core::ptr::null_mut()) };
            session::unprotect(context.wake);
        }
    });
}

/// A new epoll descriptor of the kernel's becomes an instance.
pub fn created(fd: c_int) {
    if let Some(id) = claimed(fd) {
        table::set(fd, Kind::Epoll(id));
    }
}

/// The instance that one becomes, of which the program need not know.
pub fn claimed(fd: c_int) -> Option<u32> {
    for (id, instance) in ALL.iter().enumerate() {
        if instance.copies.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            HIGHEST.fetch_max(id as u32 + 1, Ordering::Relaxed);
            instance.fd.store(fd, Ordering::Relaxed);
            return Some(id as u32);
        }
    }
    None
}

/// In a forked child: one that only its parent uses.
pub fn disowned(id: u32) {
    let instance = instance(id);
    let cleared = instance.with(|interest| interest.clear(false));
    cleared.into_iter().flatten().for_each(|context| session::unprotect(context.wake));
    instance.no_contexts();
    instance.copies.store(0, Ordering::Release);
}

/// One more descriptor of an instance.
pub fn copied(id: u32) {
    instance(id).copies.fetch_add(1, Ordering::AcqRel);
}

/// One descriptor less.
pub fn closed(id: u32) {
    let instance = instance(id);
    if instance.copies.load(Ordering::Acquire) == 1 {
        let cleared = instance.with(|interest| {
            let ours = interest.pid == fork::pid();
            (ours, interest.clear(ours))
        });
        instance.no_contexts();
        let (ours, contexts) = cleared.unwrap_or_default();
        for context in contexts {
            match session::numbered(context.session) {
                Some(session) if ours => {
                    let fd = instance.fd.load(Ordering::Relaxed);
                    // A copy of the descriptor in another process keeps the native set alive.
                    // SAFETY: a deletion reads no event.
                    unsafe { real::epoll_ctl(fd, libc::EPOLL_CTL_DEL, context.wake, core::ptr::null_mut()) };
                    context.close(session);
                }
                // The bell is the parent's, who may go on waiting in the set that is still one.
                _ => session::unprotect(context.wake),
            }
        }
    }
    instance.copies.fetch_sub(1, Ordering::AcqRel);
}

/// In a forked child: locks of threads that do not exist here.
pub fn forked() {
    for instance in ALL.iter().take(HIGHEST.load(Ordering::Relaxed) as usize) {
        instance.lock.reset();
        instance.sleepers.store(0, Ordering::Relaxed);
    }
}

/// `epoll_ctl`.
///
/// # Safety
/// The contract of `epoll_ctl`: `event` is null or valid.
pub unsafe fn control(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> Answer<c_int> {
    let (Kind::Epoll(id), kind) = (table::get(epfd), table::get(fd)) else { return None };
    if kind == Kind::Internal {
        return Some(Err(libc::EBADF));
    }
    if let Kind::Slot { slot, generation } = kind {
        // SAFETY: the program's memory; any bytes are an event.
        let event = unsafe { user::read(event) }.ok();
        let socket = Socket::at(slot, generation)?;
        return Some(control_slot(id, op, fd, &socket, event.as_ref()));
    }
    if let (Kind::Epoll(inner), true) = (kind, session::get().is_some()) {
        // SAFETY: as above.
        let event = unsafe { user::read(event) }.ok();
        return Some(nested::control(id, op, fd, inner, event.as_ref()));
    }
    // SAFETY: as above.
    let done = outcome(unsafe { real::epoll_ctl(epfd, op, fd, event) });
    if done.is_ok() {
        instance(id).with(|interest| {
            interest.undecided.retain(|(watched, _)| *watched != fd);
            match op {
                libc::EPOLL_CTL_ADD => interest.native += 1,
                libc::EPOLL_CTL_DEL => interest.native = interest.native.saturating_sub(1),
                _ => {}
            }
            if let (Kind::Undecided(_) | Kind::Epoll(_), false) = (kind, op == libc::EPOLL_CTL_DEL) {
                // SAFETY: as above, and the kernel has read it.
                interest.undecided.push((fd, unsafe { event.read_unaligned() }));
            }
        });
    }
    Some(done)
}

/// `epoll_ctl` on a socket in a slot.
pub fn control_slot(id: u32, op: c_int, fd: c_int, socket: &Socket, event: Option<&epoll_event>) -> Sys<c_int> {
    let instance = instance(id);
    let changed = instance.with(|interest| {
        if op == libc::EPOLL_CTL_DEL {
            return interest.remove(fd, socket, interest.pid == fork::pid());
        }
        let event = event.ok_or(libc::EFAULT)?;
        let own = (!socket.is_foreign()).then_some(socket.session);
        session::get().into_iter().chain(own).for_each(|session| instance.subscribe(session, interest));
        match op {
            libc::EPOLL_CTL_ADD => interest.add(fd, socket, event)?,
            libc::EPOLL_CTL_MOD => interest.modify(fd, socket, event)?,
            _ => return Err(libc::EINVAL),
        }
        // A thread that sleeps has armed the pairs that there were then.
        if !socket.is_foreign()
            && socket.direct().is_some()
            && instance.sleepers.load(Ordering::SeqCst) != 0
            && let Some(context) = interest.context_at(socket.session.number)
        {
            context.arm(socket.session);
        }
        if readiness::events_for(socket, event.events) != 0 {
            interest.activity = interest.activity.wrapping_add(1);
            instance.nudge();
        }
        Ok(())
    });
    changed.unwrap_or(Err(libc::EAGAIN)).map(|()| 0)
}

/// For a wait: makes an inherited instance this process's own.
#[inline(always)]
pub fn own(instance: &Instance, session: &'static Session, interest: &mut Interest) {
    if interest.pid != fork::pid() || (interest.watched > 0 && interest.context.is_none()) {
        become_own(instance, session, interest);
    }
}

#[cold]
fn become_own(instance: &Instance, session: &'static Session, interest: &mut Interest) {
    if interest.pid != fork::pid() {
        instance.leave_parents(interest);
    }
    if interest.watched > 0 && interest.context.is_none() {
        instance.subscribe(session, interest);
    }
    for other in session::all().skip(1).filter(|other| other.tells) {
        if interest.watches_of(other.number) {
            instance.subscribe(other, interest);
        }
    }
}
