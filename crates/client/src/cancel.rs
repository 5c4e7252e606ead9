//! Cancellation of threads that sleep in a call of this library.
//!
//! libc does not know of such a sleep. Its own way to cancel a thread is to unwind it, which would leave the library's
//! locks and lists as they are. So cancellation is disabled while a call sleeps. `pthread_cancel` wakes the thread,
//! which gives the call up in order before it ends (`towpath_hook::cancel`).

use crate::session;
use crate::tid::tid;
use core::ptr::{from_ref, null_mut};
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use libc::{c_int, clockid_t, pthread_t};
use towpath_hook::{Answer, cancel, real};

const ENABLE: c_int = 0;
const DISABLE: c_int = 1;
/// glibc's signal for cancellation. While cancellation is disabled its handler does nothing, but the signal ends a
/// sleep.
const SIGCANCEL: c_int = 32;
/// The kind of clock, in the low bits of a clock's number: one thread's scheduler clock.
const THREAD_CLOCK: c_int = 6;
const PLACES: usize = 256;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
    fn pthread_getcpuclockid(thread: pthread_t, clock: *mut clockid_t) -> c_int;
}

/// The state of a thread, by its id modulo the places. If two threads share a place, one of them notices its
/// cancellation only when it next checks the service.
struct SleeperPlace {
    /// The thread that sleeps and may be cancelled, 0 = none.
    sleeper: AtomicU32,
    /// The futex word that it sleeps on, 0 = none.
    word: AtomicUsize,
    /// A thread that has been cancelled and has not noticed yet.
    canceled: AtomicU32,
}

static ALL: [SleeperPlace; PLACES] =
    [const { SleeperPlace { sleeper: AtomicU32::new(0), word: AtomicUsize::new(0), canceled: AtomicU32::new(0) } };
        PLACES];

fn place(tid: u32) -> &'static SleeperPlace {
    &ALL[tid as usize % PLACES]
}

/// `pthread_cancel`.
///
/// # Safety
/// The contract of `pthread_cancel`.
pub unsafe fn cancel(thread: pthread_t) -> Answer<c_int> {
    cancel::noticed();
    session::review_usual();
    let mut clock = 0;
    // SAFETY: the caller passes a valid thread, and there is room for a clock.
    let known = unsafe { pthread_getcpuclockid(thread, &raw mut clock) } == 0 && clock & 7 == THREAD_CLOCK;
    // A thread clock's number contains the thread's id.
    let tid = !(clock >> 3) as u32;
    if known {
        place(tid).canceled.store(tid, Ordering::SeqCst);
    }
    // SAFETY: the caller keeps the contract of `pthread_cancel`.
    let done = unsafe { real::pthread_cancel(thread) };
    if known && place(tid).sleeper.load(Ordering::SeqCst) == tid {
        // SAFETY: a signal whose handler does nothing, and a wake-up of the thread's own futex word. Both only make
        // the sleeper look again.
        unsafe {
            libc::syscall(libc::SYS_tgkill, libc::getpid(), tid, SIGCANCEL);
            libc::syscall(libc::SYS_futex, place(tid).word.load(Ordering::SeqCst), libc::FUTEX_WAKE, c_int::MAX);
        }
    }
    Some(Ok(done))
}

/// Disables cancellation of this thread. True if it was enabled: then [`awake`] must be called in the end.
pub(crate) fn disable() -> bool {
    let mut before = DISABLE;
    // SAFETY: `before` is room for a state.
    unsafe { pthread_setcancelstate(DISABLE, &raw mut before) };
    before == ENABLE
}

/// This thread is about to sleep, on a futex word or on something that a signal interrupts. `pthread_cancel` wakes
/// it.
pub(crate) fn asleep_on(word: Option<&AtomicU32>) {
    let place = place(tid());
    place.word.store(word.map_or(0, |word| from_ref(word) as usize), Ordering::SeqCst);
    place.sleeper.store(tid(), Ordering::SeqCst);
}

/// Has this thread been cancelled? True once.
pub(crate) fn take() -> bool {
    let canceled = &place(tid()).canceled;
    if !cancel::ever() || canceled.load(Ordering::SeqCst) != tid() {
        return false;
    }
    canceled.store(0, Ordering::SeqCst);
    true
}

/// Ends a sleep of this thread: it may be cancelled again.
pub(crate) fn awake() {
    let _ = place(tid()).sleeper.compare_exchange(tid(), 0, Ordering::SeqCst, Ordering::Relaxed);
    // SAFETY: null says that the former state is not asked for.
    unsafe { pthread_setcancelstate(ENABLE, null_mut()) };
}
