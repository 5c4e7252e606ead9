//! The fast path where it has to leave a call to the handler.

use super::fast;
use super::halves_fork::Child;
use super::os::*;
use crate::fd::table::{self, Descriptor};
use crate::handler::Posix;
use libc::{EPOLL_CTL_ADD as ADD, EPOLLIN, c_int};
use towpath_client::session;
use towpath_hook::Handler;

fn write(fd: c_int) -> Option<isize> {
    // SAFETY: one byte.
    unsafe { fast::write(fd, b"x".as_ptr().cast(), 1) }
}

#[test]
fn a_child_makes_an_inherited_instance_its_own_before_the_fast_path_looks_at_it() {
    let ((ours, theirs), epfd) = (pair(), epoll());
    control(epfd, ADD, ours, EPOLLIN, 5).expect("add");
    assert_eq!(wait(epfd, 30), []);
    send(theirs, b"a", 0).expect("send");
    eventually(|| fast::wait(epfd) == Some((1, 5)));
    let child = Child::new(|| {
        // A call that takes a lock: from now on the thread knows its id, without which the fast path does nothing.
        send(theirs, b"b", 0).expect("send");
        fast::wait(epfd).is_none() && wait(epfd, 60_000) == [(5, EPOLLIN)]
    });
    assert!(child.ends_well());
    assert_eq!(fast::wait(epfd), Some((1, 5)), "the parent's is as it was");
    for fd in [ours, theirs, epfd] {
        close(fd).expect("close");
    }
}

#[test]
fn an_instance_with_more_than_connections_of_one_stack_is_looked_at_as_a_whole() {
    let ((ours, theirs), epfd, inner) = (pair(), epoll(), epoll());
    control(epfd, ADD, ours, EPOLLIN, 5).expect("add");
    assert_eq!(wait(epfd, 30), []);
    send(theirs, b"a", 0).expect("send");
    eventually(|| fast::wait(epfd) == Some((1, 5)));
    control(epfd, ADD, inner, EPOLLIN, 6).expect("add");
    assert_eq!(wait(epfd, 60_000), [(5, EPOLLIN)]);
    assert_eq!(fast::wait(epfd), None, "it watches another instance");
    close(inner).expect("close");
    assert_eq!(wait(epfd, 60_000), [(5, EPOLLIN)]);
    assert_eq!(fast::wait(epfd), Some((1, 5)));
    for fd in [ours, theirs, epfd] {
        close(fd).expect("close");
    }
}

#[test]
fn after_a_cancellation_every_call_is_the_handlers() {
    unsafe extern "C" {
        fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
    }
    const DISABLE: c_int = 1;
    let (ours, theirs) = pair();
    let child = Child::new(|| {
        // From now on the thread knows its id.
        send(ours, b"a", 0).expect("send");
        let before = (write(ours), session::usual().is_some());
        let mut old = 0;
        // SAFETY: `old` has room, and the thread is this one, which is cancelled no further than to the mark.
        unsafe {
            pthread_setcancelstate(DISABLE, &raw mut old);
            let _ = <Posix as Handler>::pthread_cancel(libc::pthread_self());
        }
        before == (Some(1), true) && (write(ours), session::usual().is_some()) == (None, false)
    });
    assert!(child.ends_well());
    assert_eq!(write(ours), Some(1), "another process");
    close_both(ours, theirs);
}

#[test]
fn only_sockets_of_the_processs_own_session_are_taken_for_such() {
    let (ours, theirs) = pair();
    let socket = table::socket(ours).expect("accelerated");
    let own = |fd| {
        table::named(fd).and_then(|named| named.own(socket.session)).map(|(slot, _, generation)| (slot, generation))
    };
    assert_eq!(own(ours), Some((socket.slot, socket.generation)));
    let other = 1_000_010;
    for kind in [
        Descriptor::Kernel,
        Descriptor::Pending(table::Pending::default()),
        Descriptor::Epoll(socket.number()),
        Descriptor::Internal,
        Descriptor::Ring(socket.number()),
        Descriptor::Slot { slot: socket.number() ^ 1 << towpath_client::socket::SLOT_BITS, generation: 1 },
    ] {
        table::set(other, kind);
        assert_eq!(own(other), None, "{kind:?}");
    }
    table::set(other, table::kind_of(&socket));
    assert_eq!(own(other), Some((socket.slot, socket.generation)));
    table::measure(other);
    assert_eq!(own(other), None, "measured");
    table::set(other, Descriptor::Kernel);
    close_both(ours, theirs);
}
