//! The fast paths by themselves. `None`: the call has been left to the handler.

#![allow(clippy::missing_safety_doc)] // every function here has the contract of the C function of its name

use crate::handler::Posix;
use libc::{c_int, c_void, epoll_event, size_t, ssize_t};
use towpath_hook::Usual;

/// No call returns this.
const LEFT: ssize_t = ssize_t::MIN;
const EVENTS_LEFT: c_int = c_int::MIN;

unsafe extern "C-unwind" fn left_wait(_: c_int, _: *mut epoll_event, _: c_int, _: c_int) -> c_int {
    EVENTS_LEFT
}
unsafe extern "C-unwind" fn left_read(_: c_int, _: *mut c_void, _: size_t) -> ssize_t {
    LEFT
}
unsafe extern "C-unwind" fn left_recv(_: c_int, _: *mut c_void, _: size_t, _: c_int) -> ssize_t {
    LEFT
}
unsafe extern "C-unwind" fn left_write(_: c_int, _: *const c_void, _: size_t) -> ssize_t {
    LEFT
}
unsafe extern "C-unwind" fn left_send(_: c_int, _: *const c_void, _: size_t, _: c_int) -> ssize_t {
    LEFT
}

fn moved(count: ssize_t) -> Option<ssize_t> {
    (count != LEFT).then_some(count)
}

/// `epoll_wait` for one event: how many there are, and the data of it.
pub fn wait(epfd: c_int) -> Option<(c_int, u64)> {
    let mut events = [epoll_event { events: 0, u64: 0 }; 1];
    // SAFETY: room for one.
    unsafe { epoll_wait(epfd, events.as_mut_ptr(), 1, 0) }.map(|found| (found, events[0].u64))
}

pub unsafe fn epoll_wait(epfd: c_int, events: *mut epoll_event, count: c_int, timeout_ms: c_int) -> Option<c_int> {
    // SAFETY: the caller keeps the contract.
    let found = unsafe { <Posix as Usual>::epoll_wait(epfd, events, count, timeout_ms, left_wait) };
    (found != EVENTS_LEFT).then_some(found)
}

pub unsafe fn read(fd: c_int, buf: *mut c_void, len: size_t) -> Option<ssize_t> {
    // SAFETY: the caller keeps the contract.
    moved(unsafe { <Posix as Usual>::read(fd, buf, len, left_read) })
}

pub unsafe fn recv(fd: c_int, buf: *mut c_void, len: size_t, flags: c_int) -> Option<ssize_t> {
    // SAFETY: the caller keeps the contract.
    moved(unsafe { <Posix as Usual>::recv(fd, buf, len, flags, left_recv) })
}

pub unsafe fn write(fd: c_int, buf: *const c_void, len: size_t) -> Option<ssize_t> {
    // SAFETY: the caller keeps the contract.
    moved(unsafe { <Posix as Usual>::write(fd, buf, len, left_write) })
}

pub unsafe fn send(fd: c_int, buf: *const c_void, len: size_t, flags: c_int) -> Option<ssize_t> {
    // SAFETY: the caller keeps the contract.
    moved(unsafe { <Posix as Usual>::send(fd, buf, len, flags, left_send) })
}
