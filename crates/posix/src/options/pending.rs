//! Socket options of a pending socket. The kernel has their values, except for those that only the stack knows.

use crate::fd::table::{self as descriptors, Descriptor, Pending};
use crate::lifecycle::pending;
use crate::observe::fallback;
use crate::options::stack;
use crate::options::table::{self, Row};
use crate::options::values::{TIME_LIMITS, congestion, give, given};
use libc::{c_int, c_void, socklen_t, timeval};
use towpath_client::sys::Sys;
use towpath_hook::{Answer, outcome, real};
use towpath_ring::report::Count;

/// `setsockopt`.
///
/// # Safety
/// The contract of `setsockopt`: `value` is null or has `len` readable bytes.
pub unsafe fn set(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> Answer<c_int> {
    // SAFETY: the caller keeps the contract of `setsockopt`.
    let set = outcome(unsafe { real::setsockopt(fd, level, name, value, len) });
    let row = table::find(level, name);
    descriptors::update_pending(fd, |pending| {
        pending.options = true;
        pending.kept |= row.is_some_and(Row::is_emulated);
        pending.steered |= if set.is_ok() { row.map_or(0, Row::if_set_bit) } else { 0 };
        let limit = TIME_LIMITS.iter().position(|limit| (level, name) == (libc::SOL_SOCKET, *limit));
        if let (Some(limit), Ok(_)) = (limit, set) {
            // SAFETY: the kernel has just read a `timeval` there.
            pending.no_wait[limit] = unsafe { given::<timeval>(value, len) }.is_ok_and(|time| time.tv_sec < 0);
        }
    });
    // With IP options (source routes, for instance) the socket is left to the kernel: the stack sends none (RFC 9293
    // §3.9.2.1, MUST-51, MUST-52).
    if (level, name) == (libc::IPPROTO_IP, libc::IP_OPTIONS)
        && set.is_ok()
        && let Descriptor::Pending(pending) = descriptors::get(fd)
    {
        fallback::count(Count::IpOptions);
        pending::leave(fd, pending);
    }
    if (level, name) != (libc::IPPROTO_TCP, libc::TCP_CONGESTION) {
        return Some(set);
    }
    // SAFETY: the caller vouches for `value`.
    Some(unsafe { congestion(value, len) }.map(|number| {
        descriptors::update_pending(fd, |pending| pending.congestion = number as u8);
        0
    }))
}

/// `getsockopt` of `TCP_CONGESTION`, if the program has set it. The kernel is not asked, because it may not have the
/// algorithm.
///
/// # Safety
/// The contract of `getsockopt`: `len` is null or valid, `out` is null or has `*len` writable bytes.
pub unsafe fn get_congestion(pending: Pending, out: *mut c_void, len: *mut socklen_t) -> Sys<c_int> {
    // SAFETY: the caller vouches for `len` and `out`.
    unsafe { give(stack::name_of(pending.congestion.into()), out, len) }
}
