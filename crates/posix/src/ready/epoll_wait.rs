//! `epoll_wait`: slots and kernel descriptors in one call.
//!
//! While slots are ready, the kernel is asked only in every sixteenth call, or if it was last asked some microseconds
//! ago. So its descriptors are not starved, and a busy program pays little for them.

use crate::fd::table::{self, Descriptor};
use crate::io::{hand_over, user};
use crate::observe::fallback;
use crate::ready::instance::{self, Instance};
use crate::ready::interest::Interest;
use crate::ready::{nested, service_death, words};
use core::sync::atomic::Ordering;
use core::time::Duration;
use libc::{c_int, epoll_event, sigset_t};
use std::time::Instant;
use towpath_client::liveness::LIFE_CHECK;
use towpath_client::session::{self, Session};
use towpath_client::sleep::Sleep;
use towpath_client::sys::Sys;
use towpath_client::undo_log::Undo;
use towpath_client::{direct, held, rejoin, wait};
use towpath_hook::{Answer, outcome, real};
use towpath_ring::report::Count;

mod fast_path;
mod merge;

pub use fast_path::{Whole, fast_path};

/// The most calls with ready slots before the kernel is asked again.
const NATIVE_EVERY: u32 = 16;
/// The longest sleep of an instance that watches slots but could get no context.
const WITHOUT_CONTEXT: Duration = Duration::from_millis(1);
/// The most rounds in a row without a sleep. Then the time-out and the kernel's descriptors have their turn: a hostile
/// peer of a direct connection can raise events for ever that show nothing.
const ROUNDS: u32 = 16;

/// `epoll_pwait` and its relatives. `timeout` `None` = no limit.
///
/// # Safety
/// The contract of `epoll_pwait`: `events` has room for `count`, `mask` is null or valid.
pub unsafe fn epoll_pwait(
    epfd: c_int,
    events: *mut epoll_event,
    count: c_int,
    timeout: Option<Duration>,
    mask: *const sigset_t,
) -> Answer<c_int> {
    // SAFETY: the caller keeps the contract of `epoll_pwait`.
    unsafe { epoll_wait(epfd, events, count, || timeout, mask) }
}

/// [`epoll_pwait`], with a `timeout` that is computed only if nothing is ready.
///
/// # Safety
/// As [`epoll_pwait`].
#[inline(always)]
pub unsafe fn epoll_wait(
    epfd: c_int,
    events: *mut epoll_event,
    count: c_int,
    timeout: impl FnOnce() -> Option<Duration>,
    mask: *const sigset_t,
) -> Answer<c_int> {
    let Descriptor::Epoll(id) = table::get(epfd) else { return None };
    if count <= 0 {
        return None;
    }
    if session::get().is_none() {
        // SAFETY: the caller keeps the contract of `epoll_pwait`.
        return unsafe { wait_without_session(id, epfd, events, count, timeout(), mask) };
    }
    service_death::look();
    let wait = Wait { id, epfd, instance: instance::instance(id), events, room: count as usize, mask };
    let found = if wait.instance.native_first.load(Ordering::Relaxed) {
        wait.native_first(timeout())
    } else {
        match wait.collect_inline(0) {
            Ok(slots) if slots.found > 0 && !slots.native_is_due => Ok(slots.found),
            slots => wait.until_ready(slots, timeout()),
        }
    };
    Some(found.map(|n| n as c_int))
}

/// Waits while the process has no accelerated socket. Another thread may make the first one meanwhile and have this
/// instance watch it. That wakes this thread, which then starts over.
///
/// # Safety
/// As [`epoll_pwait`].
#[inline(never)]
unsafe fn wait_without_session(
    id: u32,
    epfd: c_int,
    events: *mut epoll_event,
    count: c_int,
    timeout: Option<Duration>,
    mask: *const sigset_t,
) -> Answer<c_int> {
    // The kernel keeps so short a timeout more precisely.
    if timeout.is_some_and(|timeout| timeout < Duration::from_millis(1)) {
        return None;
    }
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    let instance = instance::instance(id);
    instance.asked_by_library();
    instance.falling_asleep_without_session();
    let asleep = Sleep::on(None, Undo::Number(instance::awake_at_last, id as usize));
    if let Err(canceled) = asleep.check() {
        return Some(Err(canceled));
    }
    let slept = session::get().is_none().then(|| {
        // SAFETY: the caller keeps the contract of `epoll_pwait`.
        asleep.interrupted(outcome(unsafe { real::epoll_pwait(epfd, events, count, milliseconds(timeout), mask) }))
    });
    drop(asleep);
    let found = match slept {
        Some(Err(errno)) => return Some(Err(errno)),
        Some(Ok(found)) => found as usize,
        None => 0,
    };
    // SAFETY: the kernel has just written `found` events there.
    let kept = unsafe { retain(events, found, |event| event.u64 != instance.mark()) };
    let has_session = slept.is_none() || kept < found;
    if kept < found {
        instance.silence();
    }
    if kept > 0 || !has_session {
        return Some(Ok(kept as c_int));
    }
    let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
    // SAFETY: the caller keeps the contract of `epoll_pwait`.
    unsafe { epoll_pwait(epfd, events, count, left, mask) }
}

/// Waits on an epoll instance of the library's own, which the program does not know.
pub fn wait_internal(id: u32, epfd: c_int, events: &mut [epoll_event], timeout: Duration) -> Sys<usize> {
    session::get().ok_or(libc::EINVAL)?;
    let (instance, room) = (instance::instance(id), events.len());
    let wait = Wait { id, epfd, instance, events: events.as_mut_ptr(), room, mask: core::ptr::null() };
    wait.until_ready(wait.collect(0), Some(timeout))
}

/// A timeout as `epoll_wait` takes it, rounded up; `None` = no limit.
fn milliseconds(timeout: Option<Duration>) -> c_int {
    timeout.map_or(-1, |time| time.as_nanos().div_ceil(1_000_000).min(i32::MAX as u128) as c_int)
}

/// Removes the events that `keep` rejects from the first `count`, in place. `keep` may change those that stay. Returns
/// how many are left.
///
/// # Safety
/// `events` has `count` events.
unsafe fn retain(events: *mut epoll_event, count: usize, mut keep: impl FnMut(&mut epoll_event) -> bool) -> usize {
    let mut kept = 0;
    for at in 0..count {
        // SAFETY: the caller vouches for `count` events, and `kept <= at < count`.
        unsafe {
            let mut event = events.add(at).read_unaligned();
            if keep(&mut event) {
                events.add(kept).write_unaligned(event);
                kept += 1;
            }
        }
    }
    kept
}

/// One call of `epoll_wait`.
#[derive(Clone, Copy)]
struct Wait {
    id: u32,
    epfd: c_int,
    instance: &'static Instance,
    /// The program's array, and how many events it has room for.
    events: *mut epoll_event,
    room: usize,
    mask: *const sigset_t,
}

/// The outcome of one look at slots and inner instances. The flags count only if `found` is 0.
struct Collected {
    found: usize,
    /// The instance watches slots or inner instances.
    watched: bool,
    /// All watched slots are subscribed to a context, so a doorbell will tell of their events.
    subscribed: bool,
    /// The instance watches kernel descriptors.
    native: bool,
    /// It watches others than the kernel halves of listeners, so the kernel is asked before the first sleep.
    asks_first: bool,
    /// The kernel has not been asked for a while.
    native_is_due: bool,
}

impl Collected {
    const NOTHING: Self =
        Self { found: 0, watched: false, subscribed: false, native: true, asks_first: true, native_is_due: false };
}

impl Wait {
    /// Asks the kernel first: the last call left no room for its events.
    #[inline(never)]
    fn native_first(self, timeout: Option<Duration>) -> Sys<usize> {
        self.instance.native_first.store(false, Ordering::Relaxed);
        let (native, _) = self.native(0, self.room.div_ceil(2), Some(Duration::ZERO))?;
        let found = self.merged(native, native + self.collect(native)?.found);
        if found > 0 {
            return Ok(found);
        }
        self.until_ready(self.collect(0), timeout)
    }

    /// Goes on after the first look at the slots, until something is ready or the time is up.
    #[inline(never)]
    fn until_ready(self, first: Sys<Collected>, timeout: Option<Duration>) -> Sys<usize> {
        let mut deadline = None;
        let at_once = timeout == Some(Duration::ZERO);
        let mut first = Some(first);
        let mut rounds = 0;
        loop {
            let is_first = first.is_some();
            let slots = first.take().unwrap_or_else(|| self.collect(0))?;
            if slots.found > 0 {
                let more = slots.native_is_due && slots.found < self.room;
                let room = self.room - slots.found;
                return Ok(slots.found + if more { self.native(slots.found, room, Some(Duration::ZERO))?.0 } else { 0 });
            }
            rounds += 1;
            let is_long = rounds % ROUNDS == 0;
            let asks = (is_first && slots.asks_first) || (is_long && slots.native);
            if at_once || (asks && slots.watched) {
                let (found, _) = self.native(0, self.room, Some(Duration::ZERO))?;
                if found > 0 || at_once {
                    return Ok(found);
                }
            }
            let deadline =
                *deadline.get_or_insert_with(|| timeout.and_then(|timeout| Instant::now().checked_add(timeout)));
            if is_long && deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Ok(0);
            }
            if let Some(session) = session::get().filter(|_| slots.watched)
                && direct::spin(session, || self.instance.raised())
            {
                continue;
            }
            if let Some(found) = self.sleep(deadline, &slots)? {
                return Ok(found);
            }
        }
    }

    /// Collects the slots and inner instances that are ready. Their events go after the first `skip`.
    #[inline(never)]
    fn collect(&self, skip: usize) -> Sys<Collected> {
        self.collect_inline(skip)
    }

    /// [`Wait::collect`], inlined for the first look of a call.
    #[inline(always)]
    fn collect_inline(&self, skip: usize) -> Sys<Collected> {
        // The session is looked up under the lock, by which threads agree on whose the first entries are.
        let collect = |interest: &mut Interest| Some(self.collect_from(interest, session::get()?, skip));
        self.instance.with(collect).flatten().unwrap_or(Ok(Collected::NOTHING))
    }

    #[inline(always)]
    fn collect_from(&self, interest: &mut Interest, session: &'static Session, skip: usize) -> Sys<Collected> {
        let room = self.room - skip;
        instance::own(self.instance, session, interest);
        let (mut found, mut put_all) = (0, Ok(()));
        let mut put = |event| {
            // SAFETY: `user::write` accepts any address, and `skip + found` stays below `count`, for which there is
            // room.
            let put = unsafe { user::write(self.events.wrapping_add(skip + found), event) };
            if put.is_err() {
                put_all = put;
            }
            found += 1;
        };
        let mut slots = 0;
        if interest.watched > 0 {
            interest.drain(session);
            slots = interest.collect(session, &mut put, room);
        } else if interest.context.is_some() {
            // Events of slots that are no longer watched must not keep the thread awake.
            interest.drain(session);
        }
        if !interest.pending.is_empty() {
            nested::adopt(self.epfd, interest);
        }
        if !interest.nested.is_empty() {
            nested::collect(self.epfd, interest, &mut put, room - slots);
        }
        put_all?;
        if found > 0 && interest.native == 0 {
            return Ok(Collected { found, ..Collected::NOTHING });
        }
        let native = interest.native > 0;
        interest.since_native = if native && found > 0 { interest.since_native.saturating_add(1) } else { 0 };
        let native_is_due = native
            && found > 0
            && (interest.since_native >= NATIVE_EVERY
                || self.instance.since_native_look() >= interest.longest_unasked());
        if native_is_due {
            // If there is no room for the kernel's events, the next call begins with them.
            interest.since_native = 0;
            self.instance.native_first.store(found == room, Ordering::Relaxed);
        }
        let nested = !interest.nested.is_empty();
        let watched = interest.watched > 0 || nested;
        let has_context = interest.context.is_some() || (nested && interest.watched == 0);
        let subscribed = !interest.has_unsubscribed() && has_context;
        let asks_first = interest.asks_first();
        Ok(Collected { found, watched, subscribed, native, asks_first, native_is_due })
    }

    /// Sleeps on the kernel's epoll descriptor. `None`: something may have happened, so the caller looks again.
    fn sleep(&self, deadline: wait::Deadline, slots: &Collected) -> Sys<Option<usize>> {
        let sleeping = nested::all(self.id);
        let instances = || sleeping.iter().map(|id| instance::instance(*id));
        instances().for_each(|instance| instance.falling_asleep());
        let asleep = Sleep::on(None, Undo::Number(instance::awake_at_last, self.id as usize));
        let any_ready = |interest: &mut Interest| interest.any_ready();
        let ready = |instance: &Instance| instance.with(any_ready).unwrap_or(false);
        let raised = self.instance.raised() || ready(self.instance) || instances().skip(1).any(Instance::raised);
        let woken = if let Err(canceled) = asleep.check() {
            Err(canceled)
        } else if raised {
            Ok(None)
        } else {
            asleep.interrupted(self.sleep_armed(deadline, slots))
        };
        instances().skip(1).for_each(|instance| instance.awake());
        woken
    }

    fn sleep_armed(&self, deadline: wait::Deadline, slots: &Collected) -> Sys<Option<usize>> {
        if slots.watched
            && let gone @ 1.. = session::gone(false)
            && self.instance.with(|interest| interest.look_at_the_end(gone)) == Some(true)
        {
            service_death::give_back();
            return Ok(None);
        }
        if rejoin::is_due_now() {
            service_death::look();
            return Ok(None);
        }
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let longest = match slots {
            Collected { watched: false, .. } => rejoin::is_needed().then_some(LIFE_CHECK),
            Collected { subscribed: true, .. } => Some(hand_over::sleep_of(held::sleep_of(LIFE_CHECK))),
            _ => Some(WITHOUT_CONTEXT),
        };
        let time = match (left, longest) {
            (Some(left), Some(longest)) => Some(left.min(longest)),
            (left, longest) => left.or(longest),
        };
        let (found, ours) = self.native(0, self.room, time)?;
        if found > 0 {
            let more = if ours && found < self.room { self.collect(found)?.found } else { 0 };
            return Ok(Some(self.merged(found, found + more)));
        }
        if ours {
            return Ok(None);
        }
        if slots.subscribed {
            self.look_for_missed();
        }
        if left.is_some_and(|left| time == Some(left)) {
            // The time is up, but events that have come meanwhile count.
            return Ok(Some(self.collect(0)?.found));
        }
        if slots.subscribed && session::gone(true) != 0 {
            self.instance.with(|interest| interest.look_at_all());
        }
        Ok(None)
    }

    /// Nothing has come. Looks at sockets of this instance and of those that it watches.
    #[cold]
    fn look_for_missed(&self) {
        if self.instance.raised() {
            return;
        }
        for id in nested::all(self.id) {
            let missed = instance::instance(id).with(|interest| interest.look_for_missed(session::coarse_ms()));
            (0..missed.unwrap_or(0)).for_each(|_| fallback::count(Count::EventMissed));
        }
    }

    /// Does this native event belong to an inner instance?
    fn is_inner(&self, mark: u64) -> bool {
        self.instance.with(|interest| !interest.nested.is_empty() && nested::woken(interest, mark)) == Some(true)
    }

    /// Asks the kernel for at most `room` events, which go after the first `skip`. Returns their number, and whether
    /// one of the library's own descriptors was ready.
    fn native(&self, skip: usize, room: usize, timeout: Option<Duration>) -> Sys<(usize, bool)> {
        // SAFETY: the program's array has room for at least `skip + room` events.
        let rest = unsafe { self.events.add(skip) };
        self.instance.asked_by_library();
        // SAFETY: `rest` has room for `room` events; the mask is null or valid by the contract of `epoll_pwait`.
        let asked = unsafe { real::epoll_pwait(self.epfd, rest, room as c_int, milliseconds(timeout), self.mask) };
        let found = outcome(asked)? as usize;
        self.instance.looked_at_native();
        let (mut ours, mut hung_up) = (false, false);
        // Events of the doorbells and of a nudge are not for the program.
        let is_programs = |event: &mut epoll_event| {
            if self.is_inner(event.u64) {
                ours = true;
            } else if event.u64 == self.instance.mark() {
                ours = true;
                // No process holds the doorbell's other end: most likely the service has died.
                hung_up |= event.events & libc::EPOLLHUP as u32 != 0;
            } else if words::is_word(event.u64) {
                let is_programs = self.is_of_half(skip, event);
                ours |= !is_programs;
                return is_programs;
            } else {
                return true;
            }
            false
        };
        // SAFETY: the kernel has just written `found` events there.
        let kept = unsafe { retain(rest, found, is_programs) };
        if ours {
            self.instance.silence();
        }
        if hung_up && session::gone(true) != 0 {
            self.instance.with(|interest| interest.look_at_all());
        }
        Ok((kept, ours))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::os::{close, close_both, control, epoll, eventually, pair, send, wait};
    use towpath_client::sys;

    /// The stack raises an event after the last collection and before the instance is armed, and so wakes nobody.
    #[test]
    fn an_event_from_before_arming_is_seen_by_the_last_look_and_nobody_sleeps() {
        let (ours, theirs) = pair();
        let epfd = epoll();
        control(epfd, libc::EPOLL_CTL_ADD, ours, libc::EPOLLIN, 7).expect("epoll_ctl");
        assert_eq!(wait(epfd, 0), []);
        let Descriptor::Epoll(id) = table::get(epfd) else { panic!("no instance of the library") };
        let instance = instance::instance(id);
        send(theirs, b"x", 0).expect("send");
        eventually(|| instance.raised());
        let mut events = [epoll_event { events: 0, u64: 0 }; 4];
        let (room, mask) = (events.len(), core::ptr::null());
        let call = Wait { id, epfd, instance, events: events.as_mut_ptr(), room, mask };
        let slots = Collected {
            found: 0,
            watched: true,
            subscribed: true,
            native: false,
            asks_first: false,
            native_is_due: false,
        };
        let begun = sys::ticks();
        assert_eq!(call.sleep(None, &slots), Ok(None));
        let passed = sys::ticks().wrapping_sub(begun);
        assert!(instance.since_native_look() >= passed, "it has slept in the kernel");
        assert_eq!(wait(epfd, 0), [(7, libc::EPOLLIN)]);
        close(epfd).expect("close");
        close_both(ours, theirs);
    }
}
