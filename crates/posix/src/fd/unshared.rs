//! Threads that would have descriptors of their own. The library has one table for all threads of the process, so the
//! same number cannot mean two things.

use crate::lifecycle::registration;
use std::os::unix::fs::MetadataExt;
use towpath_client::{process, session};
use towpath_hook::Answer;

/// The links of a directory without subdirectories.
const EMPTY: u64 = 2;

/// Has the process one thread, as far as `/proc` tells?
fn is_alone() -> bool {
    std::fs::metadata("/proc/self/task").is_ok_and(|tasks| tasks.nlink() == EMPTY + 1)
}

/// The calling thread asks for descriptors of its own. Before the first accelerated socket the process keeps to the
/// kernel from now on. After it the call fails as with a kernel that does not know the flag.
pub fn refused<T>() -> Answer<T> {
    if process::in_vfork_child() || is_alone() {
        return None;
    }
    registration::give_up();
    session::get().map(|_| Err(libc::EINVAL))
}
