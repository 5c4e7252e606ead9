//! Options of a listener with a kernel half. They hold for both halves. The kernel checks what a program sets, and
//! nearly all are read from it.

use crate::lifecycle::kernel_half;
use crate::options::{self, pending};
use libc::{c_int, c_void, socklen_t};
use towpath_client::socket::Socket;
use towpath_client::sys::Sys;
use towpath_hook::{outcome, real};
use towpath_ring::lines::app_flags;

/// Does the kernel half tell this option's value?
pub fn is_read_from_kernel(level: c_int, name: c_int) -> bool {
    let ours = matches!(
        (level, name),
        // The kernel may lack the algorithm, knows its own connections only, and shows a filter that the program has not
        // set.
        (libc::IPPROTO_TCP, libc::TCP_CONGESTION | libc::TCP_CC_INFO | libc::TCP_INFO)
            | (libc::SOL_SOCKET, libc::SO_GET_FILTER)
    );
    !ours && !options::table::is_refused(level, name)
}

/// `setsockopt`.
///
/// # Safety
/// The contract of `setsockopt`: `value` is null or has `len` readable bytes.
pub unsafe fn set(
    fd: c_int,
    listener: &Socket,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> Sys<c_int> {
    if (level, name) == (libc::SOL_SOCKET, libc::SO_DETACH_FILTER) {
        // The filter there is the stack's. Linux wants a number that means nothing.
        return Err(if (len as usize) < size_of::<c_int>() { libc::EINVAL } else { libc::ENOENT });
    }
    if matches!((level, name), (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER | libc::SO_ATTACH_BPF)) {
        // A socket has one filter.
        kernel_half::give_back(fd, listener);
    }
    // SAFETY: the caller keeps the contract of `setsockopt`.
    let set = outcome(unsafe { real::setsockopt(fd, level, name, value, len) });
    let by_stack = (level, name) == (libc::IPPROTO_TCP, libc::TCP_CONGESTION);
    if set.is_err() && !by_stack {
        return set;
    }
    if !listener.has_app(app_flags::CLOSED) && pending::leaves(fd, level, name).is_some() {
        kernel_half::give_back(fd, listener);
        return set;
    }
    // SAFETY: the caller keeps the contract of `setsockopt`.
    let here = unsafe { options::set(fd, listener, level, name, value, len) };
    // The stack need not know what the kernel knows.
    if by_stack { here } else { set }
}
