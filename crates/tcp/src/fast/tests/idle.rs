//! Requests of the slow path for an idle flow, and options that an application sets on one.

use super::*;

/// RFC 9293 SHLD-12.
#[test]
fn a_keepalive_probe_is_empty_and_one_before_what_is_acknowledged() {
    let mut h = Harness::new();
    h.write(100);
    h.rx(seg(0, 100, &[]));
    h.message(ToFast::KeepAlive(FLOW));
    assert_eq!(h.flush(), [seg(99, 0, &[]).wnd(h.setup.rcv_wnd as u16)]);
    assert_eq!(h.flush(), []);
    assert_eq!(h.rx(seg(0, 100, &[])), [], "the answer");
    assert_eq!(h.drops(), 0);
}

#[test]
fn a_keepalive_probe_to_us_is_answered() {
    let mut h = Harness::new();
    h.rx(seg(0, 0, &bytes(0, 10)));
    h.wait(2000);
    let answer = h.rx(seg(9, 0, &[]));
    assert_eq!(answer.iter().map(|s| (s.seq, s.ack, s.flags)).collect::<Vec<_>>(), [(0, 10, ACK)]);
}

/// RFC 9293 MUST-26.
#[test]
fn a_flow_with_something_outstanding_sends_no_keepalive_probe() {
    let mut h = Harness::new();
    h.write(100);
    h.message(ToFast::KeepAlive(FLOW));
    assert_eq!(h.flush(), []);
}

#[test]
fn quickack_acknowledges_at_once() {
    let mut h = Harness::new();
    assert_eq!(h.rx(seg(0, 0, &bytes(0, 10))).len(), 0);
    h.app.quickack = true;
    h.update().unwrap();
    assert_eq!(h.rx(seg(10, 0, &bytes(10, 10))).len(), 1);
    h.app.quickack = false;
    h.update().unwrap();
    assert_eq!(h.rx(seg(20, 0, &bytes(20, 10))).len(), 0);
}

/// RFC 9293 SHLD-22.
#[test]
fn type_of_service_and_time_to_live_are_in_every_packet() {
    let mut h = Harness::of(FlowSetup { tos: 0x13, ttl: 9, ..setup() });
    let service = |h: &mut Harness| {
        h.app.tx_tail += 1;
        h.update().unwrap();
        h.fast.transmit(h.now, 10, &h.rings, &mut h.tx);
        let (_, frame) = h.tx.sent.pop().unwrap();
        (frame[15], frame[22])
    };
    assert_eq!(service(&mut h), (0x10, 9), "the ECN bits are not the application's");
    h.message(ToFast::SetService { flow: FLOW, tos: 0xb8, ttl: 255 });
    assert_eq!(service(&mut h), (0xb8, 255));
    h.message(ToFast::Relink(FLOW, h.setup.link));
    assert_eq!(service(&mut h), (0xb8, 255));
}

#[test]
fn what_was_too_large_for_the_path_is_sent_again_at_once_in_smaller_segments() {
    let mut h = Harness::new();
    h.write(2500);
    let cwnd = h.snapshot().cwnd;
    h.message(ToFast::SetMss(FLOW, 600));
    let sent: Vec<_> = h.flush().iter().map(|s| (s.seq, s.data.len())).collect();
    assert_eq!(sent, [(0, 600), (600, 600), (1200, 600), (1800, 600), (2400, 100)]);
    assert_eq!((h.snapshot().cwnd, h.snapshot().mss), (cwnd, 600), "it was no congestion");
    h.rx(seg(0, 2500, &[]));
    h.message(ToFast::SetMss(FLOW, 1000));
    assert_eq!(h.write(1000).len(), 1);
}

#[test]
fn what_was_reported_is_not_sent_again_in_smaller_segments() {
    let mut h = Harness::of(FlowSetup { sack: true, ..setup() });
    h.write(2500);
    h.rx(seg(0, 0, &[]).sack(&[(1000, 2000)]));
    h.message(ToFast::SetMss(FLOW, 600));
    let sent: Vec<_> = h.flush().iter().map(|s| (s.seq, s.data.len())).collect();
    assert_eq!(sent, [(0, 600), (600, 400), (2000, 500)]);
    h.rx(seg(0, 2500, &[]));
    // A lone segment goes in two pieces. Only the piece that is not reported goes once more.
    h.message(ToFast::SetMss(FLOW, 1000));
    h.write(1000);
    h.message(ToFast::SetMss(FLOW, 600));
    let sent: Vec<_> = h.flush().iter().map(|s| (s.seq, s.data.len())).collect();
    assert_eq!(sent, [(2500, 600), (3100, 400)]);
    h.rx(seg(0, 2500, &[]).sack(&[(3100, 3500)]));
    h.message(ToFast::Timeout(FLOW, h.setup.window));
    let sent: Vec<_> = h.flush().iter().map(|s| (s.seq, s.data.len())).collect();
    assert_eq!(sent, [(2500, 600)]);
}

#[test]
fn icmp_errors_about_segments_go_to_the_slow_path_and_nothing_else_does() {
    let mut h = Harness::new();
    // From a router: fragmentation needed, next hop 1400.
    let mut frame: Vec<u8> = [[2; 12].as_slice(), &[8, 0]].concat();
    let header = |protocol: u8, len: u8, source: [u8; 4], destination: [u8; 4]| {
        let mut ip = [[0x45, 0, 0, len, 0, 0, 0x40, 0, 64, protocol, 0, 0].as_slice(), &source, &destination].concat();
        let sum = towpath_wire::checksum::finish(towpath_wire::checksum::add(0, &ip));
        ip[10..12].copy_from_slice(&sum);
        ip
    };
    let mut message = vec![3, 4, 0, 0, 0, 0, 5, 120];
    message.extend(header(6, 28, [10, 0, 0, 1], [10, 0, 0, 2]));
    message.extend([0, 80, 15, 160, 1, 2, 3, 4]);
    let sum = towpath_wire::checksum::finish(towpath_wire::checksum::add(0, &message));
    message[2..4].copy_from_slice(&sum);
    frame.extend(header(1, 20 + message.len() as u8, [10, 0, 0, 254], [10, 0, 0, 1]));
    frame.extend(message);
    let mut ping = frame.clone();
    ping[34] = 8;
    h.fast.receive(h.now, PortId(1), &Frames(vec![frame, ping]), &mut h.rings);
    h.collect();
    assert_eq!(h.slow_names(), ["Segment"]);
    assert_eq!(h.dropped(Drop::NotTcp), 1);
}
