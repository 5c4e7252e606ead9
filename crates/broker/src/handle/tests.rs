//! What the worker makes of the broker's answers, which lie ready when it asks.
#![allow(clippy::unwrap_used)]

use super::*;
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, socketpair};
use std::io::{Read, Write};

/// An answer's number, result and port, and whether a descriptor comes with it.
type Ready = (u32, i32, Option<Held>, bool);

const HELD: Held = Held { addr: IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), port: 7, dual: false };

fn pair() -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
}

fn null() -> OwnedFd {
    std::fs::File::open("/dev/null").unwrap().into()
}

fn put(socket: &OwnedFd, (number, result, held, shown): Ready) {
    let answer = Answer { held, ..Answer::plain(number, result) };
    channel::answer(socket, &answer, shown.then(null)).unwrap();
}

/// A way to a broker that has answered already. It says no more.
fn answered(answers: &[Ready]) -> Broker {
    let (ours, theirs) = pair();
    answers.iter().for_each(|answer| put(&theirs, *answer));
    rustix::net::shutdown(&theirs, Shutdown::Write).unwrap();
    // It is never read, so that the broker does not seem to have ended.
    std::mem::forget(theirs);
    Broker::new(ours)
}

/// The end of a socket, though a process of another test may have a copy.
fn end(socket: OwnedFd) {
    rustix::net::shutdown(&socket, Shutdown::Both).unwrap();
}

#[test]
fn a_success_without_the_descriptor_that_belongs_to_it_is_an_error() {
    let kind = |result: io::Result<OwnedFd>| result.unwrap_err().kind();
    assert_eq!(kind(answered(&[(1, 0, None, false)]).configuration()), io::ErrorKind::InvalidData);
    assert_eq!(kind(answered(&[(1, 0, None, false)]).first_syns(0, true)), io::ErrorKind::InvalidData);
    assert!(answered(&[(1, 0, None, true)]).configuration().is_ok());
    assert!(answered(&[(1, 0, None, true)]).first_syns(0, true).is_ok());
}

#[test]
fn an_errno_is_an_error_whether_a_descriptor_comes_with_it_or_not() {
    let errno = |result: io::Result<OwnedFd>| result.unwrap_err().raw_os_error();
    for shown in [false, true] {
        assert_eq!(errno(answered(&[(1, libc::EPERM, None, shown)]).configuration()), Some(libc::EPERM));
        assert_eq!(errno(answered(&[(1, libc::EPERM, None, shown)]).first_syns(0, false)), Some(libc::EPERM));
    }
    assert_eq!(
        answered(&[(1, libc::EPERM, None, false)]).reserve_ports().unwrap_err().raw_os_error(),
        Some(libc::EPERM)
    );
}

#[test]
fn answers_to_requests_that_nobody_waits_for_are_passed_over() {
    let broker =
        answered(&[(7, 0, None, true), (u32::MAX, libc::EPERM, None, false), (1, 0, None, true), (2, 5, None, false)]);
    assert!(broker.configuration().is_ok());
    assert_eq!(broker.reserve_ports().unwrap_err().raw_os_error(), Some(5), "the next request has the next number");
}

#[test]
fn a_descriptor_is_taken_when_the_broker_has_no_copy_any_more() {
    let (ours, theirs) = pair();
    channel::send(&theirs, &Answer::plain(1, 0).encode(), Some(null().as_fd())).unwrap();
    let early = answer(&ours, 1, Duration::ZERO).unwrap_err();
    assert_eq!(early.kind(), io::ErrorKind::TimedOut, "the broker has not said so");
}

#[test]
fn a_broker_that_says_nothing_is_waited_for_so_long_and_one_that_has_ended_is_not() {
    let (ours, theirs) = pair();
    assert_eq!(answer(&ours, 1, Duration::from_millis(1)).unwrap_err().kind(), io::ErrorKind::TimedOut);
    put(&theirs, (1, 9, None, false));
    assert_eq!(answer(&ours, 1, Duration::from_millis(1)).unwrap().0.result, 9);
    end(theirs);
    assert_eq!(answer(&ours, 1, LONGEST).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
}

#[test]
fn what_is_no_answer_is_an_error() {
    let (ours, theirs) = pair();
    channel::send(&theirs, &[1; 8], None).unwrap();
    assert_eq!(answer(&ours, 1, LONGEST).unwrap_err().kind(), io::ErrorKind::InvalidData);
}

/// The worker's view of a proof that has begun: its answer comes through another socket.
fn proof(answers: &[Ready]) -> Result<Held, i32> {
    let ((ours, theirs), (own, answering)) = (pair(), pair());
    channel::answer(&theirs, &Answer::plain(1, 0), Some(own)).unwrap();
    answers.iter().for_each(|answer| put(&answering, *answer));
    end(answering);
    Broker::new(ours).prove(null().as_fd()).map(|(_, held)| held)
}

#[test]
fn a_proof_is_a_port_with_its_socket_or_a_refusal() {
    assert_eq!(proof(&[(1, 0, Some(HELD), true)]), Ok(HELD));
    assert_eq!(proof(&[(1, 0, Some(HELD), false)]), Err(-libc::EPROTO));
    assert_eq!(proof(&[(1, 0, None, true)]), Err(-libc::EPROTO));
    assert_eq!(proof(&[(1, -libc::EADDRINUSE, None, false)]), Err(-libc::EADDRINUSE), "as the client is told");
    assert_eq!(proof(&[(1, libc::EAGAIN, None, false)]), Err(-libc::EAGAIN));
    assert_eq!(proof(&[]), Err(-libc::EAGAIN), "the process has been ended");
}

#[test]
fn a_proof_that_does_not_begin_is_refused() {
    let refused = |broker: Broker| broker.prove(null().as_fd()).map(|(_, held)| held);
    assert_eq!(refused(answered(&[(1, -libc::EACCES, None, false)])), Err(-libc::EACCES));
    assert_eq!(refused(answered(&[])), Err(-libc::EAGAIN));
    let (ours, theirs) = pair();
    end(theirs);
    assert_eq!(refused(Broker::new(ours)), Err(-libc::EPIPE), "there is no broker");
}

#[test]
fn a_stack_has_started_or_there_is_a_reason() {
    let start = |said: &str| {
        let ((ours, theirs), (reading, writing)) = (pair(), std::os::unix::net::UnixStream::pair().unwrap());
        channel::answer(&theirs, &Answer::plain(1, 0), Some(reading.into())).unwrap();
        (&writing).write_all(said.as_bytes()).unwrap();
        end(writing.into());
        Broker::new(ours).start_stack(1)
    };
    assert_eq!(start("+"), Ok(()));
    assert_eq!(start("-it has no device"), Err("it has no device".into()));
    assert_eq!(start(""), Err("nobody knows whether it has started".into()));
    let busy = io::Error::from_raw_os_error(libc::EBUSY).to_string();
    assert_eq!(answered(&[(1, libc::EBUSY, None, false)]).start_stack(1), Err(busy));
}

#[test]
fn an_interface_is_there_with_every_part_or_not_at_all() {
    let open = |answers: &[Ready]| answered(answers).open_port(0, 1).map(|(_, parts)| parts.len());
    let (opened, part) = ((1, 0, None, false), |number| (number, 0, None, true));
    assert_eq!(open(&[opened, part(2), part(3), (4, libc::ENOENT, None, false)]), Ok(2));
    let refused = open(&[opened, part(2), (3, libc::EMFILE, None, false)]).unwrap_err();
    assert_eq!((refused.errno, refused.why.starts_with("the broker does not answer")), (libc::EMFILE, true));
    let none = open(&[opened, part(2), (3, 0, None, false)]).unwrap_err();
    assert_eq!(none.why, format!("the broker does not answer: {}", io::Error::from_raw_os_error(0)));
    assert_eq!(open(&[]).unwrap_err().errno, libc::EIO);
}

#[test]
fn threads_that_keep_the_brokers_descriptor_keep_the_socket() {
    let (ours, _theirs) = pair();
    let number = rustix::fd::AsRawFd::as_raw_fd(&ours);
    assert_eq!(rustix::fd::AsRawFd::as_raw_fd(&Broker::new(ours).as_fd()), number);
}

#[test]
fn what_is_said_of_a_module_comes_after_the_whole_object_and_has_a_limit() {
    let (ours, theirs) = pair();
    let (asking, mut answering) = std::os::unix::net::UnixStream::pair().unwrap();
    channel::answer(&theirs, &Answer::plain(1, 0), Some(asking.into())).unwrap();
    let judge = std::thread::spawn(move || {
        let mut object = Vec::new();
        answering.read_to_end(&mut object).unwrap();
        // More than is taken. The end that asks may be closed before all is written.
        let _ = answering.write_all(&vec![b'v'; 3 << 20]);
        object
    });
    let said = Broker::new(ours).module(2, b"the object").unwrap();
    assert_eq!((said.len(), said.iter().all(|&byte| byte == b'v')), (1 << 20, true));
    assert_eq!(judge.join().unwrap(), b"the object");
    assert_eq!(
        answered(&[(1, libc::EAGAIN, None, false)]).module(2, b"").unwrap_err().raw_os_error(),
        Some(libc::EAGAIN)
    );
}
