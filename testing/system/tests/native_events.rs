//! Events of the native API: which events come, when, and what happens when the service dies.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use std::collections::HashSet;
use std::sync::mpsc;
use std::time::Duration;
use towpath_native::{Connection, Event, Listener, Readiness, Stack};
use towpath_system_tests::native::*;
use towpath_system_tests::{Scratch, Service};

#[test]
fn a_connection_is_handed_to_another_thread() {
    both_ways("a_connection_is_handed_to_another_thread", || {
        let (mut stack, mut ours, theirs) = pair();
        stack.watch(&theirs, 1).unwrap();
        give(&mut ours, b"before").unwrap();
        await_event(&mut stack, "the first bytes", |event| event.token == 1);
        stack.unwatch(&theirs).unwrap();
        let (hand, take_over) = mpsc::channel::<Connection>();
        let other = std::thread::spawn(move || {
            let mut own = Stack::open().unwrap();
            let mut connection = take_over.recv().unwrap();
            own.watch(&connection, 2).unwrap();
            while !echo(&mut connection).unwrap() {
                await_event(&mut own, "more", |event| event.token == 2);
            }
        });
        hand.send(theirs).unwrap();
        assert_eq!(take(&mut ours, 6).unwrap(), b"before");
        for round in 0..200 {
            let bytes = pattern(round, 64);
            give(&mut ours, &bytes).unwrap();
            let mut got = Vec::new();
            while got.len() < 64 {
                got.extend(take(&mut ours, 64).unwrap());
            }
            assert_eq!(got, bytes);
        }
        ours.shutdown().unwrap();
        assert!(take_all(&mut ours).unwrap().is_empty());
        other.join().unwrap();
        let mut events = [Event::default(); 4];
        assert_eq!(
            stack.wait(&mut events, Some(Duration::ZERO)).unwrap(),
            0,
            "an event for a stack that has given the connection away: {events:?}"
        );
    });
}

#[test]
fn events_that_do_not_fit_come_with_the_next_wait() {
    both_ways("events_that_do_not_fit_come_with_the_next_wait", || {
        const COUNT: u64 = 40;
        let mut stack = Stack::open().unwrap();
        let mut listener = Listener::bind(&stack, anywhere(), COUNT as u32).unwrap();
        let mut connections = Vec::new();
        for token in 0..COUNT {
            let ours = connect(&mut stack, listener.local_addr());
            let theirs = accept(&mut listener, &mut stack);
            stack.watch(&theirs, token).unwrap();
            connections.push((ours, theirs));
        }
        stack.unwatch(&listener).unwrap();
        let mut events = [Event::default(); 3];
        while stack.wait(&mut events, Some(Duration::ZERO)).unwrap() > 0 {}
        for (ours, theirs) in &mut connections {
            give(ours, b"!").unwrap();
            assert!(theirs.wait(Readiness::READABLE, Some(LIMIT)).unwrap());
        }
        // All events come, and none twice in one wait.
        let mut told = HashSet::new();
        while told.len() < COUNT as usize {
            let count = stack.wait(&mut events, Some(LIMIT)).unwrap();
            assert!(count > 0, "only {told:?} had events");
            let tokens: HashSet<u64> = events[..count].iter().map(|event| event.token).collect();
            assert_eq!(tokens.len(), count, "an event came twice: {events:?}");
            told.extend(tokens);
        }
    });
}

#[test]
fn dropped_connections_have_no_more_events() {
    both_ways("dropped_connections_have_no_more_events", || {
        let (mut stack, mut ours, theirs) = pair();
        stack.watch(&theirs, 5).unwrap();
        give(&mut ours, b"unread").unwrap();
        await_event(&mut stack, "the bytes", |event| event.token == 5);
        drop(theirs);
        // Unread bytes make it a reset (RFC 2525 §2.17).
        assert_eq!(take_all(&mut ours).unwrap_err().raw_os_error(), Some(libc::ECONNRESET));
        let mut events = [Event::default(); 4];
        assert_eq!(stack.wait(&mut events, Some(Duration::from_millis(100))).unwrap(), 0, "{events:?}");
    });
}

#[test]
fn bytes_that_a_peer_has_corked_come_in_time() {
    both_ways("bytes_that_a_peer_has_corked_come_in_time", || {
        let mut stack = Stack::open().unwrap();
        let mut listener = Listener::bind(&stack, anywhere(), 16).unwrap();
        let scratch = Scratch::new("native");
        let script = format!(
            "s = socket.create_connection(('127.0.0.1', {}))\ns.setsockopt(6, 3, 1)\ns.send(b'held')\ntime.sleep(100)",
            listener.local_addr().port()
        );
        let _peer = python(&script).start(scratch.path("peer.log"));
        let mut connection = accept(&mut listener, &mut stack);
        stack.watch(&connection, 1).unwrap();
        await_event(&mut stack, "what was held", |event| event.token == 1 && event.readiness.is_readable());
        assert_eq!(take(&mut connection, 10).unwrap(), b"held");
    });
}

#[test]
fn a_service_that_is_killed_ends_everything() {
    let name = "a_service_that_is_killed_ends_everything";
    let Some(pid) = std::env::var_os(INSIDE) else {
        for service in [Service::embedded(), Service::direct()] {
            inside(name, &service).run(120).ok();
        }
        return;
    };
    let (mut stack, mut ours, theirs) = pair();
    stack.watch(&ours, 1).unwrap();
    stack.watch(&theirs, 2).unwrap();
    // SAFETY: the process is the service that the test has started for this process.
    unsafe { libc::kill(pid.to_str().unwrap().parse().unwrap(), libc::SIGKILL) };
    let (mut told, mut events) = (HashSet::new(), [Event::default(); 4]);
    while told.len() < 2 {
        let count = stack.wait(&mut events, Some(LIMIT)).unwrap();
        assert!(count > 0, "only {told:?} had events");
        told.extend(events[..count].iter().filter(|event| event.readiness.is_closed()).map(|event| event.token));
    }
    let after = stack.wait(&mut events, None).unwrap_err();
    assert_eq!(after.raw_os_error(), Some(libc::ENETDOWN));
    assert_eq!(take(&mut ours, 1).unwrap_err().raw_os_error(), Some(libc::ECONNRESET));
    assert_eq!(ours.send(b"x").unwrap_err().raw_os_error(), Some(libc::EPIPE));
    let refused = Connection::connect(&stack, theirs.local_addr()).err().unwrap();
    assert_eq!(refused.raw_os_error(), Some(libc::ENETDOWN));
    assert_eq!(Stack::open().err().unwrap().raw_os_error(), Some(libc::ENETDOWN));
}

#[test]
fn a_stack_sleeps_in_another_event_loop() {
    both_ways("a_stack_sleeps_in_another_event_loop", || {
        use rustix::event::{PollFd, PollFlags, poll};
        let (mut stack, mut ours, mut theirs) = pair();
        stack.watch(&theirs, 1).unwrap();
        let mut events = [Event::default(); 4];
        for round in 0..50 {
            while stack.wait(&mut events, Some(Duration::ZERO)).unwrap() > 0 {}
            assert!(stack.arm().unwrap(), "something before anything was sent");
            give(&mut ours, &[round]).unwrap();
            let mut waiting = [PollFd::new(&stack, PollFlags::IN)];
            assert_eq!(poll(&mut waiting, Some(&LIMIT.try_into().unwrap())).unwrap(), 1, "no doorbell");
            assert_eq!(take(&mut theirs, 10).unwrap(), [round]);
        }
    });
}
