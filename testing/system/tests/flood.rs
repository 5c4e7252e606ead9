//! A flood of SYNs on a real interface (a veth). A Linux client's transfer goes on, and a new Linux client gets in.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use towpath_system_tests::namespace::SERVER;
use towpath_system_tests::{Lab, Program, Service, until};
use towpath_wire::emit::{Header, TTL, emit, fill_checksum};
use towpath_wire::segment::flags;
use towpath_wire::{Options, Timestamps};

const SYNS_PER_S: u64 = 50_000;
const SECONDS: u64 = 5;
const BATCH: usize = 50;
const PORT: u16 = 6701;

/// Reads one connection and drops its bytes. Returns the first bytes of every other connection.
const SERVER_SCRIPT: &str = r#"
import socket, sys, threading
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind((sys.argv[1], int(sys.argv[2])))
s.listen(16)
print("up", flush=True)
def serve(c):
    try:
        if c.recv(4, socket.MSG_WAITALL) == b"bulk":
            while c.recv(1 << 18): pass
        else:
            c.sendall(b"here")
    except OSError as e:
        print("error", e, flush=True)
    c.close()
while True:
    c, a = s.accept()
    threading.Thread(target=serve, args=(c,)).start()
"#;

/// Sends for ever. Prints every tenth of a second how many bytes have been taken so far.
const BULK_SCRIPT: &str = r#"
import socket, sys, time
s = socket.create_connection((sys.argv[1], int(sys.argv[2])), 60)
s.settimeout(60)
s.sendall(b"bulk")
data, sent, last = bytes(1 << 16), 0, time.monotonic()
while True:
    sent += s.send(data)
    now = time.monotonic()
    if now - last >= 0.1:
        print(sent, flush=True)
        last = now
"#;

/// Connects again and again for some seconds, each time with a fresh SYN. Prints how often, and the longest time in ms.
const CALLER_SCRIPT: &str = r#"
import socket, sys, time
end, count, worst = time.monotonic() + float(sys.argv[3]), 0, 0.0
while time.monotonic() < end:
    start = time.monotonic()
    s = socket.create_connection((sys.argv[1], int(sys.argv[2])), 60)
    s.settimeout(60)
    s.sendall(b"call")
    assert s.recv(4, socket.MSG_WAITALL) == b"here"
    s.close()
    count, worst = count + 1, max(worst, time.monotonic() - start)
    time.sleep(0.1)
print(count, int(worst * 1000))
"#;

/// A packet socket on the client's `eth1`. It stays in that namespace wherever it is used.
fn packet_socket(lab: &Lab) -> OwnedFd {
    let namespace = std::fs::File::open(format!("/run/netns/{}", lab.client)).expect("namespace");
    std::thread::spawn(move || {
        // SAFETY: the call takes numbers. Only this short-lived thread changes its namespace.
        assert_eq!(unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) }, 0);
        // SAFETY: the call takes numbers. Protocol 0 means that the socket receives nothing.
        let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        assert!(fd >= 0, "packet socket");
        // SAFETY: the kernel has just returned this descriptor, and nobody else has it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: the structure consists of integers, so all zero is valid.
        let mut at: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        at.sll_family = libc::AF_PACKET as u16;
        // SAFETY: the name ends with a zero byte.
        at.sll_ifindex = unsafe { libc::if_nametoindex(c"eth1".as_ptr()) } as i32;
        // SAFETY: `at` outlives the call and has the length given.
        let bound = unsafe { libc::bind(fd.as_raw_fd(), (&raw const at).cast(), size_of_val(&at) as u32) };
        assert_eq!(bound, 0, "{}", std::io::Error::last_os_error());
        fd
    })
    .join()
    .expect("packet socket")
}

fn mac(lab: &Lab, server: bool) -> [u8; 6] {
    let program = Program::line("cat /sys/class/net/eth1/address");
    let text = if server { lab.on_server(program) } else { lab.on_client(program) }.run(10).ok();
    let bytes: Vec<u8> = text.trim().split(':').map(|byte| u8::from_str_radix(byte, 16).expect("MAC")).collect();
    bytes.try_into().expect("MAC")
}

/// The `n`th SYN. Source address (10.77.0.10 to 10.77.0.209), port and sequence number differ each time.
fn syn(macs: [[u8; 6]; 2], n: u64) -> Vec<u8> {
    let mixed = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (n << 40);
    let timestamps = n.is_multiple_of(2).then_some(Timestamps { value: mixed as u32, echo: 0 });
    let header = Header {
        source_mac: macs[0],
        destination_mac: macs[1],
        vlan: None,
        source: std::net::Ipv4Addr::new(10, 77, 0, 10 + (mixed >> 56) as u8 % 200).into(),
        destination: SERVER.parse().expect("address"),
        source_port: 1024 + (mixed >> 16) as u16 % 60_000,
        destination_port: PORT,
        seq: (mixed >> 24) as u32,
        ack: 0,
        flags: flags::SYN,
        window: 65_535,
        ident: 0,
        tos: 0,
        ttl: TTL,
        urgent: 0,
        options: Options {
            mss: Some(1460),
            window_scale: Some(7),
            sack_permitted: true,
            timestamps,
            ..Options::default()
        },
    };
    let mut frame = vec![0; header.wire_bytes()];
    emit(&header, 0, &mut frame).expect("it fits");
    fill_checksum(&mut frame);
    frame
}

/// Gives the kernel a batch of frames. Returns how many it took.
fn send_batch(fd: &OwnedFd, frames: &mut [Vec<u8>]) -> u64 {
    let mut parts: Vec<libc::iovec> = frames
        .iter_mut()
        .map(|frame| libc::iovec { iov_base: frame.as_mut_ptr().cast(), iov_len: frame.len() })
        .collect();
    let mut messages: Vec<libc::mmsghdr> = parts
        .iter_mut()
        .map(|part| {
            // SAFETY: the structure consists of integers and pointers, so all zero is valid.
            let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
            (message.msg_hdr.msg_iov, message.msg_hdr.msg_iovlen) = (part, 1);
            message
        })
        .collect();
    // SAFETY: messages, vectors and frames outlive the call.
    let sent = unsafe { libc::sendmmsg(fd.as_raw_fd(), messages.as_mut_ptr(), messages.len() as u32, 0) };
    u64::try_from(sent).unwrap_or(0)
}

/// Floods at [`SYNS_PER_S`] until `stop` is set, and counts the SYNs in `sent`.
fn flood(fd: &OwnedFd, macs: [[u8; 6]; 2], stop: &AtomicBool, sent: &AtomicU64) {
    let start = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        let done = sent.load(Ordering::Relaxed);
        let due = start.elapsed().as_micros() as u64 * SYNS_PER_S / 1_000_000;
        if done + BATCH as u64 > due {
            std::thread::sleep(Duration::from_micros(500));
            continue;
        }
        let mut frames: Vec<Vec<u8>> = (0..BATCH as u64).map(|i| syn(macs, done + i)).collect();
        sent.fetch_add(send_batch(fd, &mut frames), Ordering::Relaxed);
    }
}

/// Prints the rates before, during and after, without a judgement: the flooder, both hosts and other programs share the
/// CPUs.
#[test]
#[ignore = "measures rates: make test-slow"]
fn a_flood_of_syns_on_a_veth_ends_no_transfer_and_lets_a_client_in() {
    let lab = Lab::new();
    let service = Service::on_interface(&lab);
    let line = service.accelerated("python3 -u -c").arg(SERVER_SCRIPT).arg(SERVER).arg(PORT.to_string());
    let mut server = lab.on_server(line).start(service.scratch.path("server.log"));
    server.wait_for("up", 20);
    // The forged sources have addresses on the wire, so each SYN could be answered.
    let macs = [mac(&lab, false), mac(&lab, true)];
    let neighbour: Vec<String> = macs[0].iter().map(|byte| format!("{byte:02x}")).collect();
    let all = format!(
        "for n in $(seq 10 209); do ip neigh replace 10.77.0.$n lladdr {} dev eth1 nud permanent; done",
        neighbour.join(":")
    );
    lab.on_server(Program::new(&["sh", "-c", &all])).run(30).ok();
    let client =
        |script: &str| lab.on_client(Program::line("python3 -u -c").arg(script).arg(SERVER).arg(PORT.to_string()));
    let bulk = client(BULK_SCRIPT).start(service.scratch.path("bulk.log"));
    let taken = || bulk.output().lines().last().and_then(|line| line.parse::<u64>().ok()).unwrap_or(0);
    until("the transfer runs", 20, || taken() > 1_000_000);
    // SYNs that the service has no room for are answered by the kernel.
    assert!(service.segments() > 100, "the transfer is accelerated");
    let rate = |seconds: u64, during: &mut dyn FnMut()| {
        let (before, start) = (taken(), Instant::now());
        during();
        std::thread::sleep(Duration::from_secs(seconds).saturating_sub(start.elapsed()));
        (taken() - before) as f64 / start.elapsed().as_secs_f64()
    };
    let first = rate(SECONDS, &mut || {});
    let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let fd = packet_socket(&lab);
    let flooder = {
        let (stop, sent) = (stop.clone(), sent.clone());
        std::thread::spawn(move || flood(&fd, macs, &stop, &sent))
    };
    let mut called = String::new();
    let during = rate(SECONDS, &mut || called = client(CALLER_SCRIPT).arg("4").run(60).ok());
    stop.store(true, Ordering::Relaxed);
    flooder.join().expect("flooder");
    let second = rate(SECONDS, &mut || {});
    let flooded = sent.load(Ordering::Relaxed);
    let said =
        format!("{first:.0}, {during:.0}, {second:.0} bytes/s; {flooded} SYNs; calls and worst ms: {}", called.trim());
    println!("{said}");
    let numbers: Vec<u64> = called.split_whitespace().map(|word| word.parse().expect("number")).collect();
    assert!(flooded >= SYNS_PER_S * SECONDS / 2, "there was no flood: {said}");
    assert!(numbers[0] >= 1, "{said}");
    assert!(during > 0.0 && second > 0.0, "{said}\n{}", service.status());
    assert!(service.status()["slow"]["syn_cookies_sent"].as_u64() > Some(0), "{}", service.status());
    assert!(service.running.output().contains("possible SYN flood"), "{}", service.running.output());
    assert!(!server.output().contains("error"), "{}", server.output());
}
