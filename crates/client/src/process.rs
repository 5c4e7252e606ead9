//! Which process this is. A `vfork` child runs on its parent's memory and does not count.

use crate::sys;
use core::sync::atomic::{AtomicI32, Ordering};

static PID: AtomicI32 = AtomicI32::new(0);

/// This process's id; in a `vfork` child still the parent's.
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

/// Is this a child that runs on its parent's memory (`vfork`, `posix_spawn`) until it executes something?
pub fn in_vfork_child() -> bool {
    sys::getpid() != pid()
}

/// In a forked child: asks for the id anew.
pub fn forked() {
    PID.store(sys::getpid(), Ordering::Relaxed);
}
