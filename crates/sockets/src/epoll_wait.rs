//! `epoll_wait`: slots and kernel descriptors in one call. While slots are ready the kernel is asked only if that was some
//! microseconds ago, or in every sixteenth call, so that its descriptors are not starved and a busy program pays little for it.

use crate::books::Undo;
use crate::cancel::Sleep;
use crate::epoll::{self, Instance};
use crate::session::{self, LIFE_CHECK, Session};
use crate::sys::Sys;
use crate::table::{self, Kind};
use crate::{block, cork, direct};
use crate::{nested, user};
use core::sync::atomic::Ordering;
use core::time::Duration;
use libc::{c_int, epoll_event, sigset_t};
use std::time::Instant;
use towpath_hook::{Answer, outcome, real};

/// Calls that found ready slots between two looks at the native set, at most.
const NATIVE_EVERY: u32 = 16;
/// Time between two looks, at most, if there is a call (in ticks of the time stamp counter: 10 to 50 µs).
const NATIVE_TICKS: u64 = 50_000;
/// The longest sleep of an instance that watches slots but could get no context.
const WITHOUT_CONTEXT: Duration = Duration::from_millis(1);

/// `epoll_pwait` and its relatives. `timeout` `None` = for ever.
///
/// # Safety
/// The contract of `epoll_pwait`: `events` has room for `count`, `mask` is null or valid.
pub unsafe fn wait(
    epfd: c_int,
    events: *mut epoll_event,
    count: c_int,
    timeout: Option<Duration>,
    mask: *const sigset_t,
) -> Answer<c_int> {
    // SAFETY: as the caller says.
    unsafe { look_and_wait(epfd, events, count, || timeout, mask) }
}

/// The same with a time that is only asked for if there is anything to wait for.
///
/// # Safety
/// As [`wait`].
#[inline(always)]
pub unsafe fn look_and_wait(
    epfd: c_int,
    events: *mut epoll_event,
    count: c_int,
    timeout: impl FnOnce() -> Option<Duration>,
    mask: *const sigset_t,
) -> Answer<c_int> {
    let Kind::Epoll(id) = table::get(epfd) else { return None };
    if count <= 0 {
        return None;
    }
    let Some(session) = session::get() else {
        // SAFETY: as the caller says.
        return unsafe { wait_unserved(id, epfd, events, count, timeout(), mask) };
    };
    let wait = Wait { id, epfd, instance: epoll::instance(id), session, events, room: count as usize, mask };
    let found = if wait.instance.native_first.load(Ordering::Relaxed) {
        wait.native_first(timeout())
    } else {
        match wait.look_now(0) {
            Ok(look) if look.found > 0 && !look.native_is_due => Ok(look.found),
            look => wait.go_on(look, timeout()),
        }
    };
    Some(found.map(|n| n as c_int))
}

/// `epoll_wait` of an instance that finds connections ready and has nothing else to look at. `None`: nothing has been told.
///
/// # Safety
/// As [`wait`].
#[inline(always)]
pub unsafe fn glance(epfd: c_int, events: *mut epoll_event, count: c_int) -> Option<c_int> {
    let instance = epoll::instance(table::look_for_epoll(epfd)?);
    let session = session::get()?;
    if count <= 0 || instance.native_first.load(Ordering::Relaxed) {
        return None;
    }
    let native_is_due = |waits| waits >= NATIVE_EVERY || instance.since_native_look() >= NATIVE_TICKS;
    // SAFETY: the program's memory; no more is put than it has given room for.
    let put = |at, event| unsafe { user::write(events.wrapping_add(at), event) }.is_ok();
    let found = instance.try_with(|interest| interest.glance(session, native_is_due, put, count as usize))??;
    Some(found as c_int)
}

/// Waits as long as the process has no accelerated socket. Another thread may make the first one in the meantime, and watch it by this
/// instance: then this thread is woken as every sleeper is, and goes on as if it had come now.
///
/// # Safety
/// As [`wait`].
#[inline(never)]
unsafe fn wait_unserved(
    id: u32,
    epfd: c_int,
    events: *mut epoll_event,
    count: c_int,
    timeout: Option<Duration>,
    mask: *const sigset_t,
) -> Answer<c_int> {
    // One that is over at once is the kernel's whole, with its precision.
    if timeout.is_some_and(|timeout| timeout < Duration::from_millis(1)) {
        return None;
    }
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    let timeout_ms = timeout.map_or(-1, |time| time.as_nanos().div_ceil(1_000_000).min(i32::MAX as u128) as c_int);
    let instance = epoll::instance(id);
    instance.falling_asleep_unserved();
    let asleep = Sleep::on(None, Undo::Instance(id));
    if let Err(canceled) = asleep.check() {
        return Some(Err(canceled));
    }
    let slept = session::get().is_none().then(|| {
        // SAFETY: as the caller says.
        asleep.interrupted(outcome(unsafe { real::epoll_pwait(epfd, events, count, timeout_ms, mask) }))
    });
    drop(asleep);
    let found = match slept {
        Some(Err(errno)) => return Some(Err(errno)),
        Some(Ok(found)) => found as usize,
        None => 0,
    };
    let mut kept = 0;
    for i in 0..found {
        // SAFETY: the kernel has written `found` events there, and `kept <= i`.
        unsafe {
            let event = events.add(i).read_unaligned();
            if event.u64 != instance.mark() {
                events.add(kept).write_unaligned(event);
                kept += 1;
            }
        }
    }
    let served = slept.is_none() || kept < found;
    if kept < found {
        instance.silence();
    }
    if kept > 0 || !served {
        return Some(Ok(kept as c_int));
    }
    let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
    // SAFETY: as the caller says.
    unsafe { wait(epfd, events, count, left, mask) }
}

/// Waits on an instance of the library's own.
pub fn wait_on(id: u32, epfd: c_int, events: &mut [epoll_event], timeout: Duration) -> Sys<usize> {
    let session = session::get().ok_or(libc::EINVAL)?;
    let (instance, room) = (epoll::instance(id), events.len());
    let wait = Wait { id, epfd, instance, session, events: events.as_mut_ptr(), room, mask: core::ptr::null() };
    wait.go_on(wait.look(0), Some(timeout))
}

#[derive(Clone, Copy)]
struct Wait {
    id: u32,
    epfd: c_int,
    instance: &'static Instance,
    session: &'static Session,
    events: *mut epoll_event,
    room: usize,
    mask: *const sigset_t,
}

/// What a look at the slots found; the other words count if that is nothing.
struct Look {
    found: usize,
    watched: bool,
    told: bool,
    native: bool,
    native_is_due: bool,
}

impl Look {
    const NOTHING: Self = Self { found: 0, watched: false, told: false, native: true, native_is_due: false };
}

impl Wait {
    /// The last calls left no room for the kernel's.
    #[inline(never)]
    fn native_first(self, timeout: Option<Duration>) -> Sys<usize> {
        self.instance.native_first.store(false, Ordering::Relaxed);
        let (kernels, _) = self.native(0, self.room.div_ceil(2), Some(Duration::ZERO))?;
        let found = kernels + self.look(kernels)?.found;
        if found > 0 {
            return Ok(found);
        }
        self.go_on(self.look(0), timeout)
    }

    /// After the first look.
    #[inline(never)]
    fn go_on(self, first_look: Sys<Look>, timeout: Option<Duration>) -> Sys<usize> {
        let mut deadline = None;
        let at_once = timeout == Some(Duration::ZERO);
        let mut first_look = Some(first_look);
        loop {
            let first = first_look.is_some();
            let look = first_look.take().unwrap_or_else(|| self.look(0))?;
            if look.found > 0 {
                let more = look.native_is_due && look.found < self.room;
                let room = self.room - look.found;
                return Ok(look.found + if more { self.native(look.found, room, Some(Duration::ZERO))?.0 } else { 0 });
            }
            if at_once || (first && look.native && look.watched) {
                let (found, _) = self.native(0, self.room, Some(Duration::ZERO))?;
                if found > 0 || at_once {
                    return Ok(found);
                }
            }
            let deadline =
                *deadline.get_or_insert_with(|| timeout.and_then(|timeout| Instant::now().checked_add(timeout)));
            if look.watched && direct::spin(self.session, || self.instance.raised(self.session)) {
                continue;
            }
            let Some(found) = self.sleep(deadline, &look)? else { continue };
            return Ok(found);
        }
    }

    /// Slots and inner instances that are ready; their events go after the first `skip`.
    #[inline(never)]
    fn look(&self, skip: usize) -> Sys<Look> {
        self.look_now(skip)
    }

    #[inline(always)]
    fn look_now(&self, skip: usize) -> Sys<Look> {
        let room = self.room - skip;
        let work = |interest: &mut crate::interest::Interest| {
            epoll::own(self.instance, self.session, interest);
            let (mut found, mut put_all) = (0, Ok(()));
            let mut put = |event| {
                // SAFETY: the program's memory; no more is put than it has given room for.
                let put = unsafe { user::write(self.events.wrapping_add(skip + found), event) };
                if put.is_err() {
                    put_all = put;
                }
                found += 1;
            };
            let mut slots = 0;
            if interest.watched > 0 {
                interest.drain(self.session);
                slots = interest.collect(self.session, &mut put, room);
            } else if interest.context.is_some() {
                // What was raised for a slot that is watched no more keeps nobody awake.
                interest.drain(self.session);
            }
            if !interest.undecided.is_empty() {
                nested::adopt(self.epfd, interest);
            }
            if !interest.nested.is_empty() {
                nested::collect(self.epfd, interest, self.session, &mut put, room - slots);
            }
            put_all?;
            if found > 0 && interest.native == 0 {
                return Ok(Look { found, ..Look::NOTHING });
            }
            let native = interest.native > 0;
            interest.since_native = if native && found > 0 { interest.since_native.saturating_add(1) } else { 0 };
            let native_is_due = native
                && found > 0
                && (interest.since_native >= NATIVE_EVERY || self.instance.since_native_look() >= NATIVE_TICKS);
            if native_is_due {
                // One who finds no room for them begins with them the next time.
                interest.since_native = 0;
                self.instance.native_first.store(found == room, Ordering::Relaxed);
            }
            let nested = !interest.nested.is_empty();
            let watched = interest.watched > 0 || nested;
            let told = !interest.has_foreign() && (interest.context.is_some() || (nested && interest.watched == 0));
            Ok(Look { found, watched, told, native, native_is_due })
        };
        self.instance.with(work).unwrap_or(Ok(Look::NOTHING))
    }

    /// Sleeps on the native descriptor. `None`: something may have happened, look again.
    fn sleep(&self, deadline: block::Deadline, look: &Look) -> Sys<Option<usize>> {
        let sleeping = nested::all(self.id);
        let instances = || sleeping.iter().map(|id| epoll::instance(*id));
        instances().for_each(|instance| instance.falling_asleep(self.session));
        let asleep = Sleep::on(None, Undo::Instance(self.id));
        let ready = |instance: &Instance| instance.with(|interest| interest.any_ready(self.session)).unwrap_or(false);
        let raised = self.instance.raised(self.session)
            || ready(self.instance)
            || instances().skip(1).any(|instance| instance.raised(self.session));
        let woken = if let Err(canceled) = asleep.check() {
            Err(canceled)
        } else if raised {
            Ok(None)
        } else {
            asleep.interrupted(self.sleep_armed(deadline, look))
        };
        instances().skip(1).for_each(|instance| instance.awake(self.session));
        woken
    }

    fn sleep_armed(&self, deadline: block::Deadline, look: &Look) -> Sys<Option<usize>> {
        if look.watched
            && let gone @ 1.. = session::gone(false)
            && self.instance.with(|interest| interest.look_at_the_end(gone)) == Some(true)
        {
            return Ok(None);
        }
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let longest = match look {
            Look { watched: false, .. } => None,
            Look { told: true, .. } => Some(cork::sleep_of(LIFE_CHECK)),
            _ => Some(WITHOUT_CONTEXT),
        };
        let time = match (left, longest) {
            (Some(left), Some(longest)) => Some(left.min(longest)),
            (left, longest) => left.or(longest),
        };
        let (found, ours) = self.native(0, self.room, time)?;
        if found > 0 {
            let more = if ours && found < self.room { self.look(found)?.found } else { 0 };
            return Ok(Some(found + more));
        }
        if ours {
            return Ok(None);
        }
        if left.is_some_and(|left| time == Some(left)) {
            // The time is over, but look once more: what has been raised in the meantime counts.
            let look = self.look(0)?;
            return Ok(Some(look.found));
        }
        if look.told && session::gone(true) != 0 {
            self.instance.with(|interest| interest.look_at_all());
        }
        Ok(None)
    }

    /// Is this native event that of an instance inside this one?
    fn is_inner(&self, mark: u64) -> bool {
        self.instance.with(|interest| !interest.nested.is_empty() && nested::woken(interest, mark)) == Some(true)
    }

    /// Asks the kernel for at most `room` events, which go after the first `skip`. Returns their number and whether our own eventfd
    /// was among them.
    fn native(&self, skip: usize, room: usize, timeout: Option<Duration>) -> Sys<(usize, bool)> {
        let timeout_ms = timeout.map_or(-1, |time| time.as_nanos().div_ceil(1_000_000).min(i32::MAX as u128) as c_int);
        // SAFETY: the caller of `epoll_wait` gave room for `skip + room` events at least.
        let found = outcome(unsafe {
            let rest = self.events.add(skip);
            real::epoll_pwait(self.epfd, rest, room as c_int, timeout_ms, self.mask)
        })? as usize;
        self.instance.looked_at_native();
        // Our own events (the bell, a nudge) are not the program's.
        let (mut kept, mut ours, mut hung_up) = (0, false, false);
        for i in 0..found {
            // SAFETY: the kernel has written `found` events there, and `kept <= i`.
            unsafe {
                let event = self.events.add(skip + i).read_unaligned();
                if self.is_inner(event.u64) {
                    ours = true;
                } else if event.u64 == self.instance.mark() {
                    ours = true;
                    // Nobody is left to ring: the service has gone, most likely.
                    hung_up |= event.events & libc::EPOLLHUP as u32 != 0;
                } else {
                    self.events.add(skip + kept).write_unaligned(event);
                    kept += 1;
                }
            }
        }
        if ours {
            self.instance.silence();
        }
        if hung_up && session::gone(true) != 0 {
            self.instance.with(|interest| interest.look_at_all());
        }
        Ok((kept, ours))
    }
}
