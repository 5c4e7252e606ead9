//! Receiving: from the ring straight into the caller's buffers.

use crate::io::copy::{self, Direction, total};
use crate::io::{urgent, user};
use crate::lifecycle::in_flight;
use crate::options::peek;
use core::sync::atomic::Ordering;
use libc::{c_int, c_void, iovec};
use towpath_client::backend::{Backend, Held, StackBackend};
use towpath_client::carrier::Carrier;
use towpath_client::idle;
use towpath_client::lock;
use towpath_client::private::flag;
use towpath_client::socket::Socket;
use towpath_client::sys::Sys;
use towpath_client::view::{End, View};
use towpath_client::wait;
use towpath_ring::lines::{state, status};

/// The flags with which one buffer may be received at once.
pub const FAST_FLAGS: c_int = libc::MSG_DONTWAIT;

/// `read` and `recv`: into one buffer.
///
/// # Safety
/// `buf` has `len` writable bytes.
#[inline(always)]
pub unsafe fn receive_into(socket: &Socket, buf: *mut c_void, len: usize, flags: c_int) -> Sys<usize> {
    if flags & !FAST_FLAGS == 0 {
        // SAFETY: the caller vouches that `buf` has `len` writable bytes.
        let taken = unsafe {
            match Carrier::of(socket.session, socket.slot, socket.generation) {
                Carrier::Stack(lines) => at_once(StackBackend::<'_, true>(&lines), buf, len),
                Carrier::Direct(lines) => match lines.find() {
                    Some(direct) => at_once(lines.backend(&direct), buf, len),
                    None => None,
                },
                Carrier::Neither => None,
            }
        };
        if let Some(taken) = taken {
            return Ok(taken);
        }
    }
    // SAFETY: the vector is the buffer, whose `len` bytes the caller vouches for.
    unsafe { receive(socket, &[iovec { iov_base: buf, iov_len: len }], flags) }
}

/// Takes the unread bytes into one buffer if there are as many as are wanted, they lie in one piece, and none is
/// urgent. `None`: nothing has been done; it needs [`receive`].
///
/// Loads come first and the notification is a tail call, so that a caller without other work saves no register.
///
/// # Safety
/// `buf` has `len` writable bytes.
#[inline(always)]
pub unsafe fn at_once(backend: impl Backend, buf: *mut c_void, len: usize) -> Option<usize> {
    let (lock, is_shared) = (&backend.lines().private.receiving, backend.lines().private.is_shared());
    // SAFETY: the caller keeps the contract. Each way is compiled for itself, so that it does not ask again when it unlocks.
    unsafe {
        if lock::is_alone(is_shared) {
            let receiving = lock.try_alone()?;
            locked(backend, buf, len, receiving)
        } else {
            let receiving = lock.try_lock()?;
            locked(backend, buf, len, receiving)
        }
    }
}

/// [`at_once`], under the lock.
///
/// # Safety
/// As [`at_once`].
#[inline(always)]
unsafe fn locked(backend: impl Backend, buf: *mut c_void, len: usize, receiving: impl Held) -> Option<usize> {
    let lines = *backend.lines();
    let head = lines.app.rx_head.load(Ordering::Relaxed);
    let unread = backend.unread(head);
    // After the position, because an urgent byte is announced before it.
    let urgent = backend.status() & status::URGENT != 0;
    if urgent || unread < lines.private.low_water.load(Ordering::Relaxed) {
        return None;
    }
    // An impossible tail is for [`receive`] to judge.
    let (from, count) = backend.receive_piece(head, unread, len)?;
    // SAFETY: from that place on `count` bytes are in the ring, which is shared memory without Rust references. The
    // caller vouches for the buffer.
    unsafe { user::copy_inline(buf.cast(), from, count) }.ok()?;
    Some(backend.consume(receiving, head.wrapping_add(count as u32), count, unread))
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
    let view = socket.view();
    if view.stack.state.load(Ordering::Relaxed) == state::LISTENING && view.state() == state::LISTENING {
        return Err(libc::ENOTCONN);
    }
    if flags & libc::MSG_OOB != 0 {
        // SAFETY: the caller vouches for the vectors, whose bytes `total` counts.
        return unsafe { urgent::receive(socket, iov, total, flags) };
    }
    if flags & libc::MSG_PEEK != 0 {
        idle::unread_seen(socket);
    }
    // SAFETY: the caller vouches for the vectors, whose bytes `total` counts.
    let taken = unsafe { take(&view, iov, 0, total, flags)? };
    if taken >= target(&view, total, flags) {
        return Ok(taken);
    }
    // SAFETY: the caller vouches for the vectors, whose bytes `total` counts.
    unsafe { receive_more(socket, iov, total, taken, flags) }
}

/// Goes on after the first step, which has taken (or with MSG_PEEK copied) `done` bytes, fewer than are wanted.
///
/// # Safety
/// The vectors must be writable memory of `total` bytes.
unsafe fn receive_more(socket: &Socket, iov: &[iovec], total: usize, done: usize, flags: c_int) -> Sys<usize> {
    let peek = flags & libc::MSG_PEEK != 0;
    let nonblock = flags & libc::MSG_DONTWAIT != 0 || socket.has(flag::NONBLOCK);
    let target = target(&socket.view(), total, flags);
    let (mut deadline, mut held) = (None, None);
    let mut done = done;
    loop {
        let view = &socket.view();
        if done > 0 && urgent::at_mark(view) {
            return Ok(done);
        }
        let end = view.end();
        let more = has_more(view, peek, done);
        if more && total == 0 {
            return Ok(0);
        }
        if !more {
            if let Some(answer) = without_data(socket, end, done, nonblock) {
                return answer;
            }
            held.get_or_insert_with(|| in_flight::Call::on(socket));
            let deadline = *deadline
                .get_or_insert_with(|| wait::deadline(view.private.receive_timeout_us.load(Ordering::Relaxed)));
            let waited = wait::until(socket, deadline, || {
                let view = &socket.view();
                view.receive_closed() || has_more(view, peek, done) || view.error().is_some()
            });
            if let Err(errno) = waited {
                return if done > 0 { Ok(done) } else { Err(errno) };
            }
        }
        let view = &socket.view();
        // MSG_PEEK begins again at the first unread byte, unless `SO_PEEK_OFF` moves on with it.
        let again = peek && peek::begin(view).is_none();
        if peek {
            idle::unread_seen(socket);
        }
        // SAFETY: the caller vouches for the `total` bytes of the vectors.
        let taken = unsafe {
            if again { take(view, iov, 0, total, flags) } else { take(view, iov, done, total - done, flags) }
        };
        match taken {
            Ok(count) if again => done = count,
            Ok(count) => done += count,
            Err(_) if done > 0 => return Ok(done),
            Err(errno) => return Err(errno),
        }
        if done >= target {
            return Ok(done);
        }
    }
}

/// Are there bytes that the call, which has taken or copied `done`, has not seen?
#[inline]
fn has_more(view: &View, peek: bool, done: usize) -> bool {
    if view.is_gone() {
        return false;
    }
    match if peek { peek::begin(view) } else { None } {
        Some(offset) => urgent::readable_behind(view, offset) > 0,
        None => urgent::readable(view) > if peek { done as u32 } else { 0 },
    }
}

/// The result of a call that has `done` bytes and has found no more; `None` = it has to wait. `end` was loaded before
/// the data.
pub fn without_data(socket: &Socket, end: End, done: usize, nonblock: bool) -> Option<Sys<usize>> {
    // The peer's FIN ends the stream, even if a reset has followed it.
    if end.fin || (done > 0 && (end.closed || end.failed || nonblock)) {
        return Some(Ok(done));
    }
    // An error that came later is reported after the data has been loaded again.
    match if end.failed { socket.take_error() } else { None } {
        Some(errno) => Some(Err(errno)),
        None if end.closed => Some(Ok(0)),
        None => nonblock.then_some(Err(libc::EAGAIN)),
    }
}

/// The number of bytes that ends the wait: all with MSG_WAITALL, else `SO_RCVLOWAT`. At least 1, even if there is no
/// room.
#[inline]
fn target(view: &View, total: usize, flags: c_int) -> usize {
    let low_water = if flags & libc::MSG_WAITALL != 0 {
        total
    } else {
        total.min(view.private.low_water.load(Ordering::Relaxed) as usize)
    };
    low_water.max(1)
}

/// Takes (or with MSG_PEEK copies) the unread bytes, at most `want`, to after the first `skip` bytes of the vectors.
///
/// # Safety
/// The vectors are writable memory of `skip + want` bytes.
unsafe fn take(view: &View, iov: &[iovec], skip: usize, want: usize, flags: c_int) -> Sys<usize> {
    let _receiving = view.private.receiving.lock().ok_or(libc::EAGAIN)?;
    if view.is_gone() {
        return Ok(0);
    }
    let peek = flags & libc::MSG_PEEK != 0;
    let begin = if peek { peek::begin(view) } else { None };
    let offset = begin.unwrap_or(0);
    let unread = view.readable().saturating_sub(offset);
    let mut count = want.min(unread as usize);
    if count == 0 {
        peek::settle(view);
        return Ok(0);
    }
    let mut head = view.app.rx_head.load(Ordering::Relaxed).wrapping_add(offset);
    let (mark, mut hole) = (urgent::ahead(view), 0);
    if let Some(ahead) = mark.and_then(|ahead| ahead.checked_sub(offset)) {
        let stop = urgent::stop(view, ahead, count, unread);
        (count, hole) = (stop.count, stop.skip);
        head = head.wrapping_add(hole);
    }
    if flags & libc::MSG_TRUNC == 0 {
        // SAFETY: the caller vouches for `skip + want` bytes of the vectors, and `count` is at most `want`.
        unsafe { copy::copy(Direction::Out, view.receive_ring(), head, iov, skip, count)? };
    }
    let moved = count as u32 + hole;
    if !peek {
        view.consume(moved);
        if let Some(ahead) = mark {
            urgent::moved(view, ahead, moved);
        }
        peek::settle(view);
    } else if begin.is_some() && count > 0 {
        peek::peeked(view, offset.saturating_add(moved));
    }
    Ok(count)
}
