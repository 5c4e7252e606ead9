//! IPv6 on a real interface (a veth) and within this host: unmodified programs on one side, plain Linux on the other.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use towpath_system_tests::namespace::{CLIENT6, SERVER, SERVER6};
use towpath_system_tests::{Lab, Program, Service, require_program};

/// A laboratory with IPv6 addresses on both sides.
fn lab() -> Lab {
    let lab = Lab::new();
    lab.add_ipv6();
    lab
}

/// Echoes all bytes of every connection, and prints the peer's address.
const SERVER_SCRIPT: &str = r#"
import socket, sys, threading
s = socket.socket(socket.AF_INET6)
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind((sys.argv[1], int(sys.argv[2])))
s.listen()
print("up", flush=True)
def serve(c):
    while d := c.recv(65536):
        c.sendall(d)
    c.close()
while True:
    c, a = s.accept()
    print("from", a[0], "to", c.getsockname()[0], flush=True)
    threading.Thread(target=serve, args=(c,)).start()
"#;

/// Sends two megabytes and checks that they come back.
const CLIENT_SCRIPT: &str = r#"
import socket, sys, threading
s = socket.create_connection((sys.argv[1], int(sys.argv[2])), 60)
print(s.getsockname()[0], s.getpeername()[0])
data = bytes((i * 2654435761 >> 11) & 255 for i in range(200_000)) * 10
def send():
    s.sendall(data)
    s.shutdown(socket.SHUT_WR)
t = threading.Thread(target=send)
t.start()
got = b""
while d := s.recv(65536):
    got += d
t.join()
assert got == data, (len(got), len(data))
"#;

fn python(script: &str, address: &str, port: u16) -> Program {
    Program::line("python3 -u -c").arg(script).arg(address).arg(port.to_string())
}

#[test]
fn linux_client_to_an_accelerated_server_over_ipv6_with_kernel_tcp_dropped() {
    let lab = lab();
    let service = Service::on_interface(&lab);
    let line = service.accelerated("python3 -u -c").arg(SERVER_SCRIPT).arg(SERVER6).arg("6501");
    let mut server = lab.on_server(line).start(service.scratch.path("server.log"));
    server.wait_for("up", 20);
    lab.drop_kernel_tcp();
    let before = service.segments();
    let out = lab.on_client(python(CLIENT_SCRIPT, SERVER6, 6501)).run(60).ok();
    assert_eq!(out.trim(), format!("{CLIENT6} {SERVER6}"));
    // Two megabytes come in super-segments of up to 64 KiB.
    assert!(service.segments() >= before + 2_000_000 / 65_536);
    server.wait_for(&format!("from {CLIENT6} to {SERVER6}"), 5);
}

#[test]
fn accelerated_client_to_a_linux_server_over_ipv6() {
    let lab = lab();
    let service = Service::on_interface(&lab);
    let mut server =
        lab.on_client(python(SERVER_SCRIPT, CLIENT6, 6502)).start(service.scratch.path("linux-server.log"));
    server.wait_for("up", 20);
    lab.drop_kernel_tcp();
    let line = service.accelerated("python3 -u -c").arg(CLIENT_SCRIPT).arg(CLIENT6).arg("6502");
    let out = lab.on_server(line).run(60).ok();
    assert_eq!(out.trim(), format!("{SERVER6} {CLIENT6}"));
}

#[test]
fn a_wildcard_server_of_ipv6_takes_both_families() {
    let lab = lab();
    let service = Service::on_interface(&lab);
    let line = service.accelerated("python3 -u -c").arg(SERVER_SCRIPT).arg("::").arg("6503");
    let mut server = lab.on_server(line).start(service.scratch.path("server.log"));
    server.wait_for("up", 20);
    lab.drop_kernel_tcp();
    for address in [SERVER6, SERVER] {
        lab.on_client(python(CLIENT_SCRIPT, address, 6503)).run(60).ok();
    }
    server.wait_for(&format!("to {SERVER6}"), 5);
    server.wait_for(&format!("to ::ffff:{SERVER}"), 5);
    let sockets = Program::new(&[towpath_system_tests::bin("towpath")])
        .arg("sockets")
        .arg("-l")
        .arg("--socket")
        .arg(&service.socket)
        .run(20)
        .ok();
    assert!(sockets.contains("[::]:6503"), "{sockets}");
}

#[test]
fn ipv6_loopback_within_one_host() {
    require_program("python3", "python3");
    let service = Service::embedded();
    let line = service.accelerated("python3 -u -c").arg(SERVER_SCRIPT).arg("::1").arg("6504");
    let mut server = line.start(service.scratch.path("server.log"));
    server.wait_for("up", 20);
    let before = service.segments();
    let line = service.accelerated("python3 -u -c").arg(CLIENT_SCRIPT).arg("::1").arg("6504");
    assert_eq!(line.run(60).ok().trim(), "::1 ::1");
    assert!(service.segments() > before);
}
