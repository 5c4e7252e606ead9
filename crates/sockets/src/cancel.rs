//! Cancellation of threads that sleep in a call of ours. libc knows nothing of such a sleep, and what it does in its own cancellation
//! points (to leave by unwinding) would leave locks and lists of ours behind. So cancellation is off as long as a call sleeps; who
//! cancels a thread wakes it, and the call is given up in order before the thread ends (`towpath_hook::cancel`).

use crate::books::{Entry, Undo};
use crate::tid::tid;
use core::ptr::{from_ref, null_mut};
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use libc::{c_int, clockid_t, pthread_t};
use towpath_hook::{Answer, cancel, real};

const ENABLE: c_int = 0;
const DISABLE: c_int = 1;
/// glibc's signal for this. Its handler does nothing while cancellation is off, but a sleep ends.
const SIGCANCEL: c_int = 32;
/// The kinds of clocks in a clock's number: a thread's, of the scheduler.
const THREAD_CLOCK: c_int = 6;
const PLACES: usize = 256;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
    fn pthread_getcpuclockid(thread: pthread_t, clock: *mut clockid_t) -> c_int;
}

/// What is known of a thread, by its number modulo the places. Of two in one place the one is woken only by the next look at whether
/// the service is alive.
struct Place {
    /// The thread that sleeps and may be cancelled, 0 = none.
    sleeper: AtomicU32,
    /// The futex word that it sleeps on, 0 = none.
    word: AtomicUsize,
    /// A thread that has been cancelled, and has not been told.
    canceled: AtomicU32,
}

static ALL: [Place; PLACES] =
    [const { Place { sleeper: AtomicU32::new(0), word: AtomicUsize::new(0), canceled: AtomicU32::new(0) } }; PLACES];

fn place(tid: u32) -> &'static Place {
    &ALL[tid as usize % PLACES]
}

/// `pthread_cancel`.
///
/// # Safety
/// Its contract.
pub unsafe fn cancel(thread: pthread_t) -> Answer<c_int> {
    cancel::noticed();
    let mut clock = 0;
    // SAFETY: as the caller says, and room for a clock.
    let known = unsafe { pthread_getcpuclockid(thread, &raw mut clock) } == 0 && clock & 7 == THREAD_CLOCK;
    // The number of a thread's clock has the thread's in it.
    let tid = !(clock >> 3) as u32;
    if known {
        place(tid).canceled.store(tid, Ordering::SeqCst);
    }
    // SAFETY: as the caller says.
    let done = unsafe { real::pthread_cancel(thread) };
    if known && place(tid).sleeper.load(Ordering::SeqCst) == tid {
        // SAFETY: a signal that its handler ignores; and a wake-up of whoever sleeps there, who looks and sleeps on.
        unsafe {
            libc::syscall(libc::SYS_tgkill, libc::getpid(), tid, SIGCANCEL);
            libc::syscall(libc::SYS_futex, place(tid).word.load(Ordering::SeqCst), libc::FUTEX_WAKE, c_int::MAX);
        }
    }
    Some(Ok(done))
}

/// A sleep in which the thread is not cancelled, but woken; until dropped.
pub struct Sleep {
    before: c_int,
    _entry: Entry,
}

impl Sleep {
    /// A sleep on a futex word, or on something that a signal interrupts. What the call has in the books meanwhile is undone after it.
    #[inline]
    pub fn on(word: Option<&AtomicU32>, undo: Undo) -> Self {
        let mut before = DISABLE;
        let off = || {
            // SAFETY: room for a state.
            unsafe { pthread_setcancelstate(DISABLE, &raw mut before) };
            before == ENABLE
        };
        let entry = Entry::new(undo, off);
        if before == ENABLE {
            let place = place(tid());
            place.word.store(word.map_or(0, |word| from_ref(word) as usize), Ordering::SeqCst);
            place.sleeper.store(tid(), Ordering::SeqCst);
        }
        Self { before, _entry: entry }
    }

    /// Is the call to be given up?
    pub fn check(&self) -> Result<(), i32> {
        let canceled = &place(tid()).canceled;
        if self.before != ENABLE || !cancel::ever() || canceled.load(Ordering::SeqCst) != tid() {
            return Ok(());
        }
        canceled.store(0, Ordering::SeqCst);
        Err(cancel::CANCELED)
    }

    /// The outcome of a sleep that may have been interrupted for that.
    pub fn interrupted<T>(&self, slept: Result<T, i32>) -> Result<T, i32> {
        match slept {
            Err(libc::EINTR) => self.check().and(slept),
            slept => slept,
        }
    }
}

/// The end of a sleep of this thread, which may be cancelled again.
pub fn awake() {
    let _ = place(tid()).sleeper.compare_exchange(tid(), 0, Ordering::SeqCst, Ordering::Relaxed);
    // SAFETY: nobody wants to know the state.
    unsafe { pthread_setcancelstate(ENABLE, null_mut()) };
}
