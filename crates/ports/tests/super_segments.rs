//! Super-segments between two network namespaces: the peer's come whole where the program runs in generic mode, and by
//! packet sockets. Needs root.
#![allow(clippy::unwrap_used, dead_code)]

mod network;

use network::*;
use std::net::SocketAddr;
use std::sync::atomic::AtomicU8;
use std::time::Duration;
use towpath_ports::attachment::{AttachConfig, Attachment};
use towpath_ports::packet_port::of_queue;
use towpath_ports::steering::{Segments, SteerMode, Steering};
use towpath_ports::xsk::{XskConfig, XskPort};
use towpath_ports::{Port, TxOffload};
use towpath_wire::{emit, parse};

/// How long to wait for a frame. It comes at once, unless the machine is busy.
const SOON: Duration = Duration::from_secs(30);
/// The ports of the connection: the peer's and ours.
const FROM: u16 = 5000;
const TO: u16 = 9000;

/// A super-segment of `len` bytes of payload from the peer's port, which the peer's kernel may cut.
fn send_super(port: &mut XskPort, seq: u32, len: usize) {
    let header = peer_header(FROM, SocketAddr::new(OURS, TO), seq);
    let buffer = port.reserve_super().unwrap();
    let made = emit::make(&header, len, buffer).unwrap();
    for (at, byte) in buffer[made.payload_offset..made.end].iter_mut().enumerate() {
        *byte = (at % 251) as u8;
    }
    let offload = TxOffload { gso_bytes: 1448, ..made.partial_checksum(&mut buffer[..made.end]) };
    port.commit(made.end, offload);
    port.flush();
}

#[test]
fn payload_is_sent_from_where_it_lies() {
    let network = Network::new();
    let config = AttachConfig { mode: Some(SteerMode::Packet), ..AttachConfig::default() };
    let attachment = within(&network.ours, || Attachment::open(OUR_IF, config, 1).unwrap());
    let (mut steering, mut sockets) = Steering::over(OUR_IF, attachment.parts().unwrap()).unwrap();
    let mut port = of_queue(sockets.remove(0)).unwrap();
    let (to, from) = (SocketAddr::new(OURS, TO), SocketAddr::new(PEER, FROM));
    steering.steer_flow(to, from, Some(Segments::All)).unwrap();
    let mut peer = within(&network.peer, || XskPort::open(PEER_IF, 0, XskConfig::default()).unwrap());
    let payload: Vec<AtomicU8> = (0..30_000_u32).map(|at| AtomicU8::new((at % 251) as u8)).collect();
    // In pieces of all lengths, also empty ones.
    for (seq, cuts) in [(1, [30_000, 30_000]), (2, [7, 7]), (3, [1, 29_999]), (4, [0, 12_345])] {
        let (one, rest) = payload.split_at(cuts[0]);
        let (two, three) = rest.split_at(cuts[1] - cuts[0]);
        let header = peer_header(FROM, SocketAddr::new(OURS, TO), seq);
        let buffer = peer.reserve_super().unwrap();
        let made = emit::make(&header, payload.len(), buffer).unwrap();
        let offload = TxOffload { gso_bytes: 1448, ..made.partial_checksum(&mut buffer[..made.payload_offset]) };
        peer.commit_gathered(made.payload_offset, [one, two, three], offload);
        let (segment, bytes) = receive(&mut *port, SOON).unwrap();
        assert_eq!((segment.seq, bytes.len()), (seq, payload.len()));
        assert!(bytes.iter().enumerate().all(|(at, byte)| *byte == (at % 251) as u8));
    }
    assert_eq!(peer.counters().tx_dropped, 0);
}

#[test]
fn super_segments_come_whole_in_generic_mode() {
    super_segments_come_whole(SteerMode::Generic, 32);
}

#[test]
fn super_segments_come_whole_by_packet_sockets() {
    super_segments_come_whole(SteerMode::Packet, 64);
}

/// `most`: how many may be held.
fn super_segments_come_whole(mode: SteerMode, most: usize) {
    let network = Network::new();
    let config = AttachConfig { mode: Some(mode), ..AttachConfig::default() };
    let attachment = within(&network.ours, || Attachment::open(OUR_IF, config, 1).unwrap());
    let (mut steering, mut sockets) = Steering::over(OUR_IF, attachment.parts().unwrap()).unwrap();
    let mut port = of_queue(sockets.remove(0)).unwrap();
    assert_eq!(steering.mode(), mode);
    let (to, from) = (SocketAddr::new(OURS, TO), SocketAddr::new(PEER, FROM));
    steering.steer_flow(to, from, Some(Segments::All)).unwrap();
    let mut peer = within(&network.peer, || XskPort::open(PEER_IF, 0, XskConfig::default()).unwrap());
    // More in all than there are buffers for, and small ones between them.
    for (seq, len) in [(1, 3000), (2, 65_000), (3, 100), (4, 64_000)].into_iter().cycle().take(80) {
        send_super(&mut peer, seq, len);
        let (segment, payload) = receive(&mut *port, SOON).unwrap();
        assert_eq!((segment.seq, payload.len()), (seq, len));
        assert!(payload.iter().enumerate().all(|(at, byte)| *byte == (at % 251) as u8));
    }
    // Those that are not taken away at once wait: in the buffers, and then in the ring.
    (1..=90).for_each(|seq| send_super(&mut peer, seq, 10_000));
    let (mut frames, mut seqs) = (Vec::new(), Vec::new());
    while seqs.len() < 90 {
        assert!(wait(&mut *port, SOON));
        port.receive(&mut frames, 100);
        assert!(!frames.is_empty() && frames.len() <= most, "{} held", frames.len());
        seqs.extend(frames.iter().map(|frame| parse(port.bytes(frame)).unwrap().seq));
        port.release(&frames);
        frames.clear();
    }
    assert_eq!(seqs, (1..=90).collect::<Vec<u32>>());
    assert_eq!(port.counters().rx_dropped, 0);
}
