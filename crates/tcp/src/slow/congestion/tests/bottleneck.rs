//! Each algorithm at a bottleneck, alone and with another flow.

use super::model::{Model, Path, Sender};
use crate::slow::congestion::Algorithm;

/// 100 Mbit/s, 20 ms: a bandwidth-delay product of 173 packets, and a queue of the same size.
const WIDE: Path = Path { bytes_per_s: 12_500_000, rtt_us: 20_000, buffer: 173, mark_at: usize::MAX };
/// 10 Gbit/s, 100 µs: 86 packets, marked from 20 on.
const RACK: Path = Path { bytes_per_s: 1_250_000_000, rtt_us: 100, buffer: 400, mark_at: 20 };

fn alone(path: Path, algorithm: Algorithm) -> Model {
    Model::new(path, vec![Sender::new(algorithm, 0)])
}

/// The difference of two shares, relative to the larger.
fn unfairness(shares: &[f64]) -> f64 {
    let (a, b) = (shares[0], shares[1]);
    (a - b).abs() / a.max(b)
}

#[test]
fn reno_and_cubic_fill_a_queue_of_one_product() {
    for algorithm in [Algorithm::Reno, Algorithm::Cubic] {
        let mut model = alone(WIDE, algorithm);
        model.run(5.0);
        let share = model.shares(20.0)[0];
        assert!(share > 0.97, "{algorithm}: {share}");
        assert!(model.senders[0].losses > 1, "{algorithm} has met the end of the queue");
    }
}

#[test]
fn cubic_keeps_a_short_queue_busier_than_reno() {
    let path = Path { buffer: 30, ..WIDE };
    let share = |algorithm| {
        let mut model = alone(path, algorithm);
        model.run(5.0);
        model.shares(30.0)[0]
    };
    let (reno, cubic) = (share(Algorithm::Reno), share(Algorithm::Cubic));
    assert!(reno > 0.75 && cubic > 0.85 && cubic > reno, "reno {reno}, cubic {cubic}");
}

#[test]
fn two_cubic_flows_converge_although_one_was_first() {
    let path = Path { rtt_us: 10_000, buffer: 86, ..WIDE };
    // Losses may fall in step for a while, so that one start says little.
    let mut mean = 0.0;
    for n in 0..4 {
        let senders = vec![Sender::new(Algorithm::Cubic, 0), Sender::new(Algorithm::Cubic, 3_000_000 + n * 1234)];
        let mut model = Model::new(path, senders);
        model.run(20.0);
        let shares = model.shares(40.0);
        assert!(shares.iter().sum::<f64>() > 0.95, "{shares:?}");
        mean += unfairness(&shares) / 4.0;
    }
    assert!(mean < 0.2, "{mean}");
}

#[test]
fn cubic_does_not_starve_reno_where_windows_are_small() {
    let path = Path { bytes_per_s: 2_500_000, rtt_us: 10_000, buffer: 17, mark_at: usize::MAX };
    let mut model = Model::new(path, vec![Sender::new(Algorithm::Cubic, 0), Sender::new(Algorithm::Reno, 0)]);
    model.run(10.0);
    let shares = model.shares(60.0);
    assert!(shares[1] > 0.25, "cubic and reno: {shares:?}");
}

#[test]
fn dctcp_keeps_the_queue_at_the_mark_and_the_path_full() {
    let mut model = alone(RACK, Algorithm::Dctcp);
    model.run(0.2);
    let mut longest = 0;
    for _ in 0..1000 {
        model.run(0.0001);
        longest = longest.max(model.waiting());
    }
    assert!(longest < 80, "{longest} packets wait");
    let share = model.shares(0.2)[0];
    assert!(share > 0.9, "{share}");
    assert_eq!(model.senders[0].losses, 0);
}

#[test]
fn two_dctcp_flows_share() {
    let mut model = Model::new(RACK, vec![Sender::new(Algorithm::Dctcp, 0), Sender::new(Algorithm::Dctcp, 50_000)]);
    model.run(1.0);
    let shares = model.shares(1.0);
    assert!(unfairness(&shares) < 0.3, "{shares:?}");
}

#[test]
fn rates_that_follow_marks_or_delays_keep_the_path_full_and_the_queue_short() {
    for algorithm in [Algorithm::DctcpRate, Algorithm::Timely] {
        let mut model = alone(RACK, algorithm);
        model.run(1.0);
        let (share, mut longest) = (model.shares(0.5)[0], 0);
        for _ in 0..1000 {
            model.run(0.0001);
            longest = longest.max(model.waiting());
        }
        assert!(share > 0.9, "{algorithm}: {share}");
        assert!(longest < 200, "{algorithm}: {longest} packets wait");
    }
}

#[test]
fn two_rates_converge() {
    for algorithm in [Algorithm::DctcpRate, Algorithm::Timely] {
        let senders = vec![Sender::new(algorithm, 0), Sender::new(algorithm, 100_000)];
        let mut model = Model::new(RACK, senders);
        model.run(2.0);
        let shares = model.shares(2.0);
        assert!(unfairness(&shares) < 0.4, "{algorithm}: {shares:?}");
    }
}

#[test]
fn a_constant_rate_is_what_was_asked_for() {
    let mut model = alone(WIDE, Algorithm::Constant(5_000_000));
    model.run(1.0);
    let share = model.shares(2.0)[0];
    assert!((0.39..0.41).contains(&share), "{share}");
    assert_eq!(model.waiting(), 0);
}

#[test]
fn bbr_fills_the_path_without_filling_the_queue() {
    let path = Path { buffer: 1000, ..WIDE };
    let mut model = alone(path, Algorithm::Bbr);
    model.run(10.0);
    let (share, mut waiting) = (model.shares(10.0)[0], 0);
    for _ in 0..1000 {
        model.run(0.01);
        waiting += model.waiting();
    }
    assert!(share > 0.9, "{share}");
    assert!(waiting / 1000 < 60, "{} packets wait on average", waiting / 1000);
    assert_eq!(model.senders[0].losses, 0);
}

#[test]
fn bbr_fills_a_short_queue_too() {
    let mut model = alone(Path { buffer: 30, ..WIDE }, Algorithm::Bbr);
    model.run(5.0);
    let share = model.shares(20.0)[0];
    assert!(share > 0.9, "{share}");
}

#[test]
fn bbr_stands_random_loss_better_than_reno() {
    // Every 200th packet, which is a quarter of BBR's loss threshold.
    let share = |algorithm| {
        let mut model = alone(WIDE, algorithm);
        model.lose_every = 200;
        model.run(5.0);
        model.shares(20.0)[0]
    };
    let (reno, bbr) = (share(Algorithm::Reno), share(Algorithm::Bbr));
    assert!(bbr > 0.8 && reno < 0.4, "reno {reno}, bbr {bbr}");
}

#[test]
fn two_bbr_flows_share() {
    let senders = vec![Sender::new(Algorithm::Bbr, 0), Sender::new(Algorithm::Bbr, 1_000_000)];
    let mut model = Model::new(WIDE, senders);
    model.run(20.0);
    let shares = model.shares(40.0);
    assert!(unfairness(&shares) < 0.4, "{shares:?}");
    assert!(shares.iter().sum::<f64>() > 0.85, "{shares:?}");
}
