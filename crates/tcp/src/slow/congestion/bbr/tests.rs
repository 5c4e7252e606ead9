use super::*;

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

fn round(acked: u64, lost: u64) -> Round {
    Round { bandwidth: acked as f64 * 1e5, acked: acked * 1000, lost: lost * 1000, app_limited: false }
}

#[test]
fn many_losses_in_a_round_of_startup_end_it_and_leave_the_product() {
    let (mut startup, sample) = bbr(TcpState::Startup);
    startup.learn(&round(60, 5), &sample);
    assert!(!startup.filled, "five are not many");
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
