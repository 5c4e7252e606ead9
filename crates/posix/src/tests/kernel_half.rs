//! Listeners with a kernel half: connections that the stack carries, and connections of the kernel.

use super::os::*;
use crate::fd::table::{self, Descriptor};
use crate::handler::Posix;
use core::ffi::c_int;
use libc::{SO_ACCEPTCONN, SO_REUSEADDR, SOL_SOCKET, sockaddr_in, socklen_t};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use towpath_client::private::flag;
use towpath_client::sys;
use towpath_hook::{Handler, outcome, real};
use towpath_ring::command::Accepted;
use towpath_ring::lines::status;

/// A client without the library.
fn plain(port: u16) -> TcpStream {
    TcpStream::connect(("127.0.0.1", port)).expect("the kernel half listens")
}

/// A connection that the stack carries and that waits to be accepted.
fn accelerated(listening: c_int, port: u16) -> c_int {
    let before = waiting(listening);
    let fd = socket(0);
    connect(fd, port).expect("connect");
    assert!(table::socket(fd).is_some(), "the stack carries it");
    eventually(|| waiting(listening) > before);
    fd
}

fn waiting(listening: c_int) -> usize {
    table::socket(listening).expect("a slot").readable() as usize / Accepted::BYTES
}

fn is_accelerated(fd: c_int) -> bool {
    table::socket(fd).is_some()
}

fn real_flags(fd: c_int) -> c_int {
    sys::fcntl(fd, libc::F_GETFL, 0).expect("its flags")
}

fn fcntl(fd: c_int, cmd: c_int, arg: c_int) -> Os<c_int> {
    // SAFETY: integers only.
    unsafe { Posix::fcntl(fd, cmd, arg.into()) }.unwrap_or_else(|| sys::fcntl(fd, cmd, arg))
}

fn end(fds: &[c_int]) {
    fds.iter().for_each(|fd| _ = close(*fd).expect("close"));
}

#[test]
fn the_descriptor_is_the_kernels_socket_and_both_halves_are_accepted() {
    let (listening, port) = listener(0);
    let inode = || sys::getsockopt::<u64>(listening, SOL_SOCKET, libc::SO_COOKIE, 0);
    assert_eq!(sys::getsockopt::<c_int>(listening, SOL_SOCKET, SO_ACCEPTCONN, 0), Ok(1), "{:?}", inode());
    let mut client = plain(port);
    let ours = accelerated(listening, port);
    let mut kinds = Vec::new();
    for _ in 0..2 {
        let theirs = accept(listening, 0).expect("accept");
        kinds.push(is_accelerated(theirs));
        if is_accelerated(theirs) {
            send(ours, b"ring", 0).expect("send");
            assert_eq!(recv(theirs, 9, 0), Ok(b"ring".to_vec()));
        } else {
            client.write_all(b"kernel").expect("write");
            assert_eq!(recv(theirs, 9, 0), Ok(b"kernel".to_vec()));
        }
        close(theirs).expect("close");
    }
    kinds.sort_unstable();
    assert_eq!(kinds, [false, true]);
    end(&[ours, listening]);
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err(), "the last descriptor is closed");
}

/// A flood of accelerated connections does not starve the kernel's, nor the other way round.
#[test]
fn neither_half_starves_the_other() {
    let (listening, port) = listener(libc::SOCK_NONBLOCK);
    let clients: Vec<_> = (0..4).map(|_| plain(port)).collect();
    let ours: Vec<_> = (0..12).map(|_| accelerated(listening, port)).collect();
    crate::ready::halves::clear(&table::socket(listening).expect("a slot"));
    let mut kinds: Vec<_> = (0..16).map(|_| accept(listening, 0).expect("accept")).collect();
    assert_eq!(accept(listening, 0), Err(libc::EAGAIN));
    let first = kinds.iter().position(|fd| !is_accelerated(*fd)).expect("the kernel's");
    assert!(first < 16 && kinds.iter().filter(|fd| is_accelerated(**fd)).count() == 12);
    kinds.extend(ours);
    kinds.push(listening);
    end(&kinds);
    drop(clients);
}

#[test]
fn a_hint_makes_both_halves_take_turns() {
    let (listening, port) = listener(libc::SOCK_NONBLOCK);
    let clients: Vec<_> = (0..3).map(|_| plain(port)).collect();
    let ours: Vec<_> = (0..3).map(|_| accelerated(listening, port)).collect();
    crate::ready::halves::kernel_said_ready(&table::socket(listening).expect("a slot"));
    let accepted: Vec<_> = (0..6).map(|_| accept(listening, 0).expect("accept")).collect();
    let kinds: Vec<_> = accepted.iter().map(|fd| is_accelerated(*fd)).collect();
    assert!(kinds.windows(2).all(|two| two[0] != two[1]), "{kinds:?}");
    end(&[accepted, ours, vec![listening]].concat());
    drop(clients);
}

/// As on Linux, `accept4` alone decides on the flags of the new descriptor.
#[test]
fn an_accepted_kernel_connection_has_the_flags_of_accept4_and_nothing_of_the_library() {
    let (listening, port) = listener(libc::SOCK_NONBLOCK);
    for (flags, nonblock, cloexec) in [(0, 0, 0), (libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC, libc::O_NONBLOCK, 1)] {
        let client = plain(port);
        eventually(|| poll(&[(listening, libc::POLLIN)], 0) == Ok(vec![libc::POLLIN]));
        let theirs = accept(listening, flags).expect("accept");
        assert_eq!(table::get(theirs), Descriptor::Kernel);
        assert_eq!(real_flags(theirs) & libc::O_NONBLOCK, nonblock);
        assert_eq!(sys::fcntl(theirs, libc::F_GETFD, 0), Ok(cloexec));
        close(theirs).expect("close");
        drop(client);
    }
    end(&[listening]);
}

#[test]
fn the_address_of_a_kernel_client_is_told() {
    let (listening, port) = listener(0);
    let client = plain(port);
    let (mut addr, mut len) = (address(0), size_of::<sockaddr_in>() as socklen_t);
    // SAFETY: `addr` is a local of `len` bytes.
    let theirs = unsafe { Posix::accept4(listening, (&raw mut addr).cast(), &raw mut len, 0) };
    let theirs = theirs.expect("ours").expect("accept");
    assert_eq!((u16::from_be(addr.sin_port), len), (client.local_addr().expect("an address").port(), 16));
    end(&[theirs, listening]);
}

#[test]
fn a_blocking_accept_sleeps_on_both_halves() {
    let (listening, port) = listener(0);
    let client = later(50, move || plain(port));
    let theirs = accept(listening, 0).expect("accept");
    assert!(!is_accelerated(theirs));
    close(theirs).expect("close");
    drop(client.join());
    let ours = later(50, move || {
        let fd = socket(0);
        connect(fd, port).expect("connect");
        fd
    });
    let theirs = accept(listening, 0).expect("accept");
    assert!(is_accelerated(theirs));
    end(&[theirs, ours.join().expect("a thread"), listening]);
}

#[test]
fn the_programs_mode_is_not_that_of_the_kernel_socket() {
    let (listening, _) = listener(0);
    assert_ne!(real_flags(listening) & libc::O_NONBLOCK, 0, "calls of the library never wait there");
    assert_eq!(fcntl(listening, libc::F_GETFL, 0).expect("flags") & libc::O_NONBLOCK, 0);
    assert_eq!(fcntl(listening, libc::F_SETFL, libc::O_NONBLOCK), Ok(0));
    assert_ne!(fcntl(listening, libc::F_GETFL, 0).expect("flags") & libc::O_NONBLOCK, 0);
    assert_eq!(accept(listening, 0), Err(libc::EAGAIN));
    assert_eq!(fcntl(listening, libc::F_SETFL, 0), Ok(0));
    assert_ne!(real_flags(listening) & libc::O_NONBLOCK, 0);
    let limit = libc::timeval { tv_sec: 0, tv_usec: 20_000 };
    set_option(listening, SOL_SOCKET, libc::SO_RCVTIMEO, limit).expect("option");
    let start = Instant::now();
    assert_eq!(accept(listening, 0), Err(libc::EAGAIN));
    assert!(start.elapsed() >= Duration::from_millis(20));
    end(&[listening]);
}

/// A program without the library gets the socket in the mode that its program gave it. The library sees to its own mode
/// before it accepts again.
#[test]
fn a_passed_listener_has_the_programs_mode() {
    let (listening, port) = listener(0);
    crate::fd::passing::name(listening, &table::socket(listening).expect("a slot"));
    assert_eq!(real_flags(listening) & libc::O_NONBLOCK, 0);
    assert_eq!(sys::getsockopt::<c_int>(listening, SOL_SOCKET, crate::lifecycle::kernel_half::SO_NOFCS, 0), Ok(1));
    let client = plain(port);
    let theirs = accept(listening, 0).expect("accept");
    assert_ne!(real_flags(listening) & libc::O_NONBLOCK, 0);
    end(&[theirs, listening]);
    drop(client);
}

#[test]
fn options_hold_for_both_halves() {
    let (listening, port) = listener(0);
    let tcp = libc::IPPROTO_TCP;
    set_option(listening, tcp, libc::TCP_NODELAY, 1).expect("option");
    set_option(listening, SOL_SOCKET, libc::SO_KEEPALIVE, 1).expect("option");
    set_option(listening, tcp, libc::TCP_KEEPIDLE, 77).expect("option");
    let client = plain(port);
    let ours = accelerated(listening, port);
    for _ in 0..2 {
        let theirs = accept(listening, 0).expect("accept");
        let kind = is_accelerated(theirs);
        assert_eq!(option(theirs, tcp, libc::TCP_NODELAY), Ok(1), "{kind}");
        assert_eq!(option(theirs, SOL_SOCKET, libc::SO_KEEPALIVE), Ok(1), "{kind}");
        assert_eq!(option(theirs, tcp, libc::TCP_KEEPIDLE), Ok(77), "{kind}");
        close(theirs).expect("close");
    }
    assert_eq!(set_option(listening, tcp, libc::TCP_KEEPIDLE, 0), Err(libc::EINVAL), "the kernel's answer");
    assert_eq!(set_option(listening, SOL_SOCKET, libc::SO_DETACH_FILTER, 0), Err(libc::ENOENT));
    assert_eq!(option(listening, SOL_SOCKET, SO_ACCEPTCONN), Ok(1));
    end(&[ours, listening]);
    drop(client);
}

#[test]
fn tcp_info_counts_the_connections_that_wait_in_both_halves() {
    /// `tcpi_unacked`, the seventh word.
    const WAITING: usize = 6;
    let (listening, port) = listener(0);
    let info = || get_option::<[u32; 26]>(listening, libc::IPPROTO_TCP, libc::TCP_INFO).expect("option");
    assert_eq!(info()[WAITING], 0);
    let clients = [0; 2].map(|_| plain(port));
    let ours = accelerated(listening, port);
    eventually(|| info()[WAITING] == 3);
    assert_eq!(info()[0].to_ne_bytes()[0], 10, "LISTEN");
    end(&[ours, listening]);
    drop(clients);
}

/// The stack cannot carry what such an option asks for, so the listener is the kernel's from then on.
#[test]
fn an_option_that_no_slot_can_have_leaves_the_listener_to_the_kernel() {
    let (listening, port) = listener(0);
    let pass = libc::sock_filter { code: 6, jt: 0, jf: 0, k: u32::MAX };
    let program = libc::sock_fprog { len: 1, filter: (&raw const pass).cast_mut() };
    set_option(listening, SOL_SOCKET, libc::SO_ATTACH_FILTER, program).expect("option");
    assert_eq!(table::get(listening), Descriptor::Kernel);
    assert_eq!(real_flags(listening) & libc::O_NONBLOCK, 0);
    assert_eq!(set_option(listening, SOL_SOCKET, libc::SO_DETACH_FILTER, 0), Ok(0), "the program's filter is there");
    let client = plain(port);
    let theirs = accept(listening, 0).expect("accept");
    end(&[theirs, listening]);
    drop(client);
}

/// Rules about peers hold for the kernel half also when the stack no longer serves the listener.
#[test]
fn a_filter_that_judges_peers_stays_on_a_listener_that_is_given_back() {
    for (bits, stays) in [(status::JUDGED, true), (0, false)] {
        let (listening, _) = listener(0);
        let pass = libc::sock_filter { code: 6, jt: 0, jf: 0, k: u32::MAX };
        let program = libc::sock_fprog { len: 1, filter: (&raw const pass).cast_mut() };
        let (value, len) = ((&raw const program).cast(), size_of_val(&program) as socklen_t);
        // SAFETY: the kernel reads the program and its one instruction, which outlive the call.
        outcome(unsafe { real::setsockopt(listening, SOL_SOCKET, libc::SO_ATTACH_FILTER, value, len) })
            .expect("as the service does");
        let slot = table::socket(listening).expect("a slot");
        slot.stack().status.store(bits, Ordering::Relaxed);
        crate::lifecycle::kernel_half::give_back(listening, &slot);
        assert_eq!(table::get(listening), Descriptor::Kernel);
        let detached = sys::setsockopt(listening, SOL_SOCKET, libc::SO_DETACH_FILTER, 0);
        assert_eq!(detached, if stays { Ok(()) } else { Err(libc::ENOENT) });
        end(&[listening]);
    }
}

#[test]
fn shutdown_ends_both_halves_and_listen_begins_again() {
    let (listening, port) = listener(0);
    assert_eq!(shutdown(listening, libc::SHUT_WR), Ok(0), "as on Linux, nothing happens");
    assert_eq!(shutdown(listening, 7), Err(libc::EINVAL));
    let asleep = later(0, move || accept(listening, 0));
    std::thread::sleep(Duration::from_millis(30));
    assert_eq!(shutdown(listening, libc::SHUT_RDWR), Ok(0));
    assert_eq!(asleep.join().expect("a thread"), Err(libc::EINVAL));
    assert_eq!(accept(listening, 0), Err(libc::EINVAL));
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
    assert_eq!(shutdown(listening, libc::SHUT_RD), Err(libc::ENOTCONN));
    assert!(matches!(table::get(listening), Descriptor::Pending(_)));
    assert_eq!(real_flags(listening) & libc::O_NONBLOCK, 0);
    listen(listening).expect("listen");
    let port = port_of(listening);
    let client = plain(port);
    let ours = accelerated(listening, port);
    let accepted = [0; 2].map(|_| accept(listening, 0).expect("accept"));
    assert_eq!(accepted.iter().filter(|fd| is_accelerated(**fd)).count(), 1);
    end(&[accepted.as_slice(), &[ours, listening]].concat());
    drop(client);
}

#[test]
fn connect_to_nowhere_ends_listening() {
    let (listening, port) = listener(0);
    let mut nowhere = address(0);
    nowhere.sin_family = libc::AF_UNSPEC as u16;
    let len = size_of::<sockaddr_in>() as socklen_t;
    // SAFETY: `nowhere` is a local of `len` bytes.
    assert_eq!(unsafe { Posix::connect(listening, (&raw const nowhere).cast(), len) }, Some(Ok(0)));
    assert_eq!(accept(listening, 0), Err(libc::EINVAL));
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
    end(&[listening]);
}

#[test]
fn options_of_a_listener_survive_shutdown_and_listen() {
    let (listening, _) = listener(0);
    set_option(listening, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 55).expect("option");
    set_option(listening, SOL_SOCKET, SO_REUSEADDR, 1).expect("option");
    shutdown(listening, libc::SHUT_RD).expect("shutdown");
    listen(listening).expect("listen");
    let ours = accelerated(listening, port_of(listening));
    let theirs = accept(listening, 0).expect("accept");
    assert_eq!(option(theirs, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE), Ok(55));
    assert_eq!(option(theirs, SOL_SOCKET, SO_REUSEADDR), Ok(1));
    end(&[ours, theirs, listening]);
}

/// The stack's policy denies the listener: then the kernel does not listen, either.
#[test]
fn a_denied_listener_listens_nowhere() {
    let fd = unconnected();
    let port = port_of(fd);
    assert_eq!(listen_for(fd, crate::fake::FORBIDDEN), Err(libc::EACCES));
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
    assert_eq!(port_of(fd), port, "the port stays");
    end(&[fd]);
}

#[test]
fn the_port_is_free_when_the_last_descriptor_is_closed() {
    for _ in 0..20 {
        let (listening, port) = listener(0);
        close(listening).expect("close");
        let again = socket(0);
        let (addr, len) = (address(port), size_of::<sockaddr_in>() as socklen_t);
        let at = (&raw const addr).cast();
        // SAFETY: `at` is a local of `len` bytes.
        let bound = unsafe { Posix::bind(again, at, len).unwrap_or_else(|| outcome(real::bind(again, at, len))) };
        bound.expect("the port is free");
        listen(again).expect("listen");
        end(&[again]);
    }
}

#[test]
fn a_copy_goes_on_when_the_first_descriptor_is_closed() {
    let (listening, port) = listener(0);
    // SAFETY: integers only.
    let copy = unsafe { Posix::dup(listening) }.expect("ours").expect("dup");
    close(listening).expect("close");
    let client = plain(port);
    let ours = accelerated(copy, port);
    let accepted = [0; 2].map(|_| accept(copy, 0).expect("accept"));
    assert_eq!(accepted.iter().filter(|fd| is_accelerated(**fd)).count(), 1);
    end(&[accepted.as_slice(), &[ours, copy]].concat());
    drop(client);
}

/// As in the kernel, a call in flight keeps its socket.
#[test]
fn an_accept_in_flight_goes_on_when_the_descriptor_is_closed() {
    let (listening, port) = listener(0);
    let asleep = later(0, move || accept(listening, 0));
    let socket = table::socket(listening).expect("a slot");
    eventually(|| socket.private().users.load(std::sync::atomic::Ordering::Relaxed) > 0);
    close(listening).expect("close");
    let mut client = plain(port);
    let theirs = asleep.join().expect("a thread").expect("accept");
    client.write_all(b"still").expect("write");
    assert_eq!(recv(theirs, 9, 0), Ok(b"still".to_vec()));
    close(theirs).expect("close");
    assert_eq!(client.read(&mut [0; 1]).expect("the end"), 0);
    eventually(|| TcpStream::connect(("127.0.0.1", port)).is_err());
}

/// A listener that the stack has given up is an ordinary one of the kernel at the next call.
#[test]
fn a_listener_that_the_stack_has_ended_is_the_kernels() {
    let (listening, port) = listener(0);
    let socket = table::socket(listening).expect("a slot");
    socket.mark_app(towpath_ring::lines::app_flags::CLOSED, true);
    eventually(|| socket.is_gone() || socket.state() != towpath_ring::lines::state::LISTENING);
    let client = plain(port);
    let theirs = accept(listening, 0).expect("accept");
    assert_eq!(table::get(listening), Descriptor::Kernel);
    assert_eq!(real_flags(listening) & libc::O_NONBLOCK, 0);
    assert!(!socket.has(flag::NONBLOCK));
    end(&[theirs, listening]);
    drop(client);
}
