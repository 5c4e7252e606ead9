//! Clients that end with bytes still to be sent.
#![allow(clippy::unwrap_used)]

mod common;

use common::{LOCAL, bounded, direct, port, stack};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, Release};
use towpath_contract_tests::app::{App, Sock, eventually, small};
use towpath_contract_tests::departure;
use towpath_contract_tests::hostile::Target;
use towpath_fast::FastStack;
use towpath_ring::PairRegion;
use towpath_ring::lines::pair_slot;
use towpath_runtime::{OrphanLimits, Stack};

fn target(stack: &FastStack) -> Target<'_> {
    Target { stack, flow_groups: 1, address: LOCAL, port }
}

/// A client and its connection to a peer.
fn connected(stack: &FastStack) -> ((Arc<App>, Sock), Sock) {
    let (server, client) = (App::new(stack, small(1)), App::new(stack, small(1)));
    let port = port();
    let mut listener = server.listen(LOCAL, port, 4).unwrap();
    let (ours, peer) = client.pair(&mut listener, port);
    ((client, ours), peer)
}

#[test]
fn what_is_queued_arrives_and_the_region_is_given_up() {
    let stack = stack(1);
    let (ours, mut peer) = connected(&stack);
    let (target, id) = (target(&stack), ours.0.id);
    departure::what_is_queued_arrives_and_the_region_is_given_up(&target, ours, |to| peer.read(to).unwrap());
    peer.close();
    departure::is_forgotten(&target, id);
}

#[test]
fn what_is_too_slow_is_reset() {
    let stack = bounded(OrphanLimits { time_us: 1000, rate: u64::MAX, ..OrphanLimits::default() });
    let (ours, peer) = connected(&stack);
    departure::what_is_too_slow_is_reset(&target(&stack), ours, || peer.error() == libc::ECONNRESET);
}

#[test]
fn what_finds_no_room_is_reset() {
    let stack = bounded(OrphanLimits { bytes: 4096, ..OrphanLimits::default() });
    let (ours, peer) = connected(&stack);
    departure::what_is_too_slow_is_reset(&target(&stack), ours, || peer.error() == libc::ECONNRESET);
}

#[test]
fn of_a_pair_only_what_the_other_end_has_to_read_outlives_a_client() {
    let stack = direct();
    let ((client, ours), peer) = connected(&stack);
    let (line, number) = (ours.stack(), ours.stack().pair.load(Relaxed));
    let word = line.pair_slot.load(Relaxed);
    let (slot, side) = (pair_slot::slot(word), pair_slot::side(word));
    let pair = stack.pair(client.id, pair_slot::place(word), number).unwrap();
    let region = PairRegion::map(pair.memfd.as_fd(), pair.geometry, number).unwrap();
    let ring = region.ring(slot, side).unwrap();
    let bytes = vec![7; ring.capacity() as usize];
    for (slot, side) in (0..64).flat_map(|slot| [(slot, 0), (slot, 1)]) {
        region.ring(slot, side).unwrap().write(0, &bytes);
    }
    // The peer has read 5,000 bytes of 9,000.
    peer.line().rx_head.store(5000, Relaxed);
    region.lines(slot, side).line.tx_tail.store(9000, Release);
    let memory = || rustix::fs::fstat(&pair.memfd).unwrap().st_blocks as u64 * 512;
    assert!(memory() > 128 * u64::from(ring.capacity()));
    stack.remove_client(client.id);
    let mut got = [0; 4000];
    ring.read(5000, &mut got);
    assert_eq!(got, [7; 4000]);
    eventually("no more is left", || memory() < 64 << 10);
    ring.read(5000, &mut got);
    assert_eq!(got, [7; 4000]);
    peer.close();
    eventually("nothing is left", || memory() == 0);
}
