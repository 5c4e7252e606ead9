//! Data out: windows, Nagle, probes, round-trip times.

use super::*;

/// RFC 9293 SHLD-28, MUST-61.
#[test]
fn data_are_cut_into_segments_and_freed_when_acknowledged() {
    let mut h = Harness::new();
    let sent = h.write(2500);
    let shape: Vec<_> = sent.iter().map(|s| (s.seq, s.data.len(), s.flags)).collect();
    assert_eq!(shape, [(0, 1000, ACK), (1000, 1000, ACK), (2000, 500, ACK | PSH)]);
    assert_eq!(sent.iter().flat_map(|s| s.data.clone()).collect::<Vec<_>>(), bytes(0, 2500));
    assert_eq!(h.slow_names(), ["Active"], "once, not per segment");
    h.rx(seg(0, 1000, &[]));
    assert_eq!((h.take_events(), h.view().tx_head), (event::ROOM, 1000));
    h.rx(seg(0, 2500, &[]));
    assert_eq!((h.view().tx_head, h.snapshot().bytes_acked), (2500, 2500));
    h.message(ToFast::Deactivate(FLOW));
    assert_eq!(h.slow_names(), [""; 0]);
    assert_eq!(h.snapshot().flags & flow_flags::ACTIVE, 0);
    h.write(1);
    h.message(ToFast::Deactivate(FLOW));
    assert_eq!(h.slow_names(), ["Active", "Active"], "again outstanding: stays on the list");
}

#[test]
fn the_send_ring_wraps() {
    let mut h = Harness::of(FlowSetup { tx_bytes: 4096, ..setup() });
    let mut at = 0;
    for _ in 0..50 {
        let sent = h.write(3000);
        assert_eq!(sent.iter().flat_map(|s| s.data.clone()).collect::<Vec<_>>(), bytes(at, 3000));
        at += 3000;
        h.rx(seg(0, at, &[]));
    }
}

/// RFC 9293 MUST-19.
#[test]
fn congestion_window_holds_back_and_grows() {
    let mut h = Harness::of(FlowSetup {
        window: Window { cwnd: 4000, ssthresh: 8000, growth: 256, beta: 512, pacing: 0 },
        ..setup()
    });
    assert_eq!(h.write(60_000).len(), 4);
    assert_eq!(h.rx(seg(0, 2000, &[])).len(), 4, "slow start: two for each");
    assert_eq!(h.snapshot().cwnd, 6000);
    h.rx(seg(0, 4000, &[]));
    assert_eq!(h.snapshot().cwnd, 8000);
    h.rx(seg(0, 8000, &[]));
    assert_eq!(h.snapshot().cwnd, 8000);
    h.rx(seg(0, 12_000, &[]));
    assert_eq!(h.snapshot().cwnd, 9000, "one segment per window from here");
}

#[test]
fn a_window_that_was_not_used_does_not_grow() {
    let mut h = Harness::new();
    for n in 1..20 {
        h.write(100);
        h.rx(seg(0, n * 100, &[]));
    }
    assert_eq!(h.snapshot().cwnd, 10_000);
}

#[test]
fn growth_coefficient() {
    let mut h = Harness::of(FlowSetup {
        window: Window { cwnd: 2000, ssthresh: 100_000, growth: 64, beta: 512, pacing: 0 },
        ..setup()
    });
    h.write(10_000);
    h.rx(seg(0, 2000, &[]));
    assert_eq!(h.snapshot().cwnd, 2500);
    h.message(ToFast::SetWindow(FLOW, Window { cwnd: 5000, ssthresh: 9000, growth: 256, beta: 800, pacing: 0 }));
    assert_eq!((h.snapshot().cwnd, h.snapshot().ssthresh), (5000, 9000));
    assert_eq!(h.flush().last().unwrap().seq, 6000, "a larger window is used at once");
}

#[test]
fn the_peers_window_closes_and_opens() {
    let mut h = Harness::of(FlowSetup { snd_wnd: 2500, ..setup() });
    let sent = h.write(5000);
    assert_eq!(sent.len(), 2, "500 of the third segment fit, but that would be silly");
    h.rx(seg(0, 2000, &[]).wnd(0));
    assert_eq!(h.flush(), []);
    h.slow.clear();
    h.message(ToFast::Deactivate(FLOW));
    assert_eq!(h.slow_names(), ["Active"], "data wait behind a closed window");
    let sent = h.rx(seg(0, 2000, &[]).wnd(4000));
    assert_eq!(
        sent.iter().map(|s| (s.seq, s.data.len())).collect::<Vec<_>>(),
        [(2000, 1000), (3000, 1000), (4000, 1000)]
    );
}

#[test]
fn window_probe_sends_one_byte_and_no_more() {
    let mut h = Harness::of(FlowSetup { snd_wnd: 0, ..setup() });
    assert_eq!(h.write(1500), []);
    for n in 0..3 {
        h.message(ToFast::ProbeWindow(FLOW));
        let sent = h.flush();
        assert_eq!((sent.len(), sent[0].seq, &sent[0].data[..]), (1, 0, &bytes(0, 1)[..]), "probe {n}");
        assert_eq!(h.rx(seg(0, 0, &[]).wnd(0)), [], "answers to probes are no duplicate ACKs");
    }
    assert_eq!(h.snapshot().flags & flow_flags::RECOVERY, 0);
    // The peer has not taken the byte: everything is sent from the start.
    let sent = h.rx(seg(0, 0, &[]).wnd(4000));
    assert_eq!(sent.iter().map(|s| (s.seq, s.data.len())).collect::<Vec<_>>(), [(0, 1000), (1000, 500)]);
    // The peer has taken the byte.
    let mut h = Harness::of(FlowSetup { snd_wnd: 0, ..setup() });
    h.write(1500);
    h.message(ToFast::ProbeWindow(FLOW));
    h.flush();
    let sent = h.rx(seg(0, 1, &[]).wnd(4000));
    assert_eq!(sent.iter().map(|s| (s.seq, s.data.len())).collect::<Vec<_>>(), [(1, 1000), (1001, 499)]);
    assert_eq!(sent[0].data, bytes(1, 1000));
}

#[test]
fn probe_of_a_window_with_only_fin_waiting() {
    let mut h = Harness::of(FlowSetup { snd_wnd: 0, ..setup() });
    h.app.shut_wr = true;
    h.update().unwrap();
    assert_eq!(h.flush(), []);
    assert_eq!(h.slow_names(), ["Active"]);
    h.message(ToFast::ProbeWindow(FLOW));
    let sent = h.flush();
    assert_eq!((sent.len(), sent[0].flags), (1, ACK | FIN));
    h.rx(seg(0, 1, &[]).wnd(0));
    assert_ne!(h.snapshot().flags & flow_flags::FIN_ACKED, 0);
}

#[test]
fn a_closed_window_does_not_make_our_acks_unacceptable() {
    let mut h = Harness::of(FlowSetup { snd_wnd: 0, ..setup() });
    h.write(10);
    h.message(ToFast::ProbeWindow(FLOW));
    h.flush();
    h.message(ToFast::SendAck(FLOW));
    assert_eq!(h.flush()[0].seq, 0, "not beyond the window's edge");
}

#[test]
fn nagle() {
    let mut h = Harness::of(FlowSetup { nodelay: false, ..setup() });
    assert_eq!(h.write(10).len(), 1, "nothing outstanding");
    assert_eq!(h.write(10).len(), 0);
    assert_eq!(h.write(1000).len(), 1, "a full one goes");
    let sent = h.rx(seg(0, 1010, &[]));
    assert_eq!((sent.len(), sent[0].data.len()), (1, 10));
    h.write(10);
    h.app.nodelay = true;
    h.update().unwrap();
    assert_eq!(h.flush().len(), 1);
    // The rest goes with the FIN.
    let mut h = Harness::of(FlowSetup { nodelay: false, ..setup() });
    h.write(10);
    h.app.shut_wr = true;
    let sent = h.write(10);
    assert_eq!((sent.len(), sent[0].flags), (1, ACK | PSH | FIN));
}

#[test]
fn cork() {
    let mut h = Harness::new();
    h.app.cork = true;
    assert_eq!(h.write(100), []);
    assert_eq!(h.slow_names(), ["Active"], "the slow path limits how long it waits");
    assert_eq!(h.write(950)[0].data.len(), 1000);
    h.app.cork = false;
    h.update().unwrap();
    assert_eq!(h.flush()[0].data.len(), 50);
    h.app.cork = true;
    h.rx(seg(0, 1050, &[]));
    assert_eq!(h.write(30), []);
    h.message(ToFast::ProbeWindow(FLOW));
    assert_eq!(h.flush()[0].data.len(), 30);
}

#[test]
fn silly_window_is_used_when_it_is_half_of_the_peers_buffer() {
    let mut h = Harness::of(FlowSetup { snd_wnd: 800, ..setup() });
    assert_eq!(h.write(5000)[0].data.len(), 800);
    assert_eq!(h.rx(seg(0, 800, &[]).wnd(300)), []);
    assert_eq!(h.rx(seg(0, 800, &[]).wnd(400))[0].data.len(), 400);
    // A smaller window is not used, but by the slow path's probe.
    h.rx(seg(0, 1200, &[]).wnd(300));
    h.message(ToFast::ProbeWindow(FLOW));
    let sent = h.flush();
    assert_eq!((sent.len(), sent[0].data.len()), (1, 300), "once");
    h.message(ToFast::ProbeWindow(FLOW));
    assert_eq!(h.flush(), [], "a probe that comes too late");
}

#[test]
fn round_trip_times() {
    let mut h = Harness::new();
    h.write(100);
    h.now = h.now.after(800);
    h.rx(seg(0, 100, &[]));
    assert_eq!((h.snapshot().srtt_us, h.snapshot().rttvar_us), (800, 400));
    h.write(100);
    h.now = h.now.after(1600);
    h.rx(seg(0, 200, &[]));
    assert_eq!((h.snapshot().srtt_us, h.snapshot().rttvar_us), (900, 500));
}

/// RFC 9293 MUST-18.
#[test]
fn karn() {
    let mut h = Harness::of(FlowSetup { srtt_us: 1000, ..setup() });
    h.write(100);
    h.now = h.now.after(300_000);
    h.message(ToFast::Timeout(FLOW, Window { cwnd: 1000, ssthresh: 2000, growth: 256, beta: 512, pacing: 0 }));
    assert_eq!(h.flush()[0].seq, 0);
    h.now = h.now.after(100_000);
    h.rx(seg(0, 100, &[]));
    assert_eq!(h.snapshot().srtt_us, 1000, "no sample from what was sent twice");
    h.write(100);
    h.now = h.now.after(2000);
    h.rx(seg(0, 200, &[]));
    assert_eq!(h.snapshot().srtt_us, 1125);
}

#[test]
fn a_repeated_probe_is_no_sample() {
    let mut h = Harness::of(FlowSetup { snd_wnd: 0, ..setup() });
    h.write(100);
    for _ in 0..2 {
        h.message(ToFast::ProbeWindow(FLOW));
        h.flush();
        h.now = h.now.after(300_000);
    }
    h.rx(seg(0, 1, &[]).wnd(0));
    assert_eq!(h.snapshot().srtt_us, 0);
}

/// RFC 9293 §3.8.6.2.1: only a window probe may show that the largest window was not the peer's buffer.
#[test]
fn the_largest_window_is_lowered_by_a_probe_that_was_sent_inside_the_window_and_by_nothing_else() {
    let max = |h: &mut Harness| h.turn().lines.measures.max_wnd.get();
    let mut h = Harness::new();
    h.write(1000);
    h.rx(seg(0, 0, &[]).wnd(5000));
    // A segment that is sent again.
    (0..3).for_each(|_| drop(h.rx(seg(0, 0, &[]).wnd(5000))));
    assert_eq!((h.snapshot().retransmits, max(&mut h)), (1, 60_000));
    for (room, wnd, wanted) in [(1, 100, 30_000), (0, 100, 60_000), (1, 0, 60_000)] {
        let mut h = Harness::new();
        h.rx(seg(0, 0, &[]).wnd(0));
        h.write(500);
        // Too small to be used at once.
        h.rx(seg(0, 0, &[]).wnd(wnd));
        assert_eq!(h.snapshot().snd_wnd, u32::from(wnd));
        h.tx.room = room;
        h.message(ToFast::ProbeWindow(FLOW));
        assert_eq!(h.flush().len(), room, "{room} {wnd}");
        assert_eq!(max(&mut h), wanted, "{room} {wnd}");
    }
}
