//! When acknowledgements go out.

use super::*;

#[test]
fn an_answer_carries_the_acknowledgement() {
    let mut h = Harness::new();
    let (mut at, mut pure) = (0, 0);
    for _ in 0..2000 {
        h.batch(&[seg(at, at, &bytes(at, 64))]);
        pure += h.flush().len();
        h.now = h.now.after(7);
        h.read();
        let sent = h.write(64);
        assert_eq!(sent.len(), 1);
        assert_eq!((sent[0].seq, sent[0].ack, sent[0].flags), (at, at + 64, ACK | PSH));
        assert_eq!(sent[0].data, bytes(at, 64));
        at += 64;
    }
    assert_eq!((pure, h.drops(), h.snapshot().retransmits), (0, 0, 0));
}

#[test]
fn a_lone_segment_is_acknowledged_after_the_delay() {
    let mut h = Harness::new();
    assert_eq!(h.rx(seg(0, 0, &bytes(0, 64))), []);
    assert_eq!(h.fast.next_deadline(), Some(h.now.after(1000)));
    assert_eq!(h.wait(999), []);
    let sent = h.wait(1);
    assert_eq!((sent.len(), sent[0].ack), (1, 64));
    assert_eq!(h.wait(10_000), []);
    assert_eq!(h.fast.next_deadline(), None);
}

#[test]
fn the_delay_counts_from_the_debt_and_not_from_the_queue_entry() {
    let mut h = Harness::new();
    h.rx(seg(0, 0, &bytes(0, 64)));
    h.wait(100);
    h.write(10);
    h.wait(800);
    assert_eq!(h.rx(seg(64, 0, &bytes(64, 64))), []);
    assert_eq!(h.wait(100), [], "the entry of the first is due, but that was carried");
    assert_eq!(h.wait(899), []);
    assert_eq!(h.wait(1)[0].ack, 128);
}

/// RFC 9293 MUST-58, MUST-59, SHLD-19.
#[test]
fn every_second_full_segment_is_acknowledged_once_per_batch() {
    let mut h = Harness::new();
    let segments: Vec<_> = (0..8).map(|n| seg(n * 1000, 0, &bytes(n * 1000, 1000))).collect();
    h.batch(&segments);
    let sent = h.flush();
    assert_eq!((sent.len(), sent[0].ack), (1, 8000));
    assert_eq!(h.rx(seg(8000, 0, &bytes(8000, 1000))), []);
    assert_eq!(h.rx(seg(9000, 0, &bytes(9000, 1000)))[0].ack, 10_000);
}

#[test]
fn nothing_is_acknowledged_before_it_is_in_the_ring() {
    let mut h = Harness::new();
    h.batch(&[seg(0, 0, &bytes(0, 1000)), seg(1000, 0, &bytes(1000, 1000))]);
    assert!(h.tx.sent.is_empty());
    assert_eq!(h.read(), 2000);
}

#[test]
fn timestamps_are_on_every_segment_and_echoed_for_the_oldest_unacknowledged() {
    let mut h = Harness::of(FlowSetup { timestamps: true, ts_recent: 500, ..setup() });
    let sent = h.write(10);
    assert_eq!(sent[0].ts, Some((1000 + 77, 500)));
    h.batch(&[seg(0, 10, &bytes(0, 1000)).ts(600, 1077), seg(1000, 10, &bytes(1000, 1000)).ts(601, 1077)]);
    let sent = h.wait(5000);
    assert_eq!(sent[0].ts, Some((1005 + 77, 600)), "RFC 7323 §4.3");
    assert_eq!(sent[0].ack, 2000);
}

#[test]
fn a_full_port_changes_nothing() {
    let mut h = Harness::new();
    h.tx.room = 0;
    assert_eq!(h.write(2500), []);
    assert!(h.fast.has_work());
    let before = h.snapshot();
    assert_eq!((before.snd_nxt, before.segments_out), (before.snd_una, 0));
    h.tx.room = 2;
    assert_eq!(h.flush().len(), 2);
    assert!(h.fast.has_work());
    h.tx.room = usize::MAX;
    let sent = h.flush();
    assert_eq!((sent.len(), sent[0].seq, sent[0].flags), (1, 2000, ACK | PSH));
    assert!(!h.fast.has_work());
}

#[test]
fn checksum_may_be_left_to_the_port() {
    let mut h = Harness::new();
    h.tx.unsummed = true;
    assert_eq!(h.write(700)[0].data, bytes(0, 700));
}

#[test]
fn each_segment_ahead_of_a_hole_gets_its_duplicate_even_in_one_batch() {
    let mut h = Harness::new();
    let ahead: Vec<_> = (1..7).map(|n| seg(n * 1000, 0, &bytes(n * 1000, 1000))).collect();
    h.batch(&ahead);
    let sent = h.flush();
    assert_eq!(sent.len(), 6);
    assert!(sent.iter().all(|s| *s == sent[0] && s.ack == 0 && s.data.is_empty()));
    // Data that go out at the same time are no duplicates for the peer.
    h.batch(&[seg(8000, 0, &bytes(8000, 1000)), seg(9000, 0, &bytes(9000, 1000))]);
    let sent = h.write(100);
    assert_eq!(sent.iter().map(|s| s.data.len()).collect::<Vec<_>>(), [100, 0, 0]);
    assert_eq!(h.flush(), []);
    // The hole is filled in the same batch: one acknowledgement is for all.
    h.batch(&[seg(20_000, 0, &bytes(20_000, 10)), seg(0, 0, &bytes(0, 1000))]);
    let sent = h.flush();
    assert_eq!((sent.len(), sent[0].ack), (1, 7000));
}

#[test]
fn removal_does_not_swallow_the_answer_to_the_peers_fin() {
    let mut h = Harness::new();
    h.batch(&[seg(0, 0, &[]).with(ACK | FIN)]);
    h.message(ToFast::Remove(FLOW));
    let sent = h.flush();
    assert_eq!((sent.len(), sent[0].ack, sent[0].flags), (1, 1, ACK));
    assert_eq!(h.slow_names(), ["Closing", "Removed"]);
}

#[test]
fn an_acknowledgement_that_counted_on_data_which_cannot_go_is_delayed_like_any_other() {
    let mut h = Harness::new();
    h.tx.room = 0;
    h.write(100);
    h.batch(&[seg(0, 0, &bytes(0, 10)).wnd(0)]);
    h.tx.room = usize::MAX;
    assert_eq!(h.flush(), []);
    assert_eq!(h.wait(1000)[0].ack, 10);
}

#[test]
fn half_a_ring_is_acknowledged_at_once() {
    let mut h = Harness::of(FlowSetup { mss: 60_000, rx_bytes: 4096, rcv_wnd: 4096, ..setup() });
    assert_eq!(h.rx(seg(0, 0, &bytes(0, 2047))), []);
    assert_eq!(h.rx(seg(2047, 0, &bytes(2047, 2)))[0].ack, 2049);
}
