//! Descriptors that may be the last of their connection.

use super::os::*;
use crate::fd::table;
use crate::handler::Posix;
use crate::lifecycle::in_flight;
use crate::lifecycle::leaving::Leaving;
use libc::c_int;
use std::sync::atomic::Ordering::SeqCst;
use towpath_client::socket::Socket;
use towpath_client::sys;
use towpath_hook::{Handler, real};
use towpath_ring::lines::app_flags::{CLOSED, CLOSER, CLOSERS};
use towpath_ring::lines::state;

fn copy_of(fd: c_int) -> c_int {
    // SAFETY: integers only.
    unsafe { ask(<Posix as Handler>::dup(fd), || real::dup(fd)) }.expect("dup")
}

fn told(socket: &Socket) -> u32 {
    socket.app().flags.load(SeqCst) & (CLOSED | CLOSERS)
}

/// The stack has been told, or has seen it itself before that, and so is the peer.
fn has_ended(socket: &Socket, theirs: c_int) {
    let is_told = socket.is_gone() || told(socket) & CLOSED != 0;
    assert!(is_told || socket.state() == state::CLOSED);
    assert_eq!(recv(theirs, 10, 0), Ok(Vec::new()), "the end of the stream");
    close(theirs).expect("close");
}

#[test]
fn the_close_of_the_last_copy_tells_the_stack_and_no_other_does() {
    let (ours, theirs) = pair();
    let (copy, socket) = (copy_of(ours), table::socket(ours).expect("accelerated"));
    // The kernel keeps this one open, and the library does not know it.
    let unknown = sys::fcntl(ours, libc::F_DUPFD_CLOEXEC, 0).expect("a copy");
    for fd in [ours, copy] {
        close(fd).expect("close");
        assert_eq!(told(&socket), 0, "there is another");
    }
    assert_eq!(recv(theirs, 10, libc::MSG_DONTWAIT), Err(libc::EAGAIN), "it goes on");
    let last = Leaving::begin(unknown, &socket).expect("it may be the last");
    assert_eq!(told(&socket), CLOSER);
    sys::close(unknown);
    last.closed();
    has_ended(&socket, theirs);
}

#[test]
fn one_of_two_that_find_no_copy_tells_the_stack() {
    let (ours, theirs) = pair();
    let socket = table::socket(ours).expect("accelerated");
    let copy = sys::fcntl(ours, libc::F_DUPFD_CLOEXEC, 0).expect("a copy");
    let both = [ours, copy].map(|fd| Leaving::begin(fd, &socket).expect("it may be the last"));
    assert_eq!(told(&socket), 2 * CLOSER);
    [ours, copy].into_iter().for_each(sys::close);
    both.into_iter().for_each(Leaving::closed);
    table::set(ours, table::Descriptor::Kernel);
    has_ended(&socket, theirs);
}

#[test]
fn a_closer_leaves_another_connection_in_the_slot_alone() {
    let (ours, theirs) = pair();
    let socket = table::socket(ours).expect("accelerated");
    // Each connection sets the flags anew. This one is as far as that.
    socket.end_by_closer();
    socket.leave_closer();
    assert_eq!(told(&socket), 0);
    assert!(socket.enter_closer());
    let next = Socket { generation: socket.generation.wrapping_add(1), ..socket };
    next.end_by_closer();
    assert_eq!(told(&socket), CLOSER);
    socket.leave_closer();
    assert!(!next.enter_closer());
    assert_eq!(told(&socket), 0);
    close_both(ours, theirs);
}

#[test]
fn as_many_are_counted_as_have_room() {
    let (ours, theirs) = pair();
    let socket = table::socket(ours).expect("accelerated");
    let counted = (0..).take_while(|_| socket.enter_closer()).count();
    assert!(counted > 50 && told(&socket) & CLOSERS == told(&socket));
    assert!(Leaving::begin(ours, &socket).is_none());
    close_both(ours, theirs);
}

#[test]
fn a_close_that_waits_is_left_to_the_service() {
    let (ours, theirs) = pair();
    let socket = table::socket(ours).expect("accelerated");
    for (seconds, is_left) in [(1, true), (0, false), (-1, false)] {
        socket.private().linger_s.store(seconds, SeqCst);
        assert_eq!(Leaving::begin(ours, &socket).is_none(), is_left, "{seconds}");
    }
    close_both(ours, theirs);
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
fn a_close_during_a_call_is_left_to_the_service() {
    let (ours, theirs) = pair();
    let socket = table::socket(ours).expect("accelerated");
    // Of another thread or process.
    in_flight::begin(&socket);
    assert!(Leaving::begin(ours, &socket).is_none());
    in_flight::end(&socket);
    assert!(Leaving::begin(ours, &socket).is_some());
    close_both(ours, theirs);
}
