//! Epoll: triggers, slots beside kernel descriptors, and sockets that are promoted while they are watched.

use super::fast;
use super::os::*;
use crate::fd::table;
use libc::{EPOLL_CTL_ADD as ADD, EPOLL_CTL_DEL as DEL, EPOLL_CTL_MOD as MOD};
use libc::{EPOLLERR, EPOLLET, EPOLLHUP, EPOLLIN, EPOLLONESHOT, EPOLLOUT, EPOLLRDHUP, c_int};
use std::io::{PipeReader, PipeWriter};
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

#[test]
fn level_triggered_reports_as_long_as_it_is_so() {
    let (ours, theirs) = pair();
    let epfd = epoll();
    control(epfd, ADD, ours, EPOLLIN, 5).expect("add");
    assert_eq!(control(epfd, ADD, ours, EPOLLIN, 5), Err(libc::EEXIST));
    assert_eq!(wait(epfd, 0), []);
    send(theirs, b"ab", 0).expect("send");
    assert_eq!(wait(epfd, 60_000), [(5, EPOLLIN)]);
    recv(ours, 1, 0).expect("recv");
    assert_eq!(wait(epfd, 60_000), [(5, EPOLLIN)]);
    recv(ours, 1, 0).expect("recv");
    assert_eq!(wait(epfd, 0), []);
    control(epfd, MOD, ours, EPOLLIN | EPOLLOUT, 6).expect("mod");
    assert_eq!(wait(epfd, 0), [(6, EPOLLOUT)]);
    control(epfd, DEL, ours, 0, 0).expect("del");
    assert_eq!(wait(epfd, 0), []);
    assert_eq!(control(epfd, DEL, ours, 0, 0), Err(libc::ENOENT));
    assert_eq!(control(epfd, MOD, ours, 0, 0), Err(libc::ENOENT));
    for fd in [ours, theirs, epfd] {
        close(fd).expect("close");
    }
}

/// However the event was lost, the program does not sleep for ever.
#[test]
fn a_socket_whose_event_is_lost_is_found_by_a_long_wait() {
    for trigger in [0, EPOLLET] {
        let (ours, theirs) = pair();
        let epfd = epoll();
        control(epfd, ADD, ours, EPOLLIN | trigger, 5).expect("add");
        assert_eq!(wait(epfd, 30), [], "nothing yet");
        let socket = table::socket(ours).expect("a slot");
        let contexts = socket.session.region.app(socket.slot).ctx_mask.load(Relaxed);
        assert_ne!(contexts, 0);
        for context in (0..64).filter(|context| contexts & 1 << context != 0) {
            // As if an earlier event were still queued.
            let (_, acknowledged) = socket.session.region.event_words(context, 0, socket.slot);
            acknowledged.fetch_sub(1, Relaxed);
        }
        send(theirs, b"a", 0).expect("send");
        assert_eq!(wait(epfd, 60_000), [(5, EPOLLIN)]);
        for fd in [ours, theirs, epfd] {
            close(fd).expect("close");
        }
    }
}

/// Neither what the program has read nor the room that its answer has left is an edge, however long it waits.
#[test]
fn a_long_wait_finds_no_edge_where_nothing_has_come() {
    let (ours, theirs) = pair();
    let epfd = epoll();
    control(epfd, ADD, ours, EPOLLIN | EPOLLOUT | EPOLLET, 5).expect("add");
    // The event of the connection's start may still come.
    while !wait(epfd, 100).is_empty() {}
    send(theirs, b"question", 0).expect("send");
    assert_eq!(wait(epfd, 60_000), [(5, EPOLLIN | EPOLLOUT)]);
    recv(ours, 10, 0).expect("recv");
    send(ours, b"answer", 0).expect("send");
    recv(theirs, 10, 0).expect("recv");
    assert_eq!(wait(epfd, 2500), []);
    for fd in [ours, theirs, epfd] {
        close(fd).expect("close");
    }
}

#[test]
fn edge_triggered_reports_each_event_once() {
    let (ours, theirs) = pair();
    let epfd = epoll();
    control(epfd, ADD, ours, EPOLLIN | EPOLLET, 1).expect("add");
    // The event of the connection's start may still come. Together with the data it would make two edges.
    assert_eq!(wait(epfd, 30), [], "nothing yet");
    send(theirs, b"a", 0).expect("send");
    assert_eq!(wait(epfd, 60_000), [(1, EPOLLIN)]);
    assert_eq!(wait(epfd, 30), [], "nothing new");
    send(theirs, b"b", 0).expect("send");
    assert_eq!(wait(epfd, 60_000), [(1, EPOLLIN)]);
    // A change of the interest counts as an edge.
    control(epfd, MOD, ours, EPOLLIN | EPOLLET, 2).expect("mod");
    assert_eq!(wait(epfd, 0), [(2, EPOLLIN)]);
    assert_eq!(wait(epfd, 0), []);
    for fd in [ours, theirs, epfd] {
        close(fd).expect("close");
    }
}

#[test]
fn oneshot_is_armed_again_by_mod() {
    let (ours, theirs) = pair();
    let epfd = epoll();
    control(epfd, ADD, ours, EPOLLIN | EPOLLONESHOT, 1).expect("add");
    send(theirs, b"a", 0).expect("send");
    assert_eq!(wait(epfd, 60_000), [(1, EPOLLIN)]);
    send(theirs, b"b", 0).expect("send");
    assert_eq!(wait(epfd, 30), []);
    control(epfd, MOD, ours, EPOLLIN | EPOLLONESHOT, 1).expect("mod");
    assert_eq!(wait(epfd, 60_000), [(1, EPOLLIN)]);
    for fd in [ours, theirs, epfd] {
        close(fd).expect("close");
    }
}

#[test]
fn the_end_of_a_connection() {
    let (ours, theirs) = pair();
    let epfd = epoll();
    control(epfd, ADD, ours, EPOLLIN | EPOLLRDHUP, 1).expect("add");
    close(theirs).expect("close");
    assert_eq!(wait(epfd, 60_000), [(1, EPOLLIN | EPOLLRDHUP)]);
    crate::tests::os::shutdown(ours, libc::SHUT_WR).expect("shutdown");
    assert_eq!(wait(epfd, 60_000), [(1, EPOLLIN | EPOLLRDHUP | EPOLLHUP)]);
    close(ours).expect("close");
    assert_eq!(wait(epfd, 20), [], "a closed descriptor is not watched");
    close(epfd).expect("close");
}

#[test]
fn a_sleeping_wait_is_woken_by_slots_kernel_descriptors_and_other_threads() {
    let (ours, theirs) = pair();
    let epfd = epoll();
    let (reader, mut writer) = std::io::pipe().expect("pipe");
    control(epfd, ADD, ours, EPOLLIN | EPOLLET, 1).expect("add");
    control(epfd, ADD, reader.as_raw_fd(), EPOLLIN | EPOLLET, 2).expect("add");
    for round in 0..20 {
        let sender = later(10, move || send(theirs, b"x", 0));
        assert_eq!(wait(epfd, 60_000), [(1, EPOLLIN)], "round {round}");
        sender.join().expect("thread").expect("send");
        let sender = later(10, move || {
            use std::io::Write;
            writer.write_all(b"x").expect("write");
            writer
        });
        assert_eq!(wait(epfd, 60_000), [(2, EPOLLIN)], "round {round}");
        writer = sender.join().expect("thread");
    }
    let (third, fourth) = pair();
    // The liveness check comes after a second. A busy machine may be as slow once, but not 20 times.
    let soon = (0..20).any(|_| {
        let adder = later(50, move || control(epfd, ADD, third, EPOLLOUT, 3));
        let start = Instant::now();
        assert_eq!(wait(epfd, 60_000), [(3, EPOLLOUT)]);
        let soon = start.elapsed() < Duration::from_millis(800);
        adder.join().expect("thread").expect("add");
        control(epfd, DEL, third, 0, 0).expect("delete");
        soon
    });
    assert!(soon, "the liveness check wakes it");
    for fd in [ours, theirs, third, fourth, epfd] {
        close(fd).expect("close");
    }
}

/// An epoll descriptor with events of a slot (1) and of a pipe (2), the slot's ends, and the pipe.
fn busy() -> (c_int, [c_int; 2], (PipeReader, PipeWriter)) {
    let (ours, theirs) = pair();
    let epfd = epoll();
    let (reader, mut writer) = std::io::pipe().expect("pipe");
    control(epfd, ADD, ours, EPOLLOUT, 1).expect("add");
    control(epfd, ADD, reader.as_raw_fd(), EPOLLIN, 2).expect("add");
    std::io::Write::write_all(&mut writer, b"x").expect("write");
    (epfd, [ours, theirs], (reader, writer))
}

#[test]
fn kernel_descriptors_are_not_starved_by_a_busy_slot() {
    let (epfd, ends, _pipe) = busy();
    let seen = (0..40).filter(|_| wait(epfd, 0).contains(&(2, EPOLLIN))).count();
    assert!(seen >= 2, "in 40 calls the kernel was asked {seen} times");
    for fd in [ends[0], ends[1], epfd] {
        close(fd).expect("close");
    }
}

#[test]
fn room_for_one_event_is_shared_with_kernel_descriptors() {
    let (epfd, ends, _pipe) = busy();
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    let mut seen = [0; 3];
    for _ in 0..40 {
        // SAFETY: room for one event.
        let found = unsafe {
            crate::ready::epoll_wait::epoll_pwait(epfd, &raw mut event, 1, Some(Duration::ZERO), core::ptr::null())
        };
        assert_eq!(found, Some(Ok(1)));
        seen[event.u64 as usize] += 1;
    }
    assert!(seen[1] >= 2 && seen[2] >= 2, "{seen:?}");
    for fd in [ends[0], ends[1], epfd] {
        close(fd).expect("close");
    }
}

#[test]
fn a_socket_that_is_watched_before_it_connects() {
    let (listening, port) = listener(libc::SOCK_NONBLOCK);
    let epfd = epoll();
    control(epfd, ADD, listening, EPOLLIN, 1).expect("add");
    let ours = socket(libc::SOCK_NONBLOCK);
    // Some event loops register a socket before it connects. The kernel socket has the events of an unconnected one.
    control(epfd, ADD, ours, EPOLLOUT | EPOLLET, 2).expect("add");
    assert_eq!(wait(epfd, 0), [(2, EPOLLOUT | EPOLLHUP)]);
    assert_eq!(connect(ours, port), Err(libc::EINPROGRESS));
    assert!(table::socket(ours).is_some());
    let mut found = wait(epfd, 60_000);
    eventually(|| {
        found.extend(wait(epfd, 10));
        found.contains(&(1, EPOLLIN)) && found.contains(&(2, EPOLLOUT))
    });
    assert!(found.iter().all(|(_, events)| events & (EPOLLHUP | EPOLLERR) == 0), "{found:?}");
    let theirs = accept(listening, libc::SOCK_NONBLOCK).expect("accept");
    assert_eq!(accept(listening, 0), Err(libc::EAGAIN));
    assert_eq!(wait(epfd, 0), []);
    for fd in [ours, theirs, listening, epfd] {
        close(fd).expect("close");
    }
}

#[test]
fn writability_comes_back_as_an_edge() {
    let (ours, theirs) = pair();
    nonblocking(ours);
    let epfd = epoll();
    control(epfd, ADD, ours, EPOLLOUT | EPOLLET, 1).expect("add");
    assert_eq!(wait(epfd, 0), [(1, EPOLLOUT)]);
    let mut sent = 0;
    eventually(|| match send(ours, &[1; 4_096], 0) {
        Ok(n) => {
            sent += n;
            false
        }
        Err(_) => sent == (GEOMETRY.tx_bytes + GEOMETRY.rx_bytes) as usize,
    });
    // Drains the edges that came while the ring was filling.
    while !wait(epfd, 20).is_empty() {}
    let reader = later(20, move || recv(theirs, 30_000, 0));
    assert_eq!(wait(epfd, 60_000), [(1, EPOLLOUT)]);
    reader.join().expect("thread").expect("recv");
    for fd in [ours, theirs, epfd] {
        close(fd).expect("close");
    }
}

#[test]
fn the_fast_path_and_the_general_path_report_each_event_once() {
    let (pairs, epfd) = ([pair(), pair(), pair()], epoll());
    for (data, (ours, _)) in (1..).zip(pairs) {
        control(epfd, ADD, ours, EPOLLIN | if data == 3 { EPOLLET } else { 0 }, data).expect("add");
    }
    // Drains the events of the connections' start.
    assert_eq!(wait(epfd, 30), []);
    let glance = || fast::wait(epfd);
    assert_eq!(glance(), None, "nothing is ready, so the general path is needed");
    send(pairs[0].1, b"data", 0).expect("send");
    eventually(|| glance() == Some((1, 1)));
    // One connection ends, and one has data and is watched by edge.
    shutdown(pairs[1].1, libc::SHUT_WR).expect("shutdown");
    send(pairs[2].1, b"data", 0).expect("send");
    let mut told = Vec::new();
    eventually(|| {
        told.extend(wait(epfd, 0));
        [1, 2, 3].iter().all(|data| told.contains(&(*data, EPOLLIN)))
    });
    assert_eq!(told.iter().filter(|(data, _)| *data == 3).count(), 1, "an edge");
    for fd in pairs.into_iter().flat_map(|(ours, theirs)| [ours, theirs]).chain([epfd]) {
        close(fd).expect("close");
    }
}

#[test]
fn fast_paths_leave_other_calls_to_the_handler() {
    let (ours, theirs) = pair();
    let mut byte = [7u8; 1];
    let at = byte.as_mut_ptr().cast();
    // SAFETY: one byte, or none that is touched.
    unsafe {
        assert_eq!(fast::read(ours, at, 1), None, "there is nothing to read");
        for fd in [-1, 0, 1 << 20, c_int::MAX] {
            assert_eq!(fast::write(fd, at.cast_const(), 1), None, "{fd}");
            assert_eq!(fast::read(fd, at, 1), None, "{fd}");
        }
        assert_eq!(fast::send(ours, at.cast_const(), 1, libc::MSG_OOB), None);
        assert_eq!(fast::write(ours, core::ptr::null(), 1), None, "EFAULT is left to the handler");
        assert_eq!(fast::write(ours, at.cast_const(), usize::MAX), None);
        assert_eq!(fast::write(ours, at.cast_const(), 1), Some(1));
        eventually(|| fast::recv(theirs, at, 1, libc::MSG_PEEK).is_none() && readable(theirs));
        assert_eq!(fast::read(theirs, core::ptr::null_mut(), 1), None);
        assert_eq!(fast::read(theirs, at, usize::MAX), Some(1), "what there is");
    }
    shutdown(ours, libc::SHUT_WR).expect("shutdown");
    // SAFETY: one byte, or none that is touched.
    let sent = unsafe { fast::write(ours, at.cast_const(), 1) };
    assert_eq!(sent, None, "EPIPE and its signal are the handler's");
    close_both(ours, theirs);
}

fn readable(fd: c_int) -> bool {
    table::socket(fd).expect("accelerated").readable() > 0
}
