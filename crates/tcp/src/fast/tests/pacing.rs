//! Pacing: rates from end to end of the range, in virtual time.

use super::load::Load;
use super::*;

fn paced(pacing: u64) -> FlowSetup {
    FlowSetup { window: Window { pacing, ..setup().window }, ..setup() }
}

/// True if `is` is within 1 % of `shall`.
fn close(is: u64, shall: u64) -> bool {
    is.abs_diff(shall) * 100 <= shall
}

#[test]
fn any_rate_from_1_kbit_to_100_gbit_per_second_is_kept_within_1_percent() {
    // Bytes per second, and a time in µs: about 200 segments each at least.
    for (rate, us) in [
        (125, 3_600_000_000u64),
        (1_000, 600_000_000),
        (12_500, 60_000_000),
        (125_000, 5_000_000),
        (1_250_000, 2_000_000),
        (12_500_000, 200_000),
        (125_000_000, 100_000),
        (1_250_000_000, 20_000),
        (3_333_333_333, 10_000),
        (12_500_000_000, 4_000),
    ] {
        let mut load = Load::new([paced(rate)]);
        load.run(us, 0);
        let shall = (u128::from(rate) * u128::from(us) / 1_000_000) as u64;
        let sent = load.bytes()[0];
        assert!(close(sent, shall), "{rate} B/s: {sent} of {shall}");
    }
}

#[test]
fn segments_are_spread_evenly() {
    // 1 kbit/s: a full segment every 11.584 s, never two together.
    let mut load = Load::new([paced(125)]);
    load.run(120_000_000, 0);
    let times: Vec<u64> = load.port.sent[0].frames.iter().map(|(at, _)| *at).collect();
    assert!(times.len() > 10);
    assert!(times.windows(2).all(|pair| pair[1] - pair[0] == 11_584_000), "{times:?}");
    // 100 Mbit/s: a segment every 115.84 µs.
    let mut load = Load::new([paced(12_500_000)]);
    load.run(100_000, 0);
    let times: Vec<u64> = load.port.sent[0].frames.iter().map(|(at, _)| *at).collect();
    assert!(times.windows(2).all(|pair| (115..=117).contains(&(pair[1] - pair[0]))), "{times:?}");
    // 10 Gbit/s: no more than 16 µs' worth and a segment at once.
    let mut load = Load::new([paced(1_250_000_000)]);
    load.run(10_000, 0);
    let mut at_once = HashMap::new();
    for (at, bytes) in &load.port.sent[0].frames {
        *at_once.entry(*at).or_insert(0) += bytes;
    }
    assert!(at_once.values().all(|bytes| *bytes <= 20_000 + 1448), "{at_once:?}");
}

#[test]
fn several_flows_keep_each_its_own_rate() {
    let rates = [10_000, 1_000_000, 50_000_000, 123_456_789, 400_000_000];
    let mut load = Load::new(rates.map(paced));
    load.run(2_000_000, 0);
    for (sent, rate) in load.bytes().into_iter().zip(rates) {
        assert!(sent.abs_diff(2 * rate) <= 2 * rate / 100 + 1448, "{rate} B/s: {sent}");
    }
}

#[test]
fn a_core_that_comes_late_makes_it_good() {
    for late in [50, 300, 900] {
        let mut load = Load::new([paced(125_000_000), paced(2_000_000)]);
        load.run(1_000_000, late);
        let sent = load.bytes();
        assert!(close(sent[0], 125_000_000) && close(sent[1], 2_000_000), "{late} µs late: {sent:?}");
    }
    // The burst is limited.
    let mut load = Load::new([paced(125_000_000)]);
    load.step();
    load.now = load.now.after(1_000_000);
    load.run(1, 0);
    assert!(load.bytes()[0] < 130_000, "a millisecond's worth: {}", load.bytes()[0]);
}

/// One flow at 1 MB/s: a segment of 1000 bytes per ms.
fn slowly() -> Harness {
    Harness::of(paced(1_000_000))
}

#[test]
fn silence_saves_no_credit_up() {
    let mut h = slowly();
    h.wait(10_000_000);
    assert_eq!(h.write(5000).len(), 1);
    // The worth of 16 µs.
    assert_eq!(h.wait(983).len(), 0);
    assert_eq!(h.wait(1).len(), 1);
    assert_eq!(h.wait(1000).len(), 1);
}

#[test]
fn acknowledgements_resets_and_probes_are_not_paced() {
    let mut h = slowly();
    assert_eq!(h.write(5000).len(), 1);
    let out = h.rx(seg(10, 0, &bytes(10, 20)));
    assert_eq!((out.len(), out[0].data.len()), (1, 0), "an acknowledgement of what came out of order");
    let out = h.rx(seg(0, 0, &bytes(0, 10)));
    assert_eq!((out.len(), out[0].ack, out[0].data.len()), (1, 30, 0));
    h.message(ToFast::SendAck(FLOW));
    assert_eq!(h.flush().len(), 1);
    h.message(ToFast::ProbeWindow(FLOW));
    h.rx(seg(30, 0, &[]).wnd(0));
    let out = h.flush();
    assert!(out.iter().all(|s| s.data.len() <= 1), "{out:?}");
    (h.app.rx_head, h.app.closed, h.app.abort) = (30, true, true);
    h.update().unwrap();
    let out = h.flush();
    assert_eq!((out.len(), out[0].flags & RST), (1, RST));
    assert_eq!(h.wait(5000), []);
}

#[test]
fn an_owed_acknowledgement_does_not_wait_for_paced_data() {
    let mut h = slowly();
    assert_eq!(h.write(5000).len(), 1);
    assert_eq!(h.rx(seg(0, 0, &bytes(0, 10))), []);
    let out = h.wait(1000);
    assert_eq!(out.iter().map(|s| s.ack).collect::<Vec<_>>(), [10], "it goes with data that come in time");
    let mut h = Harness::of(paced(100_000));
    h.write(5000);
    assert_eq!(h.rx(seg(0, 0, &bytes(0, 10))), []);
    let out = h.wait(1000);
    assert_eq!((out.len(), out[0].ack, out[0].data.len()), (1, 10, 0));
}

#[test]
fn retransmissions_are_paced() {
    let mut h = slowly();
    h.write(2000);
    assert_eq!(h.wait(1000).len(), 1);
    h.message(ToFast::Timeout(FLOW, Window { cwnd: 5000, ssthresh: 5000, ..paced(1_000_000).window }));
    assert_eq!(h.flush(), []);
    assert_eq!(h.wait(1000).iter().map(|s| s.seq).collect::<Vec<_>>(), [0]);
    assert_eq!(h.wait(1000).iter().map(|s| s.seq).collect::<Vec<_>>(), [1000]);
    assert_eq!(h.snapshot().retransmits, 2);
}

#[test]
fn a_new_rate_counts_at_once() {
    let mut h = Harness::of(paced(125));
    assert_eq!(h.write(8000).len(), 1);
    assert_eq!(h.wait(100_000), []);
    let window = |pacing| ToFast::SetWindow(FLOW, paced(pacing).window);
    // 8 s at the old rate; the debt of 987 bytes is paid back at the new one.
    h.message(window(1_000_000));
    assert_eq!(h.flush(), []);
    assert_eq!(h.wait(986), []);
    assert_eq!(h.wait(2).len(), 1);
    assert_eq!(h.wait(1000).len(), 1);
    assert_eq!(h.snapshot().pacing, 1_000_000);
    h.message(window(0));
    assert_eq!(h.flush().len(), 5, "no pacing any more");
    assert_eq!(h.fast.next_deadline(), None);
}

#[test]
fn a_removed_flow_leaves_the_wheel() {
    let mut h = slowly();
    h.write(5000);
    assert!(h.fast.next_deadline().is_some());
    h.slow.clear();
    h.message(ToFast::Remove(FLOW));
    assert_eq!(h.slow_names(), ["Removed"]);
    assert_eq!((h.fast.next_deadline(), h.wait(10_000)), (None, vec![]));
}

#[test]
fn what_pacing_holds_back_is_not_stuck() {
    let mut h = slowly();
    h.write(2000);
    h.slow.clear();
    h.rx(seg(0, 1000, &[]));
    assert_ne!(h.snapshot().flags & flow_flags::PACE_WAIT, 0);
    h.message(ToFast::Deactivate(FLOW));
    assert_eq!(h.slow_names(), [""; 0], "the wheel sees to it, not the slow path");
    assert_eq!(h.wait(1000).len(), 1);
    assert_eq!(h.slow_names(), ["Active"]);
    assert_eq!(h.snapshot().flags & flow_flags::PACE_WAIT, 0);
}

#[test]
fn a_keepalive_probe_is_not_paced() {
    let mut h = slowly();
    h.write(1000);
    h.rx(seg(0, 1000, &[]));
    h.message(ToFast::KeepAlive(FLOW));
    let sent = h.flush();
    assert_eq!((sent.len(), sent[0].seq, sent[0].data.len()), (1, 999, 0));
}

/// A sender that its port has kept waiting gets the credit of that time. One that had nothing to send gets a quantum.
#[test]
fn a_full_port_costs_a_flow_and_its_class_no_credit() {
    for class in [false, true] {
        let new = || {
            let mut h = if class { Harness::new() } else { slowly() };
            if class {
                h.message(ToFast::SetLimit { class: 0, bytes_per_s: 1_000_000 });
            }
            h
        };
        let mut h = new();
        h.now = h.now.after(1000);
        assert_eq!(h.write(5000).len(), 1, "class {class}");
        let mut h = new();
        h.tx.full = Some(PortId(1));
        assert_eq!(h.write(5000), []);
        h.tx.full = None;
        assert_eq!(h.wait(1000).len(), 2, "class {class}");
    }
}
