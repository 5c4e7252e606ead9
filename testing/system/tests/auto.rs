//! `auto`: connections go by both ways until it is known which is better. The first test makes its statistics up, so
//! that the decision does not depend on this machine. The other tests check that real statistics arrive.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use serde_json::Value;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use towpath_ring::command::{Command, NOT_OURS, not_ours, op};
use towpath_ring::control::{self, Reply, Request};
use towpath_ring::stats::{CarriedBy, ClassKey, StatsRegion};
use towpath_ring::wake;
use towpath_system_tests::{Program, RawClient, Service, bin, own_network, until};

/// Sends `m` requests on each of `n` connections.
const CLIENT: &str = "
import socket, sys
port, n, m = map(int, sys.argv[1:])
for i in range(n):
    s = socket.create_connection(('127.0.0.1', port))
    for j in range(m):
        s.sendall(b'ping')
        assert s.recv(4, socket.MSG_WAITALL) == b'ping'
    s.close()
";

/// Echoes until it is killed.
const SERVER: &str = "
import socket, sys
l = socket.create_server(('127.0.0.1', int(sys.argv[1])))
print('listening', flush=True)
while True:
    s, _ = l.accept()
    while True:
        b = s.recv(100)
        if not b: break
        s.sendall(b)
    s.close()
";

/// The rows of `towpath status` for a port.
fn rows(service: &Service, port: u16) -> Vec<Value> {
    let status = service.status();
    let rows = status["auto"].as_array().expect("auto").iter();
    rows.filter(|row| row["port"] == port).cloned().collect()
}

fn row(service: &Service, port: u16) -> Value {
    let mut rows = rows(service, port);
    assert_eq!(rows.len(), 1, "{rows:?}");
    rows.remove(0)
}

/// `towpath run --auto -- python3 -c SCRIPT ARGUMENTS` against this service.
fn measured(service: &Service, script: &str, arguments: &[String]) -> Program {
    let run = [bin("towpath"), "run".into(), "--require".into(), "--auto".into(), "--socket".into()];
    let mut program = Program::new(&run).arg(&service.socket).arg("--").arg("/usr/bin/python3").arg("-c").arg(script);
    for argument in arguments {
        program = program.arg(argument);
    }
    program
}

/// An echo server on the kernel; returns its port.
fn echo() -> u16 {
    own_network();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("listener");
    let port = listener.local_addr().expect("address").port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            std::thread::spawn(move || answer(stream.expect("connection")));
        }
    });
    port
}

fn answer(mut stream: TcpStream) {
    let mut bytes = [0; 4096];
    while let Ok(count @ 1..) = stream.read(&mut bytes) {
        if stream.write_all(&bytes[..count]).is_err() {
            return;
        }
    }
}

/// A client that posts commands and writes statistics itself.
struct Raw {
    client: RawClient,
    stats_region: StatsRegion,
    tail: u32,
    slot: u32,
}

impl Raw {
    fn new(service: &Service) -> Self {
        let client = RawClient::new(service);
        control::send_request(rustix::fd::AsFd::as_fd(&client.socket), &Request::Stats, &[]).expect("request");
        let (reply, memfd) = control::recv_reply(rustix::fd::AsFd::as_fd(&client.socket)).expect("reply");
        assert_eq!(reply, Reply::Stats);
        let stats_region = StatsRegion::map(rustix::fd::AsFd::as_fd(&memfd[0])).expect("stats region");
        Self { client, stats_region, tail: 0, slot: 0 }
    }

    /// By which way does a connect to this port go?
    fn way(&mut self, port: u16) -> CarriedBy {
        let RawClient { region, doorbells, .. } = &self.client;
        let here = Ipv4Addr::LOCALHOST.to_ipv6_mapped();
        let command = Command { op: op::CONNECT, remote_addr: here, remote_port: port.into(), ..Command::default() };
        let slot = region.slot(self.slot).expect("slot");
        self.slot += 1;
        let seq = region.command(slot).post(&command);
        let (app, stack) = (region.app(slot), region.stack(slot));
        region.commands().push(&mut self.tail, slot, &app.ctl_seq, &stack.ctl_ack);
        wake::notify(rustix::fd::AsFd::as_fd(doorbells.last().expect("doorbell")));
        until("the answer", 20, || stack.command_done.load(Acquire) == seq);
        match stack.command_result.load(Relaxed) {
            0 => CarriedBy::Stack,
            result => {
                assert_eq!(result, NOT_OURS + not_ours::POLICY as i32);
                CarriedBy::Kernel
            }
        }
    }

    /// Writes statistics: ten thousand requests, this CPU time for each, answers after 20 µs.
    fn figures(&self, port: u16, way: CarriedBy, cpu_ns: u64) {
        let class = self
            .stats_region
            .class(self.stats_region.enter(ClassKey::connected(port, true)).expect("class"))
            .expect("class");
        let sums = &class.by_carrier[way as usize];
        sums.connections.fetch_add(10, Relaxed);
        sums.turns.fetch_add(10_000, Relaxed);
        sums.calls.fetch_add(20_000, Relaxed);
        sums.sent.fetch_add(640_000, Relaxed);
        sums.cpu_calls.fetch_add(20_000, Relaxed);
        sums.cpu_ns.fetch_add(10_000 * cpu_ns, Relaxed);
        (0..100).for_each(|_| sums.waited(20_000));
    }
}

#[test]
fn what_gains_by_the_stack_goes_there_and_what_does_not_stays_on_the_kernel() {
    let service = Service::kernel();
    let mut raw = Raw::new(&service);
    // Nobody needs to listen, because only the way of the attempt matters.
    let (good, bad) = (7551, 7552);
    for port in [good, bad] {
        let ways: Vec<CarriedBy> = (0..20).map(|_| raw.way(port)).collect();
        assert!(ways.chunks(2).all(|pair| pair[0] != pair[1]), "{ways:?}");
    }
    assert_eq!(row(&service, good)["decision"], "trial");
    for (port, stack_ns) in [(good, 500), (bad, 2000)] {
        raw.figures(port, CarriedBy::Stack, stack_ns);
        raw.figures(port, CarriedBy::Kernel, 1000);
    }
    until("decisions", 20, || row(&service, good)["decision"] != "trial" && row(&service, bad)["decision"] != "trial");
    assert!((0..20).all(|_| raw.way(good) == CarriedBy::Stack && raw.way(bad) == CarriedBy::Kernel));
    let (good, bad) = (row(&service, good), row(&service, bad));
    assert_eq!((&good["decision"], &good["reason"]), (&"stack".into(), &"the stack gains (+100 %)".into()));
    assert_eq!((&bad["decision"], &bad["reason"]), (&"kernel".into(), &"the stack loses (-50 %)".into()));
    assert_eq!((&bad["stack"]["cpu_ns"], &bad["kernel"]["cpu_ns"]), (&2000.into(), &1000.into()));
    assert!(bad["again_us"].as_u64().is_some_and(|us| us > 200_000_000), "{bad}");
    let page = Program::new(&[bin("towpath")]).arg("status").arg("--socket").arg(&service.socket).run(20).ok();
    assert!(page.contains("500 ns / 1.0 µs per request") && page.contains("the stack loses (-50 %)"), "{page}");
}

#[test]
fn both_ways_of_a_programs_connections_are_measured() {
    let service = Service::kernel();
    let port = echo();
    let arguments = [port, 20, 50].map(|number| number.to_string());
    let before = service.stage("sent_bytes");
    measured(&service, CLIENT, &arguments).run(60).ok();
    // All ports that the kernel chooses are one class.
    let row = row(&service, 0);
    assert_eq!((&row["direction"], &row["scope"]), (&"connect".into(), &"host".into()));
    for way in ["stack", "kernel"] {
        let side = &row[way];
        assert_eq!(
            (&side["connections"], &side["turns"], &side["bytes"]),
            (&10.into(), &500.into(), &4000.into()),
            "{row}"
        );
        assert!(side["cpu_ns"].as_u64().is_some_and(|ns| ns > 0), "{row}");
    }
    assert_eq!(row["decision"], "trial", "so few requests decide nothing");
    until("the stack has carried half of it", 20, || service.stage("sent_bytes") - before == 2000);
}

#[test]
fn a_server_goes_one_way_in_each_run_and_both_are_measured() {
    let service = Service::kernel();
    let run = |number: u32, listeners: usize| {
        let log = service.scratch.path(&format!("server{number}.log"));
        let mut server = measured(&service, SERVER, &["7553".into()]).start(log);
        server.wait_for("listening", 20);
        let sockets = service.sockets();
        let listening = sockets["sockets"].as_array().expect("sockets").iter().filter(|s| s["state"] == "LISTEN");
        assert_eq!(listening.count(), listeners, "run {number}");
        Program::new(&["/usr/bin/python3", "-c", CLIENT, "7553", "3", "40"]).run(60).ok();
        server.stop();
        until("the program has gone", 20, || service.status()["clients"].as_array().expect("clients").is_empty());
    };
    run(1, 1);
    run(2, 0);
    let row = row(&service, 7553);
    assert_eq!((&row["direction"], &row["decision"]), (&"accept".into(), &"trial".into()));
    for way in ["stack", "kernel"] {
        assert_eq!((&row[way]["connections"], &row[way]["turns"]), (&3.into(), &120.into()), "{row}");
    }
}

#[test]
fn the_configuration_measures_every_program_and_without_it_none_is() {
    let port = echo();
    let line = [port, 4, 10].map(|number| number.to_string());
    let client = |service: &Service| {
        let program = service.accelerated("/usr/bin/python3 -c").arg(CLIENT);
        line.iter().fold(program, |program, argument| program.arg(argument)).run(60).ok();
        rows(service, 0).len()
    };
    assert_eq!(client(&Service::kernel()), 0);
    let service = Service::start(|program| program.arg("--stack").arg("kernel").arg("--auto").arg("true"));
    assert_eq!(client(&service), 1);
    let refused = Program::line("serve --stack uml --auto true").under(&[bin("towpath")]).run(20);
    assert_eq!(refused.code, 2);
    assert!(refused.err.contains("auto: the other kernel has a network of its own"), "{}", refused.err);
}
