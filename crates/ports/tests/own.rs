//! First SYNs taken before the kernel's firewall, between two network namespaces. Needs root.
#![allow(clippy::unwrap_used, dead_code)]

mod network;

use network::rules::{SOON, TICK};
use network::*;
use rustix::net::{AddressFamily, SocketType, sockopt};
use std::collections::HashSet;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::process::Command;
use std::time::Duration;
use towpath_ports::Port;
use towpath_ports::attachment::{AttachConfig, Attachment};
use towpath_ports::packet_port::of_queue;
use towpath_ports::steering::{SteerMode, Steering};
use towpath_wire::{Header, checksum, emit, fill_checksum, flags, parse};

const MODES: [SteerMode; 3] = [SteerMode::Generic, SteerMode::Driver, SteerMode::Packet];

/// An address of the host on the other side of the router that this host is.
const BEHIND: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 77, 0, 9));

/// Serves our interface, with a firewall of its own.
fn open(network: &Network, mode: SteerMode) -> (Steering, Box<dyn Port>) {
    within(&network.ours, || {
        let how = AttachConfig { mode: Some(mode), own: true, tagged: false };
        let attachment = Attachment::open(OUR_IF, how, 1).unwrap();
        assert!(attachment.is_in_place());
        let (mut steering, mut sockets) = Steering::over(OUR_IF, attachment.parts().unwrap()).unwrap();
        let port = of_queue(sockets.remove(0)).unwrap();
        steering.serve(0, Some(attachment.index())).unwrap();
        let loopback: [IpAddr; 2] = ["127.0.0.1".parse().unwrap(), "::1".parse().unwrap()];
        let all = [OURS, OURS_TOO, OURS6, OURS6_TOO].into_iter().chain(loopback);
        steering.set_addresses(&all.collect()).unwrap();
        steering.listening().beat();
        (steering.with(attachment), port)
    })
}

/// The kernel's firewall in our namespace drops TCP at each of its hooks.
fn wall(network: &Network) {
    let rules = format!(
        "add table inet t; add chain inet t pre {{ type filter hook prerouting priority -300; }}; \
         add chain inet t in {{ type filter hook input priority 0; }}; \
         add rule inet t pre tcp dport 9000-9099 drop; add rule inet t in tcp dport 9000-9099 drop; \
         add table netdev t; add chain netdev t c {{ type filter hook ingress device {OUR_IF} priority -500; }}; \
         add rule netdev t c tcp dport 9000-9099 drop"
    );
    let done = Command::new("ip").args(["netns", "exec", &network.ours, "nft", &rules]).status().unwrap();
    assert!(done.success(), "the command `nft` runs (apt-get install nftables)");
}

fn no_wall(network: &Network) {
    let done = Command::new("ip").args(["netns", "exec", &network.ours, "nft", "flush ruleset"]).status().unwrap();
    assert!(done.success());
}

/// A listening socket of our namespace with the filter, whose SYNs are taken.
fn accelerate(steering: &mut Steering, listener: TcpListener) -> TcpListener {
    let program = steering.listening().filter().as_raw_fd();
    set(&listener, libc::SO_ATTACH_BPF, &program.to_ne_bytes());
    steering.listening().take(cookie(&listener), true).unwrap();
    listener
}

fn listen(network: &Network, at: IpAddr, port: u16) -> TcpListener {
    within(&network.ours, || TcpListener::bind((at, port)).unwrap())
}

fn set(socket: &impl AsRawFd, option: i32, value: &[u8]) {
    let length = value.len() as u32;
    let (fd, at) = (socket.as_raw_fd(), value.as_ptr().cast());
    // SAFETY: the value lives during the call, which reads its bytes.
    let result = unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, option, at, length) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

fn cookie(socket: &impl AsFd) -> u64 {
    sockopt::socket_cookie(socket).unwrap()
}

fn connect(network: &Network, to: SocketAddr, time: Duration) -> Result<TcpStream, ErrorKind> {
    within(&network.peer, || TcpStream::connect_timeout(&to, time)).map_err(|error| error.kind())
}

/// The cookies of the sockets whose SYNs have been taken since the last call, in order.
fn taken(steering: &mut Steering) -> Vec<u64> {
    std::iter::from_fn(|| steering.listening().next_syn()).map(|(_, syn)| syn.cookie).collect()
}

/// A connect that nobody answers. Returns whose SYN was taken.
fn knock(network: &Network, steering: &mut Steering, to: SocketAddr) -> Vec<u64> {
    steering.listening().beat();
    assert_eq!(connect(network, to, TICK).err(), Some(ErrorKind::TimedOut), "{to}");
    taken(steering)
}

#[test]
fn syns_are_taken_before_each_hook_of_the_firewall() {
    for mode in MODES {
        let network = Network::new();
        wall(&network);
        let (mut steering, _port) = open(&network, mode);
        let four = accelerate(&mut steering, listen(&network, OURS, 9000));
        let six = accelerate(&mut steering, listen(&network, OURS6, 9000));
        let both = accelerate(&mut steering, listen(&network, Ipv6Addr::UNSPECIFIED.into(), 9001));
        let plain = listen(&network, OURS_TOO, 9000);
        for (to, port, whose) in
            [(OURS, 9000, &four), (OURS6, 9000, &six), (OURS, 9001, &both), (OURS6_TOO, 9001, &both)]
        {
            let taken = knock(&network, &mut steering, SocketAddr::new(to, port));
            assert_eq!(taken, [cookie(whose)], "{mode}, {to}");
        }
        // Another socket's address, and a port where nobody listens: the kernel has them.
        assert_eq!(knock(&network, &mut steering, SocketAddr::new(OURS_TOO, 9000)), []);
        assert_eq!(knock(&network, &mut steering, SocketAddr::new(OURS, 9002)), []);
        no_wall(&network);
        let mut client = connect(&network, SocketAddr::new(OURS_TOO, 9000), SOON).unwrap();
        client.write_all(b"hi").unwrap();
        let mut got = [0; 2];
        plain.accept().unwrap().0.read_exact(&mut got).unwrap();
        assert_eq!((&got, taken(&mut steering)), (b"hi", vec![]));
        wall(&network);
        // No service, no firewall of its own.
        drop(steering);
        assert_eq!(connect(&network, SocketAddr::new(OURS, 9000), TICK).err(), Some(ErrorKind::TimedOut));
        no_wall(&network);
        connect(&network, SocketAddr::new(OURS, 9000), SOON).expect("the kernel accepts");
    }
}

/// The kernel half answers, and its firewall judges.
#[test]
fn while_the_service_is_stuck_the_kernel_and_its_firewall_have_the_syns() {
    let network = Network::new();
    let (mut steering, _port) = open(&network, SteerMode::Packet);
    let listener = accelerate(&mut steering, listen(&network, OURS, 9000));
    std::thread::sleep(Duration::from_millis(3100));
    let to = SocketAddr::new(OURS, 9000);
    connect(&network, to, SOON).expect("the kernel accepts");
    wall(&network);
    let raw = within(&network.peer, || Raw::open(PEER_IF, 0));
    let repeated = syn((PEER, 700), to, 0);
    raw.send(&repeated);
    assert_eq!(connect(&network, to, TICK).err(), Some(ErrorKind::TimedOut));
    assert_eq!((taken(&mut steering), steering.stats().unwrap().passed_stale), (vec![], 1));
    // A SYN that the firewall has dropped meanwhile is taken when the peer repeats it.
    steering.listening().beat();
    raw.send(&repeated);
    let end = std::time::Instant::now() + SOON;
    let mut again = Vec::new();
    while again.is_empty() && std::time::Instant::now() < end {
        again = taken(&mut steering);
    }
    assert_eq!(again, [cookie(&listener)]);
}

fn syn(from: (IpAddr, u16), to: SocketAddr, payload: usize) -> Vec<u8> {
    let header = Header { source: from.0, ack: 0, flags: flags::SYN, ..peer_header(from.1, to, 7) };
    let mut frame = vec![0; header.wire_bytes() + payload];
    emit(&header, payload, &mut frame).unwrap();
    fill_checksum(&mut frame);
    frame
}

/// Sets a byte of an IPv4 header, and its checksum.
fn with_byte(mut frame: Vec<u8>, at: usize, value: u8) -> Vec<u8> {
    frame[at] = value;
    frame[24..26].fill(0);
    let sum = checksum::finish(checksum::add(0, &frame[14..34]));
    frame[24..26].copy_from_slice(&sum);
    frame
}

/// The kernel has each SYN that it would drop, forward, or deliver otherwise.
#[test]
fn what_only_the_kernel_can_judge_passes_on() {
    let network = Network::new();
    wall(&network);
    let (mut steering, _port) = open(&network, SteerMode::Packet);
    let any = accelerate(&mut steering, listen(&network, Ipv6Addr::UNSPECIFIED.into(), 9000));
    let limited = accelerate(&mut steering, listen(&network, OURS, 9003));
    let hops: i32 = 5;
    // SAFETY: the value lives during the call, which reads its bytes.
    let result = unsafe {
        libc::setsockopt(limited.as_raw_fd(), libc::IPPROTO_IP, libc::IP_MINTTL, (&raw const hops).cast(), 4)
    };
    assert_eq!(result, 0);
    let raw = within(&network.peer, || Raw::open(PEER_IF, 0));
    let (to, to6) = (SocketAddr::new(OURS, 9000), SocketAddr::new(OURS6, 9000));
    let good = |port| syn((PEER, port), to, 0);
    let mut others = vec![
        ("an option", with_byte(good(1), 14, 0x46)),
        ("a fragment", with_byte(good(2), 20, 0x20)),
        ("UDP", with_byte(good(3), 23, 17)),
        ("data", syn((PEER, 4), to, 4)),
        ("from ourselves", syn((OURS_TOO, 5), to, 0)),
        ("from the loopback", syn(("127.0.0.1".parse().unwrap(), 6), to, 0)),
        ("from many", syn(("224.0.0.1".parse().unwrap(), 7), to, 0)),
        ("to be forwarded", syn((PEER, 8), SocketAddr::new(BEHIND, 9000), 0)),
        ("to the loopback", syn((PEER, 9), SocketAddr::new("127.0.0.1".parse().unwrap(), 9000), 0)),
        ("from many, IPv6", syn(("ff02::1".parse().unwrap(), 10), to6, 0)),
        ("from a link, IPv6", syn(("fe80::7".parse().unwrap(), 11), to6, 0)),
        ("from ourselves, IPv6", syn((OURS6_TOO, 12), to6, 0)),
        ("a limit on hops", syn((PEER, 13), SocketAddr::new(OURS, 9003), 0)),
    ];
    for (what, port, at) in [("another MAC", 20, 5), ("a bad IP sum", 21, 25), ("a bad TCP sum", 22, 51)] {
        let mut frame = good(port);
        frame[at] ^= 0x55;
        others.push((what, frame));
    }
    let mut sum6 = syn((PEER6, 23), to6, 0);
    sum6[71] ^= 0x55;
    others.push(("a bad TCP sum, IPv6", sum6));
    let tagged = [&good(24)[..12], &[0x81, 0, 0, 7], &good(24)[12..]].concat();
    others.push(("a VLAN", tagged));
    let mut not_first = good(25);
    not_first[47] = flags::SYN | flags::ACK;
    fill_checksum(&mut not_first);
    others.push(("not the first", not_first));
    let last = |steering: &mut Steering| {
        let mut taken = Vec::new();
        let end = std::time::Instant::now() + SOON;
        while taken.is_empty() && std::time::Instant::now() < end {
            taken.extend(std::iter::from_fn(|| steering.listening().next_syn()).map(|(_, syn)| syn));
        }
        let ends: Vec<_> = taken.iter().map(|syn| parse(&syn.frame(None)).unwrap()).collect();
        (taken.iter().map(|syn| syn.cookie).collect::<Vec<_>>(), ends.iter().map(|s| s.source_port).collect::<Vec<_>>())
    };
    for (number, (what, frame)) in (100..).zip(&others) {
        steering.listening().beat();
        raw.send(frame);
        // One that is taken comes after it.
        raw.send(&if number % 2 == 0 { good(number) } else { syn((PEER6, number), to6, 0) });
        assert_eq!(last(&mut steering), (vec![cookie(&any)], vec![number]), "{what}");
    }
    // Without the filter nothing is taken, whatever the set of listeners says.
    let bare = accelerate(&mut steering, listen(&network, OURS, 9004));
    raw.send(&syn((PEER, 198), SocketAddr::new(OURS, 9004), 0));
    assert_eq!(last(&mut steering).0, [cookie(&bare)]);
    set(&bare, libc::SO_DETACH_FILTER, &[0; 4]);
    raw.send(&syn((PEER, 199), SocketAddr::new(OURS, 9004), 0));
    raw.send(&good(299));
    assert_eq!(last(&mut steering).1, [299]);
    // An address that is the host's no longer.
    steering.set_addresses(&HashSet::from([OURS6])).unwrap();
    raw.send(&good(200));
    raw.send(&syn((PEER6, 201), to6, 0));
    assert_eq!(last(&mut steering).1, [201]);
}

/// A connection of the kernel's that has this 4-tuple gets its segments.
#[test]
fn a_syn_of_a_connection_of_the_kernels_is_the_kernels() {
    let network = Network::new();
    let (mut steering, _port) = open(&network, SteerMode::Packet);
    let to = SocketAddr::new(OURS, 9000);
    let listener = listen(&network, OURS, 9000);
    let _client = within(&network.peer, || connect_from(5000, to, SOON)).unwrap();
    let _accepted = listener.accept().unwrap();
    let _listener = accelerate(&mut steering, listener);
    wall(&network);
    let raw = within(&network.peer, || Raw::open(PEER_IF, 0));
    raw.send(&syn((PEER, 5000), to, 0));
    std::thread::sleep(TICK);
    assert_eq!(taken(&mut steering), []);
    assert_eq!(knock(&network, &mut steering, to).len(), 1);
}

/// Sockets that share a port. With a program the second one has all connections.
fn group(network: &Network, steering: &mut Steering, by_program: bool) -> [TcpListener; 2] {
    let at = SocketAddr::new(OURS, 9000);
    [0, 1].map(|place| {
        let listener: TcpListener = within(&network.ours, || {
            let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
            sockopt::set_socket_reuseport(&socket, true).unwrap();
            rustix::net::bind(&socket, &at).unwrap();
            rustix::net::listen(&socket, 16).unwrap();
            socket.into()
        });
        if by_program && place == 1 {
            // `ret #1`.
            let mut code = [libc::sock_filter { code: 6, jt: 0, jf: 0, k: 1 }];
            let program = libc::sock_fprog { len: 1, filter: code.as_mut_ptr() };
            // SAFETY: the structure consists of a number and a pointer, and all of its bytes are read here.
            let bytes: [u8; size_of::<libc::sock_fprog>()] = unsafe { std::mem::transmute(program) };
            set(&listener, libc::SO_ATTACH_REUSEPORT_CBPF, &bytes);
        }
        accelerate(steering, listener)
    })
}

#[test]
fn a_group_that_shares_a_port_is_served_as_the_kernel_chooses() {
    let network = Network::new();
    let (mut steering, _port) = open(&network, SteerMode::Packet);
    let to = SocketAddr::new(OURS, 9000);
    // Without a program the choice is by the 4-tuple, here and there.
    let both = group(&network, &mut steering, false);
    wall(&network);
    let knocks = |steering: &mut Steering, times: u16| -> Vec<u64> {
        let once = |port| {
            steering.listening().beat();
            let connected = within(&network.peer, || connect_from(port, to, TICK)).map_err(|error| error.kind());
            assert_eq!(connected.err(), Some(ErrorKind::TimedOut));
            let taken = taken(steering);
            assert!(taken.len() < 2, "{taken:?}");
            taken.first().copied().unwrap_or(0)
        };
        (6000..6000 + times).map(once).collect()
    };
    let before = knocks(&mut steering, 8);
    steering.set_addresses(&HashSet::new()).unwrap();
    assert_eq!(knocks(&mut steering, 1), [0]);
    no_wall(&network);
    assert_eq!(knocks(&mut steering, 8), before, "after the firewall the same");
    assert!(before.iter().all(|chosen| both.iter().any(|one| cookie(one) == *chosen)), "{before:?}");
    drop(both);
    // With one only the kernel can choose, when it has the packet.
    steering.set_addresses(&HashSet::from([OURS])).unwrap();
    let both = group(&network, &mut steering, true);
    assert_eq!(knocks(&mut steering, 8), [cookie(&both[1]); 8]);
    wall(&network);
    assert_eq!(knocks(&mut steering, 2), [0, 0]);
}
