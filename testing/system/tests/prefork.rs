//! Servers of several processes. All processes serve. If any is killed at any moment, the others go on and nothing is
//! left behind.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use towpath_system_tests::program::Running;
use towpath_system_tests::{Program, Service, require_program, require_root, until};

/// Sockets of programs called `name` in any of these states.
fn sockets_of(service: &Service, name: &str, states: &[&str]) -> usize {
    let sockets = service.sockets();
    let all = sockets["sockets"].as_array().expect("a list");
    all.iter().filter(|s| s["program"] == name && states.iter().any(|state| s["state"] == *state)).count()
}

/// Slots in use by clients called `name`.
fn slots_of(service: &Service, name: &str) -> u64 {
    let status = service.status();
    let clients = status["clients"].as_array().expect("clients");
    clients.iter().filter(|c| c["program"] == name).map(|c| c["slots"].as_u64().expect("slots")).sum()
}

/// `kill -9` for a process that the test's own server has started.
fn kill(pid: i32) {
    // SAFETY: `kill` takes numbers and no memory.
    unsafe { libc::kill(pid, libc::SIGKILL) };
}

// --- nginx

struct Nginx {
    running: Running,
    dir: PathBuf,
    port: u16,
}

impl Nginx {
    /// Starts four workers, with HTTP on `port` and HTTPS on the next port.
    fn start(service: &Service, port: u16, accept_mutex: bool, reuseport: bool) -> Self {
        require_program("nginx", "nginx-light");
        let dir = service.scratch.path(&format!("nginx-{port}"));
        std::fs::create_dir_all(dir.join("www")).unwrap();
        std::fs::write(dir.join("www/small"), "small\n").unwrap();
        std::fs::write(dir.join("www/large"), vec![b'x'; 500_000]).unwrap();
        let key = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -keyout key.pem -out cert.pem";
        Program::line(key).dir(&dir).run(30).ok();
        let (mutex, reuse) = (if accept_mutex { "on" } else { "off" }, if reuseport { "reuseport" } else { "" });
        let (d, tls) = (dir.display(), port + 1);
        let user = if rustix::process::geteuid().is_root() { "user root;" } else { "" };
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|what| format!("{what}_temp_path {d}/{what}; "))
            .concat();
        let config = format!(
            "{user} worker_processes 4; daemon off; pid {d}/pid; error_log {d}/error.log notice;
             events {{ worker_connections 256; accept_mutex {mutex}; }}
             http {{ access_log off; {temporary} sendfile on; keepalive_timeout 30; add_header X-Pid $pid always;
               server {{ listen 127.0.0.1:{port} {reuse}; listen 127.0.0.1:{tls} ssl {reuse};
                 ssl_certificate {d}/cert.pem; ssl_certificate_key {d}/key.pem; root {d}/www; }} }}"
        );
        std::fs::write(dir.join("nginx.conf"), config).unwrap();
        let running = service.accelerated("nginx -c").arg(dir.join("nginx.conf")).start(dir.join("output"));
        let nginx = Self { running, dir, port };
        until("nginx answers", 30, || nginx.curl(service, "small").code == 0);
        nginx
    }
    fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}/{path}", self.port)
    }
    fn curl(&self, service: &Service, path: &str) -> towpath_system_tests::Finished {
        service.accelerated("curl -sS -m 80 -D - -o /dev/null").arg(self.url(path)).run(30)
    }
    /// The workers that answer these requests. One program makes them, each on a connection of its own.
    fn workers(&self, service: &Service, requests: u32) -> BTreeSet<i32> {
        let script = "import sys, socket, re
for _ in range(int(sys.argv[2])):
    s = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); s.settimeout(60)
    s.sendall(b'GET /small HTTP/1.0\\r\\n\\r\\n'); got = b''
    while True:
        part = s.recv(65536)
        if not part: break
        got += part
    s.close(); print(re.search(rb'X-Pid: (\\d+)', got).group(1).decode())";
        let command = service.accelerated("/usr/bin/python3 -c").arg(script).arg(self.port.to_string());
        let out = command.arg(requests.to_string()).run(60).ok();
        assert_eq!(out.lines().count(), requests as usize);
        out.lines().map(|pid| pid.parse().unwrap()).collect()
    }
    fn wrk(&self, service: &Service, connection: &str, path: &str) -> String {
        let wrk = service.accelerated("wrk -t1 -c16 -d1s --timeout 60s -H").arg(format!("Connection: {connection}"));
        let out = wrk.arg(self.url(path)).run(60).ok();
        assert!(!out.contains("Socket errors") && !out.contains("Non-2xx"), "{out}");
        out
    }
    fn signal(&self, signal: i32) {
        let pid: i32 = std::fs::read_to_string(self.dir.join("pid")).unwrap().trim().parse().unwrap();
        // SAFETY: the process is the nginx that the test has started.
        unsafe { libc::kill(pid, signal) };
    }
}

/// The test of four workers, whichever way they share the listener.
fn nginx_serves(service: &Service, port: u16, accept_mutex: bool, reuseport: bool) {
    require_program("wrk", "wrk");
    require_program("curl", "curl");
    let mut nginx = Nginx::start(service, port, accept_mutex, reuseport);
    let listeners = if reuseport { 8 } else { 2 };
    assert_eq!(sockets_of(service, "nginx", &["LISTEN"]), listeners);
    let seen = nginx.workers(service, 64);
    // With the mutex one worker may take all connections of an idle server, on Linux too.
    assert!(seen.len() == 4 || accept_mutex, "{seen:?} of four workers have served");
    nginx.wrk(service, "keep-alive", "small");
    nginx.wrk(service, "close", "small");
    nginx.wrk(service, "keep-alive", "large");
    let tls = service.accelerated("curl -sSk -m 80").arg(format!("https://127.0.0.1:{}/large", port + 1)).run(30).ok();
    assert_eq!(tls.len(), 500_000);

    // A worker is killed: the master starts another one, and the others serve meanwhile.
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            let mut served = 0;
            while !stop.load(Ordering::Relaxed) {
                served += u32::from(nginx.curl(service, "large").code == 0);
            }
            served
        });
        for _ in 0..3 {
            let victim = *nginx.workers(service, 1).first().unwrap();
            kill(victim);
            until("its successor serves", 30, || {
                let now = nginx.curl(service, "small");
                now.code == 0 && !now.out.contains(&format!("X-Pid: {victim}"))
            });
        }
        stop.store(true, Ordering::Relaxed);
        assert!(load.join().unwrap() > 0);
    });
    let after = nginx.workers(service, 64);
    assert!(after.len() == 4 || accept_mutex, "{after:?}");

    // Reload: new workers serve, and the old ones end.
    nginx.signal(libc::SIGHUP);
    until("new workers serve alone", 30, || nginx.workers(service, 8).is_disjoint(&after));
    until("nothing but listeners is left", 30, || {
        slots_of(service, "nginx") == listeners as u64 && sockets_of(service, "nginx", &["ESTAB", "CLOSE-WAIT"]) == 0
    });
    nginx.signal(libc::SIGQUIT);
    nginx.running.wait_end(30);
    until("the port is free again", 10, || sockets_of(service, "nginx", &["LISTEN"]) == 0);
}

#[test]
fn nginx_with_four_workers() {
    let service = Service::embedded();
    let before = service.segments();
    nginx_serves(&service, 18_100, false, false);
    assert!(service.segments() - before > 1000, "the stack has carried it");
}

#[test]
fn nginx_with_four_workers_that_take_turns() {
    nginx_serves(&Service::embedded(), 18_110, true, false);
}

#[test]
fn nginx_with_four_workers_of_a_listener_each() {
    nginx_serves(&Service::embedded(), 18_120, false, true);
}

#[test]
fn nginx_with_four_workers_joined_directly() {
    nginx_serves(&Service::direct(), 18_130, false, false);
    nginx_serves(&Service::direct(), 18_140, true, true);
}

// --- A server of the test's own, and kills at random moments.

/// `python3 -c SERVER PORT KIND WORKERS`: workers echo lines until the peer ends. The master replaces each worker that
/// dies.
const SERVER: &str = "
import os, sys, socket, select, signal
port, kind, workers = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
def listener():
    s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if kind == 'reuseport': s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    s.bind(('127.0.0.1', port)); s.listen(100); return s
def work(l):
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if kind in ('exclusive', 'level'):
        l.setblocking(False); ep = select.epoll()
        ep.register(l, select.EPOLLIN | (select.EPOLLEXCLUSIVE if kind == 'exclusive' else 0))
    if kind == 'reuseport': l = listener()
    while True:
        if kind in ('exclusive', 'level'): ep.poll()
        try: s, _ = l.accept()
        except BlockingIOError: continue
        s.setblocking(True)
        try:
            while True:
                line = s.recv(1000)
                if not line: break
                s.sendall(b'%d %s' % (os.getpid(), line))
        except OSError: pass
        s.close()
l = None if kind == 'reuseport' else listener()
alive = set()
def start():
    pid = os.fork()
    if pid == 0:
        try: work(l)
        finally: os._exit(1)
    alive.add(pid)
def end(*_):
    for pid in alive: os.kill(pid, signal.SIGKILL)
    os._exit(0)
signal.signal(signal.SIGTERM, end)
for _ in range(workers): start()
print('ready', flush=True)
while True:
    pid, _ = os.wait(); alive.discard(pid); start()
";

/// `python3 -c LOAD PORT KILLS SEED`: connects, sends a line or two, ends. Now and then it kills the worker that has
/// answered, at a moment around an accept.
/// A connection may end with its worker. One without an answer within 20 s is an error.
const LOAD: &str = "
import os, sys, socket, random, signal, time, threading
port, kills, chance = int(sys.argv[1]), int(sys.argv[2]), random.Random(int(sys.argv[3]))
served, ended, pids = 0, 0, set()
def talk(lines):
    global served, ended
    last = None
    try:
        s = socket.create_connection(('127.0.0.1', port), 60)
        for _ in range(lines):
            s.sendall(b'hello'); got = s.recv(1000)
            if not got: ended += 1; break
            last = int(got.split()[0]); pids.add(last); served += 1
        s.close()
    except TimeoutError: raise SystemExit('nobody serves')
    except OSError: ended += 1
    return last
def busy():
    while not done: talk(2)
done = False
threads = [threading.Thread(target=busy, daemon=True) for _ in range(3)]
for t in threads: t.start()
dead = set()
while len(dead) < kills:
    victim = talk(1)
    if victim is None or victim in dead: continue
    # Half of the moments lie within the time that a connection takes.
    time.sleep(chance.choice([0.0003, 0.004]) * chance.random())
    os.kill(victim, signal.SIGKILL); dead.add(victim)
done = True
for t in threads: t.join(30); assert not t.is_alive(), 'a connection that nobody serves'
before = served
for _ in range(40): talk(1)
print(served - before, len(pids) > kills, ended <= 8 * kills)
";

/// Workers are killed at seeded moments under load. Afterwards only what the server still has is left.
fn workers_may_be_killed(service: &Service, port: u16, kind: &str, kills: u32, listeners: u64) {
    let server = service.accelerated("/usr/bin/python3 -c").arg(SERVER).arg(port.to_string()).arg(kind).arg("4");
    let mut server = server.start(service.scratch.path(&format!("server-{port}")));
    server.wait_for("ready", 20);
    if kind == "reuseport" {
        until("four listeners", 20, || sockets_of(service, "python3", &["LISTEN"]) == 4);
    }
    let load = service.accelerated("/usr/bin/python3 -c").arg(LOAD).arg(port.to_string());
    let out = load.arg(kills.to_string()).arg(port.to_string()).run(120).ok();
    // If each worker has a listener, a connection to a killed worker is refused or reset, as on Linux.
    let all: u32 = out.split(' ').next().unwrap().parse().unwrap();
    assert!(all == 40 || kind == "reuseport" && all > 20, "{out}");
    assert!(out.contains(" True ") && (out.trim().ends_with("True") || kind == "reuseport"), "{out}");
    until(&format!("{kind}: nothing but listeners is left"), 30, || {
        let open = sockets_of(service, "python3", &["ESTAB", "CLOSE-WAIT", "FIN-WAIT-1", "FIN-WAIT-2", "LAST-ACK"]);
        open == 0 && slots_of(service, "python3") == listeners
    });
    server.stop();
    until("the client is forgotten", 30, || service.status()["clients"].as_array().unwrap().is_empty());
}

#[test]
fn workers_in_accept_may_be_killed_at_any_moment() {
    workers_may_be_killed(&Service::embedded(), 18_200, "accept", 80, 1);
    workers_may_be_killed(&Service::direct(), 18_201, "accept", 80, 1);
}

#[test]
fn workers_that_share_a_listener_by_epoll_may_be_killed_at_any_moment() {
    for (n, kind) in ["exclusive", "level"].into_iter().enumerate() {
        workers_may_be_killed(&Service::embedded(), 18_210 + n as u16, kind, 60, 1);
        workers_may_be_killed(&Service::direct(), 18_215 + n as u16, kind, 60, 1);
    }
}

#[test]
fn workers_with_a_listener_each_may_be_killed_at_any_moment() {
    workers_may_be_killed(&Service::embedded(), 18_220, "reuseport", 40, 4);
    workers_may_be_killed(&Service::direct(), 18_221, "reuseport", 40, 4);
}

/// The master is killed. Its workers serve on, from the listener that they have inherited.
#[test]
fn a_master_may_be_killed() {
    let service = Service::embedded();
    let server = service.accelerated("/usr/bin/python3 -c").arg(SERVER).arg("18230").arg("exclusive").arg("4");
    let mut server = server.start(service.scratch.path("server"));
    server.wait_for("ready", 20);
    let talk = || {
        let script = "import socket
for _ in range(20):
    s = socket.create_connection(('127.0.0.1', 18230), 60); s.sendall(b'x'); print(s.recv(100).split()[0].decode()); s.close()";
        service.accelerated("/usr/bin/python3 -c").arg(script).run(60).ok()
    };
    let workers: BTreeSet<i32> = talk().lines().map(|pid| pid.parse().unwrap()).collect();
    server.signal(libc::SIGKILL);
    server.wait_end(10);
    let after: BTreeSet<i32> = talk().lines().map(|pid| pid.parse().unwrap()).collect();
    assert_eq!(workers, after, "the same workers serve");
    assert_eq!(workers.len(), 4);
    workers.iter().copied().for_each(kill);
    until("nothing is left", 30, || service.status()["clients"].as_array().unwrap().is_empty());
    assert_eq!(sockets_of(&service, "python3", &["LISTEN", "ESTAB", "CLOSE-WAIT"]), 0);
}

// --- PostgreSQL

/// The directory of Debian's newest version.
fn postgresql() -> PathBuf {
    let versions =
        std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten().map(|d| d.path().join("bin"));
    let newest = versions.filter(|bin| bin.join("initdb").is_file()).max();
    newest.expect("PostgreSQL is missing: apt-get install -y postgresql (or run scripts/setup)")
}

#[test]
fn postgresql_serves_and_recovers() {
    require_root();
    let bin = postgresql();
    for (port, direct) in [(18_300, "false"), (18_301, "true")] {
        let service = Service::start(|program| program.arg("--direct").arg(direct).arg("--admit").arg("all"));
        postgresql_on(&service, &bin, port);
        assert!(direct == "true" || service.segments() > 5000, "the stack has carried it");
    }
}

fn postgresql_on(service: &Service, bin: &std::path::Path, port: u16) {
    let as_postgres = ["setpriv", "--reuid", "postgres", "--regid", "postgres", "--clear-groups"];
    let data = service.scratch.path("data");
    let initdb = Program::new(&[bin.join("initdb")]).arg("-D").arg(&data);
    initdb.arg("-A").arg("trust").arg("-U").arg("postgres").arg("-N").under(&as_postgres).dir("/").run(120).ok();
    let postgres = service.accelerated(bin.join("postgres").to_str().unwrap()).arg("-D").arg(&data);
    let settings = ["listen_addresses=127.0.0.1", "unix_socket_directories=", "fsync=off", "restart_after_crash=on"];
    let postgres = settings.iter().fold(postgres, |program, setting| program.arg("-c").arg(setting));
    let mut server =
        postgres.arg("-c").arg(format!("port={port}")).under(&as_postgres).dir("/").start(service.scratch.path("pg"));
    server.wait_for("ready to accept connections", 60);
    let port = port.to_string();
    let client = |program: &str| {
        service
            .accelerated(bin.join(program).to_str().unwrap())
            .arg("-h")
            .arg("127.0.0.1")
            .arg("-p")
            .arg(&port)
            .arg("-U")
            .arg("postgres")
    };
    let query = |text: &str| client("psql").arg("-At").arg("-c").arg(text).arg("postgres").run(30);
    client("pgbench").arg("-i").arg("-q").arg("postgres").run(60).ok();
    let bench = || {
        // So many transactions, however long they take: about seven thousand segments.
        let out = client("pgbench").arg("-c8").arg("-j2").arg("-t60").arg("postgres").run(300).ok();
        assert!(out.contains("number of failed transactions: 0 "), "{out}");
    };
    bench();
    assert_eq!(query("select count(*) from pgbench_accounts").ok(), "100000\n");
    // One of its processes is killed. PostgreSQL ends all others, recovers, and serves again.
    let sleeper =
        client("psql").arg("-c").arg("select pg_sleep(60)").arg("postgres").start(service.scratch.path("sleeper"));
    let mut victim = String::new();
    until("the query runs", 20, || {
        victim = query("select pid from pg_stat_activity where query = 'select pg_sleep(60)'").out;
        !victim.trim().is_empty()
    });
    kill(victim.trim().parse().unwrap());
    let mut sleeper = sleeper;
    sleeper.wait_end(20);
    assert!(sleeper.output().contains("server closed the connection"), "{}", sleeper.output());
    until("it has recovered", 60, || query("select 1").out == "1\n");
    assert!(server.output().contains("database system was interrupted"), "{}", server.output());
    assert_eq!(query("select count(*) from pgbench_accounts").ok(), "100000\n");
    bench();
    until("only its listener is left", 30, || slots_of(service, "postgres") == 1);
    server.signal(libc::SIGINT);
    server.wait_end(30);
}
