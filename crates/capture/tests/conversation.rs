//! Frames that are made for a connection without any.
#![allow(clippy::unwrap_used)]

use std::net::SocketAddr;
use towpath_capture::conversation::{Conversation, MOST_BYTES};
use towpath_wire::{RxChecksum, checksum_ok, flags, parse};

fn ends(six: bool) -> [SocketAddr; 2] {
    let text = if six { ["[::1]:4000", "[::1]:80"] } else { ["127.0.0.1:4000", "127.0.0.1:80"] };
    text.map(|end| end.parse().unwrap())
}

/// Source port, flags, sequence and acknowledgement number, payload.
fn seen(frame: &[u8]) -> (u16, u8, u32, u32, Vec<u8>) {
    let segment = parse(frame).unwrap();
    assert!(checksum_ok(frame, &segment, RxChecksum::Unknown));
    let payload = &frame[segment.payload_offset as usize..][..segment.payload_len as usize];
    (segment.source_port, segment.flags, segment.seq, segment.ack, payload.to_vec())
}

#[test]
fn a_connection_from_its_syn_to_its_fins() {
    for six in [false, true] {
        let mut frames = Vec::new();
        let mut show = |frame: &[u8]| frames.push(seen(frame));
        let mut talk = Conversation::opens(ends(six), &mut show);
        talk.data(0, b"question", &mut show);
        talk.data(1, b"answer", &mut show);
        talk.ends(0, false, &mut show);
        talk.ends(0, false, &mut show);
        talk.ends(1, false, &mut show);
        talk.ends(1, true, &mut show);
        talk.ends(1, false, &mut show);
        let none = Vec::new;
        let (ack, both) = (flags::ACK, flags::ACK | flags::PSH);
        let expected = [
            (4000, flags::SYN, 0, 0, none()),
            (80, flags::SYN | ack, 0, 1, none()),
            (4000, ack, 1, 1, none()),
            (4000, both, 1, 1, b"question".to_vec()),
            (80, both, 1, 9, b"answer".to_vec()),
            (4000, ack | flags::FIN, 9, 7, none()),
            (80, ack | flags::FIN, 7, 10, none()),
            (80, ack | flags::RST, 8, 10, none()),
        ];
        assert_eq!(frames, expected);
    }
}

#[test]
fn many_bytes_are_cut_and_lost_ones_leave_a_hole() {
    let mut frames = Vec::new();
    let mut show = |frame: &[u8]| frames.push(seen(frame));
    let mut talk = Conversation::open(ends(true), [u32::MAX, 0]);
    talk.data(0, &vec![1; MOST_BYTES + 1], &mut show);
    talk.lost(0, 100, |like, count| assert_eq!((seen(like).2, count), (MOST_BYTES as u32 + 1, 1)));
    talk.data(0, b"x", &mut show);
    let places: Vec<(u32, usize)> = frames.iter().map(|frame| (frame.2, frame.4.len())).collect();
    assert_eq!(places, [(0, MOST_BYTES), (MOST_BYTES as u32, 1), (MOST_BYTES as u32 + 101, 1)]);
}
