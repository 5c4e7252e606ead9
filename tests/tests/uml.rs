//! The kernel stack in a second kernel: user-mode Linux, booted by the service. Its programs' sockets are that kernel's.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use std::time::Duration;
use towpath_card::uml::{UmlConfig, Wire};
use towpath_card::{Card, CardConfig};
use towpath_ring::Geometry;
use towpath_stack::Stack;
use towpath_stack::guard::Open;
use towpath_system_tests::program::Running;
use towpath_system_tests::{Program, Scratch, Service, bin, require_program, require_root, until};

/// A service with a card.
fn card(complete: impl FnOnce(Program) -> Program) -> Service {
    require_program("ip", "iproute2");
    Service::card(complete)
}

/// The process that is the card's kernel.
fn kernel_of(service: &Service) -> i32 {
    let log = service.running.output();
    let pid = log.split("pid=").nth(1).expect("the kernel's process in the log");
    pid.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().expect("a number")
}

/// Processes of the process group.
fn group(leader: i32) -> Vec<String> {
    let all = Program::line("ps -e -o pgid=,pid=,stat=,comm=").run(20).ok();
    all.lines().filter(|line| line.split_whitespace().next() == Some(&leader.to_string())).map(str::to_owned).collect()
}

const CONVERSATION: &str = "import socket, sys
l = socket.socket(); l.bind(('127.0.0.1', 0)); l.listen()
c = socket.create_connection(l.getsockname()); a, _ = l.accept()
total = 0
for n in range(40):
    a.sendall(bytes([n]) * 50_000)
    got = b''
    while len(got) < 50_000: got += c.recv(65_536)
    assert got == bytes([n]) * 50_000
c.shutdown(socket.SHUT_WR); assert a.recv(1) == b''
a.close(); assert c.recv(1) == b''
print('whole', open('/proc/net/tcp').read().count('%04X' % l.getsockname()[1]))";

#[test]
fn a_program_has_its_sockets_in_a_second_kernel() {
    let service = card(|program| program);
    let out = service.accelerated("/usr/bin/python3 -c").arg(CONVERSATION).run(60).ok();
    // One line of this kernel's table has the number: the socket that reserves the port and does not listen has none.
    assert_eq!(out.trim(), "whole 0", "this kernel has sockets of that port");
    assert_eq!(service.status()["stack"], "uml");
    assert!(service.stage("sent_bytes") >= 2_000_000 && service.stage("accepts") == 1, "{}", service.status());
    let kernel = kernel_of(&service);
    drop(service);
    until("the card's processes are gone", 20, || group(kernel).is_empty());
}

#[test]
fn a_card_needs_no_privileges() {
    let service = card(|program| if rustix::process::geteuid().is_root() { program.user(65_534) } else { program });
    assert!(service.running.output().contains("serving"), "{}", service.running.output());
}

const WAITER: &str = "import socket, threading, time, sys
l = socket.socket(); l.bind(('127.0.0.1', 0)); l.listen()
c = socket.create_connection(l.getsockname()); a, _ = l.accept()
errors = {}
def wait(name, call):
    try: call(); errors[name] = None
    except OSError as error: errors[name] = error.errno
    errors[name + ' at'] = time.monotonic_ns()
threads = [threading.Thread(target=wait, args=w) for w in [('recv', lambda: c.recv(1)), ('accept', l.accept)]]
for t in threads: t.start()
print('waiting', flush=True)
threads[0].join(30)
print('reset', errors.get('recv'), errors.get('recv at'), flush=True)
try: socket.create_connection(('127.0.0.1', 9), 5); print('connected')
except OSError as error: print('then', error.errno, flush=True)
sys.stdout.flush(); import os; os._exit(0)";

/// Kills a card under a program that waits; what the program says, and how long it took to learn of it.
fn kill_under(service: &Service, waiter: &mut Running) -> (String, Duration) {
    waiter.wait_for("waiting", 30);
    std::thread::sleep(Duration::from_millis(300));
    let kernel = rustix::process::Pid::from_raw(kernel_of(service)).unwrap();
    let at = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let at = at.tv_sec as u64 * 1_000_000_000 + at.tv_nsec as u64;
    rustix::process::kill_process(kernel, rustix::process::Signal::KILL).unwrap();
    waiter.wait_for("then", 30);
    let said = waiter.output();
    let seen = said.lines().find_map(|line| line.strip_prefix("reset 104 ")).unwrap_or_else(|| panic!("{said}"));
    (said.clone(), Duration::from_nanos(seen.parse::<u64>().unwrap() - at))
}

#[test]
fn a_card_that_is_killed_resets_its_sockets_within_a_tenth_of_a_second() {
    let mut best = Duration::MAX;
    // On a busy machine a wake-up alone may take as long.
    for _ in 0..3 {
        let service = card(|program| program);
        let log = service.scratch.path("waiter.log");
        let mut waiter = service.accelerated("/usr/bin/python3 -u -c").arg(WAITER).start(log);
        let (said, took) = kill_under(&service, &mut waiter);
        assert!(said.contains(&format!("then {}", libc::ENETDOWN)), "{said}");
        until("the service says so", 10, || service.running.output().contains("the card has died"));
        let kernel = kernel_of(&service);
        until("the card's processes are gone", 20, || group(kernel).is_empty());
        best = best.min(took);
        if best <= Duration::from_millis(100) {
            return;
        }
    }
    panic!("it took {best:?} at best");
}

#[test]
fn without_its_kernel_a_card_says_what_to_install() {
    let program = Program::new(&[bin("towpath")]).arg("kernel-stack").arg("--uml").env("PATH", "/nowhere");
    let ended = program.arg("--name").arg(format!("none-{}", std::process::id())).run(30);
    assert_eq!(ended.code, 1, "{}", ended.err);
    assert!(ended.err.contains("apt-get install user-mode-linux"), "{}", ended.err);
}

/// A network namespace with one end of a wire, the TAP device `tap0` at 10.97.7.1; a card has the other, 10.97.7.2.
struct Outside(String);

impl Outside {
    fn new() -> Self {
        require_root();
        let outside = Self(format!("uml-{}", std::process::id()));
        Program::line(&format!("ip netns add {}", outside.0)).run(10).ok();
        outside.run("ip link set lo up");
        outside.run("ip tuntap add dev tap0 mode tap");
        outside.run("ip addr add 10.97.7.1/24 dev tap0");
        outside.run("ip link set tap0 up");
        outside.run("ip route replace 10.97.7.0/24 dev tap0 src 10.97.7.1 congctl cubic");
        outside
    }
    fn within(&self) -> [&str; 4] {
        ["ip", "netns", "exec", &self.0]
    }
    /// A line there.
    fn run(&self, line: &str) -> String {
        Program::line(line).under(&self.within()).run(60).ok()
    }
    /// A service there, whose card has the wire.
    fn card(&self) -> Service {
        let wire = |program: Program| {
            let program = program.under(&self.within());
            program
                .arg("--uml-tap")
                .arg("tap0")
                .arg("--uml-address")
                .arg("10.97.7.2/24")
                .arg("--uml-gateway")
                .arg("10.97.7.1")
        };
        card(wire)
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        Program::line(&format!("ip netns del {}", self.0)).run(10);
    }
}

/// A line in the card.
fn inside(service: &Service, line: &str) -> String {
    let exec = Program::new(&[bin("towpath")]).arg("exec").arg("--socket").arg(&service.socket).arg("--");
    line.split_whitespace().fold(exec, |program, word| program.arg(word)).run(30).ok()
}

/// Counter `name` of `Tcp` in `/proc/net/snmp` of the card.
fn tcp_counter(service: &Service, name: &str) -> u64 {
    let text = inside(service, "cat /proc/net/snmp");
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Tcp: ")).map(str::split_whitespace);
    let (names, values) = (lines.next().expect("names"), lines.next().expect("values"));
    names.zip(values).find(|(known, _)| *known == name).expect("the counter").1.parse().expect("a number")
}

#[test]
fn programs_speak_with_others_through_a_second_kernels_tcp() {
    for (program, package) in [("curl", "curl"), ("redis-server", "redis-server"), ("ss", "iproute2")] {
        require_program(program, package);
    }
    let outside = Outside::new();
    let service = outside.card();
    assert!(inside(&service, "uname -r").starts_with("6.") && inside(&service, "ip address").contains("10.97.7.2/24"));
    // A client: a server outside is reached from the card's address.
    let body = "towpath ".repeat(100_000);
    std::fs::write(service.scratch.path("body"), &body).expect("body");
    let mut server = Program::line("/usr/bin/python3 -u -m http.server 7621 --bind 10.97.7.1")
        .under(&outside.within())
        .dir(&service.scratch.0)
        .start(service.scratch.path("http.log"));
    server.wait_for("Serving HTTP", 20);
    let line = "curl -sS --noproxy * --max-time 30 http://10.97.7.1:7621/body";
    let (opens, before) = (tcp_counter(&service, "ActiveOpens"), service.stage("received_bytes"));
    assert!(service.accelerated(line).run(40).ok() == body);
    assert!(service.stage("received_bytes") - before >= body.len() as u64);
    assert!(server.output().contains("10.97.7.2 - -"), "{}", server.output());
    assert!(tcp_counter(&service, "ActiveOpens") > opens);
    // A server: it is reached from outside at the card's address, and only the card's kernel has its sockets.
    let mut redis = service
        .accelerated("redis-server --port 7622 --bind 0.0.0.0 --protected-mode no --save")
        .arg("")
        .arg("--daemonize")
        .arg("no")
        .dir(&service.scratch.0)
        .start(service.scratch.path("redis.log"));
    redis.wait_for("Ready to accept connections", 30);
    let out = outside.run("redis-benchmark -h 10.97.7.2 -p 7622 -t get,set -n 2000 -c 20 -P 4 -q");
    assert!(out.contains("GET:") && out.contains("SET:"), "{out}");
    assert_eq!(outside.run("redis-cli -h 10.97.7.2 -p 7622 set colour green").trim(), "OK");
    assert_eq!(outside.run("redis-cli -h 10.97.7.2 -p 7622 get colour").trim(), "green");
    assert!(inside(&service, "ss -tln").contains(":7622 "), "the card's kernel listens");
    assert!(!Program::line("ss -tln").run(10).ok().contains(":7622 "), "this kernel does not");
    assert!(!outside.run("ss -tln").contains(":7622 "), "nor where the service runs");
    assert!(tcp_counter(&service, "PassiveOpens") >= 20 && service.stage("accepts") >= 20);
}

#[test]
fn only_the_services_own_user_runs_programs_in_its_kernel() {
    require_root();
    let service = card(|program| program.arg("--admit").arg("all"));
    let exec =
        || Program::new(&[bin("towpath")]).arg("exec").arg("--socket").arg(&service.socket).arg("--").arg("false");
    assert_eq!(exec().run(20).code, 1, "its exit code");
    let other = exec().user(65_534).run(20);
    assert_eq!(other.code, 125);
    assert!(other.err.contains("only the service's own user and root"), "{}", other.err);
}

#[test]
fn shared_memory_is_nearer_than_a_message_and_a_socketpair_is_a_wire() {
    use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, socketpair};
    require_program("linux.uml", "user-mode-linux");
    require_program("ping", "iputils-ping");
    let (ours, its) = socketpair(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None).unwrap();
    let uml = UmlConfig {
        program: None,
        init: bin("towpath"),
        memory_mib: 128,
        wire: Wire::Socket(its),
        address: Some("10.97.8.2/24".into()),
        gateway: None,
    };
    let geometry = Geometry { slots: 64, app_slots: 32, tx_bytes: 65_536, rx_bytes: 65_536, ..Geometry::DEFAULT };
    let card = Card::start(&CardConfig { uml, geometry, clients: 2 }, Box::new(Open)).unwrap();
    let (shared, messages) = card.round_trips(500).unwrap();
    let middle = |times: &[Duration]| times[times.len() / 2];
    println!("round trips: shared memory {:?}, message {:?}", middle(&shared), middle(&messages));
    assert!(middle(&shared) < middle(&messages));
    // It asks who has the address next door; that question stands on the wire.
    let words = ["ping", "-c", "1", "-W", "1", "10.97.8.1"].map(str::to_owned);
    assert_ne!(card.execute(&words).unwrap().code, 0);
    let mut frame = [0u8; 2048];
    let asked = std::iter::from_fn(|| {
        rustix::net::recv(&ours, &mut frame[..], RecvFlags::DONTWAIT).ok().map(|(n, _)| frame[..n].to_vec())
    })
    .any(|frame| frame.len() >= 42 && frame[12..14] == [8, 6] && frame[38..42] == [10, 97, 8, 1]);
    assert!(asked, "no ARP request for 10.97.8.1");
    let kernel = card.pid() as i32;
    drop(card);
    until("the card's processes are gone", 20, || group(kernel).is_empty());
}

#[test]
fn a_second_kernel_does_not_outlive_its_service() {
    let mut service = card(|program| program);
    let kernel = kernel_of(&service);
    assert!(!group(kernel).is_empty());
    service.running.signal(libc::SIGKILL);
    service.running.wait_end(10);
    // Who inherits its dead need not wait for them.
    until("the card's processes are gone", 30, || group(kernel).iter().all(|line| line.contains(" Z")));
}

#[test]
fn run_boots_a_second_kernel_if_there_is_none() {
    use std::os::unix::fs::PermissionsExt;
    require_program("linux.uml", "user-mode-linux");
    let scratch = Scratch::new("own");
    std::fs::set_permissions(&scratch.0, std::fs::Permissions::from_mode(0o700)).unwrap();
    let towpath = |words: &[&str]| {
        let program = Program::new(&[bin("towpath")]).env("XDG_RUNTIME_DIR", &scratch.0);
        words.iter().fold(program, |program, word| program.arg(word))
    };
    let script = "import os, socket; l = socket.socket(); l.bind(('127.0.0.1', 0)); l.listen(); \
                  c = socket.create_connection(l.getsockname()); a, _ = l.accept(); c.sendall(b'hello'); print(a.recv(5))";
    let run = |script: &str| {
        towpath(&["run", "--require", "--stack", "kernel=uml", "--", "/usr/bin/python3", "-c", script]).run(90)
    };
    let first = run(script);
    assert!(first.err.contains("booting a second kernel"), "{}", first.err);
    assert_eq!(first.ok().trim(), "b'hello'");
    let second = run(script);
    assert!(!second.err.contains("booting"), "{}", second.err);
    assert_eq!(second.ok().trim(), "b'hello'");
    let released = towpath(&["exec", "--stack", "kernel=uml", "--", "uname", "-r"]).run(30).ok();
    assert_ne!(released, Program::line("uname -r").run(10).ok());
    towpath(&["stop", "--stack", "kernel=uml"]).run(20).ok();
}
