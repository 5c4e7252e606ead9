//! `poll` over slots, kernel descriptors and epoll instances.

use crate::fd::table::{self, Descriptor};
use crate::io::user;
use crate::ready::{hints, instance, nested, readiness, service_death};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use core::time::Duration;
use libc::{c_int, nfds_t, pollfd, sigset_t};
use std::time::Instant;
use towpath_client::context::Context;
use towpath_client::liveness::LIFE_CHECK;
use towpath_client::session::{self, Session};
use towpath_client::sleep::Sleep;
use towpath_client::socket::{SLOT_BITS, Socket};
use towpath_client::sys::{self, Sys};
use towpath_client::undo_log::Undo;
use towpath_client::{direct, held, wait};
use towpath_hook::Answer;
use towpath_ring::wake::spin_until;

/// Up to this many descriptors are handled without allocating memory.
const ON_STACK: usize = 64;
/// With a shorter time-out than this no `poll` spins for the longer time.
const SHORT: Duration = Duration::from_millis(1);
/// The longest sleep if no context was to be had.
const WITHOUT_CONTEXT: Duration = Duration::from_millis(1);

/// The most calls with ready slots before the kernel halves of listeners are asked.
const HALVES_EVERY: u32 = 16;
/// The longest time for which ready slots keep them from being asked, in ticks of the time stamp counter: 10 to 50 µs.
const HALVES_TICKS: u64 = 50_000;

/// Does one of these descriptors need the library?
pub fn concerns(fds: &[pollfd]) -> bool {
    fds.iter().any(|p| matches!(table::get(p.fd), Descriptor::Slot { .. } | Descriptor::Epoll(_)))
}

/// `poll` and `ppoll`. `timeout` `None` = no limit.
///
/// # Safety
/// The contract of `ppoll`: `fds` is null or has `n` entries, `mask` is null or valid.
pub unsafe fn poll(fds: *mut pollfd, n: nfds_t, timeout: Option<Duration>, mask: *const sigset_t) -> Answer<c_int> {
    service_death::look();
    if n == 0 || fds.is_null() || n > 1 << 20 {
        return None;
    }
    // SAFETY: both functions accept any address of the program.
    if unsafe {
        user::is_there(fds, n as usize).is_err() || (!mask.is_null() && user::read(mask.cast::<u64>()).is_err())
    } {
        return None;
    }
    // SAFETY: the caller keeps the contract of `poll`: `n` entries, which have just been touched.
    let fds = unsafe { core::slice::from_raw_parts_mut(fds, n as usize) };
    if !concerns(fds) {
        return None;
    }
    Some(run(fds, timeout, mask).map(|n| n as c_int))
}

/// `poll` and `select` on an array.
pub fn run(fds: &mut [pollfd], timeout: Option<Duration>, mask: *const sigset_t) -> Sys<usize> {
    let session = session::get().ok_or(libc::EINVAL)?;
    if fds.iter().any(|entry| table::socket(entry.fd).is_some_and(|socket| service_death::is_left_alone(&socket))) {
        service_death::give_back();
        if !concerns(fds) {
            return sys::ppoll(fds, timeout, mask);
        }
    }
    let blank = pollfd { fd: -1, events: 0, revents: 0 };
    // The kernel's array has all descriptors but those of slots. At its end are the doorbells, one for each stack.
    let len = fds.len() + 1 + others(fds);
    if len <= ON_STACK {
        let mut native = [blank; ON_STACK];
        Poll::new(session, fds, &mut native[..len], mask).run(timeout)
    } else {
        let mut native = vec![blank; len];
        Poll::new(session, fds, &mut native, mask).run(timeout)
    }
}

/// The number of other stacks that carry some of these sockets.
fn others(fds: &[pollfd]) -> usize {
    let sessions = fds.iter().fold(0u64, |sessions, entry| match table::get(entry.fd) {
        Descriptor::Slot { slot, .. } => sessions | 1 << (slot >> SLOT_BITS & 63),
        _ => sessions,
    });
    (sessions & !1).count_ones() as usize
}

/// The descriptors for which the kernel must be asked.
#[derive(Clone, Copy, Default)]
struct Native {
    /// There are others than slots.
    kernels: bool,
    /// There are listeners with a kernel half.
    halves: bool,
}

/// Fills the kernel's array with the descriptors that are not slots, and with the listeners that have a kernel half.
fn sort(fds: &[pollfd], native: &mut [pollfd]) -> Native {
    let mut found = Native::default();
    for (entry, native) in fds.iter().zip(native.iter_mut()) {
        let socket = table::socket(entry.fd);
        let half = socket.is_some_and(|socket| socket.kernel_half());
        let ours = entry.fd < 0 || (socket.is_some() && !half);
        *native = pollfd { fd: if ours { -1 } else { entry.fd }, revents: 0, ..*entry };
        found.kernels |= !ours && !half;
        found.halves |= half;
    }
    found
}

/// Must a `poll` that has found slots ready ask the kernel halves of listeners too? In every sixteenth call of the
/// process, or after some time. So they are not starved, and a busy program pays little for them.
fn halves_are_due() -> bool {
    static ASKED: AtomicU64 = AtomicU64::new(0);
    static SINCE: AtomicU32 = AtomicU32::new(0);
    let now = sys::ticks();
    let due = SINCE.fetch_add(1, Ordering::Relaxed) >= HALVES_EVERY
        || now.wrapping_sub(ASKED.load(Ordering::Relaxed)) >= HALVES_TICKS;
    if due {
        ASKED.store(now, Ordering::Relaxed);
        SINCE.store(1, Ordering::Relaxed);
    }
    due
}

struct Poll<'a> {
    session: &'static Session,
    fds: &'a mut [pollfd],
    native: &'a mut [pollfd],
    mask: *const sigset_t,
    kernels: Native,
}

impl<'a> Poll<'a> {
    fn new(session: &'static Session, fds: &'a mut [pollfd], native: &'a mut [pollfd], mask: *const sigset_t) -> Self {
        let kernels = sort(fds, native);
        Self { session, fds, native, mask, kernels }
    }

    fn run(&mut self, timeout: Option<Duration>) -> Sys<usize> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let at_once = timeout == Some(Duration::ZERO);
        let mut ready = self.slots();
        if ready > 0 || at_once || self.kernels.kernels {
            let asks = self.kernels.kernels || (self.kernels.halves && (at_once || halves_are_due()));
            ready = self.ask(asks.then_some(Duration::ZERO))?;
            if ready > 0 || at_once {
                return Ok(ready);
            }
        }
        if let [one] = &*self.fds
            && let (Some(socket), true, false) = (table::socket(one.fd), self.mask.is_null(), self.kernels.halves)
        {
            let interest = interest_of(one);
            let waited = wait::until_signal(&socket, deadline, || readiness::events_for(&socket, interest) != 0);
            return match waited {
                // The socket may have become the kernel's meanwhile, or have been closed.
                Ok(()) | Err(libc::EAGAIN) if table::socket(one.fd).is_none() => {
                    sys::ppoll(self.fds, Some(Duration::ZERO), core::ptr::null())
                }
                Ok(()) | Err(libc::EAGAIN) => Ok(self.slots()),
                Err(errno) => Err(errno),
            };
        }
        if self.spin(deadline) {
            return self.ask(self.kernels.kernels.then_some(Duration::ZERO));
        }
        self.block(deadline)
    }

    /// Sets `revents` of slots and instances. Returns how many have events.
    fn slots(&mut self) -> usize {
        let mut ready = 0;
        for entry in self.fds.iter_mut() {
            entry.revents = 0;
            match table::get(entry.fd) {
                Descriptor::Slot { slot, generation } => {
                    if let Some(socket) = Socket::at(slot, generation) {
                        entry.revents = readiness::events_for(&socket, interest_of(entry)) as i16;
                    }
                }
                Descriptor::Epoll(id) => {
                    let shown = entry.events & (libc::POLLIN | libc::POLLRDNORM);
                    if shown != 0 && nested::is_ready(id) {
                        entry.revents = shown;
                    }
                }
                _ => {}
            }
            ready += usize::from(entry.revents != 0);
        }
        ready
    }

    /// Looks at all descriptors. The kernel is asked if a time is given, and sleeps for up to that.
    fn ask(&mut self, time: Option<Duration>) -> Sys<usize> {
        if time.is_some() {
            sys::ppoll(self.native, time, self.mask)?;
        }
        self.slots();
        let mut ready = 0;
        for (entry, native) in self.fds.iter_mut().zip(self.native.iter()) {
            // The native event of an instance may be a doorbell's, which is not for the program.
            if native.fd >= 0 && !matches!(table::get(entry.fd), Descriptor::Epoll(_)) {
                entry.revents |= native.revents;
                if self.kernels.halves && native.revents & libc::POLLIN != 0 {
                    table::socket(entry.fd).inspect(hints::kernel_said_ready);
                }
            }
            ready += usize::from(entry.revents != 0);
        }
        Ok(ready)
    }

    /// Spins before a sleep. Each look is at all sockets of the library, and at no descriptor of the kernel's. So the longer time for
    /// direct connections is only for few descriptors, none of the kernel's, and for a time-out that is longer still.
    fn spin(&mut self, deadline: wait::Deadline) -> bool {
        let (session, few) = (self.session, self.fds.len() <= ON_STACK && !self.kernels.kernels);
        let is_short = deadline.is_some_and(|deadline| deadline.saturating_duration_since(Instant::now()) < SHORT);
        if few && !is_short {
            direct::spin(session, || self.slots() > 0)
        } else {
            spin_until(session.spin_us, || self.slots() > 0)
        }
    }

    fn block(&mut self, deadline: wait::Deadline) -> Sys<usize> {
        let known = self.fds.len();
        let subscription =
            Box::into_raw(Box::new(Subscription::new(self.session, self.fds, self.native.len() - known)));
        let asleep = Sleep::on(None, Undo::Number(unsubscribe, subscription.expose_provenance()));
        // SAFETY: the box lives until `asleep`, which outlasts this reference, is dropped.
        let subscription = unsafe { &*subscription };
        for (context, native) in subscription.contexts.iter().zip(&mut self.native[known..]) {
            *native = pollfd { fd: context.wake, events: libc::POLLIN, revents: 0 };
        }
        let longest = if subscription.is_subscribed() { LIFE_CHECK } else { WITHOUT_CONTEXT };
        loop {
            session::gone(false);
            service_death::look();
            subscription.each(Context::arm);
            let mut time = longest;
            if let Some(deadline) = deadline {
                time = time.min(deadline.saturating_duration_since(Instant::now()));
            }
            let time = if self.slots() > 0 { Duration::ZERO } else { held::sleep_of(time) };
            let asks = self.kernels.kernels || !time.is_zero();
            let ready = asleep.interrupted(self.ask(asks.then_some(time)))?;
            if ready > 0 || deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Ok(ready);
            }
            asleep.check()?;
            subscription.contexts.iter().for_each(|context| _ = towpath_ring::wake::drain(sys::borrow(&context.wake)));
            // A descriptor may have become the kernel's meanwhile, or have been closed.
            if session::gone(true) != 0 {
                // A doorbell whose service has died would wake this thread for ever.
                let ended = |context: &Context| context.session.is_dead();
                for (context, native) in subscription.contexts.iter().zip(&mut self.native[known..]) {
                    native.fd = if ended(context) { -1 } else { context.wake };
                }
                service_death::give_back();
            }
            let found = sort(self.fds, &mut self.native[..known]);
            self.kernels.kernels |= found.kernels;
            self.kernels.halves = found.halves;
        }
    }
}

#[inline]
fn interest_of(entry: &pollfd) -> u32 {
    u32::from(entry.events as u16)
}

/// The subscription of one `poll` to its slots and instances. Dropping it ends it.
pub struct Subscription {
    session: &'static Session,
    /// One context for each stack that carries the sockets, unless none was to be had.
    contexts: Vec<Context>,
    sockets: Vec<Socket>,
    instances: Vec<u32>,
}

/// Ends the subscription at this address. Called once, by the undo log.
pub fn unsubscribe(subscription: usize) {
    // SAFETY: `block` made this address from a box, and the undo log runs each entry once.
    drop(unsafe { Box::from_raw(core::ptr::with_exposed_provenance_mut::<Subscription>(subscription)) });
}

impl Subscription {
    /// Subscribes with at most `contexts` contexts.
    fn new(session: &'static Session, fds: &[pollfd], contexts: usize) -> Self {
        let mut subscription = Self { session, contexts: Vec::new(), sockets: Vec::new(), instances: Vec::new() };
        subscription.contexts.extend(Context::open(session));
        for entry in fds {
            match table::get(entry.fd) {
                Descriptor::Slot { slot, generation } => subscription.sockets.extend(Socket::at(slot, generation)),
                Descriptor::Epoll(id) => {
                    let instances = nested::all(id);
                    instances.iter().for_each(|id| instance::instance(*id).falling_asleep());
                    subscription.instances.extend(instances);
                }
                _ => {}
            }
        }
        subscription.begin(contexts);
        subscription
    }

    /// Subscribes to one socket.
    pub fn to(socket: &Socket) -> Self {
        let (session, contexts) = (socket.session, Vec::new());
        let mut subscription = Self { session, contexts, sockets: vec![*socket], instances: Vec::new() };
        subscription.begin(1);
        subscription
    }

    fn begin(&mut self, contexts: usize) {
        for socket in &self.sockets {
            let session = socket.session;
            if socket.can_subscribe() && self.of(session.number).is_none() && self.contexts.len() < contexts {
                self.contexts.extend(Context::open(session));
            }
            if let Some(context) = self.of(session.number) {
                socket.subscribe(context.bit());
            }
        }
    }

    /// The doorbell of the context at the stack of the session of this number.
    pub fn doorbell(&self, session: u32) -> Option<c_int> {
        self.of(session).map(|context| context.wake)
    }

    fn of(&self, session: u32) -> Option<&Context> {
        self.contexts.iter().find(|context| context.session.number == session)
    }

    /// Do the contexts get the events of all sockets?
    pub fn is_subscribed(&self) -> bool {
        let unsubscribed =
            |id: &u32| instance::instance(*id).with(|interest| interest.has_unsubscribed()).unwrap_or(false);
        self.of(self.session.number).is_some()
            && self.sockets.iter().all(|socket| self.of(socket.session.number).is_some())
            && !self.instances.iter().any(unsubscribed)
    }

    /// Does some work with each context.
    pub fn each(&self, work: impl Fn(&Context)) {
        self.contexts.iter().for_each(work);
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        for id in &self.instances {
            instance::instance(*id).awake();
        }
        for mut context in core::mem::take(&mut self.contexts) {
            context.disarm();
            let session = context.session;
            let theirs = || self.sockets.iter().filter(|socket| core::ptr::eq(socket.session, session));
            theirs().for_each(|socket| socket.unsubscribe(context.bit()));
            context.drain(|slot| {
                if let Some(socket) = theirs().find(|socket| socket.slot == slot) {
                    socket.event_seen();
                }
            });
            towpath_ring::wake::drain(sys::borrow(&context.wake));
            context.close();
        }
    }
}
