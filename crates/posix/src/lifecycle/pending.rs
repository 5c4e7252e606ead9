//! Pending sockets: they have neither connected nor listened, and are still the kernel's.

use crate::fd::table::{self, Descriptor, Pending};
use crate::ready::rewatch;
use libc::c_int;
use towpath_client::sys;

/// Is this kernel socket for IPv6 only?
pub fn is_v6only(fd: c_int) -> bool {
    sys::getsockopt::<c_int>(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 0).is_ok_and(|only| only != 0)
}

/// Leaves a pending socket to the kernel, for good.
pub fn leave(fd: c_int, pending: Pending) {
    if pending.reuse_hidden {
        let _ = sys::setsockopt(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1);
    }
    for copy in table::copies(fd) {
        table::set(copy, Descriptor::Kernel);
        rewatch::forget_pending(copy);
    }
}
