//! The life of sockets over the kernel stack, seen from the ring.
#![allow(clippy::unwrap_used)]

mod common;

use common::{kernel, port};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use towpath_contract_tests::LOCAL;
use towpath_contract_tests::app::{App, Sock, eventually, small};
use towpath_kernel::Kernel;
use towpath_ring::lines::{state, status};
use towpath_ring::options::Options;
use towpath_rng::Rng;
use towpath_runtime::Stack;

/// A stack, one application with a listener, and its port.
struct World {
    kernel: Kernel,
    app: Arc<App>,
    listener: Sock,
    port: u16,
}

impl World {
    fn new() -> Self {
        let (kernel, port) = (kernel(1), port());
        let app = App::new(&kernel, small(1));
        let listener = app.listen(LOCAL, port, 16).unwrap();
        Self { kernel, app, listener, port }
    }
    fn pair(&mut self) -> (Sock, Sock) {
        let (app, port) = (self.app.clone(), self.port);
        app.pair(&mut self.listener, port)
    }
    fn end(self) {
        self.listener.close();
        eventually("all slots are free", || self.app.busy_slots() == 0);
        let status = self.kernel.status();
        assert_eq!(
            status.clients.iter().map(|client| client.contract_violations).sum::<u64>(),
            0,
            "nobody is called a liar"
        );
        assert_eq!((status.panics, status.flow_groups[0].flows), (0, 0));
    }
}

#[test]
fn bytes_go_both_ways_between_two_cores() {
    let (kernel, port) = (kernel(2), port());
    let (server, client) = (App::new(&kernel, small(1)), App::new(&kernel, small(1)));
    let mut listener = server.listen(LOCAL, port, 4).unwrap();
    let (mut a, mut b) = client.pair(&mut listener, port);
    let mut bytes = vec![0; 3_000_000];
    Rng::new(1).fill(&mut bytes);
    std::thread::scope(|scope| {
        scope.spawn(|| a.write_all(&bytes).unwrap());
        let mut got = vec![0; bytes.len()];
        b.read_exact(&mut got).unwrap();
        assert!(got == bytes);
    });
    std::thread::scope(|scope| {
        scope.spawn(|| b.write_all(&bytes).unwrap());
        let mut got = vec![0; bytes.len()];
        a.read_exact(&mut got).unwrap();
        assert!(got == bytes);
    });
    assert!(kernel.status().flow_groups.iter().all(|core| core.flows == 1), "each has one end");
    [a, b, listener].into_iter().for_each(Sock::close);
    eventually("the slots are free", || server.busy_slots() + client.busy_slots() == 0);
}

#[test]
fn sends_that_pile_up_go_together() {
    let mut world = World::new();
    let (mut a, mut b) = world.pair();
    let before = world.kernel.status().flow_groups[0].tally.clone();
    let sends = |tally: &towpath_runtime::status::Tally| tally.stages.get("sends").unwrap();
    // 4,000 small sends.
    std::thread::scope(|scope| {
        scope.spawn(|| (0..4000).for_each(|_| a.write_all(&[7; 64]).unwrap()));
        b.read_exact(&mut vec![0; 4000 * 64]).unwrap();
    });
    let calls = sends(&world.kernel.status().flow_groups[0].tally) - sends(&before);
    assert!(calls < 3000, "{calls} calls for 4000 sends");
    [a, b].into_iter().for_each(Sock::close);
    world.end();
}

#[test]
fn a_half_closed_connection_goes_on_the_other_way() {
    let mut world = World::new();
    let (mut a, mut b) = world.pair();
    a.write_all(b"last words").unwrap();
    a.shutdown();
    let mut got = [0; 10];
    b.read_exact(&mut got).unwrap();
    assert_eq!((&got, b.read(&mut [0])), (b"last words", Ok(0)));
    b.write_all(b"answer").unwrap();
    let mut got = [0; 6];
    a.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"answer");
    b.shutdown();
    assert_eq!(a.read(&mut [0]), Ok(0));
    // Both directions have ended: there is no connection any more, and the slots stay until they are closed.
    for end in [&a, &b] {
        end.wait("the end", || end.stack().state.load(Relaxed) == state::CLOSED);
        assert_eq!(end.error(), 0);
    }
    [a, b].into_iter().for_each(Sock::close);
    world.end();
}

#[test]
fn resets_are_seen_after_what_came_before_them() {
    let mut world = World::new();
    let (mut a, mut b) = world.pair();
    a.write_all(b"abc").unwrap();
    b.wait("the bytes", || b.stack().rx_tail.load(Relaxed) == 3);
    a.abort();
    b.wait("the reset", || b.stack().status.load(Relaxed) & status::RESET != 0);
    let mut got = [0; 8];
    assert_eq!((b.read(&mut got), b.read(&mut [0])), (Ok(3), Err(libc::ECONNRESET)));
    b.close();
    // Closing with unread bytes resets the connection too.
    let (mut a, b) = world.pair();
    a.write_all(b"unread").unwrap();
    b.wait("the bytes", || b.stack().rx_tail.load(Relaxed) == 6);
    b.close();
    assert_eq!(a.read(&mut [0]), Err(libc::ECONNRESET));
    a.close();
    world.end();
}

#[test]
fn what_came_before_a_reset_is_there_for_one_who_was_sending() {
    let mut world = World::new();
    for round in 0..50 {
        let (mut a, mut b) = world.pair();
        a.write_all(&[7; 10_000]).unwrap();
        b.wait("the bytes", || b.stack().rx_tail.load(Relaxed) > 0);
        // Unread bytes are a reason for a reset (RFC 2525 §2.17).
        b.write_all(b"bye").unwrap();
        b.close();
        while a.write_all(&[7; 1000]).is_ok() {}
        let mut got = [0; 8];
        assert_eq!(a.read(&mut got), Ok(3), "round {round}");
        a.close();
    }
    world.end();
}

#[test]
fn what_the_kernel_says_of_a_connect_is_its_error() {
    let world = World::new();
    // Bound and not listening: the connect is refused.
    assert_eq!(world.app.connect(LOCAL, port()).err(), Some(libc::ECONNREFUSED));
    assert_eq!(world.app.connect("192.0.2.1".parse().unwrap(), 9).err(), Some(-libc::EPERM), "the policy");
    assert_eq!(world.app.listen(LOCAL, world.port, 1).err(), Some(-libc::EADDRINUSE));
    world.end();
}

#[test]
fn a_second_listen_changes_the_backlog_in_the_kernel_too() {
    let world = World::new();
    let backlog = || {
        let listed = world.kernel.connections().iter().find(|c| c.state == "LISTEN").map(|c| c.send_q);
        let (table, port) =
            (std::fs::read_to_string("/proc/net/tcp").unwrap(), format!(":{:04X} 00000000:0000 0A", world.port));
        assert_eq!(table.lines().filter(|line| line.contains(&port)).count(), 1, "one socket of the kernel");
        listed
    };
    assert_eq!(backlog(), Some(16));
    world.listener.listen_again(1).unwrap();
    assert_eq!(backlog(), Some(1));
    let waiting: Vec<Sock> = (0..2).map(|_| world.app.connect(LOCAL, world.port).unwrap()).collect();
    world.listener.wait("two in the queue", || world.listener.stack().rx_tail.load(Relaxed) == 64);
    waiting.into_iter().for_each(Sock::close);
    world.end();
}

#[test]
fn a_listener_that_closes_resets_what_nobody_has_accepted() {
    let world = World::new();
    let mut waiting: Vec<Sock> = (0..3).map(|_| world.app.connect(LOCAL, world.port).unwrap()).collect();
    world.listener.wait("three in the queue", || world.listener.stack().rx_tail.load(Relaxed) == 96);
    let World { kernel, app, listener, .. } = world;
    listener.close();
    for sock in &mut waiting {
        assert_eq!(sock.read(&mut [0]), Err(libc::ECONNRESET));
    }
    waiting.into_iter().for_each(Sock::close);
    eventually("all slots are free", || app.busy_slots() == 0);
    assert_eq!(kernel.status().flow_groups[0].flows, 0);
}

#[test]
fn what_a_peer_says_first_is_there_when_it_is_accepted() {
    let mut world = World::new();
    let mut peer = TcpStream::connect((LOCAL, world.port)).unwrap();
    peer.write_all(b"first words").unwrap();
    let mut sock = world.listener.accept();
    let mut got = [0; 11];
    sock.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"first words");
    sock.write_all(b"hello").unwrap();
    let mut got = [0; 5];
    peer.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"hello");
    sock.close();
    assert_eq!(peer.read(&mut [0]).unwrap(), 0);
    world.end();
}

#[test]
fn more_connects_than_the_queue_takes_are_served_later() {
    let (kernel, port) = (kernel(1), port());
    let app = App::new(&kernel, small(1));
    let mut listener = app.listen(LOCAL, port, 2).unwrap();
    let peers: Vec<TcpStream> = (0..4).map(|_| TcpStream::connect((LOCAL, port)).unwrap()).collect();
    listener.wait("three in the queue", || listener.stack().rx_tail.load(Relaxed) == 96);
    let accepted: Vec<Sock> = peers.iter().map(|_| listener.accept()).collect();
    accepted.into_iter().for_each(Sock::close);
    listener.close();
    eventually("the slots are free", || app.busy_slots() == 0);
}

#[test]
fn a_hangup_is_a_close_and_a_removed_client_is_forgotten() {
    let mut world = World::new();
    let (a, mut b) = world.pair();
    world.kernel.hangup(world.app.id, a.slot.raw(), a.generation.wrapping_sub(1));
    b.write_all(b"x").unwrap();
    b.close();
    world.kernel.hangup(world.app.id, a.slot.raw(), a.generation);
    eventually("its slots are free", || world.app.busy_slots() == 1);
    // Another client ends with all its sockets. Its peer, a program of the kernel, sees the end.
    let goes = App::named(&world.kernel, small(1), "goes");
    let server = TcpListener::bind((LOCAL, 0)).unwrap();
    let mut sock = goes.connect(LOCAL, server.local_addr().unwrap().port()).unwrap();
    let (mut peer, _) = server.accept().unwrap();
    sock.write_all(b"bye").unwrap();
    world.kernel.remove_client(goes.id);
    let mut got = Vec::new();
    peer.read_to_end(&mut got).unwrap();
    assert_eq!(got, b"bye");
    eventually("it is forgotten", || world.kernel.status().clients.len() == 1);
    world.end();
}

#[test]
fn slots_are_used_again_and_again() {
    let mut world = World::new();
    for round in 0..300u32 {
        let (mut a, mut b) = world.pair();
        a.write_all(&round.to_le_bytes()).unwrap();
        let mut got = [0; 4];
        b.read_exact(&mut got).unwrap();
        assert_eq!(u32::from_le_bytes(got), round);
        if round % 2 == 0 {
            a.close()
        } else {
            a.abort()
        };
        b.close();
    }
    world.end();
}

#[test]
fn a_command_waits_for_the_socket_that_reserves_its_port() {
    let kernel = kernel(1);
    let app = App::new(&kernel, small(1));
    let reserves =
        rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None).unwrap();
    rustix::net::bind(&reserves, &std::net::SocketAddr::new(LOCAL, 0)).unwrap();
    let bound = std::net::SocketAddr::try_from(rustix::net::getsockname(&reserves).unwrap()).unwrap();
    // The service hands the reservation over, but only a while after the command.
    let slot = app.region.slot(0).unwrap();
    std::thread::scope(|scope| {
        let listening = scope.spawn(|| app.listen(LOCAL, bound.port(), 1));
        while app.region.command(slot).seq.load(Relaxed) == 0 {
            std::thread::yield_now();
        }
        assert_ne!(app.region.stack(slot).command_done.load(Relaxed), 1);
        rustix::net::sockopt::set_socket_reuseaddr(&reserves, true).unwrap();
        kernel.reserve(app.id, slot.raw(), 1, reserves.try_clone().unwrap().into());
        listening.join().unwrap().unwrap().close();
    });
    eventually("the slot is free", || app.busy_slots() == 0);
}

#[test]
fn sends_and_receives_of_many_sockets_are_made_in_one_call() {
    let mut world = World::new();
    let mut pairs: Vec<_> = (0..12).map(|_| world.pair()).collect();
    for round in 0..200u32 {
        // All at once, so that the stack finds them together.
        for (a, _) in &mut pairs {
            a.write_all(&[round.to_le_bytes(); 200].concat()).unwrap();
        }
        for (_, b) in &mut pairs {
            let mut got = [0; 800];
            b.read_exact(&mut got).unwrap();
            assert!(got.chunks(4).all(|part| part == round.to_le_bytes()), "round {round}");
        }
    }
    let stages = world.kernel.status().flow_groups[0].tally.stages.clone();
    let batches = stages.get("batches").unwrap();
    assert!(batches > 0, "{stages:?}");
    pairs.into_iter().flat_map(|(a, b)| [a, b]).for_each(Sock::close);
    world.end();
}

#[test]
fn a_receive_ring_is_filled_as_far_as_its_buffer_size_lets_it() {
    let mut world = World::new();
    let (mut a, mut b) = world.pair();
    let options = Options { receive_buffer: 4096, ..world.app.region.options(b.slot).read().1 };
    world.app.region.options(b.slot).post(&options);
    world.app.push_anything(b.slot, world.app.region.geometry().flow_groups as usize);
    let bytes: Vec<u8> = (0..10_000u32).map(|i| i as u8).collect();
    a.write_all(&bytes).unwrap();
    // All at once would be in the ring otherwise.
    eventually("as much as may be is there", || b.stack().rx_tail.load(Relaxed) == 2048);
    let mut got = vec![0; bytes.len()];
    for part in got.chunks_mut(500) {
        b.read_exact(part).unwrap();
        b.queue_data();
    }
    assert!(got == bytes);
    [a, b].into_iter().for_each(Sock::close);
    world.end();
}
