//! The kernel stack without shared memory: a server process, also in another network namespace, at the other end of a
//! byte stream.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use std::path::Path;
use std::time::Duration;
use towpath_system_tests::guest::{ATTEMPTS, WAITER, kill_under};
use towpath_system_tests::program::Running;
use towpath_system_tests::{
    Program, Scratch, Service, bin, bin_dir, own_network, require_program, require_root, until,
};

/// The server of a remote stack, and a service whose sockets are there.
struct Remote {
    service: Service,
    server: Running,
    _scratch: Scratch,
}

impl Remote {
    /// `complete` decides where the server runs.
    fn start(complete: impl Fn(Program) -> Program) -> Self {
        own_network();
        let scratch = Scratch::new("remote");
        let address = format!("unix:{}", scratch.path("server.sock").display());
        let server = Program::new(&[bin("towpath")]).arg("kernel-stack").arg("--listen").arg(&address);
        let mut server = complete(server).start(scratch.path("server.log"));
        server.wait_for("serving", 20);
        let service = Service::start(|program| program.arg("--stack").arg("remote").arg("--remote").arg(&address));
        Self { service, server, _scratch: scratch }
    }
    fn here() -> Self {
        Self::start(|program| program)
    }
}

/// A network namespace with only a loopback device, whose address 10.96.7.1 this host does not have.
struct Elsewhere(String);

impl Elsewhere {
    fn new() -> Self {
        require_root();
        require_program("ip", "iproute2");
        let elsewhere = Self(format!("remote-{}", std::process::id()));
        Program::line(&format!("ip netns add {}", elsewhere.0)).run(10).ok();
        elsewhere.run("ip link set lo up");
        elsewhere.run("ip addr add 10.96.7.1/24 dev lo");
        elsewhere
    }
    fn within(&self) -> [&str; 4] {
        ["ip", "netns", "exec", &self.0]
    }
    fn run(&self, line: &str) -> String {
        Program::line(line).under(&self.within()).run(60).ok()
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        Program::line(&format!("ip netns del {}", self.0)).run(10);
    }
}

const CONVERSATION: &str = "import socket, threading
l = socket.socket(); l.bind(('127.0.0.1', 0)); l.listen()
c = socket.create_connection(l.getsockname()); a, _ = l.accept()
for n in range(60):
    t = threading.Thread(target=a.sendall, args=(bytes([n]) * 100_000,)); t.start()
    got = b''
    while len(got) < 100_000: got += c.recv(65_536)
    assert got == bytes([n]) * 100_000
    t.join()
c.shutdown(socket.SHUT_WR); assert a.recv(1) == b''
a.close(); assert c.recv(1) == b''
print('whole')";

#[test]
fn a_program_has_its_sockets_at_the_other_end_of_a_byte_stream() {
    let remote = Remote::here();
    let out = remote.service.accelerated("/usr/bin/python3 -c").arg(CONVERSATION).run(60).ok();
    assert_eq!(out.trim(), "whole");
    assert_eq!(remote.service.status()["stack"], "remote");
    assert!(remote.service.stage("sent_bytes") >= 6_000_000, "{}", remote.service.status());
    assert_eq!(remote.service.stage("accepts"), 1);
    until("all slots are free again", 20, || remote.service.sockets()["sockets"].as_array().is_none_or(Vec::is_empty));
}

#[test]
fn programs_speak_with_others_where_the_server_is() {
    for (program, package) in [("curl", "curl"), ("redis-server", "redis-server")] {
        require_program(program, package);
    }
    let elsewhere = Elsewhere::new();
    let remote = Remote::start(|program| program.under(&elsewhere.within()));
    let service = &remote.service;
    // A client reaches a server in the namespace, which no other program of this host can reach.
    let body = "towpath ".repeat(200_000);
    std::fs::write(service.scratch.path("body"), &body).expect("body");
    let mut server = Program::line("/usr/bin/python3 -u -m http.server 7621 --bind 10.96.7.1")
        .under(&elsewhere.within())
        .dir(&service.scratch.0)
        .start(service.scratch.path("http.log"));
    server.wait_for("Serving HTTP", 20);
    let line = "curl -sS --noproxy * --max-time 80 http://10.96.7.1:7621/body";
    assert!(service.accelerated(line).run(40).ok() == body);
    assert!(service.stage("received_bytes") >= body.len() as u64);
    // A server in the namespace is reached.
    let mut redis = service
        .accelerated("redis-server --port 7622 --bind 0.0.0.0 --protected-mode no --save")
        .arg("")
        .arg("--daemonize")
        .arg("no")
        .dir(&service.scratch.0)
        .start(service.scratch.path("redis.log"));
    redis.wait_for("Ready to accept connections", 30);
    let out = elsewhere.run("redis-benchmark -h 10.96.7.1 -p 7622 -t get,set -n 5000 -c 50 -P 4 -q");
    assert!(out.contains("GET:") && out.contains("SET:"), "{out}");
    assert_eq!(elsewhere.run("redis-cli -h 10.96.7.1 -p 7622 set colour green").trim(), "OK");
    assert_eq!(elsewhere.run("redis-cli -h 10.96.7.1 -p 7622 get colour").trim(), "green");
    assert!(!Program::line("ss -tln").run(10).ok().contains(":7622 "), "this kernel does not listen");
    let exec = Program::new(&[bin("towpath")]).arg("exec").arg("--socket").arg(&service.socket).arg("--");
    assert!(exec.arg("ss").arg("-tln").run(20).ok().contains(":7622 "), "the server's kernel does");
    redis.signal(libc::SIGTERM);
    redis.wait_end(20);
    until("the listener is gone there", 20, || !elsewhere.run("ss -tln").contains(":7622 "));
}

#[test]
fn a_server_that_is_killed_resets_its_sockets_within_a_tenth_of_a_second() {
    let mut best = Duration::MAX;
    for _ in 0..ATTEMPTS {
        let remote = Remote::here();
        let log = remote.service.scratch.path("waiter.log");
        let mut waiter = remote.service.accelerated("/usr/bin/python3 -u -c").arg(WAITER).start(log);
        let (said, took) = kill_under(&mut waiter, || remote.server.signal(libc::SIGKILL));
        assert!(said.contains(&format!("then {}", libc::ENETDOWN)), "{said}");
        until("the service logs it", 10, || remote.service.running.output().contains("the remote stack is lost"));
        best = best.min(took);
        if best <= Duration::from_millis(100) {
            return;
        }
    }
    panic!("it took {best:?} at best");
}

/// A service whose server is in its own process, over RDMA verbs without an adapter.
fn verbs(seed: u64, fails: u64) -> Service {
    let address = format!("software-verbs:{seed}:{fails}");
    Service::start(|program| program.arg("--stack").arg("remote").arg("--remote").arg(&address))
}

#[test]
fn a_program_has_its_sockets_behind_rdma_verbs_that_delay_tear_and_reorder() {
    for seed in 1..=3 {
        let service = verbs(seed, 0);
        let out = service.accelerated("/usr/bin/python3 -c").arg(CONVERSATION).run(120).ok();
        assert_eq!(out.trim(), "whole", "seed {seed}");
        assert!(service.stage("sent_bytes") >= 6_000_000 && service.stage("accepts") == 1, "{}", service.status());
        // The regions of several programs are on different queue pairs.
        let logs: Vec<_> = (0..4).map(|n| service.scratch.path(&format!("{n}.log"))).collect();
        let start = |log| service.accelerated("/usr/bin/python3 -c").arg(CONVERSATION).start(log);
        let mut all: Vec<Running> = logs.iter().map(start).collect();
        for one in &mut all {
            one.wait_end(120);
            assert_eq!(one.output().trim(), "whole", "seed {seed}");
        }
    }
}

const ENDLESS: &str = "import socket, threading, time
l = socket.socket(); l.bind(('127.0.0.1', 0)); l.listen()
c = socket.create_connection(l.getsockname()); a, _ = l.accept()
errors = []
def call(function):
    try:
        while function(): pass
    except OSError as error: errors.append((error.errno, time.monotonic_ns()))
threads = [threading.Thread(target=call, args=(f,)) for f in [lambda: a.send(b'x' * 9000), lambda: c.recv(65536)]]
for t in threads: t.start()
for t in threads: t.join(60)
print(sorted(error[0] for error in errors))";

#[test]
fn a_write_that_the_adapter_reports_as_failed_is_the_end_of_the_stack() {
    let service = verbs(1, 3_000);
    let out = service.accelerated("/usr/bin/python3 -c").arg(ENDLESS).run(120).ok();
    assert!(out.trim() == "[104, 104]" || out.trim() == "[32, 104]", "{out}");
    let log = service.running.output();
    assert!(log.contains("the remote stack is lost: a write has failed"), "{log}");
    let after =
        "import socket\ntry: socket.create_connection(('127.0.0.1', 9), 5)\nexcept OSError as e: print(e.errno)";
    let out = service.accelerated("/usr/bin/python3 -c").arg(after).run(30);
    assert!(out.code != 0 || out.out.trim() == libc::ENETDOWN.to_string(), "{} {}", out.out, out.err);
}

#[test]
fn a_server_outlives_its_services_and_ends_their_sockets() {
    let remote = Remote::here();
    let Remote { service, server, _scratch } = remote;
    let listen = "import socket, time\nl = socket.socket(); l.bind(('127.0.0.1', 7639)); l.listen(); print('up', flush=True)\ntime.sleep(100)";
    let log = service.scratch.path("listen.log");
    let mut listener = service.accelerated("/usr/bin/python3 -u -c").arg(listen).start(log);
    listener.wait_for("up", 20);
    let listens = || Program::line("ss -tlnH sport = :7639").run(10).ok().contains(":7639");
    assert!(listens(), "the server listens");
    drop(service);
    until("nothing listens there", 20, || !listens());
    listener.stop();
    let address = format!("unix:{}", _scratch.path("server.sock").display());
    let next = Service::start(|program| program.arg("--stack").arg("remote").arg("--remote").arg(&address));
    assert_eq!(next.accelerated("/usr/bin/python3 -c").arg(CONVERSATION).run(60).ok().trim(), "whole");
    drop(server);
}

#[test]
fn over_tcp_programs_have_their_sockets_and_no_program_runs_there() {
    own_network();
    let scratch = Scratch::new("remote-tcp");
    let token = scratch.path("token");
    let towpath = || Program::new(&[bin("towpath")]).arg("kernel-stack");
    towpath().arg("--make-token").arg(&token).run(20).ok();
    let listen = towpath().arg("--listen").arg("tcp:127.0.0.1:0").arg("--token").arg(&token);
    let mut server = listen.start(scratch.path("server.log"));
    server.wait_for("serving", 20);
    let log = server.output();
    let port = log.split("address=tcp:127.0.0.1:").nth(1).expect("its port in the log");
    let port: String = port.chars().take_while(char::is_ascii_digit).collect();
    let address = format!("tcp:127.0.0.1:{port}");
    let service = Service::start(|program| {
        program.arg("--stack").arg("remote").arg("--remote").arg(&address).arg("--token").arg(&token)
    });
    assert_eq!(service.accelerated("/usr/bin/python3 -c").arg(CONVERSATION).run(60).ok().trim(), "whole");
    assert!(service.stage("sent_bytes") >= 6_000_000);
    let exec = Program::new(&[bin("towpath")]).arg("exec").arg("--socket").arg(&service.socket).arg("--").arg("true");
    assert_ne!(exec.run(20).code, 0, "a token is a right to the network, not to programs");
}

#[test]
fn a_server_that_cannot_be_reached_is_named() {
    let connect = |address: &str| {
        let name = format!("none-{}", std::process::id());
        let program = Program::new(&[bin("towpath")]).arg("kernel-stack").arg("--name").arg(&name);
        program.arg("--connect").arg(address).run(30)
    };
    assert_eq!(connect("/run/nowhere").code, 2, "no address");
    let nobody = connect("unix:/nowhere/server.sock");
    assert!(nobody.code == 1 && nobody.err.contains("unix:/nowhere/server.sock"), "{}", nobody.err);
}

/// Runs the conformance cases of `epoll`: an answer to a call is no edge for a program that watches the socket.
#[test]
fn epoll_on_sockets_of_a_remote_stack_is_as_on_the_kernels() {
    require_program("gcc", "gcc");
    let remote = Remote::here();
    let compare = Path::new(env!("CARGO_MANIFEST_DIR")).join("posix/compare");
    let command =
        Program::new(&[compare]).arg("--bin").arg(bin_dir()).arg("--kernel-stack").arg(&remote.service.socket);
    let compared = command.arg("epoll.").run(300);
    assert_eq!(compared.code, 0, "{}{}", compared.out, compared.err);
    assert!(remote.service.stage("accepts") > 10, "the remote stack has carried the cases");
}
