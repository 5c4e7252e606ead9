//! Descriptors that may be the last of their connection.

use super::os::*;
use crate::fd::table;
use crate::handler::Posix;
use crate::lifecycle::in_flight::Call;
use crate::lifecycle::leaving::Leaving;
use libc::c_int;
use std::sync::atomic::Ordering::SeqCst;
use towpath_client::socket::Socket;
use towpath_hook::{Handler, real};
use towpath_ring::lines::app_flags::{CLOSED, CLOSING};

fn copy_of(fd: c_int) -> c_int {
    // SAFETY: integers only.
    unsafe { ask(<Posix as Handler>::dup(fd), || real::dup(fd)) }.expect("dup")
}

fn told(socket: &Socket) -> u32 {
    socket.app().flags.load(SeqCst) & (CLOSED | CLOSING)
}

#[test]
fn the_close_of_the_last_copy_tells_the_stack_and_no_other_does() {
    let (ours, theirs) = pair();
    let (copy, socket) = (copy_of(ours), table::socket(ours).expect("accelerated"));
    // The kernel keeps this one open, and the library does not know it.
    let unknown = towpath_client::sys::fcntl(ours, libc::F_DUPFD_CLOEXEC, 0).expect("a copy");
    for fd in [ours, copy] {
        close(fd).expect("close");
        assert_eq!(told(&socket), 0, "there is another");
    }
    assert_eq!(recv(theirs, 10, libc::MSG_DONTWAIT), Err(libc::EAGAIN), "it goes on");
    let last = Leaving::begin(unknown, &socket).expect("it may be the last");
    assert_eq!(told(&socket), CLOSING);
    towpath_client::sys::close(unknown);
    last.closed();
    assert!(socket.is_gone() || told(&socket) & CLOSED != 0);
    assert_eq!(recv(theirs, 10, 0), Ok(Vec::new()), "the end of the stream");
    close(theirs).expect("close");
}

#[test]
fn whoever_does_not_close_takes_the_word_back() {
    let (ours, theirs) = pair();
    let socket = table::socket(ours).expect("accelerated");
    drop(Leaving::begin(ours, &socket).expect("it may be the last"));
    assert_eq!(told(&socket), 0);
    close_both(ours, theirs);
}

#[test]
fn a_call_in_flight_keeps_the_connection() {
    let (ours, theirs) = pair();
    let socket = table::socket(ours).expect("accelerated");
    let call = Call::on(&socket);
    assert!(Leaving::begin(ours, &socket).is_none());
    drop(call);
    assert!(Leaving::begin(ours, &socket).is_some());
    close_both(ours, theirs);
}
