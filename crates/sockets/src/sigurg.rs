//! SIGURG: the bell of an event context, which the stack rings for every urgent byte, is made to signal its readiness
//! (`O_ASYNC`) to the process or group that the program has named with F_SETOWN. One such context serves all sockets of the
//! process, so the last owner that was named gets the signals of all.

use crate::context::Context;
use crate::lock::Lock;
use crate::session;
use crate::socket::Socket;
use core::cell::UnsafeCell;
use core::sync::atomic::Ordering;
use libc::{c_int, c_long};
use towpath_hook::{outcome, real};

/// Linux's `F_SETSIG`.
const F_SETSIG: c_int = 10;

struct Bell {
    lock: Lock,
    context: UnsafeCell<Option<Context>>,
}

// SAFETY: the context is only used under the lock.
unsafe impl Sync for Bell {}

static BELL: Bell = Bell { lock: Lock::new(), context: UnsafeCell::new(None) };

/// In a forked child: the context is the parent's, whose owner goes on being signalled.
pub fn forked() {
    BELL.lock.reset();
    if let Some(_locked) = BELL.lock.lock() {
        // SAFETY: locked, and there is no other thread.
        if let Some(context) = unsafe { &mut *BELL.context.get() }.take() {
            session::unprotect(context.wake);
        }
    }
}

/// The program has named an owner for this socket by `fcntl(fd, command, argument)`.
pub fn set_owner(socket: &Socket, command: c_int, argument: c_long) {
    // The bell has one owner and is of one session.
    if socket.session.number != 0 {
        return;
    }
    let Some(_locked) = BELL.lock.lock() else { return };
    // SAFETY: locked.
    let context = unsafe { &mut *BELL.context.get() };
    if context.is_none() {
        *context = Context::open(socket.session);
    }
    let Some(context) = context else { return };
    // SAFETY: the bell is ours; `argument` is what the program has given to the same command, and the kernel has taken it.
    let set = outcome(unsafe { real::fcntl(context.wake, command, argument) }).is_ok()
        // SAFETY: integers only.
        && outcome(unsafe { real::fcntl(context.wake, F_SETSIG, libc::SIGURG.into()) }).is_ok()
        // SAFETY: integers only.
        && outcome(unsafe { real::fcntl(context.wake, libc::F_SETFL, (libc::O_NONBLOCK | libc::O_ASYNC).into()) }).is_ok();
    if let Some(direct) = socket.direct() {
        direct.name_urgent_bell(socket.session, set.then_some(context.id));
    }
    socket.app().urgent_bell.store(if set { context.id + 1 } else { 0 }, Ordering::Release);
}

/// An urgent byte has been asked for: the bell is emptied, or it could not be rung any more one day.
#[cold]
pub fn heard(socket: &Socket) {
    if socket.app().urgent_bell.load(Ordering::Relaxed) == 0 {
        return;
    }
    if let Some(_locked) = BELL.lock.lock() {
        // SAFETY: locked.
        if let Some(context) = unsafe { &*BELL.context.get() } {
            towpath_ring::wake::drain(session::borrow(&context.wake));
        }
    }
}
