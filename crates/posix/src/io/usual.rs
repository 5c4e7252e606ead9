//! The fast path of the most frequent calls, for a connection of the process's own session. It needs few registers and
//! makes only tail calls. Everything else is left to the [`handler`](crate::handler).
//!
//! Connections that the stack carries, in rings that do not grow, come first. All others have functions of their own.

use crate::fd::table::{self, Named};
use crate::handler::Posix;
use crate::io::{receive, send};
use crate::ready::epoll_wait;
use libc::{c_int, c_void, epoll_event, size_t, ssize_t};
use towpath_client::backend::{Backend, StackBackend};
use towpath_client::carrier::{Carrier, IsStack};
use towpath_client::session::{self, Session};
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

/// The rest of a call, which may be all of it.
type Whole<B> = unsafe extern "C-unwind" fn(c_int, B, size_t) -> ssize_t;
type WholeWithFlags<B> = unsafe extern "C-unwind" fn(c_int, B, size_t, c_int) -> ssize_t;

/// The fast path of a call, if a stack carries the connection in rings that do not grow. `apart` is that of other connections.
///
/// # Safety
/// The buffer has `len` bytes that may be read (of a call that sends) or written (of one that receives).
#[inline(always)]
unsafe fn fast_path<T: Transfer>(
    fd: c_int,
    buf: T::Buffer,
    len: size_t,
    whole: impl Fn() -> ssize_t,
    apart: impl Fn(&'static Session, Named) -> ssize_t,
) -> ssize_t {
    // In this order, the compiler makes two branches of it.
    let Some(named) = table::named(fd) else { return whole() };
    let Some(session) = session::usual() else { return whole() };
    let Some((slot, words, generation)) = named.own(session) else { return whole() };
    let lines = match Carrier::is_stack(session, slot, words, generation) {
        IsStack::Yes(lines) => lines,
        IsStack::No => return apart(session, named),
        IsStack::Neither => return whole(),
    };
    if session.region.grows() != (false, false) {
        return apart(session, named);
    }
    // SAFETY: the caller vouches for the buffer.
    match unsafe { T::at_once(StackBackend::<'_, false>(&lines), buf, len) } {
        Some(count) => count as ssize_t,
        None => whole(),
    }
}

/// The fast path of any connection of the process's own session.
///
/// # Safety
/// As [`fast_path`].
#[inline(always)]
unsafe fn any<T: Transfer>(session: &'static Session, named: Named, buf: T::Buffer, len: size_t) -> Option<ssize_t> {
    let (slot, words, generation) = named.own(session)?;
    // SAFETY: the caller vouches for the buffer.
    let moved = unsafe {
        match Carrier::of_words(session, slot, words, generation) {
            Carrier::Stack(lines) => T::at_once(StackBackend::<'_, true>(&lines), buf, len),
            Carrier::Direct(lines) => {
                let direct = lines.find_mapped()?;
                T::at_once(lines.backend(&direct), buf, len)
            }
            Carrier::Neither => None,
        }
    };
    moved.map(|count| count as ssize_t)
}

/// [`any`], and else the whole call.
///
/// # Safety
/// The contract of the call.
#[inline(never)]
unsafe fn apart<T: Transfer>(
    fd: c_int,
    buf: T::Buffer,
    len: size_t,
    session: &'static Session,
    named: Named,
    whole: Whole<T::Buffer>,
) -> ssize_t {
    // SAFETY: the caller keeps the contract of the call, so the buffer has `len` bytes.
    unsafe { any::<T>(session, named, buf, len).unwrap_or_else(|| whole(fd, buf, len)) }
}

/// [`apart`], of a call with flags.
///
/// # Safety
/// The contract of the call.
#[inline(never)]
unsafe fn apart_with_flags<T: Transfer>(
    fd: c_int,
    buf: T::Buffer,
    len: size_t,
    flags: c_int,
    named: Named,
    whole: WholeWithFlags<T::Buffer>,
) -> ssize_t {
    let moved = session::usual().and_then(|session| {
        // SAFETY: the caller keeps the contract of the call, so the buffer has `len` bytes.
        unsafe { any::<T>(session, named, buf, len) }
    });
    // SAFETY: the caller keeps the contract of the call.
    moved.unwrap_or_else(|| unsafe { whole(fd, buf, len, flags) })
}

/// A call without flags.
///
/// # Safety
/// The contract of the call.
#[inline(always)]
unsafe fn plain<T: Transfer>(fd: c_int, buf: T::Buffer, len: size_t, whole: Whole<T::Buffer>) -> ssize_t {
    // SAFETY: the caller keeps the contract of the call, so the buffer has `len` bytes.
    unsafe {
        let apart = |session, named| apart::<T>(fd, buf, len, session, named, whole);
        fast_path::<T>(fd, buf, len, || whole(fd, buf, len), apart)
    }
}

/// A call with flags.
///
/// # Safety
/// The contract of the call.
#[inline(always)]
unsafe fn with_flags<T: Transfer>(
    fd: c_int,
    buf: T::Buffer,
    len: size_t,
    flags: c_int,
    whole: WholeWithFlags<T::Buffer>,
) -> ssize_t {
    // SAFETY: the caller keeps the contract of the call, so the buffer has `len` bytes.
    unsafe {
        if flags & !T::FLAGS != 0 {
            return whole(fd, buf, len, flags);
        }
        let apart = |_, named| apart_with_flags::<T>(fd, buf, len, flags, named, whole);
        fast_path::<T>(fd, buf, len, || whole(fd, buf, len, flags), apart)
    }
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
    unsafe fn epoll_wait(
        epfd: c_int,
        events: *mut epoll_event,
        count: c_int,
        timeout_ms: c_int,
        whole: epoll_wait::Whole,
    ) -> c_int {
        // SAFETY: the caller keeps the contract of `epoll_wait`.
        unsafe { epoll_wait::fast_path(epfd, events, count, timeout_ms, whole) }
    }
    #[inline(always)]
    unsafe fn read(fd: c_int, buf: *mut c_void, len: size_t, whole: Whole<*mut c_void>) -> ssize_t {
        // SAFETY: the caller keeps the contract of `read`.
        unsafe { plain::<Receive>(fd, buf, len, whole) }
    }
    #[inline(always)]
    unsafe fn recv(
        fd: c_int,
        buf: *mut c_void,
        len: size_t,
        flags: c_int,
        whole: WholeWithFlags<*mut c_void>,
    ) -> ssize_t {
        // SAFETY: the caller keeps the contract of `recv`.
        unsafe { with_flags::<Receive>(fd, buf, len, flags, whole) }
    }
    #[inline(always)]
    unsafe fn write(fd: c_int, buf: *const c_void, len: size_t, whole: Whole<*const c_void>) -> ssize_t {
        // SAFETY: the caller keeps the contract of `write`.
        unsafe { plain::<Send>(fd, buf, len, whole) }
    }
    #[inline(always)]
    unsafe fn send(
        fd: c_int,
        buf: *const c_void,
        len: size_t,
        flags: c_int,
        whole: WholeWithFlags<*const c_void>,
    ) -> ssize_t {
        // SAFETY: the caller keeps the contract of `send`.
        unsafe { with_flags::<Send>(fd, buf, len, flags, whole) }
    }
}
