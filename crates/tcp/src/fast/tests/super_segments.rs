//! Segments larger than the MSS, which the port cuts.

use super::*;

/// A flow on a port that cuts frames.
fn cutting(setup: FlowSetup) -> Harness {
    let mut h = Harness::of(setup);
    (h.tx.unsummed, h.tx.gso_max_bytes) = (true, 65_549);
    h
}

fn sacked() -> FlowSetup {
    FlowSetup { sack: true, window: Window { cwnd: 40 * MSS, ..setup().window }, ..setup() }
}

/// First byte, bytes, and the size into which the port cuts them, of what is sent.
fn shapes(h: &mut Harness, sent: &[Seg]) -> Vec<(u32, usize, u16)> {
    let cut = std::mem::take(&mut h.tx.cut);
    assert_eq!(cut.len(), sent.len());
    sent.iter().zip(cut).map(|(s, cut)| (s.seq, s.data.len(), cut)).collect()
}

fn written(h: &mut Harness, len: u32) -> Vec<(u32, usize, u16)> {
    let sent = h.write(len);
    shapes(h, &sent)
}

fn heard(h: &mut Harness, s: Seg) -> Vec<(u32, usize, u16)> {
    let sent = h.rx(s);
    shapes(h, &sent)
}

#[test]
fn what_the_windows_allow_goes_as_one_frame() {
    let mut h = cutting(setup());
    let sent = h.write(5300);
    assert_eq!((sent[0].flags, &sent[0].data), (ACK | PSH, &bytes(0, 5300)));
    assert_eq!(shapes(&mut h, &sent), [(0, 5300, 1000)]);
    assert_eq!(h.snapshot().data_segments_out, 6, "as the peer counts them");
    // The congestion window has room for 4,700 bytes: full segments go, the rest waits.
    assert_eq!(written(&mut h, 6000), [(5300, 4000, 1000)]);
    assert_eq!(heard(&mut h, seg(0, 5300, &[])), [(9300, 2000, 1000)]);
    // A segment is no super-segment.
    heard(&mut h, seg(0, 11_300, &[]));
    assert_eq!(written(&mut h, 1000), [(11_300, 1000, 0)]);
}

/// The port makes the checksum of a frame that is not cut, too.
#[test]
fn the_checksum_of_a_segment_alone_is_left_to_the_port() {
    let mut h = cutting(setup());
    for len in [100, 5000] {
        h.app.tx_tail += len;
        h.update().unwrap();
        h.fast.transmit(h.now, 100, &h.rings, &mut h.tx);
        let (_, frame) = h.tx.sent.pop().unwrap();
        let s = parse(&frame).unwrap();
        assert!(
            checksum_ok(&frame, &s, RxChecksum::MaybePartial) && !checksum_ok(&frame, &s, RxChecksum::Unknown),
            "{len}"
        );
    }
}

#[test]
fn a_rest_waits_as_it_would_alone() {
    let mut h = cutting(FlowSetup { nodelay: false, ..setup() });
    assert_eq!(written(&mut h, 3300), [(0, 3000, 1000)], "Nagle");
    assert_eq!(heard(&mut h, seg(0, 3000, &[])), [(3000, 300, 0)]);
    heard(&mut h, seg(0, 3300, &[]));
    h.app.cork = true;
    assert_eq!(written(&mut h, 2500), [(3300, 2000, 1000)]);
    (h.app.cork, h.app.shut_wr) = (false, true);
    h.update().unwrap();
    let sent = h.flush();
    assert_eq!((sent[0].data.len(), sent[0].flags), (500, ACK | PSH | FIN));
}

#[test]
fn the_last_of_the_stream_goes_with_the_fin() {
    let mut h = cutting(FlowSetup { nodelay: false, ..setup() });
    h.app.shut_wr = true;
    let sent = h.write(2500);
    assert_eq!((sent.len(), sent[0].data.len(), sent[0].flags), (1, 2500, ACK | PSH | FIN));
}

#[test]
fn the_peers_window_cuts_at_a_segment() {
    let mut h = cutting(FlowSetup { snd_wnd: 2700, ..setup() });
    assert_eq!(written(&mut h, 5000), [(0, 2000, 1000)]);
    assert_eq!(heard(&mut h, seg(0, 2000, &[]).wnd(2999)), [(2000, 2000, 1000)]);
}

#[test]
fn urgent_data_go_in_segments() {
    let mut h = cutting(setup());
    h.app.marks.get_or_insert_default().urgent = Some(2500);
    let all = written(&mut h, 3000);
    assert_eq!(all, [(0, 1000, 0), (1000, 1000, 0), (2000, 1000, 0)]);
}

/// The worth of a millisecond, two segments at least.
#[test]
fn a_paced_flow_sends_no_bursts() {
    let at = |pacing| FlowSetup { window: Window { pacing, ..sacked().window }, ..sacked() };
    assert_eq!(written(&mut cutting(at(1_000)), 20_000)[0], (0, 2000, 1000));
    assert_eq!(written(&mut cutting(at(7_500_000)), 20_000)[0], (0, 7000, 1000));
    assert_eq!(written(&mut cutting(at(1_000_000_000)), 20_000)[0], (0, 20_000, 1000));
}

#[test]
fn a_long_path_gets_what_it_takes_in_a_millisecond() {
    let far = |srtt_us| FlowSetup { srtt_us, ..sacked() };
    // 40,000 bytes in 10 ms.
    assert_eq!(written(&mut cutting(far(10_000)), 20_000)[0], (0, 4000, 1000));
    assert_eq!(written(&mut cutting(far(100_000)), 20_000)[0], (0, 2000, 1000));
    assert_eq!(written(&mut cutting(far(100)), 20_000)[0], (0, 20_000, 1000));
}

/// A super-segment alone in flight has a scoreboard, so each segment of it can be lost alone.
#[test]
fn a_lost_part_is_sent_again_alone() {
    let mut h = cutting(sacked());
    assert_eq!(written(&mut h, 10_000), [(0, 10_000, 1000)]);
    h.now = h.now.after(1000);
    // The second segment is missing.
    assert_eq!(heard(&mut h, seg(0, 1000, &[]).sack(&[(2000, 10_000)])), [(1000, 1000, 0)]);
    assert_eq!(h.fast.counters().retransmits, 1);
    heard(&mut h, seg(0, 10_000, &[]));
    assert_eq!(h.fast.counters().retransmits, 1);
}

#[test]
fn after_a_time_out_segments_go_one_by_one() {
    let mut h = cutting(sacked());
    written(&mut h, 5000);
    h.message(ToFast::Timeout(FLOW, Window { cwnd: 1000, ..setup().window }));
    let sent = h.flush();
    assert_eq!(shapes(&mut h, &sent)[0], (0, 1000, 0));
}

#[test]
fn flows_take_turns() {
    let mut h = cutting(FlowSetup {
        snd_wnd: 600_000,
        tx_bytes: 1 << 19,
        window: Window { cwnd: 400 * MSS, ..setup().window },
        ..setup()
    });
    let second = FlowSetup { flow: FlowId(4), tuple: FourTuple { remote_port: 4001, ..tuple() }, ..h.setup.clone() };
    h.rings.tx.insert(second.flow, vec![0; 1 << 19]);
    h.rings.rx.insert(second.flow, vec![0; RING as usize]);
    h.message(ToFast::Install(Box::new(second)));
    let update = AppUpdate { tx_tail: 200_000, nodelay: true, ..AppUpdate::default() };
    for flow in [FLOW, FlowId(4)] {
        h.fast.app_update(h.now, flow, update).unwrap();
    }
    h.fast.transmit(h.now, 10_000, &h.rings, &mut h.tx);
    let ports: Vec<_> = h.tx.sent.iter().map(|(_, frame)| parse(frame).unwrap().destination_port).collect();
    assert_eq!(ports[..4], [4000, 4001, 4000, 4001], "a super-segment each");
}

/// A super-segment is timed as one.
#[test]
fn a_part_of_a_super_segment_gives_no_first_round_trip() {
    let mut h = cutting(FlowSetup { srtt_us: 0, ..sacked() });
    assert_eq!(written(&mut h, 4000), [(0, 4000, 1000)]);
    h.now = h.now.after(800);
    heard(&mut h, seg(0, 1000, &[]));
    assert_eq!(h.snapshot().srtt_us, 0);
    heard(&mut h, seg(0, 4000, &[]));
    assert_eq!((h.snapshot().srtt_us, h.snapshot().rttvar_us), (800, 400));
}
