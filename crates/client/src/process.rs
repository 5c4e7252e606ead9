//! The process's id. A `vfork` child uses its parent's memory, and so counts as its parent.

use crate::sys;
use core::sync::atomic::{AtomicI32, Ordering};

static PID: AtomicI32 = AtomicI32::new(0);

/// This process's id; in a `vfork` child it is the parent's.
#[inline(always)]
pub fn pid() -> i32 {
    match PID.load(Ordering::Relaxed) {
        0 => ask_pid(),
        pid => pid,
    }
}

#[cold]
fn ask_pid() -> i32 {
    let pid = sys::getpid();
    PID.store(pid, Ordering::Relaxed);
    pid
}

/// Is this a child that uses its parent's memory (`vfork`, `posix_spawn`) until it executes a program?
pub fn in_vfork_child() -> bool {
    sys::getpid() != pid()
}

/// In a forked child: forgets the parent's process id.
pub fn forked() {
    PID.store(sys::getpid(), Ordering::Relaxed);
}
