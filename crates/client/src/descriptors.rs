//! Descriptors of the library's own, out of the program's way and reach.

use crate::callbacks;
use crate::sys::{self, Sys};
use rustix::fd::{AsRawFd, OwnedFd};

/// Their numbers start here on, because programs expect small numbers.
const HIGH_NUMBERS: u64 = 900;

/// Moves a descriptor out of the program's way and reach.
pub fn protect(fd: OwnedFd) -> Sys<i32> {
    protected_copy(fd.as_raw_fd())
}

/// Another number for a descriptor, out of the program's way and reach.
pub fn protected_copy(fd: i32) -> Sys<i32> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
    let lowest = HIGH_NUMBERS.min(limit / 2) as i32;
    let high = sys::fcntl(fd, libc::F_DUPFD_CLOEXEC, lowest)?;
    (callbacks::get().protected)(high);
    Ok(high)
}

/// Closes a descriptor that [`protect`] or [`protected_copy`] made.
pub fn unprotect(fd: i32) {
    (callbacks::get().unprotected)(fd);
    sys::close(fd);
}
