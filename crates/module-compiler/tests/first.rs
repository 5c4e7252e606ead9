//! `first.bpf.c` as the filter of a capture: compiled, interpreted and in the kernel, each with maps of its own.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Three, may_verify, object_file_with};
use std::net::{IpAddr, SocketAddr};
use towpath_modules::{Action, Object};
use towpath_wire::{Header, Options, emit, flags};

/// A segment from one end to the other.
fn segment(from: SocketAddr, to: SocketAddr, flags: u8) -> Vec<u8> {
    let header = Header {
        source_mac: [2; 6],
        destination_mac: [4; 6],
        vlan: None,
        source: from.ip(),
        destination: to.ip(),
        source_port: from.port(),
        destination_port: to.port(),
        seq: 1,
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
    frame
}

/// Of four connections, over both versions of IP, whose frames go both ways in turn: so many of each are kept, the first ones.
#[track_caller]
fn keeps(options: &[&str], most: usize) {
    let Some(file) = object_file_with("bpf/modules/first.bpf.c", options).filter(|_| may_verify()) else { return };
    let mut three = Three::new(&Object::parse(&file).unwrap(), "first").unwrap();
    let mut passes = |frame: &[u8]| match three.agree("first", frame) {
        Action::Pass => true,
        Action::Drop => false,
        other => panic!("{other:?}"),
    };
    let servers: [IpAddr; 2] = ["10.0.0.9", "fd00::9"].map(|ip| ip.parse().unwrap());
    let clients: [IpAddr; 2] = ["10.0.0.1", "fd00::1"].map(|ip| ip.parse().unwrap());
    // The second time they have the ports of those before.
    for _ in 0..2 {
        for number in 0..2 * most + 2 {
            for (server, client) in servers.into_iter().zip(clients) {
                for port in [4000, 4001] {
                    let (client, server) = (SocketAddr::new(client, port), SocketAddr::new(server, 80));
                    let frame = match number {
                        0 => segment(client, server, flags::SYN),
                        1 => segment(server, client, flags::SYN | flags::ACK),
                        _ if number % 2 == 0 => segment(client, server, flags::ACK),
                        _ => segment(server, client, flags::ACK),
                    };
                    assert_eq!(passes(&frame), number < most, "frame {number} of {client}");
                }
            }
        }
    }
    let mut udp = segment(SocketAddr::new(clients[0], 1), SocketAddr::new(servers[0], 2), flags::ACK);
    udp[23] = 17;
    assert!(!passes(&udp) && !passes(&udp[..20]) && !passes(&udp[..50]), "no segment is a connection's");
}

#[test]
fn the_first_frames_of_each_connection_are_kept_both_ways_together() {
    keeps(&[], 10);
}

#[test]
fn how_many_are_kept_is_said_when_it_is_compiled() {
    keeps(&["-DFRAMES=3"], 3);
}
