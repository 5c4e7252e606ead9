//! Packet sockets with steering between two network namespaces, by the rules that AF_XDP has. Needs root.
#![allow(clippy::unwrap_used, dead_code)]

mod network;

use network::rules::{self, *};
use network::*;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use towpath_ports::Port;
use towpath_ports::attachment::{AttachConfig, AttachError, Attachment};
use towpath_ports::packet_port::of_queue;
use towpath_ports::steering::{Segments, SteerError, SteerMode, Steering};
use towpath_wire::checksum;

const PACKETS: AttachConfig = AttachConfig { tagged: false, mode: Some(SteerMode::Packet), own: false };

/// A namespace's interface with the program of packet sockets, and a port on queue 0.
fn open(network: &Network) -> (Steering, Box<dyn Port>) {
    let attachment = within(&network.ours, || Attachment::open(OUR_IF, PACKETS, 1).unwrap());
    let (steering, port) = over(&attachment);
    assert_eq!(steering.mode(), SteerMode::Packet);
    (steering.with(attachment), port)
}

/// Does the kernel say that a tcx program is on our interface?
fn has_program(network: &Network) -> bool {
    within(&network.ours, || match Attachment::open(OUR_IF, PACKETS, 0) {
        Ok(_) => false,
        Err(AttachError::Steer(SteerError::Occupied { program, holder, is_ours: true, .. })) => {
            assert!(program.starts_with("towpath_drop"), "{program}");
            assert_eq!(holder, Some(std::process::id()));
            true
        }
        Err(error) => panic!("{error}"),
    })
}

#[test]
fn all_but_steered_flows_is_the_kernels() {
    rules::all_but_steered_flows_is_the_kernels(open);
}

#[test]
fn flows_are_steered_exactly() {
    rules::flows_are_steered_exactly(open);
}

#[test]
fn a_kernel_connection_is_served_from_here() {
    rules::a_kernel_connection_is_served_from_here(open);
}

#[test]
fn a_successor_has_the_same_link_and_sockets_and_nothing_is_reset_meanwhile() {
    a_successor_has_the_same_link_and_sockets(PACKETS, has_program);
}

#[test]
fn the_peers_offloads_stay() {
    let network = Network::new();
    assert!(within(&network.peer, || tso(PEER_IF)));
    let (steering, port) = open(&network);
    assert!(within(&network.peer, || tso(PEER_IF)));
    drop((steering, port));
    assert!(!has_program(&network), "and nothing remains");
}

/// An ICMP error from the peer about a segment of ours.
fn error_about(local: SocketAddr, remote: SocketAddr) -> Vec<u8> {
    let (SocketAddr::V4(local), SocketAddr::V4(remote)) = (local, remote) else { panic!("IPv4 only") };
    let ip = |protocol: u8, bytes: u16, from: [u8; 4], to: [u8; 4]| {
        let mut header = [0x45, 0, 0, 0, 0, 0, 0, 0, 64, protocol, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        header[2..4].copy_from_slice(&bytes.to_be_bytes());
        header[12..16].copy_from_slice(&from);
        header[16..20].copy_from_slice(&to);
        let sum = checksum::finish(checksum::add(0, &header));
        header[10..12].copy_from_slice(&sum);
        header
    };
    let quoted = ip(6, 40, local.ip().octets(), remote.ip().octets());
    let ports = [local.port().to_be_bytes(), remote.port().to_be_bytes()].concat();
    let mut icmp = [&[3, 3, 0, 0, 0, 0, 0, 0][..], &quoted, &ports, &[0; 4]].concat();
    let sum = checksum::finish(checksum::add(0, &icmp));
    icmp[2..4].copy_from_slice(&sum);
    let outer = ip(1, 20 + icmp.len() as u16, remote.ip().octets(), local.ip().octets());
    [&OUR_MAC[..], &PEER_MAC, &[8, 0], &outer, &icmp].concat()
}

#[test]
fn errors_about_our_segments_are_ours() {
    let network = Network::new();
    let (mut steering, mut port) = open(&network);
    let (local, remote) = (SocketAddr::new(OURS, 9000), SocketAddr::new(PEER, FROM));
    steering.steer_flow(local, remote, Some(Segments::All)).unwrap();
    let raw = within(&network.peer, || Raw::open(PEER_IF, 0));
    raw.send(&error_about(SocketAddr::new(OURS, 9001), remote));
    let ours = error_about(local, remote);
    raw.send(&ours);
    assert!(wait(&mut *port, SOON));
    let mut frames = Vec::new();
    port.receive(&mut frames, 8);
    assert_eq!(frames.iter().map(|frame| port.bytes(frame)).collect::<Vec<_>>(), [&ours[..]]);
    port.release(&frames);
}

#[test]
fn first_syns_of_accepted_connections_pass_to_the_kernel() {
    let network = Network::new();
    let (mut steering, mut port) = open(&network);
    let (local, remote) = (SocketAddr::new(OURS, 9000), SocketAddr::new(PEER, FROM));
    steering.steer_flow(local, remote, Some(Segments::ButFirstSyns)).unwrap();
    assert!(refused(&network, OURS, 9000), "the kernel has no listener");
    assert!(receive(&mut *port, TICK).is_none());
}

#[test]
fn each_connection_has_one_of_the_sockets() {
    let network = Network::new();
    let channels = ["netns", "exec", &network.ours, "ethtool", "-L", OUR_IF, "rx", "2", "tx", "2"];
    assert!(std::process::Command::new("ip").args(channels).status().unwrap().success(), "ethtool");
    let attachment = within(&network.ours, || Attachment::open(OUR_IF, PACKETS, 2).unwrap());
    let (mut steering, sockets) = Steering::over(OUR_IF, attachment.parts().unwrap()).unwrap();
    let mut ports: Vec<Box<dyn Port>> = sockets.into_iter().map(|socket| of_queue(socket).unwrap()).collect();
    let raw = within(&network.peer, || Raw::open(PEER_IF, 0));
    let local = SocketAddr::new(OURS, 9000);
    let mut of_each = [0, 0];
    for from in 5000..5100 {
        steering.steer_flow(local, SocketAddr::new(PEER, from), Some(Segments::All)).unwrap();
        (0..3).for_each(|seq| raw.send(&peer_frame(from, local, seq)));
        let deadline = Instant::now() + SOON;
        let mut counts = [0, 0];
        while counts[0] + counts[1] < 3 {
            assert!(Instant::now() < deadline, "{counts:?}");
            for (port, count) in ports.iter_mut().zip(&mut counts) {
                while let Some((segment, _)) = receive(&mut **port, Duration::ZERO) {
                    assert_eq!((segment.source_port, segment.seq), (from, *count), "in order");
                    *count += 1;
                }
            }
        }
        assert!(counts == [3, 0] || counts == [0, 3], "{counts:?}");
        of_each.iter_mut().zip(counts).for_each(|(all, count)| *all += count);
    }
    assert!(of_each.iter().all(|count| *count > 0), "both have some: {of_each:?}");
}
