//! The policy's rules about peers hold for both halves of a listener. The kernel's half accepts from plain programs of this
//! host and by other interfaces.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use serde_json::Value;
use towpath_system_tests::namespace::SERVER;
use towpath_system_tests::program::Running;
use towpath_system_tests::{Lab, Program, Service, bin, require_root, until};

/// The addresses on a second link, which is not served.
const BESIDE: [&str; 2] = ["10.78.0.1", "10.78.0.2"];
const PORT: u16 = 7830;
const DENIED: &str = "TimeoutError";
const ACCEPTED: &str = "connected";

/// Listens for both families and closes what it accepts.
const SERVING: &str = "
import socket, sys
s = socket.create_server(('::', int(sys.argv[1])), family=socket.AF_INET6, dualstack_ipv6=True)
print('up', flush=True)
while True: s.accept()[0].close()
";

/// Connects: the errno's name, `TimeoutError` or `connected`.
const KNOCKING: &str = "
import socket, sys, errno
try: socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=float(sys.argv[3])); print('connected')
except TimeoutError: print('TimeoutError')
except OSError as e: print(errno.errorcode[e.errno])
";

fn knocking(to: &str, expected: &str) -> Program {
    let seconds = if expected == DENIED { "1.5" } else { "60" };
    Program::new(&["python3", "-c", KNOCKING]).arg(to).arg(PORT.to_string()).arg(seconds)
}

fn policy(service: &Service, line: &str) -> String {
    let command = Program::new(&[bin("towpath")]).arg("policy").arg("--socket").arg(&service.socket);
    line.split_whitespace().fold(command, Program::arg).run(20).ok()
}

fn hits(service: &Service) -> Vec<u64> {
    let listing: Value = serde_json::from_str(&policy(service, "--json list")).expect("JSON");
    listing["rules"].as_array().expect("rules").iter().map(|rule| rule["hits"].as_u64().expect("hits")).collect()
}

/// A service on an interface, and a link beside it that is not served.
struct Peers {
    lab: Lab,
    service: Service,
}

impl Peers {
    fn new() -> Self {
        let lab = Lab::new();
        lab.add_ipv6();
        let (server, client, [ours, theirs]) = (&lab.server, &lab.client, BESIDE);
        for line in [
            format!("ip link add eth2 netns {server} type veth peer name eth2 netns {client}"),
            format!("ip -n {server} addr add {ours}/24 dev eth2"),
            format!("ip -n {client} addr add {theirs}/24 dev eth2"),
            format!("ip -n {server} link set eth2 up"),
            format!("ip -n {client} link set eth2 up"),
        ] {
            Program::line(&line).run(10).ok();
        }
        let service = Service::on_interface(&lab);
        Self { lab, service }
    }

    fn server(&self) -> Running {
        let program = self.service.accelerated("python3 -c").arg(SERVING).arg(PORT.to_string());
        let mut server = self.lab.on_server(program).start(self.service.scratch.path("server.log"));
        server.wait_for("up", 60);
        server
    }

    /// A plain program of this host connects to this address.
    fn expect_local(&self, to: &str, expected: &str) {
        let said = self.lab.on_server(knocking(to, expected)).run(90).ok();
        assert_eq!(said.trim(), expected, "from this host to {to}");
    }

    /// A plain program of another host does.
    fn expect_peer(&self, to: &str, expected: &str) {
        let said = self.lab.on_client(knocking(to, expected)).run(90).ok();
        assert_eq!(said.trim(), expected, "from a peer to {to}");
    }

    /// An accelerated program of this host does.
    fn expect_joined(&self, to: &str, expected: &str) {
        let program = self.service.accelerated("python3 -c").arg(KNOCKING).arg(to).arg(PORT.to_string()).arg("60");
        assert_eq!(self.lab.on_server(program).run(90).ok().trim(), expected, "an accelerated one to {to}");
    }

    fn halves(&self) -> Value {
        let sockets = self.service.sockets();
        let listener = sockets["sockets"].as_array().unwrap().iter().find(|s| s["state"] == "LISTEN").cloned();
        listener.expect("a listener")["halves"].clone()
    }
}

#[test]
fn a_denied_peer_is_accepted_by_neither_half() {
    let peers = Peers::new();
    let service = &peers.service;
    let _server = peers.server();
    for to in ["127.0.0.1", "::1", SERVER, BESIDE[0]] {
        peers.expect_local(to, ACCEPTED);
    }
    policy(service, &format!("add deny accept from 127.0.0.0/8 port {PORT}"));
    policy(service, "add deny accept from 10.78.0.2 with reset");
    policy(service, "add deny accept from ::1");
    policy(service, "add deny accept from ::/0 port 1");
    peers.expect_local("127.0.0.1", DENIED);
    peers.expect_local("::1", DENIED);
    peers.expect_peer(BESIDE[0], DENIED);
    for to in [SERVER, BESIDE[0]] {
        peers.expect_local(to, ACCEPTED);
    }
    for to in [SERVER, "fd77::1"] {
        peers.expect_peer(to, ACCEPTED);
    }
    let hits = hits(service);
    assert!(hits[..3].iter().all(|hits| *hits > 0) && hits[3] == 0, "{hits:?}");
    let (refused, status) = (hits.iter().sum::<u64>(), service.status());
    assert_eq!(peers.halves()["refused"], refused);
    assert_eq!((&status["listeners"]["refused"], &status["policy"]["denied"]), (&refused.into(), &refused.into()));
    let log = service.running.output();
    assert!(log.contains("for the kernel half of listeners denied by rule 1 (drop)"), "{log}");
    policy(service, "flush");
    peers.expect_local("127.0.0.1", ACCEPTED);
    peers.expect_peer(BESIDE[0], ACCEPTED);
}

#[test]
fn rules_about_peers_outlive_the_service_and_end_with_the_listener() {
    for killed in [true, false] {
        let mut peers = Peers::new();
        policy(&peers.service, "add deny accept from 127.0.0.1");
        let server = peers.server();
        peers.expect_local("127.0.0.1", DENIED);
        let service = &mut peers.service.running;
        if killed {
            // The process that serves, and the other one, so that none is started again.
            let worker = service.worker();
            service.signal(libc::SIGKILL);
            // SAFETY: `kill` takes numbers and no memory. The process is the service's.
            unsafe { libc::kill(worker, libc::SIGKILL) };
            service.wait_end(20);
        } else {
            service.stop();
        }
        peers.expect_local("127.0.0.1", DENIED);
        peers.expect_local(SERVER, ACCEPTED);
        drop(server);
        let plain = Program::new(&["python3", "-c", SERVING]).arg(PORT.to_string());
        let mut plain = peers.lab.on_server(plain).start(peers.service.scratch.path("plain.log"));
        plain.wait_for("up", 60);
        peers.expect_local("127.0.0.1", ACCEPTED);
    }
}

#[test]
fn a_listener_that_may_have_accelerated_connections_only_has_no_others() {
    let peers = Peers::new();
    let service = &peers.service;
    policy(service, &format!("add allow listen port {PORT} only accelerated"));
    let _server = peers.server();
    peers.expect_local("127.0.0.1", DENIED);
    peers.expect_local(SERVER, DENIED);
    peers.expect_peer(BESIDE[0], DENIED);
    peers.expect_peer(SERVER, ACCEPTED);
    peers.expect_peer("fd77::1", ACCEPTED);
    peers.expect_joined("127.0.0.1", ACCEPTED);
    until("what was accepted is counted", 20, || peers.halves()["accelerated"] == 3);
    let halves = peers.halves();
    assert!(halves["kernel"] == 0 && halves["refused"].as_u64() >= Some(3), "{halves}");
    // It has decided the listen, and refused the others.
    assert_eq!(hits(service), [1 + halves["refused"].as_u64().unwrap()]);
    policy(service, "flush");
    peers.expect_local("127.0.0.1", ACCEPTED);
    policy(service, &format!("add allow listen port {PORT} only accelerated"));
    peers.expect_local("127.0.0.1", DENIED);
}

#[test]
fn a_service_without_an_interface_denies_plain_programs_too() {
    require_root();
    let service = Service::embedded();
    let program = service.accelerated("python3 -c").arg(SERVING).arg(PORT.to_string());
    let mut server = program.start(service.scratch.path("server.log"));
    server.wait_for("up", 60);
    let knock = |expected: &str| assert_eq!(knocking("127.0.0.1", expected).run(90).ok().trim(), expected);
    knock(ACCEPTED);
    policy(&service, &format!("add deny accept from 127.0.0.1 port {PORT}"));
    knock(DENIED);
    policy(&service, "add allow accept");
    policy(&service, "delete 1");
    knock(ACCEPTED);
    assert!(service.status()["listeners"]["refused"].as_u64() >= Some(1));
}
