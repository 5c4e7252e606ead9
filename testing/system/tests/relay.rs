//! `towpath-impair` between two veths: a Linux transfer through it, and its counters.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use serde_json::Value;
use towpath_system_tests::program::Running;
use towpath_system_tests::wire::Wire;
use towpath_system_tests::{bin, require_program, until};

/// The segments that A's kernel has retransmitted.
fn retransmitted(wire: &Wire) -> u64 {
    let text = wire.on(0, "cat /proc/net/snmp").run(10).ok();
    let tcp: Vec<&str> = text.lines().filter(|line| line.starts_with("Tcp:")).collect();
    let column = tcp[0].split_whitespace().position(|name| name == "RetransSegs").expect("RetransSegs");
    tcp[1].split_whitespace().nth(column).expect("value").parse().expect("number")
}

fn transfer(wire: &Wire, bytes: &str) {
    require_program("iperf3", "iperf3");
    let mut server = wire.on(1, "iperf3 -s -1 -4 -p 9102 --forceflush").start(wire.scratch.path("iperf3.log"));
    server.wait_for("Server listening", 10);
    wire.on(0, &format!("iperf3 -4 -c 10.77.1.2 -p 9102 -n {bytes} -J")).run(60).ok();
    server.wait_end(20);
}

/// The newest counters in the relay's output.
fn counters(relay: &Running) -> Option<Value> {
    let output = relay.output();
    let line = output.lines().rfind(|line| line.contains("a_to_b"))?;
    serde_json::from_str(line).ok()
}

#[test]
fn a_linux_transfer_passes_the_relay_and_meets_the_losses_that_it_counts() {
    let wire = Wire::new();
    let mut relay = wire.relay("--loss 1% --delay 2ms --rate 100mbit --queue 256k --one-way --seed 7");
    transfer(&wire, "8M");
    // When the programs of the transfer have ended, the last acknowledgements are still delayed by 2 ms.
    until("nothing is under way", 20, || {
        relay.signal(libc::SIGUSR1);
        counters(&relay).is_some_and(|report| {
            let there = |name: &str| report["a_to_b"][name].as_u64().expect("a counter");
            there("frames_in") == there("frames_out") + there("lost") + there("queue_full")
        })
    });
    relay.stop();
    let report = counters(&relay).expect("counters at the end");
    let there = |name: &str| report["a_to_b"][name].as_u64().expect("a counter");
    // 8 MB in segments of 1448 bytes, cut from the super-frames that the kernel makes.
    assert!((5_500..8_000).contains(&there("frames_in")), "{report}");
    assert!((there("bytes_in") / there("frames_in")) < 1515, "no super-frames: {report}");
    assert!((30..100).contains(&there("lost")), "1 % of about 6,000: {report}");
    assert_eq!(there("frames_in"), there("frames_out") + there("lost") + there("queue_full"), "{report}");
    assert_eq!(report["b_to_a"]["lost"], 0, "one way: {report}");
    assert!(retransmitted(&wire) >= there("lost") / 2, "Linux has noticed: {} of {report}", retransmitted(&wire));
}

#[test]
fn the_delay_is_that_of_the_wire_and_an_idle_relay_sleeps() {
    require_program("ping", "iputils-ping");
    let wire = Wire::new();
    let relay = wire.relay("--delay 10ms");
    // A ping never takes less, and no longer once the machine has time for one of them.
    until("a ping takes as long as the wire", 60, || {
        let out = wire.on(0, "ping -c 5 -i 0.2 10.77.1.2").run(20).ok();
        let line = out.lines().find(|line| line.contains("min/avg/max")).expect("summary");
        let least: f64 = line.split(['=', '/']).nth(4).expect("minimum").trim().parse().expect("number");
        assert!(least >= 20.0, "{line}");
        least < 23.0
    });

    let ticks = || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", relay.pid())).expect("stat");
        let fields: Vec<u64> =
            stat.rsplit(')').next().unwrap().split_whitespace().filter_map(|f| f.parse().ok()).collect();
        // After the state letter: utime and stime are the 11th and 12th numbers.
        fields[10] + fields[11]
    };
    let before = ticks();
    std::thread::sleep(std::time::Duration::from_millis(1500));
    assert!(ticks() - before <= 3, "an idle relay ran for {} of 150 ticks", ticks() - before);

    relay.signal(libc::SIGUSR1);
    until("counters at SIGUSR1", 5, || counters(&relay).is_some_and(|report| report["b_to_a"]["frames_out"] != 0));
}

#[test]
fn what_cannot_be_opened_is_named() {
    let wire = Wire::new();
    let line = format!("{} --a wire-a --b nothing", bin("towpath-impair").display());
    let end = wire.on(2, &line).run(10);
    assert_eq!(end.code, 1);
    assert!(end.err.contains("nothing: no such interface"), "{}", end.err);
}
