//! Locks that survive a dead owner: spin, then sleep on a futex; the word holds the owner's thread id. They may lie in
//! memory shared between processes.

use crate::sys;
use crate::tid::tid;
#[cfg(target_arch = "x86_64")]
use core::sync::atomic::compiler_fence;
use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;
use towpath_ring::wake;

/// Set while somebody sleeps on the lock.
const WAITED_FOR: u32 = 1 << 31;
/// Looks before sleeping. The longest critical section is a copy of a ring's worth of bytes.
const SPINS: u32 = 200;
/// How often a sleeper checks that the owner is still alive.
const CHECK_OWNER: Duration = Duration::from_millis(20);

/// The lock. All zero is unlocked.
#[repr(transparent)]
#[derive(Default)]
pub struct Lock(AtomicU32);

/// The locked state; unlocks when dropped.
pub struct Guard<'a> {
    word: &'a AtomicU32,
    abandoned: bool,
}

impl<'a> Guard<'a> {
    #[inline]
    fn of(word: &'a AtomicU32) -> Self {
        Self { word, abandoned: false }
    }

    /// Was the owner before killed while it had the lock?
    #[inline]
    pub fn was_abandoned(&self) -> bool {
        self.abandoned
    }

    /// Unlocks and fences as `fence(SeqCst)` does: on x86-64 the instruction that unlocks does that too.
    #[inline(always)]
    pub fn unlock_and_fence(self) {
        drop(self);
        #[cfg(target_arch = "x86_64")]
        compiler_fence(Ordering::SeqCst);
        #[cfg(not(target_arch = "x86_64"))]
        core::sync::atomic::fence(Ordering::SeqCst);
    }
}

impl Lock {
    pub const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Locks; `None` if the calling thread has it already (it is in a signal handler that interrupted the owner).
    #[inline]
    pub fn lock(&self) -> Option<Guard<'_>> {
        let me = tid();
        match self.0.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => Some(Guard::of(&self.0)),
            Err(owner) if owner & !WAITED_FOR == me => None,
            Err(_) => self.lock_slow(me),
        }
    }

    /// Unlocks by force: for a forked child, in which the owner does not exist.
    pub fn reset(&self) {
        self.0.store(0, Ordering::Release);
    }

    #[cold]
    #[inline(never)]
    fn lock_slow(&self, me: u32) -> Option<Guard<'_>> {
        for _ in 0..SPINS {
            core::hint::spin_loop();
            if self.0.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return Some(Guard::of(&self.0));
            }
        }
        loop {
            let seen = self.0.load(Ordering::Relaxed);
            if seen == 0 {
                // Others may sleep too: keep the mark, so that the unlock wakes them.
                if self.0.compare_exchange(0, me | WAITED_FOR, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                    return Some(Guard::of(&self.0));
                }
                continue;
            }
            let marked = seen | WAITED_FOR;
            if seen != marked && self.0.compare_exchange(seen, marked, Ordering::Relaxed, Ordering::Relaxed).is_err() {
                continue;
            }
            let timed_out = matches!(wake::futex_wait(&self.0, marked, Some(CHECK_OWNER)), Ok(wake::Woken::TimedOut));
            let broken = timed_out && !sys::alive((marked & !WAITED_FOR) as i32);
            let taken = me | WAITED_FOR;
            if broken && self.0.compare_exchange(marked, taken, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return Some(Guard { word: &self.0, abandoned: true });
            }
        }
    }
}

impl Drop for Guard<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.word.swap(0, Ordering::Release) & WAITED_FOR != 0 {
            wake::futex_wake(self.word);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excludes_and_tells_its_owner() {
        let lock = Lock::new();
        let guard = lock.lock().expect("free");
        assert!(lock.lock().is_none(), "the owner is told, not hung");
        drop(guard);
        assert!(lock.lock().is_some());
    }

    #[test]
    fn counts_right_under_contention() {
        let (lock, count) = (Lock::new(), core::cell::UnsafeCell::new(0u64));
        struct Shared<'a>(&'a Lock, &'a core::cell::UnsafeCell<u64>);
        // SAFETY: the cell is only used under the lock, which is what is tested.
        unsafe impl Sync for Shared<'_> {}
        let shared = Shared(&lock, &count);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let shared = &shared;
                    for _ in 0..20_000 {
                        let _guard = shared.0.lock().expect("not ours");
                        // SAFETY: locked.
                        unsafe { *shared.1.get() += 1 };
                    }
                });
            }
        });
        assert_eq!(count.into_inner(), 80_000);
    }

    #[test]
    fn a_dead_owner_does_not_hold_it_for_ever() {
        let lock = Lock::new();
        std::thread::scope(|scope| {
            scope.spawn(|| core::mem::forget(lock.lock()));
        });
        let inherited = lock.lock().expect("broken");
        assert!(inherited.was_abandoned(), "whoever gets it knows that something may be half done");
        drop(inherited);
        assert!(lock.lock().is_some_and(|guard| !guard.was_abandoned()));
    }

    #[test]
    fn a_killed_process_that_nobody_has_waited_for_does_not_hold_it_for_ever() {
        // SAFETY: the child only sleeps.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: no arguments; ends by the signal.
            unsafe { libc::pause() };
        }
        let lock = Lock(AtomicU32::new(child as u32));
        assert!(sys::alive(child));
        // SAFETY: our child, which is not waited for yet.
        unsafe { libc::kill(child, libc::SIGKILL) };
        assert!(lock.lock().expect("broken").was_abandoned());
        // SAFETY: our child.
        unsafe { libc::waitpid(child, core::ptr::null_mut(), 0) };
    }
}
