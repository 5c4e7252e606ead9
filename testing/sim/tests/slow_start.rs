//! The end of slow start: before the bottleneck's queue overflows, and not before the wire is full.

mod common;
use common::*;
use std::net::{IpAddr, Ipv4Addr};
use towpath_sim::{Endpoint, Faults, LinkConfig, NodeConfig, TransferEnd, TransferPlan, Transfers};

const B: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));

/// The result of the first seconds of a flow.
#[derive(Debug)]
struct Start {
    /// Delivered bytes over the capacity of the wire.
    share: f64,
    drops: u64,
    retransmits: u64,
    timeouts: u64,
}

/// A flow on a wire of `mbit` with a round trip of `rtt_ms`, and a queue of `products` bandwidth-delay products.
fn start(mbit: u64, rtt_ms: u64, products: f64, faults: Faults, seconds: u64) -> Start {
    let product = mbit * 125 * rtt_ms;
    let queue_bytes = (product as f64 * products) as u64;
    let link =
        LinkConfig { bits_per_s: mbit * 1_000_000, delay_us: rtt_ms * 500, queue_bytes, ..LinkConfig::default() };
    let path = Path { link, there: Faults::default(), back: faults };
    let config = |n| NodeConfig { rings: (8 << 20, 8 << 20), ..NodeConfig::numbered(n, u64::from(n)) };
    let (mut world, wire) = two_nodes([config(1), config(2)], path, 7);
    let listener = world.nodes[1].listen(80, 1).expect("listens");
    let client = world.nodes[0].connect(B, 80).expect("connects");
    let plan = |bytes| TransferPlan { seed: 3, bytes, chunk: 256 << 10, pause_ppm: 0, pause_us: 1 };
    let mut transfers = Transfers(vec![
        TransferEnd::new(Endpoint::Node(0, client), plan(0)),
        TransferEnd::new(Endpoint::Accept(1, listener), plan(1 << 40)),
    ]);
    world.run(world.now.after(seconds * 1_000_000), &mut transfers);
    let counters = world.nodes[1].counters()[0];
    Start {
        share: transfers.0[0].got.len as f64 * 8.0 / seconds as f64 / link.bits_per_s as f64,
        drops: wire.queue(1).drops,
        retransmits: counters.retransmits,
        timeouts: counters.timeouts,
    }
}

/// The least share of the wire in a flow's first second, as slow start takes some round trips.
const STARTS: [(u64, u64, f64); 4] = [(50, 20, 0.87), (100, 10, 0.9), (100, 40, 0.7), (1000, 10, 0.87)];

#[test]
fn slow_start_ends_before_a_queue_of_one_product_overflows() {
    for (mbit, rtt_ms, least) in STARTS {
        let done = start(mbit, rtt_ms, 1.0, Faults::default(), 1);
        assert!(done.drops < 5 && done.retransmits < 5 && done.timeouts == 0, "{mbit} Mbit/s, {rtt_ms} ms: {done:?}");
        assert!(done.share > least, "{mbit} Mbit/s, {rtt_ms} ms: {done:?}");
    }
}

#[test]
fn hystart_leaves_slow_start_without_a_loss_where_the_queue_is_deep() {
    for (mbit, rtt_ms, least) in [(10, 20, 0.9), (10, 100, 0.54), (100, 1, 0.95), (100, 40, 0.7)] {
        // A deep queue, but one that congestion avoidance can fill.
        let done = start(mbit, rtt_ms, if rtt_ms == 1 { 50.0 } else { 5.0 }, Faults::default(), 1);
        assert_eq!((done.drops, done.retransmits, done.timeouts), (0, 0, 0), "{mbit} Mbit/s, {rtt_ms} ms: {done:?}");
        assert!(done.share > least, "{mbit} Mbit/s, {rtt_ms} ms: {done:?}");
    }
}

#[test]
fn slow_start_ends_in_time_where_segments_come_late() {
    for (mbit, rtt_ms, least) in STARTS {
        let faults = Faults { delay_ppm: 30_000, delay_us: rtt_ms * 200, ..Faults::default() };
        let done = start(mbit, rtt_ms, 1.0, faults, 1);
        assert!(done.drops < 50 && done.timeouts == 0, "{mbit} Mbit/s, {rtt_ms} ms: {done:?}");
        assert!(done.share > least * 0.75, "{mbit} Mbit/s, {rtt_ms} ms: {done:?}");
    }
}
