//! The kernel half of a listener: the descriptor of a listener in a slot stays the kernel's own socket, which really
//! listens. First SYNs of served interfaces go to the stack, and their connections to the slot. All others are accepted
//! by the kernel.
//!
//! The socket's description is non-blocking as long as the stack serves it, and the program's own mode is the slot's
//! flag. A program without the library must find the program's mode, so it is restored before a descriptor goes there.

pub use crate::ready::service_death::{SO_NOFCS, is_named};

use crate::fd::table::{self, Descriptor, Pending};
use crate::io::sigurg;
use crate::lifecycle::address;
use crate::observe::{fallback, measure};
use crate::options::handover;
use crate::ready::{halves, rewatch};
use core::sync::atomic::Ordering;
use libc::{c_int, sockaddr, socklen_t};
use towpath_client::private::flag;
use towpath_client::socket::Socket;
use towpath_client::sys::{self, Sys};
use towpath_client::{close, command, rejoin};
use towpath_hook::{outcome, real};
use towpath_ring::control::Request;
use towpath_ring::lines::{app_flags, state, status};
use towpath_ring::report::Count;

/// While connections wait in both halves, one accept in so many looks at the kernel's without a hint.
const LOOK: u32 = 16;

/// `listen` on the kernel socket. From now on the kernel refuses others the port, whatever they set.
pub fn listen(fd: c_int, backlog: c_int) -> Sys<c_int> {
    if let Descriptor::Pending(Pending { reuse_hidden: true, .. }) = table::get(fd) {
        sys::setsockopt(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
        table::update_pending(fd, |pending| pending.reuse_hidden = false);
    }
    // SAFETY: `listen` takes numbers and no memory.
    outcome(unsafe { real::listen(fd, backlog) })
}

/// Ends what [`listen`] has begun: the kernel socket is bound to `local` and does not listen.
pub fn unlisten(fd: c_int, six: bool, local: address::Address) {
    if !listens(fd) {
        return;
    }
    // SAFETY: `shutdown` takes numbers and no memory.
    unsafe { real::shutdown(fd, libc::SHUT_RD) };
    // A port that the kernel has chosen goes with the listening. The call fails if the socket is still bound.
    let _ = address::bind(fd, six, local);
}

/// Does this kernel socket listen?
pub fn listens(fd: c_int) -> bool {
    sys::getsockopt::<c_int>(fd, libc::SOL_SOCKET, libc::SO_ACCEPTCONN, 0) == Ok(1)
}

/// Promotion: the slot takes over, and the descriptors stay as they are.
pub fn keep(fd: c_int, pending: Pending, socket: &Socket) -> Sys<()> {
    let status = sys::fcntl(fd, libc::F_GETFL, 0)?;
    sys::fcntl(fd, libc::F_SETFL, status | libc::O_NONBLOCK)?;
    let copies = table::copies(fd);
    socket.mark(flag::KERNEL_HALF, true);
    socket.mark(flag::ANY_PORT, pending.any_port || !pending.bound);
    socket.mark(flag::SHARED, copies.len() > 1);
    socket.mark(flag::NONBLOCK, if pending.lost { pending.nonblock } else { status & libc::O_NONBLOCK != 0 });
    if pending.options {
        handover::import(fd, pending, socket);
    }
    if pending.emulated {
        socket.mark(flag::EMULATED_ON_PAIR, true);
        handover::import_emulated(fd, fd, socket);
    }
    let owner = if pending.owned { sys::fcntl(fd, libc::F_GETOWN, 0).unwrap_or(0) } else { 0 };
    if owner != 0 {
        sigurg::set_owner(socket, libc::F_SETOWN, owner.into());
    }
    let watchers: Vec<_> = copies.iter().map(|copy| (*copy, rewatch::take_pending(*copy))).collect();
    copies.iter().for_each(|copy| table::set(*copy, table::kind_of(socket)));
    command::release_holder(socket);
    for (copy, watchers) in watchers {
        rewatch::watch_promoted(copy, socket, watchers);
    }
    Ok(())
}

/// Must the next accept look at the kernel half first, although an accelerated connection waits?
pub fn is_its_turn(listener: &Socket) -> bool {
    let nth = listener.private().accepts.fetch_add(1, Ordering::Relaxed);
    nth % LOOK == LOOK - 1 || (nth % 2 == 1 && halves::has_kernel_said(listener))
}

/// `accept4` on the kernel half, which never waits. `None`: there is no connection.
///
/// # Safety
/// The contract of `accept4`.
pub unsafe fn accept(
    fd: c_int,
    listener: &Socket,
    addr: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> Sys<Option<c_int>> {
    // Another thread has closed the last descriptor here, and another process has one.
    let Some(fd) = halves::descriptor(fd, listener) else { return Ok(None) };
    if !halves::kernel_is_ready(fd) {
        halves::clear(listener);
        return Ok(None);
    }
    if !never_waits(fd, listener)? {
        return Ok(None);
    }
    // SAFETY: the caller keeps the contract of `accept4`, and the kernel checks the addresses.
    match outcome(unsafe { real::accept4(fd, addr, len, flags) }) {
        Ok(new) => {
            table::set(new, Descriptor::Kernel);
            take_filter_off(new);
            fallback::count(Count::AcceptedKernel);
            listener.app().kernel_accepts().fetch_add(1, Ordering::Relaxed);
            measure::accepted_by_kernel_half(new, listener);
            Ok(Some(new))
        }
        Err(libc::EAGAIN) => {
            halves::clear(listener);
            Ok(None)
        }
        Err(errno) => Err(errno),
    }
}

/// Sees to it that calls on the kernel half do not wait. False: its listener has ended.
///
/// Another process may have restored the program's mode, to pass the descriptor on or because the service has died.
fn never_waits(fd: c_int, listener: &Socket) -> Sys<bool> {
    let status = sys::fcntl(fd, libc::F_GETFL, 0)?;
    if status & libc::O_NONBLOCK == 0 {
        if !listener.session.check_alive() || is_over(listener) {
            return Ok(false);
        }
        sys::fcntl(fd, libc::F_SETFL, status | libc::O_NONBLOCK)?;
    }
    Ok(true)
}

/// Gives the kernel socket the program's mode, for programs without the library.
pub fn lend(fd: c_int, socket: &Socket) {
    if !socket.has(flag::NONBLOCK)
        && let Ok(status) = sys::fcntl(fd, libc::F_GETFL, 0)
    {
        let _ = sys::fcntl(fd, libc::F_SETFL, status & !libc::O_NONBLOCK);
    }
}

/// Does the stack no longer serve this listener? Its slot has been given up, or taken away.
pub fn is_over(socket: &Socket) -> bool {
    socket.state() != state::LISTENING || socket.has_app(app_flags::CLOSED)
}

/// The stack no longer serves this listener, or must not: its descriptors become what they would be without the library.
/// A socket that listens is the kernel's for good, unless the service has gone; one that does not is pending.
pub fn give_back(fd: c_int, socket: &Socket) {
    let Some(kernels) = halves::descriptor(fd, socket) else { return };
    if sys::is_closed(kernels) {
        stop(kernels, socket);
        return;
    }
    if socket.session.is_dead() {
        lose(kernels, socket);
        return;
    }
    let copies = table::copies(kernels);
    for copy in copies.iter().filter(|copy| table::get(**copy) == table::kind_of(socket)) {
        table::set(*copy, Descriptor::Kernel);
    }
    rewatch::leave_half(socket);
    if socket.stack().status.load(Ordering::Relaxed) & status::JUDGED == 0 {
        take_filter_off(kernels);
    }
    release(kernels, socket);
}

/// The service has gone: the kernel alone listens, and the descriptors wait for another service.
fn lose(kernels: c_int, socket: &Socket) {
    let copies = copies(kernels, socket);
    let pending = Pending { lost: true, ..pending(kernels, socket, &copies) };
    rewatch::lose_half(socket, &copies);
    copies.iter().for_each(|copy| table::set(*copy, Descriptor::Pending(pending)));
    // Once another process of this client has joined a service, filter and mode are that one's.
    if !rejoin::has_successor(socket.session) {
        if socket.stack().status.load(Ordering::Relaxed) & status::JUDGED == 0 {
            take_filter_off(kernels);
        }
        release(kernels, socket);
    }
    fallback::service_is_gone(socket.session);
}

/// The program's descriptors of a listener.
fn copies(fd: c_int, socket: &Socket) -> Vec<c_int> {
    let mut copies = table::copies(fd);
    copies.retain(|copy| table::get(*copy) == table::kind_of(socket));
    copies
}

/// The record of a pending socket that has the listener's descriptors.
fn pending(fd: c_int, socket: &Socket, copies: &[c_int]) -> Pending {
    let mut pending = Pending { six: socket.has(flag::SIX), bound: !socket.has(flag::ANY_PORT), ..Pending::default() };
    handover::note(socket, &mut pending);
    pending.owned = sys::fcntl(fd, libc::F_GETOWN, 0).is_ok_and(|owner| owner != 0);
    pending.shared = socket.has(flag::SHARED);
    pending.nonblock = socket.has(flag::NONBLOCK);
    if copies.len() > 1 {
        pending.family = table::new_family();
    }
    pending
}

/// A service has died: all its listeners of this process are the kernel's from now on.
pub fn give_back_all() {
    for (fd, _) in table::within(0, u32::MAX) {
        if let Some(socket) = table::socket(fd)
            && socket.session.is_dead()
            && socket.kernel_half()
        {
            give_back(fd, &socket);
        }
    }
}

/// The kernel socket has been told to listen no longer: its descriptors are those of a pending socket.
pub fn stop(fd: c_int, socket: &Socket) -> Pending {
    let copies = copies(fd, socket);
    let pending = pending(fd, socket, &copies);
    let watchers = rewatch::take_slot(socket);
    copies.iter().for_each(|copy| table::set(*copy, Descriptor::Pending(pending)));
    take_filter_off(fd);
    release(fd, socket);
    for (id, copy, event) in watchers {
        rewatch::watch_pending(id, copy, event);
    }
    pending
}

/// The slot gives the kernel socket up.
fn release(fd: c_int, socket: &Socket) {
    // A call of this process may still use the socket although its last descriptor is closed.
    lend(fd, socket);
    let _ = sys::setsockopt(fd, libc::SOL_SOCKET, SO_NOFCS, 0);
    close::abandon(socket);
}

/// Tells the service the name of a listener that other processes have too.
pub fn name(fd: c_int, socket: &Socket) {
    socket.mark(flag::SHARED, true);
    let request = Request::Name { slot: socket.slot.raw(), generation: socket.generation };
    if socket.session.send(&request, &[fd]).is_ok() {
        let _ = sys::setsockopt(fd, libc::SOL_SOCKET, SO_NOFCS, 1);
        socket.mark(flag::NAMED, true);
    }
}

/// Takes the stack's filter off. The kernel gives it to accepted connections, too, which have no use for it.
pub fn take_filter_off(fd: c_int) {
    let _ = sys::setsockopt(fd, libc::SOL_SOCKET, libc::SO_DETACH_FILTER, 0);
}
