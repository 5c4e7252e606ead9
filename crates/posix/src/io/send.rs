//! Sending: from the caller's buffers straight into the ring.

use crate::fd::table;
use crate::io::copy::{self, Direction, total};
use crate::io::{files, urgent, user};
use crate::lifecycle::in_flight;
use core::sync::atomic::Ordering;
use libc::{c_int, c_void, iovec};
use towpath_client::backend::{Backend, StackBackend};
use towpath_client::carrier::Carrier;
use towpath_client::lock::Locked;
use towpath_client::private::flag;
use towpath_client::socket::Socket;
use towpath_client::sys::{self, Sys};
use towpath_client::view::View;
use towpath_client::{cork, doorbell, lock, wait};
use towpath_ring::lines::{app_flags, state, status};

/// How long the stack may take to see the end of a record before the next one's is shown, µs.
const RECORD_SPIN_US: u64 = 100;

/// The flags with which one buffer may be sent at once.
pub const FAST_FLAGS: c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;

/// `write` and `send`: one buffer.
///
/// # Safety
/// `buf` has `len` readable bytes.
#[inline(always)]
pub unsafe fn send_from(socket: &Socket, buf: *const c_void, len: usize, flags: c_int) -> Sys<usize> {
    if flags & !FAST_FLAGS == 0 {
        // SAFETY: the caller vouches that `buf` has `len` readable bytes.
        let sent = unsafe {
            match Carrier::of(socket.session, socket.slot, socket.generation) {
                Carrier::Stack(lines) => at_once(StackBackend::<'_, true>(&lines), buf, len),
                Carrier::Direct(lines) => match lines.find() {
                    Some(direct) => at_once(lines.backend(&direct), buf, len),
                    None => None,
                },
                Carrier::Neither => None,
            }
        };
        if let Some(sent) = sent {
            return Ok(sent);
        }
    }
    // SAFETY: the vector is the buffer, whose `len` bytes the caller vouches for.
    unsafe { send(socket, &[iovec { iov_base: buf.cast_mut(), iov_len: len }], flags) }
}

/// Sends one buffer as a whole if it fits into the ring in one piece and nothing is held back. `None`: nothing has been
/// done; it needs [`send`].
///
/// Loads come first and the notification is a tail call, so that a caller without other work saves no register.
///
/// # Safety
/// `buf` has `len` readable bytes.
#[inline(always)]
pub unsafe fn at_once(backend: impl Backend, buf: *const c_void, len: usize) -> Option<usize> {
    if !backend.may_send() {
        return None;
    }
    let lines = *backend.lines();
    let (lock, is_alone) = (&lines.private.sending, lock::is_alone(lines.private.is_shared()));
    let sending = if is_alone { lock.try_alone()?.into_fencing() } else { lock.try_lock()? };
    let tail = lines.app.tx_tail.load(Ordering::Relaxed);
    let queued = backend.queued(tail);
    let to = backend.send_span(tail, len)?;
    // In one piece, so no more than the ring's size: the sum cannot overflow.
    if queued as usize + len > lines.private.send_limit.load(Ordering::Relaxed) as usize || lines.has(flag::MORE) {
        return None;
    }
    // SAFETY: from that place on `len` bytes are in the ring, which is shared memory without Rust references. The
    // caller vouches for the buffer.
    unsafe { user::copy_inline(to, buf.cast(), len) }.ok()?;
    Some(backend.publish(sending, tail.wrapping_add(len as u32), len, false))
}

/// `send` and its relatives. `flags` are MSG_*.
///
/// # Safety
/// The vectors must be readable memory.
pub unsafe fn send(socket: &Socket, iov: &[iovec], flags: c_int) -> Sys<usize> {
    let total = total(iov, 0)?;
    if flags & libc::MSG_FASTOPEN != 0 {
        return Err(libc::EISCONN);
    }
    pump(socket, total, flags, |view, done, room| {
        // SAFETY: the caller vouches for the vectors, whose bytes `total` counts.
        unsafe { from_vectors(view, iov, total, done, room) }.map(Filled::Ring)
    })
}

/// Sends all of `bytes` on an accelerated socket. EBADF: `fd` is not one (any more).
pub fn send_all(fd: c_int, bytes: &[u8]) -> Sys<()> {
    let socket = table::socket(fd).ok_or(libc::EBADF)?;
    let mut done = 0;
    while let Some(rest) = bytes.get(done..).filter(|rest| !rest.is_empty()) {
        let rest = [iovec { iov_base: rest.as_ptr().cast_mut().cast(), iov_len: rest.len() }];
        // SAFETY: the vector is the rest of the slice.
        done += unsafe { send(&socket, &rest, 0) }?;
    }
    Ok(())
}

/// Copies bytes of the vectors, which hold `total`, after their first `done`, as many as there is room for.
///
/// # Safety
/// The vectors must be readable memory of `total` bytes.
pub unsafe fn from_vectors(view: &View, iov: &[iovec], total: usize, done: usize, room: usize) -> Sys<usize> {
    let count = room.min(total - done);
    let tail = view.app.tx_tail.load(Ordering::Relaxed);
    // SAFETY: the caller vouches for `total` bytes of the vectors, and `done + count` is at most that.
    unsafe { copy::copy(Direction::In, view.send_ring(), tail, iov, done, count)? };
    Ok(count)
}

/// `sendfile` and the like: the stack sends the file itself, or it is read straight into the ring.
pub fn from_file(socket: &Socket, input: c_int, offset: Option<i64>, len: usize, flags: c_int) -> Sys<usize> {
    let mut filled = 0;
    let source = files::Source::of(&socket.view(), input, offset, len);
    let fill = |view: &View, done, room: usize| {
        if let Some(count) = source.as_ref().and_then(|source| source.post(view, done, len - done)) {
            filled += count;
            return Ok(Filled::Beside(count));
        }
        let tail = view.app.tx_tail.load(Ordering::Relaxed);
        let spans = view.send_ring().spans(tail, room.min(len - done) as u32);
        let iov = spans.map(|(base, len)| iovec { iov_base: base.cast(), iov_len: len });
        // SAFETY: the spans are in the free part of the send ring, which only this thread writes while it has the lock.
        let count = unsafe { sys::preadv(input, &iov, offset.map_or(-1, |offset| offset + done as i64))? };
        filled += count;
        Ok(if count == 0 { Filled::Ended } else { Filled::Ring(count) })
    };
    let sent = pump(socket, len, flags, fill);
    if source.is_some() {
        files::settle(socket);
    }
    match sent {
        Ok(sent) if sent > filled => discard(input, offset, filled, sent - filled),
        sent => sent,
    }
}

/// Takes bytes for a peer that has closed out of the pipe or file, after the first `done`, and throws them away.
/// Otherwise the next reader would find them there. Takes no more at once than Linux sends at once; returns how many
/// bytes are gone in all.
#[cold]
fn discard(input: c_int, offset: Option<i64>, done: usize, len: usize) -> Sys<usize> {
    let (mut piece, mut gone) = ([0u8; 16384], done);
    let end = done + len.min(4 * piece.len());
    while gone < end {
        let iov = [iovec { iov_base: piece.as_mut_ptr().cast(), iov_len: piece.len().min(end - gone) }];
        // SAFETY: `iov` names bytes of `piece`, to which nothing else refers meanwhile.
        match unsafe { sys::preadv(input, &iov, offset.map_or(-1, |offset| offset + gone as i64)) } {
            Ok(0) => break,
            Ok(count) => gone += count,
            Err(errno) if gone == 0 => return Err(errno),
            Err(_) => break,
        }
    }
    Ok(gone)
}

/// The outcome of one attempt to fill the room in a ring.
pub enum Filled {
    /// So many bytes have been written after the tail.
    Ring(usize),
    /// The stack has been told of so many bytes that do not pass through the ring. 0 = not now.
    Beside(usize),
    /// There are no more bytes to send.
    Ended,
}

/// The outcome of one step of sending.
enum Step {
    /// The connection is still being made.
    Connecting,
    /// So many bytes of the call are on their way.
    Sent(usize),
    /// Nothing follows the bytes that are on their way.
    Ended,
}

/// Moves up to `total` bytes into the send ring, and waits for room as the socket's mode says. `fill(view, done, room)`
/// runs under the sending lock and writes after the tail.
pub fn pump(
    socket: &Socket,
    total: usize,
    flags: c_int,
    mut fill: impl FnMut(&View, usize, usize) -> Sys<Filled>,
) -> Sys<usize> {
    match step(socket, 0, total, flags, &mut fill)? {
        Step::Sent(count) if count == total => Ok(count),
        Step::Sent(count) => pump_more(socket, total, count, flags, fill),
        Step::Connecting => pump_more(socket, total, 0, flags, fill),
        Step::Ended => Ok(0),
    }
}

/// Sends what an established connection takes at once, of `total` bytes those after the first `done`.
fn step(
    socket: &Socket,
    done: usize,
    total: usize,
    flags: c_int,
    fill: &mut impl FnMut(&View, usize, usize) -> Sys<Filled>,
) -> Sys<Step> {
    let view = &socket.view();
    let state = view.state();
    if state == state::CONNECTING {
        return Ok(Step::Connecting);
    }
    if state == state::LISTENING || view.send_closed_in(state) {
        // An error is for the next call, if this one has sent anything.
        return if done > 0 { Ok(Step::Ended) } else { Err(closed(socket, flags)) };
    }
    if total == 0 { Ok(Step::Sent(0)) } else { put(socket, view, done, total - done, flags, fill) }
}

/// Goes on after the first step, by which `done` bytes went, fewer than are to go.
fn pump_more(
    socket: &Socket,
    total: usize,
    done: usize,
    flags: c_int,
    mut fill: impl FnMut(&View, usize, usize) -> Sys<Filled>,
) -> Sys<usize> {
    let nonblock = flags & libc::MSG_DONTWAIT != 0 || socket.has(flag::NONBLOCK);
    let (mut deadline, mut held) = (None, None);
    let mut done = done;
    loop {
        let connecting = socket.state() == state::CONNECTING;
        if !connecting {
            socket.want_room();
        }
        if connecting || !socket.writable() {
            if nonblock {
                return if done > 0 { Ok(done) } else { Err(libc::EAGAIN) };
            }
            held.get_or_insert_with(|| in_flight::Call::on(socket));
            let deadline = *deadline
                .get_or_insert_with(|| wait::deadline(socket.private().send_timeout_us.load(Ordering::Relaxed)));
            let waited = wait::until(socket, deadline, || {
                socket.send_closed() || if connecting { socket.state() != state::CONNECTING } else { socket.writable() }
            });
            if let Err(errno) = waited {
                return if done > 0 { Ok(done) } else { Err(errno) };
            }
        }
        match step(socket, done, total, flags, &mut fill) {
            Ok(Step::Sent(count)) if count == total => return Ok(count),
            Ok(Step::Sent(count)) => done = count,
            Ok(Step::Connecting) => {}
            Ok(Step::Ended) => return Ok(done),
            Err(_) if done > 0 => return Ok(done),
            Err(errno) => return Err(errno),
        }
    }
}

/// Fills the room that there is and notifies the reader.
fn put(
    socket: &Socket,
    view: &View,
    done: usize,
    left: usize,
    flags: c_int,
    fill: &mut impl FnMut(&View, usize, usize) -> Sys<Filled>,
) -> Sys<Step> {
    let _sending = view.private.sending.lock().ok_or(libc::EAGAIN)?;
    let room = view.room_after_growth();
    let status = view.status();
    if room == 0 && status & status::PEER_CLOSED == 0 || view.is_gone() {
        return Ok(Step::Sent(done));
    }
    if status & status::PEER_CLOSED != 0 {
        // The bytes are taken, and the peer answers them with a reset.
        socket.mark(flag::SENT_TO_NOBODY, true);
        doorbell::wake_sleepers(socket);
        return Ok(Step::Sent(done + left));
    }
    let count = match fill(view, done, room as usize)? {
        Filled::Ring(count) => count,
        Filled::Beside(count) => return Ok(Step::Sent(done + count)),
        Filled::Ended => return Ok(Step::Ended),
    };
    let end = view.app.tx_tail.load(Ordering::Relaxed).wrapping_add(count as u32);
    hold(socket, flags & libc::MSG_MORE != 0, end);
    // A record ends where all that is to be sent has been taken.
    if flags & libc::MSG_EOR != 0 && count == left {
        end_record(view, end);
    }
    let urgent = flags & libc::MSG_OOB != 0;
    if urgent {
        urgent::send(socket, end);
    }
    view.publish(count, urgent);
    if urgent && let Some(direct) = &view.direct {
        direct.announce(socket.session);
    }
    Ok(Step::Sent(done + count))
}

/// MSG_EOR: no segment goes beyond `end` that begins before it. A direct connection has no segments. Under `sending`.
///
/// There is one word for this. While the stack has not taken the slot from its queue, it may not have seen the last
/// end. So it gets a moment to do so.
#[cold]
fn end_record(view: &View, end: u32) {
    if view.direct.is_some() {
        return;
    }
    let (app, stack) = (view.app, view.stack);
    if app.flags.load(Ordering::Relaxed) & app_flags::RECORD != 0 {
        let seen = || stack.data_ack.load(Ordering::Acquire) == app.data_seq.load(Ordering::Relaxed);
        towpath_ring::wake::spin_until(RECORD_SPIN_US, seen);
    }
    app.record().store(end, Ordering::Release);
    app.flags.fetch_or(app_flags::RECORD, Ordering::AcqRel);
}

/// MSG_MORE: partial segments are held as by `TCP_CORK`, until something is sent without it, here up to `end`. Under
/// `sending`.
#[inline]
fn hold(socket: &Socket, more: bool, end: u32) {
    if more {
        socket.mark(flag::MORE, true);
        socket.app().flags.fetch_or(app_flags::CORK, Ordering::AcqRel);
    } else if socket.has(flag::MORE) {
        // Under TCP_CORK they are held on.
        if !socket.has(flag::CORKED) {
            cork::flush(socket, end);
        }
        no_more(socket);
    }
}

/// `TCP_NODELAY`, and `TCP_CORK` that goes off: sends the bytes that are held.
#[cold]
pub fn let_go(socket: &Socket) {
    if cork::holds(socket.app().flags.load(Ordering::Relaxed)) {
        cork::flush(socket, socket.app().tx_tail.load(Ordering::Relaxed));
    }
    no_more(socket);
    cork::release(socket);
}

/// MSG_MORE holds nothing any more, but `TCP_CORK` may.
#[cold]
fn no_more(socket: &Socket) {
    socket.mark(flag::MORE, false);
    if !socket.has(flag::CORKED) {
        socket.app().flags.fetch_and(!app_flags::CORK, Ordering::AcqRel);
    }
}

/// The error of sending on a socket that cannot: the pending one, else EPIPE with its signal.
#[cold]
fn closed(socket: &Socket, flags: c_int) -> i32 {
    let errno = socket.take_error().unwrap_or(libc::EPIPE);
    if errno == libc::EPIPE && flags & libc::MSG_NOSIGNAL == 0 {
        sys::raise_sigpipe();
    }
    errno
}
