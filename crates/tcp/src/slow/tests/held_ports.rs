//! The ports that the host holds: each user has a share, and what is idle is given back.

use super::world::*;
use crate::flow::Owner;
use crate::slow::{ConnectError, SlowConfig};

/// Ports of a step, and steps.
const STEP: u16 = 10;
const STEPS: u16 = 8;

fn bench() -> Bench {
    let last_port = 40_000 + STEP * STEPS - 1;
    let mut bench =
        Bench::with(SlowConfig { first_port: 40_000, last_port, held_ports: true, ..SlowConfig::default() });
    bench.world.ports =
        (0..STEPS).rev().map(|step| (0..STEP).map(|port| 40_000 + step * STEP + port).collect()).collect();
    bench
}

/// Connects number `n` of a user to the same place. Returns the port.
fn connect(bench: &mut Bench, user: u64, n: u64) -> Result<u16, ConnectError> {
    bench.frames();
    let owner = Owner(user * 1000 + n);
    bench.slow.connect(bench.now, owner, PEER, 80, None, false, &mut bench.world)?;
    Ok(bench.frame().source_port)
}

/// Connects until it fails. Returns how many connections there are.
fn connect_all(bench: &mut Bench, user: u64) -> u64 {
    let refused = (0..1000).map(|n| (n, connect(bench, user, n))).find(|(_, port)| port.is_err());
    let (count, error) = refused.expect("no end");
    assert_eq!(error, Err(ConnectError::Errno(99)));
    count
}

fn close(bench: &mut Bench, user: u64, connections: std::ops::Range<u64>) {
    for n in connections {
        assert!(bench.slow.close(bench.now, Owner(user * 1000 + n), &mut bench.world));
    }
}

#[test]
fn nobody_takes_the_last_ports() {
    let mut bench = bench();
    assert_eq!(connect_all(&mut bench, 1), 60, "three times what is left");
    assert_eq!(bench.slow.counters().out_of_ports, 1);
    assert_eq!(connect_all(&mut bench, 2), 20, "the others, though the first user keeps asking");
    assert!(connect(&mut bench, 1, 999).is_err());
    assert!(connect(&mut bench, 3, 0).is_err(), "all ports to this place are used");
    let elsewhere = bench.slow.connect(bench.now, Owner(3000), PEER, 81, None, false, &mut bench.world);
    assert_eq!(elsewhere, Ok(()), "who comes too late for ports of his own shares those of others");
    assert_eq!(bench.slow.counters().out_of_ports, 4);
}

#[test]
fn idle_ports_are_given_back_and_can_be_had_again() {
    let mut bench = bench();
    assert_eq!(connect_all(&mut bench, 1), 60);
    close(&mut bench, 1, 1..60);
    bench.pass_ms(50_000);
    assert_eq!(bench.world.given_back, [0; 0], "not yet");
    // What is used stays, with one step for whoever comes next.
    let port = connect(&mut bench, 1, 100).expect("a free port");
    assert!((40_000..40_010).contains(&port), "the first step is used first: {port}");
    bench.pass_ms(30_000);
    assert_eq!(bench.world.given_back.len(), 40, "{:?}", bench.world.given_back);
    assert!(!bench.world.given_back.contains(&port));
    let all: Vec<u16> = std::mem::take(&mut bench.world.given_back);
    bench.world.ports.push(all);
    assert_eq!(connect_all(&mut bench, 2), 60, "a full share");
    close(&mut bench, 2, 0..60);
    close(&mut bench, 1, 0..1);
    close(&mut bench, 1, 100..101);
    bench.pass_ms(100_000);
    assert_eq!(bench.slow.next_deadline(), None, "nothing wakes who has nothing to do");
}

#[test]
fn a_late_poll_gives_back_what_is_idle_and_an_early_one_does_not() {
    for (seconds, given_back) in [(59, 0), (60, 50), (500, 50)] {
        let mut bench = bench();
        connect_all(&mut bench, 1);
        close(&mut bench, 1, 0..60);
        bench.now = bench.now.after(seconds * 1_000_000);
        bench.poll();
        assert_eq!(bench.world.given_back.len(), given_back, "after {seconds} s");
    }
    let mut bench = bench();
    connect_all(&mut bench, 1);
    close(&mut bench, 1, 0..60);
    let due = bench.slow.next_deadline();
    bench.now = bench.now.after(9_999_999);
    bench.poll();
    let next = bench.slow.next_deadline();
    assert!(next == due && due.is_some(), "nothing was looked for yet");
}
