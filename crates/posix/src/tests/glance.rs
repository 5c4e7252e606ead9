//! The shortest looks of `epoll_wait`, by themselves. In whole calls a longer look finds what they have missed, so that only the
//! instructions would tell.

use super::os::*;
use super::rejoin::alone;
use crate::fake::DIRECT;
use crate::fd::table::{self, Descriptor};
use crate::ready::instance::{self, Instance, Look};
use crate::ready::interest::{Glance, Interest};
use libc::{EPOLL_CTL_ADD as ADD, EPOLL_CTL_DEL as DEL, EPOLL_CTL_MOD as MOD, EPOLLET, EPOLLIN, EPOLLOUT, c_int};
use std::os::fd::AsRawFd;
use towpath_client::session::{self, Session};

/// A look at connections of the stack or at direct ones. `Some`: it has found this event, and has been told so of `stores`.
struct Short {
    directly: bool,
    /// The kernel's descriptors are due.
    due: bool,
    /// The program's array can be written.
    stores: bool,
}

impl Look for Short {
    type Found = Option<(u64, c_int)>;
    fn look(self, interest: &mut Interest, session: &'static Session) -> Self::Found {
        let mut event = None;
        let put = |found: libc::epoll_event| {
            event = Some((found.u64, found.events as c_int)).filter(|_| self.stores);
            self.stores
        };
        let due = |_, _| self.due;
        let found = match self.directly {
            true => interest.glance_directly(session, due, put),
            false => interest.glance(session, due, put),
        };
        assert_eq!(matches!(found, Glance::One), event.is_some());
        event
    }
}

fn instance_of(epfd: c_int) -> &'static Instance {
    let Descriptor::Epoll(id) = table::get(epfd) else { panic!("no instance of the library") };
    instance::instance(id)
}

/// What the shortest looks at connections of one carrier have to do, and what they leave to longer ones.
fn look_at(directly: bool) {
    let backlog = if directly { DIRECT } else { 16 };
    let (pairs, epfd) = ([pair_for(backlog), pair_for(backlog)], epoll());
    let [(ours, theirs), (other, others)] = pairs;
    assert_eq!(table::socket(ours).expect("accelerated").direct().is_some(), directly);
    let short = |due, stores| {
        let session = session::usual().expect("a session");
        instance_of(epfd).look(session, Short { directly, due, stores }).expect("the list is plain")
    };
    let glance = || short(false, true);
    let raised = || eventually(|| instance_of(epfd).raised());
    control(epfd, ADD, ours, EPOLLIN, 7).expect("add");
    // Drains the events of the connection's start.
    assert_eq!(wait(epfd, 30), []);
    assert_eq!(glance(), None);
    send(theirs, b"one", 0).expect("send");
    raised();
    assert_eq!(short(false, false), None, "EFAULT");
    assert_eq!([glance(), glance()], [Some((7, EPOLLIN)); 2], "the event is not lost, and is told by level");
    assert_eq!(recv(ours, 9, 0), Ok(b"one".to_vec()));
    assert_eq!((glance(), wait(epfd, 0)), (None, vec![]));
    // The event that is in the queue.
    send(theirs, b"two", 0).expect("send");
    raised();
    assert_eq!([glance(), glance()], [Some((7, EPOLLIN)); 2]);
    assert_eq!(recv(ours, 9, 0), Ok(b"two".to_vec()));
    assert_eq!(wait(epfd, 0), []);
    // With kernel descriptors the kernel has its turn.
    let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
    let kernels = reader.as_raw_fd();
    control(epfd, ADD, kernels, EPOLLIN, 9).expect("add");
    send(theirs, b"due", 0).expect("send");
    raised();
    assert_eq!((short(true, true), glance()), (None, Some((7, EPOLLIN))));
    control(epfd, DEL, kernels, 0, 0).expect("delete");
    drop((reader, writer));
    assert_eq!(recv(ours, 9, 0), Ok(b"due".to_vec()));
    assert_eq!(wait(epfd, 0), []);
    // Several are for a longer look, which finds all of them.
    control(epfd, ADD, other, EPOLLIN, 8).expect("add");
    assert_eq!(wait(epfd, 30), []);
    send(theirs, b"first", 0).expect("send");
    send(others, b"second", 0).expect("send");
    let mut told = Vec::new();
    eventually(|| {
        let both = [ours, other].map(|fd| table::socket(fd).expect("accelerated").readable() > 0) == [true; 2];
        // The words of the second are there a moment before its event.
        both && glance().is_none() && {
            told = wait(epfd, 0);
            told.len() == 2
        }
    });
    told.sort_unstable();
    assert_eq!(told, [(7, EPOLLIN), (8, EPOLLIN)]);
    assert_eq!(glance(), None, "two are ready");
    assert_eq!(recv(other, 9, 0), Ok(b"second".to_vec()));
    assert_eq!(wait(epfd, 0), [(7, EPOLLIN)]);
    // Edges and room are for a longer look, too.
    for (events, expected) in [(EPOLLIN | EPOLLET, EPOLLIN), (EPOLLIN | EPOLLOUT, EPOLLIN | EPOLLOUT)] {
        control(epfd, MOD, ours, events, 7).expect("modify");
        assert_eq!((glance(), wait(epfd, 0)), (None, vec![(7, expected)]));
    }
    // And so is the end.
    control(epfd, MOD, ours, EPOLLIN, 7).expect("modify");
    assert_eq!(recv(ours, 9, 0), Ok(b"first".to_vec()));
    assert_eq!(wait(epfd, 0), []);
    close(theirs).expect("close");
    eventually(|| {
        assert_eq!(glance(), None);
        wait(epfd, 0) == [(7, EPOLLIN)]
    });
    [ours, other, others, epfd].into_iter().for_each(|fd| _ = close(fd).expect("close"));
}

#[test]
fn a_glance_finds_the_only_event_of_a_connection_over_the_stack() {
    alone("glance::a_glance_finds_the_only_event_of_a_connection_over_the_stack", || look_at(false));
}

/// In a process of its own: it is on one side of the pair.
#[test]
fn a_glance_finds_the_only_event_of_a_direct_connection() {
    alone("glance::a_glance_finds_the_only_event_of_a_direct_connection", || look_at(true));
}
