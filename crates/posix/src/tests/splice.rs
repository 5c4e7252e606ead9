//! `TOWPATH_SPLICE`: a proxy hands two connections over to the stack.

use super::os::*;
use crate::fake::DIRECT;
use crate::fake::splice::UNSPLICED;
use crate::fd::table;
use crate::handler::Posix;
use crate::options::splice::TOWPATH_SPLICE;
use core::ffi::c_int;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use towpath_hook::{Handler, real};

fn splice(one: c_int, other: c_int) -> Os<c_int> {
    set_option(one, libc::IPPROTO_TCP, TOWPATH_SPLICE, other)
}

/// How many commands there have been for the slot behind a descriptor, in both its uses.
fn commands(fd: c_int) -> u32 {
    let socket = table::socket(fd).expect("a slot");
    socket.session.region.command(socket.slot).seq.load(Relaxed)
}

/// Fills both rings of this end, whose peer reads nothing.
fn fill(fd: c_int) -> usize {
    let (mut sent, until) = (0, GEOMETRY.tx_bytes as usize + GEOMETRY.rx_bytes as usize);
    while sent < until {
        match send(fd, &[7; 1000][..(until - sent).min(1000)], libc::MSG_DONTWAIT) {
            Ok(count) => sent += count,
            Err(errno) => {
                assert_eq!(errno, libc::EAGAIN);
                std::thread::yield_now();
            }
        }
    }
    sent
}

#[test]
fn two_connections_are_spliced_and_the_program_can_no_longer_write() {
    let ((one, client), (other, server)) = (pair(), pair());
    assert_eq!(splice(one, other), Ok(0));
    for fd in [one, other] {
        assert_eq!(send(fd, b"late", 0), Err(libc::EPIPE));
    }
    for fd in [one, other, client, server] {
        close(fd).expect("close");
    }
}

#[test]
fn what_cannot_be_spliced_is_refused_and_the_stack_is_not_asked() {
    let ((one, client), (other, server)) = (pair(), pair());
    let ((direct, peer), (listening, _port)) = (pair_for(DIRECT), listener(0));
    let (pending, kernel) = (bound(0), TcpListener::bind("127.0.0.1:0").expect("a port"));
    let file = std::fs::File::open("/dev/null").expect("a file");
    // SAFETY: integers only.
    let copy = unsafe { ask(<Posix as Handler>::dup(one), || real::dup(one)) }.expect("dup");
    let before = [one, direct, listening].map(commands);

    assert_eq!(set_option(one, libc::IPPROTO_TCP, TOWPATH_SPLICE, 1u16), Err(libc::EINVAL));
    let nothing = core::ptr::null();
    // SAFETY: the library must not trust the address.
    let unreadable = unsafe { <Posix as Handler>::setsockopt(one, libc::IPPROTO_TCP, TOWPATH_SPLICE, nothing, 4) };
    assert_eq!(unreadable, Some(Err(libc::EFAULT)));
    for (with, errno) in [
        (-1, libc::EBADF),
        (c_int::MAX, libc::EBADF),
        (one, libc::EINVAL),
        (copy, libc::EINVAL),
        (kernel.as_raw_fd(), libc::EOPNOTSUPP),
        (file.as_raw_fd(), libc::EOPNOTSUPP),
        (listening, libc::EOPNOTSUPP),
        (direct, libc::EOPNOTSUPP),
        (pending, libc::ENOTCONN),
    ] {
        assert_eq!(splice(one, with), Err(errno), "with {with}");
    }
    assert_eq!(splice(direct, one), Err(libc::EOPNOTSUPP));
    assert_eq!(splice(listening, one), Err(libc::EOPNOTSUPP));
    assert_eq!(splice(pending, one), Err(libc::ENOTCONN));
    assert_eq!(set_option(pending, libc::IPPROTO_TCP, TOWPATH_SPLICE, 1u8), Err(libc::EINVAL));
    // A kernel does not know the option, and nobody can read it.
    let plain = TcpStream::connect(kernel.local_addr().expect("an address")).expect("connect");
    assert_eq!(splice(plain.as_raw_fd(), one), Err(libc::ENOPROTOOPT));
    for fd in [one, pending, listening] {
        assert_eq!(option(fd, libc::IPPROTO_TCP, TOWPATH_SPLICE), Err(libc::ENOPROTOOPT));
    }
    assert_eq!([one, direct, listening].map(commands), before);

    // SO_LINGER with a time of 0: the close is a reset.
    set_option(server, libc::SOL_SOCKET, libc::SO_LINGER, libc::linger { l_onoff: 1, l_linger: 0 }).expect("option");
    close(server).expect("close");
    assert_eq!(recv(other, 1, 0), Err(libc::ECONNRESET));
    assert_eq!((splice(one, other), splice(other, one)), (Err(libc::ENOTCONN), Err(libc::ENOTCONN)));
    assert_eq!(commands(one), before[0]);
    for fd in [one, copy, client, other, direct, peer, listening, pending] {
        close(fd).expect("close");
    }
}

#[test]
fn unread_bytes_are_to_be_passed_on_first() {
    let ((one, client), (other, server)) = (pair(), pair());
    let before = commands(one);
    for (peer, end) in [(client, one), (server, other)] {
        send(peer, b"unread", 0).expect("send");
        eventually(|| table::socket(end).is_some_and(|socket| socket.readable() == 6));
        // A call that may wait does not wait for the program itself.
        assert_eq!(splice(one, other), Err(libc::EAGAIN));
        assert_eq!(recv(end, 10, 0), Ok(b"unread".to_vec()));
    }
    assert_eq!(commands(one), before + 2, "the stack was asked, so that it holds the peers back");
    assert_eq!(splice(one, other), Ok(0));
    for fd in [one, other, client, server] {
        close(fd).expect("close");
    }
}

#[test]
fn what_a_peer_has_not_acknowledged_is_waited_for_a_little_if_the_socket_may_block() {
    let ((one, client), (other, server)) = (pair(), pair());
    let sent = fill(other);
    let (before, start) = (commands(one), Instant::now());
    assert_eq!(splice(one, other), Err(libc::EAGAIN));
    assert!(start.elapsed() >= Duration::from_millis(20), "{:?}", start.elapsed());
    assert_eq!(commands(one), before + 1);
    nonblocking(one);
    assert_eq!(splice(one, other), Err(libc::EAGAIN));
    assert_eq!(commands(one), before + 2);
    let reader = std::thread::spawn(move || {
        let mut left = sent;
        while left > 0 {
            left -= recv(server, 1000, 0).expect("recv").len();
        }
        server
    });
    eventually(|| match splice(one, other) {
        Ok(_) => true,
        Err(errno) => {
            assert_eq!(errno, libc::EAGAIN);
            false
        }
    });
    let server = reader.join().expect("the reader");
    for fd in [one, other, client, server] {
        close(fd).expect("close");
    }
}

#[test]
fn a_stack_that_does_not_splice_says_so_at_once() {
    let ((one, client), (other, server)) = (pair(), pair());
    set_option(other, libc::IPPROTO_TCP, libc::TCP_KEEPCNT, UNSPLICED).expect("option");
    send(client, b"unread", 0).expect("send");
    eventually(|| table::socket(one).is_some_and(|socket| socket.readable() == 6));
    assert_eq!(splice(one, other), Err(libc::EOPNOTSUPP));
    assert_eq!(recv(one, 10, 0), Ok(b"unread".to_vec()));
    assert_eq!(send(other, b"goes on", 0), Ok(7));
    for fd in [one, other, client, server] {
        close(fd).expect("close");
    }
}
