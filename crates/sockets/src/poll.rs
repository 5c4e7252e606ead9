//! `poll` over slots, kernel descriptors and epoll instances.

use crate::books::Undo;
use crate::cancel::Sleep;
use crate::context::Context;
use crate::session::{self, LIFE_CHECK, Session};
use crate::socket::Socket;
use crate::sys::{self, Sys};
use crate::table::{self, Kind};
use crate::{block, cork, epoll, nested, readiness, user};
use core::time::Duration;
use libc::{c_int, nfds_t, pollfd, sigset_t, timespec};
use std::time::Instant;
use towpath_hook::Answer;
use towpath_ring::wake::spin_until;

/// Up to this many descriptors no memory is allocated.
const ON_STACK: usize = 64;
/// The longest sleep if no context could be had.
const WITHOUT_CONTEXT: Duration = Duration::from_millis(1);

/// A C time as a duration; `None` if it is none.
pub fn duration(time: &timespec) -> Option<Duration> {
    (time.tv_sec >= 0 && (0..1_000_000_000).contains(&time.tv_nsec))
        .then(|| Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}

/// Is there anything for us among these descriptors?
pub fn concerns(fds: &[pollfd]) -> bool {
    fds.iter().any(|p| matches!(table::get(p.fd), Kind::Slot { .. } | Kind::Epoll(_)))
}

/// `poll` and `ppoll`. `timeout` `None` = for ever.
///
/// # Safety
/// The contract of `ppoll`: `fds` is null or has `n` entries, `mask` is null or valid.
pub unsafe fn poll(fds: *mut pollfd, n: nfds_t, timeout: Option<Duration>, mask: *const sigset_t) -> Answer<c_int> {
    if n == 0 || fds.is_null() || n > 1 << 20 {
        return None;
    }
    // SAFETY: the program's memory; the kernel says the rest.
    if unsafe {
        user::is_there(fds, n as usize).is_err() || (!mask.is_null() && user::read(mask.cast::<u64>()).is_err())
    } {
        return None;
    }
    // SAFETY: the caller keeps the contract of `poll`.
    let fds = unsafe { core::slice::from_raw_parts_mut(fds, n as usize) };
    if !concerns(fds) {
        return None;
    }
    Some(run(fds, timeout, mask).map(|n| n as c_int))
}

/// The work of `poll` and `select`.
pub fn run(fds: &mut [pollfd], timeout: Option<Duration>, mask: *const sigset_t) -> Sys<usize> {
    let session = session::get().ok_or(libc::EINVAL)?;
    let blank = pollfd { fd: -1, events: 0, revents: 0 };
    // What the kernel is asked: everything but slots, and last the wake-up eventfds, one for each stack.
    let len = fds.len() + 1 + others(fds);
    if len <= ON_STACK {
        let mut native = [blank; ON_STACK];
        Poll::new(session, fds, &mut native[..len], mask).run(timeout)
    } else {
        let mut native = vec![blank; len];
        Poll::new(session, fds, &mut native, mask).run(timeout)
    }
}

/// How many other stacks these sockets are of.
fn others(fds: &[pollfd]) -> usize {
    let sessions = fds.iter().fold(0u64, |sessions, entry| match table::get(entry.fd) {
        Kind::Slot { slot, .. } => sessions | 1 << (slot >> table::SLOT_BITS & 63),
        _ => sessions,
    });
    (sessions & !1).count_ones() as usize
}

/// Gives the kernel what is the kernel's; true if that is anything.
fn sort(fds: &[pollfd], native: &mut [pollfd]) -> bool {
    let mut kernels = false;
    for (entry, native) in fds.iter().zip(native.iter_mut()) {
        let ours = entry.fd < 0 || Socket::of(entry.fd).is_some();
        *native = pollfd { fd: if ours { -1 } else { entry.fd }, revents: 0, ..*entry };
        kernels |= !ours;
    }
    kernels
}

struct Poll<'a> {
    session: &'static Session,
    fds: &'a mut [pollfd],
    native: &'a mut [pollfd],
    mask: *const sigset_t,
    /// Does the kernel have to be asked?
    kernels: bool,
}

impl<'a> Poll<'a> {
    fn new(session: &'static Session, fds: &'a mut [pollfd], native: &'a mut [pollfd], mask: *const sigset_t) -> Self {
        let mut kernels = false;
        kernels |= sort(fds, native);
        Self { session, fds, native, mask, kernels }
    }

    fn run(&mut self, timeout: Option<Duration>) -> Sys<usize> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut ready = self.slots();
        if ready > 0 || timeout == Some(Duration::ZERO) || self.kernels {
            ready = self.ask(Duration::ZERO)?;
            if ready > 0 || timeout == Some(Duration::ZERO) {
                return Ok(ready);
            }
        }
        if let [one] = &*self.fds
            && let (Some(socket), true) = (Socket::of(one.fd), self.mask.is_null())
        {
            let interest = interest_of(one);
            let waited = block::until_signal(&socket, deadline, || readiness::events_for(&socket, interest) != 0);
            return match waited {
                // It may have become the kernel's, or have been closed.
                Ok(()) | Err(libc::EAGAIN) if Socket::of(one.fd).is_none() => {
                    sys::ppoll(self.fds, Some(Duration::ZERO), core::ptr::null())
                }
                Ok(()) | Err(libc::EAGAIN) => Ok(self.slots()),
                Err(errno) => Err(errno),
            };
        }
        if self.spin() {
            return self.ask(Duration::ZERO);
        }
        self.block(deadline)
    }

    /// Sets `revents` of slots and instances; returns how many have any.
    fn slots(&mut self) -> usize {
        let mut ready = 0;
        for entry in self.fds.iter_mut() {
            entry.revents = 0;
            match table::get(entry.fd) {
                Kind::Slot { slot, generation } => {
                    if let Some(socket) = Socket::at(slot, generation) {
                        entry.revents = readiness::events_for(&socket, interest_of(entry)) as i16;
                    }
                }
                Kind::Epoll(id) => {
                    let shown = entry.events & (libc::POLLIN | libc::POLLRDNORM);
                    if shown != 0 && nested::is_ready(id, self.session) {
                        entry.revents = shown;
                    }
                }
                _ => {}
            }
            ready += usize::from(entry.revents != 0);
        }
        ready
    }

    /// Looks at everything, the kernel's included; for those it may sleep.
    fn ask(&mut self, time: Duration) -> Sys<usize> {
        if self.kernels || !time.is_zero() {
            sys::ppoll(self.native, Some(time), self.mask)?;
        }
        self.slots();
        let mut ready = 0;
        for (entry, native) in self.fds.iter_mut().zip(self.native.iter()) {
            // What wakes an instance is not always what the program is to see of it.
            if native.fd >= 0 && !matches!(table::get(entry.fd), Kind::Epoll(_)) {
                entry.revents |= native.revents;
            }
            ready += usize::from(entry.revents != 0);
        }
        Ok(ready)
    }

    fn spin(&mut self) -> bool {
        let spin_us = self.session.spin_us;
        spin_until(spin_us, || self.slots() > 0)
    }

    fn block(&mut self, deadline: block::Deadline) -> Sys<usize> {
        let known = self.fds.len();
        let watch = Box::into_raw(Box::new(Watch::new(self.session, self.fds, self.native.len() - known)));
        let asleep = Sleep::on(None, Undo::Watch(watch));
        // SAFETY: it is dropped with the sleep.
        let watch = unsafe { &*watch };
        for (context, native) in watch.contexts.iter().zip(&mut self.native[known..]) {
            *native = pollfd { fd: context.wake, events: libc::POLLIN, revents: 0 };
        }
        let longest = if watch.is_told() { LIFE_CHECK } else { WITHOUT_CONTEXT };
        loop {
            session::gone(false);
            watch.each(Context::arm);
            let mut time = longest;
            if let Some(deadline) = deadline {
                time = time.min(deadline.saturating_duration_since(Instant::now()));
            }
            let time = if self.slots() > 0 { Duration::ZERO } else { cork::sleep_of(time) };
            let ready = asleep.interrupted(self.ask(time))?;
            if ready > 0 || deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Ok(ready);
            }
            asleep.check()?;
            watch.contexts.iter().for_each(|context| _ = towpath_ring::wake::drain(session::borrow(&context.wake)));
            session::gone(true);
            // A descriptor may have become the kernel's, or have been closed, meanwhile.
            self.kernels |= sort(self.fds, &mut self.native[..known]);
        }
    }
}

#[inline]
fn interest_of(entry: &pollfd) -> u32 {
    u32::from(entry.events as u16)
}

/// Being told of events on the slots and instances of one `poll`, until dropped.
pub struct Watch {
    session: &'static Session,
    /// One for each stack that the sockets are of, as far as they could be had.
    contexts: Vec<Context>,
    sockets: Vec<Socket>,
    instances: Vec<u32>,
}

impl Watch {
    /// With this many contexts at most.
    fn new(session: &'static Session, fds: &[pollfd], contexts: usize) -> Self {
        let mut watch = Self { session, contexts: Vec::new(), sockets: Vec::new(), instances: Vec::new() };
        watch.contexts.extend(Context::open(session));
        for entry in fds {
            match table::get(entry.fd) {
                Kind::Slot { slot, generation } => watch.sockets.extend(Socket::at(slot, generation)),
                Kind::Epoll(id) => {
                    let instances = nested::all(id);
                    instances.iter().for_each(|id| epoll::instance(*id).falling_asleep(session));
                    watch.instances.extend(instances);
                }
                _ => {}
            }
        }
        for socket in &watch.sockets {
            let session = socket.session;
            if !socket.is_foreign() && watch.of(session.number).is_none() && watch.contexts.len() < contexts {
                watch.contexts.extend(Context::open(session));
            }
            if let Some(context) = watch.of(session.number) {
                socket.watch(context.bit(), true);
            }
        }
        watch
    }

    fn of(&self, session: u32) -> Option<&Context> {
        self.contexts.iter().find(|context| context.session == session)
    }

    /// Do the contexts tell of everything?
    fn is_told(&self) -> bool {
        let foreign = |id: &u32| epoll::instance(*id).with(|interest| interest.has_foreign()).unwrap_or(false);
        self.of(0).is_some()
            && self.sockets.iter().all(|socket| self.of(socket.session.number).is_some())
            && !self.instances.iter().any(foreign)
    }

    fn each(&self, work: impl Fn(&Context, &Session)) {
        for context in &self.contexts {
            if let Some(session) = session::numbered(context.session) {
                work(context, session);
            }
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        for id in &self.instances {
            epoll::instance(*id).awake(self.session);
        }
        for mut context in core::mem::take(&mut self.contexts) {
            let Some(session) = session::numbered(context.session) else { continue };
            context.disarm(session);
            let theirs = || self.sockets.iter().filter(|socket| socket.session.number == session.number);
            theirs().for_each(|socket| socket.watch(context.bit(), false));
            context.drain(session, |slot| {
                if let Some(socket) = theirs().find(|socket| socket.slot == slot) {
                    socket.event_seen();
                }
            });
            towpath_ring::wake::drain(session::borrow(&context.wake));
            context.close(session);
        }
    }
}
