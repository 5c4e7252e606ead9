//! Steering of IPv6, of one VLAN, and of ICMP errors, between two network namespaces. Needs root.
#![allow(clippy::unwrap_used, missing_docs, dead_code)]

mod network;

use network::*;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use towpath_ports::Port;
use towpath_ports::steering::{Segments, Steering};
use towpath_ports::xsk::{XskConfig, XskPort};
use towpath_wire::{Header, Options, emit, fill_checksum, flags, parse};

const SOON: Duration = Duration::from_secs(30);
const TICK: Duration = Duration::from_millis(100);

fn open(network: &Network) -> (Steering, XskPort) {
    within(&network.ours, || {
        let mut steering = Steering::attach(OUR_IF).unwrap();
        let port = XskPort::open(OUR_IF, 0, XskConfig::default()).unwrap();
        steering.bind(0, &port).unwrap();
        (steering, port)
    })
}

/// The next frame that is steered to us.
fn next(port: &mut XskPort, time: Duration) -> Option<Vec<u8>> {
    let end = Instant::now() + time;
    let mut frames = Vec::new();
    loop {
        port.receive(&mut frames, 1);
        if !frames.is_empty() {
            break;
        }
        if Instant::now() > end {
            return None;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let bytes = port.bytes(&frames[0]).to_vec();
    port.release(&frames);
    Some(bytes)
}

/// Its sequence number.
fn seq(port: &mut XskPort) -> u32 {
    parse(&next(port, SOON).expect("a frame")).unwrap().seq
}

fn frame(vlan: Option<u16>, from: SocketAddr, to: SocketAddr, seq: u32) -> Vec<u8> {
    let header = Header {
        source_mac: PEER_MAC,
        destination_mac: OUR_MAC,
        vlan,
        source: from.ip(),
        destination: to.ip(),
        source_port: from.port(),
        destination_port: to.port(),
        seq,
        ack: 0,
        flags: flags::SYN,
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

#[test]
fn ipv6_flows_are_steered_exactly_and_extension_headers_are_the_kernels() {
    let network = Network::new();
    let (mut steering, mut port) = open(&network);
    let (local, remote) = (SocketAddr::new(OURS6, 40_000), SocketAddr::new(PEER6, 5555));
    steering.steer_flow(local, remote, Some(Segments::All)).unwrap();
    let raw = within(&network.peer, || Raw::open(PEER_IF, 0));
    let other = |of: SocketAddr| SocketAddr::new(of.ip(), of.port() + 1);
    raw.send(&frame(None, other(remote), local, 1));
    raw.send(&frame(None, remote, other(local), 2));
    raw.send(&frame(None, remote, SocketAddr::new(OURS6_TOO, local.port()), 3));
    let plain = frame(None, remote, local, 4);
    // A fragment header (44) and destination options (60) before TCP.
    for kind in [44, 60] {
        let mut extended = [&plain[..54], &[6, 0, 1, 4, 0, 0, 0, 0], &plain[54..]].concat();
        extended[20] = kind;
        extended[19] += 8;
        raw.send(&extended);
    }
    raw.send(&plain[..56]); // ports cut off
    raw.send(&frame(None, remote, local, 5));
    assert_eq!(seq(&mut port), 5, "nothing else came before");
    steering.steer_flow(local, remote, None).unwrap();
    raw.send(&frame(None, remote, local, 6));
    assert!(next(&mut port, TICK).is_none());
}

#[test]
fn frames_of_one_vlan_are_steered() {
    let network = Network::new();
    let (mut steering, mut port) = open(&network);
    let raw = within(&network.peer, || Raw::open(PEER_IF, 0));
    for (local, remote) in [(OURS, PEER), (OURS6, PEER6)] {
        let (local, remote) = (SocketAddr::new(local, 40_000), SocketAddr::new(remote, 5555));
        steering.steer_flow(local, remote, Some(Segments::All)).unwrap();
        steering.set_vlan(0, None).unwrap();
        raw.send(&frame(Some(7), remote, local, 1));
        raw.send(&frame(None, remote, local, 2));
        assert_eq!(seq(&mut port), 2, "tagged frames are not ours");
        steering.set_vlan(0, Some(7)).unwrap();
        steering.set_vlan(1, Some(8)).unwrap();
        raw.send(&frame(None, remote, local, 3));
        raw.send(&frame(Some(8), remote, local, 4));
        raw.send(&frame(Some(7), remote, local, 5));
        let came = parse(&next(&mut port, SOON).unwrap()).unwrap();
        assert_eq!(
            (came.seq, came.vlan),
            (5, Some(7)),
            "frames of other VLANs are not ours, also of another interface's"
        );
    }
}

/// An ICMP or ICMPv6 error of this type about `quoted`, a frame.
fn error(kind: u8, quoted: &[u8]) -> Vec<u8> {
    let v4 = quoted[12..14] == [8, 0];
    let (header, protocol) = if v4 { (34, 1) } else { (54, 58) };
    let mut error = quoted[..header].to_vec();
    error[if v4 { 23 } else { 20 }] = protocol;
    let body = &quoted[14..];
    let len = 8 + body.len() + if v4 { 20 } else { 0 };
    error[if v4 { 16 } else { 18 }..][..2].copy_from_slice(&(len as u16).to_be_bytes());
    error.extend([kind, 0, 0, 0, 0, 0, 0, 0]);
    error.extend(body);
    error
}

#[test]
fn icmp_errors_about_steered_connections_are_ours() {
    let network = Network::new();
    let (mut steering, mut port) = open(&network);
    let raw = within(&network.peer, || Raw::open(PEER_IF, 0));
    for (local, remote, ours, not_ours) in [(OURS, PEER, [3, 11, 12], [0, 8]), (OURS6, PEER6, [1, 2, 4], [128, 136])] {
        let (local, remote) = (SocketAddr::new(local, 40_000), SocketAddr::new(remote, 5555));
        steering.steer_flow(local, remote, Some(Segments::All)).unwrap();
        let sent = frame(None, local, remote, 1);
        let other = frame(None, SocketAddr::new(local.ip(), 40_001), remote, 1);
        for kind in not_ours {
            raw.send(&error(kind, &sent));
        }
        raw.send(&error(ours[0], &other));
        for kind in ours {
            raw.send(&error(kind, &sent));
            let came = next(&mut port, SOON).expect("an error");
            assert_eq!(came[if local.is_ipv4() { 34 } else { 54 }], kind);
        }
        assert!(next(&mut port, TICK).is_none());
    }
}
