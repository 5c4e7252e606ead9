//! The descriptor reserve: a few descriptors for calls in which the library needs more of them than Linux does.
//!
//! On Linux, `connect` and `listen` take no descriptor, and `accept` takes one. A program at its limit must not notice
//! the difference. If the program has lowered its limit below the reserve's numbers, the limit is raised for a moment.

use crate::descriptors;
use crate::lock::Lock;
use crate::sys::{self, Sys};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, Ordering};
use libc::c_int;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The reserve is as large as a socketpair.
const SPARES: usize = 2;

struct Reserve {
    lock: Lock,
    spares: UnsafeCell<[c_int; SPARES]>,
}

// SAFETY: `spares` is only accessed under the lock.
unsafe impl Sync for Reserve {}

static RESERVE: Reserve = Reserve { lock: Lock::new(), spares: UnsafeCell::new([-1; SPARES]) };

/// Is the reserve incomplete?
static MISSING: AtomicBool = AtomicBool::new(false);

/// In a forked child, which has inherited the reserve.
pub fn forked() {
    RESERVE.lock.reset();
}

/// Fills the reserve with copies of `of`, as far as numbers are left.
pub fn fill(of: c_int) {
    let Some(_locked) = RESERVE.lock.lock() else { return };
    // SAFETY: the lock is held, so this is the only reference.
    let spares = unsafe { &mut *RESERVE.spares.get() };
    for spare in spares.iter_mut().filter(|spare| **spare < 0) {
        *spare = descriptors::protected_copy(of).unwrap_or(-1);
    }
    MISSING.store(spares.iter().any(|spare| *spare < 0), Ordering::Relaxed);
}

/// [`fill`], if the reserve is incomplete.
#[inline]
pub fn refill(of: c_int) {
    if MISSING.load(Ordering::Relaxed) {
        fill(of);
    }
}

/// Room for a few more descriptors. By the time this is dropped, the caller has closed those that it opened.
pub struct Room(Option<Rlimit>);

impl Room {
    /// Closes the reserve, and raises the limit if that is allowed.
    #[cold]
    pub fn make() -> Self {
        if let Some(_locked) = RESERVE.lock.lock() {
            MISSING.store(true, Ordering::Relaxed);
            // SAFETY: the lock is held, so this is the only reference.
            for spare in unsafe { &mut *RESERVE.spares.get() }.iter_mut().filter(|spare| **spare >= 0) {
                descriptors::unprotect(core::mem::replace(spare, -1));
            }
        }
        let limit = getrlimit(Resource::Nofile);
        let raised = limit.current.map(|current| current + SPARES as u64);
        let is_lower = |raised: &u64| limit.maximum.is_none_or(|maximum| *raised <= maximum);
        let may = raised.filter(is_lower).map(|raised| Rlimit { current: Some(raised), ..limit });
        Self(may.and_then(|raised| setrlimit(Resource::Nofile, raised).ok()).map(|()| limit))
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if let Some(limit) = self.0.take() {
            let _ = setrlimit(Resource::Nofile, limit);
        }
    }
}

/// A socketpair of which the program keeps neither end.
pub fn pair() -> Sys<[c_int; 2]> {
    match sys::socketpair() {
        Err(libc::EMFILE) => {
            let _room = Room::make();
            sys::socketpair()
        }
        pair => pair,
    }
}

/// A socketpair of which the program keeps the first end, under the number that it would get on Linux.
pub fn pair_for_one() -> Sys<[c_int; 2]> {
    match sys::socketpair() {
        Err(libc::EMFILE) => {
            // The call must fail if the program has no number left. The reserve's numbers, which may be lower, do not
            // count.
            let number = sys::socket(libc::AF_INET)?;
            sys::close(number);
            let _room = Room::make();
            let [low, other] = sys::socketpair()?;
            if low == number {
                return Ok([low, other]);
            }
            if other == number {
                return Ok([other, low]);
            }
            let moved = sys::fcntl(low, libc::F_DUPFD_CLOEXEC, number);
            sys::close(low);
            moved.map(|ours| [ours, other]).inspect_err(|_| sys::close(other))
        }
        pair => pair,
    }
}
