//! AF_XDP and steering between two network namespaces: steered frames come to us, all others stay with the kernel, and
//! nothing remains attached afterwards. Needs root.
#![allow(clippy::unwrap_used)]

mod network;

use network::rules::{self, *};
use network::*;
use std::io::{self, BufRead, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use towpath_ports::attachment::{AttachConfig, Attachment, Tables};
use towpath_ports::steering::{Segments, SteerError, SteerMode, Steering};
use towpath_ports::xsk::{XskConfig, XskError, XskPort};
use towpath_ports::{Port, RxFrame, TxOffload};
use towpath_wire::parse;

/// A namespace's interface with the steering program and a port on queue 0.
fn open(network: &Network) -> (Steering, XskPort) {
    within(&network.ours, || {
        let mut steering = Steering::attach(OUR_IF).unwrap();
        assert_eq!(steering.mode(), SteerMode::Driver);
        let port = XskPort::open(OUR_IF, 0, XskConfig::default()).unwrap();
        steering.bind(0, &port).unwrap();
        (steering, port)
    })
}

fn open_boxed(network: &Network) -> (Steering, Box<dyn Port>) {
    let (steering, port) = open(network);
    (steering, Box::new(port))
}

#[test]
fn all_but_steered_flows_is_the_kernels() {
    rules::all_but_steered_flows_is_the_kernels(open_boxed);
}

#[test]
fn flows_are_steered_exactly() {
    rules::flows_are_steered_exactly(open_boxed);
}

#[test]
fn a_kernel_connection_is_served_from_here() {
    rules::a_kernel_connection_is_served_from_here(open_boxed);
}

#[test]
fn a_successor_has_the_same_link_and_sockets_and_nothing_is_reset_meanwhile() {
    a_successor_has_the_same_link_and_sockets(AttachConfig::default(), |network| {
        ip(&format!("-n {} -d link show {OUR_IF}", network.ours)).contains("xdp")
    });
}

#[test]
fn many_frames_leave_in_order_and_buffers_come_back() {
    const ETHERTYPE: u16 = 0x88b5; // for local experiments (IEEE 802)
    const COUNT: u32 = 20_000;
    let network = Network::new();
    let (_steering, mut port) = open(&network);
    let raw = within(&network.peer, || Raw::open(PEER_IF, ETHERTYPE));
    let mut frame = [0u8; 200];
    frame[..6].copy_from_slice(&PEER_MAC);
    frame[6..12].copy_from_slice(&OUR_MAC);
    frame[12..14].copy_from_slice(&ETHERTYPE.to_be_bytes());
    let (mut sent, mut got, mut refusals) = (0u32, 0u32, 0);
    let deadline = Instant::now() + Duration::from_secs(60);
    while got < COUNT && Instant::now() < deadline {
        while sent < COUNT {
            let Some(out) = port.reserve() else {
                refusals += 1;
                break;
            };
            frame[14..18].copy_from_slice(&sent.to_be_bytes());
            out[..frame.len()].copy_from_slice(&frame);
            port.commit(frame.len(), TxOffload::default());
            sent += 1;
        }
        port.flush();
        while let Some(bytes) = raw.receive() {
            assert_eq!(bytes[14..18], got.to_be_bytes(), "in order");
            got += 1;
        }
    }
    assert_eq!(got, COUNT, "of {sent} sent; {:?}", port.counters());
    assert!(refusals > 0, "the buffers ran out, or the test sends too little at a time");
    assert_eq!((port.counters().tx_frames, port.counters().tx_dropped), (COUNT.into(), 0));
}

#[test]
fn frames_that_wait_are_looked_at_and_those_taken_back_do_not_leave() {
    const ETHERTYPE: u16 = 0x88b5;
    const COUNT: u32 = 20_000;
    let network = Network::new();
    let (_steering, mut port) = open(&network);
    let raw = within(&network.peer, || Raw::open(PEER_IF, ETHERTYPE));
    let mut frame = [0u8; 60];
    frame[..6].copy_from_slice(&PEER_MAC);
    frame[6..12].copy_from_slice(&OUR_MAC);
    frame[12..14].copy_from_slice(&ETHERTYPE.to_be_bytes());
    let (mut sent, mut expected, mut got) = (0u32, Vec::new(), 0);
    let deadline = Instant::now() + Duration::from_secs(60);
    while (sent < COUNT || got < expected.len()) && Instant::now() < deadline {
        let since = port.outgoing().unwrap().committed();
        let first = sent;
        while sent < COUNT.min(first + 150) {
            let Some(out) = port.reserve() else { break };
            frame[14..18].copy_from_slice(&sent.to_be_bytes());
            out[..frame.len()].copy_from_slice(&frame);
            port.commit(frame.len(), TxOffload::default());
            sent += 1;
        }
        let (outgoing, mut seen) = (port.outgoing().unwrap(), first);
        outgoing.batches(since, &mut |number, frames| {
            assert_eq!(number as u32, seen - first);
            for frame in frames {
                assert_eq!(frame[14..18], seen.to_be_bytes());
                frame[18] = 77;
                seen += 1;
            }
        });
        assert_eq!(seen, sent);
        let (stay, go): (Vec<u32>, Vec<u32>) = (first..sent).partition(|number| number % 3 != 1 || number % 7 == 0);
        outgoing.take_back(since, &mut go.iter().map(|number| (number - first) as usize));
        assert_eq!(outgoing.committed(), since.wrapping_add(stay.len() as u32));
        expected.extend(stay);
        port.flush();
        assert!(port.outgoing().unwrap().waiting(since).is_empty(), "nothing waits after the flush");
        while let Some(bytes) = raw.receive() {
            assert_eq!((&bytes[14..18], bytes[18]), (&expected[got].to_be_bytes()[..], 77), "in order");
            got += 1;
        }
    }
    assert_eq!((sent, got), (COUNT, expected.len()), "{:?}", port.counters());
    assert_eq!((port.counters().tx_frames, port.counters().tx_dropped), (got as u64, 0));
}

#[test]
fn what_is_not_read_is_counted_and_what_is_held_stays() {
    const COUNT: u32 = 6000;
    let network = Network::new();
    let (mut steering, mut port) = open(&network);
    steer(&mut steering, OURS, 9000, true);
    let raw = within(&network.peer, || Raw::open(PEER_IF, 0));
    let to = SocketAddr::new(OURS, 9000);
    for seq in 0..COUNT {
        raw.send(&peer_frame(FROM, to, seq));
    }
    let mut held: Vec<RxFrame> = Vec::new();
    port.receive(&mut held, 10_000);
    assert_eq!(held.len(), 2048);
    assert_eq!(port.counters().rx_dropped, u64::from(COUNT) - 2048);
    raw.send(&peer_frame(FROM, to, 7_000_000));
    assert!(!wait(&mut port, TICK), "no free frame to receive into");
    for (n, frame) in held.iter().enumerate() {
        assert_eq!(parse(port.bytes(frame)).unwrap().seq, n as u32);
    }
    port.release(&held);
    for round in 0..5 {
        for seq in 0..1000 {
            raw.send(&peer_frame(FROM, to, round * 1000 + seq));
        }
        let mut frames = Vec::new();
        port.receive(&mut frames, 10_000);
        assert_eq!(frames.len(), 1000, "round {round}");
        for (n, frame) in frames.iter().enumerate() {
            assert_eq!(parse(port.bytes(frame)).unwrap().seq, round * 1000 + n as u32);
        }
        port.release(&frames);
    }
}

#[test]
fn dropping_leaves_the_interface_as_it_was() {
    let network = Network::new();
    let look = || {
        let tso = [(&network.peer, PEER_IF), (&network.ours, OUR_IF)].map(|(ns, name)| within(ns, || tso(name)));
        let links = [&network.peer, &network.ours].map(|ns| ip(&format!("-n {ns} -d link show")));
        (links, tso)
    };
    let before = look();
    let (mut steering, port) = open(&network);
    steer(&mut steering, OURS, 9000, true);
    assert!(look().0[1].contains("xdp"), "attached");
    drop(port);
    assert!(silent(&network, OURS, 9000), "without a socket, ours is dropped and not reset");
    assert!(refused(&network, OURS, 9002));
    drop(steering);
    assert_eq!(look(), before);
    assert!(refused(&network, OURS, 9000));
    open(&network); // and again
}

#[test]
fn killing_the_process_leaves_nothing() {
    let network = Network::new();
    let mut holder = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "holder", "--ignored", "--nocapture"])
        .env("WR_NAMESPACE", &network.ours)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = io::BufReader::new(holder.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line.contains("steering 9000")), "the holder attaches");
    assert!(silent(&network, OURS, 9000));
    holder.kill().unwrap(); // SIGKILL
    holder.wait().unwrap();
    let deadline = Instant::now() + Duration::from_secs(30);
    while !refused(&network, OURS, 9000) {
        assert!(Instant::now() < deadline, "still steered");
    }
    assert!(!ip(&format!("-n {} -d link show", network.ours)).contains("xdp"));
}

#[test]
#[ignore = "the process that killing_the_process_leaves_nothing starts and kills"]
fn holder() {
    let namespace = std::env::var("WR_NAMESPACE").expect("started by another test");
    enter(&format!("/run/netns/{namespace}"));
    let mut steering = Steering::attach(OUR_IF).unwrap();
    steer(&mut steering, OURS, 9000, true);
    println!("\nsteering 9000");
    std::thread::sleep(Duration::from_secs(100));
}

/// Moves the producer's position of the queue's fill ring, which is its first word, far ahead.
fn spoil_fill_ring(attachment: &Attachment) {
    let all = attachment.descriptors().unwrap();
    let socket = &all[all.len() - 3];
    // SAFETY: the kernel chooses the address of the new mapping, whose first page has the positions.
    unsafe {
        let (both, offset) = (libc::PROT_READ | libc::PROT_WRITE, libc::XDP_UMEM_PGOFF_FILL_RING as libc::off_t);
        let ring = libc::mmap(std::ptr::null_mut(), 4096, both, libc::MAP_SHARED, socket.as_raw_fd(), offset);
        assert_ne!(ring, libc::MAP_FAILED, "{}", io::Error::last_os_error());
        ring.cast::<u32>().write_volatile(1 << 30);
        // A mapping would keep the socket open.
        assert_eq!(libc::munmap(ring, 4096), 0);
    }
}

#[test]
fn a_socket_with_frames_in_the_kernels_hands_is_replaced_under_the_same_link() {
    let network = Network::new();
    let mut attachment = within(&network.ours, || Attachment::open(OUR_IF, AttachConfig::default(), 1).unwrap());
    let before = numbers(&attachment);
    let (steering, port) = over(&attachment);
    drop((steering, port));
    // A process that has fallen can write what it likes.
    spoil_fill_ring(&attachment);
    attachment.leave();
    within(&network.ours, || attachment.begin_again(&Tables::load(OUR_IF, false).unwrap(), 1).unwrap());
    assert_ne!(numbers(&attachment), before);
    let (mut steering, mut port) = over(&attachment);
    steer(&mut steering, OURS, 9000, true);
    let raw = within(&network.peer, || Raw::open(PEER_IF, 0));
    raw.send(&peer_frame(FROM, SocketAddr::new(OURS, 9000), 7));
    assert_eq!(receive(&mut *port, SOON).unwrap().0.seq, 7);
}

#[test]
fn a_driver_that_cannot_gets_generic_mode() {
    let network = Network::new();
    within(&network.ours, || {
        let mut steering = Steering::attach("lo").unwrap();
        assert_eq!(steering.mode(), SteerMode::Generic);
        let mut port = XskPort::open("lo", 0, XskConfig { copy: true, ..XskConfig::default() }).unwrap();
        assert!(!port.zero_copy());
        steering.bind(0, &port).unwrap();
        let to = SocketAddr::from((Ipv4Addr::LOCALHOST, 9000));
        let from = SocketAddr::from((Ipv4Addr::LOCALHOST, FROM));
        steering.steer_flow(to, from, Some(Segments::All)).unwrap();
        let result = connect_from(FROM, to, TICK);
        assert_eq!(result.unwrap_err().kind(), ErrorKind::TimedOut);
        assert_eq!(receive(&mut port, SOON).unwrap().0.destination_port, 9000);
    });
}

#[test]
fn errors_say_what_to_do() {
    let network = Network::new();
    within(&network.ours, || {
        let absent = Steering::attach("wr-absent").unwrap_err();
        assert!(matches!(absent, SteerError::NoInterface(_)) && absent.to_string().contains("wr-absent"));
        assert!(matches!(XskPort::open("wr-absent", 0, XskConfig::default()), Err(XskError::NoInterface(_))));

        let _steering = Steering::attach(OUR_IF).unwrap();
        let occupied = Steering::attach(OUR_IF).unwrap_err().to_string();
        assert!(occupied.contains("another XDP program is attached: towpath_steer (id "), "{occupied}");

        let _port = XskPort::open(OUR_IF, 0, XskConfig::default()).unwrap();
        let busy = XskPort::open(OUR_IF, 0, XskConfig::default()).err().unwrap().to_string();
        assert!(busy.contains("queue 0 is in use"), "{busy}");
        let no_queue = XskPort::open(OUR_IF, 77, XskConfig::default()).err().unwrap().to_string();
        assert!(no_queue.contains("has no queue 77"), "{no_queue}");
        for config in [
            XskConfig { frame_bytes: 3000, ..XskConfig::default() },
            XskConfig { ring: 1000, ..XskConfig::default() },
            XskConfig { frames: 1, ..XskConfig::default() },
        ] {
            assert!(matches!(XskPort::open(OUR_IF, 0, config), Err(XskError::Config(..))), "{config:?}");
        }
    });
}

#[test]
fn without_rights_the_error_names_them() {
    let network = Network::new();
    within(&network.ours, || {
        // Drops the effective capabilities of this thread only.
        let header: [u32; 2] = [0x2008_0522, 0]; // _LINUX_CAPABILITY_VERSION_3, this thread
        let none = [0u32; 6];
        // SAFETY: both are complete structures of capset(2), which the call only reads.
        let result = unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), none.as_ptr()) };
        assert_eq!(result, 0, "capset: {}", io::Error::last_os_error());
        let steer = Steering::attach(OUR_IF).unwrap_err();
        assert!(matches!(steer, SteerError::Permission(_)), "{steer}");
        assert!(steer.to_string().contains("CAP_NET_ADMIN and CAP_BPF"));
        let socket = XskPort::open(OUR_IF, 0, XskConfig::default()).err().unwrap();
        assert!(matches!(socket, XskError::Permission(_)), "{socket}");
    });
}

#[test]
fn a_large_mtu_is_limited_by_the_frames() {
    let network = Network::new();
    ip(&format!("-n {} link set {OUR_IF} mtu 9000", network.ours));
    ip(&format!("-n {} link set {PEER_IF} mtu 9000", network.peer));
    let (mut steering, mut port) = open(&network);
    assert_eq!(port.capabilities().mtu_bytes, 4096 - 256 - 14);
    let len = port.capabilities().mtu_bytes as usize + 14;
    steer(&mut steering, OURS, 9000, true);
    let raw = within(&network.peer, || Raw::open(PEER_IF, 0));
    let mut frame = peer_frame(FROM, SocketAddr::new(OURS, 9000), 1);
    frame.resize(len, 0);
    raw.send(&frame);
    assert!(wait(&mut port, SOON));
    let mut frames = Vec::new();
    port.receive(&mut frames, 10);
    assert_eq!(frames[0].len as usize, len);
    assert_eq!(port.bytes(&frames[0]), frame);
    assert!(port.reserve().unwrap().len() >= len);
}
