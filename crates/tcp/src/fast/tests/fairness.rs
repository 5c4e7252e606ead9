//! Sharing a port between classes of flows: weights, many flows against one, rate limits.

use super::load::Load;
use super::*;

fn of_class(class: u16) -> FlowSetup {
    FlowSetup { class, ..setup() }
}

fn weight(class: u16, weight: u16) -> ToFast {
    ToFast::SetWeight { class, weight }
}

fn limit(class: u16, bytes_per_s: u64) -> ToFast {
    ToFast::SetLimit { class, bytes_per_s }
}

/// A port that takes `frames` every 10 µs, for `turns` such turns.
fn saturate(load: &mut Load, frames: usize, turns: usize) {
    for _ in 0..turns {
        load.port.room = frames;
        load.step();
        load.now = load.now.after(10);
    }
}

/// True if `is` is within `percent` of `shall`.
fn close(is: f64, shall: f64, percent: f64) -> bool {
    (is - shall).abs() <= shall * percent / 100.0
}

#[test]
fn weights_1_to_3_give_1_to_3_bytes() {
    let mut load = Load::new([of_class(0), of_class(1)]);
    load.message(weight(1, 3));
    saturate(&mut load, 7, 5_000);
    let [one, three] = load.bytes()[..] else { panic!() };
    assert!(one > 10_000_000);
    assert!(close(three as f64 / one as f64, 3.0, 1.0), "{one} {three}");
    // The weights change.
    load.message(weight(0, 5));
    load.message(weight(1, 0));
    let before = load.bytes();
    saturate(&mut load, 7, 5_000);
    let after = load.bytes();
    assert!(close((after[0] - before[0]) as f64 / (after[1] - before[1]) as f64, 5.0, 1.0), "0 counts as 1");
}

#[test]
fn a_flow_that_changes_its_class_has_the_new_ones_weight_and_limit() {
    let mut load = Load::new([of_class(0), of_class(1), of_class(1)]);
    load.message(weight(2, 3));
    saturate(&mut load, 7, 1_000);
    load.message(ToFast::SetClass(FlowId(2), 2));
    let before = load.bytes();
    saturate(&mut load, 7, 5_000);
    let got: Vec<f64> = load.bytes().iter().zip(&before).map(|(after, before)| (after - before) as f64).collect();
    assert!(close(got[1] / got[0], 1.0, 1.0) && close(got[2] / got[0], 3.0, 1.0), "{got:?}");
    // The flow leaves a class that waits for credit, and joins one.
    load.message(limit(0, 1_000));
    saturate(&mut load, 7, 100);
    load.message(ToFast::SetClass(FlowId(0), 1));
    load.message(ToFast::SetClass(FlowId(2), 0));
    load.message(limit(0, 0));
    load.message(limit(0, 1_000_000));
    let before = load.bytes();
    saturate(&mut load, 7, 50_000);
    let got: Vec<f64> = load.bytes().iter().zip(&before).map(|(after, before)| (after - before) as f64).collect();
    assert!(close(got[2], 500_000.0, 2.0) && close(got[0] / got[1], 1.0, 1.0), "{got:?}");
}

#[test]
fn a_thousand_flows_do_not_starve_one() {
    let mut load = Load::new((0..1001).map(|n| of_class(u16::from(n == 0))));
    saturate(&mut load, 32, 2_000);
    let bytes = load.bytes();
    let (one, others): (u64, u64) = (bytes[0], bytes[1..].iter().sum());
    assert!(close(one as f64, others as f64, 1.0), "{one} {others}");
    let (min, max) = (bytes[1..].iter().min().unwrap(), bytes[1..].iter().max().unwrap());
    assert!(max - min <= 16 * 1448, "and among themselves they take turns: {min} {max}");
}

#[test]
fn small_segments_get_no_less_than_large_ones() {
    let mut load = Load::new([of_class(1), of_class(2)]);
    load.message(ToFast::SetMss(FlowId(0), 100));
    saturate(&mut load, 16, 5_000);
    let frames: Vec<u64> = load.port.sent.iter().map(|s| s.bytes + 54 * s.frames.len() as u64).collect();
    assert!(close(frames[0] as f64, frames[1] as f64, 1.0), "bytes on the wire: {frames:?}");
}

#[test]
fn a_class_that_is_alone_has_the_port() {
    let mut load = Load::new([of_class(7)]);
    load.message(weight(7, 1));
    load.message(weight(3, 60_000));
    load.port.room = 100;
    assert_eq!(load.step(), 100);
    let frames = &load.port.sent[0].frames;
    assert_eq!(frames.len(), 100);
}

#[test]
fn a_rate_limit_holds_for_the_class_within_1_percent() {
    for rate in [2_000, 1_000_000, 125_000_000, 1_250_000_000] {
        let mut load = Load::new([of_class(1), of_class(1), of_class(1)]);
        load.message(limit(1, rate));
        let us = (400 * 1448 * 1_000_000 / rate).max(20_000);
        load.run(us, 0);
        let (sent, shall) = (load.bytes().iter().sum::<u64>() as f64, rate as f64 * us as f64 / 1e6);
        assert!(close(sent, shall, 1.0), "{rate} B/s: {sent} of {shall}");
        let (min, max) = (load.bytes().iter().min().copied().unwrap(), load.bytes().iter().max().copied().unwrap());
        assert!(max - min <= 40 * 1448, "shared by its flows: {min} {max}");
        load.message(limit(1, 0));
        load.port.room = 200;
        assert_eq!(load.step(), 200, "no limit any more");
    }
}

#[test]
fn a_limited_class_leaves_the_rest_to_others() {
    let mut load = Load::new([of_class(1), of_class(2)]);
    load.message(limit(1, 10_000_000));
    saturate(&mut load, 7, 10_000);
    let bytes = load.bytes();
    assert!(close(bytes[0] as f64, 1_000_000.0, 1.5), "a tenth of a second at 10 MB/s: {bytes:?}");
    assert!(bytes[0] + bytes[1] >= 69_990 * 1448, "the port was never idle: {bytes:?}");
}

#[test]
fn pacing_holds_inside_a_limit_and_the_other_way_round() {
    let paced = |pacing| FlowSetup { window: Window { pacing, ..setup().window }, ..of_class(1) };
    let mut load = Load::new([paced(1_000_000), paced(50_000_000), paced(50_000_000)]);
    load.message(limit(1, 20_000_000));
    load.run(1_000_000, 0);
    let bytes = load.bytes();
    assert!(close(bytes.iter().sum::<u64>() as f64, 20e6, 1.0), "{bytes:?}");
    assert!(bytes[0] as f64 <= 1.01e6, "{bytes:?}");
}

/// One flow whose class may send 1000 bytes per s, with more to send.
fn limited() -> Harness {
    let mut h = Harness::of(of_class(1));
    h.message(limit(1, 1000));
    assert_eq!(h.write(5000).len(), 1);
    assert!(!h.fast.has_work(), "the worker may sleep");
    h
}

#[test]
fn a_limit_holds_no_acknowledgement_back() {
    let mut h = limited();
    let out = h.rx(seg(0, 0, &bytes(0, 10)));
    assert_eq!(out.iter().map(|s| (s.ack, s.data.len())).collect::<Vec<_>>(), [(10, 0)], "no data to carry it");
    let out = h.rx(seg(30, 0, &bytes(30, 10)));
    assert_eq!(out.iter().map(|s| (s.ack, s.data.len())).collect::<Vec<_>>(), [(10, 0)]);
    assert!(!h.fast.has_work());
    assert_eq!(h.wait(1_000_000).iter().map(|s| s.data.len()).collect::<Vec<_>>(), [1000], "the class's time has come");
    (h.app.rx_head, h.app.closed, h.app.abort) = (10, true, true);
    h.update().unwrap();
    let out = h.flush();
    assert_eq!((out.len(), out[0].flags & RST), (1, RST));
    assert_eq!(h.wait(2_000_000), []);
}

#[test]
fn a_removed_flow_leaves_a_limited_class() {
    let mut h = limited();
    h.rx(seg(0, 1000, &[]));
    assert_ne!(h.snapshot().flags & flow_flags::LIMIT_WAIT, 0);
    h.slow.clear();
    h.message(ToFast::Remove(FLOW));
    assert_eq!(h.slow_names(), [""; 0], "it is in the class's queue");
    assert_eq!(h.wait(1_000_000), []);
    assert_eq!(h.slow_names(), ["Removed"]);
    assert_eq!(h.fast.next_deadline(), None);
}

#[test]
fn what_a_limit_holds_back_is_not_stuck() {
    let mut h = limited();
    h.slow.clear();
    h.rx(seg(0, 1000, &[]));
    h.message(ToFast::Deactivate(FLOW));
    assert_eq!(h.slow_names(), [""; 0]);
    assert_eq!(h.wait(1_000_000).len(), 1);
    assert_eq!(h.slow_names(), ["Active"]);
    assert_ne!(h.snapshot().flags & flow_flags::LIMIT_WAIT, 0, "the next one waits again");
}

/// A flow of a class whose credit is used up, with a segment to send.
fn waiting() -> Harness {
    let mut h = Harness::of(of_class(0));
    h.message(limit(0, 1_000_000));
    assert_eq!((h.write(1000).len(), h.write(1000).len()), (1, 0));
    assert_ne!(h.snapshot().flags & flow_flags::LIMIT_WAIT, 0);
    h
}

#[test]
fn an_acknowledgement_bypasses_the_limit_and_data_do_not() {
    let mut h = waiting();
    let out = h.rx(seg(10, 0, &bytes(10, 10)));
    assert_eq!(out.iter().map(|s| s.data.len()).collect::<Vec<_>>(), [0]);
    assert_ne!(h.snapshot().flags & flow_flags::LIMIT_WAIT, 0, "its data still wait");
    assert_eq!(h.wait(1100).iter().map(|s| s.data.len()).collect::<Vec<_>>(), [1000]);
}

#[test]
fn an_acknowledgement_that_bypasses_the_limit_waits_for_its_port() {
    let mut h = waiting();
    h.tx.full = Some(PortId(1));
    assert_eq!(h.rx(seg(10, 0, &bytes(10, 10))), []);
    assert!(h.fast.has_work());
    h.tx.full = None;
    assert_eq!(h.flush().iter().map(|s| s.data.len()).collect::<Vec<_>>(), [0]);
    assert_eq!(h.flush(), []);
    // More acknowledgements than a turn lets go.
    let mut h = waiting();
    let batch: Vec<_> = (1..=15).map(|n| seg(n * 20, 0, &bytes(n * 20, 10))).collect();
    h.fast.state.config.segments_per_turn = 4;
    h.batch(&batch);
    assert_eq!(h.flush().len(), 15);
}

/// A turn that ends by a panic leaves flows that were about to be served. They are in no queue until the next turn.
#[test]
fn flows_that_a_panic_has_left_unserved_keep_the_worker_awake() {
    let mut h = Harness::new();
    h.tx.full = Some(PortId(1));
    assert_eq!(h.write(1000), []);
    assert!(h.fast.state.scheduler.by(STAGES.post).serve(PortId(1)));
    assert!(h.fast.has_work());
    h.tx.full = None;
    assert_eq!(h.flush().iter().map(|s| s.data.len()).collect::<Vec<_>>(), [1000]);
    assert!(!h.fast.has_work());
}
