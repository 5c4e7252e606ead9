//! Explicit congestion notification, as receiver and as sender (RFC 3168, RFC 8257).

use super::*;
use crate::flow::Ecn;

const ECE: u8 = flags::ECE;
const CWR: u8 = flags::CWR;
const NOT_ECT: u8 = 0;
const ECT0: u8 = 2;
const CE: u8 = 3;

fn with(ecn: Ecn) -> Harness {
    Harness::of(FlowSetup { ecn, ..setup() })
}

/// A segment in a packet with this ECN field.
fn marked(h: &Harness, s: &Seg, field: u8) -> Vec<u8> {
    let mut frame = h.frame(s);
    let ip = &mut frame[14..34];
    ip[1] |= field;
    ip[10..12].fill(0);
    let mut sum: u32 = ip.chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    ip[10..12].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    frame
}

/// A batch of segments with their ECN fields; returns flags, ACK and ECN field of what is sent in reply.
fn rx(h: &mut Harness, segments: &[(Seg, u8)]) -> Vec<(u8, u32, u8)> {
    let frames = Frames(segments.iter().map(|(s, field)| marked(h, s, *field)).collect());
    h.fast.receive(h.now, PortId(1), &frames, &mut h.rings);
    h.collect();
    out(h)
}

/// Sends what can go out now.
fn out(h: &mut Harness) -> Vec<(u8, u32, u8)> {
    h.fast.transmit(h.now, 100, &h.rings, &mut h.tx);
    h.collect();
    let sent = std::mem::take(&mut h.tx.sent);
    let seen = |frame: &[u8]| {
        let s = parse(frame).unwrap();
        (s.flags & (ECE | CWR), Seq(s.ack).bytes_since(h.setup.rcv_start), s.tos & 3)
    };
    sent.iter().map(|(_, frame)| seen(frame)).collect()
}

/// `len` bytes of the peer's stream.
fn data(from: u32, len: u32) -> Seg {
    seg(from, 0, &bytes(from, len))
}

fn flags_of(out: &[(u8, u32, u8)]) -> Vec<u8> {
    out.iter().map(|(flags, ..)| *flags).collect()
}

fn fields_of(out: &[(u8, u32, u8)]) -> Vec<u8> {
    out.iter().map(|(.., field)| *field).collect()
}

/// The application has `len` more bytes to send.
fn write(h: &mut Harness, len: u32) -> Vec<(u8, u32, u8)> {
    h.app.tx_tail += len;
    h.update().unwrap();
    out(h)
}

#[test]
fn without_agreement_marks_and_echoes_mean_nothing() {
    let mut h = with(Ecn::Off);
    assert_eq!(rx(&mut h, &[(data(0, 1000), CE), (data(1000, 1000), CE)]), [(0, 2000, NOT_ECT)]);
    assert_eq!(fields_of(&write(&mut h, 2000)), [NOT_ECT; 2]);
    rx(&mut h, &[(seg(2000, 2000, &[]).with(ACK | ECE), 0)]);
    let s = h.snapshot();
    assert_eq!((s.bytes_marked, s.ssthresh, s.flags & flow_flags::ECN), (0, u32::MAX, 0));
}

#[test]
fn a_mark_is_echoed_until_the_sender_has_slowed_down() {
    let mut h = with(Ecn::Classic);
    assert_eq!(rx(&mut h, &[(data(0, 1000), ECT0)]), [], "unmarked: the acknowledgement waits");
    assert_eq!(rx(&mut h, &[(data(1000, 100), CE)]), [(ECE, 1100, NOT_ECT)], "marked: at once");
    assert_eq!(flags_of(&rx(&mut h, &[(data(1100, 1000), ECT0), (data(2100, 1000), ECT0)])), [ECE], "and again");
    assert_eq!(flags_of(&write(&mut h, 10)), [ECE], "data carry it, too");
    // CWR ends it, but not if its own packet is marked.
    let cwr = |from| seg(from, 10, &bytes(from, 1000)).with(ACK | CWR);
    assert_eq!(flags_of(&rx(&mut h, &[(cwr(3100), CE), (data(4100, 1000), ECT0)])), [ECE]);
    assert_eq!(flags_of(&rx(&mut h, &[(cwr(5100), ECT0), (data(6100, 1000), ECT0)])), [0]);
    // A mark on a segment outside the window, or on an empty acknowledgement, has no effect.
    rx(&mut h, &[(data(200_000, 1000), CE)]);
    rx(&mut h, &[(seg(7100, 10, &[]), CE)]);
    assert_eq!(flags_of(&rx(&mut h, &[(data(7100, 1000), ECT0), (data(8100, 1000), ECT0)])), [0]);
}

#[test]
fn an_echo_reduces_the_window_once_per_round_trip() {
    let mut h = with(Ecn::Classic);
    assert_eq!(fields_of(&write(&mut h, 20_000)), [ECT0; 10]);
    h.slow.clear();
    let echo = |ack| (seg(0, ack, &[]).with(ACK | ECE), 0);
    // Half of the ten segments that were out.
    assert_eq!(rx(&mut h, &[echo(2000)]), []);
    let s = h.snapshot();
    assert_eq!((s.cwnd, s.ssthresh, s.bytes_marked), (5000, 5000, 2000));
    assert_eq!(h.slow_names(), ["Marked"]);
    // A second mark in the same round trip.
    let sent = rx(&mut h, &[echo(4000), echo(8000)]);
    assert_eq!((h.snapshot().ssthresh, h.snapshot().bytes_marked), (5000, 8000));
    assert_eq!(flags_of(&sent)[..2], [CWR, 0], "the first new segment says so, and only that");
    assert_eq!(h.slow_names(), [""; 0]);
    // A mark in the next round trip.
    rx(&mut h, &[(seg(0, 10_000, &[]), 0)]);
    let out = h.snapshot().snd_max.bytes_since(h.setup.snd_start);
    rx(&mut h, &[echo(out)]);
    assert_eq!(h.slow_names(), ["Marked"]);
    assert!(h.snapshot().ssthresh < 5000);
}

#[test]
fn only_new_data_are_ecn_capable() {
    let mut h = with(Ecn::Classic);
    write(&mut h, 3000);
    h.message(ToFast::Timeout(FLOW, Window { cwnd: 1000, ..setup().window }));
    assert_eq!(fields_of(&out(&mut h)), [NOT_ECT], "sent again");
    h.message(ToFast::SendAck(FLOW));
    assert_eq!(fields_of(&out(&mut h)), [NOT_ECT], "no data");
    let mut h = with(Ecn::Classic);
    rx(&mut h, &[(seg(0, 0, &[]).wnd(0), 0)]);
    assert_eq!(write(&mut h, 10), []);
    h.message(ToFast::ProbeWindow(FLOW));
    assert_eq!(fields_of(&out(&mut h)), [NOT_ECT], "a window probe");
    (h.app.closed, h.app.abort) = (true, true);
    h.update().unwrap();
    assert_eq!(fields_of(&out(&mut h)), [NOT_ECT], "a reset");
}

#[test]
fn the_first_new_segment_after_a_loss_or_a_time_out_says_that_the_window_is_smaller() {
    let mut h = with(Ecn::Classic);
    write(&mut h, 20_000);
    let sent: Vec<u8> =
        (0..8).flat_map(|_| flags_of(&rx(&mut h, &[(seg(0, 0, &[]), 0)]))).map(|flags| flags & CWR).collect();
    // Two segments by limited transmit, then the repair, then new data.
    assert_eq!(sent[..4], [0, 0, 0, CWR]);
    assert!(sent[4..].iter().all(|flags| *flags == 0), "{sent:?}");
    let mut h = with(Ecn::Classic);
    write(&mut h, 1000);
    h.message(ToFast::Timeout(FLOW, Window { cwnd: 1000, ..setup().window }));
    assert_eq!(flags_of(&out(&mut h)), [0], "sent again");
    rx(&mut h, &[(seg(0, 1000, &[]), 0)]);
    assert_eq!(flags_of(&write(&mut h, 2000)), [CWR, 0]);
}

#[test]
fn a_loss_in_the_same_round_trip_reduces_only_once() {
    let mut h = with(Ecn::Classic);
    write(&mut h, 10_000);
    for _ in 0..3 {
        rx(&mut h, &[(seg(0, 0, &[]), 0)]);
    }
    let ssthresh = h.snapshot().ssthresh;
    h.slow.clear();
    rx(&mut h, &[(seg(0, 2000, &[]).with(ACK | ECE), 0)]);
    assert_eq!((h.snapshot().ssthresh, h.slow_names()), (ssthresh, vec![]));
}

#[test]
fn dctcp_echoes_every_change_of_marks_at_once() {
    let mut h = with(Ecn::Dctcp);
    assert_eq!(rx(&mut h, &[(data(0, 600), ECT0)]), []);
    // Marks begin: what came before is acknowledged without ECE, what comes now with ECE.
    assert_eq!(rx(&mut h, &[(data(600, 600), CE)]), [(0, 600, 0), (ECE, 1200, 0)]);
    // No change: every second segment is acknowledged, as usual.
    assert_eq!(rx(&mut h, &[(data(1200, 600), CE)]), []);
    assert_eq!(rx(&mut h, &[(data(1800, 600), CE)]), [(ECE, 2400, 0)]);
    // Nothing is owed for what came before, so it gets no acknowledgement of its own.
    assert_eq!(rx(&mut h, &[(data(2400, 600), ECT0)]), [(0, 3000, 0)]);
    // Marks begin and end in one batch.
    let batch = [(data(3000, 600), ECT0), (data(3600, 600), CE), (data(4200, 600), CE), (data(4800, 600), ECT0)];
    assert_eq!(rx(&mut h, &batch), [(0, 3600, 0), (ECE, 4800, 0), (0, 5400, 0)]);
}

#[test]
fn with_dctcp_a_segment_with_cwr_is_acknowledged_at_once() {
    let mut h = with(Ecn::Dctcp);
    let cwr = |at| seg(at, 0, &bytes(at, 600)).with(ACK | CWR);
    assert_eq!(rx(&mut h, &[(cwr(0), ECT0)]), [(0, 600, 0)]);
    assert_eq!(rx(&mut h, &[(cwr(600), CE)]), [(ECE, 1200, 0)]);
    assert_eq!(rx(&mut h, &[(cwr(1200), CE)]), [(ECE, 1800, 0)], "it does not end the echo");
}

#[test]
fn with_dctcp_a_mark_ends_slow_start_and_its_algorithm_says_the_rest() {
    let mut h = with(Ecn::Dctcp);
    write(&mut h, 10_000);
    h.slow.clear();
    let cwnd = h.snapshot().cwnd;
    rx(
        &mut h,
        &[(seg(0, 2000, &[]).with(ACK | ECE), 0), (seg(0, 3000, &[]), 0), (seg(0, 5000, &[]).with(ACK | ECE), 0)],
    );
    let s = h.snapshot();
    assert_eq!((s.bytes_marked, s.bytes_acked), (4000, 5000));
    assert!(s.ssthresh >= cwnd / 2 && s.ssthresh < cwnd && s.cwnd < cwnd, "{s:?}");
    assert_eq!(h.slow_names(), [""; 0]);
}

#[test]
fn the_smallest_round_trip_of_ten_seconds_is_kept() {
    let mut h = Harness::new();
    let (mut end, mut seen) = (0, vec![]);
    for us in [500, 300, 900, 800] {
        h.write(100);
        end += 100;
        h.now = h.now.after(us);
        h.rx(seg(0, end, &[]));
        seen.push((h.snapshot().rtt_us, h.snapshot().min_rtt_us));
    }
    assert_eq!(seen, [(500, 500), (300, 300), (900, 300), (800, 300)]);
    h.wait(12_000_000);
    h.write(100);
    h.now = h.now.after(700);
    h.rx(seg(0, end + 100, &[]));
    assert_eq!((h.snapshot().rtt_us, h.snapshot().min_rtt_us), (700, 700));
}

/// RFC 8257 §3.2 leaves CWR free, so that a lone segment can ask for an acknowledgement.
#[test]
fn with_dctcp_a_segment_of_a_window_below_two_says_that_it_is_alone() {
    for (ecn, cwnd, wanted) in [
        (Ecn::Dctcp, 1000, CWR),
        (Ecn::Dctcp, 1500, CWR),
        (Ecn::Dctcp, 1999, CWR),
        (Ecn::Dctcp, 2000, 0),
        (Ecn::Dctcp, 2001, 0),
        (Ecn::Classic, 1000, 0),
    ] {
        let mut h = Harness::of(FlowSetup { ecn, window: Window { cwnd, ..setup().window }, ..setup() });
        assert_eq!(flags_of(&write(&mut h, 1000)), [wanted], "{ecn:?} {cwnd}");
    }
}

/// RFC 3168 §6.1.2, and RFC 9438 §4.6 for another share than half.
#[test]
fn an_echo_leaves_the_share_of_what_was_out_and_two_segments_at_least() {
    for (out, beta, cwnd) in [(10, 512, 5000), (10, 717, 7001), (3, 512, 2000), (4, 512, 2000), (5, 512, 2500)] {
        let window = Window { beta, ..setup().window };
        let mut h = Harness::of(FlowSetup { ecn: Ecn::Classic, window, ..setup() });
        write(&mut h, out * 1000);
        rx(&mut h, &[(seg(0, 1000, &[]).with(ACK | ECE), 0)]);
        let s = h.snapshot();
        assert_eq!((s.cwnd, s.ssthresh, s.bytes_marked), (cwnd, cwnd, 1000), "{out} {beta}");
    }
}

/// RFC 8257 §3.3: the estimate begins at 1, so the first mark has the full effect.
#[test]
fn with_dctcp_a_mark_halves_a_window_below_the_threshold_only() {
    for (cwnd, ssthresh, wanted) in [
        (10_000, 10_001, (5000, 5000)),
        (10_000, 10_000, (10_000, 10_000)),
        (10_000, 9999, (10_000, 9999)),
        (1500, 9999, (1000, 1000)),
        (2002, 9999, (1001, 1001)),
    ] {
        let window = Window { cwnd, ssthresh, ..setup().window };
        let mut h = Harness::of(FlowSetup { ecn: Ecn::Dctcp, window, ..setup() });
        write(&mut h, 1000);
        rx(&mut h, &[(seg(0, 0, &[0]).with(ACK | ECE), 0)]);
        assert_eq!((h.snapshot().cwnd, h.snapshot().ssthresh), wanted, "{cwnd} {ssthresh}");
    }
}
