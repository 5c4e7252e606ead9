//! Bytes that have not been acknowledged, according to the stack's information line.

use crate::private::flag;
use crate::socket::Socket;
use crate::{command, cork};
use core::sync::atomic::Ordering::Relaxed;
use towpath_ring::lines::state;

/// Bytes in the stack's own buffers, behind the send ring, when the stack was last asked. `None`: it has no such
/// buffers.
pub fn holds(socket: &Socket) -> Option<u32> {
    let none = socket.direct().is_some() || socket.state() != state::ESTABLISHED;
    if none { None } else { socket.info().held.load(Relaxed).checked_sub(1) }
}

/// Does the stack take bytes out of the send ring before they are acknowledged?
pub fn has_buffers(socket: &Socket) -> bool {
    socket.info().held.load(Relaxed) != 0
}

/// [`queued`], but asks the stack for its present state first.
pub fn queued_now(socket: &Socket) -> (u32, u32) {
    // Bytes that the stack takes out of the ring between two reads would be missed, or counted twice.
    for _ in 0..4 {
        let room = socket.view().room();
        if holds(socket).is_none() {
            break;
        }
        command::refresh(socket);
        if socket.view().room() == room {
            break;
        }
    }
    queued(socket)
}

/// How many bytes the peer has not acknowledged, and how many of them were never sent, as far as is known.
pub fn queued(socket: &Socket) -> (u32, u32) {
    // Bytes sent on a direct connection have reached the peer's ring, unless they are held back.
    if let Some(direct) = socket.direct() {
        let held = cork::held(socket, &direct);
        return (held, held);
    }
    let queued = socket.view().queued();
    let files = if socket.has(flag::FILE) { socket.view().file_bytes() } else { 0 };
    let unsent = socket.info().unsent.load(Relaxed);
    match holds(socket) {
        Some(held) => (queued + files + held, queued + files + unsent.min(held)),
        None => (queued + files, unsent.min(queued) + files),
    }
}
