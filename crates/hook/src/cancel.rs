//! Cancellation points: calls in which a cancelled thread (`pthread_cancel`) ends. libc's own functions end it
//! themselves. For calls that a handler answers it is done here, after the handler has returned: its frames must not be
//! unwound.

use crate::{STAGE, stage};
use core::sync::atomic::Ordering;

/// The errno of a handler that has given a call up because the thread is cancelled. No real errno has this value.
pub const CANCELED: i32 = 4096;

unsafe extern "C-unwind" {
    fn pthread_testcancel();
}

/// Notes that a thread of this process is being cancelled.
pub fn noticed() {
    STAGE.store(stage::CANCELING, Ordering::SeqCst);
}

/// True if a thread of this process has ever been cancelled.
#[inline]
pub fn ever() -> bool {
    STAGE.load(Ordering::Relaxed) == stage::CANCELING
}

/// Ends the calling thread if it is cancelled and cancellation is enabled.
#[inline]
pub fn act() {
    if ever() {
        // SAFETY: the handler has returned, so only frames that may be unwound are left.
        unsafe { pthread_testcancel() };
    }
}

/// Is the call of this name a cancellation point (POSIX.1-2017 §2.9.5.2)?
pub const fn is_point(name: &str) -> bool {
    const POINTS: [&str; 26] = [
        "accept",
        "accept4",
        "close",
        "connect",
        "epoll_pwait",
        "epoll_pwait2",
        "epoll_wait",
        "poll",
        "ppoll",
        "preadv2",
        "pselect",
        "pwritev2",
        "read",
        "readv",
        "recv",
        "recvfrom",
        "recvmmsg",
        "recvmsg",
        "select",
        "send",
        "sendmmsg",
        "sendmsg",
        "sendto",
        "splice",
        "write",
        "writev",
    ];
    let mut at = 0;
    while at < POINTS.len() {
        if same(POINTS[at].as_bytes(), name.as_bytes()) {
            return true;
        }
        at += 1;
    }
    false
}

const fn same(one: &[u8], other: &[u8]) -> bool {
    let mut at = 0;
    while at < one.len() && at < other.len() && one[at] == other[at] {
        at += 1;
    }
    at == one.len() && at == other.len()
}
