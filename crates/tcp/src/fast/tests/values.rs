//! Values that a whole transfer hardly shows: the reordering window, the flight behind the threshold, and timestamps
//! around the end of their numbers.

use super::*;

fn told(ack: u32, blocks: &[(u32, u32)]) -> Seg {
    seg(0, ack, &[]).sack(blocks)
}

/// A round trip in which a segment is sent again although it was only late, and the peer says so.
fn needless_repair(h: &mut Harness, una: u32) {
    h.write(4000);
    h.now = h.now.after(10_000);
    h.rx(told(una, &[(una + 1000, una + 4000)]));
    h.wait(20_000);
    h.rx(told(una + 4000, &[]));
    h.rx(told(una + 4000, &[(una, una + 1000)]));
}

/// The wheel's timers are late by up to a tick, never early.
const TICK_US: u64 = 1100;

/// How long it takes until something is sent again, µs.
fn until_repaired(h: &mut Harness) -> u64 {
    let (began, before) = (h.now, h.snapshot().retransmits);
    while h.snapshot().retransmits == before {
        h.now = h.fast.next_deadline().expect("the reordering timer runs");
        h.flush();
    }
    h.now.since(began)
}

/// RFC 8985 §6.2, step 4: a quarter of the smallest round trip, and once more for each round of needless repairs. It is
/// never more than a smoothed round trip.
#[test]
fn the_reordering_window_is_a_quarter_of_the_round_trip_and_grows_with_needless_repairs() {
    for (rounds, window) in [(1, 5000), (2, 7500), (3, 10_000), (5, 10_000)] {
        let mut h = Harness::of(FlowSetup { sack: true, srtt_us: 10_000, ..setup() });
        (0..rounds).for_each(|round| needless_repair(&mut h, 4000 * round));
        let una = 4000 * rounds;
        h.write(5000);
        h.now = h.now.after(10_000);
        // The first segment is late.
        assert_eq!(h.rx(told(una, &[(una + 1000, una + 5000)])), [], "{rounds}");
        let waited = until_repaired(&mut h);
        assert!((window..=window + TICK_US).contains(&waited), "{rounds} rounds: {waited}");
    }
}

/// The same after reordering has been seen, and nothing sent needlessly.
#[test]
fn the_first_reordering_window_is_a_quarter_of_the_round_trip() {
    let mut h = Harness::of(FlowSetup { sack: true, srtt_us: 10_000, ..setup() });
    h.write(10_000);
    h.now = h.now.after(10_000);
    h.rx(told(0, &[(1000, 2000)]));
    h.rx(told(2000, &[]));
    assert_eq!(h.rx(told(2000, &[(3000, 9000)])), []);
    let waited = until_repaired(&mut h);
    assert!((2500..=2500 + TICK_US).contains(&waited), "{waited}");
}

/// RFC 5681 §3.1, equation 4: half of what was in flight, not of what the window would have allowed. Bytes that
/// limited transmit has sent beyond the window do not count (§3.2, step 2).
#[test]
fn the_threshold_after_a_loss_is_half_of_the_flight() {
    for sack in [false, true] {
        let blocks = |end: u32| if sack { vec![(1000, end)] } else { vec![] };
        let after_loss = |written: u32| {
            let mut h = Harness::of(FlowSetup { sack, srtt_us: 10_000, ..setup() });
            h.write(written);
            h.now = h.now.after(10_000);
            for n in 2..=4 {
                h.rx(told(0, &blocks(n * 1000)));
            }
            assert_ne!(h.snapshot().flags & flow_flags::RECOVERY, 0, "sack {sack}");
            h.snapshot().ssthresh
        };
        assert_eq!(after_loss(6000), 3000, "the application has sent less than the window, sack {sack}");
        assert_eq!(after_loss(20_000), 5000, "limited transmit has sent more than the window, sack {sack}");
        assert_eq!(after_loss(4000), 2000, "at least two segments, sack {sack}");
    }
}

/// Our clock of milliseconds passes the end of its numbers between a segment and its repair.
fn wrapping() -> FlowSetup {
    // The harness begins at 1000 ms.
    FlowSetup { timestamps: true, ts_offset: u32::MAX - 1004, ..setup() }
}

#[test]
fn timestamps_tell_a_needless_repair_across_the_end_of_their_numbers() {
    for sack in [true, false] {
        let setup = || FlowSetup { sack, srtt_us: 10_000, ..wrapping() };
        let blocks = |n: u32| if sack { vec![(1000, 1000 + n * 1000)] } else { vec![] };
        // The peer echoes the first transmission, or the repair.
        for (echoes_first, undone) in [(true, 1), (false, 0)] {
            let mut h = Harness::of(setup());
            let first = h.write(10_000)[0].ts.unwrap().0;
            assert_eq!(first, u32::MAX - 4);
            h.now = h.now.after(10_000);
            let mut repair = None;
            for n in 1..=3 {
                repair = h.rx(told(0, &blocks(n)).ts(5, first)).first().and_then(|sent| sent.ts).or(repair);
            }
            let repair = repair.expect("a repair").0;
            assert_eq!(repair, 5, "past the end");
            h.now = h.now.after(10_000);
            h.rx(told(10_000, &[]).ts(6, if echoes_first { first } else { repair }));
            assert_eq!(h.fast.counters().undone, undone, "sack {sack}, first {echoes_first}");
        }
    }
}

#[test]
fn the_peers_timestamps_pass_the_end_of_their_numbers() {
    let mut h = Harness::of(FlowSetup { timestamps: true, ts_recent: u32::MAX - 1, ..setup() });
    h.rx(seg(0, 0, &bytes(0, 10)).ts(u32::MAX, 0));
    h.rx(seg(10, 0, &bytes(10, 10)).ts(0, 0));
    h.wait(1000);
    h.rx(seg(20, 0, &bytes(20, 10)).ts(3, 0));
    assert_eq!((h.view().rx_tail, h.dropped(Drop::Paws)), (30, 0));
    h.wait(1000);
    h.rx(seg(30, 0, &bytes(30, 10)).ts(u32::MAX, 0));
    assert_eq!((h.view().rx_tail, h.dropped(Drop::Paws)), (30, 1), "older, across the end");
    h.rx(seg(30, 0, &bytes(30, 10)).ts(3u32.wrapping_sub(1 << 31), 0));
    assert_eq!((h.view().rx_tail, h.dropped(Drop::Paws)), (30, 2), "half of the numbers away is older");
    h.rx(seg(30, 0, &bytes(30, 10)).ts(3u32.wrapping_add(i32::MAX as u32), 0));
    assert_eq!((h.view().rx_tail, h.dropped(Drop::Paws)), (40, 2));
}
