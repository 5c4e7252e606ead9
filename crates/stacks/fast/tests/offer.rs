//! The sleepers that a new connection wakes, and the listeners that may share a port.
#![allow(clippy::unwrap_used)]

mod common;

use common::{LOCAL, stack};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use towpath_contract_tests::app::{App, Sock, small};
use towpath_fast::FastStack;
use towpath_ring::lines::state;
use towpath_ring::wake;
use towpath_runtime::Stack;

/// A listener that three contexts watch; the first two share it.
struct World {
    stack: FastStack,
    app: Arc<App>,
    listener: Sock,
    doorbells: Vec<OwnedFd>,
}

impl World {
    fn new() -> Self {
        let stack = stack(1);
        let app = App::new(&stack, small(1));
        let listener = app.listen(LOCAL, 80, 16).unwrap();
        let mut doorbells = Vec::new();
        for context in 0..3 {
            let (wait, notify) = wake::doorbell_pipe().unwrap();
            stack.add_context(app.id, context, notify);
            doorbells.push(wait);
        }
        listener.line().exclusive.store(0b011, SeqCst);
        listener.line().ctx_mask.store(0b111, SeqCst);
        Self { stack, app, listener, doorbells }
    }
    fn sleep_in(&self, context: usize, on: bool) {
        for thread in 0..self.app.region.layout().threads() {
            let set = self.app.region.events(context, thread);
            if on { set.arm() } else { set.disarm() }
        }
    }
    /// The contexts whose doorbells are notified now, or soon.
    fn notified(&self) -> Vec<usize> {
        let limit = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };
        let heard = |doorbell: &OwnedFd| {
            let mut fds = [PollFd::new(doorbell, PollFlags::IN)];
            let notified = poll(&mut fds, Some(&limit)).unwrap() == 1;
            notified && wake::drain(rustix::fd::AsFd::as_fd(doorbell))
        };
        self.doorbells.iter().enumerate().filter(|(_, doorbell)| heard(doorbell)).map(|(context, _)| context).collect()
    }
}

#[test]
fn of_the_contexts_that_share_a_listener_one_is_woken_in_turn() {
    let world = World::new();
    (0..3).for_each(|context| world.sleep_in(context, true));
    let mut connections = Vec::new();
    let mut connect = || connections.push(world.app.connect(LOCAL, 80).unwrap());
    connect();
    assert_eq!(world.notified(), [0, 2], "one of those that share it, and who does not share");
    connect();
    assert_eq!(world.notified(), [1, 2], "the other");
    connect();
    assert_eq!(world.notified(), [0, 2]);
    // A context that is awake looks by itself. One that sleeps is woken all the same.
    world.sleep_in(1, false);
    connect();
    assert_eq!(world.notified(), [0, 2]);
    world.sleep_in(0, false);
    world.sleep_in(1, true);
    connect();
    assert_eq!(world.notified(), [1, 2]);
}

#[test]
fn when_a_process_has_ended_the_others_are_told_of_what_it_has_left_waiting() {
    let mut world = World::new();
    (0..2).for_each(|context| world.sleep_in(context, true));
    let connection = world.app.connect(LOCAL, 80).unwrap();
    assert_eq!(world.notified(), [0]);
    // Its process is killed before it looks.
    world.stack.drop_context(world.app.id, 0);
    world.stack.departed(world.app.id, 1);
    assert_eq!(world.notified(), [1]);
    let accepted = world.listener.accept();
    // Nothing waits any more.
    world.stack.departed(world.app.id, 1);
    assert_eq!(world.notified(), []);
    drop((connection, accepted));
}

/// A process is killed before it has passed on its end of the socketpair.
#[test]
fn what_a_process_was_about_to_have_ends_with_it() {
    let stack = stack(1);
    let (server, app) = (App::new(&stack, small(1)), App::new(&stack, small(1)));
    let mut listener = server.listen(LOCAL, 80, 16).unwrap();
    let hold = |sock: &Sock, process| app.region.command(sock.slot).holder.store(process, SeqCst);
    let (killed, mut other) = (app.connect(LOCAL, 80).unwrap(), app.connect(LOCAL, 80).unwrap());
    let (mut first, mut second) = (listener.accept(), listener.accept());
    let listening = app.listen(LOCAL, 81, 16).unwrap();
    hold(&killed, 7);
    hold(&other, 8);
    hold(&listening, 7);
    stack.departed(app.id, 7);
    let is_free = |sock: &Sock| sock.stack().state.load(SeqCst) == state::FREE;
    towpath_contract_tests::app::eventually("the listener is gone", || is_free(&listening));
    assert_eq!(first.read(&mut [0; 8]), Ok(0), "its peer sees the end");
    first.close();
    towpath_contract_tests::app::eventually("the connection is gone", || is_free(&killed));
    // Sockets of another process stay.
    other.write_all(b"on").unwrap();
    second.read_exact(&mut [0; 2]).unwrap();
    // A command of an exited process that is seen only now.
    app.region.layout().app_slots().for_each(|slot| app.region.command(slot).holder.store(7, SeqCst));
    assert_eq!(app.connect(LOCAL, 80).err(), Some(-libc::ECANCELED));
}

/// socket(7): `SO_REUSEPORT` works among the sockets of one user.
#[test]
fn a_port_is_shared_within_one_user() {
    let stack = stack(1);
    let user = |uid| App::of_user(&stack, small(1), "test", uid);
    let (first, second, other) = (user(1000), user(1000), user(1001));
    let kept = first.listen_shared(LOCAL, 80, 16).unwrap();
    let shared = second.listen_shared(LOCAL, 80, 16).unwrap();
    assert_eq!(other.listen_shared(LOCAL, 80, 16).err(), Some(-libc::EADDRINUSE));
    shared.close();
    assert_eq!(other.listen_shared(LOCAL, 80, 16).err(), Some(-libc::EADDRINUSE));
    kept.close();
    towpath_contract_tests::app::eventually("the port is free", || other.listen_shared(LOCAL, 80, 16).is_ok());
}
