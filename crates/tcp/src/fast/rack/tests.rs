//! The rules of RFC 8985, one by one, each with the values around its limits.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::fast::STAGES;
use crate::fast::scoreboard::Scoreboards;
use crate::fast::tests::{Harness, MSS, scoreboard_of, seg, setup};
use crate::flow::FlowSetup;
use crate::table::bits::RECOVER_SET;

/// When the harness begins, µs.
const T0: u32 = 1_000_000;

/// Four segments of a flow from 0 on, sent 1 ms apart from `T0` on.
fn spread() -> Harness {
    let mut h = Harness::of(FlowSetup { snd_start: Seq(0), sack: true, srtt_us: 10_000, ..setup() });
    for n in 0..4 {
        h.now = Micros(u64::from(T0 + n * 1000));
        assert_eq!(h.write(MSS).len(), 1);
    }
    h
}

/// The flow is in a time-out up to `recover`.
fn time_out_up_to(turn: &mut FlowTurn<'_>, recover: u32) {
    turn.t.set(STAGES.loss, RECOVER_SET);
    turn.lines.addresses.recover.set(STAGES.loss, recover);
}

#[test]
fn a_transmission_is_newer_if_it_was_sent_later_or_at_the_same_time_and_ends_later() {
    let newest = Newest { at: u32::MAX, end: Seq(u32::MAX), rtt_us: 1 };
    for (at, end, after) in [
        (u32::MAX, u32::MAX, false),
        (u32::MAX, 0, true),
        (u32::MAX, u32::MAX - 1, false),
        (0, 5, true),
        (0, u32::MAX - 5, true),
        (u32::MAX - 1, 5, false),
    ] {
        assert_eq!(sent_after(&Span { end: Seq(end), at, state: 0 }, &newest), after, "{at} {end}");
    }
}

/// RFC 8985 §6.2, steps 1 to 3. Now is 100 ms, the smallest round trip 10 ms, RACK.fack 5000, and recovery began at
/// 3000.
#[test]
fn an_arrival_is_the_newest_unless_it_may_be_the_first_transmission_of_what_was_sent_again() {
    let newest = |at, end, rtt_us| Some((at, end, rtt_us));
    for (age, echo, span, before, wanted) in [
        (10_000, None, (1000, 0), None, (5000, newest(90_000, 1000, 10_000), true, true)),
        (10_000, None, (3000, 0), None, (5000, newest(90_000, 3000, 10_000), true, true)),
        (10_000, None, (3001, 0), None, (5000, newest(90_000, 3001, 10_000), true, false)),
        (10_000, None, (4999, LOST), None, (5000, newest(90_000, 4999, 10_000), true, false)),
        (10_000, None, (5000, 0), None, (5000, newest(90_000, 5000, 10_000), false, false)),
        (10_000, None, (6000, 0), None, (6000, newest(90_000, 6000, 10_000), false, false)),
        // A round trip shorter than the shortest is of another transmission only if there was another.
        (9_999, None, (1000, 0), None, (5000, newest(90_001, 1000, 9_999), true, true)),
        (9_999, None, (1000, AGAIN), None, (5000, None, true, false)),
        (9_999, None, (5000, AGAIN), None, (5000, None, false, false)),
        (9_999, None, (6000, AGAIN | LOST), None, (6000, None, false, false)),
        (10_000, None, (1000, AGAIN), None, (5000, newest(90_000, 1000, 10_000), false, false)),
        // The peer echoes an older timestamp than that of the repair, by more than a millisecond.
        (20_999, Some(21), (1000, AGAIN), None, (5000, newest(79_001, 1000, 20_999), false, false)),
        (20_999, Some(22), (1000, AGAIN), None, (5000, None, true, false)),
        (20_999, Some(22), (1000, 0), None, (5000, newest(79_001, 1000, 20_999), true, true)),
        // What arrived before was sent later.
        (10_000, None, (1000, 0), newest(90_001, 10, 1), (5000, newest(90_001, 10, 1), true, true)),
        (10_000, None, (1000, 0), newest(90_000, 1000, 1), (5000, newest(90_000, 1000, 1), true, true)),
        (10_000, None, (1000, 0), newest(90_000, 999, 1), (5000, newest(90_000, 1000, 10_000), true, true)),
    ] {
        for (reordered, original) in [(false, false), (true, true)] {
            let of = |(at, end, rtt_us)| Newest { at, end: Seq(end), rtt_us };
            let mut news = News {
                now: 100_000,
                echo_age_ms: echo,
                min_rtt_us: 10_000,
                before: Seq(5000),
                highest: Seq(5000),
                newest: before.map(of),
                bytes: 7,
                reordered,
                recover: Seq(3000),
                original,
            };
            let (end, state) = span;
            news.take(Seq(end - 10), &Span { end: Seq(end), at: 100_000 - age, state });
            let left = news.newest.map(|newest| (newest.at, newest.end.0, newest.rtt_us));
            assert_eq!(news.bytes, 17);
            let wanted = (wanted.0, wanted.1, wanted.2 || reordered, wanted.3 || original);
            assert_eq!((news.highest.0, left, news.reordered, news.original), wanted, "{age} {echo:?} {span:?}");
        }
    }
}

/// RFC 2883 §4.
#[test]
fn the_first_block_reports_a_duplicate_if_it_is_acknowledged_or_within_the_second() {
    for (blocks, ack, reported) in [
        (vec![], 10, false),
        (vec![(0, 10)], 10, true),
        (vec![(0, 10)], 9, false),
        (vec![(0, 10)], 11, true),
        (vec![(10, 10)], 20, false),
        (vec![(11, 10)], 20, false),
        (vec![(20, 30), (20, 30)], 5, true),
        (vec![(20, 30), (19, 31)], 5, true),
        (vec![(20, 30), (21, 31)], 5, false),
        (vec![(20, 30), (19, 29)], 5, false),
        (vec![(20, 30), (40, 50), (19, 31)], 5, false),
    ] {
        let wanted = reported.then(|| (Seq(blocks[0].0), Seq(blocks[0].1)));
        assert_eq!(duplicate(&blocks, Seq(ack)), wanted, "{blocks:?} {ack}");
    }
}

/// RFC 8985 §6.2, step 4, and RFC 3522 for a repair that was needless. SND.UNA is 1000, SND.MAX 9000.
#[test]
fn what_arrives_twice_widens_the_window_once_per_round_trip_and_is_counted_if_it_is_ours() {
    const FRESH: u32 = 16 << 8 | 1 << 17;
    const SEEN: u32 = 1 << 16;
    const ROUND: u32 = 1 << 17;
    // Block, UNDO, bytes sent again, knowledge, its round; then: all needless, knowledge, its round, bytes left.
    for (block, undo, bytes, known, round, wanted) in [
        ((2000, 3000), true, 3000, 0, 0, (false, FRESH | SEEN | 1, 9000, 2000)),
        ((2000, 5000), true, 3000, 0, 0, (true, FRESH | SEEN | 1, 9000, 0)),
        ((2000, 6000), true, 3000, 0, 0, (true, FRESH | SEEN | 1, 9000, 0)),
        ((1999, 5000), true, 3000, 0, 0, (false, FRESH | 1, 9000, 3000)),
        ((5000, 6000), true, 1000, 0, 0, (true, FRESH | SEEN | 1, 9000, 0)),
        ((5000, 6001), true, 1000, 0, 0, (false, FRESH | 1, 9000, 1000)),
        ((2000, 5000), false, 3000, 0, 0, (false, FRESH | 1, 9000, 3000)),
        ((2000, 5000), false, 0, 0, 0, (false, FRESH | 1, 9000, 0)),
        ((2000, 5000), true, 0, 0, 0, (false, FRESH | 1, 9000, 0)),
        ((7000, 8000), true, 0, 0, 0, (false, FRESH | 1, 9000, 0)),
        // Of this round trip, and of one that is over.
        ((2000, 3000), true, 3000, ROUND | 3 << 8 | 4, 1001, (false, ROUND | SEEN | 3 << 8 | 4, 1001, 2000)),
        ((7000, 8000), true, 3000, ROUND | 3 << 8 | 4, 1001, (false, ROUND | 3 << 8 | 4, 1001, 3000)),
        ((7000, 8000), true, 3000, ROUND | 3 << 8 | 4, 1000, (false, FRESH | 5, 9000, 3000)),
        ((7000, 8000), true, 3000, SEEN | 3 << 8 | 4, 1001, (false, FRESH | SEEN | 5, 9000, 3000)),
        ((7000, 8000), true, 3000, 254, 0, (false, FRESH | 255, 9000, 3000)),
        ((7000, 8000), true, 3000, 255, 0, (false, FRESH | 255, 9000, 3000)),
    ] {
        let (lines, mut t, by) = (Lines::default(), Tcb::default(), STAGES.loss);
        t.received(STAGES.install).snd_una = Seq(1000);
        t.sent(STAGES.install).snd_max = Seq(9000);
        if undo {
            t.set(by, UNDO);
        }
        let line = &lines.recovery;
        line.undo_from.set(by, 2000);
        line.undo_bytes.set(by, bytes);
        lines.addresses.recover.set(by, 6000);
        line.reordering.set(by, known);
        line.duplicate_round.set(by, round);
        let all = arrived_twice(by, &t, &lines, (Seq(block.0), Seq(block.1)));
        let left = (all, line.reordering.get(), line.duplicate_round.get(), line.undo_bytes.get());
        assert_eq!(left, wanted, "{block:?} {undo} {bytes} {known:x} {round}");
    }
}

/// RFC 8985 §6.2, step 4.
#[test]
fn the_reordering_window_is_nothing_without_reordering_but_with_a_loss_or_three_segments_reported() {
    const SEEN: u32 = 1 << 16;
    // Knowledge, duplicates, reported bytes, in recovery, in a time-out, smallest and smoothed round trip; the window.
    for (known, duplicates, sacked, recovery, timed_out, rtts, window) in [
        (0, 0, 0, false, false, (8000, 10_000), 2000),
        (0, 2, 2000, false, false, (8000, 10_000), 2000),
        (0, 3, 0, false, false, (8000, 10_000), 0),
        (0, 0, 2001, false, false, (8000, 10_000), 0),
        (0, 0, 0, true, false, (8000, 10_000), 0),
        (0, 0, 0, false, true, (8000, 10_000), 0),
        (SEEN, 5, 4000, true, true, (8000, 10_000), 2000),
        (SEEN | 1, 0, 0, false, false, (8000, 10_000), 4000),
        (SEEN | 16 << 8 | 3, 0, 0, false, false, (8000, 10_000), 8000),
        (SEEN | 4, 0, 0, false, false, (8000, 10_000), 10_000),
        (SEEN | 4, 0, 0, false, false, (8000, 9999), 9999),
        (SEEN | 255, 0, 0, false, false, (u32::MAX, 10_000), 10_000),
    ] {
        let (lines, mut t, by) = (Lines::default(), Tcb::default(), STAGES.loss);
        t.size(STAGES.install).mss = 1000;
        t.sent(STAGES.install).snd_max = Seq(9000);
        lines.recovery.reordering.set(by, known);
        lines.rate.min_rtt_us.set(STAGES.install, rtts.0);
        lines.measures.srtt_us.set(STAGES.install, rtts.1);
        if recovery {
            t.set(by, RECOVERY);
        } else if timed_out {
            t.set(by, RECOVER_SET);
            lines.addresses.recover.set(by, 9000);
        }
        let mut scoreboards = Scoreboards::default();
        let entry = scoreboards.take(Seq(0), Seq(9000), 5, false).unwrap();
        let scoreboard = scoreboards.get(u32::from(entry)).unwrap();
        scoreboard.duplicates = duplicates;
        if sacked > 0 {
            scoreboard.report(Seq(1000), Seq(1000 + sacked), |_, _| {});
        }
        let seen = reordering_window_us(&t, &lines, scoreboard);
        assert_eq!(seen, window, "{known:x} {duplicates} {sacked} {recovery} {timed_out} {rtts:?}");
    }
}

/// RFC 8985 §6.2, step 5. The window is 2 ms, and the round trip of the newest arrival 10 ms. That is the third of four
/// segments.
#[test]
fn a_segment_is_lost_when_it_is_late_by_more_than_the_window_and_the_timer_waits_for_the_last_one() {
    for (us, lost, wait) in
        [(11_999, 0, 1001), (12_000, 1000, 1000), (12_999, 1000, 1), (13_000, 2000, 0), (50_000, 2000, 0)]
    {
        let mut h = spread();
        h.now = Micros(u64::from(T0 + us));
        let mut turn = h.turn();
        turn.lines.recovery.reordering.set(STAGES.loss, learnt::SEEN);
        turn.lines.rate.min_rtt_us.set(STAGES.install, 8000);
        scoreboard_of(&mut turn).newest = Some(Newest { at: T0 + 2000, end: Seq(3000), rtt_us: 10_000 });
        assert_eq!(detect(STAGES.loss, &mut turn), lost, "{us}");
        assert_eq!(turn.lines.rate.bytes_lost.get(), u64::from(lost));
        assert_eq!(scoreboard_of(&mut turn).reordering_timer, wait > 0, "{us}");
        assert_eq!(turn.lines.recovery.deadline.get(), if wait > 0 { (T0 + us + wait) | 1 } else { 0 }, "{us}");
        assert_eq!(scoreboard_of(&mut turn).bytes(LOST), lost);
    }
}

/// RFC 8985 §7.2: no probe while something is reported or lost, in recovery, or if one is out.
#[test]
fn the_tail_is_probed_only_if_nothing_is_known_to_be_missing() {
    for (sacked, lost, probe, recovery) in [
        (false, false, false, false),
        (true, false, false, false),
        (false, true, false, false),
        (false, false, true, false),
        (false, false, false, true),
    ] {
        let mut h = spread();
        let mut turn = h.turn();
        let now = turn.now.0 as u32;
        let b = scoreboard_of(&mut turn);
        // Nothing was sent before the newest arrival.
        b.newest = Some(Newest { at: T0, end: Seq(1000), rtt_us: 10_000 });
        if sacked {
            b.report(Seq(2000), Seq(3000), |_, _| {});
        }
        if lost {
            b.lose(|span| span.end == Seq(4000));
        }
        b.probe = probe.then_some((Seq(4000), false));
        if recovery {
            turn.t.set(STAGES.loss, RECOVERY);
        }
        turn.lines.recovery.deadline.set(STAGES.loss, 77);
        assert_eq!(detect(STAGES.loss, &mut turn), 0);
        let none = sacked || lost || probe || recovery;
        let deadline = if none { 0 } else { (now + 22_000) | 1 };
        assert_eq!(turn.lines.recovery.deadline.get(), deadline, "{sacked} {lost} {probe} {recovery}");
    }
}

/// RFC 8985 §7.2.
#[test]
fn the_probes_time_is_two_round_trips_and_a_margin_with_several_segments_out_and_an_open_window() {
    for (flight, wnd, timed_out, srtt, wait) in [
        (1000, 60_000, false, 10_000, None),
        (1001, 60_000, false, 10_000, Some(22_000)),
        (4000, 1, false, 10_000, Some(22_000)),
        (4000, 0, false, 10_000, None),
        (4000, 60_000, true, 10_000, None),
        (4000, 60_000, false, 0, Some(1_000_000)),
        (4000, 60_000, false, 1, Some(2002)),
        (4000, 60_000, false, 1 << 30, Some((1 << 29) + 2000)),
    ] {
        let mut h = spread();
        let mut turn = h.turn();
        let now = turn.now.0 as u32;
        turn.t.received(STAGES.install).snd_wnd = wnd;
        turn.lines.measures.srtt_us.set(STAGES.install, srtt);
        if timed_out {
            time_out_up_to(&mut turn, 4000);
        }
        turn.lines.recovery.deadline.set(STAGES.loss, 77);
        arm_probe(STAGES.loss, &mut turn, Seq(flight));
        let deadline = turn.lines.recovery.deadline.get();
        assert_eq!(deadline, wait.map_or(0, |wait| (now + wait) | 1), "{flight} {wnd} {timed_out} {srtt}");
    }
}

/// RFC 8985 §7.4.2. The probe ended at 4000.
#[test]
fn an_acknowledged_probe_has_repaired_a_loss_unless_it_came_twice_or_was_new() {
    let twice = |start, end| Some((Seq(start), Seq(end)));
    for (again, ack, bare, twice, repaired, answered) in [
        (true, 3999, true, twice(3000, 4000), false, false),
        (false, 3999, false, None, false, false),
        (false, 4000, false, None, false, true),
        (false, 5000, false, None, false, true),
        (true, 4000, false, None, false, false),
        (true, 4000, true, None, false, true),
        (true, 4000, false, twice(3000, 4000), false, true),
        (true, 4000, false, twice(2000, 3000), false, false),
        (true, 4001, false, None, true, true),
        (true, 4001, true, None, true, true),
        (true, 4001, false, twice(2000, 3000), true, true),
        (true, 4001, false, twice(3000, 4000), false, true),
    ] {
        let mut scoreboard = Scoreboard::default();
        scoreboard.probe = Some((Seq(4000), again));
        assert_eq!(probe_answered(&mut scoreboard, Seq(ack), bare, twice), repaired, "{again} {ack} {bare} {twice:?}");
        assert_eq!(scoreboard.probe.is_none(), answered, "{again} {ack} {bare} {twice:?}");
        assert!(!probe_answered(&mut Scoreboard::default(), Seq(ack), bare, twice), "no probe is out");
    }
}

/// RFC 5682 §3.1. Two of four segments are lost.
#[test]
fn a_time_out_stays_in_doubt_only_if_the_first_acknowledgement_advances_and_new_data_may_go() {
    // Stage before, doubt, whether it advances, SND.MAX of what is queued, window, in a time-out; doubt after.
    for (stage, doubtful, advanced, queued, wnd, timed_out, left) in [
        (1, 1, true, 5000, 60_000, true, 2),
        (1, 1, true, 4001, 4001, true, 2),
        (1, 1, false, 5000, 60_000, true, 0),
        (2, 2, true, 5000, 60_000, true, 0),
        (1, 1, true, 4000, 60_000, true, 0),
        (1, 1, true, 5000, 4000, true, 0),
        (1, 1, true, 5000, 60_000, false, 0),
        (0, 1, true, 5000, 60_000, true, 1),
        (0, 2, false, 5000, 60_000, true, 2),
        (1, 0, true, 5000, 60_000, true, 0),
    ] {
        let mut h = spread();
        let mut turn = h.turn();
        turn.t.written(STAGES.install).snd_queued = Seq(queued);
        turn.t.received(STAGES.install).snd_wnd = wnd;
        if timed_out {
            time_out_up_to(&mut turn, 4000);
        }
        scoreboard_of(&mut turn).lose(|span| !span.end.after(Seq(2000)));
        recovery::count(STAGES.loss, &mut turn.state.scoreboards, &mut turn.t, turn.lines);
        turn.t.congestion(STAGES.loss).cwnd = 777;
        scoreboard_of(&mut turn).doubtful = doubtful;
        turn.t.set(STAGES.loss, bits::LOST);
        doubt(STAGES.loss, &mut turn, stage, advanced);
        let decided = stage != 0 && doubtful != 0 && left == 2;
        assert_eq!(scoreboard_of(&mut turn).doubtful, left, "{stage} {doubtful} {advanced} {queued} {wnd} {timed_out}");
        assert_eq!(turn.t.has(bits::LOST), !decided, "repairs wait, {stage} {doubtful}");
        assert_eq!(turn.t.cwnd(), if decided { 4000 } else { 777 }, "two segments beside the two in flight");
    }
}

#[test]
fn a_deadline_that_has_passed_is_due_and_one_that_has_moved_is_armed_again() {
    const NOW: u32 = T0 | 1;
    for (deadline, tracked, dead, due_now, left) in [
        (0, true, false, false, 0),
        (NOW, true, false, true, 0),
        (NOW - 2, true, false, true, 0),
        (NOW + 2, true, false, false, NOW + 2),
        (NOW, false, false, false, NOW),
        (NOW, true, true, false, NOW),
    ] {
        let mut h = spread();
        h.now = Micros(u64::from(T0));
        let mut turn = h.turn();
        if !tracked {
            turn.t.clear(STAGES.loss, TRACKED);
        }
        if dead {
            turn.t.set(STAGES.install, DEAD);
        }
        turn.lines.recovery.deadline.set(STAGES.loss, deadline);
        turn.lines.recovery.queued.set(STAGES.loss, 5);
        assert_eq!(due(STAGES.loss, &mut turn), due_now, "{deadline} {tracked} {dead}");
        assert_eq!(turn.lines.recovery.deadline.get(), left, "{deadline} {tracked} {dead}");
        let queued = if deadline == NOW + 2 { NOW + 2 } else { 0 };
        assert_eq!(turn.lines.recovery.queued.get(), queued, "{deadline} {tracked} {dead}");
        assert_eq!(turn.t.has(TAIL), due_now);
    }
}

#[test]
fn a_late_acknowledgement_asks_for_a_probe_unless_a_repair_or_the_window_comes_first() {
    for (clean, recovery, idle, wnd) in [
        (true, false, false, 60_000),
        (true, false, false, 1),
        (false, false, false, 60_000),
        (true, true, false, 60_000),
        (true, false, true, 60_000),
        (true, false, false, 0),
    ] {
        let mut h = spread();
        let mut turn = h.turn();
        scoreboard_of(&mut turn).clean = clean;
        if recovery {
            turn.t.set(STAGES.loss, RECOVERY);
        }
        if idle {
            turn.t.received(STAGES.install).snd_una = Seq(4000);
        }
        turn.t.received(STAGES.install).snd_wnd = wnd;
        late(STAGES.loss, &mut turn);
        let probes = clean && !recovery && !idle && wnd != 0;
        assert_eq!(turn.t.has(TAIL), probes, "{clean} {recovery} {idle} {wnd}");
    }
    // The reordering timer: what is late is lost.
    let mut h = spread();
    h.now = Micros(u64::from(T0 + 13_000));
    let mut turn = h.turn();
    turn.lines.rate.min_rtt_us.set(STAGES.install, 8000);
    let b = scoreboard_of(&mut turn);
    b.newest = Some(Newest { at: T0 + 1000, end: Seq(2000), rtt_us: 10_000 });
    b.reordering_timer = true;
    late(STAGES.loss, &mut turn);
    assert!(turn.t.has(RECOVERY) && turn.t.has(bits::LOST) && !turn.t.has(TAIL));
}

#[test]
fn a_timer_on_the_wheel_moves_only_to_an_earlier_time() {
    for (queued, left) in [(0, T0 + 501), (T0 + 503, T0 + 501), (T0 + 499, T0 + 499), (T0 + 501, T0 + 501)] {
        let mut h = spread();
        h.now = Micros(u64::from(T0));
        let FlowTurn { state, lines, flow, now, .. } = h.turn();
        lines.recovery.queued.set(STAGES.loss, queued);
        arm(STAGES.loss, &mut state.wheel, &lines.recovery, flow, now, 500);
        assert_eq!((lines.recovery.deadline.get(), lines.recovery.queued.get()), (T0 + 501, left), "{queued}");
    }
}

#[test]
fn an_acknowledgement_that_advances_moves_the_probe_and_another_does_not() {
    let mut h = spread();
    let deadline = |h: &mut Harness| h.turn().lines.recovery.deadline.get();
    assert_eq!(deadline(&mut h), (T0 + 25_000) | 1);
    let mut wanted = 0;
    for (us, ack, moves) in [(5000, 1000, true), (6000, 1000, false), (7000, 2000, true)] {
        h.now = Micros(u64::from(T0 + us));
        h.rx(seg(0, ack, &[]));
        if moves {
            // The round trip has been measured anew.
            wanted = (T0 + us + 2 * h.snapshot().srtt_us + 2000) | 1;
        }
        assert_eq!(deadline(&mut h), wanted, "{us}");
    }
    h.rx(seg(0, 3000, &[]));
    assert_eq!(deadline(&mut h), 0, "a single segment has no such timer");
}

#[test]
fn acknowledgements_that_report_something_new_are_duplicates_until_one_advances() {
    let mut h = Harness::of(FlowSetup { snd_start: Seq(0), sack: true, srtt_us: 10_000, ..setup() });
    h.write(10 * MSS);
    h.now = h.now.after(10_000);
    for (ack, block, counted) in [
        (0, (1000, 2000), 1),
        (0, (1000, 2000), 1),
        (0, (1000, 2500), 2),
        (500, (1000, 2600), 0),
        (500, (1000, 2700), 1),
        // Below what is acknowledged: a duplicate of the peer's, and nothing new.
        (500, (0, 400), 1),
    ] {
        h.rx(seg(0, ack, &[]).sack(&[block]));
        let mut turn = h.turn();
        assert_eq!(scoreboard_of(&mut turn).duplicates, counted, "{ack} {block:?}");
        assert_eq!(scoreboard_of(&mut turn).highest, Seq(if block.1 > 400 { block.1 } else { 2700 }));
    }
    assert_eq!(h.snapshot().duplicates, 1);
}

#[test]
fn the_age_of_an_echo_is_counted_on_our_clock_of_milliseconds() {
    let mut h = Harness::of(FlowSetup { timestamps: true, ts_offset: 77, ..setup() });
    h.now = Micros(5_000_999);
    let [s, unstamped] = [seg(0, 0, &[]).ts(9, 5000), seg(0, 0, &[])].map(|segment| {
        let frame = h.frame(&segment);
        Segment::of(&towpath_wire::segment::parse(&frame).unwrap(), &mut Vec::new())
    });
    let mut turn = h.turn();
    assert_eq!(echo_age_ms(&turn.t, turn.lines, turn.now, &s), Some(77));
    turn.t.clear(STAGES.install, TIMESTAMPS);
    assert_eq!(echo_age_ms(&turn.t, turn.lines, turn.now, &s), None);
    turn.t.set(STAGES.install, TIMESTAMPS);
    assert_eq!(echo_age_ms(&turn.t, turn.lines, turn.now, &unstamped), None);
}

#[test]
fn a_time_is_kept_modulo_2_to_the_32_and_is_never_the_sign_for_none() {
    for (at, kept) in [(0, 1), (4, 5), (5, 5), (1 << 32, 1), ((1 << 32) + 7, 7), (u64::from(u32::MAX), u32::MAX)] {
        assert_eq!(word(Micros(at)), kept, "{at}");
    }
}

#[test]
fn the_handshake_is_the_first_sample_of_the_shortest_round_trip() {
    for srtt_us in [9000, 0] {
        assert_eq!(Harness::of(FlowSetup { srtt_us, ..setup() }).snapshot().min_rtt_us, srtt_us);
    }
}
