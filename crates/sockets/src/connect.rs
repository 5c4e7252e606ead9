//! `connect`.

use crate::doors::Command;
use crate::listen::{settle_kernel, take};
use crate::private::flag;
use crate::session;
use crate::socket::Socket;
use crate::sys::{self, Sys};
use crate::table::{self, Kind, Undecided};
use crate::{address, block, close};
use core::sync::atomic::Ordering;
use libc::{c_int, sockaddr, socklen_t};
use towpath_hook::{Answer, outcome, real};
use towpath_ring::command::op;
use towpath_ring::lines::state;

const LOOPBACK: u32 = 0x7f00_0001;

/// `connect`.
pub unsafe fn connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> Answer<c_int> {
    let kind = table::get(fd);
    if kind == Kind::Kernel {
        return None;
    }
    // SAFETY: the caller keeps the contract of `connect`.
    let remote = unsafe { address::read(addr, len) };
    match (kind, remote) {
        (Kind::Undecided(undecided), Some(remote)) => first(fd, undecided, remote),
        (Kind::Slot { slot, generation }, remote) => {
            Socket::at(slot, generation).and_then(|socket| again(fd, &socket, remote))
        }
        // AF_UNSPEC and nonsense: the kernel knows what to say, and the socket stays undecided.
        _ => None,
    }
}

fn first(fd: c_int, undecided: Undecided, (address, port): address::Address) -> Answer<c_int> {
    let Some(session) = session::start() else { return settle_kernel(fd, undecided) };
    let local = match undecided.bound.then(|| address::of_kernel(fd)) {
        Some(Ok(local)) => local,
        Some(Err(errno)) => return Some(Err(errno)),
        None => (0, 0),
    };
    // Connecting to "any" is connecting to this host.
    let address = if address == 0 { LOOPBACK } else { address };
    let command = Command { op: op::CONNECT, remote: (address, port), local, ..Command::default() };
    match take(fd, undecided, session, command) {
        Ok(socket) if socket.has(flag::NONBLOCK) => {
            socket.mark(flag::CONNECT_PENDING, true);
            Some(Err(libc::EINPROGRESS))
        }
        Ok(socket) => Some(established(&socket)),
        Err(None) => settle_kernel(fd, undecided),
        Err(Some(errno)) => Some(Err(errno)),
    }
}

/// Waits for the outcome of the handshake.
fn established(socket: &Socket) -> Sys<c_int> {
    let deadline = block::deadline(socket.private().send_timeout_us.load(Ordering::Relaxed));
    match block::until(socket, deadline, || socket.state() != state::CONNECTING) {
        Ok(()) => outcome_of(socket),
        Err(errno) => {
            // It goes on in the background.
            socket.mark(flag::CONNECT_PENDING, true);
            Err(if errno == libc::EAGAIN { libc::EINPROGRESS } else { errno })
        }
    }
}

fn outcome_of(socket: &Socket) -> Sys<c_int> {
    match socket.take_error() {
        0 if socket.state() == state::CLOSED => Err(libc::ECONNABORTED),
        0 => Ok(0),
        errno => Err(errno),
    }
}

/// `connect` on a socket that has connected or listened before.
fn again(fd: c_int, socket: &Socket, remote: Option<address::Address>) -> Answer<c_int> {
    match socket.state() {
        state::LISTENING => Some(Err(libc::EISCONN)),
        state::CONNECTING if socket.has(flag::NONBLOCK) => Some(Err(libc::EALREADY)),
        state::CONNECTING => Some(established(socket)),
        state::ESTABLISHED if socket.has(flag::CONNECT_PENDING) => {
            socket.mark(flag::CONNECT_PENDING, false);
            Some(Ok(0))
        }
        state::ESTABLISHED => Some(Err(libc::EISCONN)),
        _ => match socket.take_error() {
            0 => reconnect(fd, socket, remote),
            errno => Some(Err(errno)),
        },
    }
}

/// After a failure a socket may be used for another try: a fresh one takes its place.
fn reconnect(fd: c_int, socket: &Socket, remote: Option<address::Address>) -> Answer<c_int> {
    let nonblock = if socket.has(flag::NONBLOCK) { libc::SOCK_NONBLOCK } else { 0 };
    let renewed = (|| {
        let close_on_exec = sys::fcntl(fd, libc::F_GETFD, 0)? & libc::FD_CLOEXEC != 0;
        // SAFETY: integers only.
        let fresh =
            outcome(unsafe { real::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC | nonblock, 0) })?;
        close::let_go(fd, socket);
        let moved = sys::dup3(fresh, fd, if close_on_exec { libc::O_CLOEXEC } else { 0 });
        sys::close(fresh);
        moved
    })();
    if let Err(errno) = renewed {
        return Some(Err(errno));
    }
    table::set(fd, Kind::Undecided(Undecided::default()));
    first(fd, Undecided::default(), remote?)
}
