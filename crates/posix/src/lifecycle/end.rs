//! The last descriptor of a socket in a slot goes.

use libc::c_int;
use std::time::Instant;
use towpath_client::close::{STACK_TIME, abandon};
use towpath_client::socket::Socket;
use towpath_client::sys;
use towpath_ring::lines::state;

/// Lets the slot behind `fd` go. The port of a listener is free afterwards.
pub fn end(fd: c_int, socket: &Socket) {
    let listening = socket.state() == state::LISTENING;
    abandon(socket);
    if listening {
        await_port(fd, socket);
    }
}

/// A port can be bound again as soon as `close` of its listener returns. The service closes its end of the pair when
/// it has released the port, which is at once. A service that is slow or has ended is not waited for long.
fn await_port(fd: c_int, socket: &Socket) {
    let deadline = Instant::now() + STACK_TIME;
    while !socket.session.is_dead() {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut pair = [libc::pollfd { fd, events: 0, revents: 0 }];
        // Only a signal is a reason to wait again.
        if left.is_zero() || sys::ppoll(&mut pair, Some(left), core::ptr::null()) != Err(libc::EINTR) {
            return;
        }
    }
}
