//! A panic in the middle of a call, which the thread catches.
use super::*;
use std::panic::{AssertUnwindSafe, catch_unwind};

const OTHER: FlowId = FlowId(5);

/// A call ends by a panic: a ring is not there.
fn fails<T>(call: impl FnOnce() -> T) {
    assert!(catch_unwind(AssertUnwindSafe(call)).is_err());
}

#[test]
fn a_connection_whose_bytes_may_not_be_there_is_reset() {
    let mut h = Harness::new();
    let ring = h.rings.rx.remove(&FLOW).unwrap();
    fails(|| h.batch(&[seg(0, 0, &bytes(0, 100))]));
    h.rings.rx.insert(FLOW, ring);
    assert_eq!(h.fast.recover(h.now), [FLOW]);
    let sent = h.flush();
    assert!(matches!(&sent[..], [only] if only.flags & RST != 0), "{sent:?}");
    assert!(h.take_events() & event::ERROR != 0, "the application is told");
    assert!(h.slow_names().contains(&"Aborted".into()));
    assert_eq!(h.fast.recover(h.now), [], "nothing else is half done");
}

#[test]
fn batches_that_have_come_to_their_end_are_nobodys_trouble() {
    let mut h = Harness::new();
    h.batch(&[seg(0, 0, &bytes(0, 100))]);
    assert_eq!(h.fast.recover(h.now), []);
    assert_eq!(h.read(), 100);
    assert!(h.flush().iter().all(|s| s.flags & RST == 0));
}

#[test]
fn a_flow_that_was_in_hand_is_reset_and_those_behind_it_send() {
    let mut h = Harness::new();
    let other = FlowSetup { flow: OTHER, tuple: FourTuple { local_port: 81, ..tuple() }, ..setup() };
    h.rings.tx.insert(OTHER, vec![7; RING as usize]);
    h.rings.rx.insert(OTHER, vec![0; RING as usize]);
    h.message(ToFast::Install(Box::new(other)));
    let update = AppUpdate { tx_tail: 3 * MSS, nodelay: true, ..AppUpdate::default() };
    for flow in [FLOW, OTHER] {
        h.fast.app_update(h.now, flow, update).unwrap();
    }
    let ring = h.rings.tx.remove(&FLOW).unwrap();
    fails(|| h.fast.transmit(h.now, 100, &h.rings, &mut h.tx));
    h.rings.tx.insert(FLOW, ring);
    h.tx.sent.clear();
    assert_eq!(h.fast.recover(h.now), [FLOW]);
    h.fast.transmit(h.now, 100, &h.rings, &mut h.tx);
    h.collect();
    let of =
        |port: u16| h.tx.sent.iter().filter_map(|(_, frame)| parse(frame).ok()).filter(move |s| s.source_port == port);
    assert_eq!(of(81).map(|s| s.payload_len).sum::<u32>(), 3 * MSS);
    assert!(of(80).all(|s| s.flags & RST != 0) && of(80).count() == 1);
    assert!(!h.fast.has_work());
}
