//! `accept`.

use crate::listen::{INHERITED_FLAGS, attach};
use crate::private::{Private, flag};
use crate::socket::Socket;
use crate::sys::{self, Sys};
use crate::{address, block, close, doors, fallback, hold, kept, receive, spare, steer, table, watch};
use core::sync::atomic::Ordering::Relaxed;
use libc::{c_int, sockaddr, socklen_t};
use towpath_hook::{Answer, outcome, real};
use towpath_ring::command::Accepted;
use towpath_ring::lines::{app_flags, state};
use towpath_ring::report::Count;

/// `accept4`.
///
/// # Safety
/// The contract of `accept4`: `addr` is null, or `len` is valid and `addr` has `*len` writable bytes.
pub unsafe fn accept(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> Answer<c_int> {
    let Some(listener) = Socket::of(fd) else {
        // SAFETY: the caller keeps the contract of `accept`.
        return if table::is_watched(fd) { Some(unsafe { by_kernel(fd, addr, len, flags) }) } else { None };
    };
    if flags & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) != 0 {
        return Some(Err(libc::EINVAL));
    }
    // SAFETY: the caller keeps the contract of `accept`.
    Some(unsafe { accept_on(fd, &listener, addr, len, flags) })
}

/// The kernel's listener, whose connections are watched.
///
/// # Safety
/// As [`accept`].
unsafe fn by_kernel(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> Sys<c_int> {
    // SAFETY: the caller keeps the contract of `accept`.
    let accepted = outcome(unsafe { real::accept4(fd, addr, len, flags) });
    accepted.inspect(|new| watch::accepted_by_kernel(fd, *new))
}

/// # Safety
/// As [`accept`].
unsafe fn accept_on(
    fd: c_int,
    listener: &Socket,
    addr: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> Sys<c_int> {
    let waiting = || listener.readable() as usize >= Accepted::BYTES;
    let deadline = block::deadline(listener.private().receive_timeout_us.load(Relaxed));
    let mut held = None;
    loop {
        if listener.state() != state::LISTENING {
            return Err(libc::EINVAL);
        }
        if waiting() {
            // SAFETY: the caller keeps the contract of `accept`.
            if let Some(fd) = unsafe { accept_next(fd, listener, addr, len, flags) }? {
                return Ok(fd);
            }
        } else if listener.has(flag::NONBLOCK) {
            return Err(libc::EAGAIN);
        } else {
            if held.is_none() {
                // Linux takes the descriptor before it waits.
                sys::close(sys::socket(libc::AF_INET)?);
            }
            held.get_or_insert_with(|| hold::Use::of(listener));
            block::until_alone(listener, deadline, || waiting() || listener.state() != state::LISTENING)?;
        }
    }
}

/// Takes the next connection, if there still is one.
///
/// # Safety
/// As [`accept`].
unsafe fn accept_next(
    fd: c_int,
    listener: &Socket,
    addr: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> Sys<Option<c_int>> {
    // Before the record is taken, so that nothing is lost if there are no descriptors left.
    let [ours, theirs] = spare::pair_for_one()?;
    match next(listener, |socket| take(fd, listener, socket, ours, theirs)) {
        // SAFETY: the caller keeps the contract of `accept`: `addr` and `len` are null or name room for an address.
        Ok(Some((socket, remote))) => unsafe { install(&socket, remote, ours, flags, addr, len) }.map(Some),
        none => {
            [ours, theirs].into_iter().for_each(sys::close);
            none.map(|_| None)
        }
    }
}

/// `accept4` that never waits: EAGAIN.
///
/// # Safety
/// As [`accept`].
pub unsafe fn attempt(
    fd: c_int,
    listener: &Socket,
    addr: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> Sys<c_int> {
    if listener.state() != state::LISTENING {
        return Err(libc::EINVAL);
    }
    if (listener.readable() as usize) < Accepted::BYTES {
        return Err(libc::EAGAIN);
    }
    // SAFETY: as above.
    unsafe { accept_next(fd, listener, addr, len, flags) }?.ok_or(libc::EAGAIN)
}

/// Takes the next record that makes sense: `take` makes its connection the caller's own. EAGAIN: this is a signal handler in the
/// middle of that.
///
/// A record is gone from the queue only after `take`. So whenever a process is killed, somebody knows of the connection: the queue,
/// or the keeper, who sees that nobody has the other end of the pair any more.
pub fn next(listener: &Socket, mut take: impl FnMut(&Socket)) -> Sys<Option<(Socket, address::Address)>> {
    let session = listener.session;
    // A process that has not yet joined its family does so without the lock.
    session.join();
    let _taking = listener.private().receiving.lock().ok_or(libc::EAGAIN)?;
    while listener.readable() as usize >= Accepted::BYTES {
        let mut bytes = [0; Accepted::BYTES];
        session.region.rx(listener.slot).read(listener.app().rx_head.load(Relaxed), &mut bytes);
        let record = Accepted::from_bytes(&bytes);
        let socket =
            session.region.slot(record.slot).map(|slot| Socket { session, slot, generation: record.generation });
        let good = socket.filter(may_be_taken);
        good.iter().for_each(&mut take);
        receive::consumed(&listener.view(), Accepted::BYTES as u32);
        if let Some(socket) = good {
            return Ok(Some((socket, (record.remote_addr, record.remote_port))));
        }
    }
    Ok(None)
}

/// Is this a connection that can be had? One that cannot is ended.
fn may_be_taken(socket: &Socket) -> bool {
    let (session, slot) = (socket.session, socket.slot);
    if session.region.layout().is_app_slot(slot) || socket.is_gone() || socket.state() == state::FREE {
        return false;
    }
    // Somebody was killed while he took it, and nobody knows how far he had come. On Linux, too, it would end with him.
    let begun = socket.app().generation.load(Relaxed) == socket.generation;
    if begun || socket.is_out_of_reach() {
        Socket::reset(session, slot, app_flags::CLOSED | app_flags::ABORT);
        socket.adopt();
        doors::ring(socket);
        doors::ring_commands(session, slot);
        return false;
    }
    true
}

/// Makes a connection this process's own, with `ours` as its descriptor.
fn take(fd: c_int, listener: &Socket, socket: &Socket, ours: c_int, theirs: c_int) {
    Socket::reset(socket.session, socket.slot, listener.app().flags.load(Relaxed) & INHERITED_FLAGS);
    inherit(listener.private(), socket.private());
    steer::inherit(listener, socket);
    kept::inherit(fd, listener, ours, socket);
    socket.adopt();
    if socket.options().receive_buffer.load(Relaxed) != 0 {
        // The stack has it by what its listener had when it came.
        doors::ring_commands(socket.session, socket.slot);
    }
    attach(socket, theirs);
}

/// # Safety
/// As [`accept`].
unsafe fn install(
    socket: &Socket,
    remote: address::Address,
    ours: c_int,
    flags: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> Sys<c_int> {
    socket.mark(flag::NONBLOCK, flags & libc::SOCK_NONBLOCK != 0);
    table::set(ours, socket.kind());
    fallback::accelerated(socket, [Count::AcceptedStack, Count::AcceptedDirect]);
    watch::accepted(ours, socket);
    if flags & libc::SOCK_CLOEXEC == 0 {
        sys::fcntl(ours, libc::F_SETFD, 0)?;
    }
    let six = socket.has(flag::SIX);
    // SAFETY: the caller keeps the contract of `accept`.
    let named = if addr.is_null() { Ok(()) } else { unsafe { address::write(six, remote, addr, len) } };
    if let Err(errno) = named {
        // Linux has taken the connection by then, and ends it.
        close::let_go(ours, socket);
        sys::close(ours);
        return Err(errno);
    }
    Ok(ours)
}

/// The flags among them.
const INHERITED: u32 =
    flag::REUSEADDR | flag::REUSEPORT | flag::SIX | flag::V6ONLY | flag::OOBINLINE | flag::QUICKACK_OFF | flag::CORKED;

/// Options that a connection takes over from its listener, as on Linux.
fn inherit(from: &Private, to: &Private) {
    to.flags.store(from.flags.load(Relaxed) & INHERITED, Relaxed);
    to.linger_s.store(from.linger_s.load(Relaxed), Relaxed);
    to.receive_timeout_us.store(from.receive_timeout_us.load(Relaxed), Relaxed);
    to.send_timeout_us.store(from.send_timeout_us.load(Relaxed), Relaxed);
    to.low_water.store(from.low_water.load(Relaxed), Relaxed);
}
