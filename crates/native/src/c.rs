//! The functions of `include/towpath.h`, which describes them. Each returns a negative errno on failure.

use crate::error::errno;
use crate::rings::Rings;
use crate::{Connection, Event, Listener, Readiness, Source, Stack};
use core::ffi::{CStr, c_char, c_int, c_void};
use core::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use core::time::Duration;
use rustix::fd::{AsFd, AsRawFd};
use std::io;
use std::os::unix::ffi::OsStrExt;
use towpath_ring::bytes::Pieces;
use towpath_ring::shared_bytes::copy;

/// `struct towpath_span`.
#[repr(C)]
pub struct Piece {
    base: *mut c_void,
    len: usize,
}

/// `struct towpath_connection`.
pub struct Opened {
    connection: Connection,
    /// Bytes of the room that was reserved last.
    reserved: usize,
}

/// `TOWPATH_SHARED`.
const SHARED: c_int = 1;

fn number(error: &io::Error) -> c_int {
    -error.raw_os_error().unwrap_or(match error.kind() {
        io::ErrorKind::WouldBlock => libc::EAGAIN,
        io::ErrorKind::Interrupted => libc::EINTR,
        io::ErrorKind::NotFound => libc::ENOENT,
        io::ErrorKind::InvalidData => libc::EPROTO,
        _ => libc::EIO,
    })
}

/// # Safety
/// `out` is valid for a pointer.
unsafe fn give<T>(made: io::Result<T>, out: *mut *mut T) -> c_int {
    match made {
        Ok(made) => {
            // SAFETY: the caller keeps the contract above.
            unsafe { *out = Box::into_raw(Box::new(made)) };
            0
        }
        Err(error) => number(&error),
    }
}

/// # Safety
/// `address` has `len` readable bytes.
unsafe fn read(address: *const libc::sockaddr, len: libc::socklen_t) -> io::Result<SocketAddr> {
    let len = len as usize;
    if address.is_null() || len < size_of::<libc::sa_family_t>() {
        return Err(errno(libc::EINVAL));
    }
    // SAFETY: the family is there; the rest is read only if it is.
    unsafe {
        match c_int::from((&raw const (*address).sa_family).read_unaligned()) {
            libc::AF_INET if len >= size_of::<libc::sockaddr_in>() => {
                let four = address.cast::<libc::sockaddr_in>().read_unaligned();
                let ip = Ipv4Addr::from_bits(u32::from_be(four.sin_addr.s_addr));
                Ok((ip, u16::from_be(four.sin_port)).into())
            }
            libc::AF_INET6 if len >= size_of::<libc::sockaddr_in6>() => {
                let six = address.cast::<libc::sockaddr_in6>().read_unaligned();
                Ok((Ipv6Addr::from_octets(six.sin6_addr.s6_addr), u16::from_be(six.sin6_port)).into())
            }
            libc::AF_INET | libc::AF_INET6 => Err(errno(libc::EINVAL)),
            _ => Err(errno(libc::EAFNOSUPPORT)),
        }
    }
}

/// # Safety
/// `out` is valid for a `sockaddr_storage`.
unsafe fn write(address: SocketAddr, out: *mut libc::sockaddr_storage) {
    // SAFETY: all zero is a valid address, and both kinds fit into the storage.
    unsafe {
        out.write(core::mem::zeroed());
        match address {
            SocketAddr::V4(four) => {
                let at = out.cast::<libc::sockaddr_in>();
                (*at).sin_family = libc::AF_INET as libc::sa_family_t;
                (*at).sin_port = four.port().to_be();
                (*at).sin_addr.s_addr = four.ip().to_bits().to_be();
            }
            SocketAddr::V6(six) => {
                let at = out.cast::<libc::sockaddr_in6>();
                (*at).sin6_family = libc::AF_INET6 as libc::sa_family_t;
                (*at).sin6_port = six.port().to_be();
                (*at).sin6_addr.s6_addr = six.ip().octets();
            }
        }
    }
}

/// # Safety
/// `path` is null or a C string; `out` is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towpath_open(path: *const c_char, out: *mut *mut Stack) -> c_int {
    let stack = if path.is_null() {
        Stack::open()
    } else {
        // SAFETY: the caller keeps the contract above.
        Stack::open_at(std::ffi::OsStr::from_bytes(unsafe { CStr::from_ptr(path) }.to_bytes()))
    };
    // SAFETY: the caller keeps the contract above.
    unsafe { give(stack, out) }
}

/// # Safety
/// `stack` is null or from `towpath_open`, and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towpath_close(stack: *mut Stack) {
    if !stack.is_null() {
        // SAFETY: the caller keeps the contract above.
        drop(unsafe { Box::from_raw(stack) });
    }
}

/// # Safety
/// `stack` is from `towpath_open`, `address` has `len` bytes, and `out` is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towpath_listen(
    stack: *const Stack,
    address: *const libc::sockaddr,
    len: libc::socklen_t,
    backlog: c_int,
    flags: c_int,
    out: *mut *mut Listener,
) -> c_int {
    // SAFETY: the caller keeps the contract above.
    unsafe {
        let listener = read(address, len).and_then(|local| {
            let backlog = u32::try_from(backlog).unwrap_or(u32::MAX);
            match flags {
                0 => Listener::bind(&*stack, local, backlog),
                SHARED => Listener::bind_shared(&*stack, local, backlog),
                _ => Err(errno(libc::EINVAL)),
            }
        });
        give(listener, out)
    }
}

/// # Safety
/// `listener` is from `towpath_listen`, and `out` is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towpath_accept(listener: *mut Listener, out: *mut *mut Opened) -> c_int {
    // SAFETY: the caller keeps the contract above.
    unsafe {
        let accepted = (*listener).accept();
        give(accepted.map(|(connection, _)| Opened { connection, reserved: 0 }), out)
    }
}

/// # Safety
/// `listener` is null or from `towpath_listen`, and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towpath_listener_close(listener: *mut Listener) {
    if !listener.is_null() {
        // SAFETY: the caller keeps the contract above.
        drop(unsafe { Box::from_raw(listener) });
    }
}

/// # Safety
/// `listener` is from `towpath_listen`, and `out` is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towpath_listener_local(listener: *const Listener, out: *mut libc::sockaddr_storage) {
    // SAFETY: the caller keeps the contract above.
    unsafe { write((*listener).local_addr(), out) }
}

/// # Safety
/// `stack` is from `towpath_open`, `address` has `len` bytes, and `out` is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towpath_connect(
    stack: *const Stack,
    address: *const libc::sockaddr,
    len: libc::socklen_t,
    out: *mut *mut Opened,
) -> c_int {
    // SAFETY: the caller keeps the contract above.
    unsafe {
        let connection = read(address, len).and_then(|remote| Connection::connect(&*stack, remote));
        give(connection.map(|connection| Opened { connection, reserved: 0 }), out)
    }
}

/// # Safety
/// `opened` is a connection of this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towpath_established(opened: *mut Opened) -> c_int {
    // SAFETY: the caller keeps the contract above.
    match unsafe { &mut *opened }.connection.is_established() {
        Ok(established) => established.into(),
        Err(error) => number(&error),
    }
}

fn pieces(spans: Pieces) -> [Piece; 3] {
    spans.map(|(base, len)| Piece { base: base.cast(), len })
}

/// # Safety
/// `opened` is a connection of this library, and `out` is valid for three spans.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towpath_received(opened: *mut Opened, out: *mut [Piece; 3]) -> isize {
    // SAFETY: the caller keeps the contract above.
    let opened = unsafe { &mut *opened };
    match opened.connection.received() {
        Ok(received) => {
            let spans = received.spans().map(|span| (span.as_ptr().cast_mut(), span.len()));
            // SAFETY: the caller keeps the contract above.
            unsafe { out.write(pieces(spans)) };
            received.len() as isize
        }
        Err(error) => number(&error) as isize,
    }
}

/// # Safety
/// `opened` is a connection of this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towpath_consume(opened: *mut Opened, count: usize) {
    // SAFETY: the caller keeps the contract above.
    unsafe { &mut *opened }.connection.consume(count);
}

/// # Safety
/// `opened` is a connection of this library, and `out` is valid for three spans.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towpath_reserve(opened: *mut Opened, most: usize, out: *mut [Piece; 3]) -> isize {
    // SAFETY: the caller keeps the contract above.
    let opened = unsafe { &mut *opened };
    opened.reserved = 0;
    match opened.connection.rings().room(most) {
        Ok(spans) => {
            opened.reserved = spans.iter().map(|(_, len)| len).sum();
            // SAFETY: the caller keeps the contract above.
            unsafe { out.write(pieces(spans)) };
            opened.reserved as isize
        }
        Err(error) => number(&error) as isize,
    }
}

/// # Safety
/// `opened` is a connection of this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towpath_commit(opened: *mut Opened, count: usize) -> c_int {
    // SAFETY: the caller keeps the contract above.
    let opened = unsafe { &mut *opened };
    let reserved = core::mem::take(&mut opened.reserved);
    if count > reserved {
        return -libc::EINVAL;
    }
    let rings: &Rings = opened.connection.rings();
    rings.commit(count);
    0
}

/// # Safety
/// `opened` is a connection of this library, and `to` has `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towpath_receive(opened: *mut Opened, to: *mut c_void, len: usize) -> isize {
    // SAFETY: the caller keeps the contract above.
    let opened = unsafe { &mut *opened };
    let count = match opened.connection.received() {
        Ok(received) => {
            let mut done = 0;
            for span in received.spans() {
                let count = span.len().min(len - done);
                // SAFETY: `to` has `len` bytes of the program's own.
                unsafe { copy(span.as_ptr(), to.cast::<u8>().add(done), count) };
                done += count;
            }
            done
        }
        Err(error) => return number(&error) as isize,
    };
    opened.connection.consume(count);
    count as isize
}

/// # Safety
/// `opened` is a connection of this library, and `from` has `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towpath_send(opened: *mut Opened, from: *const c_void, len: usize) -> isize {
    if len == 0 {
        return 0;
    }
    // SAFETY: the caller keeps the contract above.
    let (opened, bytes) = unsafe { (&mut *opened, core::slice::from_raw_parts(from.cast::<u8>(), len)) };
    match opened.connection.send(bytes) {
        Ok(count) => count as isize,
        Err(error) => number(&error) as isize,
    }
}

/// # Safety
/// `opened` is a connection of this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towpath_shutdown(opened: *mut Opened) -> c_int {
    // SAFETY: the caller keeps the contract above.
    unsafe { &mut *opened }.connection.shutdown().map_or_else(|error| number(&error), |()| 0)
}

/// # Safety
/// Both are connections of this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towpath_splice(one: *const Opened, other: *const Opened) -> c_int {
    // SAFETY: the caller keeps the contract above.
    done(unsafe { (*one).connection.splice(&(*other).connection) })
}

/// # Safety
/// `opened` is a connection of this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towpath_nodelay(opened: *mut Opened, on: c_int) {
    // SAFETY: the caller keeps the contract above.
    unsafe { &mut *opened }.connection.set_nodelay(on != 0);
}

/// # Safety
/// `opened` is a connection of this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towpath_error(opened: *mut Opened) -> c_int {
    // SAFETY: the caller keeps the contract above.
    unsafe { &mut *opened }.connection.take_error().map_or(0, |error| number(&error))
}

/// # Safety
/// `opened` is a connection of this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towpath_is_direct(opened: *const Opened) -> c_int {
    // SAFETY: the caller keeps the contract above.
    unsafe { &*opened }.connection.is_direct().into()
}

/// # Safety
/// `opened` is a connection of this library, and both addresses are null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towpath_addresses(
    opened: *const Opened,
    local: *mut libc::sockaddr_storage,
    peer: *mut libc::sockaddr_storage,
) {
    // SAFETY: the caller keeps the contract above.
    unsafe {
        let connection = &(*opened).connection;
        if !local.is_null() {
            write(connection.local_addr(), local);
        }
        if !peer.is_null() {
            write(connection.peer_addr(), peer);
        }
    }
}

/// # Safety
/// `opened` is null or a connection of this library, and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towpath_connection_close(opened: *mut Opened) {
    if !opened.is_null() {
        // SAFETY: the caller keeps the contract above.
        drop(unsafe { Box::from_raw(opened) });
    }
}

/// # Safety
/// As [`towpath_connection_close`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towpath_connection_reset(opened: *mut Opened) {
    if !opened.is_null() {
        // SAFETY: the caller keeps the contract above.
        unsafe { Box::from_raw(opened) }.connection.reset();
    }
}

fn done(result: io::Result<()>) -> c_int {
    result.map_or_else(|error| number(&error), |()| 0)
}

/// # Safety
/// All are from this library.
unsafe fn watch(stack: *mut Stack, source: &impl Source, token: u64, on: bool) -> c_int {
    // SAFETY: the caller keeps the contract above.
    let stack = unsafe { &mut *stack };
    done(if on { stack.watch(source, token) } else { stack.unwatch(source) })
}

/// # Safety
/// All are from this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towpath_watch(stack: *mut Stack, opened: *const Opened, token: u64) -> c_int {
    // SAFETY: the caller keeps the contract above.
    unsafe { watch(stack, &(*opened).connection, token, true) }
}

/// # Safety
/// All are from this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towpath_unwatch(stack: *mut Stack, opened: *const Opened) -> c_int {
    // SAFETY: the caller keeps the contract above.
    unsafe { watch(stack, &(*opened).connection, 0, false) }
}

/// # Safety
/// All are from this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towpath_watch_listener(stack: *mut Stack, listener: *const Listener, token: u64) -> c_int {
    // SAFETY: the caller keeps the contract above.
    unsafe { watch(stack, &*listener, token, true) }
}

/// # Safety
/// All are from this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towpath_unwatch_listener(stack: *mut Stack, listener: *const Listener) -> c_int {
    // SAFETY: the caller keeps the contract above.
    unsafe { watch(stack, &*listener, 0, false) }
}

/// # Safety
/// `stack` is from `towpath_open`, and `events` has room for `count`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towpath_wait(
    stack: *mut Stack,
    events: *mut Event,
    count: c_int,
    timeout_us: libc::c_longlong,
) -> c_int {
    if count <= 0 || events.is_null() {
        return -libc::EINVAL;
    }
    // SAFETY: the caller keeps the contract above; any bits are a valid event.
    let (stack, events) = unsafe { (&mut *stack, core::slice::from_raw_parts_mut(events, count as usize)) };
    let timeout = u64::try_from(timeout_us).ok().map(Duration::from_micros);
    stack.wait(events, timeout).map_or_else(|error| number(&error), |found| found as c_int)
}

/// # Safety
/// `stack` is from `towpath_open`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towpath_arm(stack: *mut Stack) -> c_int {
    // SAFETY: the caller keeps the contract above.
    unsafe { &mut *stack }.arm().map_or_else(|error| number(&error), c_int::from)
}

/// # Safety
/// `stack` is from `towpath_open`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towpath_fd(stack: *const Stack) -> c_int {
    // SAFETY: the caller keeps the contract above.
    unsafe { &*stack }.as_fd().as_raw_fd()
}

const _: () = assert!(size_of::<Event>() == 16 && size_of::<Readiness>() == 4);
