//! Congestion control end to end: each algorithm with the real fast path at a bottleneck, alone and beside others.

mod common;
use common::*;
use std::net::{IpAddr, Ipv4Addr};
use towpath_sim::{Endpoint, Faults, LinkConfig, NodeConfig, TransferEnd, TransferPlan, Transfers};
use towpath_tcp::flow::SocketOptions;
use towpath_tcp::slow::congestion::Algorithm;
use towpath_tcp::time::Micros;

const B: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));

/// 100 Mbit/s, 10 ms of round trip, a queue of one bandwidth-delay product.
const WIDE: LinkConfig = LinkConfig {
    gso_max_bytes: 0,
    bits_per_s: 100_000_000,
    delay_us: 5_000,
    queue_bytes: 125_000,
    mark_bytes: None,
    mtu_bytes: 1500,
    checksum_offload: false,
    hashed: false,
    print: false,
};

/// Payload that the wire can carry: 1448 bytes in 1514.
const MOST: f64 = 1448.0 / 1514.0;

/// Each sender's share of the wire in `seconds` after `warm_up`, and the number of time-outs.
fn shares(link: LinkConfig, senders: &[(Algorithm, u64)], warm_up: u64, seconds: u64) -> (Vec<f64>, u64) {
    let path = Path { link, there: Faults::default(), back: Faults::default() };
    let config = |n| NodeConfig { rings: (1 << 20, 1 << 20), ..NodeConfig::numbered(n, u64::from(n)) };
    let mut server = config(2);
    // The receiver uses DCTCP, too.
    server.slow.congestion = senders[0].0;
    let (mut world, _) = two_nodes([config(1), server], path, 7);
    let listener = world.nodes[1].listen(80, 8).expect("listens");
    let mut transfers = Transfers::default();
    for (i, &(algorithm, start_ms)) in senders.iter().enumerate() {
        world.run(world.now.max(Micros(start_ms * 1000)), &mut transfers);
        let options = SocketOptions { congestion: algorithm.id(), ..SocketOptions::default() };
        let client = world.nodes[0].connect_with(B, 80, 0, options).expect("connects");
        let plan = |bytes| TransferPlan { seed: 3 + i as u64, bytes, chunk: 64 << 10, pause_ppm: 0, pause_us: 1 };
        transfers.0.push(TransferEnd::new(Endpoint::Node(0, client), plan(1 << 40)));
        transfers.0.push(TransferEnd::new(Endpoint::Accept(1, listener), plan(0)));
    }
    let got =
        |transfers: &Transfers| -> Vec<u64> { transfers.0.iter().skip(1).step_by(2).map(|t| t.got.len).collect() };
    world.run(world.now.after(warm_up * 1_000_000), &mut transfers);
    let before = got(&transfers);
    world.run(world.now.after(seconds * 1_000_000), &mut transfers);
    let most = link.bits_per_s as f64 / 8.0 * seconds as f64;
    let shares = got(&transfers).iter().zip(before).map(|(now, then)| (now - then) as f64 / most).collect();
    (shares, world.nodes[0].counters()[0].timeouts)
}

fn unfairness(shares: &[f64]) -> f64 {
    (shares[0] - shares[1]).abs() / shares[0].max(shares[1])
}

/// The share of the possible rate that one flow gets, without a time-out.
fn alone(algorithm: Algorithm, link: LinkConfig) -> f64 {
    let (shares, timeouts) = shares(link, &[(algorithm, 0)], 2, 4);
    assert_eq!(timeouts, 0, "{algorithm}");
    shares[0] / MOST
}

#[test]
fn algorithms_that_fill_a_queue_keep_the_wire_full() {
    for algorithm in [Algorithm::Reno, Algorithm::Cubic] {
        let share = alone(algorithm, WIDE);
        assert!(share > 0.97, "{algorithm}: {share}");
    }
}

#[test]
fn cubic_needs_a_shorter_queue_than_reno() {
    let link = LinkConfig { queue_bytes: 40_000, ..WIDE };
    let (reno, cubic) = (alone(Algorithm::Reno, link), alone(Algorithm::Cubic, link));
    assert!(reno > 0.8 && cubic > 0.95 && cubic > reno, "reno {reno}, cubic {cubic}");
}

#[test]
fn algorithms_that_follow_delays_keep_the_wire_busy() {
    for algorithm in [Algorithm::Bbr, Algorithm::Timely] {
        for queue_bytes in [WIDE.queue_bytes, 40_000] {
            let share = alone(algorithm, LinkConfig { queue_bytes, ..WIDE });
            assert!(share > 0.9, "{algorithm}, queue of {queue_bytes}: {share}");
        }
    }
}

#[test]
fn algorithms_that_follow_marks_keep_the_wire_busy_without_a_loss() {
    for (algorithm, least) in [(Algorithm::Dctcp, 0.97), (Algorithm::DctcpRate, 0.9)] {
        let share = alone(algorithm, LinkConfig { mark_bytes: Some(30_000), ..WIDE });
        assert!(share > least, "{algorithm}: {share}");
    }
}

#[test]
fn a_later_flow_gets_its_share() {
    for algorithm in [Algorithm::Cubic, Algorithm::Bbr] {
        // Milliseconds decide which flow loses segments at a full queue. So several starts are judged.
        let starts = [800, 1000, 1200];
        let mut mean = [0.0; 2];
        for start_ms in starts {
            let (shares, timeouts) = shares(WIDE, &[(algorithm, 0), (algorithm, start_ms)], 5, 10);
            assert!(unfairness(&shares) < 0.3 && timeouts == 0, "{algorithm}: {shares:?}, {timeouts} time-outs");
            assert!(shares.iter().sum::<f64>() > 0.9 * MOST, "{algorithm}: {shares:?}");
            for (mean, share) in mean.iter_mut().zip(shares) {
                *mean += share / starts.len() as f64;
            }
        }
        assert!(unfairness(&mean) < 0.1, "{algorithm}: {mean:?}");
    }
}

/// 64 blocks of 64 KiB fill the wire for 0.35 s, and their first windows are more than path and queue hold. A flow whose
/// first window is lost nearly whole must not take the time of its repair for the path's rate.
#[test]
fn flows_that_begin_at_once_lose_much_and_are_soon_done() {
    const BLOCK: u64 = 64 << 10;
    let by_window = [Algorithm::Reno, Algorithm::Cubic, Algorithm::Dctcp];
    for algorithm in by_window.into_iter().chain([Algorithm::DctcpRate, Algorithm::Timely, Algorithm::Bbr]) {
        let path = Path { link: WIDE, there: Faults::default(), back: Faults::default() };
        let config = |n| NodeConfig { rings: (1 << 17, 1 << 17), ..NodeConfig::numbered(n, u64::from(n)) };
        let (mut world, _) = two_nodes([config(1), config(2)], path, 7);
        let listener = world.nodes[1].listen(80, 64).expect("listens");
        let mut transfers = Transfers::default();
        for seed in 0..64 {
            let options = SocketOptions { congestion: algorithm.id(), ..SocketOptions::default() };
            let client = world.nodes[0].connect_with(B, 80, 0, options).expect("connects");
            let plan = |bytes| TransferPlan { seed, bytes, chunk: 64 << 10, pause_ppm: 0, pause_us: 1 };
            transfers.0.push(TransferEnd::new(Endpoint::Node(0, client), plan(BLOCK)));
            transfers.0.push(TransferEnd::new(Endpoint::Accept(1, listener), plan(0)));
        }
        world.run(Micros(1_500_000), &mut transfers);
        let late = transfers.0.iter().skip(1).step_by(2).filter(|end| end.got.len < BLOCK).count();
        assert_eq!(late, 0, "{algorithm}: not done after 1.5 s");
    }
}

#[test]
fn cubic_and_reno_get_along() {
    let (shares, _) = shares(WIDE, &[(Algorithm::Reno, 0), (Algorithm::Cubic, 0)], 5, 10);
    assert!(unfairness(&shares) < 0.4, "reno and cubic: {shares:?}");
}
