//! Bulk transfers over an interface, with a plain Linux peer: the kernel cuts what the stack sends into segments.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use towpath_system_tests::namespace::{CLIENT, CLIENT6, SERVER, SERVER6};
use towpath_system_tests::{Lab, Program, Scratch, Service, require_program};

const BYTES: u64 = 20_000_000;
/// Payload of a full segment with timestamps over IPv4.
const MSS: u64 = 1448;

/// Sends the bytes of a generator to each of two connections.
const SENDING: &str = r#"
import random, socket, sys
family = socket.AF_INET6 if ':' in sys.argv[1] else socket.AF_INET
s = socket.create_server((sys.argv[1], 7900), family=family); print('ready', flush=True)
data = random.Random(7).randbytes(1 << 20)
for _ in range(2):
    c, _ = s.accept(); left = int(sys.argv[2])
    while left: left -= c.send(data[:min(left, len(data))] if left % len(data) == 0 else data[-(left % len(data)):])
    c.close()
"#;
/// The hash of what comes, and of what should.
const RECEIVING: &str = r#"
import hashlib, random, socket, sys
data, left = random.Random(7).randbytes(1 << 20), int(sys.argv[2])
s = socket.create_connection((sys.argv[1], 7900), 60); got = hashlib.sha256(); count = 0
while chunk := s.recv(1 << 18): got.update(chunk); count += len(chunk)
shall = hashlib.sha256(data[-(left % len(data)):] if left % len(data) else b'')
for _ in range(left // len(data)): shall.update(data)
print(count, got.digest() == shall.digest())
"#;

/// Frames that the interface's ports have sent (`tx_frames`) or received (`rx_frames`).
fn frames(service: &Service, which: &str) -> u64 {
    let status = service.status();
    let groups = status["flow_groups"].as_array().expect("flow groups");
    let ports = groups.iter().flat_map(|group| group["ports"].as_array().expect("ports").iter().skip(1));
    ports.map(|port| port[which].as_u64().expect("a number of frames")).sum()
}

#[test]
fn much_is_sent_in_few_frames_and_arrives_whole() {
    require_program("ethtool", "ethtool");
    let lab = Lab::new();
    lab.add_ipv6();
    let service = Service::on_interface(&lab);
    let bytes = (BYTES + 12_345).to_string();
    for (address, device) in [(SERVER, "on"), (SERVER6, "on"), (SERVER, "off"), (SERVER6, "off")] {
        // A device that cuts nothing and sums nothing leaves it to the kernel.
        lab.on_server(Program::line("ethtool -K eth1 tx").arg(device)).run(10).ok();
        let sending = service.accelerated("python3 -c").arg(SENDING).arg(address).arg(&bytes);
        let mut server = lab.on_server(sending).start(service.scratch.path("sending.log"));
        server.wait_for("ready", 20);
        for _ in 0..2 {
            let before = frames(&service, "tx_frames");
            let client = Program::new(&["python3", "-c", RECEIVING, address, &bytes]);
            assert_eq!(lab.on_client(client).run(100).ok().trim(), format!("{bytes} True"), "{address}, {device}");
            let sent = frames(&service, "tx_frames") - before;
            assert!(sent < BYTES / MSS / 2, "{address}, device {device}: {sent} frames");
        }
    }
}

#[test]
fn much_comes_in_few_frames_where_the_program_is_generic() {
    much_comes_in_few_frames("xdp-generic", "xdp-generic");
}

#[test]
fn much_comes_in_few_frames_by_packet_sockets() {
    much_comes_in_few_frames("auto", "packet");
}

/// With the XDP program in the driver, the peer's kernel cuts what it sends.
fn much_comes_in_few_frames(port: &str, mode: &str) {
    let lab = Lab::new();
    lab.add_ipv6();
    let files = Scratch::new("receiving");
    let service = Service::on_interface_by(&lab, port);
    assert_eq!(service.status()["interfaces"][0]["mode"], mode);
    let bytes = (BYTES + 12_345).to_string();
    for address in [CLIENT, CLIENT6] {
        let sending = Program::new(&["python3", "-c", SENDING, address, &bytes]);
        let mut server = lab.on_client(sending).start(files.path("sending.log"));
        server.wait_for("ready", 20);
        for _ in 0..2 {
            let before = frames(&service, "rx_frames");
            let client = service.accelerated("python3 -c").arg(RECEIVING).arg(address).arg(&bytes);
            assert_eq!(lab.on_server(client).run(100).ok().trim(), format!("{bytes} True"), "{address}");
            let come = frames(&service, "rx_frames") - before;
            assert!(come > 0 && come < BYTES / MSS / 2, "{address}: {come} frames");
        }
    }
}
