//! The cost of losses and reordering in virtual time, with selective acknowledgements and without.

mod common;
use common::*;
use towpath_sim::{Faults, LinkConfig, NodeConfig};

const BYTES: u64 = 10_000_000;

/// 100 Mbit/s, 10 ms of round trip: a window of 87 segments fills it.
fn wire() -> LinkConfig {
    LinkConfig { bits_per_s: 100_000_000, delay_us: 5_000, queue_bytes: 1 << 20, ..LinkConfig::default() }
}

/// The result of one transfer.
#[derive(Debug)]
struct Done {
    /// Payload bits per second over the bits per second of the wire.
    share: f64,
    retransmits: u64,
    timeouts: u64,
    undone: u64,
    tail_probes: u64,
}

fn transfer(faults: Faults, seed: u64, sack: bool, timestamps: bool, bytes: u64) -> Done {
    let mut nodes =
        [1, 2].map(|n| NodeConfig { rings: (512 << 10, 512 << 10), ..NodeConfig::numbered(n, u64::from(n)) });
    for node in &mut nodes {
        (node.slow.sack, node.slow.timestamps) = (sack, timestamps);
    }
    let (world, took) = bulk_transfer(nodes, wire(), faults, seed, bytes);
    let counters = world.nodes[1].counters()[0];
    Done {
        share: bytes as f64 * 8.0 / took / wire().bits_per_s as f64,
        retransmits: counters.retransmits,
        timeouts: counters.timeouts,
        undone: counters.undone,
        tail_probes: counters.tail_probes,
    }
}

fn lossy(loss_ppm: u32) -> Faults {
    Faults { loss_ppm, ..Faults::default() }
}

/// The mean over several seeds, as one run with random losses says little.
fn mean(faults: Faults, sack: bool, bytes: u64) -> Done {
    let runs: Vec<_> = (1..=4).map(|seed| transfer(faults, seed, sack, true, bytes)).collect();
    Done {
        share: runs.iter().map(|run| run.share).sum::<f64>() / 4.0,
        retransmits: runs.iter().map(|run| run.retransmits).sum(),
        timeouts: runs.iter().map(|run| run.timeouts).sum(),
        undone: runs.iter().map(|run| run.undone).sum(),
        tail_probes: runs.iter().map(|run| run.tail_probes).sum(),
    }
}

#[test]
fn random_losses_cost_less_with_selective_acknowledgements() {
    // Least share of the wire. With Reno's growth the window is small at high loss rates.
    for (ppm, least) in [(100, 0.85), (1_000, 0.45), (10_000, 0.12), (20_000, 0.08), (50_000, 0.045)] {
        let bytes = if ppm > 5_000 { BYTES / 5 } else { BYTES };
        let (with, without) = (mean(lossy(ppm), true, bytes), mean(lossy(ppm), false, bytes));
        assert!(with.share > least, "{ppm} ppm: {with:?}");
        // At high loss rates the window is a few segments, and there is rarely more than one hole. Without a scoreboard
        // slow start goes on until the first loss, which this queue delays.
        let at_least = if ppm <= 100 { 1.0 } else { 0.9 };
        assert!(with.share > without.share * at_least, "{ppm} ppm: {with:?}, without {without:?}");
        assert!(with.timeouts <= without.timeouts && with.timeouts <= 2, "{ppm} ppm: {with:?}, without {without:?}");
        // Only lost segments are retransmitted, once each (four runs, a segment per 1448 bytes).
        let lost = 4 * bytes / 1448 * u64::from(ppm) / 1_000_000;
        assert!(with.retransmits < lost * 3 / 2 + 10, "{ppm} ppm: {with:?}, {lost} lost");
    }
}

#[test]
fn reordering_by_a_few_segments_is_no_loss_from_the_start() {
    // Frames are delayed for up to the time of two segments.
    let done = mean(Faults { delay_ppm: 30_000, delay_us: 240, ..Faults::default() }, true, BYTES);
    assert_eq!((done.retransmits, done.timeouts), (0, 0), "{done:?}");
    assert!(done.share > 0.9, "{done:?}");
}

#[test]
fn reordering_by_a_quarter_of_the_round_trip_is_no_loss_once_it_has_been_seen() {
    let faults = Faults { delay_ppm: 30_000, delay_us: 2_500, ..Faults::default() };
    let (with, without) = (mean(faults, true, BYTES), mean(faults, false, BYTES));
    // Four runs, each with one or two needless repairs until the reordering is detected. They are undone.
    assert!(with.retransmits <= 8 && with.undone >= with.retransmits.min(4), "{with:?}");
    assert!(with.share > 0.9, "{with:?}");
    assert!(without.retransmits > 20 * with.retransmits.max(1), "without it would be the other way: {without:?}");
}

/// Most needless repairs until the reordering window is wide enough (RFC 8985 §6.2, steps 3 and 4). There is one for
/// each quarter of the round trip. One more is for the third duplicate acknowledgement, before any reordering has been
/// seen.
const LEARNING: u64 = 3;

#[test]
fn reordering_alone_costs_a_few_repairs_at_the_beginning_which_are_undone() {
    for (us, timestamps) in [(1_000, true), (2_500, true), (2_500, false), (5_000, true), (5_000, false)] {
        for seed in [1, 2] {
            let faults = Faults { delay_ppm: 30_000, delay_us: us, ..Faults::default() };
            let done = transfer(faults, seed, true, timestamps, 3 * BYTES);
            assert!(done.retransmits <= LEARNING && done.timeouts == 0, "{us} us, timestamps {timestamps}: {done:?}");
            assert!(done.undone >= done.retransmits.min(1), "{us} us, timestamps {timestamps}: {done:?}");
            assert!(done.share > 0.9, "{us} us, timestamps {timestamps}: {done:?}");
        }
    }
}
