//! The ends of connections, after which nothing stays behind.
#![allow(clippy::unwrap_used)]

mod common;

use common::{LOCAL, stack};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use towpath_contract_tests::app::{App, Sock, eventually, small};
use towpath_fast::FastStack;
use towpath_ring::command::Accepted;
use towpath_ring::lines::{state, status};
use towpath_ring::wake::{doorbell, drain};
use towpath_rng::Rng;
use towpath_runtime::Stack;

/// A stack, two clients and a connection between them.
struct World {
    stack: FastStack,
    server: Arc<App>,
    client: Arc<App>,
    listener: Sock,
}

impl World {
    fn new(flow_groups: usize) -> Self {
        let stack = stack(flow_groups);
        let (server, client) = (App::new(&stack, small(flow_groups)), App::new(&stack, small(flow_groups)));
        let listener = server.listen(LOCAL, 7, 4).unwrap();
        Self { stack, server, client, listener }
    }
    fn pair(&mut self) -> (Sock, Sock) {
        self.client.pair(&mut self.listener, 7)
    }
    /// Nothing is in use any more but `left` slots.
    fn clean(&self, left: usize) {
        eventually("the slots are free", || self.server.busy_slots() + self.client.busy_slots() == left);
        eventually("no flow group has a flow", || self.stack.status().flow_groups.iter().all(|c| c.flows == 0));
        let used: u32 = self.stack.status().clients.iter().map(|c| c.slots).sum();
        assert_eq!(used as usize, left);
    }
}

fn state_of(sock: &Sock) -> u32 {
    sock.stack().state.load(Acquire)
}

#[test]
fn half_close_carries_data_the_other_way() {
    let mut world = World::new(1);
    let (mut a, mut b) = world.pair();
    a.write_all(b"question").unwrap();
    a.shutdown();
    let mut got = [0; 64];
    b.read_exact(&mut got[..8]).unwrap();
    assert_eq!(&got[..8], b"question");
    assert_eq!(b.read(&mut got), Ok(0), "end of file");
    // Far more than both rings hold, so that acknowledgements and windows must still work after the FIN.
    let mut sent = vec![0; 300_000];
    Rng::new(3).fill(&mut sent);
    let copy = sent.clone();
    let writer = std::thread::spawn(move || {
        b.write_all(&sent).unwrap();
        b.close();
    });
    let mut all = vec![0; copy.len()];
    a.read_exact(&mut all).unwrap();
    assert!(all == copy, "the bytes arrive unchanged");
    assert_eq!(a.read(&mut got), Ok(0));
    writer.join().unwrap();
    a.close();
    world.clean(1);
}

#[test]
fn close_with_unread_data_resets() {
    let mut world = World::new(1);
    let (mut a, b) = world.pair();
    a.write_all(b"never read").unwrap();
    b.wait("data", || b.stack().rx_tail.load(Acquire) == 10);
    b.close();
    assert_eq!(a.read(&mut [0; 8]), Err(libc_econnreset()));
    assert_eq!(state_of(&a), state::CLOSED);
    assert_eq!(a.stack().status.load(Relaxed) & status::RESET, status::RESET);
    a.close();
    world.clean(1);
}

fn libc_econnreset() -> i32 {
    104
}

#[test]
fn abort_resets() {
    let mut world = World::new(2);
    let (mut a, b) = world.pair();
    b.abort();
    assert_eq!(a.read(&mut [0; 8]), Err(libc_econnreset()));
    a.close();
    world.clean(1);
}

#[test]
fn hangup_is_a_close_and_frees_everything() {
    let mut world = World::new(1);
    let (mut a, mut b) = world.pair();
    let (reserved, kept) = rustix::pipe::pipe().unwrap();
    world.stack.reserve(world.client.id, a.slot.raw(), 1, kept.into());
    a.write_all(b"last words").unwrap();
    world.stack.hangup(world.client.id, a.slot.raw(), a.generation.wrapping_sub(1));
    world.stack.hangup(world.client.id, a.slot.raw(), a.generation);
    let mut got = [0; 64];
    b.read_exact(&mut got[..10]).unwrap();
    assert_eq!(&got[..10], b"last words", "what was queued is sent");
    assert_eq!(b.read(&mut got), Ok(0));
    b.close();
    world.clean(1);
    // The kept socket is closed with the slot, and its other end sees that.
    let mut fds = [PollFd::new(&reserved, PollFlags::IN)];
    let limit = Timespec { tv_sec: 5, tv_nsec: 0 };
    assert_eq!(poll(&mut fds, Some(&limit)).unwrap(), 1, "the reserved socket is still open");
    let generation = world.listener.generation;
    world.stack.hangup(world.server.id, world.listener.slot.raw(), generation);
    world.clean(0);
}

#[test]
fn sockets_kept_for_a_refused_command_are_let_go() {
    let stack = stack(1);
    let client = App::new(&stack, small(1));
    let (seen, kept) = rustix::pipe::pipe().unwrap();
    stack.reserve(client.id, 0, 1, kept.into());
    assert!(client.connect([192, 0, 2, 1].into(), 80).is_err());
    let (late_seen, late) = rustix::pipe::pipe().unwrap();
    stack.reserve(client.id, 0, 1, late.into());
    // No command ever comes for this socket.
    let (never_seen, never) = rustix::pipe::pipe().unwrap();
    stack.reserve(client.id, 0, 2, never.into());
    for end in [seen, late_seen, never_seen] {
        let mut fds = [PollFd::new(&end, PollFlags::IN)];
        let limit = Timespec { tv_sec: 10, tv_nsec: 0 };
        assert_eq!(poll(&mut fds, Some(&limit)).unwrap(), 1, "the socket is still open");
    }
}

#[test]
fn closing_a_listener_resets_what_nobody_accepted() {
    let world = World::new(2);
    let mut waiting: Vec<Sock> = (0..3).map(|_| world.client.connect(LOCAL, 7).unwrap()).collect();
    let server = Arc::clone(&world.server);
    eventually("all three wait", || world.listener.stack().rx_tail.load(Acquire) == 3 * Accepted::BYTES as u32);
    let World { stack, client, listener, .. } = world;
    assert_eq!(waiting_at(&stack), 3);
    listener.close();
    for sock in &mut waiting {
        assert_eq!(sock.read(&mut [0; 8]), Err(libc_econnreset()));
    }
    waiting.into_iter().for_each(Sock::close);
    eventually("the slots are free", || server.busy_slots() + client.busy_slots() == 0);
    eventually("no flow group has a flow", || stack.status().flow_groups.iter().all(|c| c.flows == 0));
}

/// Connections that wait to be accepted, as listed.
fn waiting_at(stack: &towpath_fast::FastStack) -> u32 {
    stack.connections().iter().find(|c| c.state == "LISTEN").expect("a listener").recv_q
}

#[test]
fn the_list_knows_what_has_been_accepted() {
    let mut world = World::new(1);
    let begun: Vec<Sock> = (0..3).map(|_| world.client.connect(LOCAL, 7).unwrap()).collect();
    eventually("all three wait", || world.listener.stack().rx_tail.load(Acquire) == 3 * Accepted::BYTES as u32);
    assert_eq!(waiting_at(&world.stack), 3);
    // An accept does not notify the stack.
    let accepted: Vec<Sock> = (0..2).map(|_| world.listener.accept()).collect();
    assert_eq!(waiting_at(&world.stack), 1);
    let last = world.listener.accept();
    assert_eq!(waiting_at(&world.stack), 0);
    begun.into_iter().chain(accepted).chain([last]).for_each(Sock::close);
    world.clean(1);
}

/// As in Linux.
#[test]
fn one_more_than_the_backlog_waits_and_the_next_syn_gets_no_answer() {
    let mut world = World::new(1);
    let mut connected: Vec<Sock> = (0..5).map(|_| world.client.connect(LOCAL, 7).unwrap()).collect();
    eventually("all wait to be accepted", || {
        world.stack.status().flow_groups.iter().map(|group| group.flows).sum::<u64>() == 10
    });
    let late = world.client.begin(LOCAL, 7).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert_eq!(state_of(&late), state::CONNECTING);
    let mut accepted = vec![world.listener.accept()];
    late.wait("its next SYN", || state_of(&late) == state::ESTABLISHED);
    connected.push(late);
    accepted.extend((0..5).map(|_| world.listener.accept()));
    connected.into_iter().chain(accepted).for_each(Sock::close);
    world.clean(1);
}

/// As in Linux.
#[test]
fn a_second_listen_changes_the_backlog() {
    let mut world = World::new(1);
    let mut connected: Vec<Sock> = (0..2).map(|_| world.client.connect(LOCAL, 7).unwrap()).collect();
    let flows = |world: &World| world.stack.status().flow_groups.iter().map(|group| group.flows).sum::<u64>();
    eventually("both wait to be accepted", || flows(&world) == 4);
    world.listener.listen_again(1).unwrap();
    let late = world.client.begin(LOCAL, 7).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(100));
    assert_eq!(state_of(&late), state::CONNECTING, "one more than the new backlog waits already");
    world.listener.listen_again(2).unwrap();
    late.wait("its next SYN", || state_of(&late) == state::ESTABLISHED);
    connected.push(late);
    let accepted: Vec<Sock> = (0..3).map(|_| world.listener.accept()).collect();
    connected.into_iter().chain(accepted).for_each(Sock::close);
    world.clean(1);
}

#[test]
fn more_connects_than_the_backlog_takes_are_served_later() {
    let mut world = World::new(1);
    let mut begun: Vec<Sock> = (0..12).map(|_| world.client.begin(LOCAL, 7).unwrap()).collect();
    let (mut accepted, mut said) = (Vec::new(), [false; 12]);
    eventually("all are accepted", || {
        for (sock, said) in begun.iter_mut().zip(&mut said) {
            // No state is kept of connections that were answered with a SYN cookie. Their next segment brings them back.
            if !*said && state_of(sock) == state::ESTABLISHED {
                sock.write_all(b"hello").unwrap();
                *said = true;
            }
        }
        accepted.extend(world.listener.try_accept());
        accepted.len() == begun.len()
    });
    for sock in &begun {
        sock.wait("the connection", || state_of(sock) == state::ESTABLISHED);
    }
    begun.into_iter().chain(accepted).for_each(Sock::close);
    world.clean(1);
}

#[test]
fn a_removed_client_is_forgotten_when_it_is_drained() {
    let mut world = World::new(2);
    let (mut a, mut b) = world.pair();
    let extra = world.client.connect(LOCAL, 7).unwrap();
    a.write_all(&[7; 10_000]).unwrap();
    world.stack.remove_client(world.client.id);
    let mut got = vec![0; 10_000];
    b.read_exact(&mut got).unwrap();
    assert_eq!(b.read(&mut got), Ok(0));
    assert_eq!(world.stack.status().clients.len(), 2, "its connection is not drained yet");
    b.close();
    let mut other = world.listener.accept();
    assert_eq!(other.read(&mut got), Ok(0));
    other.close();
    eventually("the client is forgotten", || world.stack.status().clients.len() == 1);
    drop(extra);
    assert_eq!(Arc::strong_count(&world.client.region), 1, "its region is unmapped");
    // Its place is used again.
    let next = App::new(&world.stack, small(2));
    let (c, d) = next.pair(&mut world.listener, 7);
    c.close();
    d.close();
    world.clean(1);
}

#[test]
fn contexts_are_told_once_and_in_their_own_queue() {
    let mut world = World::new(1);
    let (mut a, b) = world.pair();
    let doorbell: OwnedFd = doorbell().unwrap();
    world.stack.add_context(world.server.id, 2, doorbell.try_clone().unwrap());
    b.line().ctx_mask.store(1 << 2 | 1 << 3, SeqCst); // context 3 does not exist
    let region = &world.server.region;
    let mut head = 0;
    for round in 1..=100u32 {
        region.events(2, 0).arm();
        a.write_all(b"x").unwrap();
        let mut fds = [PollFd::new(&doorbell, PollFlags::IN)];
        let limit = Timespec { tv_sec: 5, tv_nsec: 0 };
        assert_eq!(poll(&mut fds, Some(&limit)).unwrap(), 1, "the context was not woken in round {round}");
        assert!(drain(doorbell.as_fd()));
        assert_eq!(region.events(2, 0).pop(&mut head), Some(b.slot.raw()));
        let (seq, ack) = region.event_words(2, 0, b.slot);
        towpath_ring::dirty::acknowledge(seq, ack);
        assert_eq!(b.stack().rx_tail.load(Acquire), round);
    }
    region.events(2, 0).disarm();
    world.stack.drop_context(world.server.id, 2);
    a.write_all(b"y").unwrap();
    b.wait("the byte", || b.stack().rx_tail.load(Acquire) == 101);
    assert_eq!(region.events(2, 0).pop(&mut head), None, "a closed context is not told");
    assert_eq!(region.events(3, 0).pop(&mut 0), None);
}

#[test]
fn slots_are_reused_many_times() {
    let mut world = World::new(2);
    for round in 0..500u32 {
        let (mut a, mut b) = world.pair();
        let word = round.to_le_bytes();
        a.write_all(&word).unwrap();
        let mut got = [0; 4];
        b.read_exact(&mut got).unwrap();
        assert_eq!(got, word);
        // The side that closes first changes from round to round.
        if round % 2 == 0 {
            a.close();
            assert_eq!(b.read(&mut got), Ok(0));
            b.close();
        } else {
            b.close();
            assert_eq!(a.read(&mut got), Ok(0));
            a.close();
        }
    }
    world.clean(1);
}
