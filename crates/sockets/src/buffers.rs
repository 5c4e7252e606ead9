//! `SO_SNDBUF` and `SO_RCVBUF`. The fast stack's rings are as long as the service has made them; of a direct connection's rings each side
//! keeps as much from being used as the options ask for. A kernel stack passes them on to its kernel's socket; of the rings before that
//! only a share is used then.

use crate::socket::Socket;
use crate::steer;
use crate::sys::{self, Sys};
use crate::tcp_info;
use crate::{doors, session::Session};
use core::sync::atomic::{AtomicU32, Ordering};
use libc::c_int;

/// Where one of the two stands; `None` = it is neither.
fn word(socket: &Socket, name: c_int) -> Option<&'static AtomicU32> {
    match name {
        libc::SO_SNDBUF | libc::SO_SNDBUFFORCE => Some(&socket.options().send_buffer),
        libc::SO_RCVBUF | libc::SO_RCVBUFFORCE => Some(&socket.options().receive_buffer),
        _ => None,
    }
}

/// `setsockopt` with a name of SOL_SOCKET; `None` = it is neither of the two. `fd` is the socketpair's, which knows the system's limits.
pub fn set(fd: c_int, socket: &Socket, name: c_int, asked: c_int) -> Option<Sys<c_int>> {
    let word = word(socket, name)?;
    let reads_as = if core::ptr::eq(word, &socket.options().send_buffer) { libc::SO_SNDBUF } else { libc::SO_RCVBUF };
    let taken = sys::setsockopt(fd, libc::SOL_SOCKET, name, asked)
        .and_then(|_| sys::getsockopt::<u32>(fd, libc::SOL_SOCKET, reads_as, 0));
    Some(taken.map(|size| {
        word.store(size, Ordering::Relaxed);
        // The stack must not know of a lower limit before those who read.
        apply(socket);
        steer::changed(socket);
        // There may be more room now.
        if let Some(direct) = socket.direct() {
            direct.raise(socket.session);
        }
        doors::wake_own(socket);
        0
    }))
}

/// `getsockopt`, as `set`: what was not asked for is what there is.
pub fn get(socket: &Socket, session: &Session, name: c_int) -> Option<c_int> {
    let there_is = if name == libc::SO_SNDBUF { session.geometry.tx_bytes } else { session.geometry.rx_bytes };
    match word(socket, name)?.load(Ordering::Relaxed) {
        0 => Some(there_is as c_int),
        asked => Some(asked as c_int),
    }
}

/// Puts into effect what the options say.
pub fn apply(socket: &Socket) {
    let (options, private) = (socket.options(), socket.private());
    let send = options.send_buffer.load(Ordering::Relaxed);
    let receive = options.receive_buffer.load(Ordering::Relaxed);
    if let Some(direct) = socket.direct() {
        let geometry = direct.geometry();
        let (send, receive) = (geometry.send_withheld(send), geometry.receive_withheld(receive));
        private.send_limit.store(geometry.ring_bytes - send, Ordering::Relaxed);
        return direct.withhold(send, receive);
    }
    let geometry = socket.session.geometry;
    // Whoever reads has either told the stack of it, or will by the new limit.
    let _receiving = private.receiving.lock();
    private.receive_limit.store(geometry.receive_limit(receive), Ordering::Relaxed);
    if receive != 0 {
        private.low_water.fetch_min(geometry.receive_limit(receive), Ordering::Relaxed);
    }
    // The fast stack holds nothing outside the ring.
    let send = if tcp_info::has_buffers(socket) { send } else { 0 };
    private.send_limit.store(geometry.send_limit(send), Ordering::Relaxed);
}
