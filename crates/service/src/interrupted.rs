//! A thread that a close cannot keep.
//!
//! The last close of a socket waits for its peer as long as `SO_LINGER` says. The last descriptor may lie in a message that
//! nobody has received, and closing that socket waits, too. A signal ends the wait. So a timer sends this thread one each
//! millisecond, whose handler does nothing.

use std::ptr::null_mut;
use std::sync::OnceLock;

/// How often the thread is interrupted, ns.
const TICK_NS: libc::c_long = 1_000_000;

/// While this lives, each wait of the thread that has made it is interrupted.
#[derive(Debug)]
pub struct Interrupted {
    timer: Option<libc::timer_t>,
    /// The timer is this thread's.
    _here: std::marker::PhantomData<*const ()>,
}

impl Interrupted {
    /// Begins. Without a timer, which a kernel out of memory refuses, the thread may have to wait.
    pub fn begin() -> Self {
        Self { timer: handled().and_then(timer), _here: std::marker::PhantomData }
    }
}

impl Drop for Interrupted {
    fn drop(&mut self) {
        if let Some(timer) = self.timer {
            // SAFETY: it is ours, and is not used any more.
            unsafe { libc::timer_delete(timer) };
        }
    }
}

extern "C" fn nothing(_: libc::c_int) {}

/// The signal, which has a handler from now on.
fn handled() -> Option<libc::c_int> {
    static HANDLED: OnceLock<Option<libc::c_int>> = OnceLock::new();
    *HANDLED.get_or_init(|| {
        let signal = libc::SIGRTMAX();
        // SAFETY: all zeros are a valid value: no flags, so that calls are interrupted, and an empty mask.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = nothing as *const () as libc::sighandler_t;
        // SAFETY: the handler does nothing, so it may run at any time.
        (unsafe { libc::sigaction(signal, &raw const action, null_mut()) } == 0).then_some(signal)
    })
}

/// Starts to send the signal to this thread.
fn timer(signal: libc::c_int) -> Option<libc::timer_t> {
    // SAFETY: all zeros are valid values of these types, and the pointers are to them.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigaddset(&raw mut set, signal);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, null_mut());
        let mut event: libc::sigevent = std::mem::zeroed();
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = signal;
        event.sigev_notify_thread_id = libc::gettid();
        let mut timer = null_mut();
        if libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut timer) != 0 {
            return None;
        }
        let tick = libc::timespec { tv_sec: 0, tv_nsec: TICK_NS };
        let ticks = libc::itimerspec { it_interval: tick, it_value: tick };
        libc::timer_settime(timer, 0, &raw const ticks, null_mut());
        Some(timer)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_wait_of_this_thread_ends_and_one_after_it_does_not() {
        let (_write, read) = std::io::pipe().map(|(read, write)| (write, read)).unwrap();
        let wait = |ms: i64| {
            let mut pipe = [rustix::event::PollFd::new(&read, rustix::event::PollFlags::IN)];
            let limit = rustix::event::Timespec { tv_sec: ms / 1000, tv_nsec: ms % 1000 * 1_000_000 };
            rustix::event::poll(&mut pipe, Some(&limit))
        };
        let interrupted = Interrupted::begin();
        for _ in 0..3 {
            assert_eq!(wait(100_000), Err(rustix::io::Errno::INTR));
        }
        drop(interrupted);
        // The last signal may be on its way.
        let _ = wait(0);
        assert_eq!(wait(20), Ok(0));
    }
}
