//! Clients move between kernel stacks, with listeners and connections, and neither side notices.
#![allow(clippy::unwrap_used)]

mod common;

use common::{kernel, port};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use towpath_contract_tests::LOCAL;
use towpath_contract_tests::app::{App, Sock, eventually, small};
use towpath_kernel::{Kernel, MovedConnection};
use towpath_ring::lines::state;
use towpath_rng::Rng;
use towpath_runtime::{ClientId, Stack};

/// Most moves under one transfer.
const MOVES: usize = 12;

/// Moves a client. Returns its number in the new stack, and how many connections came along.
fn carry(app: &App, id: ClientId, from: &Kernel, to: &Kernel) -> (ClientId, usize) {
    let given = from.give(id);
    assert_eq!(given.lost, 0, "TCP_REPAIR needs CAP_NET_ADMIN: run as root");
    let moved: Vec<_> = given.moved.iter().map(|moved: &MovedConnection| (moved.slot, moved.record.local)).collect();
    let (id, count) = (to.adopt(app.setup(), moved).unwrap(), given.moved.len());
    for (slot, seq, socket) in given.reservations {
        to.reserve(id, slot, seq, socket.into());
    }
    assert_eq!(to.put(id, given.moved), 0);
    drop(given.drop_filters);
    to.open(id);
    (id, count)
}

fn pair(app: &Arc<App>, listener: &mut Sock, port: u16) -> (TcpStream, Sock) {
    let peer = TcpStream::connect((LOCAL, port)).unwrap();
    peer.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let sock = listener.accept();
    assert!(Arc::ptr_eq(&sock.app, app));
    (peer, sock)
}

#[test]
fn a_client_moves_under_a_transfer_in_both_directions_and_no_byte_is_lost() {
    let (one, two, port) = (kernel(1), kernel(1), port());
    let app = App::new(&one, small(1));
    let mut listener = app.listen(LOCAL, port, 16).unwrap();
    let (peer, mut sock) = pair(&app, &mut listener, port);
    let mut noise = vec![0; 6_000_000];
    Rng::new(7).fill(&mut noise);
    let bytes = &noise;
    let (done, moves) = (AtomicBool::new(false), AtomicUsize::new(0));
    let id = std::thread::scope(|scope| {
        let (mut from, mut to) = (peer.try_clone().unwrap(), &peer);
        let echo = scope.spawn(move || {
            let mut got = vec![0; bytes.len()];
            from.read_exact(&mut got).unwrap();
            got
        });
        scope.spawn(move || to.write_all(bytes).unwrap());
        // The application: sends back what it receives.
        let serve = scope.spawn(|| {
            let (mut left, mut part) = (bytes.len(), vec![0; 10_000]);
            while left > 0 {
                let got = sock.read(&mut part).unwrap();
                assert!(got > 0);
                sock.write_all(&part[..got]).unwrap();
                left -= got;
                // The last third waits until enough moves were made.
                while left < bytes.len() / 3 && moves.load(Ordering::Acquire) < 4 {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            done.store(true, Ordering::Release);
        });
        let mut id = app.id;
        // A segment that a move loses is sent again after a time-out. Each move begins that time anew, so the moves must end.
        while moves.load(Ordering::Relaxed) < MOVES && !done.load(Ordering::Acquire) && !serve.is_finished() {
            let (from, to) = if moves.load(Ordering::Relaxed).is_multiple_of(2) { (&one, &two) } else { (&two, &one) };
            let (now, count) = carry(&app, id, from, to);
            assert_eq!(count, 1);
            id = now;
            moves.fetch_add(1, Ordering::Release);
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(echo.join().unwrap() == *bytes);
        id
    });
    // New connections reach the listener wherever it is.
    let here = if moves.into_inner().is_multiple_of(2) { &one } else { &two };
    let (mut late, mut other) = pair(&app, &mut listener, port);
    late.write_all(b"late").unwrap();
    let mut word = [0; 4];
    other.read_exact(&mut word).unwrap();
    assert_eq!(&word, b"late");
    let status = here.status();
    assert_eq!((status.clients.len(), status.clients[0].id, status.clients[0].contract_violations), (1, id, 0));
    [sock, other, listener].into_iter().for_each(Sock::close);
    eventually("all slots are free", || app.busy_slots() == 0);
    assert_eq!(one.status().panics + two.status().panics, 0);
}

#[test]
fn connections_that_nobody_has_accepted_yet_move_in_their_order() {
    let (one, two, port) = (kernel(1), kernel(1), port());
    let app = App::new(&one, small(1));
    let mut listener = app.listen(LOCAL, port, 16).unwrap();
    let mut peers: Vec<_> = (0..5).map(|_| TcpStream::connect((LOCAL, port)).unwrap()).collect();
    eventually("all are in the queue", || app.busy_slots() == 6);
    let (id, count) = carry(&app, app.id, &one, &two);
    assert_eq!(count, 5);
    for (number, peer) in peers.iter_mut().enumerate() {
        peer.write_all(&[number as u8]).unwrap();
        let (mut sock, mut got) = (listener.accept(), [9]);
        sock.read_exact(&mut got).unwrap();
        assert_eq!(got[0], number as u8);
        sock.close();
    }
    eventually("all are closed", || app.busy_slots() == 1);
    let (_, count) = carry(&app, id, &two, &one);
    assert_eq!(count, 0, "what is closed stays behind");
    listener.close();
    eventually("all slots are free", || app.busy_slots() == 0);
}

#[test]
fn what_a_dead_stack_has_left_is_reset_and_its_listeners_listen_again() {
    let (one, two, port) = (kernel(1), kernel(1), port());
    let app = App::new(&one, small(1));
    let mut listener = app.listen(LOCAL, port, 16).unwrap();
    let (_peer, sock) = pair(&app, &mut listener, port);
    // There is no time to exchange a byte.
    drop(one);
    let id = two.adopt(app.setup(), Vec::new()).unwrap();
    two.open(id);
    eventually("the connection is over", || sock.stack().state.load(Ordering::Acquire) == state::CLOSED);
    assert_eq!(sock.error(), libc::ECONNRESET);
    let (mut peer, mut again) = pair(&app, &mut listener, port);
    peer.write_all(b"again").unwrap();
    let mut word = [0; 5];
    again.read_exact(&mut word).unwrap();
    assert_ne!((again.slot, again.generation), (sock.slot, sock.generation));
    [sock, again, listener].into_iter().for_each(Sock::close);
    eventually("all slots are free", || app.busy_slots() == 0);
}

#[test]
fn connections_of_which_one_direction_has_ended_move_and_the_other_goes_on() {
    let (one, two, port) = (kernel(1), kernel(1), port());
    let app = App::new(&one, small(1));
    let mut listener = app.listen(LOCAL, port, 16).unwrap();
    let mut bytes = vec![0; 300_000];
    Rng::new(3).fill(&mut bytes);
    // Either the peer has sent everything, or we have, and the peer knows it; or it does not know yet, because it does
    // not read.
    let ((mut quiet, mut talks), (mut told, mut hears)) =
        (pair(&app, &mut listener, port), pair(&app, &mut listener, port));
    let (mut full, mut stuffs) = pair(&app, &mut listener, port);
    quiet.shutdown(Shutdown::Write).unwrap();
    assert_eq!(talks.read(&mut [0]), Ok(0));
    hears.shutdown();
    assert_eq!(told.read(&mut [0]).unwrap(), 0);
    let mut stuffed = 0;
    while stuffed < bytes.len() {
        let taken = stuffs.try_write(&bytes[stuffed..]);
        if taken == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        stuffed += taken;
    }
    stuffs.shutdown();
    eventually("the kernel has it", || one.status().flow_groups[0].tally.stages.get("sent_bytes") == Some(300_000));
    let (id, count) = carry(&app, app.id, &one, &two);
    assert_eq!(count, 3);
    let reads = std::thread::spawn(move || {
        let mut got = Vec::new();
        quiet.read_to_end(&mut got).unwrap();
        got
    });
    talks.write_all(&bytes).unwrap();
    talks.close();
    assert!(reads.join().unwrap() == bytes, "what is said to a peer that is quiet");
    let mut got = Vec::new();
    full.read_to_end(&mut got).unwrap();
    assert!(got == bytes, "what had not been read, and its end");
    for (peer, sock) in [(&mut told, &mut hears), (&mut full, &mut stuffs)] {
        let mut word = [0; 4];
        peer.write_all(b"back").unwrap();
        sock.read_exact(&mut word).unwrap();
        assert_eq!(&word, b"back");
        peer.shutdown(Shutdown::Write).unwrap();
        assert_eq!(sock.read(&mut [0]), Ok(0));
    }
    let (_, count) = carry(&app, id, &two, &one);
    assert!(count <= 2);
    [hears, stuffs, listener].into_iter().for_each(Sock::close);
    eventually("all slots are free", || app.busy_slots() == 0);
}
