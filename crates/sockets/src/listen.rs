//! `socket`, `bind`, `listen`: sockets that are not decided yet, and what becomes of them.

use crate::address::Address;
use crate::doors;
use crate::fallback::{self, Not};
use crate::private::{flag, used};
use crate::session::{self, Session};
use crate::socket::Socket;
use crate::sys::{self, Sys};
use crate::table::{self, Kind, Undecided};
use crate::{address, close, foreign, interest, kept, options, question, sigurg, spare, stacks, steer, watch};
use core::sync::atomic::Ordering;
use libc::{c_int, sockaddr, socklen_t};
use towpath_hook::{Answer, outcome, real};
use towpath_ring::Slot;
use towpath_ring::command::{Command, V6ONLY, op};
use towpath_ring::control::Request;
use towpath_ring::lines::app_flags;
use towpath_ring::report::Count;

/// Linux's default `net.core.somaxconn`.
const BACKLOG_LIMIT: c_int = 4096;

/// `socket`: TCP over IPv4 and IPv6 may become ours. So may MPTCP, which Go's servers ask for by default: it falls back to TCP
/// with any peer that does not speak it (RFC 8684 §3.7).
pub fn socket(domain: c_int, kind: c_int, protocol: c_int) -> Answer<c_int> {
    let stream = kind & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) == libc::SOCK_STREAM;
    let six = domain == libc::AF_INET6;
    if !(six || domain == libc::AF_INET) || !stream || ![0, libc::IPPROTO_TCP, libc::IPPROTO_MPTCP].contains(&protocol)
    {
        fallback::not_tcp(domain, kind);
        return None;
    }
    if session::start().is_none() {
        fallback::count(fallback::why_no_session());
        return if session::required() { Some(Err(libc::ENETDOWN)) } else { None };
    }
    // SAFETY: integers only.
    let fd = outcome(unsafe { real::socket(domain, kind, libc::IPPROTO_TCP) });
    if let Ok(fd) = fd {
        table::set(fd, Kind::Undecided(Undecided { six, ..Undecided::default() }));
    }
    Some(fd)
}

/// `bind` on an undecided socket: the kernel reserves the port, if the stack has nobody there.
///
/// # Safety
/// The contract of `bind`: `addr` has `len` readable bytes, if it is a place that can be read at all.
pub unsafe fn bind(fd: c_int, addr: *const sockaddr, len: socklen_t) -> Answer<c_int> {
    let kind = table::get(fd);
    if let Kind::Slot { .. } = kind {
        return Some(Err(libc::EINVAL));
    }
    let Kind::Undecided(undecided) = kind else { return None };
    // SAFETY: the caller keeps the contract of `bind`.
    let local = unsafe { address::read(undecided.six, addr, len) }.ok().flatten();
    if local.is_some_and(|local| is_taken(fd, undecided, local)) {
        return Some(Err(libc::EADDRINUSE));
    }
    // SAFETY: the caller keeps the contract of `bind`.
    let bound = reserve(fd, undecided, local, || outcome(unsafe { real::bind(fd, addr, len) }));
    if bound.is_ok() {
        table::update_undecided(fd, |u| u.bound = true);
    }
    Some(bound)
}

/// The reservation must not have SO_REUSEADDR, or another program could bind the port beside it. So that option is
/// taken off for the bind, and only put on if the port cannot be had without.
fn reserve(fd: c_int, undecided: Undecided, local: Option<Address>, bind: impl Fn() -> Sys<c_int>) -> Sys<c_int> {
    let reuse = undecided.options
        && sys::getsockopt::<c_int>(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, 0).is_ok_and(|reuse| reuse != 0);
    let hide = reuse && sys::setsockopt(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, 0).is_ok();
    let mut bound = bind();
    if bound == Err(libc::EADDRNOTAVAIL) && local.is_some_and(|local| foreign::allow(fd, undecided.six, local)) {
        bound = bind();
    }
    if bound.is_err() && hide {
        let _ = sys::setsockopt(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1);
        if bound == Err(libc::EADDRINUSE) {
            bound = bind();
        }
    } else if hide {
        table::update_undecided(fd, |u| u.reuse_hidden = true);
    }
    bound
}

/// Has the stack this port, beside this kernel, which is asked anyway?
fn is_taken(fd: c_int, undecided: Undecided, local: Address) -> bool {
    let asked_for = !undecided.bound && local.1 != 0 && !address::is_kernels(local.0);
    let six_only = || undecided.six && is_v6only(fd);
    asked_for && session::start().is_some_and(|session| question::is_taken(session, local, six_only()))
}

/// `listen`.
pub fn listen(fd: c_int, backlog: c_int) -> Answer<c_int> {
    match table::get(fd) {
        Kind::Undecided(undecided) => listen_undecided(fd, undecided, backlog),
        Kind::Slot { slot, generation } => {
            let listening = Socket::at(slot, generation)
                .is_some_and(|socket| socket.state() == towpath_ring::lines::state::LISTENING);
            Some(if listening { Ok(0) } else { Err(libc::EINVAL) })
        }
        _ => None,
    }
}

fn listen_undecided(fd: c_int, undecided: Undecided, backlog: c_int) -> Answer<c_int> {
    let Some(session) = session::start() else { return settle_kernel(fd, undecided, fallback::why_no_session()) };
    if !undecided.bound
        && let Err(errno) = address::bind_any(fd, undecided.six)
    {
        return Some(Err(errno));
    }
    table::update_undecided(fd, |u| u.bound = true);
    let local = match address::of_kernel(fd, undecided.six) {
        Ok(local) if address::is_kernels(local.0) => return settle_kernel(fd, undecided, Count::Address),
        Ok(local) => local,
        Err(errno) => return Some(Err(errno)),
    };
    // A negative backlog is a huge unsigned one to Linux.
    let backlog = if backlog < 0 { BACKLOG_LIMIT } else { backlog.min(BACKLOG_LIMIT) } as u32;
    let flags = if undecided.six && is_v6only(fd) { V6ONLY } else { 0 };
    let (local_addr, local_port) = (local.0, local.1.into());
    let command = Command { op: op::LISTEN, local_addr, local_port, backlog, flags, ..Command::default() };
    match take(fd, undecided, session, command) {
        Ok(_) => {
            fallback::count(Count::Listening);
            Some(Ok(0))
        }
        // This kernel would listen where nobody comes.
        Err(Not::Kernels(_)) if undecided.bound && foreign::is(undecided.six, local) => Some(Err(libc::EADDRNOTAVAIL)),
        Err(Not::Kernels(why)) => {
            let left = settle_kernel(fd, undecided, why);
            if why == Count::Policy {
                watch::listening(fd, local.1);
            }
            left
        }
        Err(Not::Failed(errno)) => Some(Err(errno)),
        Err(Not::Stack(_)) => Some(Err(libc::EADDRNOTAVAIL)),
    }
}

/// Is this kernel socket for IPv6 only?
pub fn is_v6only(fd: c_int) -> bool {
    sys::getsockopt::<c_int>(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 0).is_ok_and(|only| only != 0)
}

/// An undecided socket stays with the kernel for good; the call goes on there.
pub fn settle_kernel<T>(fd: c_int, undecided: Undecided, why: Count) -> Answer<T> {
    fallback::count(why);
    if let Some(errno) = without_service() {
        return Some(Err(errno));
    }
    leave(fd, undecided);
    None
}

/// Why the kernel may not take a socket instead. Local kernel services stay reachable; only a missing service is an error.
pub fn without_service() -> Option<i32> {
    (session::required() && session::get().is_none_or(Session::is_dead)).then_some(libc::ENETDOWN)
}

/// An undecided socket is the kernel's from now on.
pub fn leave(fd: c_int, undecided: Undecided) {
    if undecided.reuse_hidden {
        let _ = sys::setsockopt(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1);
    }
    for copy in table::copies(fd) {
        table::set(copy, Kind::Kernel);
        interest::forget_undecided(copy);
    }
}

/// Gives an undecided socket to the stack with a command; to another stack, if that is the answer.
pub fn take(fd: c_int, undecided: Undecided, session: &'static Session, command: Command) -> Result<Socket, Not> {
    match take_at(fd, undecided, session, command) {
        Err(Not::Stack(stack)) => {
            stacks::instead(session, stack, &command, |there| take_at(fd, undecided, there, command))
        }
        taken => taken,
    }
}

fn take_at(fd: c_int, undecided: Undecided, session: &'static Session, mut command: Command) -> Result<Socket, Not> {
    let slot = session.claim_slot().ok_or(Not::Kernels(Count::NoSlot))?;
    let app_flags = if undecided.options { options::initial_flags(fd) } else { 0 };
    Socket::reset(session, slot, app_flags);
    steer::initial(fd, undecided, session, slot);
    command.flags |= app_flags;
    let socket = decide(session, slot, &command, (command.local_port != 0).then_some(fd))?;
    socket.mark(flag::SIX, undecided.six);
    socket.mark(flag::V6ONLY, command.flags & V6ONLY != 0);
    promote(fd, undecided, &socket).map_err(|errno| {
        close::abandon(&socket);
        Not::Failed(errno)
    })?;
    Ok(socket)
}

/// Gives the command for a slot that has been claimed and made ready, with the kernel socket that reserves its port. Whatever goes wrong,
/// the slot is let go.
pub fn decide(
    session: &'static Session,
    slot: Slot,
    command: &Command,
    reservation: Option<c_int>,
) -> Result<Socket, Not> {
    let release = |slot: Slot| session.private(slot).used.store(used::NO, Ordering::Release);
    if let Some(fd) = reservation
        && let Err(_dead) =
            session.send(&Request::Reserve { slot: slot.raw(), seq: doors::next_seq(session, slot) }, &[fd])
    {
        release(slot);
        return Err(Not::Kernels(Count::ServiceGone));
    }
    // From the stack's answer until a keeper has the pair nobody else knows of the socket.
    session.region.command(slot).holder.store(session.process(), Ordering::Relaxed);
    match doors::command(session, slot, command) {
        Ok(()) => {}
        // Undecided for too long: what the stack makes of it is unknown, so the slot is not used again.
        Err(Some(libc::ETIMEDOUT))
            if session.region.stack(slot).command_done.load(Ordering::Acquire)
                != session.region.command(slot).seq.load(Ordering::Relaxed) =>
        {
            return Err(Not::Failed(libc::ETIMEDOUT));
        }
        Err(_) if session.is_dead() => return Err(Not::Kernels(Count::ServiceGone)),
        Err(why) => {
            let result = session.region.stack(slot).command_result.load(Ordering::Relaxed);
            release(slot);
            return Err(why.map_or_else(|| fallback::why_not_ours(result), Not::Failed));
        }
    }
    let generation = session.region.stack(slot).generation.load(Ordering::Acquire);
    let socket = Socket { session, slot, generation };
    socket.adopt();
    if socket.is_out_of_reach() {
        socket.app().flags.store(app_flags::CLOSED | app_flags::ABORT, Ordering::Release);
        release(slot);
        doors::ring_commands(session, slot);
        return Err(Not::Failed(libc::ENOBUFS));
    }
    Ok(socket)
}

/// Puts one end of a socketpair over the descriptor numbers of the kernel socket.
fn promote(fd: c_int, undecided: Undecided, socket: &Socket) -> Sys<()> {
    let status = sys::fcntl(fd, libc::F_GETFL, 0)?;
    let copies = table::copies(fd);
    socket.mark(flag::SHARED, copies.len() > 1);
    socket.mark(flag::NONBLOCK, status & libc::O_NONBLOCK != 0);
    if undecided.options {
        options::carry(fd, undecided, socket);
    }
    let owner = if undecided.owned { sys::fcntl(fd, libc::F_GETOWN, 0).unwrap_or(0) } else { 0 };
    let [ours, theirs] = spare::pair()?;
    if undecided.kept {
        kept::carry(fd, ours, socket);
    }
    let mut watchers = Vec::new();
    for copy in &copies {
        watchers.push((*copy, interest::take_undecided(*copy)));
        if let Err(errno) = sys::put_over(ours, *copy) {
            sys::close(ours);
            sys::close(theirs);
            return Err(errno);
        }
    }
    sys::close(ours);
    if owner != 0 && sys::fcntl(fd, libc::F_SETOWN, owner).is_ok() {
        sigurg::set_owner(socket, libc::F_SETOWN, owner.into());
    }
    copies.iter().for_each(|copy| table::set(*copy, socket.kind()));
    attach(socket, theirs);
    let_stand(socket);
    for (copy, watchers) in watchers {
        interest::watch_promoted(copy, socket, watchers);
    }
    Ok(())
}

/// The socket no longer ends with this process, as far as the stack is concerned.
pub fn let_stand(socket: &Socket) {
    socket.session.region.command(socket.slot).holder.store(0, Ordering::Release);
}

/// Gives the stack its end of a socket's pair, by which it sees that the last descriptor is gone.
pub fn attach(socket: &Socket, theirs: c_int) {
    let request = Request::Attach { slot: socket.slot.raw(), generation: socket.generation };
    // If it fails the service is dead, which every later call on the socket finds out.
    let _ = socket.session.send(&request, &[theirs]);
    sys::close(theirs);
    spare::refill(socket.session.control());
}

/// The flags that a connection starts with if its listener has them.
pub const INHERITED_FLAGS: u32 = app_flags::NODELAY | app_flags::CORK;
