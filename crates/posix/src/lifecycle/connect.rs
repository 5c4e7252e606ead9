//! `connect`: the stack is asked first. The kernel connects sockets that the stack does not carry.

use crate::fd::table::{self, Descriptor, Pending};
use crate::lifecycle::{address, demote, kernel_half, pending, promote, registration};
use crate::observe::{fallback, measure};
use core::net::{Ipv4Addr, Ipv6Addr};
use core::sync::atomic::Ordering;
use libc::{c_int, sockaddr, socklen_t};
use towpath_client::command::Refusal;
use towpath_client::private::flag;
use towpath_client::session::Session;
use towpath_client::socket::Socket;
use towpath_client::sys::{self, Sys};
use towpath_client::wait;
use towpath_hook::{Answer, outcome, real};
use towpath_ring::command::{Command, MAY_JOIN, op};
use towpath_ring::lines::{app_flags, state};
use towpath_ring::report::Count;
use towpath_ring::stats::CarriedBy;

const LOOPBACK: Ipv6Addr = Ipv4Addr::LOCALHOST.to_ipv6_mapped();

/// The longest address that Linux accepts.
const ADDRESS_MAX: socklen_t = 128;

/// How the kernel connects a socket that the stack does not carry.
#[derive(Clone, Copy)]
enum Kernel {
    /// By `connect`, with the program's arguments.
    Connects(*const sockaddr, socklen_t),
    /// By the program's io_uring, after this call.
    IsLeft,
}

/// The program's io_uring connects the socket.
#[derive(Debug)]
struct LeftToKernel;

type Outcome = Result<Answer<c_int>, LeftToKernel>;

/// `connect`.
///
/// # Safety
/// `addr` may be any address.
pub unsafe fn connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> Answer<c_int> {
    // SAFETY: `connect_or` accepts any address.
    unsafe { connect_or(fd, addr, len, true, Kernel::Connects(addr, len)) }.unwrap_or(None)
}

/// [`connect`] that never waits: EINPROGRESS, and later [`outcome_if_any`] has the result. A socket that the stack does
/// not carry is left to the kernel (`None`).
///
/// # Safety
/// As [`connect`].
pub unsafe fn begin(fd: c_int, addr: *const sockaddr, len: socklen_t) -> Answer<c_int> {
    // SAFETY: `connect_or` accepts any address.
    match unsafe { connect_or(fd, addr, len, false, Kernel::IsLeft) } {
        Ok(begun) => begun,
        Err(LeftToKernel) => {
            if let Descriptor::Pending(pending) = table::get(fd) {
                pending::leave(fd, pending);
            }
            None
        }
    }
}

/// The result of a connect that [`begin`] has begun; `None` = not yet.
pub fn outcome_if_any(socket: &Socket) -> Option<Sys<c_int>> {
    if socket.state() == state::CONNECTING {
        return None;
    }
    socket.mark(flag::CONNECT_PENDING, false);
    Some(outcome_of(socket))
}

/// `sendto` with MSG_FASTOPEN: connects first. The data follow the handshake, as with a server that has given no
/// cookie.
///
/// # Safety
/// As [`connect`].
pub unsafe fn fast_open(fd: c_int, kind: Descriptor, addr: *const sockaddr, len: socklen_t) -> Answer<c_int> {
    if matches!(kind, Descriptor::Slot { .. }) {
        return Some(Err(libc::EISCONN));
    }
    // SAFETY: `connect` accepts any address.
    unsafe { connect(fd, addr, len) }
}

/// Connects a pending socket, or a socket that has connected or listened before.
///
/// # Safety
/// As [`connect`].
unsafe fn connect_or(fd: c_int, addr: *const sockaddr, len: socklen_t, waits: bool, kernel: Kernel) -> Outcome {
    let mut kind = table::get(fd);
    if let Some(listener) = table::socket(fd).filter(|socket| socket.kernel_half() && kernel_half::is_over(socket)) {
        kernel_half::give_back(fd, &listener);
        kind = table::get(fd);
    }
    if kind == Descriptor::Kernel {
        return Ok(None);
    }
    let six = match kind {
        Descriptor::Pending(pending) => pending.six,
        _ => table::socket(fd).is_some_and(|socket| socket.has(flag::SIX)),
    };
    // SAFETY: both functions accept any address.
    let (remote, ends) = unsafe { (address::read(six, addr, len), address::is_unspecified(addr, len)) };
    match (kind, remote) {
        (Descriptor::Pending(pending), Ok(_)) if pending.refused => {
            table::update_pending(fd, |pending| pending.refused = false);
            by_kernel(fd, pending, kernel)
        }
        (Descriptor::Pending(pending), Ok(Some(remote))) if len <= ADDRESS_MAX => {
            connect_pending(fd, pending, remote, waits, kernel)
        }
        (Descriptor::Slot { .. }, Err(errno)) => Ok(Some(Err(errno))),
        (Descriptor::Slot { slot, generation }, Ok(remote)) => match Socket::at(slot, generation) {
            None => Ok(None),
            Some(socket) if ends => Ok(Some(disconnect(fd, &socket))),
            Some(socket) => connect_again(fd, &socket, remote, waits, kernel),
        },
        // AF_UNSPEC and invalid addresses are left to the kernel, which has the answer. The socket stays pending.
        _ => Ok(None),
    }
}

/// The first `connect` of a socket. It asks the stack, and waits for the handshake if the socket blocks.
fn connect_pending(fd: c_int, pending: Pending, remote: address::Address, waits: bool, kernel: Kernel) -> Outcome {
    let Some(session) = registration::start() else {
        return fall_back(fd, pending, fallback::why_no_session(), kernel);
    };
    let Some(session) = registration::serving(session, fd) else {
        return fall_back(fd, pending, Count::Namespace, kernel);
    };
    let local = match pending.bound.then(|| address::of_kernel(fd, pending.six)) {
        Some(Ok(local)) => local,
        Some(Err(errno)) => return Ok(Some(Err(errno))),
        None => address::ANY,
    };
    let (remote_addr, port) = remote;
    let mapped = remote_addr.to_ipv4_mapped();
    // For an IPv4 address on an IPv6-only socket the kernel has the error.
    let refused = pending.six && mapped.is_some() && pending::is_v6only(fd);
    if address::is_kernels(remote_addr) || address::is_kernels(local.0) || refused {
        return fall_back(fd, pending, Count::Address, kernel);
    }
    // Connecting to the unspecified address means connecting to this host.
    let remote_addr = match mapped {
        Some(Ipv4Addr::UNSPECIFIED) => LOOPBACK,
        None if remote_addr.is_unspecified() => Ipv6Addr::LOCALHOST,
        _ => remote_addr,
    };
    let command = Command {
        op: op::CONNECT,
        remote_addr,
        remote_port: port.into(),
        local_addr: local.0,
        local_port: local.1.into(),
        flags: MAY_JOIN,
        ..Command::default()
    };
    match from_any_port(fd, pending, session, command) {
        Ok(socket) => {
            fallback::accelerated(&socket, [Count::ConnectedStack, Count::ConnectedDirect]);
            measure::connected(fd, CarriedBy::Stack, (remote_addr, port));
            if waits && !socket.has(flag::NONBLOCK) {
                return Ok(Some(await_handshake(fd, &socket)));
            }
            socket.mark(flag::CONNECT_PENDING, true);
            Ok(Some(Err(libc::EINPROGRESS)))
        }
        Err(Refusal::Kernel(why)) => {
            let answer = fall_back(fd, pending, why, kernel);
            measure::left_to_kernel(fd, why, (remote_addr, port));
            answer
        }
        Err(Refusal::Failed(errno)) => Ok(Some(Err(errno))),
        Err(Refusal::OtherStack(_) | Refusal::Join(_)) => Ok(Some(Err(libc::ENETUNREACH))),
    }
}

/// Promotes a socket by a connect command. The kernel chooses a port that looks free to it. But the stack may hold an
/// old connection from there to the same peer in TIME-WAIT. Linux would have chosen another port in `bind`. Here the
/// stack chooses one now.
fn from_any_port(fd: c_int, pending: Pending, session: &'static Session, command: Command) -> Result<Socket, Refusal> {
    match promote::promote(fd, pending, session, command) {
        Err(Refusal::Failed(libc::EADDRNOTAVAIL)) if pending.any_port => {
            promote::promote(fd, pending, session, Command { local_port: 0, ..command })
        }
        promoted => promoted,
    }
}

/// Waits for the end of the handshake.
fn await_handshake(fd: c_int, socket: &Socket) -> Sys<c_int> {
    let deadline = wait::deadline(socket.private().send_timeout_us.load(Ordering::Relaxed));
    match wait::until(socket, deadline, || socket.state() != state::CONNECTING) {
        // After a failure has been reported, the socket is as before, as on Linux.
        Ok(()) => outcome_of(socket).inspect_err(|_| _ = demote::demote(fd, socket, None)),
        Err(errno) => {
            // The handshake goes on in the background.
            socket.mark(flag::CONNECT_PENDING, true);
            Err(if errno == libc::EAGAIN { libc::EINPROGRESS } else { errno })
        }
    }
}

fn outcome_of(socket: &Socket) -> Sys<c_int> {
    match socket.take_error() {
        Some(errno) => Err(errno),
        None if socket.state() == state::CLOSED => Err(libc::ECONNABORTED),
        None => Ok(0),
    }
}

/// The stack does not carry the connection, for the reason `why`. The kernel connects it, unless the service is
/// required.
fn fall_back(fd: c_int, pending: Pending, why: Count, kernel: Kernel) -> Outcome {
    fallback::count(why);
    match registration::required_but_gone() {
        Some(errno) => Ok(Some(Err(errno))),
        None => by_kernel(fd, pending, kernel),
    }
}

/// The kernel connects the socket, and has it from then on unless that fails.
fn by_kernel(fd: c_int, pending: Pending, kernel: Kernel) -> Outcome {
    let Kernel::Connects(addr, len) = kernel else { return Err(LeftToKernel) };
    // SAFETY: the arguments are those of the program's `connect`, and the kernel checks the address.
    let connected = outcome(unsafe { real::connect(fd, addr, len) });
    match connected {
        // Within this host a refusal is known at once. The program may try again once there is a listener.
        Err(libc::EINPROGRESS) if sys::is_closed(fd) => {
            table::update_pending(fd, |pending| pending.refused = true);
        }
        Ok(_) | Err(libc::EINPROGRESS | libc::EALREADY | libc::EINTR | libc::EISCONN) => pending::leave(fd, pending),
        Err(_) => {}
    }
    Ok(Some(connected))
}

/// `connect` on a socket that has connected or listened before.
fn connect_again(fd: c_int, socket: &Socket, remote: Option<address::Address>, waits: bool, kernel: Kernel) -> Outcome {
    let answer = match socket.state() {
        state::LISTENING => Err(libc::EISCONN),
        state::CONNECTING if !waits || socket.has(flag::NONBLOCK) => Err(libc::EALREADY),
        state::CONNECTING => await_handshake(fd, socket),
        state::ESTABLISHED if socket.has(flag::CONNECT_PENDING) => {
            socket.mark(flag::CONNECT_PENDING, false);
            Ok(0)
        }
        state::ESTABLISHED => Err(libc::EISCONN),
        _ => match socket.take_error() {
            // The connect has failed, and the program has read the error already.
            None if socket.has(flag::CONNECT_PENDING) => {
                socket.mark(flag::CONNECT_PENDING, false);
                Err(libc::ECONNABORTED)
            }
            // After a failure the socket can connect again: it becomes a pending one.
            None => match (demote::demote(fd, socket, None), remote) {
                (Ok(pending), Some(remote)) => return connect_pending(fd, pending, remote, waits, kernel),
                (Ok(_), None) => return Ok(None),
                (Err(errno), _) => Err(errno),
            },
            Some(errno) => {
                socket.mark(flag::CONNECT_PENDING, false);
                Err(errno)
            }
        },
    };
    Ok(Some(answer))
}

/// `connect` to AF_UNSPEC: resets the connection. The socket can be used again.
fn disconnect(fd: c_int, socket: &Socket) -> Sys<c_int> {
    if socket.kernel_half() {
        address::disconnect(fd)?;
        kernel_half::stop(fd, socket);
        return Ok(0);
    }
    if !matches!(socket.state(), state::LISTENING | state::CLOSED) {
        socket.mark_app(app_flags::CLOSED | app_flags::ABORT, true);
        return demote::demote_reset(fd, socket).map(|_| 0);
    }
    demote::demote(fd, socket, None).map(|_| 0)
}
