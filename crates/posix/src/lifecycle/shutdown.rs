//! `shutdown`.

use crate::fd::table;
use crate::lifecycle::{address, demote};
use core::sync::atomic::Ordering;
use libc::c_int;
use towpath_client::doorbell;
use towpath_client::private::flag;
use towpath_client::socket::Socket;
use towpath_client::sys::Sys;
use towpath_hook::Answer;
use towpath_ring::lines::{app_flags, state};

/// `shutdown`.
pub fn shutdown(fd: c_int, how: c_int) -> Answer<c_int> {
    Some(shutdown_socket(fd, &table::socket(fd)?, how))
}

fn shutdown_socket(fd: c_int, socket: &Socket, how: c_int) -> Sys<c_int> {
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
    // On Linux, bytes that come after SHUT_RD can still be read. Only if sending ends too are they unwanted.
    if reading {
        socket.mark(flag::SHUT_RD, true);
    }
    if writing {
        socket.app().flags.fetch_or(app_flags::SHUT_WR, Ordering::AcqRel);
    }
    if socket.has(flag::SHUT_RD) && socket.has_app(app_flags::SHUT_WR) {
        socket.app().flags.fetch_or(app_flags::SHUT_RD, Ordering::AcqRel);
    }
    // Threads of this program that sleep on the socket or watch it must notice too.
    doorbell::notify(socket);
    doorbell::wake_sleepers(socket);
    Ok(0)
}

/// A listener that is shut down becomes a bound pending socket again.
fn stop_listening(fd: c_int, socket: &Socket) -> Sys<c_int> {
    let local = address::local(socket);
    demote::demote(fd, socket, Some(local)).map(|_| 0)
}
