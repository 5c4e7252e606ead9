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

/// Accepts connections until one has the pair of an earlier one, and lets `end` end that one. Other tests accept
/// connections, too, and a fork ends all that is kept.
fn until_kept(mut end: impl FnMut(c_int, c_int)) {
    let mut before = Vec::new();
    eventually(|| {
        let (ours, theirs) = pair();
        let same = before.contains(&inode(theirs));
        before.push(inode(theirs));
        if same {
            end(ours, theirs);
        } else {
            close(theirs).expect("close");
        }
        close(ours).expect("close");
        same
    });
}

#[test]
fn the_pair_of_a_closed_connection_serves_the_next_and_ends_with_it() {
    until_kept(|ours, theirs| {
        assert_eq!(control(theirs, libc::F_GETFD, 0), Ok(0), "close-on-exec");
        assert_eq!(send(ours, b"x", 0), Ok(1));
        assert_eq!(recv(theirs, 10, 0).as_deref(), Ok(&b"x"[..]));
        close(theirs).expect("close");
        assert_eq!(recv(ours, 10, 0), Ok(Vec::new()), "the end of the stream");
    });
}

/// The library does not see that the descriptor is closed, as if the process had been killed.
#[test]
fn a_connection_with_a_kept_pair_ends_when_its_descriptor_does() {
    until_kept(|ours, theirs| {
        towpath_client::sys::close(theirs);
        assert_eq!(recv(ours, 10, 0), Ok(Vec::new()), "the end of the stream");
        table::set(theirs, table::Descriptor::Kernel);
    });
}

#[test]
fn a_pair_is_kept_if_it_is_as_new_and_nobody_elses() {
    let (ours, theirs) = pair();
    assert!(is_kept(theirs) && !is_kept(ours), "only what accept has made");
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
