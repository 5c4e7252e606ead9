#![allow(clippy::unwrap_used)]
use super::*;
use std::sync::atomic::Ordering::Relaxed;

const HERE: &str = "127.0.0.1:6379";
const THERE: &str = "192.0.2.1:6379";

fn me(name: &str) -> Identity {
    let pid = std::process::id() as i32;
    Identity { uid: 1000, pid, program: format!("/bin/{name}"), ..Identity::default() }
}

/// A client, and the library's view of its measurements.
fn client(auto: &Auto, id: u32, name: &str) -> (ClientId, StatsRegion) {
    let memfd = auto.measure(ClientId(id), &me(name)).unwrap();
    (ClientId(id), StatsRegion::map(rustix::fd::AsFd::as_fd(&memfd)).unwrap())
}

/// Adds measurements of one carrier, enough for a decision.
fn measured(stats_region: &StatsRegion, key: ClassKey, carrier: CarriedBy, cpu_ns_per_turn: u64) {
    let sums = &stats_region.class(stats_region.enter(key).unwrap()).unwrap().by_carrier[carrier as usize];
    sums.connections.fetch_add(5, Relaxed);
    sums.turns.fetch_add(10_000, Relaxed);
    sums.calls.fetch_add(20_000, Relaxed);
    sums.sent.fetch_add(640_000, Relaxed);
    sums.cpu_calls.fetch_add(20_000, Relaxed);
    sums.cpu_ns.fetch_add(10_000 * cpu_ns_per_turn, Relaxed);
}

/// Makes the next evaluation happen now.
fn evaluate_again(auto: &Auto) {
    auto.lock().classes.values_mut().for_each(|tracked| tracked.evaluated_us = None);
}

#[test]
fn connections_take_both_ways_in_turn_until_the_better_one_is_known() {
    let auto = Auto::new(Reach::All, false);
    let (id, stats_region) = client(&auto, 1, "app");
    let remote: SocketAddr = THERE.parse().unwrap();
    let carriers: Vec<_> = (0..40).map(|_| auto.connect(id, remote).unwrap()).collect();
    assert!(carriers.chunks(2).all(|pair| pair[0] != pair[1]), "{carriers:?}");
    assert!(
        carriers.chunks(2).any(|pair| pair[0] == CarriedBy::Stack)
            && carriers.chunks(2).any(|pair| pair[0] == CarriedBy::Kernel)
    );
    let key = ClassKey::connected(6379, false);
    measured(&stats_region, key, CarriedBy::Kernel, 1000);
    evaluate_again(&auto);
    assert!((0..2).any(|_| auto.connect(id, remote) == Some(CarriedBy::Stack)), "one way is not enough");
    measured(&stats_region, key, CarriedBy::Stack, 2000);
    evaluate_again(&auto);
    assert!((0..10).all(|_| auto.connect(id, remote) == Some(CarriedBy::Kernel)));
    let row = &auto.rows(|_| true)[0];
    assert_eq!((row.decision.as_str(), row.reason.as_str()), ("kernel", "the stack loses (-50 %)"));
    assert_eq!((row.stack.cpu_ns, row.kernel.cpu_ns), (Some(2000), Some(1000)));
    // Another port is another class, and so is another program.
    let other = "192.0.2.1:80".parse().unwrap();
    assert!((0..2).any(|_| auto.connect(id, other) == Some(CarriedBy::Stack)));
    assert_eq!(stats_region.find(key).unwrap().one_of.load(Relaxed), 8, "the library is told to measure less");
}

#[test]
fn a_program_that_is_not_measured_goes_as_ever() {
    let auto = Auto::new(Reach::All, true);
    assert_eq!((auto.connect(ClientId(1), THERE.parse().unwrap()), auto.listen(ClientId(1), 80)), (None, None));
    assert!(auto.rows(|_| true).is_empty());
}

#[test]
fn who_connects_on_this_host_follows_where_the_way_is_the_listeners() {
    let auto = Auto::new(Reach::Network, false);
    let (id, stats_region) = client(&auto, 1, "app");
    assert_eq!(auto.connect(id, HERE.parse().unwrap()), None);
    measured(&stats_region, ClassKey::connected(6379, true), CarriedBy::Stack, 1000);
    let row = &auto.rows(|_| true)[0];
    assert_eq!((row.decision.as_str(), row.scope.as_deref(), row.stack.turns), ("follows", Some("host"), 10_000));
    assert!((0..2).any(|_| auto.connect(id, THERE.parse().unwrap()) == Some(CarriedBy::Kernel)));
}

#[test]
fn a_port_goes_one_way_in_each_run_and_runs_take_turns() {
    let auto = Auto::new(Reach::All, false);
    let (one, first) = client(&auto, 1, "server");
    assert_eq!(auto.listen(one, 80), Some(CarriedBy::Stack));
    // Its other process, and the second socket of a group.
    let (two, _) = client(&auto, 2, "server");
    assert_eq!((auto.listen(one, 80), auto.listen(two, 80)), (Some(CarriedBy::Stack), Some(CarriedBy::Stack)));
    measured(&first, ClassKey::accepted(80), CarriedBy::Stack, 500);
    auto.leave(one);
    assert_eq!(auto.listen(two, 80), Some(CarriedBy::Stack), "one of them lives");
    auto.leave(two);
    let (three, second) = client(&auto, 3, "server");
    assert_eq!(auto.listen(three, 80), Some(CarriedBy::Kernel));
    measured(&second, ClassKey::accepted(80), CarriedBy::Kernel, 1000);
    evaluate_again(&auto);
    auto.leave(three);
    let (four, third) = client(&auto, 4, "server");
    assert_eq!(auto.listen(four, 80), Some(CarriedBy::Stack));
    assert_eq!(auto.rows(|_| true)[0].reason, "the stack gains (+100 %)");
    // After a run that is worse than the other carrier was, the carrier changes.
    measured(&third, ClassKey::accepted(80), CarriedBy::Stack, 3000);
    auto.leave(four);
    let (five, _) = client(&auto, 5, "server");
    assert_eq!(auto.listen(five, 80), Some(CarriedBy::Kernel));
}

#[test]
fn figures_of_one_user_do_not_choose_for_another() {
    let auto = Auto::new(Reach::All, false);
    let (id, stats_region) = client(&auto, 1, "app");
    auto.connect(id, THERE.parse().unwrap());
    measured(&stats_region, ClassKey::connected(6379, false), CarriedBy::Stack, 1);
    assert_eq!((auto.rows(|uid| uid == 1000).len(), auto.rows(|uid| uid == 1001).len()), (1, 0));
    let other = ClientId(2);
    auto.measure(other, &Identity { uid: 1001, ..me("app") }).unwrap();
    auto.connect(other, THERE.parse().unwrap());
    assert_eq!(auto.rows(|uid| uid == 1001)[0].stack.turns, 0);
}

#[test]
fn who_has_another_network_is_not_measured() {
    let apart = Auto::new(Reach::Apart, true);
    assert!(apart.measure(ClientId(1), &me("app")).is_err());
    let auto = Auto::new(Reach::All, true);
    // The namespace of a process that has ended cannot be read.
    assert!(auto.measure(ClientId(1), &Identity { pid: i32::MAX, ..me("app") }).is_err());
    for _ in 0..MAX_STATS_REGIONS {
        auto.measure(ClientId(1), &me("app")).unwrap();
    }
    assert!(auto.measure(ClientId(1), &me("app")).is_err());
}

#[test]
fn classes_are_bounded() {
    let auto = Auto::new(Reach::All, false);
    let (id, _stats_region) = client(&auto, 1, "app");
    for port in 1..=MAX_CLASSES as u16 + 9 {
        let carrier = auto.connect(id, SocketAddr::new("192.0.2.1".parse().unwrap(), port));
        assert_eq!(carrier.is_some(), usize::from(port) <= MAX_CLASSES);
    }
}
