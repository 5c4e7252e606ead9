//! `connect`.

use crate::fallback::{self, Not};
use crate::listen::{self, take};
use crate::private::flag;
use crate::session;
use crate::socket::Socket;
use crate::sys::Sys;
use crate::table::{self, Kind, Undecided};
use crate::{address, block, renew, sys, watch};
use core::net::{Ipv4Addr, Ipv6Addr};
use core::sync::atomic::Ordering;
use libc::{c_int, sockaddr, socklen_t};
use towpath_hook::{Answer, outcome, real};
use towpath_ring::command::{Command, op};
use towpath_ring::figures::Way;
use towpath_ring::lines::{app_flags, state};
use towpath_ring::report::Count;

const LOOPBACK: Ipv6Addr = Ipv4Addr::LOCALHOST.to_ipv6_mapped();

/// The longest address that Linux looks at.
const ADDRESS_MAX: socklen_t = 128;

/// `connect`.
///
/// # Safety
/// `addr` may be any address.
pub unsafe fn connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> Answer<c_int> {
    // SAFETY: as above.
    unsafe { connect_by(fd, addr, len, true, || outcome(real::connect(fd, addr, len))) }
}

/// As [`connect`], but it never waits: EINPROGRESS, whose end [`outcome_if_any`] tells. What is to be the kernel's is left to it.
///
/// # Safety
/// As [`connect`].
pub unsafe fn begin(fd: c_int, addr: *const sockaddr, len: socklen_t) -> Answer<c_int> {
    /// No errno.
    const LEFT: i32 = i32::MAX;
    // SAFETY: as above.
    let begun = unsafe { connect_by(fd, addr, len, false, || Err(LEFT)) };
    if begun != Some(Err(LEFT)) {
        return begun;
    }
    if let Kind::Undecided(undecided) = table::get(fd) {
        listen::leave(fd, undecided);
    }
    None
}

/// The end of what [`begin`] has begun; `None` = not yet.
pub fn outcome_if_any(socket: &Socket) -> Option<Sys<c_int>> {
    if socket.state() == state::CONNECTING {
        return None;
    }
    socket.mark(flag::CONNECT_PENDING, false);
    Some(outcome_of(socket))
}

/// # Safety
/// As [`connect`]. `kernel` is the kernel's.
unsafe fn connect_by(
    fd: c_int,
    addr: *const sockaddr,
    len: socklen_t,
    waits: bool,
    kernel: impl FnOnce() -> Sys<c_int>,
) -> Answer<c_int> {
    let kind = table::get(fd);
    if kind == Kind::Kernel {
        return None;
    }
    let six = match kind {
        Kind::Undecided(undecided) => undecided.six,
        _ => Socket::of(fd).is_some_and(|socket| socket.has(flag::SIX)),
    };
    // SAFETY: the caller vouches for it.
    let (remote, ends) = unsafe { (address::read(six, addr, len), address::is_unspecified(addr, len)) };
    match (kind, remote) {
        (Kind::Undecided(undecided), Ok(_)) if undecided.refused => {
            table::update_undecided(fd, |undecided| undecided.refused = false);
            Some(left_to_kernel(fd, undecided, kernel))
        }
        (Kind::Undecided(undecided), Ok(Some(remote))) if len <= ADDRESS_MAX => {
            first(fd, undecided, remote, waits, kernel)
        }
        (Kind::Slot { .. }, Err(errno)) => Some(Err(errno)),
        (Kind::Slot { slot, generation }, Ok(remote)) => {
            let socket = Socket::at(slot, generation)?;
            if ends {
                return Some(disconnect(fd, &socket));
            }
            again(fd, &socket, remote, waits, kernel)
        }
        // AF_UNSPEC and nonsense: the kernel knows what to say, and the socket stays undecided.
        _ => None,
    }
}

/// `sendto` with MSG_FASTOPEN: connects first. The data follow the handshake, as they do for a server that gave no cookie.
///
/// # Safety
/// As [`connect`].
pub unsafe fn fast_open(fd: c_int, kind: Kind, addr: *const sockaddr, len: socklen_t) -> Answer<c_int> {
    if matches!(kind, Kind::Slot { .. }) {
        return Some(Err(libc::EISCONN));
    }
    // SAFETY: the caller vouches for it.
    unsafe { connect(fd, addr, len) }
}

/// The kernel connects it. It is the kernel's from then on, unless that fails.
fn by_kernel(fd: c_int, undecided: Undecided, why: Count, kernel: impl FnOnce() -> Sys<c_int>) -> Answer<c_int> {
    fallback::count(why);
    if let Some(refused) = listen::without_service() {
        return Some(Err(refused));
    }
    Some(left_to_kernel(fd, undecided, kernel))
}

fn left_to_kernel(fd: c_int, undecided: Undecided, kernel: impl FnOnce() -> Sys<c_int>) -> Sys<c_int> {
    let connected = kernel();
    match connected {
        // Within this host that is known by now; the program may try again when somebody listens here.
        Err(libc::EINPROGRESS) if sys::is_closed(fd) => {
            table::update_undecided(fd, |undecided| undecided.refused = true);
        }
        Ok(_) | Err(libc::EINPROGRESS | libc::EALREADY | libc::EINTR | libc::EISCONN) => listen::leave(fd, undecided),
        Err(_) => {}
    }
    connected
}

fn first(
    fd: c_int,
    undecided: Undecided,
    (address, port): address::Address,
    waits: bool,
    kernel: impl FnOnce() -> Sys<c_int>,
) -> Answer<c_int> {
    let Some(session) = session::start() else {
        return by_kernel(fd, undecided, fallback::why_no_session(), kernel);
    };
    let local = match undecided.bound.then(|| address::of_kernel(fd, undecided.six)) {
        Some(Ok(local)) => local,
        Some(Err(errno)) => return Some(Err(errno)),
        None => address::ANY,
    };
    let mapped = address.to_ipv4_mapped();
    // The kernel knows the interfaces, and what to say of the other family on a socket that is of IPv6 only.
    let refused = undecided.six && mapped.is_some() && listen::is_v6only(fd);
    if address::is_kernels(address) || address::is_kernels(local.0) || refused {
        return by_kernel(fd, undecided, Count::Address, kernel);
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
    let taken = take(fd, undecided, session, command);
    if let Ok(socket) = &taken {
        fallback::accelerated(socket, [Count::ConnectedStack, Count::ConnectedDirect]);
        watch::connected(fd, Way::Stack, (address, port));
    }
    match taken {
        Ok(socket) if !waits || socket.has(flag::NONBLOCK) => {
            socket.mark(flag::CONNECT_PENDING, true);
            Some(Err(libc::EINPROGRESS))
        }
        Ok(socket) => Some(established(fd, &socket)),
        Err(Not::Kernels(why)) => {
            let answer = by_kernel(fd, undecided, why, kernel);
            watch::left_to_kernel(fd, why, (address, port));
            answer
        }
        Err(Not::Failed(errno)) => Some(Err(errno)),
        Err(Not::Stack(_)) => Some(Err(libc::ENETUNREACH)),
    }
}

/// Waits for the outcome of the handshake.
fn established(fd: c_int, socket: &Socket) -> Sys<c_int> {
    let deadline = block::deadline(socket.private().send_timeout_us.load(Ordering::Relaxed));
    match block::until(socket, deadline, || socket.state() != state::CONNECTING) {
        // After a failure that it tells of, a socket is as it was before, as on Linux.
        Ok(()) => outcome_of(socket).inspect_err(|_| _ = renew::renew(fd, socket, None)),
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
fn again(
    fd: c_int,
    socket: &Socket,
    remote: Option<address::Address>,
    waits: bool,
    kernel: impl FnOnce() -> Sys<c_int>,
) -> Answer<c_int> {
    match socket.state() {
        state::LISTENING => Some(Err(libc::EISCONN)),
        state::CONNECTING if !waits || socket.has(flag::NONBLOCK) => Some(Err(libc::EALREADY)),
        state::CONNECTING => Some(established(fd, socket)),
        state::ESTABLISHED if socket.has(flag::CONNECT_PENDING) => {
            socket.mark(flag::CONNECT_PENDING, false);
            Some(Ok(0))
        }
        state::ESTABLISHED => Some(Err(libc::EISCONN)),
        _ => match socket.take_error() {
            // It has failed, and somebody has asked why.
            0 if socket.has(flag::CONNECT_PENDING) => {
                socket.mark(flag::CONNECT_PENDING, false);
                Some(Err(libc::ECONNABORTED))
            }
            0 => {
                // After a failure a socket may be used for another try: a fresh one takes its place.
                let undecided = match renew::renew(fd, socket, None) {
                    Ok(undecided) => undecided,
                    Err(errno) => return Some(Err(errno)),
                };
                first(fd, undecided, remote?, waits, kernel)
            }
            errno => {
                socket.mark(flag::CONNECT_PENDING, false);
                Some(Err(errno))
            }
        },
    }
}

/// `connect` to AF_UNSPEC: the connection is reset, and the socket may be used anew.
fn disconnect(fd: c_int, socket: &Socket) -> Sys<c_int> {
    if !matches!(socket.state(), state::LISTENING | state::CLOSED) {
        socket.mark_app(app_flags::CLOSED | app_flags::ABORT, true);
        return renew::renew_reset(fd, socket).map(|_| 0);
    }
    renew::renew(fd, socket, None).map(|_| 0)
}
