//! Clients that end with bytes still to be sent.
#![allow(clippy::unwrap_used)]

mod common;

use common::{bounded, kernel, port};
use std::io::Read;
use std::net::TcpStream;
use std::sync::Arc;
use towpath_contract_tests::LOCAL;
use towpath_contract_tests::app::{App, Sock, small};
use towpath_contract_tests::departure::{self, peer_of};
use towpath_contract_tests::hostile::Target;
use towpath_kernel::Kernel;
use towpath_runtime::OrphanLimits;

fn target(stack: &Kernel) -> Target<'_> {
    Target { stack, flow_groups: 1, address: LOCAL, port }
}

/// A client and its connection to a peer.
fn connected(stack: &Kernel) -> ((Arc<App>, Sock), TcpStream) {
    let client = App::new(stack, small(1));
    let (ours, peer) = peer_of(&client);
    ((client, ours), peer)
}

fn is_reset(peer: &TcpStream) -> bool {
    peer.take_error().unwrap().is_some_and(|error| error.raw_os_error() == Some(libc::ECONNRESET))
}

#[test]
fn what_is_queued_arrives_and_the_region_is_given_up() {
    let stack = kernel(1);
    let (ours, mut peer) = connected(&stack);
    let (target, id) = (target(&stack), ours.0.id);
    departure::what_is_queued_arrives_and_the_region_is_given_up(&target, ours, |to| peer.read(to).unwrap());
    departure::is_forgotten(&target, id);
}

#[test]
fn what_is_too_slow_is_reset() {
    let stack = bounded(1, OrphanLimits { time_us: 1000, rate: u64::MAX, ..OrphanLimits::default() });
    let (ours, peer) = connected(&stack);
    departure::what_is_too_slow_is_reset(&target(&stack), ours, || is_reset(&peer));
}

#[test]
fn what_finds_no_room_is_reset() {
    let stack = bounded(1, OrphanLimits { bytes: 4096, ..OrphanLimits::default() });
    let (ours, peer) = connected(&stack);
    departure::what_is_too_slow_is_reset(&target(&stack), ours, || is_reset(&peer));
}
