//! The calls of `splice`, from which the library learns, and by which it tells.

use super::learned::{Found, Key, Pipe, Plan};
use super::{PIPES, key, passed, ports, socket_of, with};
use crate::ready::rewatch;
use core::sync::atomic::Ordering;
use libc::{c_int, size_t};
use std::time::Instant;
use towpath_client::private::flag;
use towpath_client::socket::Socket;
use towpath_client::sys::{self, Sys};
use towpath_client::{splice, stack_info};
use towpath_ring::lines::{app_flags, state};

fn pipe_of(fd: c_int) -> Option<Pipe> {
    rustix::fs::fstat(sys::borrow(&fd)).ok().map(|stat| (stat.st_dev, stat.st_ino))
}

/// How far a socket has been read.
fn head(socket: &Socket) -> u32 {
    socket.app().rx_head.load(Ordering::Relaxed)
}

/// `splice` of up to `len` bytes of a socket into a pipe, in which there are `unread`. `really` moves bytes.
pub fn into_pipe(
    from: &Socket,
    pipe: c_int,
    len: size_t,
    unread: impl FnOnce() -> Sys<usize>,
    really: impl FnOnce() -> Sys<usize>,
) -> Sys<usize> {
    if !ports::any() || !may_be_one(from) {
        return really();
    }
    let me = key(from);
    if with(|learned| learned.stays(me)) != Some(false) {
        return really();
    }
    let Some(pipe) = pipe_of(pipe) else { return really() };
    let (now, is_empty) = (Instant::now(), unread() == Ok(0));
    let before = head(from);
    let head_of = |key| socket_of(key).map(|socket| head(&socket));
    // A close forgets only marked sockets, and a nudge is seen only on them.
    if !from.has(flag::SPLICES) {
        from.mark(flag::SPLICES, true);
    }
    match with(|learned| learned.plan((me, before), pipe, (len, is_empty), head_of, now)) {
        Some(Plan::Move) => {}
        Some(Plan::Nudge(other)) => {
            if let Some(other) = socket_of(other) {
                rewatch::look_at(&other);
            }
        }
        Some(Plan::Ask(other)) => {
            if is_handed_over(from, other, now) {
                return Err(libc::EAGAIN);
            }
            if with(|learned| learned.begin(me)) == Some(false) {
                return Err(later(from));
            }
        }
        Some(Plan::Wait) => return Err(later(from)),
        Some(Plan::Owe) => return owed(from, pipe, len, is_empty, really),
        None => return really(),
    }
    let moved = really();
    let count = moved.unwrap_or(0);
    with(|learned| learned.moved_in(me, pipe, [before, head(from)], count));
    moved
}

/// Another thread asks the stack about this socket. The program is to call again soon.
#[cold]
fn later(from: &Socket) -> c_int {
    with(|learned| learned.wait(key(from), Instant::now()));
    rewatch::look_at(from);
    libc::EAGAIN
}

/// `splice` of up to `len` bytes out of a pipe to a socket.
pub fn out_of_pipe(to: &Socket, pipe: c_int, len: size_t, really: impl FnOnce() -> Sys<usize>) -> Sys<usize> {
    if PIPES.load(Ordering::Acquire) == 0 {
        return really();
    }
    let Some(pipe) = pipe_of(pipe) else { return really() };
    match with(|learned| learned.taken(pipe, key(to), len)) {
        Some(Found::Owed(count)) => return Ok(count),
        // They are not there, and were not for this socket.
        Some(Found::Elsewhere) => return Err(libc::EPIPE),
        Some(Found::Bytes) | None => {}
    }
    let moved = really()?;
    if with(|learned| learned.moved_out(pipe, key(to), moved)) == Some(true) && !to.has(flag::SPLICES) {
        to.mark(flag::SPLICES, true);
    }
    Ok(moved)
}

/// The program is told of bytes that have passed as if they went to the pipe now.
fn owed(from: &Socket, pipe: Pipe, len: size_t, is_empty: bool, really: impl FnOnce() -> Sys<usize>) -> Sys<usize> {
    // The end is told after the bytes before it, so it is loaded before their number.
    let view = from.view();
    let is_over = view.receive_closed() || view.error().is_some();
    let count = if is_empty { with(|learned| learned.owe(key(from), pipe, passed(from), len)) } else { None };
    match count {
        Some(count @ 1..) => Ok(count),
        _ if is_over => really(),
        _ => Err(libc::EAGAIN),
    }
}

/// Can it be one of two that are handed over, by what does not change?
fn may_be_one(socket: &Socket) -> bool {
    let is_accepted = !socket.session.region.layout().is_app_slot(socket.slot);
    socket.has(flag::NONBLOCK) && (!is_accepted || ports::has(local_port(socket)))
}

/// Is it an accepted connection of a listener that the operator has named?
fn is_named(socket: &Socket) -> bool {
    !socket.session.region.layout().is_app_slot(socket.slot) && ports::has(local_port(socket))
}

fn local_port(socket: &Socket) -> u16 {
    (socket.info().ports.load(Ordering::Relaxed) >> 16) as u16
}

/// Asks the stack. It may take 5 ms for its answer.
fn is_handed_over(from: &Socket, other: Key, now: Instant) -> bool {
    let me = key(from);
    let Some(to) = socket_of(other).filter(|to| may_be_two(from, to)) else {
        with(|learned| learned.refused(me, other));
        return false;
    };
    // While the stack holds the peers back, nothing is to be asked until they have acknowledged what they were sent.
    let is_held = with(|learned| learned.is_held(me, now)) == Some(true);
    let is_busy = is_held && [from, &to].iter().any(|one| one.readable() > 0 || stack_info::queued(one).0 > 0);
    let answer = if is_busy { Err(libc::EAGAIN) } else { splice::splice_told(from, &to) };
    match answer {
        Ok(()) => {
            for socket in [from, &to] {
                // However it is closed from now on, also by the end of this process: its peer must not go on alone.
                socket.mark_app(app_flags::ABORT, true);
                socket.mark(flag::SPLICES, true);
            }
            with(|learned| learned.handed_over(me, other));
            // Bytes may have passed before epoll knew of it.
            [from, &to].into_iter().for_each(rewatch::look_at);
            true
        }
        Err(libc::EBUSY) => {
            with(|learned| learned.busy(me, other, Instant::now()));
            false
        }
        Err(libc::EAGAIN | libc::ETIMEDOUT) => {
            if with(|learned| learned.not_yet(me, other, Instant::now())) == Some(true) {
                rewatch::look_at(from);
            }
            false
        }
        Err(_) => {
            with(|learned| learned.refused(me, other));
            false
        }
    }
}

/// Are both directions of both connections open, and this program's alone? Other processes that have one of them could not be
/// told what passes, nor can anybody who does not wait by epoll.
fn may_be_two(one: &Socket, other: &Socket) -> bool {
    let is_plain = |socket: &Socket| {
        let view = socket.view();
        view.state() == state::ESTABLISHED
            && socket.has(flag::NONBLOCK)
            && !socket.has(flag::SHARED | flag::FILE | flag::SECURE)
            && !view.receive_closed()
            && !view.send_closed()
    };
    (is_named(one) || is_named(other)) && is_plain(one) && is_plain(other) && rewatch::is_used()
}
