//! Catches a program's calls: replaces libc's functions in a preloaded library, and knows the real functions. An
//! implementation of [`Handler`] gives the calls their meaning.
//!
//! Every caught call asks the handler. On `None` the real function makes the call. The real functions are looked up
//! once, in `.init_array`: `dlsym` may allocate, and the program's allocator may itself make calls that are caught.
//! Until then plain system calls are made.
//!
//! C-variadic functions (`fcntl`, `ioctl`) are defined with a fixed third argument. On x86-64 and AArch64 Linux an
//! integer or pointer is passed in the same register either way.

#![allow(clippy::missing_safety_doc)] // every function here has the contract of the C function of its name

mod answer;
#[doc(hidden)]
pub mod by_number;
mod calls;
pub mod cancel;
mod elf_file;
pub mod exec;
pub mod forks;
#[cfg(target_arch = "x86_64")]
pub mod inject;
pub mod library;
pub mod loaded;
mod masked;
mod needed;
pub mod program;
mod raw;
mod system_calls;
pub mod uring;

#[doc(hidden)]
pub use answer::failed_with;
pub use answer::{Answer, Failure, finish, outcome, set_errno};
pub use calls::{Handler, Usual, real, resolve};

#[doc(hidden)]
pub use libc;

use core::sync::atomic::{AtomicU8, Ordering};

/// The first word that every caught call loads.
static STAGE: AtomicU8 = AtomicU8::new(stage::LOADING);

mod stage {
    /// The real functions have not been looked up.
    pub const LOADING: u8 = 0;
    /// The handler is asked.
    pub const READY: u8 = 1;
    /// The handler is asked, and a thread has been cancelled: cancellation points check whether it is theirs.
    pub const CANCELING: u8 = 2;
}

/// True once the real functions are known. Before that no handler is asked. A thread that is older than the library sees by it
/// all that [`start`] has stored.
#[inline]
pub fn ready() -> bool {
    STAGE.load(Ordering::Acquire) != stage::LOADING
}

/// [`ready`], in a call that is a cancellation point.
#[inline(always)]
pub fn ready_at_point() -> bool {
    match STAGE.load(Ordering::Acquire) {
        stage::READY => true,
        stage::LOADING => false,
        _ => {
            cancel::act();
            true
        }
    }
}

/// Called once from `.init_array`, by the expansion of [`preload!`].
#[doc(hidden)]
pub fn start(init: fn()) {
    resolve();
    init();
    STAGE.store(stage::READY, Ordering::Release);
}

/// The address space that is kept for an injected program's `brk` and is not in use. `None`: the program is not injected.
pub fn kept_for_brk() -> Option<core::ops::Range<usize>> {
    #[cfg(target_arch = "x86_64")]
    return inject::memory::reserved();
    #[cfg(not(target_arch = "x86_64"))]
    None
}

/// The program has called `mlockall` or `munlockall`. From now on is what it gets by `brk` to be locked?
pub fn lock_in_future(_is_locked: bool) {
    #[cfg(target_arch = "x86_64")]
    inject::memory::lock_in_future(_is_locked);
}
