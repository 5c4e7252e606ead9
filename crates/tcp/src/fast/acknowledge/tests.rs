//! What an acknowledgement does to the windows: each rule with the values around its limits.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::fast::STAGES;
use crate::fast::tests::{Harness, MSS, Seg, seg, setup};
use crate::flow::FlowSetup;
use crate::time::Micros;

/// A flow from 0 on with this window, and `flight` bytes out.
fn out(window: Window, flight: u32) -> Harness {
    let mut h = Harness::of(FlowSetup { snd_start: Seq(0), window, ..setup() });
    h.write(flight);
    assert_eq!(h.snapshot().snd_max, Seq(flight));
    h.slow.clear();
    h
}

/// RFC 5681 §3.1 and RFC 3465; RFC 7661 §1 for a window that was not used.
#[test]
fn slow_start_grows_by_what_is_acknowledged_if_more_than_half_of_the_window_was_out() {
    for (ssthresh, growth, flight, acked, cwnd) in [
        (u32::MAX, 256, 5001, 1000, 11_000),
        (u32::MAX, 256, 5000, 1000, 10_000),
        (u32::MAX, 256, 10_000, 10_000, 20_000),
        (u32::MAX, 128, 5001, 1000, 10_500),
        (u32::MAX, 64, 10_000, 10, 10_002),
        // Up to the threshold, or by a segment beyond it.
        (12_500, 256, 10_000, 3000, 12_500),
        (13_000, 256, 10_000, 3000, 13_000),
        (13_001, 256, 10_000, 3000, 13_000),
        (10_400, 256, 10_000, 2000, 11_000),
        (10_400, 256, 10_000, 600, 10_600),
    ] {
        let mut h = out(Window { ssthresh, growth, ..setup().window }, flight);
        h.rx(seg(0, acked, &[]));
        assert_eq!(h.snapshot().cwnd, cwnd, "{ssthresh} {growth} {flight} {acked}");
    }
}

/// RFC 5681 §3.1: a segment per window, counted in bytes.
#[test]
fn congestion_avoidance_grows_by_a_segment_for_each_window_that_is_acknowledged() {
    for (growth, flight, grown, acked, cwnd, left) in [
        (256, 10_000, 0, 2000, 10_000, 2000),
        (256, 9001, 500, 2000, 10_000, 2500),
        (256, 9000, 500, 2000, 10_000, 500),
        (256, 10_000, 7999, 2000, 10_000, 9999),
        (256, 10_000, 8000, 2000, 11_000, 0),
        (256, 10_000, 9000, 2000, 11_000, 1000),
        (1024, 10_000, 9000, 5000, 12_000, 9000),
        (512, 10_000, 0, 700, 10_000, 1400),
    ] {
        let mut h = out(Window { ssthresh: 10_000, growth, ..setup().window }, flight);
        h.turn().lines.measures.grown.set(STAGES.loss, grown);
        h.rx(seg(0, acked, &[]));
        let seen = (h.snapshot().cwnd, h.turn().lines.measures.grown.get());
        assert_eq!(seen, (cwnd, left), "{growth} {flight} {grown} {acked}");
    }
}

/// A flow in its first slow start, which has sent all its segments at 1 s. Its handshake took 1 ms, which is no sample here.
fn searching(cwnd: u32, paced: bool) -> Harness {
    let window = Window { cwnd, ssthresh: Window::SEARCH, ..setup().window };
    let mut h = Harness::of(FlowSetup { snd_start: Seq(0), sack: true, srtt_us: 1000, window, ..setup() });
    h.write(15 * MSS);
    let mut turn = h.turn();
    if paced {
        turn.t.set(STAGES.install, PACED);
    }
    turn.store(STAGES.install);
    h
}

/// Ha and Rhee, "Taming the elephants", §4.1.
#[test]
fn a_train_of_half_a_round_trip_or_a_whole_paced_one_ends_the_search_in_a_large_window() {
    for (cwnd, paced, ends) in
        [(16_000, false, Some(5)), (16_000, true, Some(9)), (15_999, false, None), (90_000, false, Some(5))]
    {
        let mut h = searching(cwnd, paced);
        let mut turn = h.turn();
        let mut ended = None;
        // The first round trip, and so the smallest, is 8 ms.
        for ms in 0..12u32 {
            turn.now = Micros(1_008_000 + u64::from(ms) * 1000);
            let growth = search(STAGES.loss, &mut turn, Seq(1000 + ms * 10));
            assert_eq!(growth, if ended.is_none() && ends != Some(ms) { 256 } else { 0 }, "{cwnd} {paced} {ms}");
            if growth == 0 {
                ended = Some(ms);
                assert_eq!(turn.lines.measures.ssthresh.get(), cwnd);
                break;
            }
            assert_eq!(turn.lines.measures.ssthresh.get(), Window::SEARCH);
        }
        assert_eq!(ended, ends, "{cwnd} {paced}");
    }
}

/// A slow start towards a threshold that is known does not search for one.
#[test]
fn only_the_first_slow_start_is_searched() {
    for (ssthresh, ended) in [(Window::SEARCH, true), (1 << 20, false)] {
        let window = Window { cwnd: 16_000, ssthresh, ..setup().window };
        let mut h = Harness::of(FlowSetup { snd_start: Seq(0), sack: true, srtt_us: 1000, window, ..setup() });
        h.write(15 * MSS);
        for ms in 0..12u32 {
            h.now = Micros(1_008_000 + u64::from(ms) * 1000);
            h.rx(seg(0, 1000 + ms * 10, &[]));
        }
        assert_eq!(h.snapshot().ssthresh != ssthresh, ended, "{ssthresh}");
    }
}

/// RFC 9406 §4.2 and §4.3.
#[test]
fn the_search_goes_on_at_a_quarter_of_the_pace_after_a_rise_of_the_round_trip_time() {
    let mut h = searching(15_000, false);
    let mut turn = h.turn();
    // All was sent at 1 s. In the first round eight samples are of 10 ms, in the second one of 30 ms.
    for (round, at, snd_max) in [(0, 1_010_000, 9000), (1, 1_030_000, 15_000)] {
        turn.now = Micros(at);
        turn.t.sent(STAGES.install).snd_max = Seq(snd_max);
        for n in 0..8 {
            let growth = search(STAGES.loss, &mut turn, Seq(1000 + round * 9000 + n));
            assert_eq!(growth, if (round, n) == (1, 7) { 64 } else { 256 }, "{round} {n}");
        }
    }
}

#[test]
fn an_acknowledgement_is_a_duplicate_if_it_is_empty_and_the_open_window_stays_as_it_is() {
    let plain = || seg(0, 0, &[]);
    let cases: [(&str, Seg, u16, u32, bool); 7] = [
        ("a duplicate", plain(), 60_000, 5000, true),
        ("data", seg(0, 0, &[0]), 60_000, 5000, false),
        ("FIN", plain().with(flags::FIN | flags::ACK), 60_000, 5000, false),
        ("PSH", plain().with(flags::PSH | flags::ACK), 60_000, 5000, true),
        ("another window", plain().wnd(50_000), 60_000, 5000, false),
        ("a closed window", plain().wnd(0), 0, 5000, false),
        ("nothing is out", plain(), 60_000, 0, false),
    ];
    for (what, s, wnd, flight, counts) in cases {
        let mut h = out(setup().window, flight);
        let mut turn = h.turn();
        turn.t.received(STAGES.install).snd_wnd = u32::from(wnd);
        turn.store(STAGES.install);
        h.rx(s);
        assert_eq!(h.turn().t.in_a_row(), u8::from(counts), "{what}");
    }
}

/// RFC 9293 §3.10.7.4.
#[test]
fn a_window_is_taken_from_a_segment_that_is_not_older_or_acknowledges_more() {
    for (seq, ack, wnd, taken) in
        [(10, 0, 500, true), (11, 0, 500, true), (9, 0, 500, false), (9, 1, 500, true), (10, 0, 60_000, true)]
    {
        let mut h = out(setup().window, 5000);
        h.rx(seg(0, 0, &[0; 10]));
        h.rx(seg(10, 0, &[]).wnd(1000));
        let line = |h: &mut Harness| (h.snapshot().snd_wnd, h.turn().lines.measures.max_wnd.get());
        h.turn().lines.measures.max_wnd.set(STAGES.egress, 1000);
        h.rx(seg(seq, ack, &[]).wnd(wnd));
        let wnd = u32::from(wnd);
        assert_eq!(line(&mut h), if taken { (wnd, wnd.max(1000)) } else { (1000, 1000) }, "{seq} {ack} {wnd}");
    }
}

/// RFC 6298 §2, in µs: the gains are 1/8 and 1/4.
#[test]
fn the_round_trip_time_is_smoothed() {
    for (srtt, var, sample, wanted) in [
        (0, 0, 1001, (1001, 500)),
        (0, 0, 0, (1, 0)),
        (8000, 4000, 16_000, (9000, 5000)),
        (8000, 4000, 800, (7100, 4800)),
        (8000, 4000, 8000, (8000, 3000)),
        (1, 0, 0, (1, 0)),
        (8000, 4000, u32::MAX, (7000 + (1 << 25), 3000 + ((1 << 28) - 8000) / 4)),
    ] {
        let m = Measures::default();
        m.srtt_us.set(STAGES.receive, srtt);
        m.rttvar_us.set(STAGES.receive, var);
        round_trip(STAGES.receive, &m, sample);
        assert_eq!((m.srtt_us.get(), m.rttvar_us.get()), wanted, "{srtt} {var} {sample}");
    }
}

/// RFC 6582 §3.2, step 3. Recovery ends at 9000, SND.MAX is 10,000, and the threshold 5000.
#[test]
fn a_partial_acknowledgement_deflates_the_window_and_a_full_one_ends_the_recovery() {
    for (ack, acked, cwnd, then, ends) in [
        (2000, 1000, 8000, 8000, false),
        (2000, 999, 8000, 7001, false),
        (2000, 1001, 8000, 7999, false),
        (8999, 3000, 8000, 6000, false),
        (2000, 8000, 8000, 2000, false),
        (2000, 900, 1500, 1000, false),
        (9000, 3000, 8000, 2000, true),
        (9500, 3000, 8000, 2000, true),
    ] {
        let mut h = out(setup().window, 10_000);
        let mut turn = h.turn();
        turn.t.received(STAGES.install).snd_una = Seq(ack);
        turn.t.congestion(STAGES.loss).cwnd = cwnd;
        turn.t.set(STAGES.loss, RECOVERY);
        turn.lines.addresses.recover.set(STAGES.loss, 9000);
        turn.lines.measures.ssthresh.set(STAGES.loss, 5000);
        recovering(STAGES.loss, &mut turn, Seq(ack), acked);
        assert_eq!((turn.t.cwnd(), turn.t.has(RECOVERY)), (then, !ends), "{ack} {acked} {cwnd}");
        assert_eq!((turn.t.has(RESEND), turn.lines.rate.bytes_lost.get()), (!ends, if ends { 0 } else { 1000 }));
    }
    // With more in flight the threshold is the limit.
    let mut h = out(setup().window, 10_000);
    let mut turn = h.turn();
    for (una, then) in [(5500, 5000), (7000, 4000), (10_000, 2000)] {
        turn.t.received(STAGES.install).snd_una = Seq(una);
        turn.lines.addresses.recover.set(STAGES.loss, 5000);
        turn.lines.measures.ssthresh.set(STAGES.loss, 5000);
        recovering(STAGES.loss, &mut turn, Seq(una), 1000);
        assert_eq!(turn.t.cwnd(), then, "{una}");
    }
}
