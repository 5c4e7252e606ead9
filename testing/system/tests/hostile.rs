//! Applications that die, stop, or ask for too much. The service goes on, others are not disturbed, and nothing leaks.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use serde_json::Value;
use towpath_system_tests::program::Running;
use towpath_system_tests::{Program, Service, require_program, until};

fn redis(service: &Service, port: u16) -> Running {
    require_program("redis-server", "redis-server");
    let mut server = service
        .accelerated(&format!("redis-server --port {port} --save --appendonly no --maxclients 4000"))
        .dir(&service.scratch.0)
        .start(service.scratch.path(&format!("redis-{port}.log")));
    server.wait_for("Ready to accept connections", 20);
    server
}

/// Resources that must be back at their former number after clients have died.
#[derive(Debug, PartialEq, Eq)]
struct Holdings {
    descriptors: usize,
    threads: usize,
    flows: u64,
    clients: u64,
}

fn holdings(service: &Service) -> Holdings {
    let pid = service.running.worker();
    // The thread of a client connection has a descriptor table of its own, so the tables of all threads count.
    let tasks: Vec<_> = std::fs::read_dir(format!("/proc/{pid}/task")).expect("tasks").flatten().collect();
    let descriptors = tasks.iter().map(|t| std::fs::read_dir(t.path().join("fd")).map_or(0, |fds| fds.count())).sum();
    let status: Value = service.status();
    let flows = status["flow_groups"]
        .as_array()
        .expect("flow groups")
        .iter()
        .map(|c| c["flows"].as_u64().expect("flows"))
        .sum();
    let clients = status["clients"].as_array().expect("clients").len() as u64;
    Holdings { descriptors, threads: tasks.len(), flows, clients }
}

/// Waits until nothing changes for a second, with no flows and this number of clients. Returns the resources in use.
fn settled(service: &Service, clients: u64) -> Holdings {
    let mut last = holdings(service);
    let mut since = std::time::Instant::now();
    until("nothing changes any more", 60, || {
        std::thread::sleep(std::time::Duration::from_millis(50));
        let now = holdings(service);
        if now != last || now.flows != 0 || now.clients != clients {
            (last, since) = (now, std::time::Instant::now());
        }
        since.elapsed().as_secs() >= 1
    });
    last
}

/// Resident memory in KiB: the process's own, and that which it shares with clients.
fn resident_kib(pid: i32) -> (u64, u64) {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("status");
    let of = |name: &str| -> u64 {
        let line = text.lines().find(|l| l.starts_with(name)).expect(name);
        line.split_whitespace().nth(1).expect("number").parse().expect("number")
    };
    (of("RssAnon:"), of("RssShmem:"))
}

const LOADER: &str = r#"
import socket, sys, os
port = int(sys.argv[1])
socks = []
for _ in range(int(sys.argv[2])):
    s = socket.create_connection(("127.0.0.1", port)); socks.append(s)
print("loaded", flush=True)
while True:
    for s in socks:
        s.sendall(b"PING\r\n" * 100)
    for s in socks:
        got = 0
        while got < 700:
            got += len(s.recv(4096))
"#;

/// Kills `count` clients under load, several at a time. The moments range from before their first connection to the
/// middle of their transfers.
fn kill_clients(service: &Service, port: u16, count: usize) {
    let line = format!("redis-benchmark -p {port} -c 4 -n 100000000 -t set -d 100");
    let mut killed = 0;
    while killed < count {
        let mut batch: Vec<Running> = (0..20)
            .map(|i| service.accelerated(&line).start(service.scratch.path(&format!("loader-{i}.log"))))
            .collect();
        for (i, client) in batch.iter_mut().enumerate() {
            std::thread::sleep(std::time::Duration::from_millis(((killed + i) * 7 % 23) as u64));
            client.signal(libc::SIGKILL);
        }
        batch.iter_mut().for_each(|client| client.wait_end(5));
        killed += batch.len();
    }
}

fn kills_leave_nothing(port: u16, count: usize) {
    let service = Service::embedded();
    let mut server = redis(&service, port);
    // Tables and allocator arenas first grow to the size that so many clients at a time need.
    kill_clients(&service, port, count / 5);
    let before = settled(&service, 1);
    let memory = resident_kib(service.running.worker());
    kill_clients(&service, port, count - count / 5);
    let after = settled(&service, 1);
    assert_eq!(after, before, "after {count} killed clients");
    let (own, shared) = resident_kib(service.running.worker());
    let grown = (own + shared).saturating_sub(memory.0 + memory.1);
    // 32 KiB for each would be a leak of any stack, ring or table.
    assert!(grown < 32 * count as u64, "{memory:?} KiB before, {own}, {shared} after {count} killed clients");
    let log = service.running.output();
    assert!(!log.contains("WARN") && !log.contains("ERROR"), "a client's death is no warning:\n{log}");
    assert!(server.alive());
    assert_eq!(service.accelerated(&format!("redis-cli -p {port} ping")).run(10).ok().trim(), "PONG");
}

#[test]
fn a_thousand_killed_clients_leave_nothing_behind() {
    kills_leave_nothing(7201, 1000);
}

#[test]
fn a_killed_server_resets_its_clients_and_its_port_is_free_again() {
    let service = Service::embedded();
    let server = redis(&service, 7202);
    let code = "import socket\ns=socket.create_connection(('127.0.0.1',7202),60)\ns.sendall(b'PING\\r\\n');print(s.recv(99),flush=True)\n\
                s.settimeout(60)\ntry:\n print('got',s.recv(99))\nexcept ConnectionResetError:\n print('got reset')";
    let mut client = service.accelerated("python3 -u -c").arg(code).start(service.scratch.path("client.log"));
    client.wait_for("PONG", 10);
    server.signal(libc::SIGKILL);
    client.wait_for("got", 10);
    drop(server);
    let _again = redis(&service, 7202);
}

#[test]
fn a_stopped_application_with_full_rings_harms_nobody() {
    let service = Service::embedded();
    let _server = redis(&service, 7203);
    let script = service.scratch.path("loader.py");
    std::fs::write(&script, LOADER).expect("script");
    let mut stopped =
        service.accelerated("python3").arg(&script).arg("7203").arg("8").start(service.scratch.path("stopped.log"));
    stopped.wait_for("loaded", 20);
    stopped.signal(libc::SIGSTOP);
    let out = service.accelerated("redis-benchmark -p 7203 -t set -n 5000 -c 10 -q").run(60).ok();
    assert!(out.contains("SET:"), "{out}");
    stopped.signal(libc::SIGCONT);
    assert!(stopped.alive());
    stopped.signal(libc::SIGKILL);
}

#[test]
fn a_hundred_thousand_sockets_are_refused_with_a_reason() {
    let service = Service::embedded();
    let _server = redis(&service, 7204);
    let code = "import socket,resource,errno\n\
                h=resource.getrlimit(resource.RLIMIT_NOFILE)[1];resource.setrlimit(resource.RLIMIT_NOFILE,(h,h))\n\
                kept=[];why=None\n\
                for i in range(100000):\n\
                \x20try:\n\
                \x20\x20s=socket.socket();s.setblocking(False);kept.append(s)\n\
                \x20\x20try: s.connect(('127.0.0.1',7204))\n\
                \x20\x20except BlockingIOError: pass\n\
                \x20except OSError as e:\n\
                \x20\x20why=errno.errorcode[e.errno];break\n\
                print(len(kept),why)";
    let out = service.accelerated("python3 -c").arg(code).run(120).ok();
    let mut words = out.split_whitespace();
    let opened: u32 = words.next().expect("count").parse().expect("count");
    let why = words.next().expect("reason");
    assert!(opened >= 1000, "{out}");
    assert!(["ENFILE", "EMFILE", "ENOBUFS", "EAGAIN", "EADDRNOTAVAIL", "None"].contains(&why), "{out}");
    let out = service.accelerated("redis-benchmark -p 7204 -t set -n 2000 -c 5 -q").run(60).ok();
    assert!(out.contains("SET:"), "{out}");
}

/// Waits for a connection in every way, in a thread each. Prints the outcome of each when the service has died.
const WAITERS: &str = r#"
import socket, select, threading, time
def connect():
    return socket.create_connection(("127.0.0.1", 7205), 60)
results = {}
def waiter(name, work):
    def body():
        start = time.monotonic()
        try: what = work()
        except OSError as error: what = type(error).__name__
        results[name] = what
    t = threading.Thread(target=body); t.start(); return t
a, b, c, d = connect(), connect(), connect(), connect()
for s in (a, b, c, d): s.settimeout(None)
e = select.epoll(); e.register(b, select.EPOLLIN)
p = select.poll(); p.register(c, select.POLLIN)
threads = [waiter("recv", lambda: a.recv(1)), waiter("epoll", lambda: bool(e.poll())),
           waiter("poll", lambda: bool(p.poll())), waiter("select", lambda: bool(select.select([d], [], [])[0]))]
time.sleep(0.3)
print("waiting", flush=True)
for t in threads: t.join()
print("over", sorted(results.items()), flush=True)
"#;

#[test]
fn nothing_hangs_when_the_service_is_killed() {
    let mut service = Service::embedded();
    let mut server = redis(&service, 7205);
    let mut waiters = service.accelerated("python3 -c").arg(WAITERS).start(service.scratch.path("waiters.log"));
    waiters.wait_for("waiting", 20);
    let mut load = service
        .accelerated("redis-benchmark -p 7205 -t set -n 100000000 -c 10 -q")
        .start(service.scratch.path("load.log"));
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert!(load.alive());
    service.running.signal(libc::SIGKILL);
    service.running.wait_end(5);
    // The life check comes each second. The rest of the time is for a busy machine.
    // It ends when it has written its line whole.
    waiters.wait_end(60);
    let output = waiters.output();
    let seen = "over [('epoll', True), ('poll', True), ('recv', 'ConnectionResetError'), ('select', True)]";
    assert!(output.contains(seen), "{output}");
    load.wait_end(10);
    // Redis survives the service without connections, and ends when it is told to.
    assert!(server.alive());
    server.signal(libc::SIGTERM);
    server.wait_end(10);
}

#[test]
fn a_configuration_with_an_unknown_key_or_without_a_unit_is_refused() {
    let service = Service::embedded();
    let config = service.scratch.path("bad.toml");
    let serve = |text: &str| {
        std::fs::write(&config, text).expect("config");
        Program::new(&[towpath_system_tests::bin("towpath")])
            .arg("serve")
            .arg("--socket")
            .arg(service.scratch.path("other.sock"))
            .arg("--config")
            .arg(&config)
            .run(10)
    };
    let out = serve("spinn = \"20us\"\n");
    assert!(out.code != 0 && out.err.contains("spinn") && out.err.contains("spin"), "{out:?}");
    let out = serve("spin = \"20\"\n");
    assert!(out.code != 0 && out.err.contains("unit"), "{out:?}");
    let out = serve("spin = 20\n");
    assert!(out.code != 0 && out.err.contains("unit"), "{out:?}");
}
