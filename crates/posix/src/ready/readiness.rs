//! The events of a socket for poll, select and epoll, by the rules of Linux's `tcp_poll`.

use crate::io::{hand_over, urgent};
use core::sync::atomic::Ordering;
use towpath_client::backend::{Backend, Lines};
use towpath_client::private::flag;
use towpath_client::socket::Socket;
use towpath_client::view::View;
use towpath_ring::command::Accepted;
use towpath_ring::lines::{app_flags, state, status};

/// Readable.
pub const IN: u32 = libc::EPOLLIN as u32;
/// Writable.
pub const OUT: u32 = libc::EPOLLOUT as u32;
/// The peer has ended its stream.
pub const RDHUP: u32 = libc::EPOLLRDHUP as u32;
/// Both directions have ended.
pub const HUP: u32 = libc::EPOLLHUP as u32;
/// An error is pending.
pub const ERR: u32 = libc::EPOLLERR as u32;
/// An urgent byte is to be read.
pub const PRI: u32 = libc::EPOLLPRI as u32;
/// The same as [`IN`], which some programs ask for instead.
pub const RDNORM: u32 = libc::EPOLLRDNORM as u32;
const WRNORM: u32 = libc::EPOLLWRNORM as u32;
/// [`OUT`] by both of its names.
pub const WRITE: u32 = OUT | WRNORM;
/// Events that are reported whether asked for or not.
pub const ALWAYS: u32 = HUP | ERR;

/// The events of a socket, as epoll bits (poll's are the same numbers).
pub fn events(socket: &Socket) -> u32 {
    events_of(&socket.view())
}

fn events_of(view: &View) -> u32 {
    let state = view.state();
    if state == state::LISTENING {
        return if view.readable() as usize >= Accepted::BYTES { IN | RDNORM } else { 0 };
    }
    if state == state::CONNECTING {
        return 0;
    }
    // The kernel half goes on alone, and tells of itself.
    if state == state::CLOSED && view.has(flag::KERNEL_HALF) {
        return 0;
    }
    // The end of the stream is loaded before the data, so that no byte before the end is missed.
    let receive_closed = view.receive_closed_in(state);
    let send_closed = state == state::CLOSED || view.has_app(app_flags::SHUT_WR);
    let unread = view.readable();
    // Loaded after the data, because an urgent byte is announced before the data in front of it.
    let status = view.status();
    let (unread, urgent) = if status & status::URGENT != 0 { urgent::seen(view, unread) } else { (unread, false) };
    let mut events = 0;
    if receive_closed {
        events |= IN | RDNORM | RDHUP;
    } else if unread > 0 && unread >= view.private.low_water.load(Ordering::Relaxed) {
        events |= IN | RDNORM;
    }
    if urgent {
        events |= PRI;
    }
    if send_closed || view.writable() {
        events |= OUT | WRNORM;
    }
    if state == state::CLOSED || (send_closed && receive_closed) {
        events |= HUP;
    }
    if (state == state::CLOSED || view.may_have_failed(status)) && view.error().is_some() {
        events |= ERR;
    }
    events
}

/// With any of these, a connection is not in the ordinary open state.
const ENDED: u32 = status::RX_EOF | status::RESET | status::TX_CLOSED | status::PEER_CLOSED | status::URGENT;

/// The events of an established connection without an end, an error or urgent data. `None`: it is not in that state, or
/// room is asked for and there is none. Then the general path is needed.
#[inline(always)]
fn events_of_steady(view: &View, interest: u32) -> Option<u32> {
    let unread = view.readable();
    // Loaded after the data: an urgent byte is announced before it, and nothing follows an end.
    let steady = view.is_established()
        && view.status() & ENDED == 0
        && !view.has_app(app_flags::SHUT_WR)
        && !view.has(flag::SHUT_RD | flag::SENT_TO_NOBODY | flag::SPLICES)
        && view.stack.error.load(Ordering::Acquire) | view.stack.soft_error.load(Ordering::Acquire) == 0;
    if !steady {
        return None;
    }
    let readable = unread > 0 && unread >= view.private.low_water.load(Ordering::Relaxed);
    let shown = if readable { IN | RDNORM } else { 0 };
    match interest & (OUT | WRNORM) {
        0 => Some(shown & interest),
        _ => view.writable().then_some((shown | OUT | WRNORM) & interest),
    }
}

/// [`events_of_steady`] on one carrier, whose receive ring has `most` bytes. `None` also if room is asked for.
#[inline(always)]
pub fn events_by(backend: &impl Backend, most: u32, interest: u32) -> Option<u32> {
    let &Lines { app, stack, private, .. } = backend.lines();
    if interest & (OUT | WRNORM) != 0 {
        return None;
    }
    let unread = backend.unread(app.rx_head.load(Ordering::Relaxed));
    let steady = backend.status() & ENDED == 0
        && app.flags.load(Ordering::Relaxed) & app_flags::SHUT_WR == 0
        && private.flags.load(Ordering::Relaxed) & (flag::SHUT_RD | flag::SENT_TO_NOBODY | flag::SPLICES) == 0
        && stack.error.load(Ordering::Acquire) | stack.soft_error.load(Ordering::Acquire) == 0;
    if !steady || unread > most {
        return None;
    }
    let readable = unread > 0 && unread >= private.low_water.load(Ordering::Relaxed);
    Some(if readable { interest & (IN | RDNORM) } else { 0 })
}

/// The events of `interest` that the socket has. If room is asked for and there is none, the stack is asked to notify.
#[inline(always)]
pub fn events_for(socket: &Socket, interest: u32) -> u32 {
    events_of_steady(&socket.view(), interest).unwrap_or_else(|| events_of_all(*socket, interest))
}

#[inline(never)]
fn events_of_all(socket: Socket, interest: u32) -> u32 {
    let wanted = interest | ALWAYS;
    let is_owed = socket.has(flag::SPLICES) && hand_over::is_readable(&socket);
    let owed = if is_owed { interest & (IN | RDNORM) } else { 0 };
    let shown = events(&socket) & wanted | owed;
    if interest & (OUT | WRNORM) != 0 && shown & (OUT | WRNORM) == 0 && socket.state() != state::LISTENING {
        socket.want_room();
        return events(&socket) & wanted | owed;
    }
    shown
}
