//! The fast path of the most frequent calls, for a connection of the process's own session. It needs few registers and
//! makes only tail calls. Everything else is left to the [`handler`](crate::handler).
//!
//! Each carrier has a function of its own: the stack in rings that do not grow, in rings that may, and the two ends themselves. A
//! process with direct connections tries those first.

use crate::fd::table::{self, Named};
use crate::handler::Posix;
use crate::io::{receive, send};
use crate::ready::epoll_wait;
use libc::{c_int, c_void, epoll_event, size_t, ssize_t};
use towpath_client::backend::{Backend, StackBackend};
use towpath_client::carrier::{Carrier, IsStack};
use towpath_client::direct;
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

/// The fast path of a connection of the process's own session that a stack carries. `grown` is that of rings that may grow.
///
/// # Safety
/// The buffer has `len` bytes that may be read (of a call that sends) or written (of one that receives).
#[inline(always)]
unsafe fn over_stack<T: Transfer>(
    session: &'static Session,
    named: Named,
    (buf, len): (T::Buffer, size_t),
    whole: impl Fn() -> ssize_t,
    grown: impl Fn() -> ssize_t,
) -> ssize_t {
    let Some((slot, words, generation)) = named.own(session) else { return whole() };
    let IsStack::Yes(lines) = Carrier::is_stack(session, slot, words, generation) else { return whole() };
    if session.region.grows() != (false, false) {
        return grown();
    }
    // SAFETY: the caller vouches for the buffer.
    match unsafe { T::at_once(StackBackend::<'_, false>(&lines), buf, len) } {
        Some(count) => count as ssize_t,
        None => whole(),
    }
}

/// [`over_stack`], in rings that may grow. `None`: nothing has been done.
///
/// # Safety
/// As [`over_stack`].
#[inline(always)]
unsafe fn over_grown<T: Transfer>(
    session: &'static Session,
    named: Named,
    buf: T::Buffer,
    len: size_t,
) -> Option<ssize_t> {
    let (slot, words, generation) = named.own(session)?;
    let IsStack::Yes(lines) = Carrier::is_stack(session, slot, words, generation) else { return None };
    // SAFETY: the caller vouches for the buffer.
    let moved = unsafe { T::at_once(StackBackend::<'_, true>(&lines), buf, len) };
    moved.map(|count| count as ssize_t)
}

/// The fast path of a direct connection of the process's own session. `None`: it is none, or nothing has been done.
///
/// # Safety
/// As [`over_stack`].
#[inline(always)]
unsafe fn directly<T: Transfer>(
    session: &'static Session,
    named: Named,
    buf: T::Buffer,
    len: size_t,
) -> Option<ssize_t> {
    let (slot, words, generation) = named.own(session)?;
    let lines = Carrier::is_direct(session, slot, words, generation)?;
    let direct = lines.find_mapped()?;
    // SAFETY: the caller vouches for the buffer.
    let moved = unsafe { T::at_once(lines.backend(&direct), buf, len) };
    moved.map(|count| count as ssize_t)
}

/// The three carriers of a call without flags. Each is a function of its own, so that none pays for another's registers.
mod plain {
    use super::*;

    /// # Safety
    /// The contract of the call.
    #[inline(never)]
    pub unsafe fn stack<T: Transfer>(
        fd: c_int,
        buf: T::Buffer,
        len: size_t,
        session: &'static Session,
        named: Named,
        whole: Whole<T::Buffer>,
    ) -> ssize_t {
        // SAFETY: the caller keeps the contract of the call, so the buffer has `len` bytes.
        unsafe {
            let grown = || grown::<T>(fd, buf, len, session, named, whole);
            over_stack::<T>(session, named, (buf, len), || whole(fd, buf, len), grown)
        }
    }

    /// # Safety
    /// The contract of the call.
    #[inline(never)]
    unsafe fn grown<T: Transfer>(
        fd: c_int,
        buf: T::Buffer,
        len: size_t,
        session: &'static Session,
        named: Named,
        whole: Whole<T::Buffer>,
    ) -> ssize_t {
        // SAFETY: the caller keeps the contract of the call, so the buffer has `len` bytes.
        unsafe { over_grown::<T>(session, named, buf, len).unwrap_or_else(|| whole(fd, buf, len)) }
    }

    /// In a process with direct connections.
    ///
    /// # Safety
    /// The contract of the call.
    #[inline(never)]
    pub unsafe fn direct<T: Transfer>(
        fd: c_int,
        buf: T::Buffer,
        len: size_t,
        session: &'static Session,
        named: Named,
        whole: Whole<T::Buffer>,
    ) -> ssize_t {
        // SAFETY: the caller keeps the contract of the call, so the buffer has `len` bytes.
        unsafe {
            match directly::<T>(session, named, buf, len) {
                Some(moved) => moved,
                None => stack::<T>(fd, buf, len, session, named, whole),
            }
        }
    }
}

/// The same of a call with flags. It has no register left for the session, and looks it up again.
mod with_flags {
    use super::*;

    /// # Safety
    /// The contract of the call.
    #[inline(never)]
    pub unsafe fn stack<T: Transfer>(
        fd: c_int,
        buf: T::Buffer,
        len: size_t,
        flags: c_int,
        named: Named,
        whole: WholeWithFlags<T::Buffer>,
    ) -> ssize_t {
        // SAFETY: the caller keeps the contract of the call, so the buffer has `len` bytes.
        unsafe {
            let whole_call = || whole(fd, buf, len, flags);
            let Some(session) = session::usual() else { return whole_call() };
            let grown = || grown::<T>(fd, buf, len, flags, named, whole);
            over_stack::<T>(session, named, (buf, len), whole_call, grown)
        }
    }

    /// # Safety
    /// The contract of the call.
    #[inline(never)]
    unsafe fn grown<T: Transfer>(
        fd: c_int,
        buf: T::Buffer,
        len: size_t,
        flags: c_int,
        named: Named,
        whole: WholeWithFlags<T::Buffer>,
    ) -> ssize_t {
        // SAFETY: the caller keeps the contract of the call, so the buffer has `len` bytes.
        unsafe {
            let moved = session::usual().and_then(|session| over_grown::<T>(session, named, buf, len));
            moved.unwrap_or_else(|| whole(fd, buf, len, flags))
        }
    }

    /// In a process with direct connections.
    ///
    /// # Safety
    /// The contract of the call.
    #[inline(never)]
    pub unsafe fn direct<T: Transfer>(
        fd: c_int,
        buf: T::Buffer,
        len: size_t,
        flags: c_int,
        named: Named,
        whole: WholeWithFlags<T::Buffer>,
    ) -> ssize_t {
        // SAFETY: the caller keeps the contract of the call, so the buffer has `len` bytes.
        unsafe {
            match session::usual().and_then(|session| directly::<T>(session, named, buf, len)) {
                Some(moved) => moved,
                None => stack::<T>(fd, buf, len, flags, named, whole),
            }
        }
    }
}

/// A call without flags.
///
/// # Safety
/// The contract of the call.
#[inline(always)]
unsafe fn plain<T: Transfer>(fd: c_int, buf: T::Buffer, len: size_t, whole: Whole<T::Buffer>) -> ssize_t {
    // SAFETY: the caller keeps the contract of the call.
    unsafe {
        let Some(named) = table::named(fd) else { return whole(fd, buf, len) };
        let Some(session) = session::usual() else { return whole(fd, buf, len) };
        if direct::is_used(session) {
            plain::direct::<T>(fd, buf, len, session, named, whole)
        } else {
            plain::stack::<T>(fd, buf, len, session, named, whole)
        }
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
    // SAFETY: the caller keeps the contract of the call.
    unsafe {
        if flags & !T::FLAGS != 0 {
            return whole(fd, buf, len, flags);
        }
        let Some(named) = table::named(fd) else { return whole(fd, buf, len, flags) };
        let Some(session) = session::usual() else { return whole(fd, buf, len, flags) };
        if direct::is_used(session) {
            with_flags::direct::<T>(fd, buf, len, flags, named, whole)
        } else {
            with_flags::stack::<T>(fd, buf, len, flags, named, whole)
        }
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
