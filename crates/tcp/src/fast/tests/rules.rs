//! Dropped segments and the rules for them: PAWS, windows, RST, SYN, ACK (RFC 9293 §3.10.7.4, RFC 5961, RFC 7323).

use super::*;

#[test]
fn reset_counts_only_at_rcv_nxt() {
    let mut h = Harness::new();
    h.rx(seg(0, 0, &bytes(0, 100)));
    h.wait(1000);
    h.take_events();
    let challenge = h.rx(seg(101, 0, &[]).with(RST));
    assert_eq!((challenge.len(), challenge[0].ack, challenge[0].flags), (1, 100, ACK));
    assert_eq!(h.rx(seg(99, 0, &[]).with(RST)), []);
    assert_eq!(h.rx(seg(200_000, 0, &[]).with(RST)), []);
    assert_eq!((h.dropped(Drop::BadReset), h.drops(), h.take_events()), (3, 3, 0));
    assert_eq!(h.rx(seg(100, 0, &[]).with(RST)), []);
    assert_eq!((h.take_events(), h.view().errno), (event::ERROR, 104));
    assert_eq!(h.slow_names(), ["Reset"]);
    // The flow is dead: nothing has an effect any more.
    let drops = h.drops();
    assert_eq!(h.rx(seg(100, 0, &bytes(100, 100))), []);
    assert_eq!(h.view().rx_tail, 100);
    assert_eq!((h.write(100).len(), h.drops(), h.dropped(Drop::NoSocket)), (0, drops + 1, 1));
}

#[test]
fn reset_after_the_peers_fin_is_a_broken_pipe() {
    let mut h = Harness::new();
    h.rx(seg(0, 0, &[]).with(ACK | FIN));
    h.rx(seg(1, 0, &[]).with(RST | ACK));
    assert_eq!(h.view().errno, 32);
}

#[test]
fn syn_gets_a_challenge_wherever_it_is() {
    let mut h = Harness::configured(setup(), FastConfig { challenge_interval_ms: 0, ..FastConfig::default() });
    for (n, seq) in [0u32, 5, 0x7000_0000, u32::MAX].into_iter().enumerate() {
        let sent = h.rx(seg(seq, 0, &[]).with(SYN));
        assert_eq!((sent.len(), sent[0].flags, sent[0].seq, sent[0].ack), (1, ACK, 0, 0));
        assert_eq!(h.dropped(Drop::BadFlags), n as u64 + 1);
    }
    assert_eq!(h.view().errno, 0);
}

#[test]
fn challenges_are_limited_per_second() {
    let mut h = Harness::configured(
        setup(),
        FastConfig { challenge_acks_per_s: 3, challenge_interval_ms: 0, ..FastConfig::default() },
    );
    let mut sent = 0;
    for _ in 0..10 {
        sent += h.rx(seg(5, 0, &[]).with(SYN)).len();
    }
    assert!((1..=3).contains(&sent), "{sent}");
    assert_eq!(h.wait(1_000_000).len(), 0);
    assert_eq!(h.rx(seg(5, 0, &[]).with(SYN)).len(), 1);
}

/// RFC 5961 §7; Linux: `tcp_invalid_ratelimit`.
#[test]
fn a_flow_is_challenged_once_in_half_a_second_and_data_are_answered_nevertheless() {
    let mut h = Harness::new();
    h.rx(seg(0, 0, &bytes(0, 10)));
    h.wait(10_000);
    let mut sent = 0;
    for seq in 0..100 {
        sent += h.rx(seg(20 + seq, 0, &[]).with(RST)).len();
        sent += h.rx(seg(0, 99, &[])).len();
        sent += h.rx(seg(5, 0, &[]).with(SYN)).len();
    }
    assert_eq!(sent, 1, "whatever provokes it");
    assert_eq!(h.rx(seg(0, 0, &bytes(0, 10))).len(), 1, "data that came again are no loop of acknowledgements");
    h.wait(499_000);
    assert_eq!(h.rx(seg(20, 0, &[]).with(RST)).len(), 0);
    h.wait(1000);
    assert_eq!(h.rx(seg(20, 0, &[]).with(RST)).len(), 1);
    h.message(ToFast::Challenge(FLOW));
    assert_eq!(h.wait(0).len(), 0, "what the slow path asks for counts, too");
    h.wait(500_000);
    h.message(ToFast::Challenge(FLOW));
    assert_eq!(h.wait(0).len(), 1);
}

#[test]
fn impossible_flags() {
    let mut h = Harness::new();
    for flags in [SYN | FIN, SYN | RST, FIN | RST, SYN | FIN | RST] {
        assert_eq!(h.rx(seg(0, 0, &[]).with(flags)), []);
    }
    assert_eq!((h.dropped(Drop::BadFlags), h.drops()), (4, 4));
    h.rx(seg(0, 0, &bytes(0, 10)).with(0));
    assert_eq!((h.dropped(Drop::NoAck), h.view().rx_tail), (1, 0));
}

#[test]
fn acknowledgements_out_of_range() {
    let mut h = Harness::new();
    h.write(1000);
    h.rx(seg(0, 1000, &[]));
    let sent = h.rx(seg(0, 1001, &bytes(0, 10)));
    assert_eq!((sent.len(), h.dropped(Drop::BadAck), h.view().rx_tail), (1, 1, 0));
    // Older than any window ever offered (60,000).
    h.rx(seg(0, 1000u32.wrapping_sub(60_001), &bytes(0, 10)));
    assert_eq!((h.dropped(Drop::BadAck), h.view().rx_tail), (2, 0));
    h.rx(seg(0, 1000u32.wrapping_sub(60_000), &bytes(0, 10)));
    assert_eq!((h.drops(), h.view().rx_tail), (2, 10), "an old ACK does not hold up its data");
    h.rx(seg(10, 500, &bytes(10, 10)).wnd(1));
    assert_eq!((h.view().rx_tail, h.view().tx_head), (20, 1000));
}

#[test]
fn outside_the_window() {
    let mut h = Harness::new();
    for seq in [RING, 0x4000_0000, u32::MAX - 0x4000_0000] {
        let sent = h.rx(seg(seq, 0, &bytes(0, 10)));
        assert_eq!((sent.len(), sent[0].ack), (1, 0));
    }
    assert_eq!((h.dropped(Drop::OutOfWindow), h.dropped(Drop::Duplicate)), (2, 1));
    // Keepalive probes are answered.
    let sent = h.rx(seg(u32::MAX, 0, &[]));
    assert_eq!((sent.len(), h.dropped(Drop::OutOfWindow)), (1, 3));
    // An empty segment right at the window's end comes from a peer that has filled the window.
    assert_eq!(h.rx(seg(RING - 1, 0, &[])), []);
    assert_eq!(h.drops(), 4);
}

#[test]
fn paws() {
    let mut h = Harness::of(FlowSetup { timestamps: true, ts_recent: 5, ..setup() });
    h.rx(seg(0, 0, &bytes(0, 10)).ts(5, 0));
    let sent = h.rx(seg(10, 0, &bytes(10, 10)).ts(4, 0));
    assert_eq!((sent.len(), sent[0].ack, h.dropped(Drop::Paws)), (1, 10, 1));
    // Without the agreed option it is taken, and TS.Recent stays.
    h.rx(seg(10, 0, &bytes(10, 10)));
    assert_eq!((h.dropped(Drop::Paws), h.view().rx_tail), (1, 20));
    h.rx(seg(20, 0, &[]).ts(4, 0));
    assert_eq!(h.dropped(Drop::Paws), 2);
    // Timestamps wrap, too.
    h.rx(seg(20, 0, &bytes(20, 10)).ts(5u32.wrapping_add(0x7fff_ffff), 0));
    assert_eq!(h.view().rx_tail, 30);
    h.wait(1000);
    h.rx(seg(30, 0, &bytes(30, 10)).ts(0xf000_0000, 0));
    assert_eq!(h.view().rx_tail, 40);
    // After 24 idle days TS.Recent is no longer valid.
    h.wait(25 * 86_400_000_000);
    h.rx(seg(40, 0, &bytes(40, 10)).ts(0x9000_0000, 0));
    assert_eq!((h.view().rx_tail, h.dropped(Drop::Paws)), (50, 2));
    // A RST needs no timestamp.
    h.rx(seg(50, 0, &[]).with(RST));
    assert_eq!(h.view().errno, 104);
}

/// Keepalive and the persist timer ask whether the peer has been heard.
#[test]
fn a_segment_that_is_not_acceptable_is_not_heard() {
    let mut h = Harness::of(FlowSetup { timestamps: true, ts_recent: 5, ..setup() });
    h.write(100);
    h.flush();
    h.rx(seg(0, 100, &bytes(0, 10)).ts(5, 0));
    let heard = |h: &Harness| h.fast.table.snapshot(FLOW).segments_heard;
    assert_eq!(heard(&h), 1);
    for (what, blind) in [
        ("old timestamp", seg(10, 100, &[]).ts(4, 0)),
        ("SYN", seg(10, 100, &[]).ts(5, 0).with(SYN)),
        ("RST in the window", seg(11, 100, &[]).ts(5, 0).with(RST)),
        ("RST outside of it", seg(RING + 10, 100, &[]).ts(5, 0).with(RST)),
        ("before the window", seg(9, 100, &[]).ts(5, 0)),
        ("beyond the window", seg(RING + 10, 100, &[]).ts(5, 0)),
        ("no ACK", seg(10, 0, &[]).ts(5, 0).with(0)),
        ("ACK of the future", seg(10, 101, &[]).ts(5, 0)),
        ("ACK of the past", seg(10, 0u32.wrapping_sub(70_000), &[]).ts(5, 0)),
        ("old ACK", seg(10, 99, &[]).ts(5, 0)),
    ] {
        h.rx(blind);
        assert_eq!(heard(&h), 1, "{what}");
    }
    h.rx(seg(10, 100, &[]).ts(5, 0));
    h.rx(seg(0, 100, &bytes(0, 10)).ts(5, 0));
    assert_eq!(heard(&h), 3, "a valid acknowledgement, also one that carries old data");
}

#[test]
fn the_window_is_taken_from_the_newest_segment() {
    let mut h = Harness::of(FlowSetup { snd_wscale: 2, ..setup() });
    h.rx(seg(0, 0, &bytes(0, 10)).wnd(100));
    assert_eq!(h.snapshot().snd_wnd, 400);
    h.rx(seg(10, 0, &bytes(10, 10)).wnd(200));
    h.rx(seg(5, 0, &[]).wnd(50));
    assert_eq!(h.snapshot().snd_wnd, 800, "older sequence number: older window");
    h.rx(seg(20, 0, &[]).wnd(7));
    assert_eq!(h.snapshot().snd_wnd, 28);
}

#[test]
fn the_window_of_an_acknowledgement_on_repeated_data_counts() {
    let mut h = Harness::new();
    h.write(1000);
    h.rx(seg(10, 0, &[]).wnd(3000));
    // Lost data of the peer comes again, below WL1, and acknowledges ours: 3000 from the new SND.UNA on would be too
    // much.
    h.rx(seg(0, 1000, &bytes(0, 10)).wnd(2000));
    assert_eq!(h.snapshot().snd_wnd, 2000);
}

#[test]
fn bad_frames_are_counted() {
    let mut h = Harness::new();
    let good = h.frame(&seg(0, 0, &bytes(0, 100)));
    let mut frames = vec![good[..30].to_vec(), good.clone(), good.clone(), good.clone()];
    frames[1][12] = 0x86;
    frames[2][100] ^= 1;
    frames[3][20] ^= 1;
    h.fast.receive(h.now, PortId(1), &Frames(frames), &mut h.rings);
    for reason in [Drop::Truncated, Drop::NotTcp, Drop::TcpChecksum, Drop::IpChecksum] {
        assert_eq!(h.dropped(reason), 1, "{reason:?}");
    }
    assert_eq!(h.view().rx_tail, 0);
}

/// RFC 7323 §5.5: 24 days, in units of 2^20 µs.
#[test]
fn a_timestamp_is_stale_when_it_is_older_than_24_days() {
    for (age, taken) in [(24 * 82_398u64, 0), (24 * 82_398 + 1, 10)] {
        let mut h = Harness::of(FlowSetup { timestamps: true, ts_recent: 5, ..setup() });
        h.turn().lines.identity.ts_recent_at.set(STAGES.receive, 7);
        h.now = Micros((age + 7) << 20);
        h.rx(seg(0, 0, &bytes(0, 10)).ts(4, 0));
        assert_eq!((h.view().rx_tail, h.dropped(Drop::Paws)), (taken, u64::from(taken == 0)), "{age}");
    }
}

/// RFC 7323 §4.3: the timestamp of a segment that is not ahead of the last acknowledgement.
#[test]
fn the_timestamp_to_echo_is_that_of_the_segment_which_the_last_acknowledgement_was_for() {
    for (timestamps, seq, value, wanted) in [
        (true, 100, 9, (9, 3)),
        (true, 101, 9, (5, 0)),
        (true, 100, 5, (5, 0)),
        (false, 100, 9, (5, 0)),
        (false, 100, 5, (5, 0)),
    ] {
        let mut h = Harness::of(FlowSetup { timestamps, ts_recent: 5, ..setup() });
        h.rx(seg(0, 0, &bytes(0, 100)).ts(5, 0));
        h.message(ToFast::SendAck(FLOW));
        assert_eq!(h.flush()[0].ack, 100);
        h.turn().lines.identity.ts_recent_at.set(STAGES.receive, 0);
        h.now = Micros(3 << 20);
        h.rx(seg(seq, 0, &bytes(seq, 10)).ts(value, 0));
        let at = h.turn().lines.identity.ts_recent_at.get();
        assert_eq!((h.snapshot().ts_recent, at), wanted, "{timestamps} {seq} {value}");
    }
}

#[test]
fn a_reset_is_counted_and_so_is_ours() {
    let mut h = Harness::new();
    h.rx(seg(0, 0, &[]).with(RST));
    assert_eq!(h.fast.counters().resets, 1);
    let mut h = Harness::new();
    (h.app.closed, h.app.abort) = (true, true);
    h.update().unwrap();
    assert_eq!((h.flush().len(), h.fast.counters().resets), (1, 1));
}

/// RFC 2525 §2.17: only data that are lost with the socket are answered with a RST.
#[test]
fn a_fin_with_data_that_were_read_is_taken_after_the_socket_is_closed() {
    for (len, resets) in [(10, false), (11, true)] {
        let mut h = Harness::new();
        h.rx(seg(0, 0, &bytes(0, 10)));
        assert_eq!(h.read(), 10);
        h.app.closed = true;
        h.update().unwrap();
        h.flush();
        let sent = h.rx(seg(0, 1, &bytes(0, len)).with(ACK | FIN));
        assert_eq!(sent.iter().any(|s| s.flags & RST != 0), resets, "{len}");
        assert_eq!(h.view().eof, !resets, "{len}");
    }
}
