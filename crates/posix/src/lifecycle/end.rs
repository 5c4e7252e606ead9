//! The end of a socket in a slot, when its last descriptor is closed.

use libc::c_int;
use std::time::Instant;
use towpath_client::close::{STACK_TIME, abandon};
use towpath_client::socket::Socket;
use towpath_client::sys;
use towpath_ring::lines::state;

/// Gives the slot behind `fd` up. A listener's port is free when this returns.
pub fn end(fd: c_int, socket: &Socket) {
    let listening = socket.state() == state::LISTENING;
    abandon(socket);
    // The kernel half's port is free when its last descriptor is closed.
    if listening && !socket.kernel_half() {
        await_port(fd, socket);
    }
}

/// Waits until the port of a listener can be bound again, as after `close` on Linux. The service closes its end of the
/// socketpair when it has released the port, which is at once. A service that is slow or dead is not waited for long.
fn await_port(fd: c_int, socket: &Socket) {
    let deadline = Instant::now() + STACK_TIME;
    while !socket.session.is_dead() {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut pair = [libc::pollfd { fd, events: 0, revents: 0 }];
        // The pair has hung up or the time is over, unless a signal has interrupted the wait.
        if left.is_zero() || sys::ppoll(&mut pair, Some(left), core::ptr::null()) != Err(libc::EINTR) {
            return;
        }
    }
}
