//! What happens around `fork`. The rings and the slots' private parts are shared with the child; contexts, epoll
//! instances' positions and locks of this process are not.

use crate::private::flag;
use crate::session::{self, Session};
use crate::socket::Socket;
use crate::table::{self, Kind};
use crate::{alone, context, direct, epoll, fallback, hold, sigurg, spare, standard, sys, tid, uring, watch};
use core::sync::atomic::{AtomicI32, Ordering};

static PID: AtomicI32 = AtomicI32::new(0);

/// This process's id; in a `vfork` child still the parent's.
#[inline(always)]
pub fn pid() -> i32 {
    match PID.load(Ordering::Relaxed) {
        0 => ask_pid(),
        pid => pid,
    }
}

#[cold]
fn ask_pid() -> i32 {
    let pid = sys::getpid();
    PID.store(pid, Ordering::Relaxed);
    pid
}

/// Are we a child that runs on its parent's memory (`vfork`, `posix_spawn`) until it executes something?
pub fn in_vfork_child() -> bool {
    sys::getpid() != pid()
}

/// Called once when the library is loaded.
pub fn init() {
    pid();
    alone::init();
    // SAFETY: handlers of the right type; the library is never unloaded.
    unsafe { libc::pthread_atfork(Some(before), None, Some(in_child)) };
}

/// From now on two processes have each descriptor: `close` in one of them says nothing.
pub extern "C" fn before() {
    for (_, kind) in table::within(0, u32::MAX) {
        if let Kind::Slot { slot, generation } = kind
            && let Some(socket) = Socket::at(slot, generation)
            && !socket.is_gone()
        {
            socket.mark(flag::SHARED, true);
        }
    }
}

/// In the child: what is this process's own begins anew.
pub extern "C" fn in_child() {
    PID.store(sys::getpid(), Ordering::Relaxed);
    tid::forget();
    // Other threads of the parent may have made some since.
    before();
    fallback::forked();
    watch::forked();
    if session::get().is_some() {
        context::forked();
        spare::forked();
        standard::forked();
        direct::forked();
        sigurg::forked();
    }
    session::all().for_each(Session::forked);
    epoll::forked();
    hold::forked();
    uring::forked();
}
