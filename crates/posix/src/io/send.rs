//! Sending: from the caller's buffers straight into the ring.

use crate::fd::table;
use crate::io::copy::{self, Direction, is_usual, total};
use crate::io::{files, urgent, user};
use crate::lifecycle::in_flight;
use core::cell::Cell;
use core::sync::atomic::Ordering;
use libc::{c_int, c_void, iovec};
use towpath_client::carrier::{Carrier, Lines};
use towpath_client::private::flag;
use towpath_client::session::Session;
use towpath_client::socket::Socket;
use towpath_client::sys::{self, Sys};
use towpath_client::view::View;
use towpath_client::{cork, doorbell, transfer, wait};
use towpath_ring::Slot;
use towpath_ring::lines::{app_flags, state, status};

/// `write` and `send`: one buffer.
///
/// # Safety
/// `buf` has `len` readable bytes.
#[inline(always)]
pub unsafe fn send_from(socket: &Socket, buf: *const c_void, len: usize, flags: c_int) -> Sys<usize> {
    if flags & !(libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) == 0
        // SAFETY: as the caller says.
        && let Some(sent) = unsafe { at_once(socket, buf, len) }
    {
        return Ok(sent);
    }
    // SAFETY: as above.
    unsafe { send(socket, &[iovec { iov_base: buf.cast_mut(), iov_len: len }], flags) }
}

/// Sends one buffer as a whole if that needs no second look: there is room, and nothing is held or over. `None`: it needs [`send`].
///
/// # Safety
/// `buf` has `len` readable bytes.
#[inline(always)]
unsafe fn at_once(socket: &Socket, buf: *const c_void, len: usize) -> Option<usize> {
    match Carrier::of(socket.session, socket.slot, socket.generation) {
        // SAFETY: as the caller says.
        Carrier::Stack(lines) => unsafe { put_by_stack(socket.session, socket.slot, &lines, buf, len) },
        // SAFETY: as the caller says.
        Carrier::Direct => unsafe { put_directly(socket, buf, len) },
        Carrier::Neither => None,
    }
}

/// What says that a connection takes no more bytes, or nobody wants them.
const OVER: u32 = status::TX_CLOSED | status::RESET | status::PEER_CLOSED;

/// [`at_once`] of a connection that the stack carries. A busy sender's way: everything it needs to know has a place of its own, is
/// looked up first and looked at once, and what it calls is called last.
///
/// # Safety
/// `buf` has `len` readable bytes.
#[inline(always)]
pub unsafe fn put_by_stack(
    session: &'static Session,
    slot: Slot,
    &Lines { app, stack, private }: &Lines,
    buf: *const c_void,
    len: usize,
) -> Option<usize> {
    let over = stack.status.load(Ordering::Acquire) & OVER != 0;
    if over || app.flags.load(Ordering::Relaxed) & app_flags::SHUT_WR != 0 {
        return None;
    }
    let sending = private.sending.try_lock(private.is_shared())?.into_fencing();
    let capacity = session.region.geometry().tx_bytes;
    let tail = app.tx_tail.load(Ordering::Relaxed);
    let queued = tail.wrapping_sub(stack.tx_head.load(Ordering::Acquire));
    // In one piece, so no more than the ring has, and the sum of it and what is queued is none that is too large for its type.
    if len > (capacity - (tail & (capacity - 1))) as usize
        || queued as usize + len > private.send_limit.load(Ordering::Relaxed) as usize
        || private.flags.load(Ordering::Relaxed) & flag::MORE != 0
    {
        return None;
    }
    // SAFETY: `len` bytes from there on are in the ring; the caller vouches for the buffer.
    unsafe { user::copy(session.region.tx(slot).place(tail), buf.cast(), len) }.ok()?;
    app.tx_tail.store(tail.wrapping_add(len as u32), Ordering::Release);
    // The stack sees the receive head too when it looks.
    private.notified_head.store(app.rx_head.load(Ordering::Relaxed), Ordering::Relaxed);
    sending.unlock_and_fence();
    Some(if doorbell::is_notified(session, app, stack) { len } else { doorbell::notify_and_return(session, slot, len) })
}

/// [`at_once`] of a direct connection.
///
/// # Safety
/// `buf` has `len` readable bytes.
#[inline]
pub unsafe fn put_directly(socket: &Socket, buf: *const c_void, len: usize) -> Option<usize> {
    let view = &socket.view();
    if !is_usual(buf, len) || view.direct.is_none() {
        return None;
    }
    let _sending = view.private.sending.lock()?;
    let open = view.is_established()
        && view.status() & OVER == 0
        && !view.has_app(app_flags::SHUT_WR)
        && !view.has(flag::MORE);
    if !open || (view.room() as usize) < len {
        return None;
    }
    let tail = view.app.tx_tail.load(Ordering::Relaxed);
    let span = view.send_ring().span(tail, len)?;
    // SAFETY: the span is in the ring; the caller vouches for the buffer.
    unsafe { user::copy(span, buf.cast(), len) }.ok()?;
    transfer::publish(view, tail.wrapping_add(len as u32), len, false);
    Some(len)
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
    // SAFETY: the caller vouches for the vectors.
    pump(socket, total, flags, |view, done, room| unsafe { from_vectors(view, iov, total, done, room) })
}

/// Sends all of `bytes` on a socket of ours; EBADF if `fd` is none (any more).
pub fn send_all(fd: c_int, bytes: &[u8]) -> Sys<()> {
    let socket = table::socket(fd).ok_or(libc::EBADF)?;
    let mut done = 0;
    while let Some(rest) = bytes.get(done..).filter(|rest| !rest.is_empty()) {
        let rest = [iovec { iov_base: rest.as_ptr().cast_mut().cast(), iov_len: rest.len() }];
        // SAFETY: the vector is what is left of the slice.
        done += unsafe { send(&socket, &rest, 0) }?;
    }
    Ok(())
}

/// Copies what there is room for after the first `done` bytes of the vectors, which hold `total`.
///
/// # Safety
/// The vectors must be readable memory.
pub unsafe fn from_vectors(view: &View, iov: &[iovec], total: usize, done: usize, room: usize) -> Sys<Filled> {
    let count = room.min(total - done);
    let tail = view.app.tx_tail.load(Ordering::Relaxed);
    // SAFETY: the caller vouches for the vectors; they hold `done + count` bytes.
    unsafe { copy::copy(Direction::In, view.send_ring(), tail, iov, done, count)? };
    Ok(Filled::ring(count))
}

/// `sendfile` and the like: the stack sends the file itself, or it is read straight into the ring.
pub fn from_file(socket: &Socket, input: c_int, offset: Option<i64>, len: usize, flags: c_int) -> Sys<usize> {
    let (ended, filled) = (Cell::new(false), Cell::new(0));
    let source = files::Source::of(&socket.view(), input, offset, len);
    let fill = |view: &View, done, room: usize| {
        if let Some(count) = source.as_ref().and_then(|source| source.post(view, done, len - done)) {
            filled.set(filled.get() + count);
            return Ok(Filled { count, in_ring: false });
        }
        let tail = view.app.tx_tail.load(Ordering::Relaxed);
        let spans = view.send_ring().spans(tail, room.min(len - done) as u32);
        let iov = spans.map(|(base, len)| iovec { iov_base: base.cast(), iov_len: len });
        // SAFETY: the span is in the free part of the send ring, which is ours to write under the lock.
        let count = unsafe { sys::preadv(input, &iov, offset.map_or(-1, |offset| offset + done as i64))? };
        ended.set(count == 0);
        filled.set(filled.get() + count);
        if ended.get() { Err(0) } else { Ok(Filled::ring(count)) }
    };
    let sent = pump(socket, len, flags, fill);
    if source.is_some() {
        files::settle(socket);
    }
    match sent {
        Err(0) if ended.get() => Ok(0),
        Ok(sent) if sent > filled.get() => discard(input, offset, filled.get(), sent - filled.get()),
        sent => sent,
    }
}

/// What is sent to a peer that has closed is taken and thrown away: it has to leave the pipe or the file all the same, after the first `done` bytes,
/// or who uses that next would find it there. No more at once than Linux sends at once; returns how many bytes are gone in all.
#[cold]
fn discard(input: c_int, offset: Option<i64>, done: usize, len: usize) -> Sys<usize> {
    let (mut piece, mut gone) = ([0u8; 16384], done);
    let end = done + len.min(4 * piece.len());
    while gone < end {
        let iov = [iovec { iov_base: piece.as_mut_ptr().cast(), iov_len: piece.len().min(end - gone) }];
        // SAFETY: `iov` is within `piece`.
        match unsafe { sys::preadv(input, &iov, offset.map_or(-1, |offset| offset + gone as i64)) } {
            Ok(0) => break,
            Ok(count) => gone += count,
            Err(errno) if gone == 0 => return Err(errno),
            Err(_) => break,
        }
    }
    Ok(gone)
}

/// What has been made of the room in a ring.
pub struct Filled {
    /// Bytes on their way.
    pub count: usize,
    /// They have been written after the tail. (Else they are a file's, of which the stack has been told.)
    pub in_ring: bool,
}

impl Filled {
    #[inline(always)]
    fn ring(count: usize) -> Self {
        Self { count, in_ring: true }
    }
}

/// Moves up to `total` bytes into the send ring by `fill(view, done, room)`, which returns how many it has written
/// after the tail (it has the sending lock), and waits for room as the socket's mode says.
pub fn pump(
    socket: &Socket,
    total: usize,
    flags: c_int,
    mut fill: impl FnMut(&View, usize, usize) -> Sys<Filled>,
) -> Sys<usize> {
    match step(socket, 0, total, flags, &mut fill) {
        Some(Ok(count)) if count != total => pump_more(socket, total, count, flags, fill),
        Some(outcome) => outcome,
        None => pump_more(socket, total, 0, flags, fill),
    }
}

/// What an established connection takes at once, of `total` bytes those after the first `done`; how many are done then. `None`: it is
/// still being made.
fn step(
    socket: &Socket,
    done: usize,
    total: usize,
    flags: c_int,
    fill: &mut impl FnMut(&View, usize, usize) -> Sys<Filled>,
) -> Option<Sys<usize>> {
    let view = &socket.view();
    let state = view.state();
    if state == state::CONNECTING {
        return None;
    }
    if state == state::LISTENING || view.send_closed_in(state) {
        // What has been done counts.
        return Some(if done > 0 { Err(0) } else { closed(socket, flags) });
    }
    Some(if total == 0 { Ok(0) } else { put(socket, view, done, total - done, flags, fill).map(|count| done + count) })
}

/// Goes on after the first look, by which `done` bytes went, less than are to go.
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
            Some(Ok(count)) if count == total => return Ok(count),
            Some(Ok(count)) => done = count,
            Some(Err(_)) if done > 0 => return Ok(done),
            Some(Err(errno)) => return Err(errno),
            None => {}
        }
    }
}

/// One step: fills the room that there is and tells the stack.
fn put(
    socket: &Socket,
    view: &View,
    done: usize,
    left: usize,
    flags: c_int,
    fill: &mut impl FnMut(&View, usize, usize) -> Sys<Filled>,
) -> Sys<usize> {
    let _sending = view.private.sending.lock().ok_or(libc::EAGAIN)?;
    let room = view.room();
    let status = view.status();
    if room == 0 && status & status::PEER_CLOSED == 0 || view.is_gone() {
        return Ok(0);
    }
    if status & status::PEER_CLOSED != 0 {
        // It is taken, and answered by a reset.
        socket.mark(flag::SENT_TO_NOBODY, true);
        doorbell::wake_sleepers(socket);
        return Ok(left);
    }
    let Filled { count, in_ring } = fill(view, done, room as usize)?;
    if !in_ring {
        return Ok(count);
    }
    hold(socket, flags & libc::MSG_MORE != 0);
    let tail = view.app.tx_tail.load(Ordering::Relaxed).wrapping_add(count as u32);
    if flags & libc::MSG_OOB != 0 {
        urgent::send(socket, tail);
    }
    let urgent = flags & libc::MSG_OOB != 0;
    transfer::publish(view, tail, count, urgent);
    if urgent && let Some(direct) = &view.direct {
        direct.announce(socket.session);
    }
    Ok(count)
}

/// MSG_MORE: partial segments are held as by `TCP_CORK`, until something is sent without it. Under `sending`.
#[inline]
fn hold(socket: &Socket, more: bool) {
    if more {
        socket.mark(flag::MORE, true);
        socket.app().flags.fetch_or(app_flags::CORK, Ordering::AcqRel);
    } else if socket.has(flag::MORE) {
        no_more(socket);
    }
}

/// `TCP_NODELAY`: what is held is let go.
#[cold]
pub fn let_go(socket: &Socket) {
    no_more(socket);
    cork::release(socket);
}

/// MSG_MORE holds nothing any more, though `TCP_CORK` may.
#[cold]
fn no_more(socket: &Socket) {
    socket.mark(flag::MORE, false);
    if !socket.has(flag::CORKED) {
        socket.app().flags.fetch_and(!app_flags::CORK, Ordering::AcqRel);
    }
}

/// Sending on a socket that cannot: the pending error, else EPIPE with its signal.
#[cold]
fn closed(socket: &Socket, flags: c_int) -> Sys<usize> {
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
