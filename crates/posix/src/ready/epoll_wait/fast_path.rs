//! The fast path of `epoll_wait`.

use super::NATIVE_EVERY;
use crate::fd::table;
use crate::io::user;
use crate::ready::instance::{self, Instance, Look};
use crate::ready::interest::{Glance, Interest};
use libc::{c_int, epoll_event};
use towpath_client::direct;
use towpath_client::session::{self, Session};

/// The rest of a call, which may be all of it.
pub type Whole = unsafe extern "C-unwind" fn(c_int, *mut epoll_event, c_int, c_int) -> c_int;

/// The kernel's descriptors are due after so many waits, or so long after they were last asked.
#[inline(always)]
fn native_is_due(instance: &Instance, waits: u32, longest: u64) -> bool {
    waits >= NATIVE_EVERY || instance.since_native_look() >= longest
}

/// [`Interest::glance`], or [`Interest::glance_directly`].
struct OneEvent<const DIRECT: bool> {
    instance: &'static Instance,
    events: *mut epoll_event,
}

impl<const DIRECT: bool> Look for OneEvent<DIRECT> {
    type Found = Glance;
    #[inline(always)]
    fn look(self, interest: &mut Interest, session: &'static Session) -> Glance {
        let native_is_due = |waits, longest| native_is_due(self.instance, waits, longest);
        // SAFETY: `user::write_event` accepts any address, and the program has given room for an event.
        let put = |event| unsafe { user::write_event(self.events, event) }.is_ok();
        if DIRECT {
            interest.glance_directly(session, native_is_due, put)
        } else {
            interest.glance(session, native_is_due, put)
        }
    }
}

/// [`Interest::report_plain`].
struct AllEvents {
    instance: &'static Instance,
    events: *mut epoll_event,
    room: usize,
}

impl Look for AllEvents {
    type Found = Option<usize>;
    #[inline(always)]
    fn look(self, interest: &mut Interest, session: &'static Session) -> Option<usize> {
        let Self { instance, events, room } = self;
        let native_is_due = |waits, longest| native_is_due(instance, waits, longest);
        // SAFETY: `user::write_event` accepts any address, and `at` stays below `room`, for which the program has given room.
        let put = |at, event| unsafe { user::write_event(events.wrapping_add(at), event) }.is_ok();
        interest.report_plain(session, native_is_due, put, room, || instance.is_plain_no_longer())
    }
}

/// The fast path of `epoll_wait`: one connection is ready, and there is nothing else to look at. It makes tail calls only.
///
/// # Safety
/// As [`epoll_pwait`](super::epoll_pwait).
#[inline(always)]
pub unsafe fn fast_path(epfd: c_int, events: *mut epoll_event, count: c_int, timeout_ms: c_int, whole: Whole) -> c_int {
    // SAFETY: the caller keeps the contract of `epoll_wait`.
    let whole_call = || unsafe { whole(epfd, events, count, timeout_ms) };
    let Some(id) = table::look_for_epoll(epfd) else { return whole_call() };
    let Some(session) = session::usual() else { return whole_call() };
    if count <= 0 {
        return whole_call();
    }
    let instance = instance::instance(id);
    if direct::is_used(session) {
        // SAFETY: the caller keeps the contract of `epoll_wait`.
        return unsafe { directly(epfd, events, count, timeout_ms, whole, instance) };
    }
    match instance.look(session, OneEvent::<false> { instance, events }) {
        Some(Glance::One) => 1,
        // SAFETY: the caller keeps the contract of `epoll_wait`.
        Some(Glance::Unclear) => unsafe { several(epfd, events, count, timeout_ms, whole) },
        None => whole_call(),
    }
}

/// [`fast_path`] of a process that has direct connections.
///
/// # Safety
/// As [`epoll_pwait`](super::epoll_pwait); there is room for at least one event.
#[inline(never)]
unsafe fn directly(
    epfd: c_int,
    events: *mut epoll_event,
    count: c_int,
    timeout_ms: c_int,
    whole: Whole,
    instance: &'static Instance,
) -> c_int {
    if glance_directly(instance, events) {
        return 1;
    }
    // SAFETY: the caller keeps the contract of `epoll_wait`.
    unsafe { several(epfd, events, count, timeout_ms, whole) }
}

/// Has one event, of a direct connection, been reported? It is a function of its own so that it does not keep what the rest of
/// the call needs.
#[inline(never)]
fn glance_directly(instance: &'static Instance, events: *mut epoll_event) -> bool {
    let Some(session) = session::usual() else { return false };
    matches!(instance.look(session, OneEvent::<true> { instance, events }), Some(Glance::One))
}

/// [`fast_path`], if several connections are ready, and there is nothing else to look at.
///
/// # Safety
/// As [`epoll_pwait`](super::epoll_pwait); there is room for at least one event.
#[inline(never)]
unsafe fn several(epfd: c_int, events: *mut epoll_event, count: c_int, timeout_ms: c_int, whole: Whole) -> c_int {
    let report = || {
        let (instance, room) = (instance::instance(table::look_for_epoll(epfd)?), count as usize);
        instance.look(session::usual()?, AllEvents { instance, events, room })?
    };
    // SAFETY: the caller keeps the contract of `epoll_wait`.
    report().map_or_else(|| unsafe { whole(epfd, events, count, timeout_ms) }, |found| found as c_int)
}
