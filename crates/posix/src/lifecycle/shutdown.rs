//! `shutdown`.

use crate::fd::table;
use crate::io::hand_over;
use crate::lifecycle::{address, demote, kernel_half};
use core::sync::atomic::Ordering;
use libc::c_int;
use towpath_client::doorbell;
use towpath_client::private::flag;
use towpath_client::socket::Socket;
use towpath_client::sys::Sys;
use towpath_hook::{Answer, outcome, real};
use towpath_ring::lines::{app_flags, state};

/// `shutdown`.
pub fn shutdown(fd: c_int, how: c_int) -> Answer<c_int> {
    let socket = table::socket(fd)?;
    if socket.kernel_half() {
        return shutdown_halves(fd, &socket, how);
    }
    Some(shutdown_socket(fd, &socket, how))
}

/// `shutdown` of a listener with a kernel half: what the kernel does with its half, the slot follows.
fn shutdown_halves(fd: c_int, listener: &Socket, how: c_int) -> Answer<c_int> {
    if kernel_half::is_over(listener) {
        kernel_half::give_back(fd, listener);
        return None;
    }
    // SAFETY: `shutdown` takes numbers and no memory.
    let done = outcome(unsafe { real::shutdown(fd, how) });
    if done.is_ok() && how != libc::SHUT_WR {
        kernel_half::stop(fd, listener);
    }
    Some(done)
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
    if writing && socket.has(flag::SPLICES) && hand_over::ends_early(socket) {
        socket.mark_app(app_flags::ABORT | app_flags::CLOSED, true);
        return Ok(0);
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
