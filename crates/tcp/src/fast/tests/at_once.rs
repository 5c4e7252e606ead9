//! A reply goes at once only if nobody waits in front of it and no rule holds it back. All else of the flow is then as if it had
//! waited for its turn.
use super::*;

/// A flow whose peer is to be answered.
fn usual() -> FlowSetup {
    FlowSetup { timestamps: true, sack: true, ..setup() }
}

/// The peer sends a request.
fn request(h: &mut Harness, seq: u32, ack: u32) {
    h.batch(&[seg(seq, ack, &bytes(seq, 100)).ts(seq + 1, 0)]);
}

/// All that can be seen of a flow group and its flow.
fn state(h: &mut Harness) -> String {
    let lines = format!("{:?}", h.fast.table.get(FLOW));
    let (deadline, events, slow) = (h.fast.next_deadline(), h.take_events(), h.slow_names());
    format!("{lines} {deadline:?} {events} {slow:?} {:?} {:?}", h.view(), h.fast.counters())
}

#[test]
fn a_reply_leaves_all_as_a_turn_to_send_does() {
    for prediction in [true, false] {
        let config = FastConfig { seed: 1, prediction, ..FastConfig::default() };
        let [mut one, mut other] = [(); 2].map(|()| Harness::configured(usual(), config.clone()));
        for n in 0..20 {
            for h in [&mut one, &mut other] {
                // Acknowledgements that have waited in vain are forgotten before, and not in the turn that is compared.
                h.wait(700);
                request(h, 100 * n, 300 * n);
                h.app.rx_head = h.view().rx_tail;
            }
            let at_once = one.reply(300);
            assert_eq!((at_once.len(), at_once[0].data.len()), (1, 300), "it is there before any turn to send");
            assert!(one.flush().is_empty(), "and does not go once more");
            assert_eq!(other.write(300), at_once);
            assert_eq!(state(&mut one), state(&mut other), "request {n}");
        }
        assert_eq!(one.fast.counters().stages[Stage::Egress as usize], 20);
        // What is out is timed, and is sent again when the slow path says so.
        let again = ToFast::Timeout(FLOW, Window { cwnd: MSS, ..setup().window });
        one.message(again);
        assert_eq!(one.flush().iter().map(|s| (s.seq, s.data.len())).collect::<Vec<_>>(), [(5700, 300)]);
    }
}

#[test]
fn the_slow_path_watches_a_flow_that_has_replied_at_once() {
    let mut h = Harness::of(usual());
    h.slow_names();
    assert_eq!(h.reply(10).len(), 1);
    assert_eq!(h.slow_names(), ["Active"], "its retransmission timer");
    assert!(h.snapshot().flags & flow_flags::ACTIVE != 0);
}

/// What keeps a reply from going at once, and how many segments the next turn to send has then.
#[test]
fn what_a_rule_holds_back_waits() {
    type Prepare = fn(&mut Harness);
    let held: [(&str, FlowSetup, Prepare, usize); 11] = [
        ("something is out already", usual(), |h| drop(h.write(10)), 1),
        ("Nagle's algorithm", FlowSetup { nodelay: false, ..usual() }, |h| drop(h.write(10)), 0),
        ("the congestion window", FlowSetup { window: Window { cwnd: 250, ..setup().window }, ..usual() }, |_| (), 1),
        ("the peer's window", FlowSetup { snd_wnd: 250, ..usual() }, |_| (), 1),
        ("a closed window", FlowSetup { snd_wnd: 0, ..usual() }, |_| (), 0),
        ("a cork", usual(), |h| h.app.cork = true, 0),
        ("pacing", FlowSetup { window: Window { pacing: 1000, ..setup().window }, ..usual() }, |_| (), 1),
        ("a limit of the class", usual(), |h| h.message(ToFast::SetLimit { class: 0, bytes_per_s: 1000 }), 1),
        ("a FIN that follows", usual(), |h| h.app.shut_wr = true, 1),
        ("ECN", FlowSetup { ecn: Ecn::Classic, ..usual() }, |_| (), 1),
        ("a port without room", usual(), |h| h.tx.room = 0, 1),
    ];
    for prediction in [true, false] {
        for (why, setup, prepare, then) in held.clone() {
            let config = FastConfig { seed: 1, prediction, ..FastConfig::default() };
            let mut h = Harness::configured(setup, config);
            prepare(&mut h);
            assert!(h.reply(300).is_empty(), "{why}");
            h.tx.room = usize::MAX;
            assert_eq!(h.flush().len(), then, "{why}");
        }
    }
}

#[test]
fn a_long_reply_is_the_schedulers() {
    let mut h = Harness::of(usual());
    assert!(h.reply(MSS + 1).is_empty());
    assert_eq!(h.flush().iter().map(|s| s.data.len()).collect::<Vec<_>>(), [MSS as usize, 1]);
}

/// RFC 3168 §6.1.2: the flow's first new segment after a reduction says so, by whatever way it goes.
#[test]
fn a_reply_after_a_congestion_mark_carries_cwr() {
    let mut h = Harness::of(FlowSetup { ecn: Ecn::Classic, ..usual() });
    h.write(10);
    h.rx(seg(0, 10, &bytes(0, 100)).ts(1, 0).with(ACK | flags::ECE));
    h.app.rx_head = 100;
    assert!(h.reply(300).is_empty());
    let sent = h.flush();
    assert!(sent.len() == 1 && sent[0].flags & flags::CWR != 0, "{sent:?}");
}

/// Two flows, of which the second cannot go: the first would overtake it.
#[test]
fn nobody_is_overtaken() {
    let other = FlowId(2);
    let two = |class| {
        let mut h = Harness::of(usual());
        let tuple = FourTuple { local_port: 81, ..tuple() };
        h.rings.tx.insert(other, vec![0; RING as usize]);
        h.rings.rx.insert(other, vec![0; RING as usize]);
        h.message(ToFast::Install(Box::new(FlowSetup { flow: other, tuple, class, ..usual() })));
        h
    };
    let ports = |h: &mut Harness| {
        let sent = std::mem::take(&mut h.tx.sent);
        sent.iter().map(|(_, frame)| parse(frame).unwrap().source_port).collect::<Vec<_>>()
    };
    let long = AppUpdate { tx_tail: 4 * MSS, nodelay: true, ..AppUpdate::default() };
    for class in [0, 1] {
        let mut h = two(class);
        h.fast.app_update_at_once(h.now, other, long, &h.rings, &mut h.tx).unwrap();
        assert!(h.reply(300).is_empty(), "another flow of class {class} waits");
        h.fast.transmit(h.now, 10_000, &h.rings, &mut h.tx);
        assert_eq!(ports(&mut h), [81, 81, 81, 81, 80]);
    }
    // A port without room: the flow behind does not go first when there is room again.
    let mut h = two(0);
    let short = AppUpdate { tx_tail: 10, ..long };
    h.tx.room = 0;
    h.fast.app_update_at_once(h.now, other, short, &h.rings, &mut h.tx).unwrap();
    h.tx.room = usize::MAX;
    assert!(h.reply(300).is_empty());
    h.fast.transmit(h.now, 10_000, &h.rings, &mut h.tx);
    assert_eq!(ports(&mut h), [81, 80]);
    // Frames of the slow path go first, too.
    let mut h = two(0);
    let frame = h.frame(&seg(0, 0, &[]));
    h.message(ToFast::Transmit(PortId(1), frame.into()));
    assert!(h.reply(300).is_empty());
    assert_eq!(h.fast.transmit(h.now, 10_000, &h.rings, &mut h.tx), 2);
}

/// Replies are frames of the turn like others.
#[test]
fn replies_count_towards_the_budget_of_a_turn() {
    let mut h = Harness::of(usual());
    assert_eq!(h.reply(300).len(), 1);
    h.fill(4 * MSS);
    h.update_at_once().unwrap();
    assert_eq!(h.fast.transmit(h.now, 3, &h.rings, &mut h.tx), 3);
    assert_eq!(h.taken().len(), 2);
    assert_eq!(h.fast.transmit(h.now, 3, &h.rings, &mut h.tx), 2);
}
