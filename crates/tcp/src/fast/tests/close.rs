//! FIN, RST, contract violations: how a flow ends.

use super::*;

#[test]
fn the_peer_closes_first() {
    let mut h = Harness::new();
    let sent = h.rx(seg(0, 0, &bytes(0, 100)).with(ACK | FIN));
    assert_eq!((sent.len(), sent[0].ack), (1, 101));
    assert_eq!((h.take_events(), h.slow_names()), (event::READABLE | event::EOF, vec!["Closing".into()]));
    assert_eq!((h.view().rx_tail, h.view().eof), (100, true));
    assert_eq!(h.read(), 100);
    assert_eq!(h.snapshot().rx_queued, 0);
    // A repeated FIN is acknowledged again.
    let sent = h.rx(seg(0, 0, &bytes(0, 100)).with(ACK | FIN));
    assert_eq!((sent[0].ack, h.dropped(Drop::Duplicate)), (101, 1));
    // We can still send.
    assert_eq!(h.write(500)[0].data.len(), 500);
    h.app.closed = true;
    h.update().unwrap();
    let sent = h.flush();
    assert_eq!((sent[0].seq, sent[0].flags), (500, ACK | FIN));
    assert_eq!(h.take_events() & event::TX_CLOSED, event::TX_CLOSED);
    h.slow.clear();
    h.rx(seg(101, 501, &[]));
    assert_eq!(h.slow_names(), ["Closing"]);
    let want = flow_flags::FIN_ACKED | flow_flags::FIN_RECEIVED | flow_flags::APP_CLOSED | flow_flags::PASSIVE_CLOSE;
    assert_eq!(h.snapshot().flags & want, want);
    assert_eq!(h.view().tx_head, 500, "the FIN is no byte of the ring");
}

#[test]
fn we_close_first() {
    let mut h = Harness::new();
    h.app.shut_wr = true;
    let sent = h.write(1500);
    assert_eq!((sent[1].flags, sent.len()), (ACK | PSH | FIN, 2));
    assert!(h.view().tx_closed);
    h.rx(seg(0, 1501, &bytes(0, 10)));
    assert_eq!(h.read(), 10);
    h.rx(seg(10, 1501, &[]).with(ACK | FIN));
    let flags = h.snapshot().flags;
    assert_eq!(flags & flow_flags::FIN_ACKED, flow_flags::FIN_ACKED);
    assert_eq!(flags & flow_flags::PASSIVE_CLOSE, 0);
    // Bytes that the application writes behind its FIN are not sent.
    assert_eq!(h.write(10), []);
}

#[test]
fn fin_is_repeated() {
    let mut h = Harness::new();
    h.app.shut_wr = true;
    h.write(100);
    h.message(ToFast::Timeout(FLOW, Window { cwnd: 1000, ssthresh: 2000, growth: 256, beta: 512, pacing: 0 }));
    let sent = h.flush();
    assert_eq!((sent[0].flags, sent[0].data.len()), (ACK | PSH | FIN, 100));
    h.rx(seg(0, 100, &[]));
    h.message(ToFast::Timeout(FLOW, Window { cwnd: 1000, ssthresh: 2000, growth: 256, beta: 512, pacing: 0 }));
    let sent = h.flush();
    assert_eq!((sent[0].seq, sent[0].flags, sent[0].data.len()), (100, ACK | FIN, 0));
    h.take_events();
    h.rx(seg(0, 101, &[]));
    assert_eq!(h.take_events(), 0, "no room comes from a FIN");
    assert_ne!(h.snapshot().flags & flow_flags::FIN_ACKED, 0);
}

#[test]
fn fin_needs_window() {
    let mut h = Harness::of(FlowSetup { snd_wnd: 100, ..setup() });
    h.app.shut_wr = true;
    let sent = h.write(100);
    assert_eq!((sent.len(), sent[0].flags), (1, ACK | PSH));
    assert_eq!(h.rx(seg(0, 100, &[]).wnd(1))[0].flags, ACK | FIN);
}

#[test]
fn fin_ahead_of_a_hole_waits() {
    let mut h = Harness::new();
    let sent = h.rx(seg(1000, 0, &bytes(1000, 100)).with(ACK | FIN));
    assert_eq!((sent[0].ack, h.view().eof), (0, false));
    let sent = h.rx(seg(0, 0, &bytes(0, 1000)));
    assert_eq!((sent[0].ack, h.view().eof, h.view().rx_tail), (1101, true, 1100));
    assert_eq!((h.read(), h.fast.state.out_of_order.in_use()), (1100, 0));
    // An empty FIN ahead of a hole.
    let mut h = Harness::new();
    h.rx(seg(10, 0, &[]).with(ACK | FIN));
    assert!(!h.view().eof);
    h.rx(seg(0, 0, &bytes(0, 10)));
    assert!(h.view().eof);
}

#[test]
fn data_after_the_fin() {
    let mut h = Harness::new();
    h.rx(seg(0, 0, &[]).with(ACK | FIN));
    h.rx(seg(1, 0, &bytes(0, 10)));
    assert_eq!((h.dropped(Drop::AfterFin), h.view().rx_tail), (1, 0));
}

#[test]
fn fin_at_a_closed_window() {
    let mut h = Harness::of(FlowSetup { rx_bytes: 1024, rcv_wnd: 1024, ..setup() });
    h.rx(seg(0, 0, &bytes(0, 1024)));
    let sent = h.rx(seg(1024, 0, &[]).with(ACK | FIN));
    assert_eq!((sent[0].ack, sent[0].wnd, h.view().eof), (1025, 0, true));
    assert_eq!(h.read(), 1024);
}

#[test]
fn close_with_unread_data_resets() {
    let mut h = Harness::new();
    h.rx(seg(0, 0, &bytes(0, 10)));
    h.app.closed = true;
    h.update().unwrap();
    let sent = h.flush();
    assert_eq!((sent.len(), sent[0].flags, sent[0].seq), (1, RST | ACK, 0));
    assert_eq!(h.slow_names(), ["Aborted"]);
    assert_eq!(h.fast.counters().resets, 1);
    h.message(ToFast::Remove(FLOW));
    h.wait(1000);
    assert_eq!(h.slow_names(), ["Removed"]);
}

#[test]
fn data_for_a_closed_socket_resets() {
    let mut h = Harness::new();
    h.app.closed = true;
    h.update().unwrap();
    assert_eq!(h.flush()[0].flags, ACK | FIN);
    h.slow.clear();
    assert_eq!(h.rx(seg(0, 1, &[])), []);
    assert_eq!(h.slow_names(), ["Closing"]);
    let sent = h.rx(seg(0, 1, &bytes(0, 10)));
    assert_eq!((sent[0].flags, sent[0].seq), (RST | ACK, 1));
    assert_eq!((h.slow_names(), h.dropped(Drop::AfterFin)), (vec!["Aborted".into()], 1));
}

#[test]
fn abort() {
    let mut h = Harness::new();
    h.write(100);
    h.slow.clear();
    h.app.closed = true;
    h.app.abort = true;
    h.update().unwrap();
    let sent = h.flush();
    assert_eq!((sent[0].flags, sent[0].seq, h.slow_names()), (RST | ACK, 100, vec!["Aborted".into()]));
    // The slow path aborts.
    let mut h = Harness::new();
    h.message(ToFast::Abort { flow: FLOW, rst: false, errno: Some(110) });
    assert_eq!((h.flush().len(), h.view().errno, h.take_events()), (0, 110, event::ERROR));
    assert!(h.view().tx_closed);
    assert_eq!(h.rx(seg(0, 0, &bytes(0, 10))), []);
    assert_eq!(h.view().rx_tail, 0);
    let mut h = Harness::new();
    h.message(ToFast::Abort { flow: FLOW, rst: true, errno: None });
    h.message(ToFast::Remove(FLOW));
    assert_eq!(h.slow_names(), [""; 0], "not before its RST is out");
    assert_eq!((h.flush()[0].flags, h.take_events()), (RST | ACK, 0));
    assert_eq!(h.slow_names(), ["Removed"]);
}

#[test]
fn what_was_sent_before_an_abort_is_ahead_of_the_reset() {
    for unread in [false, true] {
        let mut h = Harness::of(FlowSetup { snd_wnd: 2500, ..setup() });
        if unread {
            h.rx(seg(0, 0, &bytes(0, 10)).wnd(2500));
        }
        h.slow.clear();
        h.app = AppUpdate { tx_tail: 3000, nodelay: true, closed: true, abort: !unread, ..AppUpdate::default() };
        h.update().unwrap();
        let sent = h.flush();
        let shown: Vec<_> = sent.iter().map(|s| (s.seq, s.data.len(), s.flags & RST)).collect();
        // The window cuts, and the rest is lost.
        assert_eq!(shown, [(0, 1000, 0), (1000, 1000, 0), (2000, 0, RST)]);
        assert_eq!(h.slow_names(), ["Active", "Aborted"]);
        h.slow.clear();
        h.message(ToFast::Remove(FLOW));
        h.wait(1000);
        assert_eq!(h.slow_names(), ["Removed"]);
    }
}

#[test]
fn contract_violations_abort_the_connection() {
    for (update, lie) in [
        (AppUpdate { tx_tail: RING + 1, ..AppUpdate::default() }, ContractViolation::TxTail),
        (AppUpdate { tx_tail: 99, rx_head: 5, ..AppUpdate::default() }, ContractViolation::TxTail),
        (AppUpdate { tx_tail: 100, rx_head: 11, ..AppUpdate::default() }, ContractViolation::RxHead),
        (AppUpdate { tx_tail: 100, rx_head: 4, ..AppUpdate::default() }, ContractViolation::RxHead),
        (AppUpdate { tx_tail: 100, rx_head: u32::MAX, ..AppUpdate::default() }, ContractViolation::RxHead),
    ] {
        let mut h = Harness::new();
        h.write(100);
        h.rx(seg(0, 0, &bytes(0, 10)));
        h.app.rx_head = 5;
        h.update().unwrap();
        h.slow.clear();
        h.app = update;
        assert_eq!(h.update(), Err(lie));
        assert_eq!((h.flush()[0].flags, h.slow_names()), (RST | ACK, vec!["Violated".into()]));
        assert_eq!((h.fast.counters().contract_violations, h.view().errno), (1, 103));
        assert_eq!(h.update(), Ok(()), "the dead say nothing more");
    }
    // Filling the whole ring is allowed, and acknowledged room may be used again.
    let mut h = Harness::new();
    h.write(RING);
    h.rx(seg(0, 1000, &[]));
    h.write(1000);
    h.app.tx_tail += 1;
    assert_eq!(h.update(), Err(ContractViolation::TxTail));
}
