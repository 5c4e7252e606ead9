//! The operator's policy, as seen by programs, by a client that speaks to the ring itself, and in the log.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use serde_json::Value;
use std::sync::atomic::Ordering;
use std::time::Duration;
use towpath_ring::command::{Command, NOT_OURS, not_ours, op};
use towpath_ring::lines::congestion;
use towpath_ring::options::Options;
use towpath_system_tests::namespace::{CLIENT, SERVER};
use towpath_system_tests::program::Running;
use towpath_system_tests::{Finished, Lab, Program, RawClient, Service, bin, require_program, require_root, until};

/// A user other than root and the service's user.
const OTHER: u32 = 23_451;

fn service() -> Service {
    // Not direct, because these tests count what the stack carries and drops.
    Service::start(|program| program.arg("--admit").arg("all").arg("--direct").arg("false"))
}

/// Runs `towpath policy LINE`.
fn policy(service: &Service, line: &str) -> Finished {
    let mut program = Program::new(&[bin("towpath")]).arg("policy").arg("--socket").arg(&service.socket);
    for word in line.split_whitespace() {
        program = program.arg(word);
    }
    program.run(20)
}

fn listing(service: &Service) -> Value {
    serde_json::from_str(&policy(service, "--json list").ok()).expect("JSON")
}

fn hits(service: &Service, number: usize) -> u64 {
    listing(service)["rules"][number - 1]["hits"].as_u64().expect("hits")
}

/// Requires the distribution's Python: another user may not be able to run one that a user has installed.
fn require_python() {
    let there = std::path::Path::new("/usr/bin/python3").exists();
    assert!(there, "/usr/bin/python3 is missing: apt-get install -y python3-minimal (or run scripts/setup)");
}

/// Runs a Python program on the service as this user, and returns its output.
fn python(service: &Service, uid: u32, text: &str) -> String {
    require_python();
    require_program("setpriv", "util-linux");
    let script = service.scratch.path(&format!("script-{uid}-{}.py", text.len()));
    std::fs::write(&script, text).expect("script");
    let line = format!("setpriv --reuid {uid} --regid {uid} --clear-groups /usr/bin/python3 {}", script.display());
    service.accelerated(&line).run(60).ok().trim().to_owned()
}

/// The errno (a name) that a connect gives, or `connected`.
fn connect(service: &Service, uid: u32, port: u16) -> String {
    let text = format!(
        "import socket, errno\ns = socket.socket()\ntry:\n    s.connect(('127.0.0.1', {port}))\n    print('connected')\n\
         except OSError as e:\n    print(errno.errorcode[e.errno])\n"
    );
    python(service, uid, &text)
}

/// A server that accepts all connections and reads all data.
fn sink(service: &Service, port: u16) -> Running {
    require_python();
    let text = format!(
        "import socket, threading\ns = socket.socket()\ns.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\n\
         s.bind(('127.0.0.1', {port}))\ns.listen(64)\nprint('listening', flush=True)\n\
         def read(c):\n    while c.recv(65536): pass\n\
         while True:\n    c, _ = s.accept()\n    threading.Thread(target=read, args=(c,), daemon=True).start()\n"
    );
    let script = service.scratch.path(&format!("sink-{port}.py"));
    std::fs::write(&script, text).expect("script");
    let mut server =
        service.accelerated(&format!("/usr/bin/python3 {}", script.display())).start(service.scratch.path("sink.log"));
    server.wait_for("listening", 20);
    server
}

#[test]
fn a_denied_connect_gives_its_errno_a_line_in_the_log_and_a_count() {
    require_root();
    let service = service();
    let _sink = sink(&service, 7501);
    policy(&service, &format!("add deny connect user {OTHER} to 127.0.0.0/8 port 7501")).ok();
    assert_eq!(connect(&service, OTHER, 7501), "EPERM");
    assert_eq!(connect(&service, OTHER + 1, 7501), "connected", "the rule is about another user");
    assert_eq!(hits(&service, 1), 1);
    assert_eq!(service.status()["policy"]["denied"], 1);
    let log = service.running.output();
    assert!(log.contains("policy: connect to 127.0.0.1:7501 denied by rule 1 (EPERM)"), "{log}");
    assert!(log.contains(&format!("uid={OTHER}")) && log.contains("python3"), "{log}");
    policy(&service, "replace /dev/null").ok();
    assert_eq!(connect(&service, OTHER, 7501), "connected", "the change holds at once");
    policy(&service, &format!("add deny connect user {OTHER} with ECONNREFUSED")).ok();
    assert_eq!(connect(&service, OTHER, 7501), "ECONNREFUSED");
    let named = policy(&service, "insert 1 allow connect program /bin/no-such-program");
    assert!(named.err.contains("confines nobody"), "{}", named.err);
    named.ok();
    assert_eq!(connect(&service, OTHER, 7501), "ECONNREFUSED", "it is another program");
    policy(&service, "delete 1").ok();
    policy(&service, &format!("delete deny connect user {OTHER} with ECONNREFUSED")).ok();
    assert_eq!(listing(&service)["rules"].as_array().expect("rules").len(), 0);
}

#[test]
fn a_denied_listen_gives_its_errno_and_test_says_why() {
    require_root();
    let service = service();
    policy(&service, &format!("add deny listen user {OTHER} port 7500-7509")).ok();
    let listen = |port| {
        let text = format!(
            "import socket, errno\ns = socket.socket()\ns.bind(('0.0.0.0', {port}))\ntry:\n    s.listen()\n    print('listening')\n\
             except OSError as e:\n    print(errno.errorcode[e.errno])\n"
        );
        python(&service, OTHER, &text)
    };
    assert_eq!(listen(7502), "EACCES");
    assert_eq!(listen(7512), "listening");
    let said = policy(&service, &format!("test listen user {OTHER} port 7502")).ok();
    assert_eq!(
        said.trim(),
        format!("deny with EACCES: rule 1 is the first that matches: deny listen user {OTHER} port 7500-7509")
    );
    let said = policy(&service, "test listen user 0 port 7502").ok();
    assert_eq!(said.trim(), "allow: no rule matches; the default is allow");
    assert_eq!(hits(&service, 1), 1, "a question is no attempt");
}

#[test]
fn a_peer_that_is_not_accepted_gets_a_reset_or_nothing() {
    require_root();
    let service = service();
    let _sink = sink(&service, 7503);
    policy(&service, "add deny accept from 127.0.0.1 port 7503 with reset").ok();
    assert_eq!(connect(&service, OTHER, 7503), "ECONNREFUSED");
    let slow = service.status()["slow"]["drops"]["forbidden"].as_u64().expect("drops");
    assert_eq!((slow, hits(&service, 1)), (1, 1));
    policy(&service, "flush").ok();
    assert_eq!(connect(&service, OTHER, 7503), "connected");
}

#[test]
fn connections_beyond_the_limit_fail_with_eagain() {
    require_root();
    let service = service();
    let _sink = sink(&service, 7504);
    policy(&service, &format!("add limit user {OTHER} connections 3")).ok();
    let text = "import socket, errno\nheld = []\nfor _ in range(5):\n    s = socket.socket()\n    try:\n        s.connect(('127.0.0.1', 7504))\n        \
                print('connected', end=' ')\n    except OSError as e:\n        print(errno.errorcode[e.errno], end=' ')\n    held.append(s)\n";
    assert_eq!(python(&service, OTHER, text), "connected connected connected EAGAIN EAGAIN");
    assert_eq!((hits(&service, 1), service.status()["policy"]["limited"].as_u64()), (2, Some(2)));
    let log = service.running.output();
    assert!(log.contains("policy: rule 1 allows no more than 3 connections"), "{log}");
}

#[test]
fn a_rate_limit_holds_also_for_a_running_connection() {
    require_root();
    limits_what_runs(&service(), 7505, 0.85);
}

#[test]
fn a_rate_limit_holds_over_the_kernel_stack_too() {
    require_root();
    let service = Service::start(|program| program.arg("--stack").arg("kernel").arg("--admit").arg("all"));
    // A busy machine may not let it send as much in time.
    limits_what_runs(&service, 7506, 0.3);
}

/// A sender is limited while it sends. It must reach the share `least` of the limit.
fn limits_what_runs(service: &Service, port: u16, least: f64) {
    let _sink = sink(service, port);
    let rate = 4_000_000;
    let text = "import socket, sys\ns = socket.socket()\ns.connect(('127.0.0.1', int(sys.argv[1])))\nblock = bytes(65536)\n\
                print('running', flush=True)\nwhile True: s.sendall(block)\n";
    let script = service.scratch.path("send.py");
    std::fs::write(&script, text).expect("script");
    let line =
        format!("setpriv --reuid {OTHER} --regid {OTHER} --clear-groups /usr/bin/python3 {} {port}", script.display());
    let mut sender = service.accelerated(&line).start(service.scratch.path("send.log"));
    sender.wait_for("running", 20);
    policy(service, &format!("add limit user {OTHER} rate {rate}bps")).ok();
    let sent = || {
        let sockets = service.sockets();
        let sockets = sockets["sockets"].as_array().expect("sockets").clone();
        let of = sockets.iter().find(|s| s["uid"] == OTHER && s["state"] == "ESTAB").expect("the sender's socket");
        of["tcp"]["bytes_acked"].as_u64().expect("bytes")
    };
    std::thread::sleep(Duration::from_millis(500));
    // It never sends more, on any machine. It sends as much as the limit once the machine lets all programs run for
    // three seconds.
    until("it sends as much as it may", 60, || {
        let (start, before) = (std::time::Instant::now(), sent());
        std::thread::sleep(Duration::from_secs(3));
        let (bytes, seconds) = (sent() - before, start.elapsed().as_secs_f64());
        let share = bytes as f64 / seconds / f64::from(rate);
        assert!(share < 1.15, "{bytes} bytes in {seconds} s are {share} of the limit");
        share >= least
    });
    policy(service, "flush").ok();
    let before = sent();
    until("it is faster without the limit", 20, || sent() - before > 3 * u64::from(rate as u32));
}

/// A socket of the kernel that listens on this port of 127.0.0.1.
fn listening(port: u16) -> OwnedFd {
    let socket =
        rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).expect("socket");
    rustix::net::bind(&socket, &std::net::SocketAddr::from(([127, 0, 0, 1], port))).expect("bind");
    rustix::net::listen(&socket, 8).expect("listen");
    socket
}

/// The answer to a LISTEN command, and the kernel's socket, which is shown as the library shows it.
fn listen(raw: &mut RawClient, slot: u32, port: u16) -> (i32, OwnedFd) {
    let socket = listening(port);
    raw.show(slot, raw.next_seq(slot), true, &socket);
    let local_addr = std::net::Ipv4Addr::LOCALHOST.to_ipv6_mapped();
    let command = Command { op: op::LISTEN, local_addr, local_port: port.into(), backlog: 8, ..Command::default() };
    (raw.command(slot, &command), socket)
}

#[test]
fn a_client_that_writes_to_the_ring_itself_gets_the_same_answer() {
    let service = service();
    let program = std::env::current_exe().expect("own path");
    policy(&service, &format!("add deny connect program {} to 127.0.0.0/8 port 7513", program.display())).ok();
    policy(&service, &format!("add deny listen program {} port 7507", program.display())).ok();
    policy(&service, &format!("add kernel listen program {} port 7508", program.display())).ok();
    let mut raw = RawClient::new(&service);
    let here = std::net::Ipv4Addr::LOCALHOST.to_ipv6_mapped();
    let connect = |port| Command { op: op::CONNECT, remote_addr: here, remote_port: port, ..Command::default() };
    assert_eq!(raw.command(0, &connect(7513)), -libc::EPERM);
    assert_eq!(listen(&mut raw, 0, 7507).0, -libc::EACCES);
    assert_eq!(listen(&mut raw, 0, 7508).0, NOT_OURS + not_ours::POLICY as i32);
    let (allowed, _listener) = listen(&mut raw, 0, 7514);
    assert_eq!(allowed, 0, "a listener that no rule denies is allowed, in the same slot");
    assert_eq!(raw.command(1, &connect(7514)), 0);
    policy(&service, &format!("add limit program {} connections 2", program.display())).ok();
    assert_eq!(raw.command(2, &connect(7514)), -libc::EAGAIN, "both ends of the earlier connection count");
    assert_eq!((hits(&service, 1), hits(&service, 2), hits(&service, 3), hits(&service, 4)), (1, 1, 1, 1));
}

#[test]
fn a_rule_chooses_the_congestion_control_whatever_the_application_sets() {
    let service = service();
    policy(&service, "add allow connect to 127.0.0.0/8 port 7511 congestion dctcp").ok();
    let mut raw = RawClient::new(&service);
    let here = std::net::Ipv4Addr::LOCALHOST.to_ipv6_mapped();
    let number = |name| congestion::NAMES.iter().position(|known| *known == name).expect("a name") as u32;
    let options = Options { congestion: number("cubic"), ..Options::default() };
    let listeners = [(0, 7511), (1, 7515)].map(|(slot, port)| listen(&mut raw, slot, port));
    assert!(listeners.iter().all(|(answer, _)| *answer == 0));
    for (slot, port, name) in [(2, 7511, "dctcp"), (3, 7515, "cubic")] {
        let connect = Command { op: op::CONNECT, remote_addr: here, remote_port: port, ..Command::default() };
        raw.region.options(raw.region.slot(slot).expect("slot")).post(&options);
        assert_eq!(raw.command(slot, &connect), 0);
        let info = raw.region.info(raw.region.slot(slot).expect("slot"));
        assert_eq!(congestion::NAMES[info.congestion.load(Ordering::Relaxed) as usize], name);
    }
}

#[test]
fn the_configuration_has_rules_and_only_the_operator_changes_them() {
    require_root();
    let config = towpath_system_tests::Scratch::new("policy");
    let file = config.path("towpath.toml");
    let rules = format!("admit = [\"all\"]\npolicy = [\"deny connect user {OTHER}\"]\npolicy_default = \"allow\"\n");
    std::fs::write(&file, rules).expect("configuration");
    let service = Service::start(|program| program.arg("--config").arg(&file));
    assert_eq!(connect(&service, OTHER, 7510), "EPERM");
    let line = format!(
        "setpriv --reuid {OTHER} --regid {OTHER} --clear-groups {} policy --socket {}",
        bin("towpath").display(),
        service.socket.display()
    );
    let words: Vec<&str> = line.split_whitespace().collect();
    for action in ["flush", "list"] {
        let refused = Program::new(&words).arg(action).run(20);
        assert!(refused.code == 3 && refused.err.contains("only the service's own user and root"), "{}", refused.err);
    }
    assert_eq!(hits(&service, 1), 1);
}

/// A plain Linux connect from the peer's side: the errno's name, `TimeoutError`, or `connected`.
fn knock(lab: &Lab, port: u16, seconds: u32) -> String {
    let text = format!(
        "import socket, errno\ns = socket.socket(); s.settimeout({seconds})\ntry:\n    s.connect(('{SERVER}', {port})); print('connected')\n\
         except TimeoutError: print('TimeoutError')\nexcept OSError as e: print(errno.errorcode[e.errno])\n"
    );
    lab.on_client(Program::new(&["/usr/bin/python3", "-c", &text])).run(20).ok().trim().to_owned()
}

/// On a real interface, with peers that do not run Towpath.
#[test]
fn peers_on_the_network_are_refused_and_connects_to_them_denied() {
    require_python();
    let lab = Lab::new();
    let service = Service::on_interface(&lab);
    let listener = format!(
        "import socket\ns = socket.create_server(('{SERVER}', 7520))\nprint('up', flush=True)\nwhile True: s.accept()[0].close()"
    );
    let program = service.accelerated("/usr/bin/python3 -u -c").arg(&listener);
    let mut server = lab.on_server(program).start(service.scratch.path("listener.log"));
    server.wait_for("up", 20);
    assert_eq!(knock(&lab, 7520, 60), "connected");
    let forbidden = || service.status()["slow"]["drops"]["forbidden"].as_u64().expect("a counter");
    policy(&service, &format!("add deny accept from {CLIENT} port 7520 with reset")).ok();
    assert_eq!(knock(&lab, 7520, 60), "ECONNREFUSED");
    assert_eq!((hits(&service, 1), forbidden()), (1, 1));
    let log = service.running.output();
    assert!(log.contains("denied by rule 1 (reset)") && log.contains(CLIENT), "{log}");
    policy(&service, "flush").ok();
    policy(&service, "add deny accept from 10.77.0.0/24").ok();
    assert_eq!(knock(&lab, 7520, 2), "TimeoutError");
    // The SYN and its retransmissions, the first of which comes after a second.
    let asked = hits(&service, 1);
    assert!(asked >= 2 && forbidden() == 1 + asked, "{asked}, {}", forbidden());
    assert!(service.running.output().contains("denied by rule 1 (drop)"));
    policy(&service, "replace /dev/null").ok();
    assert_eq!(knock(&lab, 7520, 60), "connected", "the change holds at once");

    let outside = format!(
        "import socket, errno\nfor port in (7521, 7522):\n    s = socket.socket(); s.settimeout(60)\n    try:\n        s.connect(('{CLIENT}', port))\n\
         \x20   except OSError as e: print(errno.errorcode[e.errno], end=' ')\n"
    );
    policy(&service, "add deny connect to 10.77.0.0/24 port 7521").ok();
    let program = lab.on_server(service.accelerated("/usr/bin/python3 -c").arg(&outside));
    assert_eq!(program.run(20).ok().trim(), "EPERM ECONNREFUSED", "nobody listens on the other port");
    assert_eq!(hits(&service, 1), 1);
    assert!(service.running.output().contains(&format!("connect to {CLIENT}:7521 denied by rule 1 (EPERM)")));
}

#[test]
fn new_connections_beyond_the_rate_fail_until_time_has_passed() {
    require_root();
    let service = service();
    let _sink = sink(&service, 7523);
    policy(&service, &format!("add limit user {OTHER} new 5")).ok();
    let text = "import socket, time\nheld = []\ndef burst():\n    made = 0\n    for _ in range(30):\n        s = socket.socket()\n        \
                try:\n            s.connect(('127.0.0.1', 7523)); made += 1; held.append(s)\n        except BlockingIOError: pass\n    \
                return made\nstart = time.monotonic()\nfirst = burst(), time.monotonic() - start\ntime.sleep(1.5)\n\
                print(*first, burst(), time.monotonic() - start)\n";
    let said = python(&service, OTHER, text);
    let words: Vec<f64> = said.split(' ').map(|word| word.parse().expect("a number")).collect();
    let &[first, first_s, second, seconds] = words.as_slice() else { panic!("{said}") };
    // At most one second's worth at once, plus what accrues meanwhile; then the same again.
    let after = seconds - first_s - 1.5;
    assert!(first >= 5.0 && first <= 5.0 + 5.0 * first_s, "{said}");
    assert!(second >= 5.0 && second <= 5.0 + 5.0 * (after + 0.2), "{said}");
    assert_eq!(hits(&service, 1) as f64, 60.0 - first - second);
    assert!(service.running.output().contains("policy: rule 1 allows no more than 5 new connections per second"));
}
