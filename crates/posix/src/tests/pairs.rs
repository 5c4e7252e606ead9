//! Pairs of sockets that are kept for the next connection.

use super::os::*;
use crate::fd::table;
use crate::handler::Posix;
use crate::lifecycle::pairs::candidate;
use libc::c_int;
use towpath_client::private::flag;
use towpath_hook::{Handler, real};

/// Linux's constant, which libc lacks.
const F_SETSIG: c_int = 10;

fn inode(fd: c_int) -> u64 {
    rustix::fs::fstat(towpath_client::sys::borrow(&fd)).expect("fstat").st_ino
}

fn control(fd: c_int, command: c_int, argument: i64) -> Os<c_int> {
    // SAFETY: integers only.
    unsafe { ask(<Posix as Handler>::fcntl(fd, command, argument), || real::fcntl(fd, command, argument)) }
}

fn is_kept(fd: c_int) -> bool {
    candidate(fd, &table::socket(fd).expect("accelerated")).is_some()
}

/// An end of a connection.
#[derive(Clone, Copy, PartialEq)]
enum End {
    Connected,
    Accepted,
}

/// Makes connections until this end of one has the pair of an earlier one, and lets `work` end that. It is given the other
/// end first. Other tests make connections, too, and a fork ends all that is kept.
fn until_kept(which: End, mut work: impl FnMut(c_int, c_int)) {
    let mut before = Vec::new();
    eventually(|| {
        let (connected, accepted) = pair();
        let (other, end) = if which == End::Accepted { (connected, accepted) } else { (accepted, connected) };
        let same = before.contains(&inode(end));
        before.extend([end, other].map(inode));
        if same {
            work(other, end);
        } else {
            close(end).expect("close");
        }
        close(other).expect("close");
        same
    });
}

#[test]
fn the_pair_of_a_closed_connection_serves_the_next_and_ends_with_it() {
    for which in [End::Accepted, End::Connected] {
        until_kept(which, |other, end| {
            assert_eq!(control(end, libc::F_GETFD, 0), Ok(0), "close-on-exec");
            assert_eq!(send(other, b"x", 0), Ok(1));
            assert_eq!(recv(end, 10, 0).as_deref(), Ok(&b"x"[..]));
            close(end).expect("close");
            assert_eq!(recv(other, 10, 0), Ok(Vec::new()), "the end of the stream");
        });
    }
}

/// The library does not see that the descriptor is closed, as if the process had been killed.
#[test]
fn a_connection_with_a_kept_pair_ends_when_its_descriptor_does() {
    for which in [End::Accepted, End::Connected] {
        until_kept(which, |other, end| {
            towpath_client::sys::close(end);
            assert_eq!(recv(other, 10, 0), Ok(Vec::new()), "the end of the stream");
            table::set(end, table::Descriptor::Kernel);
        });
    }
}

#[test]
fn a_pair_is_kept_if_it_is_as_new_and_nobody_elses() {
    let (ours, theirs) = pair();
    assert!(is_kept(theirs) && is_kept(ours));
    nonblocking(theirs);
    assert!(is_kept(theirs), "that flag is the slot's");
    let socket = table::socket(theirs).expect("accelerated");
    for flag in [flag::SHARED, flag::NAMED, flag::EMULATED_ON_PAIR] {
        socket.mark(flag, true);
        assert!(!is_kept(theirs));
        socket.mark(flag, false);
    }
    let of_the_file = [
        (libc::F_SETOWN, std::process::id().into()),
        (F_SETSIG, libc::SIGURG.into()),
        (libc::F_SETFL, libc::O_ASYNC.into()),
    ];
    for (command, argument) in of_the_file {
        control(theirs, command, argument).expect("fcntl");
        assert!(!is_kept(theirs), "the next connection would inherit it");
        socket.mark(flag::FILE_CHANGED, false);
    }
    close_both(ours, theirs);
}

/// The service closes its end of such a pair when it gives the port back.
#[test]
fn the_pair_of_a_socket_whose_port_is_reserved_is_not_kept() {
    let (listening, port) = listener(0);
    assert!(!is_kept(listening));
    let ours = bound(0);
    connect(ours, port).expect("connect");
    let theirs = accept(listening, 0).expect("accept");
    assert!(!is_kept(ours) && is_kept(theirs));
    close(listening).expect("close");
    close_both(ours, theirs);
}

#[test]
fn the_pair_of_a_socket_that_had_an_owner_before_it_connected_is_not_kept() {
    let (listening, port) = listener(0);
    let ours = socket(0);
    control(ours, libc::F_SETOWN, std::process::id().into()).expect("F_SETOWN");
    connect(ours, port).expect("connect");
    assert!(!is_kept(ours), "the next connection would inherit it");
    close(listening).expect("close");
    close(ours).expect("close");
}
