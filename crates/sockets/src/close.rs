//! The ends and copies of descriptors: `close`, `dup`, `close_range` and their relatives.

use crate::private::{flag, used};
use crate::session::LIFE_CHECK;
use crate::socket::Socket;
use crate::sys::{self, Sys};
use crate::table::{self, Kind};
use crate::{block, epoll, fork, hold, interest, nested, pass, standard, stdio, tcp_info, uring, watch};
use core::sync::atomic::Ordering;
use core::time::Duration;
use libc::{FILE, c_int, c_uint};
use std::time::Instant;
use towpath_hook::{Answer, outcome, real};
use towpath_ring::lines::{app_flags, state, status};
use towpath_ring::wake;

/// How long `close` waits for the stack to have let go of a listener's port, or to have reset a connection.
const STACK_TIME: Duration = Duration::from_millis(100);

/// What has to happen before the kernel closes `fd`. False: the program must not close it.
fn closing(fd: c_int, kind: Kind) -> bool {
    match kind {
        Kind::Kernel => {}
        // A vfork child needs them until it executes something, and they do not go along.
        Kind::Internal => return false,
        // In a vfork child this memory is the parent's, but the descriptors are not.
        _ if fork::in_vfork_child() => {}
        Kind::Undecided(_) => {
            table::set(fd, Kind::Kernel);
            interest::forget_undecided(fd);
        }
        Kind::Slot { slot, generation } => {
            if let Some(socket) = Socket::at(slot, generation) {
                let_go(fd, &socket);
            }
            table::set(fd, Kind::Kernel);
        }
        Kind::Epoll(id) => {
            table::set(fd, Kind::Kernel);
            nested::forget(fd);
            epoll::closed(id);
        }
        Kind::Ring(id) => {
            table::set(fd, Kind::Kernel);
            uring::closed(id);
        }
    }
    true
}

/// `close`.
#[inline]
pub fn close(fd: c_int) -> Answer<c_int> {
    if table::is_watched(fd) {
        watch::end(fd);
    }
    let kind = table::get(fd);
    if kind == Kind::Kernel || closing(fd, kind) { None } else { Some(Err(libc::EBADF)) }
}

/// `fclose` (of a stream made by `fdopen`).
///
/// # Safety
/// `stream` is null or an open stream.
pub unsafe fn fclose(stream: *mut FILE) {
    if !stream.is_null() && !stdio::closing(stream) {
        // SAFETY: the caller keeps the contract of `fclose`.
        let fd = unsafe { libc::fileno(stream) };
        if table::is_watched(fd) {
            watch::end(fd);
        }
        closing(fd, table::get(fd));
    }
}

/// The descriptor `fd` of a socket goes away.
pub fn let_go(fd: c_int, socket: &Socket) {
    table::set(fd, Kind::Kernel);
    interest::forget(fd, socket);
    // Other descriptors may exist. The stack sees the hang-up of the pair when the last one is closed.
    // Others may sleep on it, who have it until they return.
    if !socket.has(flag::SHARED) && !hold::keep(fd, socket) {
        end(fd, socket);
    }
}

/// The slot behind `fd` is not used any more. The port of a listener is free afterwards.
pub fn end(fd: c_int, socket: &Socket) {
    let listening = socket.state() == state::LISTENING;
    abandon(socket);
    if listening {
        await_port(fd, socket);
    }
}

/// A port can be bound again as soon as `close` of its listener returns. The service closes its end of the pair when it
/// has let the port go, which is at once; a service that is slow (or ended) is not waited for long.
fn await_port(fd: c_int, socket: &Socket) {
    let deadline = Instant::now() + STACK_TIME;
    while !socket.session.is_dead() {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut pair = [libc::pollfd { fd, events: 0, revents: 0 }];
        // A signal is the only reason to look again.
        if left.is_zero() || sys::ppoll(&mut pair, Some(left), core::ptr::null()) != Err(libc::EINTR) {
            return;
        }
    }
}

/// The last descriptor of a socket goes away.
pub fn abandon(socket: &Socket) {
    if socket.is_gone() {
        return;
    }
    let linger = socket.private().linger_s.load(Ordering::Relaxed);
    // Of what the stack carries it sees itself what is left unread (RFC 2525 §2.17).
    let direct = socket.direct().is_some();
    let unread = direct && socket.readable() > 0;
    let held = linger > 0 && tcp_info::holds(socket).is_some();
    if held && socket.readable() == 0 {
        await_acknowledgement(socket, linger as u64);
    }
    let abort = if linger == 0 || unread { app_flags::ABORT } else { 0 };
    let within = linger == 0 && !direct && tcp_info::has_buffers(socket) && is_within_a_host(socket);
    // The slot may be claimed from now on, but only once the stack has freed it.
    let _ = socket.private().used.compare_exchange(used::LIVE, used::NO, Ordering::AcqRel, Ordering::Relaxed);
    socket.mark_app(app_flags::CLOSED | abort, true);
    if within {
        await_reset(socket);
    }
    // What a direct connection has sent is in the other side's hands.
    if linger > 0 && !direct && !held {
        // Until all is sent and acknowledged, or the time is over.
        let deadline = Some(Instant::now() + Duration::from_secs(linger as u64));
        socket.want_room();
        let gone = || socket.view().queued() == 0 && !socket.view().is_sending_file();
        let sent = || gone() || socket.is_gone();
        while !sent() && block::left(deadline, LIFE_CHECK).is_some() {
            let _ = block::until(socket, Some(Instant::now() + Duration::from_millis(10)), sent);
        }
    }
}

/// Are both ends on the same host?
fn is_within_a_host(socket: &Socket) -> bool {
    let info = socket.info();
    towpath_ring::address::load(&info.local_addr) == towpath_ring::address::load(&info.remote_addr)
}

/// A peer on the same host has seen the reset when `close` returns, by Linux. The stack frees the slot when it has.
fn await_reset(socket: &Socket) {
    let over = || socket.is_gone() || socket.stack().state.load(Ordering::Acquire) == state::FREE;
    let deadline = Instant::now() + STACK_TIME;
    while !wake::spin_until(socket.session.spin_us, over) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_micros(50));
    }
}

/// Waits until the peer has acknowledged everything and the end of the stream, of which the stack holds a part beside the ring.
fn await_acknowledgement(socket: &Socket, seconds: u64) {
    let deadline = Instant::now() + Duration::from_secs(seconds);
    let mut pause = Duration::from_micros(200);
    socket.mark_app(app_flags::SHUT_WR, true);
    // The end of the stream counts as a byte there only when it has been sent.
    let over = || socket.state() != state::ESTABLISHED || socket.status() & status::TX_CLOSED != 0;
    while Instant::now() < deadline && !(over() && tcp_info::queued_now(socket).0 == 0) {
        let until = deadline.min(Instant::now() + pause);
        let _ = block::until(socket, Some(until), || socket.is_gone());
        pause = (pause * 2).min(Duration::from_millis(10));
    }
}

/// A copy `new` of the descriptor of kind `kind` has come into being.
fn copied(kind: Kind, old: c_int, new: c_int) {
    match kind {
        Kind::Slot { slot, generation } => {
            if let Some(socket) = Socket::at(slot, generation) {
                socket.mark(flag::SHARED, true);
            }
            table::set(new, kind);
        }
        // When it is decided, the pair is put over all of them.
        Kind::Undecided(undecided) => {
            let family = if undecided.family == 0 { table::new_family() } else { undecided.family };
            table::update_undecided(old, |undecided| undecided.family = family);
            table::set(new, table::get(old));
        }
        Kind::Epoll(id) => {
            epoll::copied(id);
            table::set(new, kind);
        }
        Kind::Ring(id) => {
            uring::copied(id);
            table::set(new, kind);
        }
        Kind::Kernel | Kind::Internal => table::set(new, Kind::Kernel),
    }
    standard::follow(new);
}

/// A duplicating call that picks the number itself.
pub fn duplicate(fd: c_int, make: impl FnOnce() -> c_int) -> Answer<c_int> {
    let kind = table::get(fd);
    match kind {
        Kind::Kernel => None,
        Kind::Internal => Some(Err(libc::EBADF)),
        _ if fork::in_vfork_child() => {
            pass::unseen_copy(fd);
            None
        }
        _ => Some(outcome(make()).inspect(|new| copied(kind, fd, *new))),
    }
}

/// `dup2` and `dup3`: `new` is closed on the way.
pub fn duplicate_over(fd: c_int, new: c_int, make: impl FnOnce() -> c_int) -> Answer<c_int> {
    if fd != new && table::is_watched(new) {
        watch::end(new);
    }
    let (from, over) = (table::get(fd), table::get(new));
    if (from, over) == (Kind::Kernel, Kind::Kernel) || fd == new {
        return None;
    }
    if fork::in_vfork_child() {
        pass::unseen_copy(fd);
        return None;
    }
    if from == Kind::Internal {
        return Some(Err(libc::EBADF));
    }
    // Our own descriptors lie where no program picks numbers; one that does must pick another.
    if over == Kind::Internal {
        return Some(Err(libc::EBUSY));
    }
    if let Err(errno) = sys::fcntl(fd, libc::F_GETFD, 0) {
        return Some(Err(errno));
    }
    closing(new, over);
    Some(outcome(make()).inspect(|new| copied(from, fd, *new)))
}

/// `close_range`: around our own descriptors.
pub fn close_range(first: c_uint, last: c_uint, flags: c_uint) -> Answer<c_int> {
    // Marking them close-on-exec is what they are anyway.
    if flags & libc::CLOSE_RANGE_CLOEXEC != 0 || first > last {
        return None;
    }
    watch::end_range(first, last);
    let mut ours = false;
    let mut next = first;
    for (fd, kind) in table::within(first, last) {
        ours = true;
        if closing(fd, kind) {
            continue;
        }
        if fd as c_uint > next
            && let Err(errno) = close_between(next, fd as c_uint - 1, flags)
        {
            return Some(Err(errno));
        }
        next = fd as c_uint + 1;
    }
    if !ours {
        return None;
    }
    Some(if next > last { Ok(0) } else { close_between(next, last, flags) })
}

fn close_between(first: c_uint, last: c_uint, flags: c_uint) -> Sys<c_int> {
    // SAFETY: integers only.
    outcome(unsafe { real::close_range(first, last, flags as c_int) })
}
