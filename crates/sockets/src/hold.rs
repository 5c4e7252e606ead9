//! Calls that sleep on a socket hold it, as in the kernel: when its descriptor is closed meanwhile, the connection goes on until
//! the last of them returns.

use crate::books::{self, Entry, Undo};
use crate::close;
use crate::lock::Lock;
use crate::session;
use crate::socket::Socket;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicUsize, Ordering};
use libc::c_int;

/// Sockets whose descriptor has been closed, with one that is kept for them.
struct Held {
    lock: Lock,
    sockets: UnsafeCell<Vec<(Socket, c_int)>>,
}

// SAFETY: the vector is only used under the lock.
unsafe impl Sync for Held {}

static HELD: Held = Held { lock: Lock::new(), sockets: UnsafeCell::new(Vec::new()) };
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// One call that may sleep on a socket; until dropped.
pub struct Use(#[allow(dead_code, reason = "it is dropped")] Entry);

impl Use {
    /// From now on.
    pub fn of(socket: &Socket) -> Self {
        let begin = || {
            begun(socket);
            false
        };
        Self(Entry::new(Undo::Hold(*socket), begin))
    }
}

/// Somebody uses the socket, until [`ended`].
pub fn begun(socket: &Socket) {
    socket.private().users.fetch_add(1, Ordering::SeqCst);
}

/// The end of a use.
pub fn ended(socket: &Socket) {
    let users = socket.private().users.fetch_sub(1, Ordering::SeqCst);
    if users == 1 && COUNT.load(Ordering::SeqCst) != 0 {
        release(socket);
    }
}

/// The last descriptor `fd` of a socket is about to be closed. True if somebody sleeps on the socket, which is then kept.
pub fn keep(fd: c_int, socket: &Socket) -> bool {
    if socket.private().users.load(Ordering::SeqCst) != 0 {
        // A call of this thread that a handler has left.
        books::settle();
    }
    if socket.private().users.load(Ordering::SeqCst) == 0 {
        return false;
    }
    let Some(_locked) = HELD.lock.lock() else { return false };
    let Ok(kept) = session::protected_copy(fd) else { return false };
    // SAFETY: locked.
    unsafe { &mut *HELD.sockets.get() }.push((*socket, kept));
    COUNT.fetch_add(1, Ordering::SeqCst);
    true
}

#[cold]
fn release(socket: &Socket) {
    let kept = {
        let Some(_locked) = HELD.lock.lock() else { return };
        // SAFETY: locked.
        let sockets = unsafe { &mut *HELD.sockets.get() };
        let same = |held: &Socket| held.number() == socket.number() && held.generation == socket.generation;
        let Some(at) = sockets.iter().position(|(held, _)| same(held)) else { return };
        COUNT.fetch_sub(1, Ordering::SeqCst);
        sockets.swap_remove(at).1
    };
    close::end(kept, socket);
    session::unprotect(kept);
}

/// In a forked child: those who sleep are the parent's.
pub fn forked() {
    HELD.lock.reset();
    if let Some(_locked) = HELD.lock.lock() {
        // SAFETY: locked, and there is no other thread.
        for (_, kept) in unsafe { &mut *HELD.sockets.get() }.drain(..) {
            session::unprotect(kept);
        }
        COUNT.store(0, Ordering::SeqCst);
    }
}
