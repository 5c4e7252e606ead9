//! Shared by the tests of guests, whatever machine they run on.

use crate::program::Running;
use crate::{Program, Scratch, Service, bin, require_program, require_root, until};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, socketpair};
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use towpath_guest::machine::{MachineConfig, MachineKind, Wire};
use towpath_guest::{Guest, GuestConfig};
use towpath_ring::Geometry;
use towpath_runtime::Stack;
use towpath_runtime::policy::AllowAll;

/// Process id of the guest's kernel.
pub fn kernel_of(service: &Service) -> i32 {
    let log = service.running.output();
    let pid = log.split("pid=").nth(1).expect("the kernel's process in the log");
    pid.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().expect("a number")
}

/// Processes of the process group.
pub fn group(leader: i32) -> Vec<String> {
    let all = Program::line("ps -e -o pgid=,pid=,stat=,comm=").run(20).ok();
    all.lines().filter(|line| line.split_whitespace().next() == Some(&leader.to_string())).map(str::to_owned).collect()
}

/// Two sockets that talk over the loopback device. The program prints how many sockets of its listener are in this
/// kernel's table.
pub const CONVERSATION: &str = "import socket, sys
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

/// Sleeps in `recv` and in `accept`. Prints which errors end the calls and when, and how a new connection fails.
pub const WAITER: &str = "import socket, threading, time, sys
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

fn kill_kernel(service: &Service) {
    let kernel = rustix::process::Pid::from_raw(kernel_of(service)).unwrap();
    rustix::process::kill_process(kernel, rustix::process::Signal::KILL).unwrap();
}

/// Kills the kernel under [`WAITER`] while it waits. Returns its output, and how long it took to see the end.
pub fn kill_under(waiter: &mut Running, kill: impl FnOnce()) -> (String, Duration) {
    waiter.wait_for("waiting", 30);
    std::thread::sleep(Duration::from_millis(300));
    let at = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let at = at.tv_sec as u64 * 1_000_000_000 + at.tv_nsec as u64;
    kill();
    waiter.wait_for("then", 30);
    let said = waiter.output();
    let seen = said.lines().find_map(|line| line.strip_prefix("reset 104 ")).unwrap_or_else(|| panic!("{said}"));
    (said.clone(), Duration::from_nanos(seen.parse::<u64>().unwrap() - at))
}

/// A network namespace with one end of a wire, the TAP device `tap0` at 10.97.7.1. A guest has the other end,
/// 10.97.7.2.
pub struct Outside(String);

impl Outside {
    /// Makes a namespace whose name begins with `name`.
    pub fn new(name: &str) -> Self {
        require_root();
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let outside = Self(format!("{name}-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)));
        Program::line(&format!("ip netns add {}", outside.0)).run(10).ok();
        outside.run("ip link set lo up");
        outside.run("ip tuntap add dev tap0 mode tap");
        outside.run("ip addr add 10.97.7.1/24 dev tap0");
        outside.run("ip link set tap0 up");
        outside.run("ip route replace 10.97.7.0/24 dev tap0 src 10.97.7.1 congctl cubic");
        outside
    }
    /// The prefix of a command line that runs in the namespace.
    pub fn within(&self) -> [&str; 4] {
        ["ip", "netns", "exec", &self.0]
    }
    /// Runs a command line in the namespace.
    pub fn run(&self, line: &str) -> String {
        Program::line(line).under(&self.within()).run(60).ok()
    }
    /// A service in the namespace whose guest has the wire.
    pub fn wire(&self, service: Program) -> Program {
        self.attach(service, "tap0", "10.97.7.2/24")
    }
    /// A service in the namespace whose guest has this TAP device and address.
    pub fn attach(&self, service: Program, tap: &str, address: &str) -> Program {
        let service = service.under(&self.within());
        let words = ["--guest-tap", tap, "--guest-address", address, "--guest-gateway", "10.97.7.1"];
        words.into_iter().fold(service, |service, word| service.arg(word))
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        Program::line(&format!("ip netns del {}", self.0)).run(10);
    }
}

/// Runs a command line in the guest.
pub fn inside(service: &Service, line: &str) -> String {
    line.split_whitespace().fold(exec(service), |program, word| program.arg(word)).run(30).ok()
}

/// The command that runs a program in the guest.
pub fn exec(service: &Service) -> Program {
    Program::new(&[bin("towpath")]).arg("exec").arg("--socket").arg(&service.socket).arg("--")
}

/// Counter `name` of `Tcp` in `/proc/net/snmp` of the guest.
pub fn tcp_counter(service: &Service, name: &str) -> u64 {
    let text = inside(service, "cat /proc/net/snmp");
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Tcp: ")).map(str::split_whitespace);
    let (names, values) = (lines.next().expect("names"), lines.next().expect("values"));
    names.zip(values).find(|(known, _)| *known == name).expect("the counter").1.parse().expect("a number")
}

/// Programs reach an outside server from the guest's address, and a server of theirs is reached there. Only the
/// guest's kernel has the sockets. `kibibytes` is the size of the download, `requests` the number of requests to the
/// server.
pub fn speak_with_others(outside: &Outside, service: &Service, kibibytes: usize, requests: u32) {
    assert!(inside(service, "uname -r").starts_with("6.") && inside(service, "ip address").contains("10.97.7.2/24"));
    // A client reaches an outside server from the guest's address.
    let body = "towpath!".repeat(kibibytes * 128);
    std::fs::write(service.scratch.path("body"), &body).expect("body");
    let mut server = Program::line("/usr/bin/python3 -u -m http.server 7621 --bind 10.97.7.1")
        .under(&outside.within())
        .dir(&service.scratch.0)
        .start(service.scratch.path("http.log"));
    server.wait_for("Serving HTTP", 20);
    let line = "curl -sS --noproxy * --max-time 80 http://10.97.7.1:7621/body";
    let (opens, before) = (tcp_counter(service, "ActiveOpens"), service.stage("received_bytes"));
    assert!(service.accelerated(line).run(40).ok() == body);
    assert!(service.stage("received_bytes") - before >= body.len() as u64);
    assert!(server.output().contains("10.97.7.2 - -"), "{}", server.output());
    assert!(tcp_counter(service, "ActiveOpens") > opens);
    // A server is reached at the guest's address, and only the guest's kernel has its sockets.
    let mut redis = service
        .accelerated("redis-server --port 7622 --bind 10.97.7.2 --protected-mode no --save")
        .arg("")
        .arg("--daemonize")
        .arg("no")
        .dir(&service.scratch.0)
        .start(service.scratch.path("redis.log"));
    redis.wait_for("Ready to accept connections", 30);
    let out = outside.run(&format!("redis-benchmark -h 10.97.7.2 -p 7622 -t get,set -n {requests} -c 20 -P 4 -q"));
    assert!(out.contains("GET:") && out.contains("SET:"), "{out}");
    assert_eq!(outside.run("redis-cli -h 10.97.7.2 -p 7622 set colour green").trim(), "OK");
    assert_eq!(outside.run("redis-cli -h 10.97.7.2 -p 7622 get colour").trim(), "green");
    assert!(inside(service, "ss -tln").contains(":7622 "), "the guest's kernel listens");
    assert!(!Program::line("ss -tln").run(10).ok().contains(":7622 "), "this kernel does not");
    assert!(!outside.run("ss -tln").contains(":7622 "), "nor does the kernel of the service");
    assert!(tcp_counter(service, "PassiveOpens") >= 20 && service.stage("accepts") >= 20);
}

/// How often a kernel is killed until programs see it in time. A wake-up alone may take as long on a busy machine.
pub const ATTEMPTS: usize = 10;

/// If a guest is killed, waiting programs see it within 100 ms. The best of [`ATTEMPTS`] counts.
pub fn resets_in_time(start: impl Fn() -> Service) {
    let mut best = Duration::MAX;
    for _ in 0..ATTEMPTS {
        let service = start();
        let log = service.scratch.path("waiter.log");
        let mut waiter = service.accelerated("/usr/bin/python3 -u -c").arg(WAITER).start(log);
        let (said, took) = kill_under(&mut waiter, || kill_kernel(&service));
        assert!(said.contains(&format!("then {}", libc::ENETDOWN)), "{said}");
        until("the service logs it", 10, || service.running.output().contains("the guest has died"));
        let kernel = kernel_of(&service);
        until("the guest's processes are gone", 20, || group(kernel).is_empty());
        best = best.min(took);
        if best <= Duration::from_millis(100) {
            return;
        }
    }
    panic!("it took {best:?} at best");
}

/// A guest whose service is killed ends too.
pub fn ends_with_its_service(mut service: Service) {
    let kernel = kernel_of(&service);
    assert!(!group(kernel).is_empty());
    service.running.signal(libc::SIGKILL);
    service.running.wait_end(10);
    // The dead processes may still exist as zombies: the process that inherits them has not waited for them yet.
    until("the guest's processes are gone", 60, || group(kernel).iter().all(|line| line.contains(" Z")));
}

/// A word goes faster through shared memory than in a message. The guest's frames come out of a socketpair.
pub fn nearer_than_a_message(kind: MachineKind) {
    require_program("ping", "iputils-ping");
    let (ours, its) = socketpair(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None).unwrap();
    let machine = MachineConfig {
        kind,
        program: None,
        kernel: None,
        init: bin("towpathd"),
        cores: 1,
        // A debug build is unpacked in the guest's memory.
        memory_mib: 256,
        wire: Wire::Socket(its),
        address: Some("10.97.8.2/24".into()),
        gateway: None,
        confined: true,
    };
    let geometry = Geometry { slots: 64, app_slots: 32, tx_bytes: 65_536, rx_bytes: 65_536, ..Geometry::DEFAULT };
    let guest = Guest::start(GuestConfig { machine, geometry, clients: 2 }, Box::new(AllowAll), || {}).unwrap();
    let (shared, messages) = guest.round_trips(500).unwrap();
    // The shortest time counts, because a busy machine often runs another program instead of one of the two that spin.
    println!("round trips: shared memory {:?}, message {:?}", shared[0], messages[0]);
    assert!(shared[0] < messages[0]);
    // The guest's ARP request for the neighbour is on the wire.
    let words = ["ping", "-c", "1", "-W", "1", "10.97.8.1"].map(str::to_owned);
    assert_ne!(guest.execute(&words).unwrap().code, 0);
    let mut frame = [0u8; 2048];
    let asked = std::iter::from_fn(|| {
        rustix::net::recv(&ours, &mut frame[..], RecvFlags::DONTWAIT).ok().map(|(n, _)| frame[..n].to_vec())
    })
    .any(|frame| frame.len() >= 42 && frame[12..14] == [8, 6] && frame[38..42] == [10, 97, 8, 1]);
    assert!(asked, "no ARP request for 10.97.8.1");
    let kernel = guest.pid() as i32;
    drop(guest);
    until("the guest's processes are gone", 20, || group(kernel).is_empty());
}

/// `towpath run` boots a second kernel if none of this name runs. The next `towpath run` finds it.
pub fn boots_if_there_is_none(stack: &str) {
    let scratch = Scratch::new("own");
    std::fs::set_permissions(&scratch.0, Permissions::from_mode(0o700)).unwrap();
    let towpath = |words: &[&str]| {
        let program = Program::new(&[bin("towpath")]).env("XDG_RUNTIME_DIR", &scratch.0);
        words.iter().fold(program, |program, word| program.arg(word))
    };
    let script = "import os, socket; l = socket.socket(); l.bind(('127.0.0.1', 0)); l.listen(); \
                  c = socket.create_connection(l.getsockname()); a, _ = l.accept(); c.sendall(b'hello'); print(a.recv(5))";
    let run = |script: &str| {
        towpath(&["run", "--require", "--stack", stack, "--", "/usr/bin/python3", "-c", script]).run(300)
    };
    let first = run(script);
    assert!(first.err.contains("booting a second kernel"), "{}", first.err);
    assert_eq!(first.ok().trim(), "b'hello'");
    let second = run(script);
    assert!(!second.err.contains("booting"), "{}", second.err);
    assert_eq!(second.ok().trim(), "b'hello'");
    let released = towpath(&["exec", "--stack", stack, "--", "uname", "-r"]).run(30).ok();
    assert_ne!(released, Program::line("uname -r").run(10).ok());
    towpath(&["stop", "--stack", stack]).run(20).ok();
}
