//! Locks that survive the death of their owner. A thread spins, then sleeps on a futex. The word holds the owner's
//! thread id. A lock may be in memory that processes share.

use crate::single_threaded::is_single_threaded;
use crate::sys;
use crate::tid::{known, tid};
use core::sync::atomic::{AtomicU32, Ordering, compiler_fence};
use core::time::Duration;
use towpath_ring::wake;

/// Set while a thread sleeps on the lock.
const WAITED_FOR: u32 = 1 << 31;
/// Attempts before sleeping. The longest critical section copies a full ring.
const SPINS: u32 = 200;
/// How often a sleeper checks that the owner is still alive.
const CHECK_OWNER: Duration = Duration::from_millis(20);

/// The lock. All zero means unlocked.
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

    /// Was the previous owner killed while it held the lock?
    #[inline]
    pub fn was_abandoned(&self) -> bool {
        self.abandoned
    }

    /// Orders everything before the lock was taken before everything from now on, like `fence(SeqCst)`.
    #[inline(always)]
    pub fn fence(&self) {
        fence_by_lock();
    }

    /// Leaves the lock taken, for a function that gets it by [`Lock::left_locked`].
    #[inline(always)]
    pub(crate) fn leave(self) {
        core::mem::forget(self);
    }

    /// Unlocks, with a fence like [`Guard::fence`].
    #[inline(always)]
    pub fn unlock_and_fence(self) {
        drop(self);
        fence_by_lock();
    }
}

/// The locked state of a lock taken by [`Lock::try_alone`], which no other thread or process can have seen; unlocks when dropped.
pub struct Alone<'a> {
    word: &'a AtomicU32,
}

impl Drop for Alone<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        compiler_fence(Ordering::SeqCst);
        self.word.store(0, Ordering::Release);
    }
}

/// A locked state, however the lock was taken.
pub trait Locked<'a>: Sized {
    /// For a caller that unlocks and fences in one instruction, or leaves that to the function with which it ends.
    fn into_fencing(self) -> Guard<'a>;
}

impl<'a> Locked<'a> for Alone<'a> {
    #[inline(always)]
    fn into_fencing(self) -> Guard<'a> {
        let word = self.word;
        core::mem::forget(self);
        Guard::of(word)
    }
}

impl<'a> Locked<'a> for Guard<'a> {
    #[inline(always)]
    fn into_fencing(self) -> Guard<'a> {
        self
    }
}

/// May a lock that is not `shared` with other processes be taken by [`Lock::try_alone`]?
#[inline(always)]
pub fn is_alone(shared: bool) -> bool {
    !shared && is_single_threaded()
}

/// Called after taking or releasing a lock. On x86-64 either instruction is a full fence for the processor.
#[inline(always)]
fn fence_by_lock() {
    #[cfg(target_arch = "x86_64")]
    compiler_fence(Ordering::SeqCst);
    #[cfg(not(target_arch = "x86_64"))]
    core::sync::atomic::fence(Ordering::SeqCst);
}

impl Lock {
    /// An unlocked lock.
    pub const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Locks. `None` if the calling thread holds it already: a signal handler has interrupted the owner.
    #[inline]
    pub fn lock(&self) -> Option<Guard<'_>> {
        let me = tid();
        match self.0.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => Some(Guard::of(&self.0)),
            Err(owner) if owner & !WAITED_FOR == me => None,
            Err(_) => self.lock_slow(me),
        }
    }

    /// Locks if one attempt suffices. `None`: somebody holds it, or the calling thread does not know its id yet.
    #[inline(always)]
    pub fn try_lock(&self) -> Option<Guard<'_>> {
        let me = known();
        if me == 0 || self.0.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return None;
        }
        Some(Guard::of(&self.0))
    }

    /// [`Lock::try_lock`] without a locked instruction, if the lock [is this thread's alone](is_alone).
    #[inline(always)]
    pub fn try_alone(&self) -> Option<Alone<'_>> {
        let me = known();
        if me == 0 || self.0.load(Ordering::Acquire) != 0 {
            return None;
        }
        // A signal handler that interrupts here releases what it has locked before it returns.
        self.0.store(me, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        Some(Alone { word: &self.0 })
    }

    /// The locked state that the caller of a function has left to it, by [`Guard::leave`].
    #[inline(always)]
    pub(crate) fn left_locked(&self) -> Guard<'_> {
        Guard::of(&self.0)
    }

    /// Does somebody hold it? For a forked child, in which the owner does not exist.
    pub fn is_taken(&self) -> bool {
        self.0.load(Ordering::Acquire) != 0
    }

    /// Unlocks by force. For a forked child, in which the owner does not exist.
    pub fn reset(&self) {
        self.0.store(0, Ordering::Release);
    }

    #[cold]
    #[inline(never)]
    fn lock_slow(&self, me: u32) -> Option<Guard<'_>> {
        for _ in 0..SPINS {
            core::hint::spin_loop();
            // An attempt takes the cache line from the owner, so there is none before the lock is seen free.
            if self.0.load(Ordering::Relaxed) == 0
                && self.0.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed).is_ok()
            {
                return Some(Guard::of(&self.0));
            }
        }
        loop {
            let seen = self.0.load(Ordering::Relaxed);
            if seen == 0 {
                // Others may sleep too: the mark stays, so that the unlock wakes them.
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
            wake_one(self.word);
        }
    }
}

/// Wakes a thread that sleeps on the lock. On x86-64 the routine preserves all registers, so that an unlock, which
/// hardly ever wakes anybody, saves none.
#[cold]
#[inline(always)]
fn wake_one(word: &AtomicU32) {
    #[cfg(not(target_arch = "x86_64"))]
    wake::futex_wake(word);
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the routine changes only the registers named here, and memory that a call may change.
    unsafe {
        core::arch::asm!(
            "call {routine}",
            routine = sym towpath_wake,
            inout("rax") word => _,
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
            out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _, out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
        );
    }
}

#[cfg(target_arch = "x86_64")]
extern "C" fn wake_word(word: &AtomicU32) {
    wake::futex_wake(word);
}

#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(
    ".text",
    ".p2align 4",
    ".hidden towpath_wake",
    ".globl towpath_wake",
    "towpath_wake:",
    "push rcx",
    "push rdx",
    "push rsi",
    "push rdi",
    "push r8",
    "push r9",
    "push r10",
    "push r11",
    // Nine words and the return address keep the stack aligned for a call.
    "push r11",
    "mov rdi, rax",
    "call {wake}",
    "pop r11",
    "pop r11",
    "pop r10",
    "pop r9",
    "pop r8",
    "pop rdi",
    "pop rsi",
    "pop rdx",
    "pop rcx",
    "ret",
    wake = sym wake_word,
);

#[cfg(target_arch = "x86_64")]
unsafe extern "C" {
    fn towpath_wake();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excludes_and_tells_its_owner() {
        let lock = Lock::new();
        let guard = lock.lock().expect("free");
        assert!(lock.lock().is_none(), "the owner gets an answer and does not hang");
        drop(guard);
        assert!(lock.lock().is_some());
    }

    #[test]
    fn a_lock_taken_at_one_look_excludes_whether_it_is_shared_or_not() {
        let lock = Lock::new();
        tid();
        let excludes = || lock.try_lock().is_none() && lock.try_alone().is_none() && lock.lock().is_none();
        let guard = lock.try_lock().expect("free");
        assert!(excludes(), "the owner gets an answer and does not hang");
        guard.leave();
        assert!(excludes());
        drop(lock.left_locked());
        let alone = lock.try_alone().expect("let go");
        assert!(excludes());
        drop(alone);
        lock.try_alone().expect("let go").into_fencing().unlock_and_fence();
        assert!(lock.lock().is_some());
    }

    #[test]
    fn the_only_thread_of_a_process_needs_no_locked_instruction_for_what_is_its_own() {
        // SAFETY: the child uses only its own copy of the lock and ends by `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            crate::single_threaded::pretend();
            // SAFETY: `_exit` takes a number, and ends the child.
            unsafe { libc::_exit(i32::from(!is_alone(false) || is_alone(true))) };
        }
        let mut status = -1;
        // SAFETY: `child` is the process just forked, and `status` has room.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(status, 0);
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
                        // SAFETY: the lock is held, which is what the test is about.
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
        assert!(inherited.was_abandoned(), "the next owner learns that something may be half done");
        drop(inherited);
        assert!(lock.lock().is_some_and(|guard| !guard.was_abandoned()));
    }

    #[test]
    fn a_killed_process_that_nobody_has_waited_for_does_not_hold_it_for_ever() {
        // SAFETY: the child only sleeps.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: `pause` takes nothing; a signal ends the child.
            unsafe { libc::pause() };
        }
        let lock = Lock(AtomicU32::new(child as u32));
        assert!(sys::alive(child));
        // SAFETY: `child` is a child of this process that has not been waited for, so the number is still its own.
        unsafe { libc::kill(child, libc::SIGKILL) };
        assert!(lock.lock().expect("broken").was_abandoned());
        // SAFETY: `child` is a child of this process, and null asks for no status.
        unsafe { libc::waitpid(child, core::ptr::null_mut(), 0) };
    }
}
