//! `getsockopt` and `setsockopt` by descriptor.

use crate::fd::table::{self, Descriptor};
use crate::observe::fallback;
use crate::options;
use libc::{c_int, c_void, socklen_t};
use towpath_client::socket::Socket;
use towpath_client::sys::Sys;
use towpath_hook::Answer;
use towpath_ring::report::Call;

/// `getsockopt`.
///
/// # Safety
/// The contract of `getsockopt`: `value` has `*len` writable bytes.
pub unsafe fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> Answer<c_int> {
    match table::get(fd) {
        Descriptor::Slot { slot, generation } => {
            let socket = Socket::at(slot, generation)?;
            if socket.kernel_half() && options::halves::is_read_from_kernel(level, name) {
                return None;
            }
            // SAFETY: the caller keeps the contract of `getsockopt`: `value` has `*len` writable bytes.
            Some(unsafe { options::get(fd, &socket, level, name, value, len) }.inspect_err(|errno| {
                fallback::refused_if(*errno, Call::GetOption, level, name);
            }))
        }
        Descriptor::Pending(_) if options::table::is_refused(level, name) => {
            Some(refused(Call::GetOption, level, name))
        }
        Descriptor::Pending(pending)
            if pending.congestion != 0 && (level, name) == (libc::IPPROTO_TCP, libc::TCP_CONGESTION) =>
        {
            // SAFETY: the caller keeps the contract of `getsockopt`: `value` has `*len` writable bytes.
            Some(unsafe { options::pending::get_congestion(pending, value, len) })
        }
        _ => None,
    }
}

/// `setsockopt`.
///
/// # Safety
/// The contract of `setsockopt`: `value` has `len` readable bytes.
pub unsafe fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> Answer<c_int> {
    if (level, name) == (libc::IPPROTO_TCP, options::splice::TOWPATH_SPLICE) {
        // SAFETY: the caller keeps the contract of `setsockopt`: `value` has `len` readable bytes.
        return unsafe { options::splice::set(fd, value, len) };
    }
    match table::get(fd) {
        Descriptor::Slot { slot, generation } => {
            let socket = Socket::at(slot, generation)?;
            if socket.kernel_half() && !options::table::is_refused(level, name) {
                // SAFETY: the caller keeps the contract of `setsockopt`: `value` has `len` readable bytes.
                return Some(unsafe { options::halves::set(fd, &socket, level, name, value, len) });
            }
            // SAFETY: the caller keeps the contract of `setsockopt`: `value` has `len` readable bytes.
            Some(unsafe { options::set(fd, &socket, level, name, value, len) }.inspect_err(|errno| {
                fallback::refused_if(*errno, Call::SetOption, level, name);
            }))
        }
        Descriptor::Pending(_) if options::table::is_refused(level, name) => {
            Some(refused(Call::SetOption, level, name))
        }
        // SAFETY: the caller keeps the contract of `setsockopt`: `value` has `len` readable bytes.
        Descriptor::Pending(_) => unsafe { options::pending::set(fd, level, name, value, len) },
        _ => None,
    }
}

/// The answer of a kernel without this option.
fn refused(call: Call, level: c_int, name: c_int) -> Sys<c_int> {
    fallback::refused_if(libc::ENOPROTOOPT, call, level, name);
    Err(libc::ENOPROTOOPT)
}
