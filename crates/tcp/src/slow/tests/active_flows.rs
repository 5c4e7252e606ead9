//! Active flows, which have data outstanding.

use super::world::*;
use crate::flow::{FlowId, FlowSnapshot, Owner, flow_flags as bit};
use crate::messages::ToSlow;
use crate::slow::{Route, SendStats, SlowConfig, TcpState};

/// Advances time by `ms` in steps of 10 ms. Returns each message with its time in ms.
fn watch(bench: &mut Bench, ms: u64) -> Vec<(u64, String)> {
    let mut seen = Vec::new();
    for t in (10..=ms).step_by(10) {
        bench.pass_ms(10);
        seen.extend(bench.messages().into_iter().map(|message| (t, message)));
    }
    seen
}

fn client() -> (Bench, FlowId) {
    let mut bench = Bench::new();
    let flow = bench.client();
    bench.reading(flow).srtt_us = 10_000;
    (bench, flow)
}

#[test]
fn an_idle_flow_leaves_the_list() {
    let (mut bench, flow) = client();
    bench.outstanding(flow, 0);
    assert_eq!(watch(&mut bench, 1000), [(10, "0:deactivate 0".into())]);
    assert_eq!(bench.slow.next_deadline(), None, "no timer runs for it");
}

/// RFC 9293 MUST-20 (R2), SHLD-11.
#[test]
fn time_outs_back_off_and_end_in_etimedout() {
    let (mut bench, flow) = client();
    bench.outstanding(flow, 20_000);
    let mut seen = watch(&mut bench, 1_000_000);
    // Meanwhile smaller segments are tried.
    seen.retain(|(_, message)| !message.contains("mss"));
    let times: Vec<u64> = seen.iter().map(|(t, _)| *t).collect();
    let mut expected: Vec<u64> = (0..15)
        .scan(0, |sum, i| {
            *sum += (200u64 << i).min(120_000);
            Some(*sum)
        })
        .collect();
    let end = expected[14] + 120_000;
    expected.extend([end, end]);
    assert_eq!(times, expected);
    assert_eq!(seen[0].1, "0:timeout 0 cwnd 1448 ssthresh 14003");
    assert_eq!(seen[15].1, "0:abort 0 rst false errno 110");
    assert_eq!(seen[16].1, "0:remove 0");
    assert_eq!(bench.slow.counters().timeouts, 15);
    assert!(bench.said().is_empty());
    bench.say(ToSlow::Removed(flow));
    assert_eq!(bench.said(), [Said::Released(CLIENT, Some(flow))]);
}

/// RFC 9293 MUST-20 (R1), SHLD-10.
#[test]
fn the_third_time_out_asks_for_the_route_again() {
    let (mut bench, flow) = client();
    bench.outstanding(flow, 1000);
    let link = crate::flow::Link { destination: [9; 6], ..LINK };
    bench.world.route = Some(Route::Via { link, source: US, mtu: 1500 });
    let mut seen = watch(&mut bench, 2000);
    seen.retain(|(_, message)| !message.contains("mss"));
    let times: Vec<_> = seen.iter().map(|(at, message)| (*at, message.split(' ').next().unwrap())).collect();
    assert_eq!(times, [(200, "0:timeout"), (600, "0:timeout"), (1400, "0:timeout"), (1400, "0:relink")]);
}

/// RFC 9293 SHLD-9, SHLD-20: a report at R1 (1.4 s), long before R2, each time that R1 is reached.
#[test]
fn a_silent_peer_is_reported_before_the_connection_ends() {
    use crate::flow::SocketOptions;
    for wanted in [false, true] {
        let (mut bench, flow) = client();
        let options = SocketOptions { soft_errors: wanted, ..SocketOptions::default() };
        bench.slow.set_options(bench.now, CLIENT, options, &mut bench.world);
        bench.outstanding(flow, 20_000);
        watch(&mut bench, 1390);
        assert_eq!((bench.said(), bench.slow.unanswered(CLIENT).timeouts), (vec![], 2));
        watch(&mut bench, 60_000);
        let expected = if wanted { vec![Said::SoftError(CLIENT, 110)] } else { vec![] };
        assert_eq!((bench.said(), bench.states()), (expected.clone(), vec![TcpState::Established]));
        assert_eq!(bench.slow.connections()[0].unanswered.timeouts, 8, "for towpath sockets");
        let reading = bench.reading(flow);
        reading.snd_una = reading.snd_una.add(1000);
        watch(&mut bench, 10);
        assert_eq!(bench.slow.unanswered(CLIENT), crate::slow::Unanswered::default(), "it has answered");
        watch(&mut bench, 2000);
        assert_eq!(bench.said(), expected);
    }
}

#[test]
fn a_lone_segment_is_probed_once_before_its_time_out() {
    let (mut bench, flow) = client();
    let reading = bench.reading(flow);
    // The time-out is 900 ms. Two round trips and a delayed acknowledgement are 800 ms.
    (reading.srtt_us, reading.rttvar_us, reading.flags) = (300_000, 150_000, bit::SACK);
    bench.outstanding(flow, 1000);
    let seen = watch(&mut bench, 3000);
    let seen: Vec<_> = seen.iter().map(|(at, message)| (*at, message.split(' ').next().unwrap())).collect();
    assert_eq!(seen, [(800, "0:tail"), (1700, "0:timeout")], "and the time-out is not backed off");
    // The fast path handles several segments.
    let (mut bench, flow) = client();
    let reading = bench.reading(flow);
    (reading.srtt_us, reading.rttvar_us, reading.flags) = (300_000, 150_000, bit::SACK);
    bench.outstanding(flow, 3000);
    assert_eq!(watch(&mut bench, 1000)[0].0, 900);
}

fn stats(bench: &mut Bench, flow: FlowId) -> SendStats {
    let snapshot = *bench.reading(flow);
    bench.slow.send_stats(bench.now, CLIENT, &snapshot)
}

/// For `TCP_INFO`.
#[test]
fn time_outs_are_counted_and_timed_until_progress() {
    let (mut bench, flow) = client();
    bench.outstanding(flow, 1000);
    bench.pass_ms(1000);
    let usage = stats(&mut bench, flow);
    assert_eq!((usage.timeouts, usage.timeout_series), (2, 1));
    let reading = bench.reading(flow);
    reading.snd_una = reading.snd_max;
    reading.segments_heard += 1;
    bench.pass_ms(1000);
    let usage = stats(&mut bench, flow);
    // From the first at 200 ms to the look after 1,000 ms.
    assert!((800_000..=820_000).contains(&usage.timeout_us), "{}", usage.timeout_us);
    assert_eq!((usage.timeouts, usage.timeout_series), (2, 1));
    assert!(usage.heard_us < 1_010_000 && usage.data_silent_us == 2_000_000, "{usage:?}");
}

/// For `TCP_INFO`.
#[test]
fn what_a_flow_makes_of_its_path_is_measured() {
    let (mut bench, flow) = client();
    bench.pass_ms(5000);
    let silent = 5_000_000;
    let quiet = SendStats { silent_us: silent, data_silent_us: silent, heard_us: silent, ..SendStats::default() };
    assert_eq!(stats(&mut bench, flow), quiet);
    // 1,000 bytes in 10 ms, ten times, with more waiting as the window is full.
    bench.outstanding(flow, 20_000);
    let reading = bench.reading(flow);
    (reading.snd_queued, reading.snd_wnd) = (reading.snd_max.add(50_000), 20_000);
    for _ in 0..10 {
        bench.pass_ms(10);
        let reading = bench.reading(flow);
        reading.bytes_acked += 1000;
        reading.snd_una = reading.snd_una.add(1000);
        reading.snd_max = reading.snd_max.add(1000);
    }
    bench.pass_ms(10);
    let usage = stats(&mut bench, flow);
    assert_eq!((usage.delivery_rate, usage.app_limited), (100_000, false));
    assert_eq!((usage.busy_us, usage.window_limited_us, usage.silent_us), (110_000, 110_000, 0));
    // The rest is sent at once. Then the flow is no longer busy.
    let reading = bench.reading(flow);
    reading.bytes_acked += 70_000;
    reading.snd_max = reading.snd_queued;
    reading.snd_una = reading.snd_queued;
    bench.pass_ms(1000);
    let usage = stats(&mut bench, flow);
    assert_eq!((usage.delivery_rate, usage.app_limited), (7_000_000, true));
    assert_eq!((usage.busy_us, usage.window_limited_us, usage.silent_us), (120_000, 110_000, 990_000));
}

#[test]
fn progress_starts_the_timer_over() {
    let (mut bench, flow) = client();
    bench.outstanding(flow, 20_000);
    for _ in 0..20 {
        assert!(watch(&mut bench, 190).is_empty());
        let reading = bench.reading(flow);
        reading.snd_una = reading.snd_una.add(1000);
        if reading.snd_una == reading.snd_max {
            break;
        }
    }
    assert_eq!(watch(&mut bench, 1000), [(10, "0:deactivate 0".into())]);
}

#[test]
fn the_timer_starts_over_for_a_flow_that_comes_back() {
    let (mut bench, flow) = client();
    bench.outstanding(flow, 0);
    watch(&mut bench, 5000);
    bench.outstanding(flow, 100);
    assert_eq!(watch(&mut bench, 200)[0].0, 200);
}

#[test]
fn an_orphan_gets_fewer_attempts_and_no_errno() {
    let (mut bench, flow) = client();
    bench.say(ToSlow::AppClosed(flow));
    bench.outstanding(flow, 100);
    let seen = watch(&mut bench, 200_000);
    assert_eq!(seen.len(), 8 + 2);
    assert_eq!(seen[8].1, "0:abort 0 rst false errno 0");
    assert_eq!(seen[8].0, 200 * 511);
}

#[test]
fn a_fin_that_waits_keeps_the_flow_on_the_list() {
    let (mut bench, flow) = client();
    bench.reading(flow).flags = bit::FIN_WANTED;
    bench.outstanding(flow, 0);
    let probes = [(210, "0:probe 0".into()), (410, "0:probe 0".into())];
    assert_eq!(watch(&mut bench, 500), probes, "behind a window too small for it");
    bench.reading(flow).flags = bit::FIN_WANTED | bit::FIN_SENT;
    bench.outstanding(flow, 1);
    let seen = watch(&mut bench, 500);
    assert!(seen[0].1.starts_with("0:timeout"), "{seen:?}");
}

#[test]
fn a_closed_window_is_probed() {
    let (mut bench, flow) = client();
    let reading = bench.reading(flow);
    reading.snd_wnd = 0;
    reading.snd_queued = reading.snd_max.add(500);
    bench.say(ToSlow::Active(flow));
    bench.pass_ms(10);
    assert_eq!(watch(&mut bench, 250), [(200, "0:probe 0".into())]);
    // The probe's byte is in flight. The peer answers but accepts nothing.
    let reading = bench.reading(flow);
    (reading.snd_max, reading.segments_heard) = (reading.snd_max.add(1), 1);
    assert_eq!(watch(&mut bench, 1200), [(350, "0:probe 0".into()), (1150, "0:probe 0".into())]);
    // The window opens. The byte is ordinary data now, and its timer starts here.
    bench.reading(flow).snd_wnd = 5000;
    let seen = watch(&mut bench, 250);
    assert_eq!(seen, [(200, "0:timeout 0 cwnd 1448 ssthresh 2896".into())]);
}

#[test]
fn a_window_that_closes_again_is_probed_from_the_start() {
    let (mut bench, flow) = client();
    let reading = bench.reading(flow);
    (reading.snd_wnd, reading.snd_queued) = (0, reading.snd_max.add(500));
    bench.say(ToSlow::Active(flow));
    assert_eq!(watch(&mut bench, 4000).len(), 4);
    let reading = bench.reading(flow);
    (reading.snd_wnd, reading.snd_max) = (100, reading.snd_una.add(100));
    assert!(watch(&mut bench, 100).is_empty());
    let reading = bench.reading(flow);
    (reading.snd_wnd, reading.snd_una) = (0, reading.snd_max);
    assert_eq!(watch(&mut bench, 250), [(210, "0:probe 0".into())]);
}

#[test]
fn a_window_too_small_for_a_segment_is_probed_as_its_update_may_be_lost() {
    let (mut bench, flow) = client();
    let reading = bench.reading(flow);
    reading.snd_wnd = 1200;
    reading.snd_queued = reading.snd_max.add(5000);
    bench.say(ToSlow::Active(flow));
    bench.pass_ms(10);
    assert_eq!(watch(&mut bench, 250), [(200, "0:probe 0".into())]);
}

#[test]
fn a_peer_that_answers_no_probe_is_given_up() {
    let (mut bench, flow) = client();
    let reading = bench.reading(flow);
    reading.snd_wnd = 0;
    reading.snd_queued = reading.snd_max.add(500);
    bench.say(ToSlow::Active(flow));
    let seen = watch(&mut bench, 1_200_000);
    assert_eq!(seen.iter().filter(|(_, m)| m == "0:probe 0").count(), 15);
    assert_eq!(seen[15].1, "0:abort 0 rst false errno 110");
    assert_eq!(bench.states(), [TcpState::Closed]);
}

/// RFC 9293 MUST-35, SHLD-17.
#[test]
fn a_window_that_shrank_over_data_in_flight_is_probed() {
    let (mut bench, flow) = client();
    bench.outstanding(flow, 5000);
    bench.reading(flow).snd_wnd = 0;
    assert_eq!(watch(&mut bench, 250), [(210, "0:probe 0".into())]);
}

#[test]
fn many_flows_are_looked_at_in_one_interval() {
    let mut bench = Bench::new();
    let flows: Vec<FlowId> = (0..100)
        .map(|i| {
            bench.slow.connect(bench.now, Owner(50 + i), PEER, 80, None, false, &mut bench.world).unwrap();
            let sent = bench.frame();
            let answer = Peer { ack: sent.seq.wrapping_add(1), flags: 18, ..syn(7000) };
            bench.for_client(sent.source_port, answer);
            FlowId(i as u32)
        })
        .collect();
    bench.messages();
    flows.iter().for_each(|flow| bench.say(ToSlow::Active(*flow)));
    assert_eq!(bench.slow.sizes().0, 100);
    bench.pass_ms(10);
    assert_eq!(bench.messages().len(), 100);
    assert_eq!(bench.slow.sizes().0, 0);
}

#[test]
fn very_many_flows_are_looked_at_less_often() {
    let mut bench =
        Bench::with(SlowConfig { max_flows: 30_000, first_port: 1024, last_port: 60_000, ..SlowConfig::default() });
    let mut flows = Vec::new();
    for i in 0..20_000 {
        bench.slow.connect(bench.now, Owner(50 + i), PEER, 80, None, false, &mut bench.world).unwrap();
        let sent = bench.frame();
        bench.for_client(sent.source_port, Peer { ack: sent.seq.wrapping_add(1), flags: 18, ..syn(7000) });
        let flow = FlowId(i as u32);
        let una = bench.world.setups[&flow].snd_start;
        let end = una.add(1);
        let busy = FlowSnapshot { snd_una: una, snd_max: end, snd_queued: end, snd_wnd: 9, ..Default::default() };
        bench.readings.0.insert(flow, busy);
        bench.world.sent.clear();
        flows.push(flow);
    }
    flows.iter().for_each(|flow| bench.say(ToSlow::Active(*flow)));
    bench.pass_ms(10);
    assert_eq!(bench.slow.next_deadline(), Some(bench.now.after(20_000)), "20 ms for 20,000 flows");
}

/// What waits for pacing or for a rate limit waits by itself. What is in flight already has its timer.
#[test]
fn a_flow_that_is_held_back_is_not_probed_but_what_it_has_sent_times_out() {
    for held in [bit::PACE_WAIT, bit::LIMIT_WAIT, bit::PACE_WAIT | bit::LIMIT_WAIT] {
        let (mut bench, flow) = client();
        bench.outstanding(flow, 0);
        let reading = bench.reading(flow);
        (reading.snd_queued, reading.flags) = (reading.snd_max.add(5000), held);
        assert!(watch(&mut bench, 5000).is_empty(), "nothing is in flight");
        bench.reading(flow).flags = 0;
        assert!(watch(&mut bench, 1000).iter().any(|(_, message)| message == "0:probe 0"), "it is held no longer");
        let (mut bench, flow) = client();
        bench.outstanding(flow, 1000);
        bench.reading(flow).flags = held;
        assert!(watch(&mut bench, 200)[0].1.starts_with("0:timeout 0"), "all has been sent");
        let (mut bench, flow) = client();
        bench.outstanding(flow, 1000);
        let reading = bench.reading(flow);
        (reading.snd_nxt, reading.flags) = (reading.snd_una, held);
        assert!(watch(&mut bench, 5000).is_empty(), "the repetition has not been sent yet");
    }
}
