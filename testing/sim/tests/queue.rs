//! The effect of a sender on the queue of a bottleneck, and its needless retransmissions.

mod common;
use common::*;
use std::net::{IpAddr, Ipv4Addr};
use towpath_sim::{Endpoint, Faults, LinkConfig, NodeConfig, TransferEnd, TransferPlan, Transfers};

const B: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));

/// The result of a transfer of eight seconds.
#[derive(Debug)]
struct Done {
    share: f64,
    drops: u64,
    retransmits: u64,
    undone: u64,
    timeouts: u64,
}

/// 50 Mbit/s, 20 ms of round trip.
fn transfer(queue_bytes: u64, faults: Faults, seconds: u64) -> Done {
    let link = LinkConfig { bits_per_s: 50_000_000, delay_us: 10_000, queue_bytes, ..LinkConfig::default() };
    // Node 1 sends, so that faults apply after the wire and its queue, not before.
    let path = Path { link, there: Faults::default(), back: faults };
    let config = |n| NodeConfig { rings: (2 << 20, 2 << 20), ..NodeConfig::numbered(n, u64::from(n)) };
    let (mut world, wire) = two_nodes([config(1), config(2)], path, 7);
    let listener = world.nodes[1].listen(80, 1).expect("listens");
    let client = world.nodes[0].connect(B, 80).expect("connects");
    let plan = |bytes| TransferPlan { seed: 3, bytes, chunk: 64 << 10, pause_ppm: 0, pause_us: 1 };
    let mut transfers = Transfers(vec![
        TransferEnd::new(Endpoint::Node(0, client), plan(0)),
        TransferEnd::new(Endpoint::Accept(1, listener), plan(1 << 40)),
    ]);
    world.run(world.now.after(seconds * 1_000_000), &mut transfers);
    let counters = world.nodes[1].counters()[0];
    Done {
        share: transfers.0[0].got.len as f64 * 8.0 / seconds as f64 / link.bits_per_s as f64,
        drops: wire.queue(1).drops + wire.queue(0).drops,
        retransmits: counters.retransmits,
        undone: counters.undone,
        timeouts: counters.timeouts,
    }
}

#[test]
fn a_queue_that_slow_start_overflows_costs_what_it_drops_and_no_more() {
    for queue in [64, 128] {
        let done = transfer(queue << 10, Faults::default(), 8);
        // Every other segment of a round trip is lost. The receiver stores every range between them, and reports it.
        assert!(done.retransmits <= done.drops + 15, "{queue} KiB: {done:?}");
        assert!(done.share > 0.9 && done.undone == 0 && done.timeouts == 0, "{queue} KiB: {done:?}");
    }
}

#[test]
fn late_segments_on_top_of_an_overflow_are_not_sent_again() {
    let faults = Faults { delay_ppm: 30_000, delay_us: 2_000, ..Faults::default() };
    let done = transfer(256 << 10, faults, 8);
    assert!(done.retransmits <= done.drops + 15 && done.timeouts == 0, "{done:?}");
    assert!(done.share > 0.9, "{done:?}");
}
