//! Epoll instances that watch epoll instances.
//!
//! The kernel also watches the inner descriptor, whose native set has the doorbells of the inner instance's contexts.
//! The kernel's event carries the inner instance's mark in place of the program's data. It only says that the inner
//! instance needs a look.

use crate::fd::table::{self, Descriptor};
use crate::ready::instance::{self, Instance};
use crate::ready::interest::{Interest, Nested};
use core::time::Duration;
use libc::{c_int, epoll_event};
use towpath_client::session;
use towpath_client::sys::{self, Sys};
use towpath_hook::{outcome, real};

const ET: u32 = libc::EPOLLET as u32;
const ONESHOT: u32 = libc::EPOLLONESHOT as u32;
/// The events that an epoll descriptor can have.
const READABLE: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM) as u32;

/// `epoll_ctl` of instance `id` on the descriptor of another one.
pub fn control(id: u32, op: c_int, fd: c_int, inner: u32, event: Option<&epoll_event>) -> Sys<c_int> {
    let instance = instance::instance(id);
    // Of nested instances the library alone knows which is ready.
    instance.asked_by_library();
    instance::instance(inner).asked_by_library();
    let mut native = event.map(|event| epoll_event { events: event.events, u64: instance::instance(inner).mark() });
    let pointer = native.as_mut().map_or(core::ptr::null_mut(), core::ptr::from_mut);
    // SAFETY: `pointer` is null or names an event that lives until the call returns. The kernel checks it.
    let done = outcome(unsafe { real::epoll_ctl(instance::descriptor(id), op, fd, pointer) })?;
    instance.with(|interest| {
        interest.nested.retain(|nested| nested.fd != fd);
        if let (Some(event), true) = (event, op != libc::EPOLL_CTL_DEL) {
            // It has never been reported, so its present state is an edge.
            let seen = activity(inner).wrapping_sub(1);
            interest.nested.push(Nested {
                fd,
                id: inner,
                data: event.u64,
                events: event.events,
                seen,
                disabled: false,
            });
        }
    });
    instance.nudge();
    Ok(done)
}

fn activity(id: u32) -> u32 {
    instance::instance(id).with(|interest| interest.activity).unwrap_or(0)
}

/// Reports the inner instances that are ready to `put`.
pub fn collect(outer: c_int, interest: &mut Interest, mut put: impl FnMut(epoll_event), room: usize) -> usize {
    let mut found = 0;
    for nested in &mut interest.nested {
        if found == room {
            break;
        }
        if nested.disabled || nested.events & READABLE == 0 || !is_ready(nested.id) {
            continue;
        }
        let activity = activity(nested.id);
        if nested.events & ET != 0 && activity == nested.seen {
            continue;
        }
        nested.seen = activity;
        put(epoll_event { events: nested.events & READABLE, u64: nested.data });
        found += 1;
        if nested.events & ONESHOT != 0 {
            nested.disabled = true;
            let mut nothing = epoll_event { events: 0, u64: 0 };
            // SAFETY: `nothing` lives until the call returns.
            unsafe { real::epoll_ctl(outer, libc::EPOLL_CTL_MOD, nested.fd, &raw mut nothing) };
        }
    }
    found
}

/// Counts the native event with this mark as activity of its inner instance. False: it belongs to none.
pub fn woken(interest: &Interest, mark: u64) -> bool {
    let inner = interest.nested.iter().map(|nested| instance::instance(nested.id)).find(|inner| inner.mark() == mark);
    inner.is_some_and(|inner| inner.with(|interest| interest.activity = interest.activity.wrapping_add(1)).is_some())
}

/// Does an instance have anything to report?
pub fn is_ready(id: u32) -> bool {
    let instance = instance::instance(id);
    instance.asked_by_library();
    let looked = instance.with(|interest| {
        let slots = interest.watched > 0
            && session::get().is_some_and(|session| {
                instance::own(instance, session, interest);
                interest.drain(session);
                interest.any_ready()
            });
        let inner = |nested: &Nested| !nested.disabled && nested.events & READABLE != 0 && is_ready(nested.id);
        (slots || interest.nested.iter().any(inner), interest.native > 0)
    });
    let (ready, native) = looked.unwrap_or((false, true));
    ready || native_is_ready(instance, native)
}

/// Are its kernel descriptors ready? The doorbells are drained first, because they would count as ready too.
fn native_is_ready(instance: &Instance, native: bool) -> bool {
    instance.silence();
    instance.calm();
    if !native {
        return false;
    }
    let mut poll = [libc::pollfd { fd: instance.descriptor(), events: libc::POLLIN, revents: 0 }];
    sys::ppoll(&mut poll, Some(Duration::ZERO), core::ptr::null()) == Ok(1)
}

/// The instance and all instances nested inside it.
pub fn all(id: u32) -> Vec<u32> {
    let mut ids = vec![id];
    let mut next = 0;
    while let Some(id) = ids.get(next).copied() {
        let inner =
            instance::instance(id).with(|interest| interest.nested.iter().map(|nested| nested.id).collect::<Vec<_>>());
        ids.extend(inner.unwrap_or_default());
        next += 1;
    }
    ids
}

/// The descriptor of an inner instance has been closed.
pub fn forget(fd: c_int) {
    instance::each(|_, interest| interest.nested.retain(|nested| nested.fd != fd));
}

/// Takes over inner instances that were added before there was a session. In the native set they still have the
/// program's data.
pub fn adopt(outer: c_int, interest: &mut Interest) {
    let mut at = 0;
    while let Some((fd, event)) = interest.pending.get(at).copied() {
        let Descriptor::Epoll(inner) = table::get(fd) else {
            at += 1;
            continue;
        };
        interest.pending.swap_remove(at);
        let mut native = epoll_event { events: event.events, u64: instance::instance(inner).mark() };
        // SAFETY: `native` lives until the call returns.
        if unsafe { real::epoll_ctl(outer, libc::EPOLL_CTL_MOD, fd, &raw mut native) } == 0 {
            interest.native = interest.native.saturating_sub(1);
            let seen = activity(inner).wrapping_sub(1);
            let (data, events) = (event.u64, event.events);
            interest.nested.push(Nested { fd, id: inner, data, events, seen, disabled: false });
        }
    }
}
