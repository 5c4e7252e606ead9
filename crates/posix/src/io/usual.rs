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
use towpath_hook::Usual;

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
}

/// The socket behind a descriptor, if it is of the process's own session and calls on it are not counted.
#[inline(always)]
fn own(fd: c_int) -> Option<Socket> {
    // In this order, the compiler makes two branches of it.
    let named = table::named(fd)?;
    let session = session::usual()?;
    let (slot, generation) = named.own(session)?;
    Some(Socket { session, slot, generation })
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
    // SAFETY: the caller keeps the contract of the call, so the buffer has `len` bytes.
    let moved = unsafe {
        match Carrier::of_usual(session, slot, generation) {
            Carrier::Stack(lines) => T::at_once(StackBackend(&lines), buf, len),
            Carrier::Direct(lines) => {
                let direct = lines.find()?;
                T::at_once(lines.backend(&direct), buf, len)
            }
            Carrier::Neither => None,
        }
    };
    moved.map(|count| count as ssize_t)
}

/// `write` or `send`.
struct Send;

impl Transfer for Send {
    type Buffer = *const c_void;
    const FLAGS: c_int = send::FAST_FLAGS;
    #[inline(always)]
    unsafe fn at_once(backend: impl Backend, buf: *const c_void, len: usize) -> Option<usize> {
        // SAFETY: the caller vouches that `buf` has `len` readable bytes.
        unsafe { send::at_once(backend, buf, len) }
    }
}

/// `read` or `recv`.
struct Receive;

impl Transfer for Receive {
    type Buffer = *mut c_void;
    const FLAGS: c_int = receive::FAST_FLAGS;
    #[inline(always)]
    unsafe fn at_once(backend: impl Backend, buf: *mut c_void, len: usize) -> Option<usize> {
        // SAFETY: the caller vouches that `buf` has `len` writable bytes.
        unsafe { receive::at_once(backend, buf, len) }
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
        unsafe { fast_path::<Receive>(fd, buf, len, 0) }
    }
    #[inline(always)]
    unsafe fn recv(fd: c_int, buf: *mut c_void, len: size_t, flags: c_int) -> Option<ssize_t> {
        // SAFETY: the caller keeps the contract of `recv`.
        unsafe { fast_path::<Receive>(fd, buf, len, flags) }
    }
    #[inline(always)]
    unsafe fn write(fd: c_int, buf: *const c_void, len: size_t) -> Option<ssize_t> {
        // SAFETY: the caller keeps the contract of `write`.
        unsafe { fast_path::<Send>(fd, buf, len, 0) }
    }
    #[inline(always)]
    unsafe fn send(fd: c_int, buf: *const c_void, len: size_t, flags: c_int) -> Option<ssize_t> {
        // SAFETY: the caller keeps the contract of `send`.
        unsafe { fast_path::<Send>(fd, buf, len, flags) }
    }
}
