//! Urgent data as Linux has them: one byte, the last that was sent with MSG_OOB, taken out of the stream by `MSG_OOB` or left in
//! it by `SO_OOBINLINE`. Reads stop at the mark. The byte itself always stands in the ring; who has read it or gone past it is
//! known here alone.

use crate::private::flag;
use crate::receive::{self, Direction};
use crate::sigurg;
use crate::socket::Socket;
use crate::sys::Sys;
use core::sync::atomic::{AtomicU64, Ordering};
use libc::{c_int, iovec};
use towpath_ring::lines::{app_flags, status};

/// A pointer leads at most this far beyond what has come in order.
const FARTHEST: u32 = 0xffff;

/// A position together with the mark that there is one.
const fn noted(position: u32) -> u64 {
    1 << 32 | position as u64
}

fn is(word: &AtomicU64, position: u32) -> bool {
    word.load(Ordering::Relaxed) == noted(position)
}

/// How far ahead of the receive head the urgent byte is; `None` = there is none, or it has been passed.
#[inline]
pub fn ahead(socket: &Socket) -> Option<u32> {
    if socket.status() & status::URGENT == 0 {
        return None;
    }
    pending(socket)
}

#[cold]
fn pending(socket: &Socket) -> Option<u32> {
    let position = socket.urgent_position();
    let ahead = position.wrapping_sub(socket.app().rx_head.load(Ordering::Relaxed));
    let live = ahead <= socket.ring_bytes().1 + FARTHEST && !is(&socket.private().urgent_passed, position);
    live.then_some(ahead)
}

/// Does the stream lack the urgent byte?
fn is_apart(socket: &Socket) -> bool {
    !socket.has(flag::OOBINLINE)
}

/// Is the next byte the urgent one (`SIOCATMARK`; RFC 9293 §3.8.5, MUST-33)?
#[inline]
pub fn at_mark(socket: &Socket) -> bool {
    ahead(socket) == Some(0)
}

/// Unread bytes of the stream; at the mark the urgent byte is none of them.
#[inline]
pub fn readable(socket: &Socket) -> u32 {
    let unread = socket.readable();
    if at_mark(socket) && is_apart(socket) { unread.saturating_sub(1) } else { unread }
}

/// What `FIONREAD` shows: bytes up to the mark (RFC 9293 §3.8.5, MUST-33).
pub fn inquiry(socket: &Socket) -> u32 {
    let unread = socket.readable();
    match ahead(socket) {
        Some(ahead) if is_apart(socket) && ahead < unread => ahead,
        _ => unread,
    }
}

/// Is there an urgent byte to be read with MSG_OOB (`POLLPRI`)?
#[inline]
pub fn is_waiting(socket: &Socket) -> bool {
    ahead(socket).is_some_and(|ahead| ahead < socket.readable() && !is_read(socket))
}

#[cold]
fn is_read(socket: &Socket) -> bool {
    is(&socket.private().urgent_read, socket.urgent_position())
}

/// What a read has to do about the mark.
pub struct Stop {
    /// Bytes before the stream goes on (the urgent byte itself, apart).
    pub skip: u32,
    /// Bytes that may be read then.
    pub count: usize,
}

/// Where a read of `count` bytes stops. Under `receiving`.
#[cold]
pub fn stop(socket: &Socket, ahead: u32, count: usize) -> Stop {
    match ahead {
        0 if is_apart(socket) => {
            let unread = socket.readable();
            Stop { skip: unread.min(1), count: count.min(unread.saturating_sub(1) as usize) }
        }
        0 => Stop { skip: 0, count },
        ahead => Stop { skip: 0, count: count.min(ahead as usize) },
    }
}

/// After the receive head has moved by `moved` from `ahead` before the mark: has it been passed? Under `receiving`.
#[cold]
pub fn moved(socket: &Socket, ahead: u32, moved: u32) {
    if moved > ahead {
        // `ahead` belongs to where the head was; a newer mark is further on and not passed.
        let head = socket.app().rx_head.load(Ordering::Relaxed);
        let position = head.wrapping_sub(moved).wrapping_add(ahead);
        socket.private().urgent_passed.store(noted(position), Ordering::Relaxed);
    }
}

/// `recv` with MSG_OOB.
///
/// # Safety
/// The vectors must be writable memory.
pub unsafe fn receive(socket: &Socket, iov: &[iovec], total: usize, flags: c_int) -> Sys<usize> {
    sigurg::heard(socket);
    let _receiving = socket.private().receiving.lock().ok_or(libc::EAGAIN)?;
    let Some(ahead) = ahead(socket).filter(|_| is_apart(socket) && !is_read(socket)) else {
        return Err(libc::EINVAL);
    };
    if ahead >= socket.readable() {
        // Announced, and not here yet.
        return if socket.receive_closed() { Ok(0) } else { Err(libc::EAGAIN) };
    }
    let position = socket.app().rx_head.load(Ordering::Relaxed).wrapping_add(ahead);
    if total > 0 && flags & libc::MSG_TRUNC == 0 {
        // SAFETY: the caller vouches for the vectors; they have room for a byte.
        unsafe { receive::copy(Direction::Out, socket.receive_ring(), position, iov, 0, 1)? };
    }
    if flags & libc::MSG_PEEK == 0 {
        socket.private().urgent_read.store(noted(position), Ordering::Relaxed);
    }
    Ok(total.min(1))
}

/// The bytes up to `tail`, which the stack has not been shown yet, end in an urgent one. Under `sending`.
pub fn send(socket: &Socket, tail: u32) {
    let app = socket.app();
    app.urgent.store(tail, Ordering::Release);
    app.flags.fetch_or(app_flags::URGENT, Ordering::AcqRel);
    if let Some(direct) = socket.direct() {
        direct.show_urgent(tail);
    }
}
