//! Losses: duplicate acknowledgements, recovery, time-outs (RFC 5681, RFC 6582).

use super::*;

fn sent(segments: &[Seg]) -> Vec<(u32, usize)> {
    segments.iter().map(|s| (s.seq, s.data.len())).collect()
}

/// Ten segments outstanding, more queued.
fn ten_out() -> Harness {
    let mut h = Harness::new();
    h.write(10_000);
    h.slow.clear();
    h
}

#[test]
fn third_duplicate_repairs() {
    let mut h = ten_out();
    assert_eq!(h.rx(seg(0, 0, &[])), []);
    assert_eq!(h.rx(seg(0, 0, &[])), []);
    let out = h.rx(seg(0, 0, &[]));
    assert_eq!(sent(&out), [(0, 1000)]);
    assert_eq!(out[0].data, bytes(0, 1000));
    assert_eq!(h.slow_names(), ["Loss"]);
    let s = h.snapshot();
    assert_eq!((s.ssthresh, s.cwnd, s.retransmits), (5000, 8000, 1));
    assert_ne!(s.flags & flow_flags::RECOVERY, 0);
    // Each further duplicate inflates the window.
    for _ in 0..6 {
        h.rx(seg(0, 0, &[]));
    }
    assert_eq!(h.snapshot().cwnd, 14_000);
    assert_eq!(sent(&h.write(5000)), [(10_000, 1000), (11_000, 1000), (12_000, 1000), (13_000, 1000)]);
    // A full acknowledgement deflates the window to the threshold.
    h.rx(seg(0, 10_000, &[]));
    let s = h.snapshot();
    assert_eq!((s.flags & flow_flags::RECOVERY, s.cwnd), (0, 5000));
    assert_eq!(h.slow_names(), [""; 0]);
}

#[test]
fn partial_acknowledgements_repair_hole_after_hole() {
    let mut h = ten_out();
    for _ in 0..3 {
        h.rx(seg(0, 0, &[]));
    }
    assert_eq!(sent(&h.rx(seg(0, 2000, &[]))), [(2000, 1000)]);
    assert_eq!(h.snapshot().cwnd, 8000 - 2000 + 1000, "deflated by what has left, plus one segment");
    assert_eq!(sent(&h.rx(seg(0, 5000, &[]))), [(5000, 1000)]);
    assert_eq!(sent(&h.rx(seg(0, 10_000, &[]))), []);
    assert_eq!(h.snapshot().flags & flow_flags::RECOVERY, 0);
    assert_eq!(h.snapshot().retransmits, 3);
    assert_eq!(h.slow_names(), ["Loss"], "one loss, however many holes");
}

#[test]
fn limited_transmit() {
    let mut h = Harness::new();
    h.write(15_000);
    assert_eq!(sent(&h.rx(seg(0, 0, &[]))), [(10_000, 1000)]);
    assert_eq!(sent(&h.rx(seg(0, 0, &[]))), [(11_000, 1000)]);
    assert_eq!(sent(&h.rx(seg(0, 0, &[]))), [(0, 1000)]);
}

#[test]
fn what_is_no_duplicate() {
    let mut h = ten_out();
    for n in 0..10 {
        h.rx(seg(n * 10, 0, &bytes(n * 10, 10)));
        h.rx(seg(n * 10 + 10, 0, &[]).wnd(50_000 + n as u16));
    }
    assert_eq!((h.snapshot().retransmits, h.slow_names().len()), (0, 0));
    // Nothing outstanding.
    let mut h = Harness::new();
    for _ in 0..10 {
        h.rx(seg(0, 0, &[]));
    }
    assert_eq!(h.snapshot().retransmits, 0);
}

#[test]
fn timeout_goes_back_and_starts_slowly() {
    let mut h = ten_out();
    h.message(ToFast::Timeout(FLOW, Window { cwnd: 1000, ssthresh: 5000, growth: 256, beta: 512, pacing: 0 }));
    assert_eq!(sent(&h.flush()), [(0, 1000)]);
    assert_eq!(sent(&h.rx(seg(0, 1000, &[]))), [(1000, 1000), (2000, 1000)]);
    // The peer had the rest.
    assert_eq!(sent(&h.rx(seg(0, 10_000, &[]))), []);
    assert_eq!(h.snapshot().snd_nxt, h.snapshot().snd_max);
    assert_eq!(h.fast.counters().timeouts, 1);
    assert_eq!(sent(&h.write(100)), [(10_000, 100)]);
}

#[test]
fn duplicates_of_go_back_n_start_no_recovery() {
    let mut h = Harness::of(FlowSetup { snd_start: Seq(5000), ..setup() });
    h.write(10_000);
    h.slow.clear();
    h.message(ToFast::Timeout(FLOW, Window { cwnd: 10_000, ssthresh: 5000, growth: 256, beta: 512, pacing: 0 }));
    h.flush();
    for _ in 0..6 {
        assert_eq!(h.rx(seg(0, 0, &[])), []);
    }
    assert_eq!(h.slow_names(), [""; 0]);
    // A new loss, of data sent after that, starts a recovery.
    h.rx(seg(0, 10_000, &[]));
    h.write(10_000);
    h.rx(seg(0, 11_000, &[]));
    for _ in 0..3 {
        h.rx(seg(0, 11_000, &[]));
    }
    assert_eq!(h.slow_names(), ["Loss"]);
    // The mark of the old loss is cleared before sequence numbers wrap around to it.
    h.rx(seg(0, 20_000, &[]));
    h.write(1000);
    h.rx(seg(0, 21_000, &[]));
    assert!(!h.fast.table.get(FLOW).unwrap().protocol.load().has(bits::RECOVER_SET));
}

#[test]
fn timeout_ends_recovery_and_repeats_partial_segments_in_spite_of_nagle() {
    let mut h = Harness::of(FlowSetup { nodelay: false, ..setup() });
    h.write(1000);
    h.write(5500);
    h.app.nodelay = true;
    h.update().unwrap();
    h.flush();
    h.app.nodelay = false;
    h.update().unwrap();
    for _ in 0..3 {
        h.rx(seg(0, 0, &[]));
    }
    h.message(ToFast::Timeout(FLOW, Window { cwnd: 10_000, ssthresh: 5000, growth: 256, beta: 512, pacing: 0 }));
    assert_eq!(h.snapshot().flags & flow_flags::RECOVERY, 0);
    assert_eq!(sent(&h.flush()).last(), Some(&(6000, 500)));
}

#[test]
fn a_late_timeout_is_ignored() {
    let mut h = ten_out();
    h.rx(seg(0, 10_000, &[]));
    let cwnd = h.snapshot().cwnd;
    h.message(ToFast::Timeout(FLOW, Window { cwnd: 1, ssthresh: 1, growth: 1, beta: 1, pacing: 0 }));
    assert_eq!((h.flush().len(), h.snapshot().cwnd, h.fast.counters().timeouts), (0, cwnd, 0));
}

#[test]
fn pure_acks_after_going_back_have_an_acceptable_number() {
    let mut h = ten_out();
    h.message(ToFast::Timeout(FLOW, Window { cwnd: 1000, ssthresh: 2000, growth: 256, beta: 512, pacing: 0 }));
    h.flush();
    let out = h.rx(seg(5, 0, &bytes(5, 10)));
    assert_eq!((out.len(), out[0].seq, out[0].flags), (1, 10_000, ACK));
}

#[test]
fn a_repair_that_has_become_needless_in_the_same_batch_is_not_sent() {
    let mut h = ten_out();
    let duplicate = seg(0, 0, &[]);
    h.batch(&[duplicate.clone(), duplicate.clone(), duplicate, seg(0, 10_000, &[])]);
    assert_eq!(h.flush(), []);
    h.write(1000);
    h.batch(&[seg(0, 10_000, &[])]);
    assert_eq!((h.flush(), h.snapshot().retransmits), (vec![], 0));
}
