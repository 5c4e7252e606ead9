//! Calls in flight: a call that sleeps on a socket keeps it in use, as in the kernel. If the descriptor is closed
//! meanwhile, the connection stays until the last such call returns.

use crate::lifecycle::end;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicUsize, Ordering};
use libc::c_int;
use towpath_client::descriptors;
use towpath_client::lock::Lock;
use towpath_client::socket::Socket;
use towpath_client::undo_log::{self, Entry, Undo};

/// Sockets whose last descriptor has been closed, each with a descriptor that the library keeps for it.
struct Held {
    lock: Lock,
    sockets: UnsafeCell<Vec<(Socket, c_int)>>,
}

// SAFETY: `sockets` is only accessed under the lock.
unsafe impl Sync for Held {}

static HELD: Held = Held { lock: Lock::new(), sockets: UnsafeCell::new(Vec::new()) };
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// A call in flight on a socket. Dropping it ends the call.
pub struct Call(#[allow(dead_code, reason = "it is dropped")] Entry);

impl Call {
    /// A call begins.
    pub fn on(socket: &Socket) -> Self {
        let enter = || {
            begin(socket);
            false
        };
        Self(Entry::enclosing(Undo::Socket(end, *socket), enter))
    }
}

/// A call begins, until [`end()`].
pub fn begin(socket: &Socket) {
    socket.private().users.fetch_add(1, Ordering::SeqCst);
}

/// A call ends.
pub fn end(socket: &Socket) {
    let users = socket.private().users.fetch_sub(1, Ordering::SeqCst);
    if users == 1 && COUNT.load(Ordering::SeqCst) != 0 {
        release(socket);
    }
}

/// Are calls in flight on this socket, in any process?
pub fn any(socket: &Socket) -> bool {
    if socket.private().users.load(Ordering::SeqCst) != 0 {
        // A signal handler may have jumped out of a call of this thread.
        undo_log::undo_left_calls();
    }
    socket.private().users.load(Ordering::SeqCst) != 0
}

/// The last descriptor `fd` of a socket is about to be closed. True: calls are in flight, and the socket is kept.
pub fn keep(fd: c_int, socket: &Socket) -> bool {
    if !any(socket) {
        return false;
    }
    let Some(_locked) = HELD.lock.lock() else { return false };
    let Ok(kept) = descriptors::protected_copy(fd) else { return false };
    // SAFETY: the lock is held, so this is the only reference.
    unsafe { &mut *HELD.sockets.get() }.push((*socket, kept));
    COUNT.fetch_add(1, Ordering::SeqCst);
    true
}

/// The descriptor that the library keeps for a socket whose last descriptor has been closed during a call.
pub fn kept(socket: &Socket) -> Option<c_int> {
    let _locked = HELD.lock.lock()?;
    // SAFETY: the lock is held, so this is the only reference.
    let sockets = unsafe { &*HELD.sockets.get() };
    let same = |held: &Socket| held.number() == socket.number() && held.generation == socket.generation;
    sockets.iter().find(|(held, _)| same(held)).map(|(_, kept)| *kept)
}

#[cold]
fn release(socket: &Socket) {
    let kept = {
        let Some(_locked) = HELD.lock.lock() else { return };
        // SAFETY: the lock is held, so this is the only reference.
        let sockets = unsafe { &mut *HELD.sockets.get() };
        let same = |held: &Socket| held.number() == socket.number() && held.generation == socket.generation;
        let Some(at) = sockets.iter().position(|(held, _)| same(held)) else { return };
        COUNT.fetch_sub(1, Ordering::SeqCst);
        sockets.swap_remove(at).1
    };
    end::end(kept, socket);
    descriptors::unprotect(kept);
}

/// In a forked child: the calls in flight are the parent's.
pub fn forked() {
    HELD.lock.reset();
    if let Some(_locked) = HELD.lock.lock() {
        // SAFETY: a forked child has one thread, and it holds the lock.
        for (_, kept) in unsafe { &mut *HELD.sockets.get() }.drain(..) {
            descriptors::unprotect(kept);
        }
        COUNT.store(0, Ordering::SeqCst);
    }
}
