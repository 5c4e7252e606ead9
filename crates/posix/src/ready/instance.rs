//! Epoll instances. The program holds a real epoll descriptor, the native set. It watches kernel descriptors, and the
//! doorbells of the instance's event contexts. Slots are in the instance's interest list.

use crate::fd::table::{self, Descriptor};
use crate::ready::interest::{Interest, notice};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering, fence};
use libc::{c_int, epoll_event};
use rustix::fd::BorrowedFd;
use std::sync::OnceLock;
use towpath_client::context::{self, Context};
use towpath_client::lock::Lock;
use towpath_client::session::{self, SESSIONS, Session};
use towpath_client::socket::Socket;
use towpath_client::{descriptors, process, sys};
use towpath_hook::real;

mod nudge;
mod plain;

pub use plain::{Look, forget_plain};

/// The most instances of a process. Further epoll descriptors stay with the kernel and cannot watch slots.
const INSTANCES: usize = 1024;
const NO_CONTEXT: u32 = u32::MAX;
/// Bits of a context's number in [`Instance::context`], below those of its session's number.
const CONTEXT_BITS: u32 = 16;

/// How the program waits on an instance.
pub mod waits {
    /// Nobody has waited through the library. The kernel tells of the first event (see `interest::notice`).
    pub const UNSEEN: u8 = 0;
    /// Through the library.
    pub const LIBRARY: u8 = 1;
    /// By system calls of its own, so that the kernel has to tell of all events (see `past`).
    pub const OWN: u8 = 2;
}

/// One epoll instance. It is never freed, only reused: another thread may be waiting on it while it is closed.
pub struct Instance {
    lock: Lock,
    interest: UnsafeCell<Interest>,
    /// How many descriptors name the instance; 0 = not in use.
    copies: AtomicU32,
    fd: AtomicI32,
    /// The number of its context and that of the session, for threads that do not hold the lock.
    context: AtomicU32,
    /// The context's doorbell, for threads that do not hold the lock.
    wake: AtomicI32,
    /// Its contexts of other sessions, for threads that do not hold the lock; by session.
    others: OnceLock<Box<[Other; SESSIONS]>>,
    /// Threads asleep in `epoll_wait` (or in a `poll` on the epoll descriptor), which keep the context armed.
    sleepers: AtomicU32,
    /// `nudge` has put a descriptor into the native set.
    nudged: AtomicBool,
    /// When the kernel was last asked, in ticks of the time stamp counter.
    native_at: AtomicU64,
    /// The last call had no room left for the kernel's events.
    pub native_first: AtomicBool,
    /// `waits::*`. It changes under the lock.
    waits: AtomicU8,
    /// The session that the list is [plain](Interest::plain) for, if the last work on it has left it so; null = none. It changes
    /// under the lock, and in a forked child, which has one thread.
    plain: AtomicPtr<Session>,
}

/// A context at another stack, for threads that do not hold the lock.
#[derive(Default)]
struct Other {
    /// The context's number plus one; 0 = there is none.
    context: AtomicU32,
    /// The context's doorbell.
    wake: AtomicI32,
}

// SAFETY: `interest` is only accessed under the lock.
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
        waits: AtomicU8::new(waits::UNSEEN),
        plain: AtomicPtr::new(core::ptr::null_mut()),
    }
}; INSTANCES];
/// No instance from this number on has ever been used.
static HIGHEST: AtomicU32 = AtomicU32::new(0);

/// The instance of a number from the descriptor table.
#[inline]
pub fn instance(id: u32) -> &'static Instance {
    &ALL[id as usize % INSTANCES]
}

/// The native descriptor of an instance.
pub fn descriptor(id: u32) -> c_int {
    instance(id).fd.load(Ordering::Relaxed)
}

impl Instance {
    /// Works on the interest list, under its lock. `None` in a signal handler that has interrupted such work.
    #[inline]
    pub fn with<R>(&self, work: impl FnOnce(&mut Interest) -> R) -> Option<R> {
        let _locked = self.lock.lock()?;
        // SAFETY: the lock is held, so this is the only reference.
        let interest = unsafe { &mut *self.interest.get() };
        let result = work(interest);
        let plain = interest.plain().filter(|_| !self.native_first.load(Ordering::Relaxed));
        self.plain
            .store(plain.map_or(core::ptr::null_mut(), |own| core::ptr::from_ref(own).cast_mut()), Ordering::Relaxed);
        Some(result)
    }

    /// How the program waits on it: `waits::*`.
    #[inline]
    pub fn waits(&self) -> u8 {
        self.waits.load(Ordering::Relaxed)
    }

    /// A call of the library is about to ask the kernel for its events.
    #[inline]
    pub fn asked_by_library(&self) {
        if self.waits() == waits::UNSEEN {
            self.first_wait();
        }
    }

    #[cold]
    fn first_wait(&self) {
        self.with(|interest| self.waits_through_library(interest));
    }

    /// From now on the program counts as one that waits through the library.
    pub fn waits_through_library(&self, interest: &mut Interest) {
        if self.waits() != waits::UNSEEN {
            return;
        }
        self.waits.store(waits::LIBRARY, Ordering::Relaxed);
        interest.end_notice(self.descriptor(), self.mark());
        // A thread that is about to sleep has armed them for itself.
        if self.has_sleepers() {
            return;
        }
        self.each_context(context::disarm);
        fence(Ordering::SeqCst);
        if self.has_sleepers() {
            // One has looked before the contexts were disarmed, so it must look once more.
            self.each_context(context::arm);
            self.each_doorbell(towpath_ring::wake::notify);
        }
    }

    /// The program waits by system calls of its own: what the library watched for it, which is its caller's from now on.
    pub fn give_up(&self, interest: &mut Interest) -> Vec<(c_int, Socket, epoll_event)> {
        self.waits.store(waits::OWN, Ordering::Relaxed);
        let given_up = interest.take_all();
        self.no_contexts();
        for context in interest.take_contexts() {
            self.leave(&context);
            context.close();
        }
        given_up
    }

    /// The data that marks the library's own events in the native set.
    pub fn mark(&self) -> u64 {
        core::ptr::from_ref(self) as u64
    }

    /// Are there events in its contexts?
    #[inline]
    pub fn raised(&self) -> bool {
        self.own().is_some_and(|(session, id)| !context::is_empty(session, id))
            || self.others().any(|(session, id, _)| !context::is_empty(session, id))
    }

    /// Its context of the process's own session: session and number.
    #[inline]
    fn own(&self) -> Option<(&'static Session, u32)> {
        match self.context.load(Ordering::SeqCst) {
            NO_CONTEXT => None,
            word => Some((session::numbered(word >> CONTEXT_BITS)?, word & ((1 << CONTEXT_BITS) - 1))),
        }
    }

    /// Its contexts of other sessions: session, number and doorbell.
    #[inline]
    fn others(&self) -> impl Iterator<Item = (&'static Session, u32, i32)> {
        self.others.get().into_iter().flat_map(|others| others.iter().zip(0..)).filter_map(|(other, number)| {
            let id = other.context.load(Ordering::SeqCst).checked_sub(1)?;
            Some((session::numbered(number)?, id, other.wake.load(Ordering::SeqCst)))
        })
    }

    /// Do threads sleep on it?
    pub fn has_sleepers(&self) -> bool {
        self.sleepers.load(Ordering::SeqCst) != 0
    }

    fn each_context(&self, work: impl Fn(&Session, u32)) {
        if let Some((session, id)) = self.own() {
            work(session, id);
        }
        self.others().for_each(|(session, id, _)| work(session, id));
    }

    /// A thread is about to sleep on the native descriptor. It must look at the slots once more after this call.
    pub fn falling_asleep(&self) {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        self.each_context(context::arm);
    }

    /// A thread that slept on the native descriptor is awake.
    pub fn awake(&self) {
        let last = self.sleepers.fetch_sub(1, Ordering::SeqCst) == 1;
        if last {
            self.each_context(context::disarm);
        }
        // Another thread may have fallen asleep in between. A doorbell that has woken this thread is not armed for the
        // other one.
        if self.sleepers.load(Ordering::SeqCst) != 0 {
            self.each_context(context::arm);
        }
    }

    /// A thread is about to sleep while there is no session. After this call it must look once more whether there is
    /// one.
    pub fn falling_asleep_without_session(&self) {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
    }

    /// In a forked child: gives up the inherited context, which is the parent's.
    fn leave_parents(&self, interest: &mut Interest) {
        interest.take_contexts().for_each(|parents| descriptors::unprotect(parents.wake));
        interest.pid = process::pid();
        self.no_contexts();
    }

    fn no_contexts(&self) {
        self.context.store(NO_CONTEXT, Ordering::SeqCst);
        self.others.get().into_iter().flat_map(|others| others.iter()).for_each(|other| {
            other.context.store(0, Ordering::SeqCst);
        });
    }

    /// The process may have joined another service since: that session is the list's own from now on.
    fn settle(&self, interest: &mut Interest) {
        if let Some(own) = session::get()
            && interest.own != own.number
            && let Some(context) = interest.settle(own)
        {
            self.context.store(NO_CONTEXT, Ordering::SeqCst);
            self.leave(&context);
            context.close();
        }
    }

    /// Takes a context's doorbell out of the native set.
    fn leave(&self, context: &Context) {
        // SAFETY: for EPOLL_CTL_DEL the kernel reads no event, so null is allowed.
        unsafe { real::epoll_ctl(self.descriptor(), libc::EPOLL_CTL_DEL, context.wake, core::ptr::null_mut()) };
    }

    /// Makes sure that the instance has a context of this process at the session's stack.
    pub fn subscribe(&self, session: &'static Session, interest: &mut Interest) {
        if interest.pid != process::pid() {
            self.leave_parents(interest);
        }
        self.settle(interest);
        if interest.context_at(session.number).is_some() {
            return;
        }
        let Some(context) = Context::open(session) else { return };
        let mut event = epoll_event { events: (libc::EPOLLIN | libc::EPOLLET) as u32, u64: self.mark() };
        if self.waits() == waits::UNSEEN {
            // The program may be waiting past the library, and does not know the mark.
            event.events = 0;
        }
        let fd = self.fd.load(Ordering::Relaxed);
        // SAFETY: `event` lives until the call returns.
        if unsafe { real::epoll_ctl(fd, libc::EPOLL_CTL_ADD, context.wake, &raw mut event) } != 0 {
            context.close();
            return;
        }
        if session.number == interest.own {
            self.wake.store(context.wake, Ordering::SeqCst);
            self.context.store(session.number << CONTEXT_BITS | context.id, Ordering::SeqCst);
        } else {
            let other = &self.others.get_or_init(Box::default)[session.number as usize];
            other.wake.store(context.wake, Ordering::SeqCst);
            other.context.store(context.id + 1, Ordering::SeqCst);
        }
        if self.sleepers.load(Ordering::SeqCst) != 0 {
            context.arm();
        }
        interest.put_context(context);
        interest.subscribe_all(session);
        interest.look_at_all();
    }

    /// Notes that the kernel has been asked.
    pub fn looked_at_native(&self) {
        self.native_at.store(sys::ticks(), Ordering::Relaxed);
    }

    /// Ticks since the kernel was asked.
    pub fn since_native_look(&self) -> u64 {
        sys::ticks().wrapping_sub(self.native_at.load(Ordering::Relaxed))
    }

    /// The native descriptor.
    pub fn descriptor(&self) -> c_int {
        self.fd.load(Ordering::Relaxed)
    }

    /// Empties the doorbells after they have notified, so that the next notification is seen.
    pub fn silence(&self) {
        self.each_doorbell(|wake| _ = towpath_ring::wake::drain(wake));
    }

    /// Rings as a stack does that is late with an event of the context's former instance.
    #[cfg(test)]
    pub fn ring_late(&self) {
        self.each_doorbell(towpath_ring::wake::notify);
    }

    fn each_doorbell(&self, work: impl Fn(BorrowedFd<'_>)) {
        let wake = self.wake.load(Ordering::Relaxed);
        if self.context.load(Ordering::Relaxed) != NO_CONTEXT && wake >= 0 {
            work(sys::borrow(&wake));
        }
        self.others().for_each(|(_, _, wake)| work(sys::borrow(&wake)));
    }
}

/// A thread's sleep on the instance of this number ends.
pub fn awake_at_last(id: usize) {
    instance(id as u32).awake();
}

/// The numbers of all instances in use.
pub fn numbers() -> impl Iterator<Item = u32> {
    (0..HIGHEST.load(Ordering::Relaxed)).filter(|id| instance(*id).copies.load(Ordering::Relaxed) != 0)
}

/// Works on the interest lists of all instances in use.
pub fn each(mut work: impl FnMut(u32, &mut Interest)) {
    for id in numbers() {
        instance(id).with(|interest| work(id, interest));
    }
}

/// [`each`], but only instances that may watch a slot with a subscription to one of these contexts (bits).
pub fn each_subscribed(contexts: u64, mut work: impl FnMut(u32, &mut Interest)) {
    for id in 0..HIGHEST.load(Ordering::Relaxed) {
        let instance = instance(id);
        let told = match instance.context.load(Ordering::Relaxed) {
            NO_CONTEXT => true,
            context => contexts & 1 << (context & 63) != 0,
        };
        if told && instance.copies.load(Ordering::Relaxed) != 0 {
            instance.with(|interest| work(id, interest));
        }
    }
}

/// A session has ended, and another may get its number.
pub fn forget_session(number: u32) {
    each(|id, interest| {
        let instance = instance(id);
        instance.settle(interest);
        if let Some(other) = instance.others.get().and_then(|others| others.get(number as usize)) {
            other.context.store(0, Ordering::SeqCst);
        }
        if let Some(context) = interest.forget_session(number) {
            instance.leave(&context);
            descriptors::unprotect(context.wake);
        }
    });
}

/// Makes an instance of an epoll descriptor, which may be one that the program does not know. `None`: all are in use.
pub fn claimed(fd: c_int) -> Option<u32> {
    for (id, instance) in ALL.iter().enumerate() {
        if instance.copies.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            HIGHEST.fetch_max(id as u32 + 1, Ordering::Relaxed);
            instance.fd.store(fd, Ordering::Relaxed);
            instance.waits.store(waits::UNSEEN, Ordering::Relaxed);
            return Some(id as u32);
        }
    }
    None
}

/// In a forked child: gives up an instance that only the parent uses.
pub fn disowned(id: u32) {
    let instance = instance(id);
    let cleared = instance.with(|interest| interest.clear(false));
    cleared.into_iter().flatten().for_each(|context| descriptors::unprotect(context.wake));
    instance.no_contexts();
    instance.copies.store(0, Ordering::Release);
}

/// The instance has one more descriptor.
pub fn copied(id: u32) {
    instance(id).copies.fetch_add(1, Ordering::AcqRel);
}

/// Has the instance one descriptor only?
pub fn is_last(id: u32) -> bool {
    instance(id).copies.load(Ordering::Acquire) == 1
}

/// The descriptor `fd` of the instance is closed. With the last one it ends.
pub fn closed(id: u32, fd: c_int) {
    let instance = instance(id);
    if instance.copies.load(Ordering::Acquire) != 1 && instance.descriptor() == fd {
        // It goes on under the number of a copy.
        let copy = table::within(0, u32::MAX).find(|(_, kind)| *kind == Descriptor::Epoll(id));
        if let Some((copy, _)) = copy {
            instance.fd.store(copy, Ordering::Relaxed);
            instance.with(|interest| interest.halves.moved(copy));
        }
    }
    if instance.copies.load(Ordering::Acquire) == 1 {
        let cleared = instance.with(|interest| {
            let ours = interest.pid == process::pid();
            (ours, interest.clear(ours))
        });
        instance.no_contexts();
        let (ours, contexts) = cleared.unwrap_or_default();
        for context in contexts {
            if ours {
                // A copy of the descriptor in another process may keep the native set alive.
                instance.leave(&context);
                context.close();
            } else {
                // The doorbell belongs to the parent, which may still wait on it in this native set.
                descriptors::unprotect(context.wake);
            }
        }
    }
    instance.copies.fetch_sub(1, Ordering::AcqRel);
}

/// Before a fork: both processes will have the native sets, and the child would be told of the parent's first event.
pub fn forking() {
    if notice::is_any() {
        each(|id, interest| {
            if interest.has_notice() {
                instance(id).waits_through_library(interest);
            }
        });
    }
}

/// In a forked child: the threads that hold locks or sleep do not exist.
pub fn forked() {
    for instance in ALL.iter().take(HIGHEST.load(Ordering::Relaxed) as usize) {
        instance.lock.reset();
        instance.sleepers.store(0, Ordering::Relaxed);
    }
}

/// Makes an instance that was inherited over `fork` this process's own. Called before each wait.
#[inline(always)]
pub fn own(instance: &Instance, session: &'static Session, interest: &mut Interest) {
    if interest.pid != process::pid()
        || interest.own != session.number
        || (interest.watched > 0 && interest.context.is_none())
    {
        become_own(instance, session, interest);
    }
}

#[cold]
fn become_own(instance: &Instance, session: &'static Session, interest: &mut Interest) {
    if interest.pid != process::pid() {
        instance.leave_parents(interest);
    }
    instance.settle(interest);
    if interest.watched > 0 && interest.context.is_none() {
        instance.subscribe(session, interest);
    }
    for other in session::all().filter(|other| other.can_subscribe && other.number != session.number) {
        if interest.watches_of(other.number) {
            instance.subscribe(other, interest);
        }
    }
}
