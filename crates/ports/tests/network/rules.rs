//! The rules of steering, whatever way frames take.

use super::*;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpListener;
use towpath_ports::attachment::{AttachConfig, Attachment, Tables};
use towpath_ports::steering::{Segments, Steering};
use towpath_ports::{TxOffload, packet_port};
use towpath_wire::{emit, fill_checksum};

/// Attaches in our namespace, with a port on queue 0.
pub type Open = fn(&Network) -> (Steering, Box<dyn Port>);

/// How long to wait for a frame that should not come.
pub const TICK: Duration = Duration::from_millis(100);
/// How long to wait for a frame that should come. It comes at once, unless the machine is busy.
pub const SOON: Duration = Duration::from_secs(30);

/// The port of the peer from which [`connect`] connects.
pub const FROM: u16 = 5000;

/// Steers the connection from [`FROM`] to this port.
pub fn steer(steering: &mut Steering, to: IpAddr, port: u16, on: bool) {
    let ours = on.then_some(Segments::All);
    steering.steer_flow(SocketAddr::new(to, port), SocketAddr::new(PEER, FROM), ours).unwrap();
}

/// Connects from the peer's kernel.
pub fn connect(network: &Network, to: IpAddr, port: u16, time: Duration) -> io::Result<TcpStream> {
    within(&network.peer, || connect_from(FROM, SocketAddr::from((to, port)), time))
}

pub fn refused(network: &Network, to: IpAddr, port: u16) -> bool {
    matches!(connect(network, to, port, SOON), Err(e) if e.kind() == ErrorKind::ConnectionRefused)
}

pub fn silent(network: &Network, to: IpAddr, port: u16) -> bool {
    matches!(connect(network, to, port, TICK), Err(e) if e.kind() == ErrorKind::TimedOut)
}

pub fn drain(port: &mut dyn Port) -> usize {
    let mut count = 0;
    while receive(port, Duration::from_millis(1)).is_some() {
        count += 1;
    }
    count
}

pub fn header(seq: u32, ack: u32, flags: u8) -> Header {
    Header {
        source_mac: OUR_MAC,
        destination_mac: PEER_MAC,
        vlan: None,
        source: OURS,
        destination: PEER,
        source_port: 9000,
        destination_port: 0,
        seq,
        ack,
        flags,
        window: 60_000,
        ident: 0,
        tos: 0,
        ttl: towpath_wire::TTL,
        urgent: 0,
        options: Options::default(),
    }
}

pub fn send(port: &mut dyn Port, header: &Header, payload: &[u8]) {
    let out = port.reserve().unwrap();
    let at = emit(header, payload.len(), out).unwrap();
    out[at..at + payload.len()].copy_from_slice(payload);
    fill_checksum(&mut out[..at + payload.len()]);
    port.commit(at + payload.len(), TxOffload::default());
    port.flush();
}

/// A segment from the peer, written by hand.
pub fn peer_frame(source_port: u16, destination: SocketAddr, seq: u32) -> Vec<u8> {
    let header = Header { ack: 0, flags: flags::SYN, ..peer_header(source_port, destination, seq) };
    let mut frame = vec![0; 54];
    emit(&header, 0, &mut frame).unwrap();
    fill_checksum(&mut frame);
    frame
}

pub fn all_but_steered_flows_is_the_kernels(open: Open) {
    let network = Network::new();
    let (mut steering, mut port) = open(&network);
    assert_eq!(port.capabilities().mtu_bytes, 1500);
    assert!(refused(&network, OURS, 9000), "nothing is steered yet");
    for _ in 0..2 {
        steer(&mut steering, OURS, 9000, true);
    }
    assert!(silent(&network, OURS, 9000), "the kernel neither answers nor resets");
    let (syn, _) = receive(&mut *port, SOON).unwrap();
    assert_eq!((syn.flags, syn.source, syn.destination), (flags::SYN, PEER, OURS));
    assert_eq!((syn.destination_port, syn.source_mac, syn.options.mss), (9000, PEER_MAC, Some(1460)));
    assert!(refused(&network, OURS_TOO, 9000), "another address");
    drain(&mut *port);

    // These stay with the kernel: ARP, ICMP, a closed port, a server.
    ip(&format!("-n {} neighbour flush dev {PEER_IF}", network.peer));
    assert!(within(&network.peer, || ping(OURS)));
    let neighbours = ip(&format!("-n {} neighbour show dev {PEER_IF}", network.peer));
    assert!(neighbours.contains("02:00:00:00:00:0b"), "{neighbours}");
    assert!(refused(&network, OURS, 2222));
    let server = within(&network.ours, || TcpListener::bind((OURS, 2223)).unwrap());
    connect(&network, OURS, 2223, SOON).unwrap().write_all(b"hi").unwrap();
    let mut got = [0; 2];
    server.accept().unwrap().0.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"hi");
    assert!(receive(&mut *port, TICK).is_none(), "none of that came here");
    let stats = steering.stats().unwrap();
    assert!(stats.steered >= 1 && stats.passed >= 8, "{stats:?}");

    for _ in 0..2 {
        steer(&mut steering, OURS, 9000, false);
    }
    assert!(refused(&network, OURS, 9000), "no longer steered");
}

pub fn flows_are_steered_exactly(open: Open) {
    let network = Network::new();
    let (mut steering, mut port) = open(&network);
    let local = SocketAddr::new(OURS, 40_000);
    steering.steer_flow(local, SocketAddr::new(PEER, 5555), Some(Segments::All)).unwrap();
    let raw = within(&network.peer, || Raw::open(PEER_IF, 0));
    raw.send(&peer_frame(5555, local, 1));
    assert_eq!(receive(&mut *port, SOON).unwrap().0.seq, 1);
    raw.send(&peer_frame(5556, local, 2)); // another remote port
    raw.send(&peer_frame(5555, SocketAddr::new(OURS, 40_001), 3)); // another local port
    raw.send(&peer_frame(5555, SocketAddr::new(OURS_TOO, 40_000), 4)); // another local address
    let mut fragment = peer_frame(5555, local, 5);
    fragment[20] = 0x20;
    raw.send(&fragment);
    let mut udp = peer_frame(5555, local, 6);
    udp[23] = 17;
    raw.send(&udp);
    raw.send(&peer_frame(5555, local, 7)[..36]); // ports cut off
    raw.send(&peer_frame(5555, local, 8));
    assert_eq!(receive(&mut *port, SOON).unwrap().0.seq, 8, "nothing else in between");

    // IPv4 options do not hide a segment.
    let plain = peer_frame(5555, local, 9);
    let mut options = [&plain[..34], &[1, 1, 1, 0], &plain[34..]].concat();
    options[14] = 0x46;
    options[17] += 4;
    options[24..26].fill(0);
    let sum = towpath_wire::checksum::finish(towpath_wire::checksum::add(0, &options[14..38]));
    options[24..26].copy_from_slice(&sum);
    raw.send(&options);
    assert_eq!(receive(&mut *port, SOON).unwrap().0.seq, 9);

    steering.steer_flow(local, SocketAddr::new(PEER, 5555), None).unwrap();
    raw.send(&peer_frame(5555, local, 10));
    assert!(receive(&mut *port, TICK).is_none());
}

pub fn a_kernel_connection_is_served_from_here(open: Open) {
    let network = Network::new();
    let (mut steering, mut port) = open(&network);
    steer(&mut steering, OURS, 9000, true);
    let text: Vec<u8> = (0..5000u32).map(|i| (i * 7) as u8).collect();
    let sent = text.clone();
    let peer = start_within(&network.peer, move || {
        let mut stream = connect_from(FROM, SocketAddr::from((OURS, 9000)), SOON).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.write_all(&sent).unwrap();
        let mut back = vec![0; sent.len()];
        stream.read_exact(&mut back).unwrap();
        back
    });
    let (syn, _) = receive(&mut *port, Duration::from_secs(30)).unwrap();
    let to_peer = |seq, ack, flags| Header { destination_port: syn.source_port, ..header(seq, ack, flags) };
    let (mut next, mut ours) = (syn.seq.wrapping_add(1), 1001u32);
    let syn_ack = Header {
        options: Options { mss: Some(1460), ..Options::default() },
        ..to_peer(1000, next, flags::SYN | flags::ACK)
    };
    send(&mut *port, &syn_ack, &[]);
    let deadline = Instant::now() + Duration::from_secs(60);
    while ours < 1001 + text.len() as u32 && Instant::now() < deadline {
        let Some((segment, payload)) = receive(&mut *port, TICK) else { continue };
        if segment.source_port == syn.source_port && segment.seq == next && !payload.is_empty() {
            next = next.wrapping_add(payload.len() as u32);
            // A super-segment goes back in parts.
            for part in payload.chunks(1000) {
                send(&mut *port, &to_peer(ours, next, flags::ACK | flags::PSH), part);
                ours += part.len() as u32;
            }
        }
    }
    assert_eq!(peer.join().unwrap(), text);
    let counters = port.counters();
    assert!(counters.tx_frames >= 5 && counters.rx_frames >= 3, "{counters:?}");
    assert_eq!((counters.rx_dropped, counters.tx_dropped), (0, 0));
}

/// What a process that serves has of an attachment.
pub fn over(attachment: &Attachment) -> (Steering, Box<dyn Port>) {
    let (steering, mut sockets) = Steering::over(OUR_IF, attachment.parts().unwrap()).unwrap();
    (steering, packet_port::of_queue(sockets.remove(0)).unwrap())
}

/// The number of the queue's socket, and of its memory.
pub fn numbers(attachment: &Attachment) -> Vec<u64> {
    let all = attachment.descriptors().unwrap();
    all[all.len() - 3..all.len() - 1].iter().map(|fd| rustix::fs::fstat(fd).unwrap().st_ino).collect()
}

/// `has_program`: is the service's program on the interface?
pub fn a_successor_has_the_same_link_and_sockets(how: AttachConfig, has_program: impl Fn(&Network) -> bool) {
    let network = Network::new();
    let mut attachment = within(&network.ours, || Attachment::open(OUR_IF, how, 1).unwrap());
    let (raw, local) = (within(&network.peer, || Raw::open(PEER_IF, 0)), SocketAddr::new(OURS, 9000));
    let before = numbers(&attachment);
    for round in 0..3 {
        let (mut steering, mut port) = over(&attachment);
        steer(&mut steering, OURS, 9000, true);
        for seq in 0..5000 {
            raw.send(&peer_frame(FROM, local, seq));
            assert_eq!(receive(&mut *port, SOON).unwrap().0.seq, seq, "round {round}");
            send(&mut *port, &header(seq, 0, flags::ACK), b"x");
        }
        // It dies with frames in its hands, frames that nobody has received, and frames that are not sent yet.
        (0..20).for_each(|seq| raw.send(&peer_frame(FROM, local, seq)));
        assert!(wait(&mut *port, SOON));
        port.receive(&mut Vec::new(), 5);
        port.reserve().unwrap();
        port.commit(60, TxOffload::default());
        drop((steering, port));
        attachment.leave();
        assert!(silent(&network, OURS, 9000), "its connections are neither answered nor reset");
        assert!(has_program(&network));
        within(&network.ours, || {
            assert!(attachment.is_in_place());
            attachment.begin_again(&Tables::load(OUR_IF, false).unwrap(), 1).unwrap();
            assert!(attachment.is_in_place());
        });
        assert!(refused(&network, OURS, 9000), "its connections are forgotten");
        assert_eq!(numbers(&attachment), before);
    }
    drop(attachment);
    let deadline = Instant::now() + SOON;
    while has_program(&network) {
        assert!(Instant::now() < deadline, "the program has stayed");
    }
}
