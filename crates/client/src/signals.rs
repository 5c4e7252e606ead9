//! Keeps signal handlers away for a moment.
//!
//! A handler may jump out of a call with `siglongjmp`, which Linux allows in calls that are safe in handlers. Memory
//! and locks are not safe from that, so a call that needs them is not interrupted meanwhile.

use core::ffi::c_int;

/// Faults of the processor, and SIGSYS, by which an injected program's calls are caught.
const FAULTS: [c_int; 6] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];

/// This thread's handlers wait until it is dropped.
pub struct Blocked {
    before: u64,
}

fn set(how: c_int, mask: u64) -> u64 {
    let mut before = 0u64;
    // SAFETY: the kernel's signal sets have 64 bits. It reads one and writes the other, which live until it returns.
    unsafe {
        libc::syscall(libc::SYS_rt_sigprocmask, how, &raw const mask, &raw mut before, size_of::<u64>());
    }
    before
}

impl Blocked {
    /// Blocks all signals but faults.
    pub fn now() -> Self {
        let faults = FAULTS.iter().fold(0, |faults, signal| faults | 1u64 << (signal - 1));
        Self { before: set(libc::SIG_BLOCK, !faults) }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        set(libc::SIG_SETMASK, self.before);
    }
}
