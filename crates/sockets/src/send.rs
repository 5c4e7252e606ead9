//! Sending: from the caller's buffers straight into the ring.

use crate::private::flag;
use crate::receive::{Direction, copy, total};
use crate::socket::Socket;
use crate::sys::{self, Sys};
use crate::{block, doors, hold, urgent};
use core::sync::atomic::Ordering;
use libc::{c_int, iovec};
use towpath_ring::lines::{app_flags, state, status};

/// `send` and its relatives. `flags` are MSG_*.
///
/// # Safety
/// The vectors must be readable memory.
pub unsafe fn send(socket: &Socket, iov: &[iovec], flags: c_int) -> Sys<usize> {
    let total = total(iov, 0)?;
    pump(socket, total, flags, |socket, done, room| {
        let count = room.min(total - done);
        let tail = socket.app().tx_tail.load(Ordering::Relaxed);
        // SAFETY: the caller vouches for the vectors; they hold `done + count` bytes.
        unsafe { copy(Direction::In, socket.send_ring(), tail, iov, done, count)? };
        Ok(count)
    })
}

/// `sendfile` and the like: reads the file straight into the ring.
pub fn from_file(socket: &Socket, input: c_int, offset: Option<i64>, len: usize, flags: c_int) -> Sys<usize> {
    let mut ended = false;
    let sent = pump(socket, len, flags, |socket, done, room| {
        let tail = socket.app().tx_tail.load(Ordering::Relaxed);
        let spans = socket.send_ring().spans(tail, room.min(len - done) as u32);
        let iov = spans.map(|(base, len)| iovec { iov_base: base.cast(), iov_len: len });
        // SAFETY: the spans lie in the free part of the send ring, which is ours to write under the lock.
        let count = unsafe { sys::preadv(input, &iov, offset.map_or(-1, |offset| offset + done as i64))? };
        ended = count == 0;
        if ended { Err(0) } else { Ok(count) }
    });
    match sent {
        Err(0) if ended => Ok(0),
        sent => sent,
    }
}

/// Moves up to `total` bytes into the send ring by `fill(socket, done, room)`, which returns how many it has written
/// after the tail (it has the sending lock), and waits for room as the socket's mode says.
fn pump(
    socket: &Socket,
    total: usize,
    flags: c_int,
    mut fill: impl FnMut(&Socket, usize, usize) -> Sys<usize>,
) -> Sys<usize> {
    let nonblock = flags & libc::MSG_DONTWAIT != 0 || socket.has(flag::NONBLOCK);
    let (mut deadline, mut held) = (None, None);
    let mut done = 0;
    loop {
        let state = socket.state();
        if state != state::CONNECTING {
            if state == state::LISTENING || socket.send_closed() {
                return closed(socket, done, flags);
            }
            if total == 0 {
                return Ok(0);
            }
            match put(socket, done, total - done, flags, &mut fill) {
                Ok(count) => done += count,
                Err(_) if done > 0 => return Ok(done),
                Err(errno) => return Err(errno),
            }
            if done == total {
                return Ok(done);
            }
            socket.want_room();
            if socket.writable() {
                continue;
            }
        }
        if nonblock {
            return if done > 0 { Ok(done) } else { Err(libc::EAGAIN) };
        }
        held.get_or_insert_with(|| hold::Use::of(socket));
        let deadline =
            *deadline.get_or_insert_with(|| block::deadline(socket.private().send_timeout_us.load(Ordering::Relaxed)));
        let connecting = state == state::CONNECTING;
        let waited = block::until(socket, deadline, || {
            socket.send_closed() || if connecting { socket.state() != state::CONNECTING } else { socket.writable() }
        });
        if let Err(errno) = waited {
            return if done > 0 { Ok(done) } else { Err(errno) };
        }
    }
}

/// One step: fills the room that there is and tells the stack.
fn put(
    socket: &Socket,
    done: usize,
    left: usize,
    flags: c_int,
    fill: &mut impl FnMut(&Socket, usize, usize) -> Sys<usize>,
) -> Sys<usize> {
    let _sending = socket.private().sending.lock().ok_or(libc::EAGAIN)?;
    let room = socket.room();
    let status = socket.status();
    if room == 0 && status & status::PEER_CLOSED == 0 || socket.is_gone() {
        return Ok(0);
    }
    if status & status::PEER_CLOSED != 0 {
        // It is taken, and answered by a reset.
        socket.mark(flag::SENT_TO_NOBODY, true);
        doors::wake_own(socket);
        return Ok(left);
    }
    let count = fill(socket, done, room as usize)?;
    let app = socket.app();
    hold(socket, flags & libc::MSG_MORE != 0);
    let tail = app.tx_tail.load(Ordering::Relaxed).wrapping_add(count as u32);
    if flags & libc::MSG_OOB != 0 {
        urgent::send(socket, tail);
    }
    app.tx_tail.store(tail, Ordering::Release);
    if let Some(direct) = socket.direct() {
        let sent = &socket.private().sent;
        sent.store(sent.load(Ordering::Relaxed) + count as u64, Ordering::Relaxed);
        direct.show_sent(socket.session, tail);
        if flags & libc::MSG_OOB != 0 {
            direct.announce(socket.session);
        }
        return Ok(count);
    }
    // The stack sees the receive head too when it looks.
    socket.private().told_head.store(app.rx_head.load(Ordering::Relaxed), Ordering::Relaxed);
    doors::ring(socket);
    Ok(count)
}

/// MSG_MORE: partial segments are held as by `TCP_CORK`, until something is sent without it. Under `sending`.
#[inline]
fn hold(socket: &Socket, more: bool) {
    if more {
        socket.mark(flag::MORE, true);
        socket.app().flags.fetch_or(app_flags::CORK, Ordering::AcqRel);
    } else if socket.has(flag::MORE) {
        let_go(socket);
    }
}

/// What MSG_MORE holds is let go, unless `TCP_CORK` holds it too.
#[cold]
pub fn let_go(socket: &Socket) {
    socket.mark(flag::MORE, false);
    if !socket.has(flag::CORKED) {
        socket.app().flags.fetch_and(!app_flags::CORK, Ordering::AcqRel);
    }
}

/// Sending on a socket that cannot: what has been sent, else the pending error, else EPIPE with its signal.
fn closed(socket: &Socket, done: usize, flags: c_int) -> Sys<usize> {
    if done > 0 {
        return Ok(done);
    }
    match socket.take_error() {
        0 | libc::EPIPE => {
            if flags & libc::MSG_NOSIGNAL == 0 {
                sys::raise_sigpipe();
            }
            Err(libc::EPIPE)
        }
        errno => Err(errno),
    }
}
