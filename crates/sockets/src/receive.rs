//! Receiving: from the ring straight into the caller's buffers.

use crate::private::flag;
use crate::socket::Socket;
use crate::sys::Sys;
use crate::{block, doors, hold, urgent, user};
use core::sync::atomic::Ordering;
use libc::{c_int, iovec};
use towpath_ring::ByteRing;
use towpath_ring::lines::{state, status};

/// Two full segments: less free room than this and the peer may have stopped sending.
const TWO_SEGMENTS: u32 = 2 * 1460;

/// Bytes that the vectors have room for: EINVAL if that is more than a call can return, EFAULT if there is none behind a
/// vector (other places that fault raise SIGSEGV). With MSG_TRUNC nothing is written.
pub fn total(iov: &[iovec], flags: c_int) -> Sys<usize> {
    if flags & libc::MSG_TRUNC == 0 && iov.iter().any(|v| v.iov_base.is_null() && v.iov_len > 0) {
        return Err(libc::EFAULT);
    }
    iov.iter()
        .try_fold(0usize, |sum, v| sum.checked_add(v.iov_len).filter(|sum| *sum <= isize::MAX as usize))
        .ok_or(libc::EINVAL)
}

/// `recv` and its relatives. `flags` are MSG_*.
///
/// # Safety
/// The vectors must be writable memory.
pub unsafe fn receive(socket: &Socket, iov: &[iovec], flags: c_int) -> Sys<usize> {
    let total = total(iov, flags)?;
    if flags & libc::MSG_ERRQUEUE != 0 {
        return Err(libc::EAGAIN);
    }
    if socket.state() == state::LISTENING {
        return Err(libc::ENOTCONN);
    }
    if flags & libc::MSG_OOB != 0 {
        // SAFETY: the caller vouches for the vectors.
        return unsafe { urgent::receive(socket, iov, total, flags) };
    }
    let peek = flags & libc::MSG_PEEK != 0;
    let nonblock = flags & libc::MSG_DONTWAIT != 0 || socket.has(flag::NONBLOCK);
    let target = target(socket, total, flags);
    let (mut deadline, mut held) = (None, None);
    let mut done = 0;
    loop {
        // What is only looked at is looked at again from its beginning.
        // SAFETY: the caller vouches for the vectors.
        let taken = unsafe {
            if peek { take(socket, iov, 0, total, flags) } else { take(socket, iov, done, total - done, flags) }
        };
        match taken {
            Ok(count) if peek => done = count,
            Ok(count) => done += count,
            Err(_) if done > 0 => return Ok(done),
            Err(errno) => return Err(errno),
        }
        if done >= target || (done > 0 && urgent::at_mark(socket)) {
            return Ok(done);
        }
        // The end is looked at before the data: what came before it is then seen too.
        let closed = socket.receive_closed();
        let seen = if peek { done as u32 } else { 0 };
        if !socket.is_gone() && urgent::readable(socket) > seen {
            if total == 0 {
                return Ok(0);
            }
            continue;
        }
        // Whatever has happened since: after the peer's FIN comes the end.
        if socket.status() & status::RX_EOF != 0 || (done > 0 && (closed || nonblock || socket.error() != 0)) {
            return Ok(done);
        }
        match socket.take_error() {
            0 if closed => return Ok(0),
            0 => {}
            errno => return Err(errno),
        }
        if nonblock {
            return Err(libc::EAGAIN);
        }
        held.get_or_insert_with(|| hold::Use::of(socket));
        let deadline = *deadline
            .get_or_insert_with(|| block::deadline(socket.private().receive_timeout_us.load(Ordering::Relaxed)));
        let waited = block::until(socket, deadline, || {
            socket.receive_closed() || urgent::readable(socket) > seen || socket.error() != 0
        });
        if let Err(errno) = waited {
            return if done > 0 { Ok(done) } else { Err(errno) };
        }
    }
}

/// How many bytes end the wait: all with MSG_WAITALL, else `SO_RCVLOWAT`; one at least, even of a call that has no room.
fn target(socket: &Socket, total: usize, flags: c_int) -> usize {
    let low_water = if flags & libc::MSG_WAITALL != 0 {
        total
    } else {
        total.min(socket.private().low_water.load(Ordering::Relaxed) as usize)
    };
    low_water.max(1)
}

/// Takes (or with MSG_PEEK copies) what is there, at most `want` bytes, to after the first `skip` bytes of the vectors.
///
/// # Safety
/// The vectors are writable memory of `skip + want` bytes.
unsafe fn take(socket: &Socket, iov: &[iovec], skip: usize, want: usize, flags: c_int) -> Sys<usize> {
    let _receiving = socket.private().receiving.lock().ok_or(libc::EAGAIN)?;
    if socket.is_gone() {
        return Ok(0);
    }
    let mut count = want.min(socket.readable() as usize);
    if count == 0 {
        return Ok(0);
    }
    let mut head = socket.app().rx_head.load(Ordering::Relaxed);
    let (mark, mut hole) = (urgent::ahead(socket), 0);
    if let Some(ahead) = mark {
        let stop = urgent::stop(socket, ahead, count);
        (count, hole) = (stop.count, stop.skip);
        head = head.wrapping_add(hole);
    }
    if flags & libc::MSG_TRUNC == 0 {
        // SAFETY: the caller vouches for the vectors; they have room for `skip + want` bytes.
        unsafe { copy(Direction::Out, socket.receive_ring(), head, iov, skip, count)? };
    }
    if flags & libc::MSG_PEEK == 0 {
        let moved = count as u32 + hole;
        consumed(socket, moved);
        if let Some(ahead) = mark {
            urgent::moved(socket, ahead, moved);
        }
    }
    Ok(count)
}

/// Moves the receive head and tells the stack if that matters for the window it offers. Under `receiving`.
pub fn consumed(socket: &Socket, count: u32) {
    if let Some(direct) = socket.direct() {
        let head = socket.app().rx_head.load(Ordering::Relaxed).wrapping_add(count);
        socket.app().rx_head.store(head, Ordering::Release);
        let read = &socket.private().read;
        read.store(read.load(Ordering::Relaxed) + u64::from(count), Ordering::Relaxed);
        return direct.show_read(socket.session, head);
    }
    let capacity = socket.session.geometry.rx_bytes;
    let free_before = capacity - socket.readable().min(capacity);
    let head = socket.app().rx_head.load(Ordering::Relaxed).wrapping_add(count);
    socket.app().rx_head.store(head, Ordering::Release);
    let grown = head.wrapping_sub(socket.private().told_head.load(Ordering::Relaxed));
    if grown >= (capacity / 4).max(TWO_SEGMENTS) || free_before < TWO_SEGMENTS {
        socket.private().told_head.store(head, Ordering::Relaxed);
        doors::ring(socket);
    }
}

/// Which way `copy` goes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the ring to the caller.
    Out,
    /// From the caller to the ring.
    In,
}

/// Copies `count` bytes between the ring at `at` and the vectors after their first `skip` bytes. EFAULT: not all of it.
///
/// # Safety
/// The vectors must be memory that can be read (In) or written (Out), `skip + count` bytes at least.
pub unsafe fn copy(way: Direction, ring: ByteRing<'_>, at: u32, iov: &[iovec], skip: usize, count: usize) -> Sys<()> {
    let (mut skip, mut left, mut at) = (skip, count, at);
    for vector in iov {
        if skip >= vector.iov_len {
            skip -= vector.iov_len;
            continue;
        }
        let piece = left.min(vector.iov_len - skip);
        if piece == 0 {
            break;
        }
        let mut at_user = vector.iov_base.cast::<u8>().wrapping_add(skip);
        for (span, len) in ring.spans(at, piece as u32) {
            // SAFETY: the span lies in the ring, and the vector is the program's.
            unsafe {
                match way {
                    Direction::Out => user::copy(at_user, span, len)?,
                    Direction::In => user::copy(span, at_user, len)?,
                }
            }
            at_user = at_user.wrapping_add(len);
        }
        at = at.wrapping_add(piece as u32);
        left -= piece;
        skip = 0;
    }
    Ok(())
}
