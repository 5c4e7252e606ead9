//! The fast path of the most frequent calls, for a connection of the process's own session. It needs few registers and
//! makes only tail calls. Everything else is left to the [`handler`](crate::handler).

use crate::fd::table;
use crate::handler::Posix;
use crate::io::{receive, send};
use crate::ready::epoll_wait;
use libc::{c_int, c_void, epoll_event, size_t, ssize_t};
use towpath_client::backend::{Backend, Carrier, StackBackend};
use towpath_client::session;
use towpath_client::socket::Socket;
use towpath_hook::{Answer, Handler, Usual, finish, real};
use towpath_ring::Slot;

/// A call that moves the bytes of one buffer.
trait Transfer {
    type Buffer: Copy;
    /// The flags that the fast path knows.
    const FLAGS: c_int;
    /// Moves them at once; `None`: nothing has been done.
    ///
    /// # Safety
    /// The buffer has `len` bytes that may be read (of a call that sends) or written (of one that receives).
    unsafe fn at_once(backend: impl Backend, buf: Self::Buffer, len: usize) -> Option<usize>;
    /// The handler's answer.
    ///
    /// # Safety
    /// The contract of the call.
    unsafe fn handler(fd: c_int, buf: Self::Buffer, len: size_t, flags: c_int) -> Answer<ssize_t>;
    /// The kernel's answer.
    ///
    /// # Safety
    /// The contract of the call.
    unsafe fn real(fd: c_int, buf: Self::Buffer, len: size_t, flags: c_int) -> ssize_t;
}

/// The socket behind a descriptor, if it is of the process's own session and calls on it are not counted.
#[inline(always)]
fn own(fd: c_int) -> Option<Socket> {
    let session = session::get()?;
    let (slot, generation) = table::look_for_own(fd, session.number)?;
    Some(Socket { session, slot: session.region.slot(slot)?, generation })
}

/// The fast path of a call; `None`: nothing has been done.
///
/// # Safety
/// The contract of the call.
#[inline(always)]
unsafe fn fast_path<T: Transfer>(fd: c_int, buf: T::Buffer, len: size_t, flags: c_int) -> Option<ssize_t> {
    if flags & !T::FLAGS != 0 {
        return None;
    }
    let Socket { session, slot, generation } = own(fd)?;
    match Carrier::of(session, slot, generation) {
        // SAFETY: the caller keeps the contract of the call, so the buffer has `len` bytes.
        Carrier::Stack(lines) => unsafe { T::at_once(StackBackend(&lines), buf, len) }.map(|count| count as ssize_t),
        // SAFETY: the caller keeps the contract of the call.
        Carrier::Direct => Some(unsafe { directly::<T>(fd, buf, len, slot, generation, flags) }),
        Carrier::Neither => None,
    }
}

/// The whole call on a direct connection. Being a tail call, it costs the stack's fast path no register.
///
/// # Safety
/// The contract of the call.
#[inline(never)]
unsafe fn directly<T: Transfer>(
    fd: c_int,
    buf: T::Buffer,
    len: size_t,
    slot: Slot,
    generation: u32,
    flags: c_int,
) -> ssize_t {
    let done = session::get().and_then(|session| {
        let view = Socket { session, slot, generation }.view();
        // SAFETY: the caller keeps the contract of the call, so the buffer has `len` bytes.
        view.direct_backend().and_then(|direct| unsafe { T::at_once(direct, buf, len) })
    });
    match done {
        Some(count) => count as ssize_t,
        // SAFETY: the caller keeps the contract of the call, and nothing has been done yet.
        None => unsafe { T::handler(fd, buf, len, flags).map_or_else(|| T::real(fd, buf, len, flags), finish) },
    }
}

/// `write` (`PLAIN`) or `send`.
struct Send<const PLAIN: bool>;

impl<const PLAIN: bool> Transfer for Send<PLAIN> {
    type Buffer = *const c_void;
    const FLAGS: c_int = send::FAST_FLAGS;
    #[inline(always)]
    unsafe fn at_once(backend: impl Backend, buf: *const c_void, len: usize) -> Option<usize> {
        // SAFETY: the caller vouches that `buf` has `len` readable bytes.
        unsafe { send::at_once(backend, buf, len) }
    }
    #[inline(always)]
    unsafe fn handler(fd: c_int, buf: *const c_void, len: size_t, flags: c_int) -> Answer<ssize_t> {
        // SAFETY: the caller keeps the contract of `write` or `send`.
        unsafe {
            if PLAIN { <Posix as Handler>::write(fd, buf, len) } else { <Posix as Handler>::send(fd, buf, len, flags) }
        }
    }
    #[inline(always)]
    unsafe fn real(fd: c_int, buf: *const c_void, len: size_t, flags: c_int) -> ssize_t {
        // SAFETY: the caller keeps the contract of `write` or `send`.
        unsafe { if PLAIN { real::write(fd, buf, len) } else { real::send(fd, buf, len, flags) } }
    }
}

/// `read` (`PLAIN`) or `recv`.
struct Receive<const PLAIN: bool>;

impl<const PLAIN: bool> Transfer for Receive<PLAIN> {
    type Buffer = *mut c_void;
    const FLAGS: c_int = receive::FAST_FLAGS;
    #[inline(always)]
    unsafe fn at_once(backend: impl Backend, buf: *mut c_void, len: usize) -> Option<usize> {
        // SAFETY: the caller vouches that `buf` has `len` writable bytes.
        unsafe { receive::at_once(backend, buf, len) }
    }
    #[inline(always)]
    unsafe fn handler(fd: c_int, buf: *mut c_void, len: size_t, flags: c_int) -> Answer<ssize_t> {
        // SAFETY: the caller keeps the contract of `read` or `recv`.
        unsafe {
            if PLAIN { <Posix as Handler>::read(fd, buf, len) } else { <Posix as Handler>::recv(fd, buf, len, flags) }
        }
    }
    #[inline(always)]
    unsafe fn real(fd: c_int, buf: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
        // SAFETY: the caller keeps the contract of `read` or `recv`.
        unsafe { if PLAIN { real::read(fd, buf, len) } else { real::recv(fd, buf, len, flags) } }
    }
}

impl Usual for Posix {
    #[inline(always)]
    unsafe fn epoll_wait(epfd: c_int, events: *mut epoll_event, count: c_int, _: c_int) -> Option<c_int> {
        // SAFETY: the caller keeps the contract of `epoll_wait`.
        unsafe { epoll_wait::fast_path(epfd, events, count) }
    }
    #[inline(always)]
    unsafe fn read(fd: c_int, buf: *mut c_void, len: size_t) -> Option<ssize_t> {
        // SAFETY: the caller keeps the contract of `read`.
        unsafe { fast_path::<Receive<true>>(fd, buf, len, 0) }
    }
    #[inline(always)]
    unsafe fn recv(fd: c_int, buf: *mut c_void, len: size_t, flags: c_int) -> Option<ssize_t> {
        // SAFETY: the caller keeps the contract of `recv`.
        unsafe { fast_path::<Receive<false>>(fd, buf, len, flags) }
    }
    #[inline(always)]
    unsafe fn write(fd: c_int, buf: *const c_void, len: size_t) -> Option<ssize_t> {
        // SAFETY: the caller keeps the contract of `write`.
        unsafe { fast_path::<Send<true>>(fd, buf, len, 0) }
    }
    #[inline(always)]
    unsafe fn send(fd: c_int, buf: *const c_void, len: size_t, flags: c_int) -> Option<ssize_t> {
        // SAFETY: the caller keeps the contract of `send`.
        unsafe { fast_path::<Send<false>>(fd, buf, len, flags) }
    }
}
