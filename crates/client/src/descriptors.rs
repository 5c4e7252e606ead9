//! The library's own descriptors. They have high numbers and are recorded, so that programs neither meet nor close
//! them.

use crate::callbacks;
use crate::sys::{self, Sys};
use rustix::fd::{AsRawFd, OwnedFd};

/// The library's descriptors have numbers from here on, because programs expect small ones.
const HIGH_NUMBERS: u64 = 900;

/// Moves a descriptor to a high number, where the program cannot close it.
pub fn protect(fd: OwnedFd) -> Sys<i32> {
    protected_copy(fd.as_raw_fd())
}

/// A copy of a descriptor at a high number, which the program cannot close.
pub fn protected_copy(fd: i32) -> Sys<i32> {
    // Only a low limit, or one that is nearly met, has to be known.
    high_copy(fd).or_else(|_| {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
        copy_from(fd, HIGH_NUMBERS.min(limit / 2))
    })
}

/// [`protected_copy`] at a number that is high in any case. An error: the program's limit leaves no such number.
pub fn high_copy(fd: i32) -> Sys<i32> {
    copy_from(fd, HIGH_NUMBERS)
}

fn copy_from(fd: i32, lowest: u64) -> Sys<i32> {
    let high = sys::fcntl(fd, libc::F_DUPFD_CLOEXEC, lowest as i32)?;
    (callbacks::get().protected)(high);
    Ok(high)
}

/// Closes a descriptor that [`protect`] or [`protected_copy`] made.
pub fn unprotect(fd: i32) {
    (callbacks::get().unprotected)(fd);
    sys::close(fd);
}
