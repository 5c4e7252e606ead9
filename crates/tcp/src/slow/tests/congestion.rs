//! The choice of a connection's algorithm, the times of its decisions, and its messages to the fast path.

use super::world::*;
use crate::flow::{FlowId, SocketOptions, Window};
use crate::messages::{ToFast, ToSlow};
use crate::slow::SlowConfig;
use crate::slow::congestion::Algorithm;

/// Windows sent since the last call.
fn windows(bench: &mut Bench) -> Vec<Window> {
    let sent = bench.world.sent.drain(..);
    let window = |(_, message)| match message {
        ToFast::SetWindow(_, window) | ToFast::Timeout(_, window) => Some(window),
        _ => None,
    };
    sent.filter_map(window).collect()
}

/// A client with 100 KB of window in congestion avoidance and 50 KB in flight, more to send, a round trip of 20 ms.
fn sending(config: SlowConfig) -> (Bench, FlowId) {
    let mut bench = Bench::with(config);
    let flow = bench.client();
    let reading = bench.reading(flow);
    (reading.cwnd, reading.ssthresh, reading.srtt_us, reading.min_rtt_us) = (100_000, 80_000, 20_000, 20_000);
    reading.snd_wnd = 1 << 20;
    bench.outstanding(flow, 99_000);
    let reading = bench.reading(flow);
    reading.snd_queued = reading.snd_max.add(100_000);
    (bench, flow)
}

fn using(congestion: Algorithm) -> SlowConfig {
    SlowConfig { congestion, ..SlowConfig::default() }
}

#[test]
fn after_a_pause_of_a_time_out_the_window_starts_again() {
    let (mut bench, flow) = sending(using(Algorithm::Reno));
    bench.pass_ms(10);
    let reading = bench.reading(flow);
    reading.snd_una = reading.snd_max;
    (reading.snd_queued, reading.bytes_acked) = (reading.snd_max, 99_000);
    bench.pass_ms(200);
    assert_eq!(windows(&mut bench), [], "not yet");
    bench.pass_ms(20);
    let restarted = windows(&mut bench);
    assert_eq!(restarted.len(), 1);
    assert_eq!(
        (restarted[0].cwnd, restarted[0].ssthresh),
        (14_480, Window::KEEP),
        "three quarters are below the threshold"
    );
    bench.pass_ms(1000);
    assert_eq!(bench.slow.next_deadline(), None, "and it is off the list");
}

#[test]
fn a_flow_that_pauses_for_less_keeps_its_window() {
    let (mut bench, flow) = sending(using(Algorithm::Reno));
    for _ in 0..20 {
        let reading = bench.reading(flow);
        reading.snd_una = reading.snd_max;
        reading.snd_queued = reading.snd_max;
        bench.pass_ms(150);
        bench.outstanding(flow, 1000);
        bench.pass_ms(10);
    }
    assert_eq!(windows(&mut bench), []);
}

#[test]
fn an_algorithm_of_round_trips_is_asked_once_per_round_trip() {
    for (srtt_us, interval_us) in [(2_000, 2_000), (5_000, 5_000), (100, 500)] {
        let (mut bench, flow) = sending(using(Algorithm::Dctcp));
        bench.reading(flow).srtt_us = srtt_us;
        bench.pass_ms(50);
        let due = bench.slow.next_deadline().expect("active");
        bench.now = due;
        bench.poll();
        let next = bench.slow.next_deadline().expect("active");
        assert_eq!(next.since(due), interval_us, "at {srtt_us} µs");
    }
}

#[test]
fn dctcp_cuts_by_what_was_marked_and_the_fast_path_is_told_once() {
    let (mut bench, flow) = sending(using(Algorithm::Dctcp));
    bench.pass_ms(50);
    windows(&mut bench);
    let reading = bench.reading(flow);
    (reading.bytes_acked, reading.bytes_marked) = (500_000, 500_000);
    bench.pass_ms(10);
    let cut = windows(&mut bench);
    assert_eq!(cut.len(), 1, "{cut:?}");
    assert!((49_000..54_000).contains(&cut[0].cwnd) && cut[0].ssthresh == cut[0].cwnd, "{cut:?}");
    let reading = bench.reading(flow);
    (reading.cwnd, reading.ssthresh) = (cut[0].cwnd, cut[0].ssthresh);
    bench.pass_ms(30);
    assert_eq!(windows(&mut bench), [], "nothing new");
}

#[test]
fn a_running_flow_changes_its_algorithm_and_keeps_its_window() {
    let (mut bench, flow) = sending(using(Algorithm::Cubic));
    bench.pass_ms(20);
    windows(&mut bench);
    assert!(bench.slow.set_congestion(bench.now, CLIENT, Algorithm::Reno, &mut bench.world));
    bench.pass_ms(10);
    let reno = Window { cwnd: Window::KEEP, ssthresh: Window::KEEP, growth: 256, beta: 512, pacing: 0 };
    assert_eq!(windows(&mut bench), [reno]);
    assert_eq!(bench.slow.congestion(CLIENT), Algorithm::Reno);
    bench.slow.set_congestion(bench.now, CLIENT, Algorithm::Timely, &mut bench.world);
    let reading = bench.reading(flow);
    reading.bytes_acked = 100_000;
    bench.pass_ms(20);
    let timely = windows(&mut bench);
    assert_eq!(timely.first().map(|w| w.pacing), Some(100_000 * 50), "the window per round trip");
}

#[test]
fn own_choice_before_the_listeners_before_the_default() {
    let config = using(Algorithm::Dctcp);
    let beta = |bench: &Bench, flow| bench.world.setups[&flow].window.beta;
    let mut bench = Bench::with(config.clone());
    let flow = bench.client();
    assert_eq!((bench.slow.congestion(CLIENT), beta(&bench, flow)), (Algorithm::Dctcp, 512));

    let mut bench = Bench::with(config.clone());
    let options = SocketOptions { congestion: Algorithm::Cubic.id(), ..SocketOptions::default() };
    bench.slow.set_options(bench.now, CLIENT, options, &mut bench.world);
    let flow = bench.client();
    assert_eq!((bench.slow.congestion(CLIENT), beta(&bench, flow)), (Algorithm::Cubic, 717));

    let mut bench = Bench::listening(8);
    assert!(bench.slow.set_congestion(bench.now, SERVER, Algorithm::Reno, &mut bench.world));
    let child = bench.child(4000);
    assert_eq!(beta(&bench, child), 512, "a listener's children inherit");
}

#[test]
fn windows_are_paced_only_if_that_is_wanted() {
    let pacing = |config, max| {
        let (mut bench, _) = sending(config);
        bench.slow.set_max_pacing(CLIENT, max);
        bench.pass_ms(20);
        windows(&mut bench).last().map_or(0, |window| window.pacing)
    };
    let (plain, paced) = (SlowConfig::default(), SlowConfig { pace_windows: true, ..SlowConfig::default() });
    assert_eq!(pacing(plain.clone(), 0), 0);
    // 1.2 times 100,000 bytes per 20 ms, in congestion avoidance.
    assert_eq!(pacing(paced, 0), 6_000_000);
    assert_eq!(pacing(plain, 1_000_000), 1_000_000, "a socket's own limit");
}

#[test]
fn a_loss_and_its_undoing_reach_the_algorithm() {
    let (mut bench, flow) = sending(using(Algorithm::Cubic));
    bench.pass_ms(20);
    windows(&mut bench);
    let reading = bench.reading(flow);
    (reading.cwnd, reading.ssthresh) = (70_000, 70_000);
    bench.say(ToSlow::Loss(flow));
    bench.poll();
    bench.pass_ms(10);
    let after_loss = windows(&mut bench).last().map(|window| window.growth);
    // The plateau is far away, so the growth is Reno's with this beta: 0.53 segments per window.
    assert_eq!(after_loss, Some(135));
    let reading = bench.reading(flow);
    (reading.cwnd, reading.ssthresh) = (100_000, 80_000);
    bench.say(ToSlow::Undone(flow));
    bench.poll();
    bench.pass_ms(10);
    let after_undo = windows(&mut bench).last().map(|window| window.growth);
    assert!(after_undo.is_some_and(|growth| growth >= 256), "{after_undo:?}");
}
