//! First SYNs taken from listening sockets of the kernel, between two network namespaces. Needs root.
#![allow(clippy::unwrap_used, missing_docs, dead_code)]

mod network;

use network::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType, sockopt::socket_error};
use std::cell::Cell;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::time::{Duration, Instant};
use towpath_ports::Port;
use towpath_ports::listening::{Listening, monotonic};
use towpath_ports::peer_filter::{MAX_RULES, Outcome, Rule};
use towpath_ports::steering::{Segments, Steering};
use towpath_ports::syn::Syn;
use towpath_ports::xsk::{XskConfig, XskPort};
use towpath_wire::{Header, Options, emit, fill_checksum, flags, parse};

const SOON: Duration = Duration::from_secs(30);
const TICK: Duration = Duration::from_millis(100);

/// The steering program and a port on queue 0. SYNs over the interface are taken.
fn open(network: &Network) -> (Steering, XskPort) {
    within(&network.ours, || {
        let mut steering = Steering::attach(OUR_IF).unwrap();
        let port = XskPort::open(OUR_IF, 0, XskConfig::default()).unwrap();
        steering.bind(0, &port).unwrap();
        // SAFETY: the name is terminated.
        let index = unsafe { libc::if_nametoindex(c"wrvb".as_ptr()) };
        steering.serve(0, Some(index)).unwrap();
        steering.listening().beat();
        (steering, port)
    })
}

/// A listening socket of our namespace, with the filter.
fn listen(network: &Network, steering: &mut Steering, at: IpAddr, port: u16) -> TcpListener {
    let listener = within(&network.ours, || TcpListener::bind((at, port)).unwrap());
    attach(steering, &listener);
    steering.listening().take(cookie(&listener), true).unwrap();
    listener
}

fn attach(steering: &mut Steering, listener: &TcpListener) {
    attach_filter(steering.listening(), listener);
}

fn attach_filter(listening: &Listening, listener: &TcpListener) {
    let program = listening.filter().as_raw_fd();
    // SAFETY: the option's value is an int that lives during the call.
    let result = unsafe {
        let value = (&raw const program).cast();
        libc::setsockopt(listener.as_raw_fd(), libc::SOL_SOCKET, libc::SO_ATTACH_BPF, value, 4)
    };
    assert_eq!(result, 0);
}

fn cookie(socket: &impl AsRawFd) -> u64 {
    let (mut cookie, mut length) = (0u64, 8);
    // SAFETY: the value is of the option's type and lives during the call.
    let result = unsafe {
        let value = (&raw mut cookie).cast();
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_COOKIE, value, &raw mut length)
    };
    assert_eq!(result, 0);
    cookie
}

fn connect(namespace: &str, to: SocketAddr, time: Duration) -> Result<TcpStream, ErrorKind> {
    within(namespace, || TcpStream::connect_timeout(&to, time)).map_err(|error| error.kind())
}

/// Whether a connection comes about in this time, and how often its SYN was sent again.
fn attempt(namespace: &str, to: SocketAddr, time: Duration) -> (bool, u64) {
    within(namespace, || {
        let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let socket = rustix::net::socket(family, SocketType::STREAM, None).unwrap();
        rustix::io::ioctl_fionbio(&socket, true).unwrap();
        assert_eq!(rustix::net::connect(&socket, &to), Err(Errno::INPROGRESS));
        let time = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
        let ended = poll(&mut [PollFd::new(&socket, PollFlags::OUT)], Some(&time)).unwrap() != 0;
        let again = tcp_info(&socket).tcpi_total_retrans.into();
        if ended {
            socket_error(&socket).unwrap().unwrap();
        }
        (ended, again)
    })
}

fn tcp_info(socket: &impl AsRawFd) -> libc::tcp_info {
    // SAFETY: integers only, and all of them may be 0.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
    let at = (&raw mut info).cast();
    // SAFETY: `at` has room for `len` bytes.
    let result = unsafe { libc::getsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, at, &raw mut len) };
    assert_eq!(result, 0);
    info
}

/// The next SYN that is taken.
fn next(steering: &mut Steering) -> Option<Syn> {
    let fd = steering.listening().readable().as_raw_fd();
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: the pointer is to one complete pollfd that outlives the call.
    unsafe { libc::poll(&raw mut poll, 1, SOON.as_millis() as i32) };
    steering.listening().next_syn().map(|(_, syn)| syn)
}

fn frame(from: SocketAddr, to: SocketAddr, seq: u32, flags: u8) -> Vec<u8> {
    let header = Header {
        source_mac: PEER_MAC,
        destination_mac: OUR_MAC,
        vlan: None,
        source: from.ip(),
        destination: to.ip(),
        source_port: from.port(),
        destination_port: to.port(),
        seq,
        ack: 1,
        flags,
        window: 1000,
        ident: 0,
        tos: 0,
        ttl: 64,
        urgent: 0,
        options: Options::default(),
    };
    let mut frame = vec![0; header.wire_bytes()];
    emit(&header, 0, &mut frame).unwrap();
    fill_checksum(&mut frame);
    frame
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + SOON;
    while !done() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The sequence number of the next frame that is steered to us.
fn steered(port: &mut XskPort, time: Duration) -> Option<u32> {
    let end = Instant::now() + time;
    let mut frames = Vec::new();
    while frames.is_empty() && Instant::now() < end {
        port.receive(&mut frames, 1);
        std::thread::sleep(Duration::from_millis(1));
    }
    let seq = frames.first().map(|frame| parse(port.bytes(frame)).unwrap().seq);
    port.release(&frames);
    seq
}

#[test]
fn syns_over_the_interface_are_taken_and_all_else_is_accepted_by_the_kernel() {
    let network = Network::new();
    let (mut steering, _port) = open(&network);
    for (ours, peer) in [(OURS, PEER), (OURS6, PEER6)] {
        let to = SocketAddr::new(ours, 9000);
        let listener = listen(&network, &mut steering, ours, 9000);
        assert_eq!(connect(&network.peer, to, TICK).err(), Some(ErrorKind::TimedOut), "neither answer nor reset");
        let syn = next(&mut steering).expect("a SYN");
        assert_eq!(syn.cookie, cookie(&listener));
        for vlan in [None, Some(7)] {
            let frame = syn.frame(vlan);
            let segment = parse(&frame).unwrap();
            assert_eq!((segment.source, segment.destination, segment.destination_port), (peer, ours, 9000));
            assert_eq!((segment.source_mac, segment.destination_mac), (PEER_MAC, OUR_MAC));
            assert_eq!((segment.flags & !0xc0, segment.payload_len, segment.vlan), (flags::SYN, 0, vlan));
            assert_eq!(segment.options.mss, Some(if ours.is_ipv4() { 1460 } else { 1440 }));
            assert!(segment.options.timestamps.is_some() && segment.options.window_scale.is_some());
        }
        // A local client is the kernel's; so is the accepted connection, which inherits the filter.
        let mut client = connect(&network.ours, to, SOON).unwrap();
        client.write_all(b"hi").unwrap();
        let mut got = [0; 2];
        listener.accept().unwrap().0.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"hi");
        assert_eq!(connect(&network.peer, SocketAddr::new(ours, 9001), SOON).err(), Some(ErrorKind::ConnectionRefused));
        while steering.listening().next_syn().is_some() {}
    }
    let stats = steering.stats().unwrap();
    assert!(stats.taken >= 2 && stats.passed_stale + stats.passed_full == 0, "{stats:?}");
}

#[test]
fn only_the_syns_of_named_listeners_are_taken() {
    let network = Network::new();
    let (mut steering, _port) = open(&network);
    let listener = within(&network.ours, || TcpListener::bind((OURS, 9000)).unwrap());
    attach(&mut steering, &listener);
    let to = SocketAddr::new(OURS, 9000);
    connect(&network.peer, to, SOON).expect("the kernel accepts");
    let name = cookie(&listener);
    for _ in 0..2 {
        steering.listening().take(name, true).unwrap();
    }
    assert_eq!(connect(&network.peer, to, TICK).err(), Some(ErrorKind::TimedOut));
    assert_eq!(next(&mut steering).map(|syn| syn.cookie), Some(name));
    for _ in 0..2 {
        steering.listening().take(name, false).unwrap();
    }
    connect(&network.peer, to, SOON).expect("the kernel accepts again");
}

#[test]
fn a_firewall_of_the_host_judges_each_syn() {
    let network = Network::new();
    let (mut steering, _port) = open(&network);
    let _listener = listen(&network, &mut steering, OURS, 9000);
    let rules = "add table inet t; add chain inet t in { type filter hook input priority 0; }; \
                 add rule inet t in tcp dport 9000 drop";
    let done = Command::new("ip").args(["netns", "exec", &network.ours, "nft", rules]).status().unwrap();
    assert!(done.success(), "the command `nft` runs (apt-get install nftables)");
    assert_eq!(connect(&network.peer, SocketAddr::new(OURS, 9000), TICK).err(), Some(ErrorKind::TimedOut));
    assert_eq!(steering.listening().next_syn(), None);
}

#[test]
fn the_kernel_accepts_when_the_service_is_stuck_full_or_dead() {
    let network = Network::new();
    let (mut steering, port) = open(&network);
    let to = SocketAddr::new(OURS, 9000);
    let listener = listen(&network, &mut steering, OURS, 9000);
    std::thread::sleep(Duration::from_millis(3100));
    drop(connect(&network.peer, to, SOON).unwrap());
    listener.accept().unwrap();
    assert_eq!(steering.stats().unwrap().passed_stale, 1, "stuck");
    // Its heart beats again, but nobody reads the SYNs.
    let raw = within(&network.peer, || Raw::open(PEER_IF, 0));
    for number in 0..9000u16 {
        if number % 1000 == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        steering.listening().beat();
        raw.send(&frame(SocketAddr::new(PEER, 10_000 + number), to, 1, flags::SYN));
    }
    steering.listening().beat();
    drop(connect(&network.peer, to, SOON).unwrap());
    assert!(steering.stats().unwrap().passed_full > 0);
    let taken = std::iter::from_fn(|| steering.listening().next_syn()).count() as u64;
    assert_eq!(taken, steering.stats().unwrap().taken);
    // The kernel has answered some. Their repetitions are the kernel's, too.
    let full = steering.stats().unwrap().passed_full;
    raw.send(&frame(SocketAddr::new(PEER, 10_000 + 8999), to, 1, flags::SYN));
    std::thread::sleep(TICK);
    assert_eq!((steering.listening().next_syn(), steering.stats().unwrap().passed_full), (None, full));
    drop(port);
    drop(connect(&network.peer, to, SOON).unwrap());
    assert_eq!(steering.stats().unwrap().passed_stale, 2, "dead");
}

#[test]
fn syns_to_a_flooded_listener_are_limited_and_what_follows_them_is_ours_at_once() {
    const HOUR: Duration = Duration::from_secs(3600);
    let network = Network::new();
    let (mut steering, mut port) = open(&network);
    let raw = within(&network.peer, || Raw::open(PEER_IF, 0));
    for (ours, peer) in [(OURS, PEER), (OURS6, PEER6)] {
        let to = SocketAddr::new(ours, 9000);
        let (flooded, other) =
            (listen(&network, &mut steering, ours, 9000), listen(&network, &mut steering, ours, 9001));
        let send = |from, to, seq, flags| raw.send(&frame(SocketAddr::new(peer, from), to, seq, flags));
        let answer = |steering: &mut Steering, from| {
            let syn = next(steering).expect("a SYN");
            let (end, within) = (SocketAddr::new(peer, from), Duration::from_secs(60));
            steering.steer_answer_to_cookie(to, end, within).unwrap();
            syn.cookie
        };
        // The service steers what follows a cookie, as long as the socket is not flooded.
        for from in [5555, 5556] {
            send(from, to, 1, flags::SYN);
            assert_eq!(answer(&mut steering, from), cookie(&flooded));
            send(from, to, 7, flags::ACK);
            assert_eq!(steered(&mut port, SOON), Some(7));
        }
        steering.listening().limit(cookie(&flooded), monotonic()).unwrap();
        send(5557, to, 1, flags::SYN);
        assert!(next(&mut steering).is_some());
        send(5557, to, 8, flags::ACK);
        assert_eq!(steered(&mut port, SOON), Some(8), "before it is answered");
        // It has had all that is taken within an hour.
        let before = steering.stats().unwrap();
        steering.listening().limit(cookie(&flooded), monotonic() + HOUR).unwrap();
        send(5558, to, 1, flags::SYN);
        send(5558, SocketAddr::new(ours, 9001), 1, flags::SYN);
        assert_eq!(next(&mut steering).map(|syn| syn.cookie), Some(cookie(&other)), "another listener has its own");
        let now = steering.stats().unwrap();
        assert_eq!((now.limited - before.limited, now.taken - before.taken), (1, 1));
        assert_eq!(
            now.passed_full + now.passed_stale,
            before.passed_full + before.passed_stale,
            "nor is it the kernel's"
        );
        // What a peer repeats has as much room again, for as long as this.
        let (room, tick) = (Duration::from_millis(550), Duration::from_millis(450));
        let mut comes = |from, ahead| {
            let (before, since) = (steering.stats().unwrap(), Instant::now());
            steering.listening().limit(cookie(&flooded), monotonic() + ahead).unwrap();
            send(from, to, 1, flags::SYN);
            until("the SYN has come", || {
                let now = steering.stats().unwrap();
                now.limited + now.taken > before.limited + before.taken
            });
            (steering.stats().unwrap().taken > before.taken, since.elapsed())
        };
        assert!(!comes(5559, HOUR).0);
        std::thread::sleep(tick);
        let (new, took) = comes(5560, room);
        assert!(!new || took > Duration::from_millis(240), "a new one waits");
        assert!(comes(5559, room).0, "it is repeated");
        assert!(!comes(5559, HOUR).0, "but not without end");
        while steering.listening().next_syn().is_some() {}
        // One that has ended is not limited, and one that begins anew is not.
        steering.listening().take(cookie(&flooded), true).unwrap();
        send(5558, to, 1, flags::SYN);
        assert!(next(&mut steering).is_some());
        steering.listening().take(cookie(&flooded), false).unwrap();
        assert!(steering.listening().limit(cookie(&flooded), monotonic()).is_err());
    }
}

/// The service stands still. What it has taken before, it must not answer later: the peer is connected by then.
#[test]
fn a_syn_whose_repetition_the_kernel_has_answered_is_not_taken_any_more() {
    let network = Network::new();
    let (mut steering, _port) = open(&network);
    let raw = within(&network.peer, || Raw::open(PEER_IF, 0));
    for (ours, peer) in [(OURS, PEER), (OURS6, PEER6)] {
        let to = SocketAddr::new(ours, 9000);
        let _listener = listen(&network, &mut steering, ours, 9000);
        steering.listening().beat();
        let taken = steering.stats().unwrap().taken;
        for port in [5555, 5556] {
            raw.send(&frame(SocketAddr::new(peer, port), to, 1, flags::SYN));
        }
        until("both are taken", || steering.stats().unwrap().taken == taken + 2);
        std::thread::sleep(Duration::from_millis(3100));
        let stale = steering.stats().unwrap().passed_stale;
        raw.send(&frame(SocketAddr::new(peer, 5555), to, 1, flags::SYN));
        until("the kernel has it", || steering.stats().unwrap().passed_stale == stale + 1);
        let left = steering.listening().next_syn().map(|(_, syn)| parse(&syn.frame(None)).unwrap().source_port);
        assert_eq!((left, steering.listening().next_syn()), (Some(5556), None));
    }
}

#[test]
fn a_syn_that_the_stack_leaves_is_the_kernels_when_it_is_repeated() {
    let network = Network::new();
    let (mut steering, _port) = open(&network);
    let raw = within(&network.peer, || Raw::open(PEER_IF, 0));
    for (ours, peer) in [(OURS, PEER), (OURS6, PEER6)] {
        let (to, from) = (SocketAddr::new(ours, 9000), SocketAddr::new(peer, 5555));
        let _listener = listen(&network, &mut steering, ours, 9000);
        let taken = steering.stats().unwrap().taken;
        steering.listening().beat();
        raw.send(&frame(from, to, 1, flags::SYN));
        assert!(next(&mut steering).is_some());
        steering.listening().leave(to, from).unwrap();
        raw.send(&frame(from, to, 1, flags::SYN));
        raw.send(&frame(SocketAddr::new(peer, 5556), to, 1, flags::SYN));
        let other = next(&mut steering).map(|syn| parse(&syn.frame(None)).unwrap().source_port);
        assert_eq!((other, steering.stats().unwrap().taken), (Some(5556), taken + 2));
    }
}

/// The frames of such a connection would come and go under other addresses than the kernel knows.
#[test]
fn syns_that_the_kernel_has_translated_are_the_kernels() {
    let network = Network::new();
    let (mut steering, _port) = open(&network);
    let _listener = listen(&network, &mut steering, OURS, 9000);
    let rules = "add table ip t; add chain ip t in { type nat hook prerouting priority -100; }; \
                 add rule ip t in tcp dport 9002 redirect to :9000";
    let done = Command::new("ip").args(["netns", "exec", &network.ours, "nft", rules]).status().unwrap();
    assert!(done.success(), "the command `nft` runs (apt-get install nftables)");
    connect(&network.peer, SocketAddr::new(OURS, 9002), SOON).expect("the kernel accepts");
    assert_eq!(steering.listening().next_syn(), None);
    assert_eq!(connect(&network.peer, SocketAddr::new(OURS, 9000), TICK).err(), Some(ErrorKind::TimedOut));
    assert!(next(&mut steering).is_some(), "a SYN that nobody has changed");
}

#[test]
fn first_syns_of_passive_connections_are_shown_to_the_listener() {
    let network = Network::new();
    let (mut steering, mut port) = open(&network);
    let raw = within(&network.peer, || Raw::open(PEER_IF, 0));
    for (ours, peer) in [(OURS, PEER), (OURS6, PEER6)] {
        let (local, remote) = (SocketAddr::new(ours, 9000), SocketAddr::new(peer, 5555));
        let listener = listen(&network, &mut steering, ours, 9000);
        steering.steer_flow(local, remote, Some(Segments::ButFirstSyns)).unwrap();
        raw.send(&frame(remote, local, 1, flags::ACK));
        assert_eq!(steered(&mut port, SOON), Some(1));
        raw.send(&frame(remote, local, 2, flags::SYN));
        assert_eq!(next(&mut steering).unwrap().cookie, cookie(&listener));
        raw.send(&frame(remote, local, 3, flags::SYN | flags::ACK));
        assert_eq!(steered(&mut port, SOON), Some(3), "the SYN did not come here");
        raw.send(&frame(remote, local, 4, flags::SYN | flags::FIN));
        assert_eq!(steered(&mut port, SOON), Some(4));
        steering.steer_flow(local, remote, Some(Segments::All)).unwrap();
        raw.send(&frame(remote, local, 5, flags::SYN));
        assert_eq!(steered(&mut port, SOON), Some(5));
        steering.steer_flow(local, remote, None).unwrap();
        // After an answer with a cookie.
        steering.steer_half_open(local, remote, SOON).unwrap();
        raw.send(&frame(remote, local, 6, flags::SYN));
        assert_eq!(next(&mut steering).unwrap().cookie, cookie(&listener));
        raw.send(&frame(remote, local, 7, flags::ACK));
        assert_eq!(steered(&mut port, SOON), Some(7));
        steering.steer_half_open(local, remote, Duration::ZERO).unwrap();
        raw.send(&frame(remote, local, 8, flags::ACK));
        assert_eq!(steered(&mut port, TICK), None, "too late");
        assert_eq!(steering.listening().next_syn(), None);
    }
}

#[test]
fn all_tcp_of_a_vlan_without_a_device_is_ours() {
    let network = Network::new();
    let (mut steering, mut port) = open(&network);
    let raw = within(&network.peer, || Raw::open(PEER_IF, 0));
    steering.set_vlan(0, Some(7)).unwrap();
    steering.serve(0, None).unwrap();
    for (ours, peer) in [(OURS, PEER), (OURS6, PEER6)] {
        let (local, remote) = (SocketAddr::new(ours, 9000), SocketAddr::new(peer, 5555));
        raw.send(&tagged(8, &frame(remote, local, 1, flags::SYN)));
        raw.send(&frame(remote, local, 2, flags::SYN));
        for (seq, flags) in [(3, flags::SYN), (4, flags::ACK)] {
            raw.send(&tagged(7, &frame(remote, local, seq, flags)));
            assert_eq!(steered(&mut port, SOON), Some(seq));
        }
    }
    steering.serve(0, Some(1)).unwrap();
    raw.send(&tagged(7, &frame(SocketAddr::new(PEER, 5555), SocketAddr::new(OURS, 9000), 5, flags::SYN)));
    assert_eq!(steered(&mut port, TICK), None);
}

/// The frame with an IEEE 802.1Q tag.
fn tagged(vlan: u8, frame: &[u8]) -> Vec<u8> {
    [&frame[..12], &[0x81, 0, 0, vlan], &frame[12..]].concat()
}

#[test]
fn syns_that_the_kernel_answers_end_none_of_our_half_open_connections() {
    let network = Network::new();
    let (mut steering, mut port) = open(&network);
    let listener = within(&network.ours, || TcpListener::bind((OURS, 9000)).unwrap());
    attach(&mut steering, &listener);
    let (local, remote) = (SocketAddr::new(OURS, 9000), SocketAddr::new(PEER, 5555));
    steering.steer_half_open(local, remote, SOON).unwrap();
    let raw = within(&network.peer, || Raw::open(PEER_IF, 0));
    for other in 0..40_000 {
        raw.send(&frame(SocketAddr::new(PEER, 10_000 + other), local, 1, flags::SYN));
    }
    raw.send(&frame(remote, local, 7, flags::ACK));
    assert_eq!(steered(&mut port, SOON), Some(7));
    // Its own SYN, if the kernel answers that.
    raw.send(&frame(remote, local, 8, flags::SYN));
    raw.send(&frame(remote, local, 9, flags::ACK));
    assert_eq!(steered(&mut port, TICK), None);
}

#[test]
fn peers_whom_a_rule_refuses_are_dropped_and_counted() {
    let network = Network::new();
    let (mut steering, port) = open(&network);
    let listener = within(&network.ours, || TcpListener::bind((Ipv6Addr::UNSPECIFIED, 9000)).unwrap());
    attach(&mut steering, &listener);
    let name = cookie(&listener);
    // Each SYN counts, also one that the kernel sends again while this machine is busy.
    let again = Cell::new(0);
    let is_accepted = |namespace: &str, to: IpAddr, expected: bool| {
        let (connected, syns_again) = attempt(namespace, SocketAddr::new(to, 9000), if expected { SOON } else { TICK });
        assert_eq!(connected, expected, "to {to}");
        again.set(again.get() + syns_again);
    };
    let (loopback, loopback6): (IpAddr, IpAddr) = (Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into());
    let all = [loopback, loopback6, OURS, OURS6];
    // The client has the address to which it connects.
    let set = |steering: &mut Steering, rules: &[Rule], refused: &[IpAddr]| {
        steering.listening().peers().set(name, rules).unwrap();
        for to in all {
            is_accepted(&network.ours, to, !refused.contains(&to));
        }
    };
    let one = |addr: IpAddr| Some((addr, if addr.is_ipv4() { 32 } else { 128 }));
    let net = |text: &str, bits| Some((text.parse().unwrap(), bits));
    let refuse = |remote, local| Rule::new(remote, local, Outcome::Refuse(7));
    let go_on = |remote, next| Rule::new(remote, None, Outcome::GoOn(next));
    set(&mut steering, &[], &[]);
    set(&mut steering, &[refuse(one(loopback), None)], &[loopback]);
    assert_eq!(
        (steering.listening().peers().counted(), steering.listening().peers().refused_at(name)),
        (vec![(7, 1 + again.get())], 1 + again.take())
    );
    set(&mut steering, &[refuse(one(loopback6), one(loopback6))], &[loopback6]);
    set(&mut steering, &[refuse(one(loopback6), one(loopback))], &[]);
    set(&mut steering, &[refuse(net("127.0.0.0", 8), None), refuse(None, one(OURS))], &[loopback, OURS]);
    set(&mut steering, &[refuse(net("0.0.0.0", 0), None)], &[loopback, OURS]);
    set(&mut steering, &[refuse(net("::", 0), None)], &[loopback6, OURS6]);
    set(&mut steering, &[refuse(None, None)], &all);
    let passing = [go_on(one(OURS), 2), refuse(None, None), refuse(net("::", 0), None)];
    set(&mut steering, &passing, &[loopback, loopback6, OURS6]);
    assert_eq!(steering.listening().peers().counted(), [(7, 14 + again.take())]);
    let most = vec![refuse(one(PEER), None); MAX_RULES];
    set(&mut steering, &most, &[]);
    let too_many = steering.listening().peers().set(name, &vec![refuse(None, None); MAX_RULES + 1]);
    assert_eq!(too_many.unwrap_err().kind(), ErrorKind::ArgumentListTooLong);
    // The last rule is asked, too.
    let mut last = vec![go_on(one(PEER6), 1); MAX_RULES];
    last[MAX_RULES - 1] = refuse(one(OURS), None);
    set(&mut steering, &last, &[OURS]);
    // Those who come over the interface are taken, whatever the rules say, while the service lives.
    set(&mut steering, &most, &[]);
    steering.listening().take(name, true).unwrap();
    assert!(!attempt(&network.peer, SocketAddr::new(OURS, 9000), TICK).0);
    assert_eq!(next(&mut steering).map(|syn| syn.cookie), Some(name));
    while steering.listening().next_syn().is_some() {}
    drop(port);
    is_accepted(&network.peer, OURS, false);
    is_accepted(&network.peer, OURS6, true);
    assert_eq!(steering.listening().peers().counted(), [(7, 2 + again.take())]);
    steering.listening().peers().set(name, &[]).unwrap();
    is_accepted(&network.peer, OURS, true);
    assert_eq!((steering.listening().peers().refused_at(name), steering.listening().peers().counted()), (0, vec![]));
}

#[test]
fn the_filter_alone_takes_nothing_and_refuses_whom_it_should() {
    let network = Network::new();
    let listener = within(&network.ours, || TcpListener::bind((OURS, 9000)).unwrap());
    let mut listening = Listening::alone().unwrap();
    attach_filter(&listening, &listener);
    listening.take(cookie(&listener), true).unwrap();
    let to = SocketAddr::new(OURS, 9000);
    connect(&network.peer, to, SOON).unwrap();
    listening.peers().set(cookie(&listener), &[Rule::new(Some((PEER, 24)), None, Outcome::Refuse(1))]).unwrap();
    assert_eq!(connect(&network.peer, to, TICK).err(), Some(ErrorKind::TimedOut));
    assert_eq!((listening.peers().counted(), listening.next_syn()), (vec![(1, 1)], None));
}
