//! Calls as a program makes them under the library, and a pair of connected sockets to make them on.

use super::fast;
use crate::fake;
use crate::fd::table;
use crate::handler::Posix;
use core::ffi::{c_int, c_void};
use libc::{epoll_event, pollfd, sockaddr_in, socklen_t};
use std::sync::Once;
use std::time::{Duration, Instant};
use towpath_hook::{Answer, Failure, Handler, outcome, real};
use towpath_ring::Geometry;
use towpath_ring::control::features::LISTENS_IN_KERNEL;

pub type Os<T> = Result<T, i32>;

pub fn ask<T: Failure>(answer: Answer<T>, otherwise: impl FnOnce() -> T) -> Os<T> {
    answer.unwrap_or_else(|| outcome(otherwise()))
}

/// Tries the fast path before the handler, as the exported functions do.
fn usual_or<T: Failure>(usual: Option<T>, answer: impl FnOnce() -> Answer<T>) -> Answer<T> {
    usual.map_or_else(answer, |value| Some(outcome(value)))
}

/// Small rings, which tests can fill, and one flow group.
pub const GEOMETRY: Geometry =
    Geometry { slots: 256, app_slots: 128, tx_bytes: 16_384, rx_bytes: 16_384, contexts: 64, ..Geometry::DEFAULT };

static START: Once = Once::new();

/// The process has a stack of its own, which `TOWPATH_SOCKET` names.
pub fn start_with_own() {
    START.call_once(|| {
        Posix::wire();
        assert!(crate::lifecycle::registration::start().is_some(), "the library registers with the stack");
    });
}

/// Starts the stack once for all tests of this process.
pub fn start() {
    START.call_once(|| {
        let path = std::env::temp_dir().join(format!("towpath-sockets-test-{}", std::process::id()));
        // SAFETY: no other thread of the test process reads the environment yet.
        unsafe { std::env::set_var("TOWPATH_SOCKET", &path) };
        // SAFETY: as above. Only what splices like a proxy is touched by it.
        unsafe { std::env::set_var(towpath_ring::ports::VARIABLE, "1-65535") };
        let at = path.clone();
        std::thread::spawn(move || fake::serve(&at, GEOMETRY, LISTENS_IN_KERNEL, || false).expect("the stack"));
        eventually(|| path.exists());
        Posix::wire();
        let session = crate::lifecycle::registration::start();
        let _ = std::fs::remove_file(&path);
        assert!(session.is_some(), "the library registers with the stack");
    });
}

/// Waits up to 60 s for `condition`.
#[track_caller]
pub fn eventually(mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(60), "the condition did not become true");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// The first value that `look` gives within 60 s.
#[track_caller]
pub fn wait_for<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let mut found = None;
    eventually(|| {
        found = look();
        found.is_some()
    });
    found.expect("just found")
}

pub fn address(port: u16) -> sockaddr_in {
    sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: port.to_be(),
        sin_addr: libc::in_addr { s_addr: 0x7f00_0001u32.to_be() },
        sin_zero: [0; 8],
    }
}

pub fn socket(flags: c_int) -> c_int {
    let kind = libc::SOCK_STREAM | flags;
    // SAFETY: integers only.
    unsafe { ask(<Posix as Handler>::socket(libc::AF_INET, kind, 0), || real::socket(libc::AF_INET, kind, 0)) }
        .expect("socket")
}

pub fn connect(fd: c_int, port: u16) -> Os<c_int> {
    let (addr, len) = (address(port), size_of::<sockaddr_in>() as socklen_t);
    let addr = (&raw const addr).cast();
    // SAFETY: `addr` is a local of `len` bytes.
    unsafe { ask(<Posix as Handler>::connect(fd, addr, len), || real::connect(fd, addr, len)) }
}

pub fn listen(fd: c_int) -> Os<c_int> {
    listen_for(fd, 16)
}

/// The stack for tests gives some backlogs a meaning.
pub fn listen_for(fd: c_int, backlog: u32) -> Os<c_int> {
    let backlog = backlog as c_int;
    // SAFETY: integers only.
    unsafe { ask(<Posix as Handler>::listen(fd, backlog), || real::listen(fd, backlog)) }
}

/// A socket that is bound to a port that the kernel chooses.
pub fn unconnected() -> c_int {
    bound(0)
}

/// A socket with a port of its own.
pub fn bound(flags: c_int) -> c_int {
    start();
    let fd = socket(flags);
    let (addr, len) = (address(0), size_of::<sockaddr_in>() as socklen_t);
    let addr = (&raw const addr).cast();
    // SAFETY: `addr` is a local of `len` bytes.
    unsafe { ask(<Posix as Handler>::bind(fd, addr, len), || real::bind(fd, addr, len)) }.expect("bind");
    fd
}

/// A listener on a port that the kernel chooses.
pub fn listener(flags: c_int) -> (c_int, u16) {
    let fd = bound(flags);
    listen(fd).expect("listen");
    assert!(table::socket(fd).is_some(), "the stack took the listener");
    (fd, port_of(fd))
}

pub fn port_of(fd: c_int) -> u16 {
    let mut addr = address(0);
    let mut len = size_of::<sockaddr_in>() as socklen_t;
    let at = (&raw mut addr).cast();
    // SAFETY: `at` is a local of `len` bytes.
    unsafe { ask(<Posix as Handler>::getsockname(fd, at, &raw mut len), || real::getsockname(fd, at, &raw mut len)) }
        .expect("getsockname");
    u16::from_be(addr.sin_port)
}

pub fn accept(fd: c_int, flags: c_int) -> Os<c_int> {
    let null = core::ptr::null_mut;
    // SAFETY: null asks for no address.
    unsafe {
        ask(<Posix as Handler>::accept4(fd, null(), core::ptr::null_mut(), flags), || {
            real::accept4(fd, null(), core::ptr::null_mut(), flags)
        })
    }
}

/// Two ends of one connection, both in slots: the connector's and the acceptor's.
pub fn pair() -> (c_int, c_int) {
    pair_for(16)
}

/// The same by a listener with this backlog.
pub fn pair_for(backlog: u32) -> (c_int, c_int) {
    let listening = bound(0);
    listen_for(listening, backlog).expect("listen");
    let port = port_of(listening);
    let ours = socket(0);
    connect(ours, port).expect("connect");
    let theirs = accept(listening, 0).expect("accept");
    close(listening).expect("close");
    assert!(table::socket(ours).is_some() && table::socket(theirs).is_some());
    (ours, theirs)
}

pub fn close(fd: c_int) -> Os<c_int> {
    // SAFETY: integers only.
    unsafe { ask(<Posix as Handler>::close(fd), || real::close(fd)) }
}

/// Closes both.
pub fn close_both(one: c_int, other: c_int) {
    close(one).expect("close");
    close(other).expect("close");
}

pub fn send(fd: c_int, bytes: &[u8], flags: c_int) -> Os<usize> {
    let flags = flags | libc::MSG_NOSIGNAL;
    let buf: *const c_void = bytes.as_ptr().cast();
    // SAFETY: `buf` is a slice of that length.
    unsafe {
        let usual = fast::send(fd, buf, bytes.len(), flags);
        let answer = || <Posix as Handler>::send(fd, buf, bytes.len(), flags);
        ask(usual_or(usual, answer), || real::send(fd, buf, bytes.len(), flags))
    }
    .map(|n| n as usize)
}

pub fn recv(fd: c_int, len: usize, flags: c_int) -> Os<Vec<u8>> {
    let mut bytes = vec![0; len];
    let buf: *mut c_void = bytes.as_mut_ptr().cast();
    // SAFETY: `buf` is a vector of that length.
    let n = unsafe {
        let usual = fast::recv(fd, buf, len, flags);
        ask(usual_or(usual, || <Posix as Handler>::recv(fd, buf, len, flags)), || real::recv(fd, buf, len, flags))
    }?;
    bytes.truncate(n as usize);
    Ok(bytes)
}

pub fn shutdown(fd: c_int, how: c_int) -> Os<c_int> {
    // SAFETY: integers only.
    unsafe { ask(<Posix as Handler>::shutdown(fd, how), || real::shutdown(fd, how)) }
}

pub fn nonblocking(fd: c_int) {
    let arg = libc::O_NONBLOCK.into();
    // SAFETY: integers only.
    unsafe { ask(<Posix as Handler>::fcntl(fd, libc::F_SETFL, arg), || real::fcntl(fd, libc::F_SETFL, arg)) }
        .expect("fcntl");
}

pub fn set_option<T>(fd: c_int, level: c_int, name: c_int, value: T) -> Os<c_int> {
    let (at, len) = ((&raw const value).cast(), size_of::<T>() as socklen_t);
    // SAFETY: `at` is a local of `len` bytes.
    unsafe {
        ask(<Posix as Handler>::setsockopt(fd, level, name, at, len), || real::setsockopt(fd, level, name, at, len))
    }
}

pub fn option(fd: c_int, level: c_int, name: c_int) -> Os<c_int> {
    let (mut value, mut len) = (0, size_of::<c_int>() as socklen_t);
    let (at, length): (*mut c_void, _) = ((&raw mut value).cast(), &raw mut len);
    // SAFETY: `at` is a local of `len` bytes.
    unsafe {
        ask(<Posix as Handler>::getsockopt(fd, level, name, at, length), || {
            real::getsockopt(fd, level, name, at, length)
        })
    }?;
    Ok(value)
}

/// Reads an option whose value is not an integer.
pub fn get_option<T: Copy>(fd: c_int, level: c_int, name: c_int) -> Os<T> {
    // SAFETY: only used with plain integers and C structs, for which all zero is a value.
    let mut value: T = unsafe { core::mem::zeroed() };
    let mut len = size_of::<T>() as socklen_t;
    let (at, length): (*mut c_void, _) = ((&raw mut value).cast(), &raw mut len);
    // SAFETY: `at` is a local of `len` bytes.
    unsafe {
        ask(<Posix as Handler>::getsockopt(fd, level, name, at, length), || {
            real::getsockopt(fd, level, name, at, length)
        })
    }?;
    assert_eq!(len as usize, size_of::<T>());
    Ok(value)
}

pub fn poll(fds: &[(c_int, i16)], timeout_ms: c_int) -> Os<Vec<i16>> {
    let mut fds: Vec<_> = fds.iter().map(|(fd, events)| pollfd { fd: *fd, events: *events, revents: 0 }).collect();
    let (at, n) = (fds.as_mut_ptr(), fds.len() as _);
    // SAFETY: `at` is a vector of `n` entries.
    unsafe { ask(<Posix as Handler>::poll(at, n, timeout_ms), || real::poll(at, n, timeout_ms)) }?;
    Ok(fds.iter().map(|p| p.revents).collect())
}

pub fn epoll() -> c_int {
    start();
    // SAFETY: integers only.
    unsafe { ask(<Posix as Handler>::epoll_create1(libc::EPOLL_CLOEXEC), || unreachable!()) }.expect("epoll")
}

pub fn control(epfd: c_int, op: c_int, fd: c_int, events: c_int, data: u64) -> Os<c_int> {
    let mut event = epoll_event { events: events as u32, u64: data };
    let at = &raw mut event;
    // SAFETY: `at` is a local.
    unsafe { ask(<Posix as Handler>::epoll_ctl(epfd, op, fd, at), || real::epoll_ctl(epfd, op, fd, at)) }
}

/// The events of one `epoll_wait`: (data, bits), sorted.
pub fn wait(epfd: c_int, timeout_ms: c_int) -> Vec<(u64, c_int)> {
    let mut events = [epoll_event { events: 0, u64: 0 }; 16];
    let at = events.as_mut_ptr();
    // SAFETY: `at` is an array of 16.
    let n = unsafe {
        let usual = fast::epoll_wait(epfd, at, 16, timeout_ms);
        let answer = || <Posix as Handler>::epoll_wait(epfd, at, 16, timeout_ms);
        ask(usual_or(usual, answer), || real::epoll_wait(epfd, at, 16, timeout_ms))
    };
    let mut found: Vec<_> =
        events[..n.expect("epoll_wait") as usize].iter().map(|e| (e.u64, e.events as c_int)).collect();
    found.sort_unstable();
    found
}

/// Runs `work` in another thread after this many ms.
pub fn later<R: Send + 'static>(ms: u64, work: impl FnOnce() -> R + Send + 'static) -> std::thread::JoinHandle<R> {
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(ms));
        work()
    })
}

/// A port without a listener. A client has it, so that nobody listens there while the client is held.
pub fn unused_port() -> (std::net::TcpStream, u16) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let client = std::net::TcpStream::connect(listener.local_addr().expect("its address")).expect("a client");
    let port = client.local_addr().expect("its address").port();
    (client, port)
}
