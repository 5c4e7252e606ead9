//! Armed-flag wake-ups: spin, arm, fence, look again, sleep.
//!
//! A reader of dirty sets first spins until there is work ([`spin_until`]). If there is none, it arms all its sets
//! ([`crate::dirty::DirtySet::arm`]), and looks at each once more. Then it sleeps on its eventfd (`poll`/`epoll`), and
//! disarms and [`drain`]s it.
//!
//! A thread that waits for one slot loads `event_seq`, counts itself into `sleepers`, and looks at the slot once more.
//! Then it waits for `event_seq` to change ([`futex_wait`]). The other side changes the word first and looks at
//! `sleepers` then ([`must_wake`]).
//!
//! All system calls go straight to the kernel, past any libc function that the library replaces.

use crate::lines::want;
use crate::word::{Fence, Word};
use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;
use rustix::event::{EventfdFlags, Timespec};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::pipe::PipeFlags;
use rustix::thread::futex;
use std::io;
use std::time::Instant;

/// How a [`futex_wait`] ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// The word has changed, or may have. Look again.
    Changed,
    /// The time is over.
    TimedOut,
    /// A signal came.
    Interrupted,
}

/// Sleeps while `word` is `expected`, for at most `timeout` (`None` = for ever). The word may be in shared memory.
pub fn futex_wait(word: &AtomicU32, expected: u32, timeout: Option<Duration>) -> io::Result<Woken> {
    // A time too long for the kernel's type counts as for ever.
    let timeout = timeout.and_then(|t| Timespec::try_from(t).ok());
    match futex::wait(word, futex::Flags::empty(), expected, timeout.as_ref()) {
        Ok(()) | Err(Errno::AGAIN) => Ok(Woken::Changed),
        Err(Errno::TIMEDOUT) => Ok(Woken::TimedOut),
        Err(Errno::INTR) => Ok(Woken::Interrupted),
        Err(error) => Err(error.into()),
    }
}

/// Wakes every thread, in any process, that sleeps on `word`.
pub fn futex_wake(word: &AtomicU32) {
    // It cannot fail for an aligned word of a live mapping.
    let _ = futex::wake(word, futex::Flags::empty(), i32::MAX as u32);
}

/// Wakes the thread, in any process, that has slept on `word` for longest.
pub fn futex_wake_one(word: &AtomicU32) {
    // It cannot fail for an aligned word of a live mapping.
    let _ = futex::wake(word, futex::Flags::empty(), 1);
}

/// After a change of a futex word: does a thread sleep on it? It fences, and pairs with [`about_to_sleep`].
#[inline]
pub fn must_wake<W: Word>(sleepers: &W) -> bool {
    has_changed::<W>();
    must_wake_fenced(sleepers)
}

/// Fences, after changes of one or more futex words and of the state that they tell of.
#[inline]
pub fn has_changed<W: Word>() {
    W::fence(Fence::Notify);
}

/// [`must_wake`] by a writer that has fenced since ([`has_changed`]).
#[inline]
pub fn must_wake_fenced<W: Word>(sleepers: &W) -> bool {
    sleepers.load(Ordering::Relaxed) != 0
}

/// After room has been freed in a ring: does its writer ask to be notified of room? It fences, and pairs with
/// [`has_asked_for_room`].
#[inline]
pub fn asks_for_room<W: Word>(want: &W) -> bool {
    W::fence(Fence::Notify);
    want.load(Ordering::Relaxed) & want::WRITABLE != 0
}

/// Fences, after a writer has asked for room. The writer must look at the room once more. It sees all room whose maker
/// did not see the request.
#[inline]
pub fn has_asked_for_room<W: Word>() {
    W::fence(Fence::Arm);
}

/// Fences, after a thread has counted itself into the sleepers. The thread must look at the slot after it. It sees
/// every change whose maker did not see the count.
#[inline]
pub fn about_to_sleep<W: Word>() {
    W::fence(Fence::Arm);
}

/// A doorbell: a non-blocking, close-on-exec eventfd.
pub fn doorbell() -> io::Result<OwnedFd> {
    Ok(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

/// A doorbell for the other side of a contract, as (its end to wait on, our end to write to): a pipe, non-blocking,
/// close-on-exec. The two sides of an eventfd share its flags. The writing end of a pipe is ours alone, so nobody else
/// can make it block.
pub fn doorbell_pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?)
}

/// Notifies through a doorbell of either kind.
pub fn notify(doorbell: BorrowedFd<'_>) {
    let _nobody = try_notify(doorbell);
}

/// [`notify`]; false = nobody has the doorbell's other end any more. The kernel sends SIGPIPE then, too.
pub fn try_notify(doorbell: BorrowedFd<'_>) -> bool {
    // EAGAIN: it has been written to very often and is readable anyway.
    rustix::io::retry_on_intr(|| rustix::io::write(doorbell, &1u64.to_ne_bytes())) != Err(Errno::PIPE)
}

/// Takes all notifications out of a doorbell; true if there was one. It must be non-blocking.
pub fn drain(doorbell: BorrowedFd<'_>) -> bool {
    // An eventfd gives its 8 bytes at once, a pipe 8 bytes for each notification. The next call reads the rest of a
    // full one.
    let mut notifications = [0u8; 512];
    matches!(rustix::io::retry_on_intr(|| rustix::io::read(doorbell, &mut notifications)), Ok(n) if n >= 8)
}

/// Evaluates `condition` again and again for up to `micros` µs; true as soon as it holds. With 0 it does so once.
#[inline]
pub fn spin_until(micros: u64, mut condition: impl FnMut() -> bool) -> bool {
    // Reading the clock costs as much as some tens of looks.
    const LOOKS_PER_CLOCK: u32 = 32;
    if condition() {
        return true;
    }
    if micros == 0 {
        return false;
    }
    let start = Instant::now();
    let limit = Duration::from_micros(micros);
    loop {
        for _ in 0..LOOKS_PER_CLOCK {
            core::hint::spin_loop();
            if condition() {
                return true;
            }
        }
        if start.elapsed() >= limit {
            return false;
        }
    }
}
