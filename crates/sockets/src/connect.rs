//! `connect`.

use crate::listen::{self, settle_kernel, take};
use crate::private::flag;
use crate::session;
use crate::socket::Socket;
use crate::sys::{self, Sys};
use crate::table::{self, Kind, Undecided};
use crate::{address, block, close};
use core::net::{Ipv4Addr, Ipv6Addr};
use core::sync::atomic::Ordering;
use libc::{c_int, sockaddr, socklen_t};
use towpath_hook::{Answer, outcome, real};
use towpath_ring::command::{Command, op};
use towpath_ring::lines::state;

const LOOPBACK: Ipv6Addr = Ipv4Addr::LOCALHOST.to_ipv6_mapped();

/// `connect`.
///
/// # Safety
/// The contract of `connect`: `addr` is null or has `len` readable bytes.
pub unsafe fn connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> Answer<c_int> {
    let kind = table::get(fd);
    if kind == Kind::Kernel {
        return None;
    }
    let six = match kind {
        Kind::Undecided(undecided) => undecided.six,
        _ => Socket::of(fd).is_some_and(|socket| socket.has(flag::SIX)),
    };
    // SAFETY: the caller keeps the contract of `connect`.
    let remote = unsafe { address::read(six, addr, len) };
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
    let local = match undecided.bound.then(|| address::of_kernel(fd, undecided.six)) {
        Some(Ok(local)) => local,
        Some(Err(errno)) => return Some(Err(errno)),
        None => address::ANY,
    };
    let mapped = address.to_ipv4_mapped();
    // The kernel knows the interfaces, and what to say of the other family on a socket that is of IPv6 only.
    let refused = undecided.six && mapped.is_some() && listen::is_v6only(fd);
    if address::is_kernels(address) || address::is_kernels(local.0) || refused {
        return settle_kernel(fd, undecided);
    }
    // Connecting to "any" is connecting to this host.
    let address = match mapped {
        Some(Ipv4Addr::UNSPECIFIED) => LOOPBACK,
        None if address.is_unspecified() => Ipv6Addr::LOCALHOST,
        _ => address,
    };
    let command = Command {
        op: op::CONNECT,
        remote_addr: address,
        remote_port: port.into(),
        local_addr: local.0,
        local_port: local.1.into(),
        ..Command::default()
    };
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
    let six = socket.has(flag::SIX);
    let domain = if six { libc::AF_INET6 } else { libc::AF_INET };
    let renewed = (|| {
        let close_on_exec = sys::fcntl(fd, libc::F_GETFD, 0)? & libc::FD_CLOEXEC != 0;
        // SAFETY: integers only.
        let fresh = outcome(unsafe { real::socket(domain, libc::SOCK_STREAM | libc::SOCK_CLOEXEC | nonblock, 0) })?;
        close::let_go(fd, socket);
        let moved = sys::dup3(fresh, fd, if close_on_exec { libc::O_CLOEXEC } else { 0 });
        sys::close(fresh);
        moved
    })();
    if let Err(errno) = renewed {
        return Some(Err(errno));
    }
    let undecided = Undecided { six, ..Undecided::default() };
    table::set(fd, Kind::Undecided(undecided));
    first(fd, undecided, remote?)
}
