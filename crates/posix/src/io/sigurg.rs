//! SIGURG. The stack notifies the doorbell of an event context of every urgent byte. That doorbell signals its
//! readiness (`O_ASYNC`) to the process or group that the program has named by F_SETOWN. One such context serves all
//! sockets of the process, so the owner that was named last gets all signals.

use core::cell::UnsafeCell;
use core::sync::atomic::Ordering;
use libc::{c_int, c_long};
use towpath_client::context::Context;
use towpath_client::lock::Lock;
use towpath_client::session;
use towpath_client::socket::Socket;
use towpath_client::{descriptors, sys};
use towpath_hook::{outcome, real};

/// Linux's `F_SETSIG`.
const F_SETSIG: c_int = 10;

struct UrgentDoorbell {
    lock: Lock,
    context: UnsafeCell<Option<Context>>,
}

// SAFETY: the context is used only under the lock, so no two threads use it at a time.
unsafe impl Sync for UrgentDoorbell {}

static DOORBELL: UrgentDoorbell = UrgentDoorbell { lock: Lock::new(), context: UnsafeCell::new(None) };

/// In a forked child: the context is the parent's, and its owner is still signalled.
pub fn forked() {
    DOORBELL.lock.reset();
    if let Some(_locked) = DOORBELL.lock.lock() {
        // SAFETY: the lock is held, so nobody else refers to the context.
        if let Some(context) = unsafe { &mut *DOORBELL.context.get() }.take() {
            descriptors::unprotect(context.wake);
        }
    }
}

/// The program has named an owner for this socket by `fcntl(fd, command, argument)`.
pub fn set_owner(socket: &Socket, command: c_int, argument: c_long) {
    // The doorbell has one owner and belongs to one session.
    if !session::get().is_some_and(|own| core::ptr::eq(own, socket.session)) {
        return;
    }
    let Some(_locked) = DOORBELL.lock.lock() else { return };
    // SAFETY: the lock is held, so nobody else refers to the context.
    let context = unsafe { &mut *DOORBELL.context.get() };
    if context.as_ref().is_some_and(|context| context.session.is_dead()) {
        context.take().into_iter().for_each(Context::close);
    }
    if context.is_none() {
        *context = Context::open(socket.session);
    }
    let Some(context) = context else { return };
    let signals: c_int = libc::O_NONBLOCK | libc::O_ASYNC;
    // SAFETY: the doorbell is the library's descriptor. The kernel has taken the same argument for the same command on
    // the program's descriptor.
    let set = outcome(unsafe { real::fcntl(context.wake, command, argument) }).is_ok()
        // SAFETY: integers only.
        && outcome(unsafe { real::fcntl(context.wake, F_SETSIG, libc::SIGURG.into()) }).is_ok()
        // SAFETY: integers only.
        && outcome(unsafe { real::fcntl(context.wake, libc::F_SETFL, signals.into()) }).is_ok();
    if let Some(direct) = socket.direct() {
        direct.name_urgent_doorbell(socket.session, set.then_some(context.id));
    }
    socket.app().urgent_doorbell.store(if set { context.id + 1 } else { 0 }, Ordering::Release);
}

/// Drains the doorbell when the program asks for an urgent byte. Otherwise it would fill up one day.
#[cold]
pub fn heard(socket: &Socket) {
    if socket.app().urgent_doorbell.load(Ordering::Relaxed) == 0 {
        return;
    }
    if let Some(_locked) = DOORBELL.lock.lock() {
        // SAFETY: the lock is held, so nobody else refers to the context.
        if let Some(context) = unsafe { &*DOORBELL.context.get() } {
            towpath_ring::wake::drain(sys::borrow(&context.wake));
        }
    }
}
