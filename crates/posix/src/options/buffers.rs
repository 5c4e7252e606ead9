//! `SO_SNDBUF` and `SO_RCVBUF`. Of the fast stack's rings, which grow with their connection, and of a
//! direct connection's, each side uses no more than the options ask for. A kernel stack sets the options on its kernel's
//! socket, and then uses only a share of the rings before it.

use crate::options::stack;
use crate::options::table::At;
use core::sync::atomic::Ordering;
use libc::c_int;
use towpath_client::socket::Socket;
use towpath_client::sys::{self, Sys};
use towpath_client::{doorbell, limits};

/// `setsockopt` with `name`: the option itself, or the variant that forces it. `reads_as` is the option itself, and
/// `at` its word. `fd` is the slot's socketpair, whose `setsockopt` applies the system's limits.
pub fn set(fd: c_int, socket: &Socket, (name, reads_as): (c_int, c_int), at: At, asked: c_int) -> Sys<()> {
    sys::setsockopt(fd, libc::SOL_SOCKET, name, asked)?;
    let size = sys::getsockopt::<u32>(fd, libc::SOL_SOCKET, reads_as, 0)?;
    at(socket.options()).store(size, Ordering::Relaxed);
    // The readers of the limit come first: the stack must not learn of a smaller buffer before they do.
    limits::apply(socket);
    stack::changed(socket);
    // A larger buffer may give the peer room to send.
    if let Some(direct) = socket.direct() {
        direct.notify(socket.session);
    }
    doorbell::wake_sleepers(socket);
    Ok(())
}

/// `getsockopt`. Reads as the ring's size if the program has set no other.
pub fn get(socket: &Socket, name: c_int, at: At) -> c_int {
    let (region, slot) = (&socket.session.region, socket.slot);
    let ring = if name == libc::SO_SNDBUF { region.tx(slot) } else { region.rx(slot) }.capacity();
    match at(socket.options()).load(Ordering::Relaxed) {
        0 => ring as c_int,
        asked => asked as c_int,
    }
}
