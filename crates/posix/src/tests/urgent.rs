//! Urgent data: a slot behaves as a kernel socket does.

use super::os::*;
use crate::handler::Posix;
use core::ffi::c_int;
use std::fmt::Debug;
use std::net::{TcpListener, TcpStream};
use std::os::fd::IntoRawFd;
use std::time::{Duration, Instant};
use towpath_hook::{Handler, outcome, real};

/// Two ends of a connection that the library does not know.
fn kernels() -> (c_int, c_int) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let ours = TcpStream::connect(listener.local_addr().expect("an address")).expect("connect");
    let (theirs, _) = listener.accept().expect("accept");
    (ours.into_raw_fd(), theirs.into_raw_fd())
}

fn ioctl(fd: c_int, request: libc::c_ulong) -> Os<c_int> {
    let mut answer: c_int = -1;
    let at = (&raw mut answer) as libc::c_long;
    // SAFETY: `at` is a local integer.
    unsafe { Posix::ioctl(fd, request, at) }.unwrap_or_else(|| outcome(unsafe { real::ioctl(fd, request, at) }))?;
    Ok(answer)
}

const ALL: i16 = libc::POLLIN | libc::POLLPRI;

/// Every visible property of the receiving end, step by step.
struct Script {
    ours: c_int,
    theirs: c_int,
    seen: Vec<String>,
}

impl Script {
    fn note(&mut self, what: impl Debug) {
        self.seen.push(format!("{what:?}"));
    }
    /// Sends, and waits until the bytes have arrived.
    fn send(&mut self, bytes: &[u8], flags: c_int) {
        let outcome = send(self.ours, bytes, flags);
        self.note(outcome);
        self.arrive();
    }
    /// Waits until all bytes that were sent have arrived: none is unacknowledged.
    fn arrive(&self) {
        let give_up = Instant::now() + Duration::from_secs(60);
        while ioctl(self.ours, libc::TIOCOUTQ) != Ok(0) {
            assert!(Instant::now() < give_up, "it does not arrive");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    /// Records the state of the receiving end.
    fn look(&mut self) {
        let events = poll(&[(self.theirs, ALL)], 0);
        self.note(events);
        self.note(("unread", ioctl(self.theirs, libc::FIONREAD)));
        self.note(("at mark", ioctl(self.theirs, 0x8905)));
    }
    fn recv(&mut self, len: usize, flags: c_int) {
        let outcome = recv(self.theirs, len, flags | libc::MSG_DONTWAIT);
        self.note(outcome);
        self.look();
    }
}

fn run(ends: (c_int, c_int), play: fn(&mut Script)) -> Vec<String> {
    let mut script = Script { ours: ends.0, theirs: ends.1, seen: Vec::new() };
    play(&mut script);
    close_both(ends.0, ends.1);
    script.seen
}

#[track_caller]
fn same(play: fn(&mut Script)) {
    let (slots, kernel) = (run(pair(), play), run(kernels(), play));
    assert_eq!(slots, kernel, "slots on the left, the kernel on the right");
}

const OOB: c_int = libc::MSG_OOB;

/// RFC 9293 MUST-33.
#[test]
fn a_read_stops_at_the_mark_and_leaves_the_byte_out() {
    same(|s| {
        s.send(b"abc", 0);
        s.look();
        s.recv(1, OOB);
        s.send(b"de!", OOB);
        s.look();
        s.send(b"fgh", 0);
        s.look();
        s.recv(4, 0);
        s.recv(100, 0);
        s.recv(1, OOB | libc::MSG_PEEK);
        s.recv(1, OOB);
        s.recv(1, OOB);
        s.recv(100, libc::MSG_PEEK);
        s.recv(1, 0);
        s.recv(100, 0);
        s.recv(1, OOB);
    });
}

#[test]
fn waiting_for_all_ends_at_the_mark() {
    same(|s| {
        s.send(b"abc!", OOB);
        s.send(b"def", 0);
        s.recv(6, libc::MSG_WAITALL);
        s.recv(2, libc::MSG_WAITALL);
        s.recv(2, 0);
    });
}

#[test]
fn in_line_the_byte_is_read_like_any_other() {
    same(|s| {
        set_option(s.theirs, libc::SOL_SOCKET, libc::SO_OOBINLINE, 1).expect("option");
        s.send(b"abc!", OOB);
        s.send(b"def", 0);
        s.recv(1, OOB);
        s.recv(100, 0);
        s.recv(100, libc::MSG_PEEK);
        s.recv(100, 0);
        s.recv(100, 0);
    });
}

#[test]
fn a_byte_that_is_passed_is_lost() {
    same(|s| {
        s.send(b"abc!", OOB);
        s.send(b"d", 0);
        s.recv(3, 0);
        s.recv(1, 0);
        s.recv(1, OOB);
        s.send(b"?", OOB);
        s.look();
        s.recv(1, 0);
        s.recv(1, OOB);
    });
}

#[test]
fn a_newer_urgent_byte_takes_the_place_of_the_older() {
    same(|s| {
        s.send(b"ab1", OOB);
        s.send(b"cd2", OOB);
        s.look();
        s.recv(1, OOB);
        s.recv(100, 0);
        s.recv(100, 0);
    });
}

#[test]
fn an_empty_read_takes_the_urgent_byte_away() {
    same(|s| {
        s.send(b"!", OOB);
        s.look();
        s.recv(0, OOB);
        s.recv(0, OOB);
    });
}

#[test]
fn epoll_and_select_tell_of_urgent_bytes() {
    let (ours, theirs) = pair();
    let epfd = epoll();
    control(epfd, libc::EPOLL_CTL_ADD, theirs, libc::EPOLLPRI | libc::EPOLLET, 5).expect("add");
    assert_eq!(wait(epfd, 0), []);
    send(ours, b"ordinary", 0).expect("send");
    assert_eq!(wait(epfd, 20), []);
    send(ours, b"!", OOB).expect("send");
    assert_eq!(wait(epfd, 60_000), [(5, libc::EPOLLPRI)]);
    assert_eq!(recv(theirs, 1, OOB), Ok(b"!".to_vec()));
    assert_eq!(recv(theirs, 8, 0), Ok(b"ordinary".to_vec()));
    // SAFETY: integers only.
    assert_eq!(unsafe { Posix::sockatmark(theirs) }, Some(Ok(1)));
    // SAFETY: an empty set is all zero.
    let mut set: libc::fd_set = unsafe { core::mem::zeroed() };
    let mut time = libc::timeval { tv_sec: 0, tv_usec: 0 };
    // SAFETY: the set and the time are locals; `theirs` is a small number.
    let mut ask = || unsafe {
        libc::FD_ZERO(&raw mut set);
        libc::FD_SET(theirs, &raw mut set);
        let null = core::ptr::null_mut;
        Posix::select(theirs + 1, null(), null(), &raw mut set, &raw mut time)
    };
    assert_eq!(ask(), Some(Ok(0)));
    send(ours, b"x?", OOB).expect("send");
    eventually(|| ask() == Some(Ok(1)));
    close(epfd).expect("close");
    close_both(ours, theirs);
}
