//! Connections move between this host's kernel and a second one under traffic. The peer is plain Linux elsewhere.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use serde_json::Value;
use towpath_system_tests::{Lab, Program, Service, bin, require_program, until};

/// The address that moves.
const ADDRESS: &str = "10.97.7.2";
const PORT: u16 = 7641;

/// A laboratory whose server side routes for a standby guest of this kind.
fn standby(lab: &Lab, kind: &str) -> Service {
    match kind {
        "uml" => require_program("linux.uml", "user-mode-linux"),
        _ => require_program("qemu-system-x86_64", "qemu-system-x86"),
    }
    let there = |line: &str| lab.on_server(Program::line(line)).run(20).ok();
    there("ip tuntap add dev tap0 mode tap");
    there("ip addr add 10.97.7.1/24 dev tap0");
    there("ip link set tap0 up");
    there("ip route replace 10.97.7.0/24 dev tap0 src 10.97.7.1 congctl cubic");
    there("sysctl -qw net.ipv4.ip_forward=1");
    let route = "ip route add 10.97.7.0/24 via 10.77.0.1 congctl cubic";
    lab.on_client(Program::line(route)).run(20).ok();
    let words = format!(
        "--stack {kind} --standby tap0 --guest-tap tap0 --guest-address {ADDRESS}/24 --guest-gateway 10.97.7.1 --admit all"
    );
    let mut service =
        Service::start(|program| lab.on_server(words.split_whitespace().fold(program, |line, word| line.arg(word))));
    service.running.wait_for("stack=\"kernel\"", 180);
    service
}

/// Moves all clients. Returns the command's output.
fn carry(service: &Service, to: &str) -> Value {
    let line = Program::new(&[bin("towpath")]).arg("move").arg("--socket").arg(&service.socket);
    let said = line.arg("--json").arg("--to").arg(to).run(60).ok();
    println!("to {to}: {}", said.trim());
    serde_json::from_str(&said).expect("JSON")
}

/// Counter `name` of `Tcp` in the text of `/proc/net/snmp`.
fn counter(text: &str, name: &str) -> u64 {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Tcp: ")).map(str::split_whitespace);
    let (names, values) = (lines.next().expect("names"), lines.next().expect("values"));
    names.zip(values).find(|(known, _)| *known == name).expect("the counter").1.parse().expect("a number")
}

/// Asks the listener for an answer, and returns it.
fn again(lab: &Lab) -> String {
    let connect = format!("import socket; c = socket.create_connection(('{ADDRESS}', {PORT}), 60)");
    let ask = format!("{connect}; c.sendall(b'again'); print(c.recv(9))");
    lab.on_client(Program::line("/usr/bin/python3 -c").arg(ask)).run(60).ok().trim().to_owned()
}

/// Both ends send 64 MiB, limited in rate, and receive as much. They send the last part only when the file `over`
/// exists. They print the hashes.
const BOTH_WAYS: &str = "import hashlib, os, random, socket, sys, threading, time
SIZE, PART = 64 << 20, 64 << 10
def both_ways(c, seed, over):
    made, sent, got = random.Random(seed), hashlib.sha256(), hashlib.sha256()
    def send():
        for n in range(SIZE // PART):
            if n == SIZE // PART * 7 // 8:
                while not os.path.exists(over): time.sleep(0.01)
            part = made.randbytes(PART); sent.update(part); c.sendall(part); time.sleep(0.003)
        c.shutdown(socket.SHUT_WR)
    t = threading.Thread(target=send); t.start()
    total = 0
    while part := c.recv(PART): got.update(part); total += len(part)
    t.join()
    print('sent', sent.hexdigest(), 'received', got.hexdigest(), total, flush=True)
over = sys.argv[1]
";
const SERVER: &str = "l = socket.socket(); l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
l.bind(('0.0.0.0', 7641)); l.listen(); print('listening', flush=True)
c, _ = l.accept(); print('accepted', flush=True)
both_ways(c, 1, over); c.close()
while True:
    c, _ = l.accept(); c.sendall(c.recv(99)); c.close()";
const CLIENT: &str = "c = socket.create_connection(('10.97.7.2', 7641), 60); c.settimeout(120)
both_ways(c, 2, over)";

#[test]
fn a_transfer_in_both_directions_is_whole_although_its_end_moves_between_two_kernels() {
    transfer("uml");
}

#[test]
#[ignore = "boots a guest: scripts/setup guest; make test-slow"]
fn a_transfer_in_both_directions_is_whole_although_its_end_moves_into_a_guest_and_back() {
    transfer("qemu");
}

fn transfer(kind: &str) {
    let lab = Lab::new();
    let service = standby(&lab, kind);
    let over = service.scratch.path("over");
    let python = |rest: &str| format!("{BOTH_WAYS}{rest}");
    let mut server = service
        .accelerated("/usr/bin/python3 -u -c")
        .arg(python(SERVER))
        .arg(&over)
        .start(service.scratch.path("server.log"));
    server.wait_for("listening", 30);
    let client = lab.on_client(Program::line("/usr/bin/python3 -u -c").arg(python(CLIENT)).arg(&over));
    let mut client = client.start(service.scratch.path("client.log"));
    server.wait_for("accepted", 30);
    for to in [kind, "host", kind, "host"] {
        let before = service.stage("sent_bytes");
        until("bytes go on", 60, || service.stage("sent_bytes") > before + (1 << 20));
        let moved = carry(&service, to);
        assert_eq!((&moved["clients"], &moved["connections"], &moved["lost"]), (&1.into(), &1.into(), &0.into()));
        let name = if to == "host" { "kernel" } else { to };
        assert_eq!(service.status()["stack"], name);
    }
    until("bytes go on", 60, || service.stage("sent_bytes") > 1 << 20);
    std::fs::write(&over, "").expect("the marker");
    client.wait_end(120);
    let (ours, theirs) = (server.output(), client.output());
    let words = |text: &str| -> Vec<String> {
        let line = text.lines().find(|line| line.starts_with("sent ")).unwrap_or_else(|| panic!("{text}"));
        line.split_whitespace().map(str::to_owned).collect()
    };
    until("the server has everything", 60, || server.output().contains("received"));
    let (ours, theirs) = (words(&if ours.contains("received") { ours } else { server.output() }), words(&theirs));
    assert_eq!((&ours[1], &ours[3]), (&theirs[3], &theirs[1]), "the hashes");
    assert_eq!((&ours[4], &theirs[4]), (&(64u64 << 20).to_string(), &(64u64 << 20).to_string()));
    // No reset was on the wire. (Linux counts a connection under repair among those ended by a reset, although nothing
    // is sent.)
    let table = || Program::line("cat /proc/net/snmp");
    let (peer, host) = (lab.on_client(table()).run(10).ok(), lab.on_server(table()).run(10).ok());
    assert_eq!((counter(&peer, "EstabResets"), counter(&peer, "OutRsts"), counter(&host, "OutRsts")), (0, 0, 0));
    // The listener is in the kernel that the clients are in.
    for to in [kind, "host"] {
        carry(&service, to);
        assert_eq!(again(&lab), "b'again'");
    }
    assert!(server.alive());
}

#[test]
fn a_guest_that_dies_while_it_has_everybody_has_the_address_again() {
    let lab = Lab::new();
    let service = standby(&lab, "uml");
    let mut server = service
        .accelerated("/usr/bin/python3 -u -c")
        .arg(
            "import socket; l = socket.create_server(('0.0.0.0', 7641)); print('listening', flush=True)
while True: c, _ = l.accept(); c.sendall(c.recv(99)); c.close()",
        )
        .start(service.scratch.path("server.log"));
    server.wait_for("listening", 30);
    // A standby guest that dies is started again; nothing else happens.
    for (to, restarts) in [("host", 1), ("uml", 2)] {
        if to == "uml" {
            carry(&service, to);
        }
        let log = service.running.output();
        let pid = log.rsplit("pid=").next().expect("the kernel's process");
        let pid: i32 = pid.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().expect("a number");
        rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), rustix::process::Signal::KILL)
            .unwrap();
        if to == "host" {
            assert_eq!(again(&lab), "b'again'");
        }
        until("the guest is there again", 90, || service.status()["slow"]["stages"]["guest_restarts"] == restarts);
        assert_eq!(again(&lab), "b'again'");
    }
    carry(&service, "host");
    assert_eq!(again(&lab), "b'again'");
    assert!(server.alive());
}
