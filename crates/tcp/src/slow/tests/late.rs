//! A poll may come too early or too late. What is due then happens, and nothing else.

use super::world::*;
use crate::flow::FlowId;
use crate::messages::ToSlow;
use crate::slow::congestion::Algorithm;
use crate::slow::{SlowConfig, Unanswered};

/// Flows of a server with data outstanding, looked at as soon as this configuration allows.
fn flows(config: SlowConfig, count: u16) -> Bench {
    let mut bench = Bench::with(config);
    bench.slow.listen(bench.now, SERVER, US, 80, false, 64, &mut bench.world).unwrap();
    let flows: Vec<FlowId> = (4000..4000 + count).map(|port| bench.child(port)).collect();
    flows.into_iter().for_each(|flow| bench.outstanding(flow, 1000));
    bench
}

/// µs from now to the next look.
fn wait(bench: &Bench) -> u64 {
    bench.slow.next_deadline().expect("active").since(bench.now)
}

#[test]
fn a_poll_long_after_a_time_out_times_out_and_one_before_its_time_does_nothing() {
    let mut bench = Bench::new();
    let flow = bench.client();
    bench.reading(flow).srtt_us = 10_000;
    bench.outstanding(flow, 20_000);
    let due = bench.slow.next_deadline();
    bench.now = bench.now.after(9_999);
    bench.poll();
    assert_eq!((bench.messages().len(), bench.slow.next_deadline()), (0, due), "before the control interval's end");
    bench.now = bench.now.after(1_000_000);
    bench.poll();
    assert!(bench.messages().iter().any(|message| message.starts_with("0:timeout 0")));
    assert_eq!(wait(&bench), 10_000);
}

#[test]
fn a_late_poll_asks_the_algorithms_of_round_trips_and_an_early_one_does_not() {
    let mut bench = Bench::with(SlowConfig { congestion: Algorithm::Timely, ..SlowConfig::default() });
    let flow = bench.client();
    let reading = bench.reading(flow);
    (reading.srtt_us, reading.min_rtt_us) = (2000, 2000);
    bench.outstanding(flow, 1000);
    assert_eq!(wait(&bench), 500, "no round trip was seen yet");
    bench.now = bench.now.after(499);
    bench.poll();
    assert_eq!((bench.messages().len(), wait(&bench)), (0, 1));
    bench.now = bench.now.after(5);
    bench.poll();
    assert_eq!((bench.messages(), wait(&bench)), (vec!["0:window 0".to_string()], 2000));
    // Another flow is due earlier, and this one is not asked with it.
    bench.slow.connect(bench.now, SERVER, PEER, 80, None, false, &mut bench.world).unwrap();
    let sent = bench.frame();
    let answer =
        Peer { ack: sent.seq.wrapping_add(1), flags: towpath_wire::flags::SYN | towpath_wire::flags::ACK, ..syn(7000) };
    bench.for_client(sent.source_port, answer);
    bench.world.sent.clear();
    bench.say(ToSlow::Active(FlowId(1)));
    bench.now = bench.now.after(600);
    let reading = bench.reading(flow);
    reading.srtt_us = 3000;
    bench.poll();
    assert_eq!(bench.messages(), [""; 0]);
    assert_eq!(wait(&bench), 500, "the second flow's next one");
}

/// A microsecond for each flow, if these are more than the interval.
#[test]
fn many_flows_are_looked_at_less_often() {
    for (congestion, count, interval_us) in [
        (Algorithm::Reno, 1, 2),
        (Algorithm::Reno, 2, 2),
        (Algorithm::Reno, 5, 5),
        (Algorithm::Timely, 1, 2),
        (Algorithm::Timely, 2, 2),
        (Algorithm::Timely, 5, 5),
    ] {
        let config = SlowConfig { control_interval_us: 2, congestion, ..SlowConfig::default() };
        let mut bench = flows(config, count);
        for _ in 0..3 {
            bench.now = bench.now.after(wait(&bench));
            bench.poll();
            assert_eq!(wait(&bench), interval_us, "{count} flows with {congestion}");
        }
    }
}

#[test]
fn a_peer_that_has_acknowledged_all_leaves_nothing_unanswered() {
    let mut bench = Bench::new();
    let flow = bench.client();
    bench.reading(flow).srtt_us = 10_000;
    bench.outstanding(flow, 1000);
    bench.pass_ms(700);
    assert_eq!(bench.slow.unanswered(CLIENT), Unanswered { timeouts: 2, probes: 0 });
    let reading = bench.reading(flow);
    reading.snd_una = reading.snd_max;
    bench.pass_ms(10);
    assert_eq!(bench.slow.sizes().0, 0, "off the list");
    assert_eq!(bench.slow.unanswered(CLIENT), Unanswered::default());
}

#[test]
fn probes_of_a_closed_window_are_unanswered_until_the_peer_is_heard() {
    let mut bench = Bench::new();
    let flow = bench.client();
    let reading = bench.reading(flow);
    (reading.srtt_us, reading.snd_wnd, reading.snd_queued) = (10_000, 0, reading.snd_queued.add(5000));
    bench.say(ToSlow::Active(flow));
    bench.pass_ms(2000);
    let probes = bench.messages().iter().filter(|message| *message == "0:probe 0").count();
    assert!(probes > 1);
    assert_eq!(bench.slow.unanswered(CLIENT), Unanswered { timeouts: 0, probes: probes as u32 });
}
