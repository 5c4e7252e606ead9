//! Losses on flows that agreed on SACK (RFC 6675, RFC 8985, RFC 9937), and repairs that were needless (RFC 4015, RFC
//! 5682).

use super::*;

fn sent(segments: &[Seg]) -> Vec<(u32, usize)> {
    segments.iter().map(|s| (s.seq, s.data.len())).collect()
}

/// `n` segments outstanding, sent one round trip of 10 ms ago.
fn out(n: u32, timestamps: bool) -> Harness {
    let window = Window { cwnd: n * MSS, ..setup().window };
    let mut h = Harness::of(FlowSetup { sack: true, timestamps, srtt_us: 10_000, window, ..setup() });
    assert_eq!(h.write(n * MSS).len(), n as usize);
    h.slow.clear();
    h.now = h.now.after(10_000);
    h
}

/// An acknowledgement with SACK blocks.
fn told(ack: u32, blocks: &[(u32, u32)]) -> Seg {
    seg(0, ack, &[]).sack(blocks)
}

fn timeout(h: &mut Harness) {
    h.message(ToFast::Timeout(FLOW, Window { cwnd: MSS, ssthresh: 5 * MSS, growth: 256, beta: 512, pacing: 0 }));
}

/// Waits until something is sent.
fn probe(h: &mut Harness) -> Vec<Seg> {
    for _ in 0..5 {
        h.now = h.fast.next_deadline().expect("the probe's timer runs");
        let sent = h.flush();
        if !sent.is_empty() {
            return sent;
        }
    }
    panic!("no probe");
}

fn scoreboards(h: &Harness) -> usize {
    h.fast.state.scoreboards.in_use()
}

#[test]
fn three_reported_segments_repair_the_hole() {
    let mut h = out(10, false);
    assert_eq!(h.rx(told(0, &[(1000, 2000)])), []);
    assert_eq!(h.rx(told(0, &[(1000, 3000)])), []);
    let repair = h.rx(told(0, &[(1000, 4000)]));
    assert_eq!((sent(&repair), &repair[0].data), (vec![(0, 1000)], &bytes(0, 1000)));
    assert_eq!(h.slow_names(), ["Loss"]);
    let s = h.snapshot();
    assert_eq!((s.ssthresh, s.retransmits, s.bytes_lost), (5000, 1, 1000));
    assert_ne!(s.flags & flow_flags::RECOVERY, 0);
    h.rx(told(10_000, &[]));
    let s = h.snapshot();
    assert_eq!((s.flags & flow_flags::RECOVERY, s.cwnd), (0, 5000));
    assert_eq!(scoreboards(&h), 0, "nothing is out");
}

#[test]
fn all_holes_are_repaired_in_one_round_trip() {
    let mut h = out(20, false);
    // Four of twenty: NewReno would take four round trips.
    let mut blocks = vec![];
    let mut repairs = vec![];
    for n in (0..20).filter(|n| n % 5 != 0) {
        blocks.insert(0, (n * MSS, n * MSS + MSS));
        repairs.extend(sent(&h.rx(told(0, &blocks[..blocks.len().min(3)]))));
    }
    assert_eq!(repairs, [(0, 1000), (5000, 1000), (10_000, 1000), (15_000, 1000)]);
    assert_eq!(h.slow_names(), ["Loss"]);
    assert_eq!(h.snapshot().bytes_lost, 4000);
}

#[test]
fn the_window_shrinks_in_proportion_to_what_arrives() {
    let mut h = out(20, false);
    h.write(40_000);
    // One is lost, the others arrive one by one: half as many go out, the repair first.
    let mut new = vec![];
    for n in 1..20 {
        new.extend(sent(&h.rx(told(0, &[(1000, n * MSS + MSS)]))));
    }
    // Two segments by limited transmit (RFC 3042) before the loss was certain.
    assert_eq!(new[2], (0, 1000));
    assert!((10..=12).contains(&new.len()), "{new:?}");
    h.rx(told(22_000, &[]));
    let s = h.snapshot();
    assert_eq!(
        (s.cwnd, s.flags & flow_flags::RECOVERY),
        (10_000, 0),
        "half of the 20 that were out, without limited transmission's two (RFC 5681 §3.2)"
    );
}

#[test]
fn limited_transmission_counts_what_has_arrived() {
    let mut h = out(10, false);
    h.write(5000);
    assert_eq!(sent(&h.rx(told(0, &[(1000, 2000)]))), [(10_000, 1000)]);
    assert_eq!(sent(&h.rx(told(0, &[(1000, 3000)]))), [(11_000, 1000)]);
}

#[test]
fn what_is_reported_is_not_sent_again_after_a_timeout() {
    let mut h = out(10, false);
    h.rx(told(0, &[(2000, 3000)]));
    h.rx(told(0, &[(6000, 10_000), (2000, 3000)]));
    h.wait(1_000_000);
    timeout(&mut h);
    let mut repairs = vec![];
    repairs.extend(sent(&h.flush()));
    h.now = h.now.after(10_000);
    for ack in [1000, 3000, 4000, 5000] {
        repairs.extend(sent(&h.rx(told(ack, &[(6000, 10_000)]))));
    }
    repairs.sort_unstable();
    repairs.dedup();
    assert!(repairs.iter().all(|(seq, _)| [0, 1000, 3000, 4000, 5000].contains(seq)), "{repairs:?}");
    assert_eq!(repairs.len(), 5, "{repairs:?}");
    assert_eq!(h.snapshot().snd_nxt, h.snapshot().snd_max);
}

#[test]
fn a_peer_that_throws_away_what_it_had_gets_it_again() {
    let mut h = out(4, false);
    h.rx(told(0, &[(1000, 4000)]));
    h.flush();
    // The repair arrives, but the peer has dropped everything that it had reported.
    h.rx(told(1000, &[]));
    timeout(&mut h);
    assert_eq!(sent(&h.flush()), [(1000, 1000)]);
    h.now = h.now.after(10_000);
    assert_eq!(sent(&h.rx(told(2000, &[]))), [(2000, 1000), (3000, 1000)]);
}

#[test]
fn a_lost_repair_is_noticed() {
    let mut h = out(10, false);
    h.write(20_000);
    assert_eq!(sent(&h.rx(told(0, &[(1000, 5000)])))[0], (0, 1000));
    h.now = h.now.after(10_000);
    assert_eq!(sent(&h.rx(told(0, &[(1000, 10_000)])))[0], (10_000, 1000));
    h.now = h.now.after(10_000);
    // Segments sent after the repair have arrived, the repair has not.
    assert_eq!(sent(&h.rx(told(0, &[(1000, 11_000)])))[0], (0, 1000));
}

#[test]
fn reordering_that_was_seen_once_is_waited_for() {
    let mut h = out(10, false);
    h.rx(told(0, &[(1000, 2000)]));
    h.rx(told(2000, &[]));
    assert_ne!(h.fast.table.get(FLOW).unwrap().recovery.reordering.get(), 0);
    h.write(10_000);
    h.now = h.now.after(10_000);
    assert_eq!(sent(&h.rx(told(2000, &[(3000, 9000)]))).iter().filter(|s| s.0 < 10_000).count(), 0);
    let deadline = h.fast.next_deadline().expect("the reordering timer runs");
    assert!(deadline.0 - h.now.0 <= 5000, "{deadline:?} {:?}", h.now);
    // The late segment comes in time.
    h.rx(told(10_000, &[]));
    assert_eq!(h.snapshot().retransmits, 0);
    // The late segment does not come in time.
    h.now = h.now.after(10_000);
    h.rx(told(10_000, &[(11_000, 13_000)]));
    assert_eq!(h.snapshot().retransmits, 0);
    let late = h.wait(10_000);
    assert_eq!(sent(&late)[0], (10_000, 1000));
}

#[test]
fn needless_repairs_widen_the_reordering_window() {
    let mut h = out(10, false);
    let window = |h: &Harness| h.fast.table.get(FLOW).unwrap().recovery.reordering.get() & 0xff;
    h.rx(told(0, &[(1000, 4000)]));
    assert_eq!(h.snapshot().retransmits, 1);
    h.rx(told(4000, &[]));
    h.rx(told(4000, &[(0, 1000)]));
    assert_eq!(window(&h), 1);
    h.rx(told(4000, &[(0, 1000)]));
    assert_eq!(window(&h), 1, "once per round trip");
}

#[test]
fn a_lost_tail_is_probed_after_two_round_trips() {
    let mut h = out(3, false);
    let began = h.now;
    assert_eq!(h.rx(told(1000, &[])), []);
    assert_eq!(sent(&probe(&mut h)), [(2000, 1000)], "the last segment");
    // Two round trips, and 2 ms as the acknowledgement may have been held back.
    assert!(h.now.0 - began.0 <= 22_000, "{:?}", h.now.0 - began.0);
    assert_eq!(h.fast.counters().tail_probes, 1);
    // The probe's acknowledgement shows that the segment before it is missing.
    h.now = h.now.after(10_000);
    let repair = h.rx(told(1000, &[(2000, 3000)]));
    let repair = if repair.is_empty() { h.wait(10_000) } else { repair };
    assert_eq!(sent(&repair), [(1000, 1000)]);
    assert_eq!(h.slow_names(), ["Loss"]);
}

/// The report of a probe echoes what was last in order. That is older than the probe, and says nothing of it.
#[test]
fn a_reported_probe_shows_the_loss_of_all_before_it_whatever_it_echoes() {
    for n in 3..=6 {
        let mut h = out(n, true);
        let now = h.now;
        let sent_ms = crate::fast::recovery::timestamp(h.turn().lines, now.ms()).wrapping_sub(10);
        let old = seg(0, 0, &[]).ts(2, sent_ms);
        let last = ((n - 1) * MSS, n * MSS);
        assert_eq!(sent(&probe(&mut h)), [(last.0, 1000)]);
        h.now = h.now.after(10_000);
        let repair = h.rx(old.sack(&[last]));
        let repair = if repair.is_empty() { h.wait(10_000) } else { repair };
        assert_eq!(sent(&repair)[0], (0, 1000), "{n}");
        assert_eq!(h.snapshot().bytes_lost, u64::from((n - 1) * MSS), "{n}");
    }
}

#[test]
fn the_probe_is_new_data_if_there_are_any() {
    let mut h = out(3, false);
    h.write(5000);
    assert_eq!(sent(&probe(&mut h)), [(3000, 1000)]);
    assert_eq!(h.snapshot().retransmits, 0);
}

#[test]
fn a_loss_that_the_probe_has_repaired_counts() {
    let mut h = out(4, false);
    assert_eq!(sent(&probe(&mut h)), [(3000, 1000)]);
    h.write(1000);
    h.rx(told(4000, &[]));
    assert_eq!(h.slow_names(), [""; 0], "it may have come twice: that would be reported");
    h.write(1000);
    h.rx(told(5000, &[]));
    assert_eq!(h.slow_names(), ["Loss"]);
    // The peer reports the probe as needless: no loss.
    let mut h = out(4, false);
    probe(&mut h);
    h.rx(told(4000, &[]));
    h.rx(told(4000, &[(3000, 4000)]));
    h.write(1000);
    h.rx(told(5000, &[]));
    assert_eq!(h.slow_names(), [""; 0]);
}

#[test]
fn timestamps_undo_a_needless_recovery() {
    for sack in [true, false] {
        let window = Window { cwnd: 10 * MSS, ..setup().window };
        let mut h = Harness::of(FlowSetup { sack, timestamps: true, srtt_us: 10_000, window, ..setup() });
        let first = h.write(10_000)[0].ts.unwrap().0;
        let cwnd = h.snapshot().cwnd;
        h.now = h.now.after(10_000);
        for n in 1..=3 {
            let blocks = [(1000, 1000 + n * 1000)];
            h.rx(told(0, if sack { &blocks } else { &[] }).ts(5, first));
        }
        let s = h.snapshot();
        assert_eq!((s.retransmits, s.ssthresh), (1, 5000));
        // The first transmission arrives, later than the others.
        h.rx(told(10_000, &[]).ts(5, first));
        let s = h.snapshot();
        assert_eq!((s.cwnd >= cwnd, s.ssthresh, s.flags & flow_flags::RECOVERY), (true, u32::MAX, 0), "sack {sack}");
        assert_eq!(h.fast.counters().undone, 1);
        assert_eq!(
            h.slow_names().iter().filter(|name| name.as_str() == "Undone").count(),
            1,
            "congestion control knows"
        );
    }
}

#[test]
fn timestamps_undo_a_needless_timeout() {
    for sack in [true, false] {
        let mut h = Harness::of(FlowSetup { sack, timestamps: true, srtt_us: 10_000, ..setup() });
        let first = h.write(10_000)[0].ts.unwrap().0;
        h.now = h.now.after(300_000);
        timeout(&mut h);
        assert_eq!(sent(&h.flush()), [(0, 1000)]);
        assert_eq!(sent(&h.rx(told(2000, &[]).ts(5, first))), [], "nothing is sent again");
        let s = h.snapshot();
        assert!(s.cwnd >= 10_000 && s.ssthresh == u32::MAX, "sack {sack} {s:?}");
        assert_eq!(sent(&h.write(1000)), [(10_000, 1000)]);
    }
}

#[test]
fn a_repair_that_the_peer_needed_is_not_undone() {
    let mut h = Harness::of(FlowSetup { sack: true, timestamps: true, srtt_us: 10_000, ..setup() });
    let first = h.write(10_000)[0].ts.unwrap().0;
    h.now = h.now.after(10_000);
    let repair = h.rx(told(0, &[(1000, 4000)]).ts(5, first))[0].ts.unwrap().0;
    assert!(repair > first);
    h.now = h.now.after(10_000);
    h.rx(told(10_000, &[]).ts(5, repair));
    assert_eq!((h.snapshot().ssthresh, h.fast.counters().undone), (5000, 0));
}

#[test]
fn what_has_come_twice_undoes_a_needless_recovery() {
    let mut h = out(10, false);
    h.rx(told(0, &[(1000, 4000)]));
    assert_eq!(h.snapshot().ssthresh, 5000);
    h.rx(told(10_000, &[]));
    assert_eq!(h.snapshot().ssthresh, 5000);
    h.rx(told(10_000, &[(0, 1000)]));
    let s = h.snapshot();
    assert_eq!((s.cwnd, s.ssthresh, h.fast.counters().undone), (10_000, u32::MAX, 1));
}

#[test]
fn without_timestamps_two_acknowledgements_undo_a_needless_timeout() {
    let mut h = out(10, false);
    h.write(5000);
    h.now = h.now.after(300_000);
    timeout(&mut h);
    assert_eq!(sent(&h.flush()), [(0, 1000)]);
    h.now = h.now.after(1000);
    assert_eq!(sent(&h.rx(told(1000, &[]))), [(10_000, 1000), (11_000, 1000)], "new data instead of repairs");
    assert_eq!(h.snapshot().ssthresh, 5000);
    h.rx(told(2000, &[]));
    let s = h.snapshot();
    assert_eq!((s.ssthresh, s.retransmits, h.fast.counters().undone), (u32::MAX, 1, 1));
    // The same, but the second says that the rest is missing.
    let mut h = out(10, false);
    h.write(5000);
    h.now = h.now.after(300_000);
    timeout(&mut h);
    h.flush();
    h.rx(told(1000, &[]));
    h.now = h.now.after(10_000);
    let repairs = sent(&h.rx(told(1000, &[(10_000, 11_000)])));
    assert_eq!((repairs[0], h.fast.counters().undone), ((1000, 1000), 0));
}

#[test]
fn reports_of_what_was_never_sent_mean_nothing() {
    let mut h = out(10, false);
    for blocks in
        [&[(9000, 11_000)][..], &[(20_000, 30_000)], &[(3000, 2000)], &[(0x8000_0000, 0x9000_0000)], &[(5, 5)]]
    {
        for _ in 0..5 {
            h.rx(told(0, blocks));
        }
    }
    let s = h.snapshot();
    assert_eq!((s.retransmits, s.cwnd, h.fast.state.scoreboards.in_use()), (0, 10_000, 1));
    assert!(!h.fast.table.get(FLOW).unwrap().protocol.load().has(bits::SCORED));
}

#[test]
fn a_single_segment_in_flight_needs_no_scoreboard() {
    let mut h = Harness::of(FlowSetup { sack: true, srtt_us: 10_000, ..setup() });
    for n in 0..5 {
        h.write(100);
        assert_eq!((scoreboards(&h), h.fast.next_deadline()), (0, None));
        h.rx(told((n + 1) * 100, &[]));
    }
    h.write(100);
    h.write(100);
    assert_eq!(scoreboards(&h), 1);
    h.rx(told(700, &[]));
    assert_eq!(scoreboards(&h), 0);
}

/// RFC 9293 §3.8.6: what is beyond the window waits, but for the first segment.
#[test]
fn a_repair_waits_for_the_window_unless_it_is_the_first() {
    for (wnd, repairs) in [(6000, 2), (6001, 2), (5999, 1), (4000, 1), (0, 1)] {
        let mut h = out(10, false);
        let lost = told(0, &[(6000, 10_000), (1000, 5000)]).wnd(wnd);
        assert_eq!(sent(&h.rx(lost)), [(0, 1000), (5000, 1000)][..repairs], "{wnd}");
    }
}

#[test]
fn a_lone_segment_that_is_sent_again_needs_no_scoreboard() {
    let mut h = Harness::of(FlowSetup { sack: true, srtt_us: 10_000, ..setup() });
    h.write(1000);
    timeout(&mut h);
    assert_eq!((sent(&h.flush()), scoreboards(&h)), (vec![(0, 1000)], 0));
}

/// RFC 9937 §6.2: a segment more goes out if the acknowledgement advances and shows no further loss.
#[test]
fn a_recovery_that_advances_without_a_loss_sends_a_segment_more_than_has_arrived() {
    let mut h = out(20, false);
    let first = h.rx(told(0, &[(16_000, 20_000)]));
    assert_eq!(sent(&first), [(0, 1000), (1000, 1000), (2000, 1000), (3000, 1000)], "as much as was reported");
    h.now = h.now.after(10_000);
    assert_eq!(sent(&h.rx(told(1000, &[(16_000, 20_000)]))), [(4000, 1000), (5000, 1000)]);
}

#[test]
fn reordering_that_was_seen_stays_seen() {
    let seen = |h: &mut Harness| h.turn().lines.recovery.reordering.get() & 1 << 16;
    let mut h = out(10, false);
    for n in [0, 2000, 4000] {
        h.rx(told(n, &[(n + 1000, n + 2000)]));
        h.rx(told(n + 2000, &[]));
        assert_ne!(seen(&mut h), 0);
    }
    assert_eq!(h.snapshot().reorderings, 3);
    // Also when a repair turns out to have been needless.
    let mut h = Harness::of(FlowSetup { sack: true, timestamps: true, srtt_us: 10_000, ..setup() });
    let first = h.write(10_000)[0].ts.unwrap().0;
    h.now = h.now.after(10_000);
    assert_eq!(sent(&h.rx(told(0, &[(1000, 4000)]).ts(5, first))), [(0, 1000)]);
    h.turn().lines.recovery.reordering.set(STAGES.loss, 1 << 16);
    h.rx(told(10_000, &[]).ts(5, first));
    assert_eq!(h.fast.counters().undone, 1);
    assert_ne!(seen(&mut h), 0);
}

/// A queue fills within a flight: SRTT follows, and the tail probe with it.
#[test]
fn each_acknowledgement_of_a_flight_is_a_round_trip() {
    let window = Window { cwnd: 8 * MSS, ..setup().window };
    let mut h = Harness::of(FlowSetup { sack: true, srtt_us: 1000, window, ..setup() });
    h.write(8 * MSS);
    h.now = h.now.after(20_000);
    // ACK, µs after the one before, and the SRTT and RTTVAR that it leaves.
    for (ack, after, srtt_us, rttvar_us) in [
        (1000, 0, 3375, 5125),
        (2000, 0, 5454, 8000),
        (2500, 4000, 7773, 10_636),
        (4000, 0, 9802, 12_033),
        (5000, 0, 11_577, 12_574),
        // RTTVAR only grows: it falls once in a flight at most.
        (6000, 0, 13_130, 12_574),
    ] {
        h.now = h.now.after(after);
        h.rx(seg(0, ack, &[]));
        let s = h.snapshot();
        assert_eq!((s.srtt_us, s.rttvar_us), (srtt_us, rttvar_us), "{ack}");
    }
    let last = h.now;
    assert_eq!(sent(&probe(&mut h)), [(7000, 1000)]);
    let waited = h.now.since(last);
    assert!((2 * 13_130..40_000).contains(&waited), "the tail probe: {waited} µs");
}

/// A repair that comes back faster than any data before it, and slower than the handshake did, is a repair.
#[test]
fn a_repair_through_an_emptied_queue_is_not_taken_for_the_first_transmission() {
    let window = Window { cwnd: 8 * MSS, ..setup().window };
    let mut h = Harness::of(FlowSetup { sack: true, timestamps: true, srtt_us: 1000, window, ..setup() });
    h.write(8 * MSS);
    h.now = h.now.after(40_000);
    h.rx(seg(0, 1000, &[]));
    for end in [3000, 4000, 5000] {
        h.rx(told(1000, &[(2000, end)]));
    }
    assert_eq!(h.snapshot().retransmits, 1);
    h.now = h.now.after(3000);
    // All behind the report was sent long before the repair.
    h.rx(seg(0, 5000, &[]));
    assert_eq!(h.snapshot().bytes_lost, 4000);
}

/// RFC 9293 MUST-18. After a report, too: the acknowledgement that comes next has waited for the hole.
#[test]
fn a_flight_with_a_report_or_a_repair_is_measured_once() {
    for reports in [1, 3] {
        let mut h = out(6, false);
        h.rx(seg(0, 1000, &[]));
        let before = h.snapshot().srtt_us;
        for end in 0..reports {
            h.rx(told(1000, &[(2000, 3000 + 1000 * end)]));
        }
        assert_eq!(h.snapshot().retransmits, u64::from(reports == 3));
        h.now = h.now.after(1000);
        h.rx(seg(0, 5000, &[]));
        assert_eq!(h.snapshot().srtt_us, before, "{reports}");
    }
}
