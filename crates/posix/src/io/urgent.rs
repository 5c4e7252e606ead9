//! Urgent data as on Linux: one byte, the last that was sent with MSG_OOB. It is read with `MSG_OOB` outside the
//! stream, or in the stream with `SO_OOBINLINE`. Reads stop at the mark. The byte is always in the ring; only this file
//! knows whether it has been read or passed.

use crate::io::copy::{self, Direction};
use crate::io::sigurg;
use core::sync::atomic::{AtomicU64, Ordering};
use libc::{c_int, iovec};
use towpath_client::private::flag;
use towpath_client::socket::Socket;
use towpath_client::sys::Sys;
use towpath_client::view::View;
use towpath_ring::lines::{app_flags, status};

/// An urgent pointer leads at most this far beyond the bytes that have come in order.
const FARTHEST: u32 = 0xffff;

/// The word for a noted position. The bit above it tells it from 0, which is no position.
const fn noted(position: u32) -> u64 {
    1 << 32 | position as u64
}

fn is(word: &AtomicU64, position: u32) -> bool {
    word.load(Ordering::Relaxed) == noted(position)
}

/// The distance from the receive head to the urgent byte; `None` = there is none, or it has been passed.
#[inline]
pub fn ahead(view: &View) -> Option<u32> {
    if is_marked(view) { pending(view) } else { None }
}

#[cold]
fn pending(view: &View) -> Option<u32> {
    let position = view.urgent_position();
    let ahead = position.wrapping_sub(view.app.rx_head.load(Ordering::Relaxed));
    let live = ahead <= view.ring_bytes().1 + FARTHEST && !is(&view.private.urgent_passed, position);
    live.then_some(ahead)
}

/// Is the urgent byte not part of the stream?
fn is_apart(view: &View) -> bool {
    !view.has(flag::OOBINLINE)
}

/// Is the next byte the urgent one (`SIOCATMARK`; RFC 9293 §3.8.5, MUST-33)?
#[inline]
pub fn at_mark(view: &View) -> bool {
    ahead(view) == Some(0)
}

/// Unread bytes of the stream. At the mark, the urgent byte is not counted.
#[inline]
pub fn readable(view: &View) -> u32 {
    readable_behind(view, 0)
}

/// Unread bytes of the stream that are more than `offset` bytes behind the receive head.
#[inline]
pub fn readable_behind(view: &View, offset: u32) -> u32 {
    let unread = view.readable().saturating_sub(offset);
    if ahead(view) == Some(offset) && is_apart(view) { unread.saturating_sub(1) } else { unread }
}

/// The value of `FIONREAD`: bytes up to the mark (RFC 9293 §3.8.5, MUST-33).
pub fn inquiry(view: &View) -> u32 {
    let unread = view.readable();
    match ahead(view) {
        Some(ahead) if is_apart(view) && ahead < unread => ahead,
        _ => unread,
    }
}

/// Has an urgent byte been announced that may not have been passed?
#[inline]
pub fn is_marked(view: &View) -> bool {
    view.status() & status::URGENT != 0
}

/// How many of `unread` bytes in the ring belong to the stream, and whether MSG_OOB would read an urgent byte
/// (`POLLPRI`).
#[cold]
pub fn seen(view: &View, unread: u32) -> (u32, bool) {
    let waiting = ahead(view).is_some_and(|ahead| ahead < view.readable() && !is_read(view));
    (if at_mark(view) && is_apart(view) { unread.saturating_sub(1) } else { unread }, waiting)
}

#[cold]
fn is_read(view: &View) -> bool {
    is(&view.private.urgent_read, view.urgent_position())
}

/// Where a read stops because of the mark.
pub struct Stop {
    /// Bytes before the stream goes on (1 for an urgent byte outside it).
    pub skip: u32,
    /// Bytes that may be read then.
    pub count: usize,
}

/// Where a read of `count` of `unread` bytes stops. Under `receiving`.
#[cold]
pub fn stop(view: &View, ahead: u32, count: usize, unread: u32) -> Stop {
    match ahead {
        0 if is_apart(view) => Stop { skip: unread.min(1), count: count.min(unread.saturating_sub(1) as usize) },
        0 => Stop { skip: 0, count },
        ahead => Stop { skip: 0, count: count.min(ahead as usize) },
    }
}

/// Notes a mark that the receive head has passed. The head was `ahead` bytes before the mark and has moved by `moved`.
/// Under `receiving`.
#[cold]
pub fn moved(view: &View, ahead: u32, moved: u32) {
    if moved > ahead {
        // `ahead` counts from the old head. A newer mark is further on and has not been passed.
        let head = view.app.rx_head.load(Ordering::Relaxed);
        let position = head.wrapping_sub(moved).wrapping_add(ahead);
        view.private.urgent_passed.store(noted(position), Ordering::Relaxed);
    }
}

/// `recv` with MSG_OOB.
///
/// # Safety
/// The vectors must be writable memory.
pub unsafe fn receive(socket: &Socket, iov: &[iovec], total: usize, flags: c_int) -> Sys<usize> {
    sigurg::heard(socket);
    let _receiving = socket.private().receiving.lock().ok_or(libc::EAGAIN)?;
    let view = socket.view();
    let Some(ahead) = ahead(&view).filter(|_| is_apart(&view) && !is_read(&view)) else {
        return Err(libc::EINVAL);
    };
    let closed = view.end().closed;
    if ahead >= view.readable() {
        // It is announced, but has not come yet.
        return if closed { Ok(0) } else { Err(libc::EAGAIN) };
    }
    let position = view.app.rx_head.load(Ordering::Relaxed).wrapping_add(ahead);
    if total > 0 && flags & libc::MSG_TRUNC == 0 {
        // SAFETY: the caller vouches for the vectors, which have room for at least one byte.
        unsafe { copy::copy(Direction::Out, view.receive_ring(), position, iov, 0, 1)? };
    }
    if flags & libc::MSG_PEEK == 0 {
        view.private.urgent_read.store(noted(position), Ordering::Relaxed);
    }
    Ok(total.min(1))
}

/// Announces that the last byte before `tail` is urgent. The tail is published afterwards. Under `sending`.
pub fn send(socket: &Socket, tail: u32) {
    let app = socket.app();
    app.urgent.store(tail, Ordering::Release);
    app.flags.fetch_or(app_flags::URGENT, Ordering::AcqRel);
    if let Some(direct) = socket.direct() {
        direct.show_urgent(tail);
    }
}
