//! `accept`.

use crate::fd::close;
use crate::fd::table::{self, Descriptor};
use crate::lifecycle::pairs::Pair;
use crate::lifecycle::{address, in_flight, kernel_half};
use crate::observe::{fallback, measure};
use crate::options::handover;
use crate::ready::{halves, service_death};
use core::sync::atomic::Ordering::Relaxed;
use libc::{c_int, sockaddr, socklen_t};
use towpath_client::accept::{inherit_options, next};
use towpath_client::private::{Private, flag};
use towpath_client::socket::Socket;
use towpath_client::sys::{self, Sys};
use towpath_client::{doorbell, rejoin, wait};
use towpath_hook::{Answer, outcome, real};
use towpath_ring::command::Accepted;
use towpath_ring::lines::{app_flags, state};
use towpath_ring::report::Count;

/// `accept4`.
///
/// # Safety
/// The contract of `accept4`: `addr` is null, or `len` is valid and `addr` has `*len` writable bytes.
pub unsafe fn accept(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> Answer<c_int> {
    while rejoin::is_needed()
        && let Descriptor::Pending(_) = table::get(fd)
    {
        let blocks = match service_death::until_connection(fd) {
            Ok(blocks) => blocks,
            Err(errno) => return Some(Err(errno)),
        };
        if let Descriptor::Slot { .. } = table::get(fd) {
            break;
        }
        // SAFETY: the caller keeps the contract of `accept4`; the kernel checks the addresses.
        match unsafe { by_kernel(fd, addr, len, flags) } {
            Err(libc::EAGAIN) if blocks => {}
            accepted => return Some(accepted),
        }
    }
    let Some(listener) = table::socket(fd) else {
        // SAFETY: the caller keeps the contract of `accept4`, and so `addr` and `len`.
        return if table::is_measured(fd) { Some(unsafe { by_kernel(fd, addr, len, flags) }) } else { None };
    };
    if flags & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) != 0 {
        return Some(Err(libc::EINVAL));
    }
    // SAFETY: the caller keeps the contract of `accept4`.
    Some(unsafe { accept_on(fd, &listener, addr, len, flags) })
}

/// `accept4` on a kernel listener whose connections are measured.
///
/// # Safety
/// As [`accept`].
unsafe fn by_kernel(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> Sys<c_int> {
    // SAFETY: the caller keeps the contract of `accept4`; the kernel checks the addresses.
    let accepted = outcome(unsafe { real::accept4(fd, addr, len, flags) });
    accepted.inspect(|new| measure::accepted_by_kernel(fd, *new))
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
    if listener.kernel_half() {
        // SAFETY: the caller keeps the contract of `accept4`.
        return unsafe { accept_on_halves(fd, listener, addr, len, flags) };
    }
    let waiting = || is_waiting(listener);
    let deadline = wait::deadline(listener.private().receive_timeout_us.load(Relaxed));
    let mut held = None;
    loop {
        if listener.state() != state::LISTENING {
            return Err(libc::EINVAL);
        }
        if waiting() {
            // SAFETY: the caller keeps the contract of `accept4`.
            if let Some(fd) = unsafe { accept_next(fd, listener, addr, len, flags) }? {
                return Ok(fd);
            }
        } else if listener.has(flag::NONBLOCK) {
            return Err(libc::EAGAIN);
        } else {
            begin_to_wait(&mut held, listener)?;
            wait::until_exclusive(listener, deadline, || waiting() || listener.state() != state::LISTENING)?;
        }
    }
}

/// A connection waits in the slot.
fn is_waiting(listener: &Socket) -> bool {
    listener.readable() as usize >= Accepted::BYTES
}

/// The call is about to wait, and keeps its listener.
fn begin_to_wait(held: &mut Option<in_flight::Call>, listener: &Socket) -> Sys<()> {
    if held.is_none() {
        // Linux allocates the descriptor before it waits, so EMFILE comes at once.
        sys::close(sys::socket(libc::AF_INET)?);
        *held = Some(in_flight::Call::on(listener));
    }
    Ok(())
}

/// `accept4` on a listener with a kernel half.
///
/// # Safety
/// As [`accept`].
unsafe fn accept_on_halves(
    fd: c_int,
    listener: &Socket,
    addr: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> Sys<c_int> {
    let deadline = wait::deadline(listener.private().receive_timeout_us.load(Relaxed));
    let mut held = None;
    loop {
        if kernel_half::is_over(listener) {
            let kernels = halves::descriptor(fd, listener).unwrap_or(fd);
            kernel_half::give_back(fd, listener);
            // It may wait for another service now.
            // SAFETY: the caller keeps the contract of `accept4`; the kernel checks the addresses.
            return unsafe {
                accept(kernels, addr, len, flags).unwrap_or_else(|| by_kernel(kernels, addr, len, flags))
            };
        }
        // SAFETY: the caller keeps the contract of `accept4`.
        if let Some(new) = unsafe { accept_either(fd, listener, addr, len, flags) }? {
            return Ok(new);
        }
        if kernel_half::is_over(listener) {
            continue;
        }
        if listener.has(flag::NONBLOCK) {
            return Err(libc::EAGAIN);
        }
        begin_to_wait(&mut held, listener)?;
        halves::until_acceptable(fd, listener, deadline)?;
    }
}

/// Takes the next connection of either half, each in its turn. `None`: there is none.
///
/// # Safety
/// As [`accept`].
unsafe fn accept_either(
    fd: c_int,
    listener: &Socket,
    addr: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> Sys<Option<c_int>> {
    let kernel_first = !is_waiting(listener) || kernel_half::is_its_turn(listener);
    // SAFETY: the caller keeps the contract of `accept4`.
    unsafe {
        if kernel_first && let Some(new) = kernel_half::accept(fd, listener, addr, len, flags)? {
            return Ok(Some(new));
        }
        if is_waiting(listener)
            && let Some(new) = accept_next(fd, listener, addr, len, flags)?
        {
            return Ok(Some(new));
        }
        if kernel_first { Ok(None) } else { kernel_half::accept(fd, listener, addr, len, flags) }
    }
}

/// Takes the next connection. `None`: another thread has taken it.
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
    // The socketpair is there before the record leaves the queue: without a descriptor nothing is lost.
    let pair = Pair::for_accepted(listener.session, flags & libc::SOCK_CLOEXEC != 0)?;
    match next(listener, |socket| take(fd, listener, socket, pair)) {
        // SAFETY: the caller keeps the contract of `accept`: `addr` and `len` are null or name room for an address.
        Ok(Some((socket, remote))) => unsafe { install(&socket, remote, pair, flags, addr, len) }.map(Some),
        none => {
            pair.close();
            none.map(|_| None)
        }
    }
}

/// `accept4` that never waits: EAGAIN if there is no connection.
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
    if listener.kernel_half() && !kernel_half::is_over(listener) {
        // SAFETY: the caller keeps the contract of `accept4`.
        return unsafe { accept_either(fd, listener, addr, len, flags) }?.ok_or(libc::EAGAIN);
    }
    if listener.kernel_half() {
        let kernels = halves::descriptor(fd, listener).unwrap_or(fd);
        kernel_half::give_back(fd, listener);
        if !halves::kernel_is_ready(kernels) {
            return Err(libc::EAGAIN);
        }
        // SAFETY: the caller keeps the contract of `accept4`; the kernel checks the addresses.
        return unsafe { by_kernel(kernels, addr, len, flags) };
    }
    if listener.state() != state::LISTENING {
        return Err(libc::EINVAL);
    }
    if !is_waiting(listener) {
        return Err(libc::EAGAIN);
    }
    // SAFETY: the caller keeps the contract of `accept4`.
    unsafe { accept_next(fd, listener, addr, len, flags) }?.ok_or(libc::EAGAIN)
}

/// Makes an accepted connection this process's own. The pair's end becomes its descriptor.
fn take(fd: c_int, listener: &Socket, socket: &Socket, pair: Pair) {
    Socket::reset(socket.session, socket.slot, listener.app().flags.load(Relaxed) & INHERITED_FLAGS);
    inherit(listener.private(), socket.private());
    inherit_options(listener, socket);
    handover::inherit_emulated(fd, listener, pair.fd, socket);
    socket.adopt();
    if socket.options().receive_buffer.load(Relaxed) != 0 {
        // The stack applied the buffer sizes that the listener had when the connection came. They may have changed.
        doorbell::notify_commands(socket.session, socket.slot);
    }
    pair.attach(socket, true);
}

/// # Safety
/// As [`accept`].
unsafe fn install(
    socket: &Socket,
    remote: address::Address,
    pair: Pair,
    flags: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> Sys<c_int> {
    let ours = pair.fd;
    socket.mark(flag::NONBLOCK, flags & libc::SOCK_NONBLOCK != 0);
    table::set(ours, table::kind_of(socket));
    pair.installed(socket);
    fallback::accelerated(socket, [Count::AcceptedStack, Count::AcceptedDirect]);
    measure::accepted(ours, socket);
    if flags & libc::SOCK_CLOEXEC == 0 && pair.close_on_exec {
        sys::fcntl(ours, libc::F_SETFD, 0)?;
    }
    let six = socket.has(flag::SIX);
    // SAFETY: the caller keeps the contract of `accept4`: `addr` has the room that `len` names.
    let named = if addr.is_null() { Ok(()) } else { unsafe { address::write(six, remote, addr, len) } };
    if let Err(errno) = named {
        // As on Linux, the connection has been accepted by now, and ends.
        if close::close(ours).is_none() {
            sys::close(ours);
        }
        return Err(errno);
    }
    Ok(ours)
}

/// The private flags that a connection inherits from its listener.
const INHERITED: u32 =
    flag::REUSEADDR | flag::REUSEPORT | flag::SIX | flag::V6ONLY | flag::OOBINLINE | flag::QUICKACK_OFF | flag::CORKED;

/// Copies the options that a connection inherits from its listener, as on Linux.
fn inherit(from: &Private, to: &Private) {
    to.flags.store(from.flags.load(Relaxed) & INHERITED, Relaxed);
    to.linger_s.store(from.linger_s.load(Relaxed), Relaxed);
    to.receive_timeout_us.store(from.receive_timeout_us.load(Relaxed), Relaxed);
    to.send_timeout_us.store(from.send_timeout_us.load(Relaxed), Relaxed);
    to.low_water.store(from.low_water.load(Relaxed), Relaxed);
}

/// The application flags that a connection inherits from its listener.
const INHERITED_FLAGS: u32 = app_flags::NODELAY | app_flags::CORK;
