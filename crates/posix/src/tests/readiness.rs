//! `poll` and `select` over slots and kernel descriptors.

use super::os::*;
use crate::handler::Posix;
use libc::{POLLIN, POLLOUT, fd_set, timeval};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};
use towpath_hook::Handler;

#[test]
fn poll_sleeps_on_slots_and_pipes_at_once() {
    let (ours, theirs) = pair();
    let (reader, mut writer) = std::io::pipe().expect("pipe");
    let watched = [(ours, POLLIN), (reader.as_raw_fd(), POLLIN), (-1, POLLIN)];
    let start = Instant::now();
    assert_eq!(poll(&watched, 50), Ok(vec![0, 0, 0]));
    assert!(start.elapsed() >= Duration::from_millis(49));
    let sender = later(20, move || send(theirs, b"x", 0));
    assert_eq!(poll(&watched, 60_000), Ok(vec![POLLIN, 0, 0]));
    sender.join().expect("thread").expect("send");
    writer.write_all(b"x").expect("write");
    assert_eq!(poll(&watched, -1), Ok(vec![POLLIN, POLLIN, 0]));
    recv(ours, 1, 0).expect("recv");
    assert_eq!(poll(&watched, -1), Ok(vec![0, POLLIN, 0]));
    assert_eq!(poll(&[(ours, POLLIN | POLLOUT)], -1), Ok(vec![POLLOUT]));
    close_both(ours, theirs);
}

#[test]
fn poll_on_an_epoll_descriptor_sees_the_slots_in_it() {
    let (ours, theirs) = pair();
    let epfd = epoll();
    control(epfd, libc::EPOLL_CTL_ADD, ours, libc::EPOLLIN, 1).expect("add");
    assert_eq!(poll(&[(epfd, POLLIN)], 0), Ok(vec![0]));
    let sender = later(30, move || send(theirs, b"x", 0));
    assert_eq!(poll(&[(epfd, POLLIN)], 60_000), Ok(vec![POLLIN]));
    sender.join().expect("thread").expect("send");
    assert_eq!(wait(epfd, 0), [(1, libc::EPOLLIN)]);
    for fd in [ours, theirs, epfd] {
        close(fd).expect("close");
    }
}

#[test]
fn select_sets_bits_and_leaves_the_rest_of_the_time() {
    let (ours, theirs) = pair();
    // SAFETY: the set and the time are locals; `ours` is a small number.
    let select = |read: &mut fd_set, ms: i64| unsafe {
        libc::FD_ZERO(read);
        libc::FD_SET(ours, read);
        let mut time = timeval { tv_sec: ms / 1_000, tv_usec: ms % 1_000 * 1_000 };
        let null = core::ptr::null_mut();
        let found = Posix::select(ours + 1, &raw mut *read, null, null, &raw mut time).expect("ours");
        (found, libc::FD_ISSET(ours, read), time.tv_sec * 1_000 + time.tv_usec / 1_000)
    };
    // SAFETY: an empty set is all zero.
    let mut read: fd_set = unsafe { core::mem::zeroed() };
    assert_eq!(select(&mut read, 30), (Ok(0), false, 0));
    let sender = later(20, move || send(theirs, b"x", 0));
    let (found, set, left) = select(&mut read, 60_000);
    assert_eq!((found, set), (Ok(1), true));
    assert!((1_000..=59_990).contains(&left), "{left}");
    sender.join().expect("thread").expect("send");
    close_both(ours, theirs);
}

#[test]
fn many_polling_threads() {
    // More threads than contexts that are kept, so that contexts are opened, given back, and opened again.
    let threads: Vec<_> = (0..12)
        .map(|n| {
            std::thread::spawn(move || {
                let (ours, theirs) = pair();
                let (other, another) = pair();
                for i in 0..30u8 {
                    let sender = later(u64::from(i % 3), move || send(theirs, &[i], 0));
                    let found = poll(&[(ours, POLLIN), (other, POLLIN)], 60_000);
                    assert_eq!(found, Ok(vec![POLLIN, 0]), "thread {n}, round {i}");
                    assert_eq!(recv(ours, 1, 0), Ok(vec![i]));
                    sender.join().expect("thread").expect("send");
                }
                for fd in [ours, theirs, other, another] {
                    close(fd).expect("close");
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().expect("no failure in it"));
}
