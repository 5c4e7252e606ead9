//! `shutdown`.

use crate::private::flag;
use crate::socket::Socket;
use crate::sys::Sys;
use crate::{address, doors, renew};
use core::sync::atomic::Ordering;
use libc::c_int;
use towpath_ring::lines::{app_flags, state};

/// `shutdown` on a socket in a slot.
pub fn shutdown(fd: c_int, socket: &Socket, how: c_int) -> Sys<c_int> {
    if !matches!(how, libc::SHUT_RD | libc::SHUT_WR | libc::SHUT_RDWR) {
        return Err(libc::EINVAL);
    }
    let (reading, writing) = (how != libc::SHUT_WR, how != libc::SHUT_RD);
    match socket.state() {
        state::CLOSED => return Err(libc::ENOTCONN),
        state::LISTENING if reading => return stop_listening(fd, socket),
        state::LISTENING => return Ok(0),
        _ => {}
    }
    // What comes after SHUT_RD can still be read on Linux; only when nothing is sent either, nothing is wanted any more.
    if reading {
        socket.mark(flag::SHUT_RD, true);
    }
    if writing {
        socket.app().flags.fetch_or(app_flags::SHUT_WR, Ordering::AcqRel);
    }
    if socket.has(flag::SHUT_RD) && socket.has_app(app_flags::SHUT_WR) {
        socket.app().flags.fetch_or(app_flags::SHUT_RD, Ordering::AcqRel);
    }
    // Those of this program who sleep on the socket or watch it have to see it too.
    doors::ring(socket);
    doors::wake_own(socket);
    Ok(0)
}

/// A listener that is shut down is a bound socket again.
fn stop_listening(fd: c_int, socket: &Socket) -> Sys<c_int> {
    let local = local(socket);
    renew::renew(fd, socket, Some(local)).map(|_| 0)
}

/// The local address of a socket in a slot.
pub fn local(socket: &Socket) -> address::Address {
    let info = socket.info();
    (towpath_ring::address::load(&info.local_addr), (info.ports.load(Ordering::Relaxed) >> 16) as u16)
}
