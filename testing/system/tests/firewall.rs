//! The kernel's firewall judges the first SYN of each connection over the interface, both ways. Programs see what Linux
//! shows them.
#![allow(clippy::expect_used)]

use std::sync::atomic::{AtomicU16, Ordering};
use towpath_system_tests::namespace::{CLIENT, CLIENT6, SERVER, SERVER6};
use towpath_system_tests::program::Running;
use towpath_system_tests::{Lab, Program, Service, bin, require_program};

const PORT: &str = "7840";
/// Bound ports in use.
static NEXT: AtomicU16 = AtomicU16::new(0);

/// Listens for both families and answers each connection with a byte.
const SERVING: &str = "
import socket, sys
s = socket.create_server(('::', int(sys.argv[1])), family=socket.AF_INET6, dualstack_ipv6=True, backlog=64)
print('up', flush=True)
while True:
    c = s.accept()[0]
    try: c.sendall(b'x'); c.close()
    except OSError: pass
";

/// Connects, and prints the result and its class of time: at once, after a SYN was repeated, or never.
const KNOCKING: &str = "
import socket, sys, errno, time
to, port, source, blocks = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == 'blocks'
s = socket.socket(socket.AF_INET6 if ':' in to else socket.AF_INET)
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
if source: s.bind(('', source))
began = time.monotonic()
try:
    s.settimeout(2.5 if not blocks else None)
    if blocks: s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, (2).to_bytes(8, 'little') + (500000).to_bytes(8, 'little'))
    s.connect((to, port)); s.settimeout(20); said = s.recv(1).decode()
except (TimeoutError, BlockingIOError): said = 'timeout'
except OSError as e: said = errno.errorcode[e.errno]
took = time.monotonic() - began
print(said, 'at once' if took < 0.8 else 'later' if said != 'timeout' else 'never')
";

/// A service on the lab's server side, and a plain server on the other.
struct Walls {
    lab: Lab,
    service: Service,
    _echo: Running,
}

impl Walls {
    fn new(complete: impl FnOnce(Program) -> Program) -> Self {
        require_program("nft", "nftables");
        let lab = Lab::new();
        lab.add_ipv6();
        let service = Service::start(|program| {
            lab.on_server(complete(program.arg("--interface").arg("eth1").arg("--admit").arg("all")))
        });
        let echo = Program::new(&["python3", "-u", "-c", SERVING]).arg(PORT);
        let mut echo = lab.on_client(echo).start(service.scratch.path("echo.log"));
        echo.wait_for("up", 60);
        Self { lab, service, _echo: echo }
    }

    /// These are the only rules of the service's namespace.
    fn rules(&self, rules: &str) {
        let text = format!("flush ruleset; {rules}");
        self.lab.on_server(Program::new(&["nft", &text])).run(10).ok();
    }

    /// What a program on the service's side hears from `to`: with the service, or plain.
    fn hears(&self, accelerated: bool, to: &str, source: u16, way: &str) -> String {
        let words = |program: Program| program.arg(KNOCKING).arg(to).arg(PORT).arg(source.to_string()).arg(way);
        let program = match accelerated {
            true => words(self.service.accelerated("python3 -c")),
            false => words(Program::new(&["python3", "-c"])),
        };
        self.lab.on_server(program).run(60).ok().trim().to_owned()
    }

    /// Connections that the stack has opened, and those that the firewall has given to the kernel.
    fn counts(&self) -> (u64, u64) {
        let status = self.service.status();
        let count = |value: &serde_json::Value| value.as_u64().expect("a count");
        (count(&status["slow"]["opened"]), count(&status["kernel"]["firewall"]))
    }

    /// Both hear the same, and the stack has opened or given away this many.
    fn expect(&self, rules: &str, to: &str, expected: &str, (opened, given): (u64, u64)) {
        self.rules(rules);
        // The peer remembers the numbers of the last connection from a port, so each connection has its own.
        let ways = [("waits", true), ("blocks", false)];
        for (way, source) in ways.into_iter().take(if to.contains(':') { 1 } else { 2 }) {
            let port = || if source { 20_000 + NEXT.fetch_add(1, Ordering::Relaxed) } else { 0 };
            let linux = self.hears(false, to, port(), way);
            assert!(same(&linux, expected), "Linux, {to}, {way}: {linux}, {rules}");
            let before = self.counts();
            let ours = self.hears(true, to, port(), way);
            assert!(same(&ours, expected), "{to}, {way}: {ours}, {rules}");
            let after = self.counts();
            assert_eq!((after.0 - before.0, after.1 - before.1), (opened, given), "{to}, {way}: {rules}");
        }
    }
}

/// Is this the expected result? An ICMP error may be heard at once, or only when the SYN is repeated, also on Linux: the
/// kernel limits how often it sends them, and a socket may be in use when one comes.
fn same(said: &str, expected: &str) -> bool {
    said == expected || expected.strip_suffix(" in some time").is_some_and(|word| said.starts_with(word))
}

fn output(rule: &str) -> String {
    format!(
        "add table inet t; add chain inet t out {{ type filter hook output priority 0; }}; add rule inet t out {rule}"
    )
}

/// nftables, as iptables is on most hosts. Without rules all is as before.
#[test]
fn an_active_open_that_the_firewall_refuses_ends_as_on_linux() {
    let walls = Walls::new(|program| program);
    let tcp = format!("tcp dport {PORT}");
    for to in [CLIENT, CLIENT6] {
        walls.expect("", to, "x at once", (1, 0));
        walls.expect(&output(&format!("{tcp} drop")), to, "timeout never", (0, 1));
        walls.expect(&output(&format!("{tcp} reject with tcp reset")), to, "ECONNREFUSED at once", (0, 1));
        walls.expect(&output(&format!("{tcp} reject")), to, "ECONNREFUSED in some time", (0, 1));
        walls.expect(&output(&format!("{tcp} reject with icmpx admin-prohibited")), to, &prohibited(to), (0, 1));
    }
    let elsewhere = output(&format!("tcp dport 9 drop; add rule inet t out {tcp} accept; add rule inet t out drop"));
    walls.expect(&elsewhere, CLIENT, "x at once", (1, 0));
    // The rules of forwarded and routed packets hold as well.
    let postrouting = format!(
        "add table inet t; add chain inet t post {{ type filter hook postrouting priority 0; }}; \
         add rule inet t post {tcp} drop"
    );
    walls.expect(&postrouting, CLIENT, "timeout never", (0, 1));
}

/// The errno of an error that says that it is prohibited: it differs by family on Linux.
fn prohibited(to: &str) -> String {
    let errno = if to.contains(':') { "EACCES" } else { "EHOSTUNREACH" };
    format!("{errno} in some time")
}

/// A rule that changes the SYN's addresses: only the kernel can carry the connection.
#[test]
fn an_active_open_that_the_firewall_translates_is_the_kernels() {
    let walls = Walls::new(|program| program);
    let nat = |hook: &str, rule: &str| {
        let priority = if hook == "output" { -100 } else { 100 };
        format!(
            "add table ip t; add chain ip t c {{ type nat hook {hook} priority {priority}; }}; add rule ip t c {rule}"
        )
    };
    let elsewhere = nat("output", &format!("ip daddr 10.99.0.1 dnat to {CLIENT}"));
    Program::line(&format!("ip -n {} route add 10.99.0.0/24 via {CLIENT}", walls.lab.server)).run(10).ok();
    walls.expect(&elsewhere, "10.99.0.1", "x at once", (0, 1));
    Program::line(&format!("ip -n {} addr add 10.77.0.9/24 dev eth1", walls.lab.server)).run(10).ok();
    walls.expect(&nat("postrouting", "oifname eth1 snat to 10.77.0.9"), CLIENT, "x at once", (0, 1));
    // One that changes nothing here is in nobody's way.
    walls.rules(&nat("postrouting", "oifname eth1 masquerade"));
    let before = walls.counts();
    assert_eq!(walls.hears(true, CLIENT, 0, "waits"), "x at once");
    assert_eq!(walls.counts(), (before.0 + 1, before.1));
}

/// The first connection to a neighbour is judged, too: nobody knows its address yet.
#[test]
fn the_firewall_judges_a_connection_whose_neighbour_is_not_resolved() {
    let walls = Walls::new(|program| program);
    let neighbours = || Program::line(&format!("ip -n {} neigh flush dev eth1", walls.lab.server)).run(10).ok();
    for (rules, expected, counts) in [
        ("", "x at once", (1, 0)),
        (&*output(&format!("tcp dport {PORT} reject with tcp reset")), "ECONNREFUSED at once", (0, 1)),
    ] {
        walls.rules(rules);
        neighbours();
        let before = walls.counts();
        assert_eq!(walls.hears(true, CLIENT, 0, "waits"), expected, "{rules}");
        let after = walls.counts();
        assert_eq!((after.0 - before.0, after.1 - before.1), counts, "{rules}");
    }
}

/// Peers whom the firewall refuses reach neither half of a listener.
#[test]
fn a_peer_that_the_firewall_refuses_reaches_no_listener() {
    let walls = Walls::new(|program| program);
    let serves = walls.service.accelerated("python3 -u -c").arg(SERVING).arg("7842");
    let mut serves = walls.lab.on_server(serves).start(walls.service.scratch.path("server.log"));
    serves.wait_for("up", 60);
    let plain = Program::new(&["python3", "-u", "-c", SERVING]).arg("7843");
    let mut plain = walls.lab.on_server(plain).start(walls.service.scratch.path("plain.log"));
    plain.wait_for("up", 60);
    let input = |rule: &str| {
        format!(
            "add table inet t; add chain inet t in {{ type filter hook input priority 0; }}; add rule inet t in {rule}"
        )
    };
    let ports = "tcp dport { 7842, 7843 }";
    for (rules, expected, opened) in [
        (String::new(), "x at once", 1),
        (input(&format!("{ports} drop")), "timeout never", 0),
        (input(&format!("{ports} reject with tcp reset")), "ECONNREFUSED at once", 0),
        (input(&format!("{ports} reject")), "ECONNREFUSED in some time", 0),
    ] {
        walls.rules(&rules);
        for to in [SERVER, SERVER6] {
            let knock = |port: &str| {
                let program = Program::new(&["python3", "-c", KNOCKING]).arg(to).arg(port).arg("0").arg("waits");
                walls.lab.on_client(program).run(60).ok().trim().to_owned()
            };
            let linux = knock("7843");
            assert!(same(&linux, expected), "Linux, {to}: {linux}, {rules}");
            let before = walls.counts().0;
            let ours = knock("7842");
            assert!(same(&ours, expected), "{to}: {ours}, {rules}");
            assert_eq!(walls.counts().0 - before, opened, "{to}: {rules}");
        }
    }
}

/// Accepts or connects, says so, and prints how the connection ends.
const HOLDING: &str = "
import socket, sys, errno
what, at, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
if what == 'accept':
    listener = socket.create_server((at, port)); print('up', flush=True)
    s = listener.accept()[0]
else: s = socket.create_connection((at, port), 60)
s.settimeout(60)
s.sendall(b'x'); s.recv(1); print('talking', flush=True)
try: print('end', s.recv(1), flush=True)
except OSError as e: print('end', errno.errorcode[e.errno], flush=True)
";

/// Established connections are not judged again, so the operator ends those that a new rule refuses.
#[test]
fn connections_that_a_new_rule_would_refuse_can_be_reset() {
    let walls = Walls::new(|program| program);
    let scratch = &walls.service.scratch;
    let holds = |program: Program, what: &str, at: &str, port: &str| {
        program.arg("python3").arg("-u").arg("-c").arg(HOLDING).arg(what).arg(at).arg(port)
    };
    let accelerated = || walls.service.accelerated("env");
    let plain = || Program::new(&["env"]);
    let start = |program: Program, name: &str, what: &str| {
        let mut running = program.start(scratch.path(name));
        running.wait_for(if what == "accept" { "up" } else { "talking" }, 60);
        running
    };
    let reset = |which: &str| {
        let command = Program::new(&[bin("towpath")]).arg("reset").arg("--socket").arg(&walls.service.socket);
        which.split_whitespace().fold(command, Program::arg).run(20).ok().trim().to_owned()
    };
    let lab = &walls.lab;
    let mut far = start(lab.on_client(holds(plain(), "accept", CLIENT, "7850")), "far.log", "accept");
    let mut near = start(lab.on_server(holds(accelerated(), "connect", CLIENT, "7850")), "near.log", "connect");
    let mut one = start(lab.on_server(holds(accelerated(), "accept", SERVER, "7851")), "one.log", "accept");
    let mut other = start(lab.on_server(holds(accelerated(), "connect", SERVER, "7851")), "other.log", "connect");
    assert_eq!(reset("--peer 192.0.2.0/24"), "0 connections reset");
    assert_eq!(reset(&format!("--peer {CLIENT} --port 7850")), "1 connections reset");
    far.wait_for("end ECONNRESET", 60);
    near.wait_for("end ECONNABORTED", 60);
    assert!(!other.output().contains("end") && !one.output().contains("end"), "another connection");
    assert_eq!(reset("--port 7851"), "1 connections reset");
    one.wait_for("end ECONN", 60);
    other.wait_for("end ECONN", 60);
    assert_eq!(reset("--port 7851"), "0 connections reset");
}

/// What the rules cannot do is said at the start, and by the doctor.
#[test]
fn rules_that_do_not_see_accelerated_segments_are_named() {
    let rules = "add table inet ledger; add chain inet ledger c { type filter hook output priority 0; }; \
                 add rule inet ledger c meta skuid 33 counter";
    let walls = Walls::new(|program| program.under(&["sh", "-c", "nft \"$0\" && exec \"$@\"", rules]));
    assert!(walls.service.running.output().contains("rules of inet ledger (counter, skuid)"));
    let line = Program::new(&[bin("towpath")]).arg("doctor").arg("--json").arg("--socket").arg(&walls.service.socket);
    let said = walls.lab.on_server(line).run(60);
    let report: serde_json::Value = serde_json::from_str(&said.out).expect("JSON");
    let checks = report["host"].as_array().expect("checks");
    let firewall = checks.iter().find(|check| check["check"] == "firewall").expect("a check");
    assert!(firewall["state"] == "warn" && firewall.to_string().contains("inet ledger (counter, skuid)"), "{firewall}");
}
