//! The end of the service, and another one after it, as calls notice them. When it ends, listeners with a kernel half go
//! on as the kernel's. They wait for a service then, and calls that the program makes anyway look for it.

use crate::fd::table::{self, Descriptor, Pending};
use crate::ready::hints;
use libc::{c_int, pollfd, timeval};
use std::sync::OnceLock;
use towpath_client::liveness::LIFE_CHECK;
use towpath_client::session::{self, Session};
use towpath_client::sleep::Sleep;
use towpath_client::socket::Socket;
use towpath_client::sys::{self, Sys};
use towpath_client::undo_log::Undo;
use towpath_client::{rejoin, wait};

/// Functions of a higher layer.
pub struct Calls {
    /// Gives all listeners whose service has gone back to the kernel.
    pub give_back: fn(),
    /// Looks for a service, and lets the listeners join it.
    pub look: fn(),
}

static CALLS: OnceLock<Calls> = OnceLock::new();

/// Sets these functions. Only the first call has an effect.
pub fn set_calls(calls: Calls) {
    let _ = CALLS.set(calls);
}

/// Is this a listener with a kernel half whose service has died?
#[inline]
pub fn is_left_alone(socket: &Socket) -> bool {
    socket.session.is_dead() && socket.kernel_half()
}

/// A service has died: its listeners are the kernel's from now on. The caller holds no lock of an instance.
#[cold]
pub fn give_back() {
    if let Some(calls) = CALLS.get() {
        (calls.give_back)();
    }
}

/// Has the service gone, and does the process wait for another?
#[inline]
pub fn is_awaited() -> bool {
    rejoin::is_needed() && session::get().is_some_and(Session::is_dead)
}

/// Looks for a service, if it is time to. The caller holds no lock of an instance.
#[inline]
pub fn look() {
    if rejoin::is_due()
        && let Some(calls) = CALLS.get()
    {
        (calls.look)();
    }
}

/// Marks a listener that has been named (see `passing`). The option means something to packet sockets only.
pub const SO_NOFCS: c_int = 43;

/// Has a service been told the name of this listener?
pub fn is_named(fd: c_int) -> bool {
    sys::getsockopt::<c_int>(fd, libc::SOL_SOCKET, SO_NOFCS, 0) == Ok(1)
}

/// Does a call on this listener, which waits for a service, block? Once another process has let it join one, its own mode
/// is that of the stack. The name comes a little later, so of a lost listener the record is believed from the start.
fn blocks(fd: c_int, pending: Pending) -> bool {
    if pending.lost || is_named(fd) {
        return !pending.nonblock;
    }
    sys::fcntl(fd, libc::F_GETFL, 0).is_ok_and(|status| status & libc::O_NONBLOCK == 0)
}

/// Before the kernel's `accept` on a listener that waits for a service: waits until there is a connection, and looks for
/// a service meanwhile. True: the program's `accept` blocks, so the kernel's EAGAIN means that another thread was first.
/// EINTR and EAGAIN as from `accept`.
#[cold]
pub fn until_connection(fd: c_int) -> Sys<bool> {
    let zero = timeval { tv_sec: 0, tv_usec: 0 };
    let limit = sys::getsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, zero).unwrap_or(zero);
    let limit_us = limit.tv_sec.cast_unsigned().saturating_mul(1_000_000).saturating_add(limit.tv_usec.cast_unsigned());
    let deadline = wait::deadline(limit_us);
    let asleep = Sleep::on(None, Undo::Nothing);
    loop {
        look();
        let Descriptor::Pending(pending) = table::get(fd) else { return Ok(false) };
        // A socket that does not listen has its error at once.
        if !blocks(fd, pending) || sys::is_closed(fd) {
            return Ok(false);
        }
        if !rejoin::is_needed() || hints::kernel_is_ready(fd) {
            return Ok(true);
        }
        asleep.check()?;
        let Some(time) = wait::remaining(deadline, LIFE_CHECK) else { return Err(libc::EAGAIN) };
        let mut fds = [pollfd { fd, events: libc::POLLIN, revents: 0 }];
        match asleep.interrupted(sys::ppoll(&mut fds, Some(time), core::ptr::null())) {
            Err(libc::EINTR) if deadline.is_none() && sys::signals_restart() => {}
            Err(errno) => return Err(errno),
            Ok(_) => {}
        }
    }
}
