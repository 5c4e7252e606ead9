//! Unmodified programs over the kernel stack: the same rings, another stack behind them.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use towpath_system_tests::{Program, Service, bin, require_program, require_root, until};

/// Runs `check` and asserts that the kernel stack carried at least this many bytes for it, in both directions.
fn carried(service: &Service, bytes_min: u64, check: impl FnOnce()) {
    let bytes = || (service.stage("sent_bytes"), service.stage("received_bytes"));
    let before = bytes();
    check();
    let after = bytes();
    let moved = (after.0 - before.0).min(after.1 - before.1);
    assert!(moved >= bytes_min, "the stack carried only {moved} bytes, expected {bytes_min}");
}

#[test]
fn the_kernel_stack_carries_redis_and_its_benchmark() {
    require_program("redis-server", "redis-server");
    let service = Service::kernel();
    let mut server = service
        .accelerated("redis-server --port 7611 --save --appendonly no --daemonize no")
        .dir(&service.scratch.0)
        .start(service.scratch.path("redis.log"));
    server.wait_for("Ready to accept connections", 20);
    carried(&service, 500_000, || {
        let out = service.accelerated("redis-benchmark -p 7611 -t get,set -n 10000 -c 20 -q").run(60).ok();
        assert!(out.contains("GET:") && out.contains("SET:"), "{out}");
        // The peer may be any program, because this TCP is the kernel's.
        assert_eq!(Program::line("redis-cli -p 7611 set colour green").run(10).ok().trim(), "OK");
        assert_eq!(service.accelerated("redis-cli -p 7611 get colour").run(10).ok().trim(), "green");
    });
    let listed = service.sockets();
    let listening = listed["sockets"].as_array().expect("sockets").iter().any(|s| s["state"] == "LISTEN");
    assert!(listening, "{listed}");
    assert_eq!(service.status()["stack"], "kernel");
}

#[test]
fn the_kernel_stack_carries_nginx_for_programs_of_the_kernel_and_its_own() {
    require_program("nginx", "nginx-light");
    require_program("curl", "curl");
    let service = Service::kernel();
    let dir = &service.scratch.0;
    let body = "towpath ".repeat(40_000);
    std::fs::write(dir.join("index.html"), &body).expect("body");
    let user = if rustix::process::geteuid().is_root() { "user root;" } else { "" };
    let config = format!(
        "{user} worker_processes 2; daemon off; pid {d}/nginx.pid; error_log {d}/error.log notice;
         events {{ worker_connections 256; }}
         http {{ access_log off; client_body_temp_path {d}/b; proxy_temp_path {d}/p; fastcgi_temp_path {d}/f;
                uwsgi_temp_path {d}/u; scgi_temp_path {d}/s;
                server {{ listen 127.0.0.1:7612; root {d}; }} }}",
        d = dir.display()
    );
    std::fs::write(dir.join("nginx.conf"), config).expect("config");
    let mut server =
        service.accelerated("nginx -c").arg(dir.join("nginx.conf")).start(service.scratch.path("nginx.log"));
    let line = "curl -sS --max-time 80 http://127.0.0.1:7612/";
    until("nginx answers", 15, || {
        assert!(server.alive(), "{}", server.output());
        service.accelerated(line).run(30).code == 0
    });
    for _ in 0..3 {
        carried(&service, body.len() as u64, || assert!(service.accelerated(line).run(30).ok() == body));
        let before = service.stage("sent_bytes");
        assert!(Program::line(line).run(30).ok() == body, "to a program on the kernel");
        assert!(service.stage("sent_bytes") - before >= body.len() as u64);
    }
}

#[test]
fn the_kernel_stack_carries_pythons_http_server() {
    require_program("curl", "curl");
    let service = Service::kernel();
    let body: Vec<u8> = (0..3_000_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    std::fs::write(service.scratch.path("body.bin"), &body).expect("body");
    let mut server = service
        .accelerated("/usr/bin/python3 -u -m http.server 7613 --bind 127.0.0.1")
        .dir(&service.scratch.0)
        .start(service.scratch.path("http.log"));
    server.wait_for("Serving HTTP", 20);
    carried(&service, body.len() as u64, || {
        let to = service.scratch.path("got.bin");
        service.accelerated("curl -sS --max-time 80 http://127.0.0.1:7613/body.bin -o").arg(&to).run(40).ok();
        assert!(std::fs::read(&to).expect("downloaded") == body, "the file differs");
    });
}

/// A network namespace that is deleted with its guard.
struct Namespace(String);

impl Namespace {
    fn new(what: &str) -> Self {
        let namespace = Self(format!("kernel-{what}-{}", std::process::id()));
        Program::line(&format!("ip netns add {}", namespace.0)).run(10).ok();
        Program::line(&format!("ip -n {} link set lo up", namespace.0)).run(10).ok();
        namespace
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        Program::line(&format!("ip netns del {}", self.0)).run(10);
    }
}

#[test]
fn a_kernel_stack_in_another_namespace_gives_its_programs_that_network() {
    require_root();
    require_program("curl", "curl");
    let inside = Namespace::new("inside");
    let within = ["ip", "netns", "exec", inside.0.as_str()];
    let service = Service::start(|program| program.arg("--stack").arg("kernel").under(&within));
    std::fs::write(service.scratch.path("word"), "towpath").expect("body");
    let mut server = Program::line("/usr/bin/python3 -u -m http.server 7614 --bind 127.0.0.1")
        .under(&within)
        .dir(&service.scratch.0)
        .start(service.scratch.path("http.log"));
    server.wait_for("Serving HTTP", 20);
    let line = "curl -sS --max-time 80 http://127.0.0.1:7614/word";
    assert_ne!(Program::line(line).run(20).code, 0, "here nobody listens");
    assert_eq!(service.accelerated(line).run(20).ok(), "towpath");
}

const BOUND: &str = "import errno, socket, sys
here = sys.argv[1]
l = socket.socket(); l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); l.bind((here, 7615)); l.listen()
assert l.getsockname() == (here, 7615)
c = socket.socket(); c.bind((here, 0)); c.connect((here, 7615)); a, peer = l.accept()
assert peer == c.getsockname() and peer[0] == here, peer
c.sendall(b'towpath'); print(a.recv(10))
try: socket.socket().bind(('192.0.2.77', 0)); print('bound')
except OSError as error: print(errno.errorcode[error.errno])";

#[test]
fn a_program_binds_to_an_address_that_only_its_stack_has() {
    require_root();
    let inside = Namespace::new("bound");
    Program::line(&format!("ip -n {} addr add 10.97.9.1/32 dev lo", inside.0)).run(10).ok();
    let within = ["ip", "netns", "exec", inside.0.as_str()];
    let service = Service::start(|program| program.arg("--stack").arg("kernel").under(&within));
    let said = service.accelerated("/usr/bin/python3 -c").arg(BOUND).arg("10.97.9.1").run(30).ok();
    assert_eq!(said.split_whitespace().collect::<Vec<_>>(), ["b'towpath'", "EADDRNOTAVAIL"]);
    let plain = Program::line("/usr/bin/python3 -c").arg(BOUND).arg("10.97.9.1").run(30);
    assert_ne!(plain.code, 0, "this host has the address");
}

const MARKED: &str = "import socket, sys
l = socket.socket(); l.setsockopt(socket.IPPROTO_IP, 21, 3); l.bind(('127.0.0.1', 7616)); l.listen()
s = socket.socket()
for level, name, value in [(1, socket.SO_MARK, 7), (1, socket.SO_PRIORITY, 5), (6, socket.TCP_WINDOW_CLAMP, 3000)]:
    s.setsockopt(level, name, value); assert s.getsockopt(level, name) == value
s.connect(('127.0.0.1', 7616)); a, _ = l.accept()
assert a.getsockopt(socket.IPPROTO_IP, 21) == 3
s.setsockopt(1, socket.SO_MARK, 9); s.setsockopt(1, socket.SO_PRIORITY, 2)
s.sendall(b'x'); assert a.recv(9) == b'x'
s.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, 2); s.settimeout(0.5); s.sendall(b'y'); a.settimeout(0.5)
try: a.recv(9); print('heard')
except TimeoutError: print('too far')";

#[test]
fn a_kernel_stack_sets_the_options_that_a_program_sets() {
    require_root();
    require_program("nft", "nftables");
    let inside = Namespace::new("marked");
    let within = ["ip", "netns", "exec", inside.0.as_str()];
    let table = "table ip seen { chain out { type filter hook output priority 0;
        tcp dport 7616 tcp flags & (syn | ack) == syn meta mark 7 meta priority 5 counter comment \"early\"
        tcp dport 7616 meta mark 9 meta priority 2 tcp flags & psh == psh counter comment \"late\"
        tcp dport 7616 tcp flags & (syn | ack) == syn tcp window <= 3000 counter comment \"window\"; }; }";
    Program::line("nft").arg(table).under(&within).run(10).ok();
    let service = Service::start(|program| program.arg("--stack").arg("kernel").under(&within));
    // The listener requires segments to have three hops left. The last one has two.
    let said = service.accelerated("/usr/bin/python3 -c").arg(MARKED).run(30).ok();
    assert_eq!(said.trim(), "too far");
    let seen = Program::line("nft list table ip seen").under(&within).run(10).ok();
    for line in ["early", "late", "window"] {
        let counted = seen.lines().find(|text| text.contains(line)).unwrap_or_default();
        assert!(counted.contains("counter packets") && !counted.contains("packets 0 "), "{line}: {seen}");
    }
}

#[test]
fn run_starts_a_kernel_stack_and_names_find_one() {
    let name = format!("test-{}", std::process::id());
    let towpath = || Program::new(&[bin("towpath")]);
    let absent = towpath().arg("status").arg("--stack").arg(format!("kernel={name}")).run(10);
    assert_eq!(absent.code, 3, "{}", absent.err);
    let runs = towpath().arg("run").arg("--require").arg("--stack").arg(format!("kernel={name}")).arg("true").run(10);
    assert!(runs.err.contains(&format!("towpath kernel-stack --name {name}")), "{}", runs.err);
    let log = std::env::temp_dir().join(format!("towpath-{name}.log"));
    let mut stack = towpath().arg("kernel-stack").arg("--name").arg(&name).start(&log);
    until("the stack answers", 20, || {
        towpath().arg("status").arg("--stack").arg(format!("kernel={name}")).run(10).code == 0
    });
    let script = "import socket; l = socket.socket(); l.bind(('127.0.0.1', 0)); l.listen(); \
                  c = socket.create_connection(l.getsockname()); a, _ = l.accept(); c.sendall(b'hello'); print(a.recv(5))";
    let run = |stack: String| {
        let program = towpath().arg("run").arg("--require").arg("--stack").arg(stack).arg("--");
        program.arg("/usr/bin/python3").arg("-c").arg(script).run(30).ok()
    };
    assert_eq!(run(format!("kernel={name}")).trim(), "b'hello'");
    assert_eq!(run("kernel".into()).trim(), "b'hello'", "started for the purpose");
    for which in [format!("kernel={name}"), "kernel".into()] {
        let status = towpath().arg("status").arg("--json").arg("--stack").arg(&which).run(10).ok();
        let status: serde_json::Value = serde_json::from_str(&status).expect("JSON");
        assert_eq!(status["stack"], "kernel");
        assert!(status["flow_groups"][0]["stages"]["sent_bytes"].as_u64().expect("bytes") >= 5, "{status}");
    }
    stack.stop();
    let _ = std::fs::remove_file(log);
}
