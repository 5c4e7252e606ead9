//! `SO_SNDBUF` and `SO_RCVBUF`. The fast stack's rings are as long as the service has made them; of a direct connection's rings each side
//! keeps as much from being used as the options ask for. A kernel stack passes them on to its kernel's socket; of the rings before that
//! only a share is used then.

use crate::options::stack;
use crate::options::table::At;
use core::sync::atomic::Ordering;
use libc::c_int;
use towpath_client::socket::Socket;
use towpath_client::sys::{self, Sys};
use towpath_client::{doorbell, limits};

/// `setsockopt` with `name`, which forces the option or not. The option's own name is `reads_as`, and its word is `at`. `fd` is the
/// socketpair's, which knows the system's limits.
pub fn set(fd: c_int, socket: &Socket, (name, reads_as): (c_int, c_int), at: At, asked: c_int) -> Sys<()> {
    sys::setsockopt(fd, libc::SOL_SOCKET, name, asked)?;
    let size = sys::getsockopt::<u32>(fd, libc::SOL_SOCKET, reads_as, 0)?;
    at(socket.options()).store(size, Ordering::Relaxed);
    // The stack must not know of a lower limit before those who read.
    limits::apply(socket);
    stack::changed(socket);
    // There may be more room now.
    if let Some(direct) = socket.direct() {
        direct.notify(socket.session);
    }
    doorbell::wake_sleepers(socket);
    Ok(())
}

/// `getsockopt`: a size that was not asked for is that of the ring.
pub fn get(socket: &Socket, name: c_int, at: At) -> c_int {
    let geometry = socket.session.geometry;
    let ring = if name == libc::SO_SNDBUF { geometry.tx_bytes } else { geometry.rx_bytes };
    match at(socket.options()).load(Ordering::Relaxed) {
        0 => ring as c_int,
        asked => asked as c_int,
    }
}
