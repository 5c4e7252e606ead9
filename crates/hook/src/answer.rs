//! The answers of a handler, and their form for C callers.

use crate::cancel;
use libc::{c_int, c_long, ssize_t};

/// A handler's answer. `None`: the real function is to make the call. `Some(Err(errno))`: the call fails with that
/// errno.
pub type Answer<T> = Option<Result<T, i32>>;

/// The value with which a C function of this return type reports a failure.
pub trait Failure: Copy {
    /// The value.
    const FAILED: Self;
    /// Is this that value?
    fn failed(self) -> bool;
}

impl Failure for c_int {
    const FAILED: Self = -1;
    fn failed(self) -> bool {
        self == -1
    }
}

impl Failure for ssize_t {
    const FAILED: Self = -1;
    fn failed(self) -> bool {
        self == -1
    }
}

/// `signal` fails with SIG_ERR, which is all ones.
impl Failure for usize {
    const FAILED: Self = usize::MAX;
    fn failed(self) -> bool {
        self == usize::MAX
    }
}

/// `fdopen` fails with null.
impl Failure for *mut libc::FILE {
    const FAILED: Self = core::ptr::null_mut();
    fn failed(self) -> bool {
        self.is_null()
    }
}

impl Failure for () {
    const FAILED: Self = ();
    fn failed(self) -> bool {
        false
    }
}

/// Sets the calling thread's `errno`.
#[inline]
pub fn set_errno(errno: i32) {
    // SAFETY: the C library's errno location is valid for the calling thread.
    unsafe { *libc::__errno_location() = errno }
}

/// Turns a handler's answer into the C return value and errno.
#[inline]
pub fn finish<T: Failure>(result: Result<T, i32>) -> T {
    match result {
        Ok(value) => value,
        Err(errno) => failed(errno),
    }
}

#[inline]
fn failed<T: Failure>(errno: i32) -> T {
    if errno == cancel::CANCELED {
        cancel::act();
        // Cancellation may have been disabled since. Then the call has only been interrupted.
        set_errno(libc::EINTR);
    } else {
        set_errno(errno);
    }
    T::FAILED
}

/// Turns the C return value of a real function (and errno) into a `Result`.
#[inline]
pub fn outcome<T: Failure>(value: T) -> Result<T, i32> {
    if value.failed() {
        // SAFETY: libc's errno location is valid for the calling thread.
        Err(unsafe { *libc::__errno_location() })
    } else {
        Ok(value)
    }
}

/// The result of libc's `syscall` after a system call that returned a negative errno.
pub extern "C" fn failed_with(negative: c_long) -> c_long {
    set_errno(-negative as i32);
    -1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_becomes_minus_one_and_errno() {
        assert_eq!(finish::<c_int>(Err(libc::EPIPE)), -1);
        assert_eq!(outcome::<c_int>(-1), Err(libc::EPIPE));
        assert_eq!(finish::<ssize_t>(Ok(7)), 7);
        assert_eq!(outcome::<ssize_t>(7), Ok(7));
    }
}
