use super::*;
use crate::slow::congestion::Interval;

const MSS: u32 = 1000;

fn in_state(state: TcpState) -> Bbr {
    Bbr { state, ..Bbr::default() }
}

#[test]
fn the_limit_rises_faster_with_each_round_that_it_limits() {
    let mut bbr = in_state(TcpState::Up);
    bbr.limits.inflight_high = 10_000.0;
    let mut sample = Sample { mss: MSS, cwnd: 20_000, ..Sample::default() };
    let mut after = |cwnd| {
        sample.cwnd = cwnd;
        bbr.raise(&sample);
        bbr.limits.inflight_high
    };
    assert_eq!([after(20_000), after(20_000), after(20_000)], [11_000.0, 13_000.0, 17_000.0]);
    assert_eq!(after(16_999), 17_000.0, "something else limits the flow");
    assert_eq!(after(17_000), 25_000.0);
}

#[test]
fn the_queue_is_drained_when_no_more_is_in_flight_than_the_path_holds() {
    let mut bbr = in_state(TcpState::Drain);
    // The path holds nothing, as no bandwidth is known.
    bbr.advance(None, &Sample { mss: MSS, flight: 1, ..Sample::default() });
    assert_eq!(bbr.state, TcpState::Drain);
    bbr.advance(None, &Sample { mss: MSS, ..Sample::default() });
    assert_eq!(bbr.state, TcpState::Down);
}

#[test]
fn the_probe_of_the_round_trip_ends() {
    let mut bbr = Bbr { filled: true, drained: Some(Micros(0)), ..in_state(TcpState::ProbeRtt) };
    bbr.rounds.count = 1;
    bbr.advance(None, &Sample { mss: MSS, now: Micros(PROBE_RTT_US - 1), ..Sample::default() });
    assert_eq!(bbr.state, TcpState::ProbeRtt);
    bbr.advance(None, &Sample { mss: MSS, now: Micros(PROBE_RTT_US), ..Sample::default() });
    assert_eq!(bbr.state, TcpState::Cruise);
}

/// 10 MB/s over 10 ms: a product of 100,000 bytes.
fn bbr(state: TcpState) -> (Bbr, Sample) {
    let mut bbr = Bbr { state, ..Bbr::default() };
    let sample = Sample { now: Micros(1), mss: 1000, cwnd: 150_000, rtt_us: 10_000, ..Sample::default() };
    bbr.min_rtt.look(&sample);
    bbr.max_bandwidth.add(&round(100, 0));
    (bbr, sample)
}

/// A whole round of fast recovery.
fn round(acked: u64, lost: u64) -> Round {
    let bandwidth = acked as f64 * 1e5;
    Round { bandwidth, acked: acked * 1000, lost: lost * 1000, recovering: true, ..Round::default() }
}

/// Draft §5.3.1.3.
#[test]
fn many_losses_in_a_round_of_startup_end_it_and_leave_the_product() {
    let (mut startup, sample) = bbr(TcpState::Startup);
    startup.learn(&round(60, 5), &sample);
    assert!(!startup.filled, "five are not many");
    startup.learn(&Round { recovering: false, ..round(60, 6) }, &sample);
    assert!(!startup.filled, "the round in which the repair begins");
    startup.learn(&round(60, 6), &sample);
    assert!(startup.filled);
    assert_eq!(startup.limits.inflight_high, 100_000.0);
}

#[test]
fn a_probe_that_loses_too_much_goes_down_and_a_cruise_lowers_for_a_while_only() {
    let (mut up, sample) = bbr(TcpState::Up);
    up.learn(&round(60, 5), &sample);
    assert_eq!((up.state, up.limits.inflight_high), (TcpState::Down, 70_000.0));
    assert!(up.limits.inflight_low.is_infinite());

    let (mut cruise, mut sample) = bbr(TcpState::Cruise);
    cruise.filled = true;
    cruise.learn(&round(50, 1), &sample);
    assert_eq!((cruise.limits.bandwidth_low, cruise.limits.inflight_low), (7e6, 105_000.0));
    assert!(cruise.limits.inflight_high.is_infinite());
    cruise.enter(TcpState::ProbeRtt, &sample);
    sample.flight = 4000;
    cruise.probe_rtt(0, &sample);
    sample.now = sample.now.after(PROBE_RTT_US);
    cruise.probe_rtt(1, &sample);
    assert_eq!(cruise.state, TcpState::Cruise);
    assert!(cruise.limits.inflight_low.is_infinite() && cruise.limits.bandwidth_low.is_infinite());
}

const STATES: [TcpState; 7] = [
    TcpState::Startup,
    TcpState::Drain,
    TcpState::Down,
    TcpState::Cruise,
    TcpState::Refill,
    TcpState::Up,
    TcpState::ProbeRtt,
];

/// The draft's table of gains (§2.4, §5.3.3, §5.6), and the states that accelerate (§5.5.10.3).
#[test]
fn each_state_has_the_gains_of_the_draft() {
    assert_eq!(STATES.map(TcpState::pacing_gain), [2.77, 0.5, 0.9, 1.0, 1.0, 1.25, 1.0]);
    assert_eq!(STATES.map(TcpState::cwnd_gain), [2.0, 2.0, 2.0, 2.0, 2.0, 2.25, 0.5]);
    assert_eq!(STATES.map(TcpState::probes), [true, false, false, false, true, true, false]);
}

/// Of a product of 100,000 bytes: twice of it, 2.25 times of it in UP, half of it in ProbeRTT (§5.6.4). UP, DOWN and
/// REFILL keep to `inflight_high`, the others leave room (§5.5.10.1: 15 %, at least a segment), but for STARTUP and DRAIN.
#[test]
fn the_window_is_the_product_times_a_gain_within_the_limits() {
    const NONE: f64 = f64::INFINITY;
    for (high, low, expected) in [
        (NONE, NONE, [200_000.0, 200_000.0, 200_000.0, 200_000.0, 200_000.0, 225_000.0, 50_000.0]),
        (120_000.0, NONE, [200_000.0, 200_000.0, 120_000.0, 102_000.0, 120_000.0, 120_000.0, 50_000.0]),
        (5500.0, NONE, [200_000.0, 200_000.0, 5500.0, 4500.0, 5500.0, 5500.0, 4500.0]),
        (4500.0, NONE, [200_000.0, 200_000.0, 4500.0, 4000.0, 4500.0, 4500.0, 4000.0]),
        (120_000.0, 90_000.0, [90_000.0, 90_000.0, 90_000.0, 90_000.0, 90_000.0, 90_000.0, 50_000.0]),
        (NONE, 1000.0, [4000.0; 7]),
    ] {
        let windows = STATES.map(|state| {
            let (mut bbr, sample) = bbr(state);
            (bbr.limits.inflight_high, bbr.limits.inflight_low) = (high, low);
            bbr.cwnd(&sample)
        });
        assert_eq!(windows, expected, "{high} and {low}");
    }
}

/// §5.6.4.2: three bursts of a millisecond, of two segments to 64 KiB each. ProbeRTT has none.
#[test]
fn a_short_path_has_room_for_three_bursts() {
    for (bytes_per_s, rtt_us, cruise) in [
        (1_000_000.0, 1000, 6000.0),
        (20_000_000.0, 1000, 60_000.0),
        (100_000_000.0, 100, 196_608.0),
        (100_000_000.0, 1000, 200_000.0),
    ] {
        let mut bbr = in_state(TcpState::Cruise);
        let sample = Sample { mss: MSS, rtt_us, ..Sample::default() };
        bbr.min_rtt.look(&sample);
        bbr.max_bandwidth.add(&Round { bandwidth: bytes_per_s, ..Round::default() });
        assert_eq!(bbr.cwnd(&sample), cruise, "{bytes_per_s} bytes per second");
        bbr.state = TcpState::ProbeRtt;
        let product = bytes_per_s * f64::from(rtt_us) / 1e6;
        assert_eq!(bbr.cwnd(&sample), (product / 2.0).max(4000.0));
    }
}

/// §5.6.2: the gain times the bandwidth, less 1 %. It falls only once the pipe is full.
#[test]
fn the_pacing_rate_is_a_gain_of_the_bandwidth_less_a_margin() {
    let expected = [27_423_000, 4_950_000, 8_910_000, 9_900_000, 9_900_000, 12_375_000, 9_900_000];
    for (state, expected) in STATES.into_iter().zip(expected) {
        let (mut bbr, sample) = bbr(state);
        assert_eq!(bbr.window(&sample).pacing, expected, "{state:?}");
        bbr.pacing = 50_000_000;
        assert_eq!(bbr.window(&sample).pacing, 50_000_000, "the pipe is not full");
        bbr.filled = true;
        assert_eq!(bbr.window(&sample).pacing, expected);
    }
    // Without a measurement: 100,000 bytes per 20 ms, with STARTUP's gain.
    let mut sample = Sample { mss: MSS, cwnd: 100_000, srtt_us: 20_000, ..Sample::default() };
    assert_eq!(Bbr::default().window(&sample).pacing, 13_711_500);
    sample.srtt_us = 0;
    assert_eq!(Bbr::default().window(&sample).pacing, 274_230_000_000, "a microsecond, as no time is known");
    let mut filled = Bbr { filled: true, ..Bbr::default() };
    assert_eq!(filled.window(&Sample { cwnd: 0, ..sample }).pacing, 1, "0 would be no limit");
}

/// §5.6.4.6: until the pipe is full the window grows by what is acknowledged, up to the threshold.
#[test]
fn the_window_is_set_once_the_pipe_is_full_and_is_a_target_before() {
    let window = |cwnd, ssthresh, growth| (cwnd, ssthresh, growth);
    for (state, filled, expected) in [
        (TcpState::Startup, false, window(Window::KEEP, 200_000, 256)),
        (TcpState::Cruise, true, window(200_000, 200_000, 0)),
        (TcpState::ProbeRtt, false, window(50_000, 50_000, 0)),
        (TcpState::ProbeRtt, true, window(50_000, 50_000, 0)),
    ] {
        let (bbr, sample) = bbr(state);
        let got = Bbr { filled, ..bbr }.window(&sample);
        assert_eq!((got.cwnd, got.ssthresh, got.growth), expected, "{state:?} {filled}");
    }
    // 5,500 bytes are less than the initial window, which the threshold is at least.
    let (mut small, sample) = bbr(TcpState::Down);
    (small.filled, small.limits.inflight_high) = (true, 5500.0);
    let got = small.window(&sample);
    assert_eq!((got.cwnd, got.ssthresh), (5500, 10_000));
}

/// §5.6.4.4.
#[test]
fn after_a_time_out_the_window_follows_acknowledgements_until_the_flight_has_arrived() {
    let (mut cruise, mut sample) = bbr(TcpState::Cruise);
    (cruise.filled, cruise.limits.inflight_high, cruise.pacing) = (true, 120_000.0, 77);
    (sample.bytes_acked, sample.flight) = (5000, 30_000);
    let first = Window { cwnd: MSS, ssthresh: u32::MAX, growth: 256, beta: 1024, pacing: 77 };
    assert_eq!(cruise.on_timeout(&sample), first);
    cruise.limits.inflight_high = 9000.0;
    sample.bytes_acked = 34_999;
    let follows = Window { cwnd: Window::KEEP, ssthresh: u32::MAX, growth: 256, beta: 1024, pacing: 9_900_000 };
    assert_eq!(cruise.window(&sample), follows);
    sample.bytes_acked = 35_000;
    assert_eq!(cruise.window(&sample).cwnd, 7650, "all has arrived");
    // §5.5.11: a spurious one brings the limits back.
    sample.bytes_acked = 5000;
    assert_eq!(cruise.on_undo(&sample).map(|window| window.cwnd), Some(102_000));
    assert_eq!(Bbr::default().on_undo(&sample), None, "nothing is known yet");
}

/// The first window is lost, and a time-out repairs it. Such rounds measure nothing and end nothing.
#[test]
fn a_time_out_does_not_end_startup() {
    let mut startup = Bbr::default();
    let lost = Sample { mss: MSS, cwnd: 10_000, flight: 10_000, rtt_us: 1000, srtt_us: 1000, ..Sample::default() };
    startup.on_interval(&Sample { now: Micros(1), ..lost });
    let pacing = startup.pacing;
    startup.on_timeout(&Sample { now: Micros(200_000), recovering: true, ..lost });
    let mut after = |now, acked, more| {
        let interval = Interval { us: now, acked: more, lost: 9000, retransmits: 9, ..Interval::default() };
        let now = Micros(now);
        startup.on_interval(&Sample { now, bytes_acked: acked, flight: 0, recovering: true, interval, ..lost });
        (startup.filled, startup.max_bandwidth.get(), startup.pacing)
    };
    assert_eq!(after(201_000, 1000, 1000), (false, 0.0, pacing));
    assert_eq!(after(202_000, 10_000, 9000), (false, 0.0, pacing), "the repair's last round");
    let (filled, bandwidth, _) = after(203_000, 20_000, 10_000);
    assert!(filled && bandwidth > 0.0, "a round of fast recovery, later");
}

/// §5.3.1.2: three rounds that grow by less than a quarter. An application-limited one counts only if it grows.
/// The wait for the time-out is no time of the path. The repair goes on in the next round.
#[test]
fn the_first_round_after_a_time_out_is_measured_alone() {
    let (mut bbr, mut sample) = bbr(TcpState::Startup);
    (bbr.max_bandwidth, bbr.after_timeout, sample.recovering) = (MaxBandwidth::default(), true, true);
    (sample.bytes_acked, sample.flight) = (1000, 10_000);
    sample.interval = Interval { us: 1_000_000, acked: 1000, ..Interval::default() };
    bbr.on_interval(&sample);
    assert_eq!((bbr.max_bandwidth.get(), bbr.after_timeout), (0.0, false));
    sample.bytes_acked = 11_000;
    sample.interval = Interval { us: 10_000, acked: 10_000, ..Interval::default() };
    bbr.on_interval(&sample);
    assert_eq!(bbr.max_bandwidth.get(), 1e6);
}

#[test]
fn the_pipe_is_full_after_three_rounds_without_growth() {
    let mut full = FullPipe::default();
    let mut reached = |bandwidth, app_limited| {
        let reached = full.reached(&Round { bandwidth, app_limited, ..Round::default() });
        (reached, full.bandwidth, full.rounds)
    };
    assert_eq!(reached(100.0, false), (false, 100.0, 0));
    assert_eq!(reached(124.0, false), (false, 100.0, 1));
    assert_eq!(reached(124.0, false), (false, 100.0, 2));
    assert_eq!(reached(125.0, false), (false, 125.0, 0), "a quarter more");
    assert_eq!(reached(156.0, false), (false, 125.0, 1));
    assert_eq!(reached(125.0, true), (false, 125.0, 1), "the application's fault");
    assert_eq!(reached(125.0, false), (false, 125.0, 2));
    assert_eq!(reached(125.0, false), (true, 125.0, 3));
    assert_eq!(reached(200.0, true), (false, 200.0, 0));
}

/// §5.3.3.5.3: after 2 to 3 s, or as many rounds as the product has segments, at least one and at most 63.
#[test]
fn a_probe_is_due_after_its_time_or_the_rounds_of_reno() {
    for (waited_us, rounds, mss, due) in [
        (2_499_999, 62, 1000, false),
        (2_500_000, 0, 1000, true),
        (0, 63, 1000, true),
        (0, 19, 5000, false),
        (0, 20, 5000, true),
        (0, 0, 200_000, false),
        (0, 1, 200_000, true),
        (0, 62, 0, false),
        (0, 63, 0, true),
    ] {
        let (mut bbr, mut sample) = bbr(TcpState::Cruise);
        (bbr.probed, bbr.probed_round, bbr.wait_us) = (Micros(10), 7, 2_500_000);
        (bbr.rounds.count, sample.now, sample.mss) = (7 + rounds, Micros(10 + waited_us), mss);
        assert_eq!(bbr.probe_due(&sample), due, "{waited_us} µs, {rounds} rounds, segments of {mss}");
        bbr.advance(None, &sample);
        assert_eq!(bbr.state, if due { TcpState::Refill } else { TcpState::Cruise });
    }
}

/// Any number will do that differs between flows: of bytes and of time.
#[test]
fn flows_wait_for_two_to_three_seconds_and_each_for_another_time() {
    let wait = |bytes_acked, now| {
        let mut bbr = Bbr::default();
        bbr.enter(TcpState::Down, &Sample { bytes_acked, now: Micros(now), ..Sample::default() });
        bbr.wait_us
    };
    for pair in [(0x3f << 32, 0), (0, 0x3f)] {
        let by_bytes: std::collections::BTreeSet<u64> = (0..64).map(|bytes| wait(bytes, pair.0)).collect();
        let by_time: std::collections::BTreeSet<u64> = (0..64).map(|us| wait(pair.1, us << 32)).collect();
        assert_eq!((by_bytes.len(), by_time.len()), (64, 64));
        assert!(by_bytes.iter().chain(&by_time).all(|us| (2_000_000..3_000_000).contains(us)));
    }
    // 2 s and (0x9e3779b9 modulo a million) µs.
    assert_eq!(wait(1, 0), 2_435_769);
}

#[test]
fn entering_a_state_begins_what_belongs_to_it() {
    for state in STATES {
        let (mut bbr, mut sample) = bbr(TcpState::Startup);
        (bbr.limits.inflight_low, bbr.limits.bandwidth_low, bbr.raised) = (50_000.0, 5e6, 3);
        (bbr.full, bbr.drained) = (FullPipe { bandwidth: 1.0, rounds: 2 }, Some(Micros(3)));
        (bbr.rounds.count, sample.now) = (9, Micros(40));
        bbr.enter(state, &sample);
        assert_eq!((bbr.state, bbr.since, bbr.since_round), (state, Micros(40), 9));
        let down = state == TcpState::Down;
        assert_eq!((bbr.probed, bbr.probed_round), if down { (Micros(40), 9) } else { (Micros(0), 0) });
        assert_eq!(bbr.raised, if down || state == TcpState::Refill { 0 } else { 3 });
        assert_eq!(bbr.limits.inflight_low.is_infinite(), state == TcpState::Refill);
        assert_eq!(bbr.limits.bandwidth_low.is_infinite(), state == TcpState::Refill);
        assert_eq!(bbr.full.rounds, if state == TcpState::Up { 0 } else { 2 });
        assert_eq!(bbr.drained, (state != TcpState::ProbeRtt).then_some(Micros(3)));
    }
}

/// §5.3.3.1: DOWN ends when no more is in flight than the path holds, with room for others, and a round has passed.
#[test]
fn a_probe_that_has_gone_down_cruises_when_its_queue_is_gone() {
    for (high, flight, rounds, state) in [
        (f64::INFINITY, 100_000, 1, TcpState::Cruise),
        (f64::INFINITY, 100_001, 1, TcpState::Down),
        (f64::INFINITY, 0, 0, TcpState::Down),
        (100_000.0, 85_000, 2, TcpState::Cruise),
        (100_000.0, 85_001, 2, TcpState::Down),
    ] {
        let (mut down, mut sample) = bbr(TcpState::Down);
        (down.probed, down.wait_us, down.limits.inflight_high) = (sample.now, 2_000_000, high);
        (down.since_round, down.probed_round, down.rounds.count) = (5, 5 + rounds, 5 + rounds);
        sample.flight = flight;
        down.advance(None, &sample);
        assert_eq!(down.state, state, "{flight} in flight after {rounds} rounds");
    }
}

/// §5.5.6: the first round after a probe begins a new cycle of the bandwidth filter.
#[test]
fn the_first_round_of_down_ends_a_cycle_of_bandwidth() {
    for (rounds, ends, advanced) in [(1, true, true), (1, false, false), (2, true, false), (0, true, false)] {
        let (mut down, mut sample) = bbr(TcpState::Down);
        (down.probed, down.wait_us, sample.flight) = (sample.now, 2_000_000, 1 << 30);
        (down.since_round, down.probed_round, down.rounds.count) = (5, 5 + rounds, 5 + rounds);
        let over = round(50, 0);
        down.advance(ends.then_some(&over), &sample);
        assert_eq!(down.state, TcpState::Down);
        // The cycle before the last one is forgotten.
        down.max_bandwidth.add(&over);
        down.max_bandwidth.advance();
        assert_eq!(down.max_bandwidth.get(), if advanced { 5e6 } else { 1e7 }, "{rounds} {ends}");
    }
}

#[test]
fn refill_lasts_a_round_and_a_probe_goes_up_until_the_bandwidth_grows_no_more() {
    let (mut refill, sample) = bbr(TcpState::Refill);
    (refill.since_round, refill.rounds.count) = (3, 3);
    refill.advance(Some(&round(100, 0)), &sample);
    assert_eq!(refill.state, TcpState::Refill);
    refill.rounds.count = 4;
    refill.advance(None, &sample);
    assert_eq!(refill.state, TcpState::Up);
    let mut up = refill;
    up.limits.inflight_high = 150_000.0;
    up.advance(None, &sample);
    assert_eq!((up.limits.inflight_high, up.raised), (150_000.0, 0), "only at the end of a round");
    for (raised, high) in [(1, 151_000.0), (1, 151_000.0), (1, 151_000.0)] {
        up.advance(Some(&round(100, 0)), &sample);
        assert_eq!((up.state, up.limits.inflight_high, up.raised), (TcpState::Up, high, raised));
    }
    up.advance(Some(&round(100, 0)), &sample);
    assert_eq!(up.state, TcpState::Down);
    let (mut startup, sample) = bbr(TcpState::Startup);
    for filled in [false, false, false, true] {
        startup.advance(Some(&round(100, 0)), &sample);
        assert_eq!((startup.filled, startup.state == TcpState::Drain), (filled, filled));
    }
}

/// A limit of 2^30 segments more per round is not passed, however long the probe lasts.
#[test]
fn the_limit_rises_by_no_more_than_a_billion_segments() {
    let mut up = in_state(TcpState::Up);
    (up.limits.inflight_high, up.raised) = (1000.0, 40);
    up.raise(&Sample { mss: 1, cwnd: 1000, ..Sample::default() });
    assert_eq!((up.limits.inflight_high, up.raised), (1000.0 + f64::from(1u32 << 30), 41));
}

/// §5.5.10: two percent are not too much. What passed raises a limit that exists.
#[test]
fn a_round_with_little_loss_raises_the_limit_and_one_with_much_sets_it() {
    for (state, acked, lost, high, expected) in [
        (TcpState::Up, 98, 2, 50_000.0, 98_000.0),
        (TcpState::Up, 98, 2, 120_000.0, 120_000.0),
        (TcpState::Up, 98, 2, f64::INFINITY, f64::INFINITY),
        // The larger of what was delivered, and of seven tenths of product or window.
        (TcpState::Up, 97, 3, 50_000.0, 97_000.0),
        (TcpState::Refill, 50, 3, 90_000.0, 70_000.0),
        (TcpState::Startup, 40, 5, 90_000.0, 90_000.0),
        (TcpState::Startup, 294, 6, 90_000.0, 294_000.0),
        (TcpState::Startup, 60, 6, 90_000.0, 100_000.0),
        (TcpState::Cruise, 50, 3, 40_000.0, 40_000.0),
        (TcpState::Cruise, 98, 2, 40_000.0, 98_000.0),
    ] {
        let (mut bbr, sample) = bbr(state);
        bbr.limits.inflight_high = high;
        bbr.learn(&round(acked, lost), &sample);
        assert_eq!(bbr.limits.inflight_high, expected, "{state:?}: {lost} lost of {}", acked + lost);
    }
    // A window below the product counts, and never fewer than four segments are left.
    for (cwnd, expected) in [(50_000, 35_000.0), (4000, 4000.0)] {
        let (mut refill, sample) = bbr(TcpState::Refill);
        refill.learn(&round(1, 3), &Sample { cwnd, ..sample });
        assert_eq!(refill.limits.inflight_high, expected);
    }
}

/// §5.5.10.3: the new limits are the round's own, but at least seven tenths of the old ones and never more than they.
#[test]
fn a_loss_while_cruising_lowers_to_what_was_delivered_within_seven_tenths() {
    for (acked, lost, bandwidth, inflight) in
        [(80, 1, 8e6 / 0.99, 105_000.0), (50, 1, 7e6, 105_000.0), (100, 1, 1e7, 105_000.0), (120, 1, 1.2e7, 120_000.0)]
    {
        let (mut cruise, sample) = bbr(TcpState::Cruise);
        cruise.learn(&round(acked, lost), &sample);
        assert_eq!((cruise.limits.bandwidth_low, cruise.limits.inflight_low), (bandwidth, inflight), "{acked}");
        assert_eq!(cruise.bandwidth(), bandwidth);
        cruise.learn(&round(10, 1), &sample);
        let again = (bandwidth * 0.7, inflight * 0.7);
        assert_eq!((cruise.limits.bandwidth_low, cruise.limits.inflight_low), again, "from the lowered ones");
        cruise.learn(&round(10, 0), &sample);
        assert_eq!((cruise.limits.bandwidth_low, cruise.limits.inflight_low), again, "nothing is lost");
    }
}

/// §5.3.4.3: five seconds after the last probe or confirmation. A pause of the application is as good as a probe.
#[test]
fn the_round_trip_is_probed_when_nothing_has_confirmed_it_for_five_seconds() {
    let begin = 1_000_000;
    for (confirmed, app_limited, probes) in [(false, false, true), (true, false, false), (false, true, false)] {
        let (mut cruise, mut sample) = bbr(TcpState::Cruise);
        let mut check = |us, confirmed, app_limited| {
            (sample.now, sample.app_limited) = (Micros(begin + us), app_limited);
            cruise.check_probe_rtt(confirmed, &sample);
            (cruise.state == TcpState::ProbeRtt, cruise.since)
        };
        assert!(!check(0, false, false).0, "the time begins");
        assert!(!check(3_000_000, confirmed, app_limited).0);
        assert!(!check(5_000_000, false, false).0);
        assert_eq!(check(5_000_001, false, false).0, probes);
        assert!(check(8_000_001, false, false).0, "at the latest five seconds after that");
        let since = check(20_000_000, false, false).1;
        assert!(since < Micros(begin + 9_000_000), "a probe does not begin again: {since:?}");
    }
}

/// §5.3.4.3: 200 ms from when half the product is in flight, and a round.
#[test]
fn a_probe_of_the_round_trip_lasts_from_an_empty_path_for_200_ms_and_a_round() {
    for (filled, after) in [(true, TcpState::Cruise), (false, TcpState::Startup)] {
        let (mut probe, mut sample) = bbr(TcpState::ProbeRtt);
        probe.filled = filled;
        let mut look = |us, flight, rounds| {
            (sample.now, sample.flight, probe.rounds.count) = (Micros(us), flight, rounds);
            probe.advance(None, &sample);
            (probe.state, probe.drained, probe.rtt_probed)
        };
        assert_eq!(look(10, 50_001, 9), (TcpState::ProbeRtt, None, None), "too much is in flight");
        assert_eq!(look(20, 50_000, 0), (TcpState::ProbeRtt, Some(Micros(20)), None));
        assert_eq!(look(200_020, 0, 0).0, TcpState::ProbeRtt, "no round has passed");
        assert_eq!(look(200_019, 0, 1).0, TcpState::ProbeRtt);
        assert_eq!(look(200_020, 0, 1), (after, Some(Micros(20)), Some(Micros(200_020))));
    }
}

#[test]
fn a_flow_without_a_round_trip_time_gets_no_decision_and_one_with_it_does() {
    let mut flow = Bbr::default();
    let mut sample = Sample { mss: MSS, cwnd: 100_000, srtt_us: 20_000, ..Sample::default() };
    assert_eq!(flow.on_interval(&sample), None);
    sample.rtt_us = 20_000;
    let first = Window { cwnd: Window::KEEP, ssthresh: 10_000, growth: 256, beta: 1024, pacing: 13_711_500 };
    assert_eq!(flow.on_interval(&sample), Some(first));
    assert!(flow.paced() && flow.per_round_trip());
    let begin = |syn_lost| Bbr::default().initial(MSS, syn_lost);
    assert_eq!((begin(false).cwnd, begin(true).cwnd, begin(true).pacing), (10_000, 1000, 0));
}
