//! The fast path as a whole: fairness, hand-over, removal, frames of the slow path.

use super::*;

fn second() -> FlowSetup {
    let mut s = setup();
    s.flow = FlowId(7);
    s.tuple.remote_port = 4001;
    s
}

/// A harness with two flows.
fn two(config: FastConfig) -> Harness {
    let mut h = Harness::configured(setup(), config);
    h.rings.tx.insert(FlowId(7), vec![0; RING as usize]);
    h.rings.rx.insert(FlowId(7), vec![0; RING as usize]);
    h.message(ToFast::Install(Box::new(second())));
    h
}

#[test]
fn turns_are_fair() {
    let mut h = two(FastConfig { segments_per_turn: 2, ..FastConfig::default() });
    for flow in [FLOW, FlowId(7)] {
        h.fast.app_update(h.now, flow, AppUpdate { tx_tail: 8000, nodelay: true, ..AppUpdate::default() }).unwrap();
    }
    assert_eq!(h.fast.transmit(h.now, 5, &h.rings, &mut h.tx), 5);
    h.fast.transmit(h.now, 100, &h.rings, &mut h.tx);
    let ports: Vec<u16> = h.tx.sent.iter().map(|(_, f)| parse(f).unwrap().destination_port).collect();
    let (a, b) = (4000, 4001);
    // The fifth frame ends the budget in the middle of a turn: that flow goes to the end of the queue.
    assert_eq!(ports, [a, a, b, b, a, b, b, a, a, b, b, a, a, b, b, a]);
}

#[test]
fn a_full_port_does_not_stop_another() {
    let mut h = two(FastConfig::default());
    let link = Link { port: PortId(0), ..setup().link };
    h.message(ToFast::Relink(FlowId(7), link));
    for flow in [FLOW, FlowId(7)] {
        h.fast.app_update(h.now, flow, AppUpdate { tx_tail: 3000, nodelay: true, ..AppUpdate::default() }).unwrap();
    }
    h.tx.full = Some(PortId(1));
    assert_eq!(h.fast.transmit(h.now, 100, &h.rings, &mut h.tx), 3);
    assert!(h.fast.has_work());
    h.tx.full = None;
    assert_eq!(h.fast.transmit(h.now, 100, &h.rings, &mut h.tx), 3);
    let ports: Vec<_> = h.tx.sent.iter().map(|(p, _)| p.0).collect();
    assert_eq!(ports, [0, 0, 0, 1, 1, 1]);
}

#[test]
fn relinked_while_it_waits() {
    let mut h = Harness::new();
    h.tx.full = Some(PortId(1));
    h.write(100);
    h.message(ToFast::Relink(FLOW, Link { port: PortId(2), source: [2; 6], destination: [9; 6], vlan: None }));
    h.setup.link.destination = [9; 6];
    assert_eq!(h.flush().len(), 1);
}

#[test]
fn segments_without_a_flow_go_to_the_slow_path_within_limits() {
    let config = FastConfig { slow_segments: 3, ..FastConfig::default() };
    let mut h = Harness::configured(setup(), config);
    h.setup.tuple.remote_port = 5;
    let frames = Frames((0..5).map(|n| h.frame(&seg(n, 0, &[]).with(SYN))).collect());
    h.fast.receive(h.now, PortId(1), &frames, &mut h.rings);
    assert_eq!(h.dropped(Drop::SlowPathFull), 2);
    let Some(ToSlow::Segment(port, frame)) = h.fast.pop_to_slow() else { panic!() };
    assert_eq!((port, &frame[..]), (PortId(1), &frames.0[0][..]));
    h.fast.receive(h.now, PortId(1), &frames, &mut h.rings);
    assert_eq!(h.dropped(Drop::SlowPathFull), 2 + 4, "one was taken, one fits");
}

#[test]
fn injected_and_transmitted_frames() {
    let mut h = Harness::new();
    let frame = h.frame(&seg(0, 0, &bytes(0, 100)));
    h.message(ToFast::Inject(PortId(1), frame.into()));
    assert_eq!((h.view().rx_tail, h.take_events()), (100, event::READABLE));
    for n in 0..3u8 {
        h.message(ToFast::Transmit(PortId(n % 2), vec![n; 60].into()));
    }
    h.tx.full = Some(PortId(0));
    assert!(h.fast.has_work());
    h.fast.transmit(h.now, 10, &h.rings, &mut h.tx);
    h.tx.full = None;
    h.fast.transmit(h.now, 1, &h.rings, &mut h.tx);
    h.fast.transmit(h.now, 1, &h.rings, &mut h.tx);
    let sent: Vec<_> = h.tx.sent.iter().map(|(p, f)| (p.0, f[0])).collect();
    assert_eq!(sent, [(1, 1), (0, 0), (0, 2)]);
}

#[test]
fn removal_waits_for_the_queues_and_then_the_number_is_clean() {
    let mut h = Harness::new();
    h.rx(seg(0, 0, &bytes(0, 10)));
    h.slow.clear();
    h.message(ToFast::Remove(FLOW));
    assert_eq!(h.fast.flows(), 0);
    h.message(ToFast::Remove(FLOW));
    assert_eq!(h.slow_names(), [""; 0], "its delayed acknowledgement is still queued");
    assert_eq!(h.wait(1000), []);
    assert_eq!(h.slow_names(), ["Removed"], "once");
    // The segment has no flow now.
    h.rx(seg(10, 0, &bytes(10, 10)));
    assert_eq!(h.slow_names(), ["Segment"]);
    h.message(ToFast::Install(Box::new(setup())));
    h.app = AppUpdate::default();
    assert_eq!(h.view(), AppView::default());
    h.rx(seg(0, 0, &bytes(0, 10)));
    assert_eq!(h.read(), 10);
    // Other messages for a flow that is not there do nothing.
    h.message(ToFast::SendAck(FlowId(9)));
    h.message(ToFast::SendAck(FlowId(100_000)));
    h.message(ToFast::Remove(FlowId(100_000)));
    assert_eq!(h.slow_names(), ["Removed"]);
}

#[test]
fn a_flow_of_another_flow_group_is_left_alone() {
    let mut h = Harness::new();
    let mut other = FastPath::new(1, FastConfig::default(), h.fast.table.clone());
    other.message(h.now, ToFast::Abort { flow: FLOW, rst: true, errno: Some(1) }, &mut h.rings);
    assert_eq!(other.app_update(h.now, FLOW, AppUpdate { tx_tail: u32::MAX, ..AppUpdate::default() }), Ok(()));
    assert_eq!(h.view().errno, 0);
}

#[test]
fn events_not_taken_are_kept() {
    let mut h = Harness::new();
    let frames = Frames(vec![h.frame(&seg(0, 0, &bytes(0, 10)))]);
    h.fast.receive(h.now, PortId(1), &frames, &mut h.rings);
    drop(h.fast.events());
    assert!(h.fast.has_work());
    assert_eq!(h.fast.events().collect::<Vec<_>>(), [FlowEvent { flow: FLOW, what: event::READABLE }]);
}

#[test]
fn too_many_flows() {
    let mut h = Harness::new();
    h.message(ToFast::Install(Box::new(FlowSetup { flow: FlowId(16), ..second() })));
    assert_eq!((h.dropped(Drop::NoMemory), h.slow_names()), (1, vec!["Removed".into()]));
}

#[test]
fn a_removed_or_killed_flow_keeps_no_ranges() {
    for message in [ToFast::Remove(FLOW), ToFast::Abort { flow: FLOW, rst: false, errno: Some(110) }] {
        let mut h = Harness::new();
        h.rx(seg(500, 0, &bytes(500, 10)));
        assert_eq!(h.fast.state.out_of_order.in_use(), 1);
        h.message(message);
        assert_eq!(h.fast.state.out_of_order.in_use(), 0);
    }
}

#[test]
fn frames_of_the_slow_path_use_the_budget_and_keep_their_order() {
    let mut h = Harness::new();
    for n in 0..5u8 {
        h.message(ToFast::Transmit(PortId(n % 2), vec![n; 60].into()));
    }
    let mut sent = |budget, full| {
        h.tx.full = full;
        let count = h.fast.transmit(h.now, budget, &h.rings, &mut h.tx);
        (count, std::mem::take(&mut h.tx.sent).iter().map(|(_, frame)| frame[0]).collect::<Vec<_>>())
    };
    assert_eq!(sent(0, None), (0, vec![]));
    assert_eq!(sent(2, None), (2, vec![0, 1]));
    assert_eq!(sent(5, Some(PortId(0))), (1, vec![3]));
    assert_eq!(sent(1, None), (1, vec![2]));
    assert_eq!(sent(5, None), (1, vec![4]));
    for n in [0, 1, 3] {
        h.message(ToFast::Transmit(PortId(n % 2), vec![n; 60].into()));
    }
    let mut sent = |budget, full| {
        h.tx.full = full;
        let count = h.fast.transmit(h.now, budget, &h.rings, &mut h.tx);
        (count, std::mem::take(&mut h.tx.sent).iter().map(|(_, frame)| frame[0]).collect::<Vec<_>>())
    };
    assert_eq!(sent(1, Some(PortId(0))), (1, vec![1]), "those behind a full port use the budget too");
    assert_eq!(sent(5, None), (2, vec![0, 3]));
}

/// Each kind of header has a way of its own to be made.
#[test]
fn flows_of_both_families_send_and_receive_with_and_without_a_vlan() {
    let v6 = |n| IpAddr::V6(std::net::Ipv6Addr::new(0xfd00, 1, 0x203, 0x405, 0x607, 0x809, 0xa0b, n));
    let v6 = FourTuple { local: v6(1), remote: v6(2), ..tuple() };
    for (tuple, vlan) in [(tuple(), None), (v6, None), (tuple(), Some(7)), (v6, Some(7))] {
        let link = Link { vlan, ..setup().link };
        let mut h = Harness::of(FlowSetup { tuple, link, ..setup() });
        assert_eq!(h.fast.table.tuple(FLOW), Some(tuple));
        for turn in 0..3 {
            let (from, expected) = (turn * 300, bytes(turn * 300, 300));
            h.app.tx_tail += 300;
            for i in from..from + 300 {
                h.rings.tx.get_mut(&FLOW).unwrap()[i as usize] = byte(i);
            }
            h.update().unwrap();
            h.fast.transmit(h.now, 100, &h.rings, &mut h.tx);
            let sent = h.tx.sent.last().unwrap().1.clone();
            assert_eq!(parse(&sent).unwrap().vlan, vlan);
            let sent = h.taken();
            assert_eq!((sent.len(), sent[0].seq, &sent[0].data), (1, from, &expected), "{tuple:?} {vlan:?}");
            h.rx(seg(from, from + 300, &expected));
        }
        assert_eq!(h.read(), 900);
    }
}

#[test]
fn a_batch_counts_what_each_stage_has_done() {
    let mut h = Harness::new();
    let done = |h: &Harness| h.fast.counters().stages[crate::counters::Stage::Deliver as usize];
    h.batch(&[seg(0, 0, &bytes(0, 10)), seg(10, 0, &bytes(10, 10)), seg(20, 0, &[])]);
    assert_eq!(done(&h), 2, "a segment without payload has nothing to be delivered");
    h.batch(&[seg(20, 0, &bytes(20, 10))]);
    assert_eq!(done(&h), 3);
}

#[test]
fn the_send_ring_of_an_own_flow_gets_another_size() {
    let mut h = Harness::new();
    h.fast.resize_send_ring(FLOW, 2 * RING);
    let seen = h.fast.measures(FLOW);
    assert_eq!((seen.tx_bytes, seen.cwnd), (2 * RING, 10 * MSS));
    let mut other = FastPath::new(1, FastConfig::default(), h.fast.table.clone());
    other.resize_send_ring(FLOW, RING);
    assert_eq!(h.snapshot().tx_bytes, 2 * RING, "another flow group's");
}

#[test]
fn a_batch_is_empty_if_it_has_no_frame() {
    assert!(Frames(vec![]).is_empty() && !Frames(vec![vec![0]]).is_empty());
}
