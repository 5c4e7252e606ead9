//! The kernel's firewall judges the first SYN of each connection over the interface, both ways. Programs see what Linux
//! shows them. With `firewall = "own"` it judges those of accelerated programs no longer.
#![allow(clippy::expect_used)]

use std::sync::atomic::{AtomicU16, Ordering};
use towpath_system_tests::namespace::{CLIENT, CLIENT6, SERVER, SERVER6};
use towpath_system_tests::program::Running;
use towpath_system_tests::{Lab, Program, Scratch, Service, bin, require_program, until};

const PORT: &str = "7840";
/// Bound ports in use.
static NEXT: AtomicU16 = AtomicU16::new(0);

/// Listens for both families and answers each connection with a byte.
const SERVING: &str = "
import socket, sys
at = sys.argv[2] if len(sys.argv) > 2 else '::'
family = socket.AF_INET6 if ':' in at else socket.AF_INET
s = socket.create_server((at, int(sys.argv[1])), family=family, dualstack_ipv6=':' in at, backlog=64)
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
    /// The directory of the service's configuration.
    configuration: Option<Scratch>,
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
        Self { lab, service, configuration: None, _echo: echo }
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

/// Is this the expected result? An ICMP error may be heard at once, or only when the SYN is repeated, also on Linux. The kernel
/// limits how often it sends them, and a socket may be in use when one comes.
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

/// Two sockets share a port. Each answers with its number.
const SHARING: &str = "
import select, socket, sys
def listener():
    s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    s.bind((sys.argv[2], int(sys.argv[1]))); s.listen(64); return s
both = [listener(), listener()]
print('up', flush=True)
while True:
    for s in select.select(both, [], [])[0]:
        c = s.accept()[0]
        try: c.sendall(b'%d' % both.index(s)); c.close()
        except OSError: pass
";

/// The kernel drops all new TCP connections over the interface, both ways and at each hook.
const WALL: &str = "add table netdev w; \
    add chain netdev w c { type filter hook ingress device eth1 priority -500; }; \
    add rule netdev w c tcp flags & (syn | ack) == syn drop; \
    add table inet t; \
    add chain inet t pre { type filter hook prerouting priority -300; }; \
    add rule inet t pre iifname eth1 tcp flags & (syn | ack) == syn drop; \
    add chain inet t in { type filter hook input priority 0; }; \
    add rule inet t in iifname eth1 tcp flags & (syn | ack) == syn drop; \
    add chain inet t out { type filter hook output priority 0; }; \
    add rule inet t out oifname eth1 tcp flags & (syn | ack) == syn drop";

impl Walls {
    /// A service with a firewall of its own, by these ports.
    fn own(port: &str) -> Self {
        let scratch = Scratch::new("own");
        let file = scratch.path("towpath.toml");
        std::fs::write(&file, format!("port = {port:?}\n")).expect("the configuration");
        let mut walls = Self::new(|program| program.arg("--config").arg(file).arg("--firewall").arg("own"));
        walls.configuration = Some(scratch);
        // A debug build takes seconds to read the kernel's structures.
        walls.service.running.wait_for("daemon: serving", 60);
        walls
    }

    /// A server on the service's side.
    fn serves(&self, program: Program, words: &[&str]) -> Running {
        let program = words.iter().fold(program, Program::arg);
        let log = format!("serves-{}.log", NEXT.fetch_add(1, Ordering::Relaxed));
        let mut running = self.lab.on_server(program).start(self.service.scratch.path(&log));
        running.wait_for("up", 60);
        running
    }

    fn accelerated(&self) -> Program {
        self.service.accelerated("python3 -u -c")
    }

    /// What a plain program hears: the peer, or one of the service's side.
    fn knocks(&self, from_peer: bool, to: &str, port: &str) -> String {
        let program = Program::new(&["python3", "-c", KNOCKING]).arg(to).arg(port).arg("0").arg("waits");
        let program = if from_peer { self.lab.on_client(program) } else { self.lab.on_server(program) };
        program.run(60).ok().trim().to_owned()
    }

    /// Connections that the kernel's halves of listeners have accepted.
    fn accepted_by_kernel(&self) -> u64 {
        self.service.status()["listeners"]["accepted_by_kernel"].as_u64().expect("a count")
    }

    /// `ip` on the service's side.
    fn ip(&self, line: &str) {
        Program::line(&format!("ip -n {} {line}", self.lab.server)).run(10).ok();
    }
}

fn plain() -> Program {
    Program::new(&["python3", "-u", "-c"])
}

/// Neither the kernel's rules nor their places matter to accelerated connections. They hold for all others.
#[test]
fn with_a_firewall_of_its_own_the_policy_alone_judges_accelerated_connections() {
    for port in ["packet", "xdp", "xdp-generic"] {
        let walls = Walls::own(port);
        let said = walls.service.running.output();
        assert!(said.contains("the policy alone judges accelerated connections"), "{said}");
        let interface = &walls.service.status()["interfaces"][0];
        assert_eq!((&interface["firewall"], &interface["mode"]), (&"own".into(), &port.into()));
        let _ours = walls.serves(walls.accelerated(), &[SERVING, "7842"]);
        let _plain = walls.serves(plain(), &[SERVING, "7843"]);
        walls.rules(WALL);
        for to in [SERVER, SERVER6] {
            let before = walls.counts().0;
            assert_eq!(walls.knocks(true, to, "7842"), "x at once", "{port}, {to}");
            assert_eq!((walls.counts().0 - before, walls.accepted_by_kernel()), (1, 0), "{port}, {to}");
        }
        assert_eq!(walls.knocks(true, SERVER, "7843"), "timeout never", "{port}: a plain server");
        for to in [CLIENT, CLIENT6] {
            let before = walls.counts();
            assert_eq!(walls.hears(true, to, 0, "waits"), "x at once", "{port}, {to}");
            assert_eq!(walls.counts(), (before.0 + 1, before.1), "{port}, {to}");
        }
        assert_eq!(walls.hears(false, CLIENT, 0, "waits"), "timeout never", "{port}: a plain client");
        let command = |name: &str, line: &str| {
            let command = Program::new(&[bin("towpath")]).arg(name).arg("--socket").arg(&walls.service.socket);
            walls.lab.on_server(line.split_whitespace().fold(command, Program::arg)).run(60)
        };
        command("policy", &format!("add deny accept from {CLIENT}")).ok();
        command("policy", &format!("add deny connect to {CLIENT}")).ok();
        assert_eq!(walls.knocks(true, SERVER, "7842"), "timeout never", "{port}: denied");
        assert_eq!(walls.hears(true, CLIENT, 0, "waits"), "EPERM at once", "{port}: denied");
        command("policy", "flush").ok();
        assert_eq!(walls.knocks(true, SERVER, "7842"), "x at once", "{port}");
        // A plain program of this host comes by another interface.
        assert_eq!(walls.knocks(false, "127.0.0.1", "7842"), "x at once", "{port}");
        assert_eq!(walls.accepted_by_kernel(), 1, "{port}");
        let report: serde_json::Value = serde_json::from_str(&command("doctor", "--json").out).expect("JSON");
        let checks = report["host"].as_array().expect("checks");
        let firewall = checks.iter().find(|check| check["check"] == "firewall").expect("a check");
        assert!(firewall["state"] == "ok" && firewall.to_string().contains("own"), "{firewall}");
    }
}

/// The kernel says for each SYN who listens, here as well.
#[test]
fn with_a_firewall_of_its_own_each_syn_is_its_listeners() {
    let walls = Walls::own("auto");
    walls.ip("addr add 10.77.0.5/24 dev eth1");
    let _ours = walls.serves(walls.accelerated(), &[SERVING, "7842", SERVER]);
    // Another one's, on another address of the same port.
    let _theirs = walls.serves(plain(), &[&SERVING.replace("b'x'", "b'p'"), "7842", "10.77.0.5"]);
    let _group = walls.serves(walls.accelerated(), &[SHARING, "7844", SERVER]);
    let before = walls.counts().0;
    assert_eq!(walls.knocks(true, "10.77.0.5", "7842"), "p at once");
    assert_eq!(walls.counts().0, before);
    walls.rules(WALL);
    assert_eq!(walls.knocks(true, "10.77.0.5", "7842"), "timeout never", "the kernel's, and its firewall's");
    assert_eq!(walls.knocks(true, SERVER, "7842"), "x at once");
    // Sockets that share a port share the connections.
    let mut heard: Vec<String> = (0..32).map(|_| walls.knocks(true, SERVER, "7844")).collect();
    heard.sort_unstable();
    heard.dedup();
    assert_eq!(heard, ["0 at once", "1 at once"]);
    assert_eq!((walls.counts().0 - before, walls.accepted_by_kernel()), (33, 0));
    // The host's addresses are followed, and no others are its own.
    walls.ip("addr add 10.77.0.6/24 dev eth1");
    let _any = walls.serves(walls.accelerated(), &[SERVING, "7845"]);
    until("the address is known", 60, || walls.knocks(true, "10.77.0.6", "7845") == "x at once");
    Program::line(&format!("ip -n {} route add 10.99.0.0/24 via {SERVER}", walls.lab.client)).run(10).ok();
    assert_eq!(walls.knocks(true, "10.99.0.7", "7845"), "timeout never", "it would be forwarded");
}

/// The worker that comes next takes SYNs as the one before. Without a service the kernel's firewall judges again.
#[test]
fn without_its_service_the_kernel_and_its_firewall_have_all_syns() {
    let mut walls = Walls::own("auto");
    let _ours = walls.serves(walls.accelerated(), &[SERVING, "7842"]);
    walls.rules(WALL);
    assert_eq!(walls.knocks(true, SERVER, "7842"), "x at once");
    // SAFETY: `kill` takes numbers and no memory. The process is the service's.
    let kill = |pid: i32| unsafe { libc::kill(pid, libc::SIGKILL) };
    let first = walls.service.running.worker();
    kill(first);
    until("another worker serves the listener", 60, || walls.knocks(true, SERVER, "7842") == "x at once");
    let worker = walls.service.running.worker();
    assert_ne!(worker, first);
    walls.service.running.signal(libc::SIGKILL);
    kill(worker);
    walls.service.running.wait_end(20);
    assert_eq!(walls.knocks(true, SERVER, "7842"), "timeout never", "the kernel's firewall");
    walls.rules("");
    until("the kernel half accepts", 60, || walls.knocks(true, SERVER, "7842") == "x at once");
}

/// One that is made anew has the program again. One that becomes another device's port is the kernel's to judge.
#[test]
fn a_firewall_of_its_own_follows_the_interface() {
    let walls = Walls::own("auto");
    let _ours = walls.serves(walls.accelerated(), &[SERVING, "7842"]);
    let has_trouble = || !walls.service.status()["interfaces"][0]["trouble"].is_null();
    walls.ip("link del eth1");
    until("the service sees it", 60, has_trouble);
    walls.lab.join(1);
    until("it is served again", 60, || !has_trouble());
    walls.rules(WALL);
    until("SYNs are taken again", 60, || walls.knocks(true, SERVER, "7842") == "x at once");
    // A bridge has the address and its packets now. It is not served.
    walls.rules("");
    walls.ip("link add br7 type bridge");
    walls.ip("link set br7 up");
    walls.ip("link set eth1 master br7");
    walls.ip(&format!("addr del {SERVER}/24 dev eth1"));
    walls.ip(&format!("addr add {SERVER}/24 dev br7"));
    let kernel = walls.accepted_by_kernel();
    until("the kernel half accepts", 60, || {
        walls.knocks(true, SERVER, "7842") == "x at once" && walls.accepted_by_kernel() > kernel
    });
    let interface = &walls.service.status()["interfaces"][0];
    assert_eq!(interface["firewall"], "respect");
    assert!(
        interface["trouble"].as_str().is_some_and(|trouble| trouble.contains("a port of another device")),
        "{interface}"
    );
}

/// A service that cannot have its firewall does not start.
#[test]
fn what_a_firewall_of_its_own_lacks_is_said_at_the_start() {
    require_program("setpriv", "util-linux");
    let (lab, scratch) = (Lab::new(), Scratch::new("own"));
    let start = |before: &[&str]| {
        let serve = Program::new(&[bin("towpath")]).arg("serve").arg("--socket").arg(scratch.path("towpath.sock"));
        let serve = serve.arg("--interface").arg("eth1").arg("--firewall").arg("own").under(before);
        let ended = lab.on_server(serve).run(60);
        assert_ne!(ended.code, 0, "{}", ended.err);
        ended.err
    };
    let said = start(&["setpriv", "--bounding-set", "-perfmon,-sys_admin", "--"]);
    assert!(said.contains("CAP_PERFMON (for `firewall = \"own\"`)"), "{said}");
    Program::line(&format!("ip -n {} link add br7 type bridge", lab.server)).run(10).ok();
    Program::line(&format!("ip -n {} link set eth1 master br7", lab.server)).run(10).ok();
    let said = start(&["env"]);
    assert!(said.contains("a port of another device") && said.contains("`firewall = \"respect\"`"), "{said}");
}
