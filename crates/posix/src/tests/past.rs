//! Waits past the library: by the kernel's `epoll_pwait`, of which the library sees nothing.

use super::halves_fork::{Child, no_fork};
use super::os::*;
use crate::fd::table::{self, Descriptor};
use crate::ready::instance::{self, Instance, waits};
use libc::{EPOLL_CTL_ADD as ADD, EPOLL_CTL_DEL as DEL, EPOLL_CTL_MOD as MOD};
use libc::{EPOLLET, EPOLLHUP, EPOLLIN, EPOLLONESHOT, EPOLLOUT, EPOLLRDHUP, c_int, epoll_event};
use towpath_hook::real;

/// `epoll_pwait` by the kernel alone: (data, bits), sorted.
fn raw(epfd: c_int, timeout_ms: c_int) -> Vec<(u64, c_int)> {
    let mut events = [epoll_event { events: 0, u64: 0 }; 16];
    // SAFETY: there is room for 16 events.
    let found = unsafe { real::epoll_pwait(epfd, events.as_mut_ptr(), 16, timeout_ms, core::ptr::null()) };
    let found = &events[..usize::try_from(found).expect("epoll_pwait")];
    let mut found: Vec<_> = found.iter().map(|event| (event.u64, event.events as c_int)).collect();
    found.sort_unstable();
    found
}

fn instance_of(epfd: c_int) -> &'static Instance {
    let Descriptor::Epoll(id) = table::get(epfd) else { panic!("no instance of the library") };
    instance::instance(id)
}

/// A connection, of which one end is in an instance with this interest, and the kernel has told of its first byte.
fn past(events: c_int) -> (c_int, c_int, c_int) {
    let (ours, theirs) = pair();
    nonblocking(ours);
    let epfd = epoll();
    let _no_fork = no_fork();
    control(epfd, ADD, ours, events, 7).expect("add");
    let sender = later(10, move || send(theirs, b"a", 0));
    assert_eq!(raw(epfd, 60_000), [(7, EPOLLIN)], "the first event");
    // It may tell of the connection's start.
    eventually(|| recv(ours, 10, 0).as_deref() == Ok(b"a"));
    assert_eq!(recv(ours, 10, 0), Err(libc::EAGAIN));
    sender.join().expect("thread").expect("send");
    assert_eq!(instance_of(epfd).waits(), waits::OWN, "the call has found that the program waits past the library");
    (ours, theirs, epfd)
}

#[test]
fn a_level_is_told_as_long_as_it_is_so() {
    let (ours, theirs, epfd) = past(EPOLLIN);
    assert_eq!(raw(epfd, 0), []);
    for round in 0..50 {
        let sender = later(1, move || send(theirs, b"ab", 0));
        assert_eq!(raw(epfd, 60_000), [(7, EPOLLIN)], "round {round}");
        sender.join().expect("thread").expect("send");
        eventually(|| table::socket(ours).expect("accelerated").readable() == 2);
        recv(ours, 1, 0).expect("recv");
        assert_eq!(raw(epfd, 0), [(7, EPOLLIN)]);
        recv(ours, 1, 0).expect("recv");
        // What has come in two events may be told of after the first.
        eventually(|| raw(epfd, 0).is_empty());
    }
    control(epfd, MOD, ours, EPOLLIN | EPOLLOUT, 8).expect("mod");
    assert_eq!(raw(epfd, 60_000), [(8, EPOLLOUT)]);
    assert_eq!(control(epfd, ADD, ours, EPOLLIN, 9), Err(libc::EEXIST));
    control(epfd, DEL, ours, 0, 0).expect("del");
    assert_eq!(raw(epfd, 0), []);
    assert_eq!(control(epfd, DEL, ours, 0, 0), Err(libc::ENOENT));
    assert_eq!(control(epfd, MOD, ours, 0, 0), Err(libc::ENOENT));
    control(epfd, ADD, ours, EPOLLIN | EPOLLRDHUP, 9).expect("add");
    close(theirs).expect("close");
    eventually(|| raw(epfd, 60_000) == [(9, EPOLLIN | EPOLLRDHUP)]);
    close(ours).expect("close");
    assert_eq!(raw(epfd, 0), [], "a closed descriptor is not watched");
    close(epfd).expect("close");
}

#[test]
fn room_is_told_when_there_is_some() {
    let (ours, theirs, epfd) = past(EPOLLIN);
    control(epfd, MOD, ours, EPOLLOUT, 7).expect("mod");
    // The stack may make room after each time that there was none, until the peer's ring is full, too.
    eventually(|| {
        while send(ours, &[0; 4096], 0).is_ok() {}
        raw(epfd, 0).is_empty() && send(ours, &[0; 4096], 0).is_err()
    });
    let reader = later(10, move || while recv(theirs, 4096, libc::MSG_DONTWAIT).is_ok() {});
    assert_eq!(raw(epfd, 60_000), [(7, EPOLLOUT)]);
    reader.join().expect("thread");
    for fd in [ours, theirs, epfd] {
        close(fd).expect("close");
    }
}

#[test]
fn an_edge_is_told_once_for_each_event() {
    let (ours, theirs, epfd) = past(EPOLLIN | EPOLLET);
    while !raw(epfd, 30).is_empty() {}
    for round in 0..50 {
        send(theirs, b"b", 0).expect("send");
        assert_eq!(raw(epfd, 60_000), [(7, EPOLLIN)], "round {round}");
        assert_eq!(raw(epfd, 0), [], "nothing new");
    }
    control(epfd, MOD, ours, EPOLLIN | EPOLLET, 8).expect("mod");
    assert_eq!(raw(epfd, 60_000), [(8, EPOLLIN)], "a change of the interest counts as an edge");
    control(epfd, MOD, ours, EPOLLIN | EPOLLONESHOT, 9).expect("mod");
    assert_eq!(raw(epfd, 60_000), [(9, EPOLLIN)]);
    send(theirs, b"c", 0).expect("send");
    assert_eq!(raw(epfd, 30), [], "once");
    control(epfd, MOD, ours, EPOLLIN | EPOLLONESHOT, 10).expect("mod");
    assert_eq!(raw(epfd, 60_000), [(10, EPOLLIN)]);
    for fd in [ours, theirs, epfd] {
        close(fd).expect("close");
    }
}

#[test]
fn waits_through_the_library_get_each_event_once() {
    let (ours, theirs, epfd) = past(EPOLLIN | EPOLLET);
    while !wait(epfd, 30).is_empty() {}
    for round in 0..50 {
        send(theirs, b"b", 0).expect("send");
        assert_eq!(wait(epfd, 60_000), [(7, EPOLLIN)], "round {round}");
        assert_eq!((wait(epfd, 0), raw(epfd, 0)), (vec![], vec![]));
    }
    for fd in [ours, theirs, epfd] {
        close(fd).expect("close");
    }
}

#[test]
fn a_server_and_copies_of_its_descriptors() {
    let _no_fork = no_fork();
    let (listening, port) = listener(libc::SOCK_NONBLOCK);
    let epfd = epoll();
    control(epfd, ADD, listening, EPOLLIN, 1).expect("add");
    let mut served = Vec::new();
    for round in 2..10 {
        let client = socket(0);
        let connected = later(1, move || connect(client, port));
        let accepted = loop {
            assert_eq!(raw(epfd, 60_000), [(1, EPOLLIN)], "round {round}");
            if let Ok(accepted) = accept(listening, libc::SOCK_NONBLOCK) {
                break accepted;
            }
        };
        connected.join().expect("thread").expect("connect");
        control(epfd, ADD, accepted, EPOLLIN, round).expect("add");
        // SAFETY: integers only.
        let copy = unsafe { <crate::handler::Posix as towpath_hook::Handler>::dup(accepted) };
        let copy = copy.expect("ours").expect("dup");
        eventually(|| raw(epfd, 0).is_empty());
        send(client, b"x", 0).expect("send");
        assert_eq!(raw(epfd, 60_000), [(round, EPOLLIN)]);
        recv(copy, 1, 0).expect("recv");
        eventually(|| raw(epfd, 0).is_empty());
        close(accepted).expect("close");
        send(client, b"x", 0).expect("send");
        assert_eq!(raw(epfd, 60_000), [(round, EPOLLIN)], "a copy is open");
        recv(copy, 1, 0).expect("recv");
        eventually(|| raw(epfd, 0).is_empty());
        served.push((client, copy));
    }
    for (client, copy) in served {
        close_both(client, copy);
    }
    assert_eq!(raw(epfd, 0), []);
    close_both(listening, epfd);
}

#[test]
fn a_late_doorbell_of_another_instance_hides_no_event() {
    let _no_fork = no_fork();
    let (listening, port) = listener(libc::SOCK_NONBLOCK);
    let epfd = epoll();
    control(epfd, ADD, listening, EPOLLIN, 1).expect("add");
    instance_of(epfd).ring_late();
    assert_eq!(raw(epfd, 60_000), [(1, EPOLLIN)]);
    assert_eq!(accept(listening, 0), Err(libc::EAGAIN));
    let client = socket(0);
    connect(client, port).expect("connect");
    assert_eq!(raw(epfd, 10_000), [(1, EPOLLIN)]);
    let accepted = accept(listening, 0).expect("accept");
    close_both(client, accepted);
    close_both(listening, epfd);
}

#[test]
fn the_first_event_is_told_for_a_socket_that_is_still_watched() {
    let _no_fork = no_fork();
    let (ours, theirs) = pair();
    let (other, peer) = pair();
    let epfd = epoll();
    control(epfd, ADD, ours, EPOLLIN, 1).expect("add");
    control(epfd, ADD, other, EPOLLIN, 2).expect("add");
    control(epfd, DEL, ours, 0, 0).expect("del");
    send(peer, b"x", 0).expect("send");
    assert_eq!(raw(epfd, 60_000), [(2, EPOLLIN)]);
    close_both(other, peer);
    assert_eq!(raw(epfd, 0), []);
    assert_eq!(instance_of(epfd).waits(), waits::OWN, "close has found it");
    control(epfd, ADD, ours, EPOLLIN, 3).expect("add");
    send(theirs, b"x", 0).expect("send");
    assert_eq!(raw(epfd, 60_000), [(3, EPOLLIN)]);
    for fd in [ours, theirs, epfd] {
        close(fd).expect("close");
    }
}

#[test]
fn a_program_that_waits_through_the_library_has_no_bridge() {
    let (ours, theirs) = pair();
    let (listening, port) = listener(libc::SOCK_NONBLOCK);
    let epfd = epoll();
    control(epfd, ADD, ours, EPOLLIN | EPOLLOUT, 1).expect("add");
    control(epfd, ADD, listening, EPOLLIN, 2).expect("add");
    // Calls before the first wait, with events that nobody has taken.
    send(theirs, b"x", 0).expect("send");
    eventually(|| recv(ours, 1, libc::MSG_PEEK | libc::MSG_DONTWAIT).is_ok());
    assert_eq!(accept(listening, 0), Err(libc::EAGAIN));
    send(ours, b"x", 0).expect("send");
    let instance = instance_of(epfd);
    assert_eq!(instance.waits(), waits::UNSEEN);
    assert!(!table::is_measured(ours), "calls take the fast path");
    assert_eq!(wait(epfd, 60_000), [(1, EPOLLIN | EPOLLOUT)]);
    assert_eq!(instance.waits(), waits::LIBRARY);
    recv(ours, 1, 0).expect("recv");
    control(epfd, MOD, ours, EPOLLIN, 1).expect("mod");
    let client = socket(0);
    connect(client, port).expect("connect");
    assert_eq!(wait(epfd, 60_000), [(2, EPOLLIN)]);
    let accepted = accept(listening, 0).expect("accept");
    control(epfd, ADD, accepted, EPOLLIN, 3).expect("add");
    assert_eq!(instance.waits(), waits::LIBRARY);
    for fd in [ours, theirs, listening, client, accepted, epfd] {
        close(fd).expect("close");
    }
}

#[test]
fn hang_ups_are_told() {
    let (ours, theirs, epfd) = past(EPOLLIN | EPOLLRDHUP);
    close(theirs).expect("close");
    eventually(|| raw(epfd, 60_000) == [(7, EPOLLIN | EPOLLRDHUP)]);
    shutdown(ours, libc::SHUT_WR).expect("shutdown");
    eventually(|| raw(epfd, 60_000) == [(7, EPOLLIN | EPOLLRDHUP | EPOLLHUP)]);
    close_both(ours, epfd);
}

#[test]
fn a_forked_child_takes_the_sockets_over() {
    let (ours, theirs, epfd) = past(EPOLLIN);
    eventually(|| raw(epfd, 0).is_empty());
    // The parent's thread tells the child too, as both have one native set.
    let child = Child::new(|| {
        assert_eq!(send(ours, b"x", 0), Ok(1));
        let (told, got) = (raw(epfd, 60_000), recv(ours, 10, 0));
        assert!(!told.is_empty() && told.iter().all(|event| *event == (7, EPOLLIN)), "{told:?}");
        got.as_deref() == Ok(b"y")
            && control(epfd, MOD, ours, EPOLLOUT, 8).is_ok()
            && raw(epfd, 60_000).contains(&(8, EPOLLOUT))
    });
    assert_eq!(recv(theirs, 1, 0).as_deref(), Ok(&b"x"[..]));
    send(theirs, b"y", 0).expect("send");
    assert!(child.ends_well());
    eventually(|| raw(epfd, 0).is_empty());
    send(theirs, b"z", 0).expect("send");
    assert_eq!(raw(epfd, 60_000), [(7, EPOLLIN)]);
    for fd in [ours, theirs, epfd] {
        close(fd).expect("close");
    }
}

#[test]
fn a_set_with_exclusive_watches_is_the_librarys() {
    let (listening, _) = listener(libc::SOCK_NONBLOCK);
    let epfd = epoll();
    control(epfd, ADD, listening, EPOLLIN | libc::EPOLLEXCLUSIVE, 1).expect("add");
    assert_eq!(instance_of(epfd).waits(), waits::LIBRARY);
    close_both(listening, epfd);
}
