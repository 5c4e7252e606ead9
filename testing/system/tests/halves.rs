//! A server under Towpath is reached by everybody who would reach it on Linux, all by the same listener. These are programs of
//! this host without Towpath, peers at interfaces that are not served, and accelerated peers.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use serde_json::Value;
use std::path::Path;
use towpath_system_tests::namespace::SERVER;
use towpath_system_tests::program::Running;
use towpath_system_tests::{Lab, Program, Service, until};

/// The address of the server side on a second link, which is not served.
const BESIDE: &str = "10.78.0.1";
/// The server's port.
const PORT: u16 = 7800;

/// Answers each connection with what it has sent. The first argument says how it waits for connections.
const SERVING: &str = "
import os, select, socket, sys
mode, port = sys.argv[1], int(sys.argv[2])
def listener(group=False):
    s = socket.socket(socket.AF_INET6)
    s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if group: s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    s.bind(('::', port)); s.listen(512)
    return s
def answer(c):
    c.setblocking(True); c.settimeout(60)
    c.sendall(c.recv(64)); c.close()
def some(s, most):
    for _ in range(most):
        try: c, _ = s.accept()
        except BlockingIOError: return
        answer(c)
def accepting(s):
    while True: answer(s.accept()[0])
def waiting(s, wait):
    s.setblocking(False)
    while True:
        wait(s); some(s, 1)
def epolling(s, flags, most):
    s.setblocking(False)
    e = select.epoll(); e.register(s, select.EPOLLIN | flags)
    while True:
        events = e.poll(60)
        assert len(events) <= 1, events
        if not events: continue
        some(s, most)
        if flags & select.EPOLLONESHOT:
            assert e.poll(0) == [], 'it is disarmed'
            e.modify(s, select.EPOLLIN | flags)
def polled(s):
    p = select.poll(); p.register(s, select.POLLIN); p.poll(60000)
def prefork(make, serve):
    s, children = make(), []
    for _ in range(3):
        children.append(os.fork())
        if children[-1] == 0: break
    else:
        print('ready', *children, flush=True)
    serve(s if s else listener(True))
ALL = 1 << 30
serve = {
    'accept': accepting,
    'poll': lambda s: waiting(s, polled),
    'select': lambda s: waiting(s, lambda s: select.select([s], [], [], 60)),
    'level': lambda s: epolling(s, 0, 1),
    'edge': lambda s: epolling(s, select.EPOLLET, ALL),
    'oneshot': lambda s: epolling(s, select.EPOLLONESHOT, 1),
    'exclusive': lambda s: epolling(s, select.EPOLLEXCLUSIVE, 1),
}
if mode == 'prefork': prefork(listener, accepting)
elif mode == 'herd': prefork(listener, serve['exclusive'])
elif mode == 'group': prefork(lambda: None, serve['level'])
else:
    s = listener(); print('ready', flush=True); serve[mode](s)
";

/// Connects so many times, one after the other.
const ASKING: &str = "
import socket, sys
for n in range(int(sys.argv[2])):
    c = socket.create_connection((sys.argv[1], 7800), timeout=60)
    c.settimeout(60)
    word = b'%d' % n
    c.sendall(word)
    got = c.recv(64)
    assert got == word, (n, got)
    assert c.recv(64) == b''
    c.close()
print('done')
";

struct Halves {
    lab: Lab,
    service: Service,
}

/// A server of one process or several.
struct Server {
    first: Running,
    /// The processes that it has forked.
    others: Vec<i32>,
}

impl Server {
    fn kill_others(&mut self) {
        for pid in self.others.drain(..) {
            // SAFETY: `kill` takes numbers and no memory. The process is the server's, which does not wait for it.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill_others();
    }
}

impl Halves {
    /// A service on `eth1`, and a second link beside it that is not served.
    fn new() -> Self {
        let lab = Lab::new();
        lab.add_ipv6();
        let (server, client) = (&lab.server, &lab.client);
        let beside = "type veth peer name eth2 netns";
        for line in [
            format!("ip link add eth2 netns {server} {beside} {client}"),
            format!("ip -n {server} addr add {BESIDE}/24 dev eth2"),
            format!("ip -n {client} addr add 10.78.0.2/24 dev eth2"),
            format!("ip -n {server} link set eth2 up"),
            format!("ip -n {client} link set eth2 up"),
        ] {
            Program::line(&line).run(10).ok();
        }
        let service = Service::on_interface(&lab);
        Self { lab, service }
    }

    fn server(&self, mode: &str) -> Server {
        self.start(self.service.accelerated("python3 -c").arg(SERVING), mode)
    }

    /// A server that accepts by io_uring.
    fn uring_server(&self, mode: &str) -> Server {
        let program = self.service.scratch.path("uring_server");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("hooks/uring_server.c");
        let compile = Program::new(&["gcc", "-O1", "-Wall", "-Werror", "-o"]);
        compile.arg(&program).arg(source).arg("-luring").run(60).ok();
        self.start(self.service.accelerated(&program.display().to_string()), mode)
    }

    fn start(&self, program: Program, mode: &str) -> Server {
        let program = program.arg(mode).arg(PORT.to_string());
        let mut first = self.lab.on_server(program).start(self.service.scratch.path(mode));
        first.wait_for("ready", 60);
        until("the whole line", 20, || first.output().contains('\n'));
        let output = first.output();
        let pids = output.lines().find_map(|line| line.strip_prefix("ready"));
        let others = pids.unwrap().split_whitespace().map(|pid| pid.parse().unwrap()).collect();
        Server { first, others }
    }

    /// Connections from all sides at one time, so many from each. Returns how many the two halves should have accepted.
    fn connect(&self, each: u32, sides: &[Side]) -> (u64, u64) {
        std::thread::scope(|scope| {
            let asking: Vec<_> = sides.iter().map(|side| scope.spawn(move || (*side, side.ask(self, each)))).collect();
            for asked in asking {
                let (side, out) = asked.join().unwrap();
                assert_eq!(out.trim(), "done", "{side:?}");
            }
        });
        let accelerated = sides.iter().filter(|side| side.is_accelerated()).count() as u64;
        (accelerated * u64::from(each), (sides.len() as u64 - accelerated) * u64::from(each))
    }

    fn listeners(&self) -> Vec<Value> {
        let sockets = self.service.sockets();
        sockets["sockets"].as_array().expect("a list").iter().filter(|s| s["state"] == "LISTEN").cloned().collect()
    }

    /// What the halves of all listeners have accepted.
    fn accepted(&self) -> (u64, u64) {
        let halves: Vec<Value> = self.listeners().iter().map(|listener| listener["halves"].clone()).collect();
        assert!(halves.iter().all(Value::is_object), "all have a kernel half: {halves:?}");
        let sum = |name: &str| halves.iter().map(|halves| halves[name].as_u64().unwrap()).sum();
        (sum("accelerated"), sum("kernel"))
    }

    fn expect_accepted(&self, expected: (u64, u64), mode: &str) {
        // The application reads its queue after it has answered the client.
        until(&format!("{mode}: {expected:?} are accepted"), 20, || self.accepted() == expected);
        let counted = self.service.status()["listeners"]["accepted_by_kernel"].as_u64();
        assert_eq!(counted, Some(expected.1), "{mode}");
    }
}

/// Where a client is, and how it reaches the server.
#[derive(Clone, Copy, Debug)]
enum Side {
    /// A plain program of this host, at this address.
    Local(&'static str),
    /// A program in another namespace, by the link that is not served.
    Beside,
    /// A program in another namespace, by the served interface, at this address.
    Wire(&'static str),
    /// An accelerated program of this host, at this address.
    Joined(&'static str),
}

const EVERYBODY: [Side; 7] = [
    Side::Local("127.0.0.1"),
    Side::Local("::1"),
    Side::Local(SERVER),
    Side::Beside,
    Side::Wire(SERVER),
    Side::Wire("fd77::1"),
    Side::Joined("127.0.0.1"),
];

impl Side {
    fn is_accelerated(self) -> bool {
        matches!(self, Self::Wire(_) | Self::Joined(_))
    }

    fn ask(self, halves: &Halves, times: u32) -> String {
        let (lab, plain) = (&halves.lab, || Program::new(&["python3", "-c", ASKING]));
        let (program, at) = match self {
            Self::Local(at) => (lab.on_server(plain()), at),
            Self::Beside => (lab.on_client(plain()), BESIDE),
            Self::Wire(at) => (lab.on_client(plain()), at),
            Self::Joined(at) => (lab.on_server(halves.service.accelerated("python3 -c").arg(ASKING)), at),
        };
        program.arg(at).arg(times.to_string()).run(500).ok()
    }
}

/// Everybody reaches a server that waits in this way.
fn serves_everybody(modes: &[&str], each: u32) {
    for mode in modes {
        let halves = Halves::new();
        let _server = halves.server(mode);
        let expected = halves.connect(each, &EVERYBODY);
        halves.expect_accepted(expected, mode);
    }
}

#[test]
fn a_server_that_accepts_reaches_everybody() {
    serves_everybody(&["accept", "poll", "select"], 25);
}

#[test]
fn a_server_that_uses_epoll_reaches_everybody() {
    serves_everybody(&["level", "edge", "oneshot", "exclusive"], 25);
}

#[test]
fn a_server_of_several_processes_reaches_everybody() {
    serves_everybody(&["prefork", "herd", "group"], 25);
}

#[test]
fn a_server_that_accepts_by_io_uring_reaches_everybody() {
    for mode in ["single", "multishot"] {
        let halves = Halves::new();
        let _server = halves.uring_server(mode);
        let expected = halves.connect(25, &EVERYBODY);
        halves.expect_accepted(expected, mode);
    }
}

#[test]
#[ignore = "10,000 connections for each way to wait: make test-slow"]
fn nobody_is_refused_among_many() {
    serves_everybody(&["accept", "level", "edge", "oneshot", "herd", "group"], 1430);
}

#[test]
fn what_can_be_accelerated_is_and_the_kernel_shows_the_listener() {
    let halves = Halves::new();
    let _server = halves.server("level");
    let expected = halves.connect(25, &[Side::Wire(SERVER), Side::Wire("fd77::1"), Side::Joined(SERVER)]);
    assert_eq!(expected, (75, 0));
    halves.expect_accepted(expected, "level");
    let shown = halves.lab.on_server(Program::line("ss -Hltn sport = 7800")).run(10).ok();
    assert!(shown.contains("LISTEN") && shown.contains("512"), "{shown}");
}

/// Addresses that only a route makes the host's, and ports that a rule redirects.
#[test]
fn what_only_the_kernel_can_carry_reaches_the_listener() {
    let halves = Halves::new();
    let lab = &halves.lab;
    let (server, client) = (&lab.server, &lab.client);
    Program::line(&format!("ip -n {server} route add local 10.99.0.0/24 dev lo")).run(10).ok();
    Program::line(&format!("ip -n {client} route add 10.99.0.0/24 via {SERVER}")).run(10).ok();
    let rules = "add table ip t; add chain ip t in { type nat hook prerouting priority -100; }; \
                 add rule ip t in tcp dport 7801 redirect to :7800";
    lab.on_server(Program::new(&["nft", rules])).run(10).ok();
    let _server = halves.server("level");
    for (at, port) in [("10.99.0.7", "7800"), (SERVER, "7801")] {
        let script = ASKING.replace("7800", port);
        let asked = lab.on_client(Program::new(&["python3", "-c", &script])).arg(at).arg("2").run(100).ok();
        assert_eq!(asked.trim(), "done", "{at} {port}");
    }
    halves.expect_accepted((0, 4), "level");
}

/// Listens as root. The program that accepts is executed as a user whom the service does not admit, by this process or by
/// a child of it.
const HANDING: &str = r#"
import os, signal, socket, sys
s = socket.create_server(('10.77.0.1', 7800)); s.set_inheritable(True)
if sys.argv[1] == 'child' and os.fork(): signal.pause()
os.setgroups([]); os.setgid(65534); os.setuid(65534)
serve = '''open(S, '+<&=', $ARGV[0]); $| = 1; print "up\n";
while (accept(C, S)) { sysread(C, $b, 64); syswrite(C, $b); close(C) }'''
os.execv('/usr/bin/perl', ['perl', '-e', serve, str(s.fileno())])
"#;

impl Halves {
    fn handing(&self, who: &str) -> Running {
        towpath_system_tests::require_program("perl", "perl");
        let program = self.service.accelerated("python3 -c").arg(HANDING).arg(who);
        let mut server = self.lab.on_server(program).start(self.service.scratch.path("perl"));
        server.wait_for("up", 60);
        server
    }

    fn reaches_perl(&self) {
        let expected = self.connect(2, &[Side::Wire(SERVER), Side::Local(SERVER), Side::Joined(SERVER)]);
        assert_eq!(expected, (4, 2));
    }
}

#[test]
fn a_program_that_cannot_have_the_slot_accepts_everybody() {
    let halves = Halves::new();
    let _server = halves.handing("itself");
    until("the stack has no listener", 60, || halves.listeners().is_empty());
    halves.reaches_perl();
}

/// Its parent has the slot, and does not accept.
#[test]
fn a_child_that_cannot_have_the_slot_accepts_everybody() {
    let halves = Halves::new();
    let _server = halves.handing("child");
    let first = "import socket, time\nc = socket.create_connection(('10.77.0.1', 7800)); time.sleep(6)";
    halves.lab.on_client(Program::new(&["python3", "-c", first])).run(60).ok();
    halves.reaches_perl();
}

#[test]
fn a_listener_ends_with_its_last_process_however_that_ends() {
    let halves = Halves::new();
    let mut server = halves.server("prefork");
    server.first.signal(libc::SIGKILL);
    server.first.wait_end(20);
    let expected = halves.connect(3, &EVERYBODY);
    halves.expect_accepted(expected, "three of four processes are left");
    server.kill_others();
    until("the stack has no listener", 20, || halves.listeners().is_empty());
    let refused = "import socket\ntry: socket.create_connection(('10.77.0.1',7800),timeout=20)\n\
                   except ConnectionRefusedError: print('refused')";
    let plain = || Program::new(&["python3", "-c", refused]);
    assert_eq!(halves.lab.on_client(plain()).run(30).ok().trim(), "refused");
    assert_eq!(halves.lab.on_server(plain()).run(30).ok().trim(), "refused");
    // The port is free.
    let _next = halves.server("accept");
    let (accelerated, kernel) = halves.connect(3, &EVERYBODY);
    until("the next listener accepts", 20, || halves.accepted() == (accelerated, kernel));
    let counted = halves.service.status()["listeners"]["accepted_by_kernel"].as_u64();
    assert_eq!(counted, Some(2 * kernel), "both listeners");
}
