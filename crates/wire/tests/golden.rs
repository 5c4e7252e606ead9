//! Frames written by hand, byte by byte, parsed and emitted; and every kind of malformed frame.
#![allow(clippy::unwrap_used)]

use std::net::{IpAddr, Ipv4Addr};
use towpath_wire::{
    Header, Options, ParseError, RxChecksum, Timestamps, checksum, checksum_ok, emit, fill_checksum, flags, parse,
    partial_checksum,
};

/// SYN from 10.9.0.1:40000 to 10.9.0.2:80: MSS 1460, SACK-permitted, timestamps, window scale 7.
/// The checksums were computed by a separate program.
const SYN: &[u8] = &[
    0x02, 0, 0, 0, 0, 0x02, 0x02, 0, 0, 0, 0, 0x01, 0x08, 0x00, // Ethernet
    0x45, 0x00, 0x00, 0x3c, 0x12, 0x34, 0x40, 0x00, 0x40, 0x06, 0x14, 0x74, 10, 9, 0, 1, 10, 9, 0, 2, // IPv4
    0x9c, 0x40, 0x00, 0x50, 0x11, 0x22, 0x33, 0x44, 0, 0, 0, 0, 0xa0, 0x02, 0xfa, 0xf0, 0x48, 0x03, 0, 0, // TCP
    2, 4, 0x05, 0xb4, 4, 2, 8, 10, 0, 0, 0x10, 0x01, 0, 0, 0, 0, 1, 3, 3, 7, // options
];

/// Data "hello" with timestamps, in the other direction, CE-marked; one byte of Ethernet padding follows.
const DATA: &[u8] = &[
    0x02, 0, 0, 0, 0, 0x01, 0x02, 0, 0, 0, 0, 0x02, 0x08, 0x00, // Ethernet
    0x45, 0x03, 0x00, 0x39, 0x00, 0x01, 0x40, 0x00, 0x40, 0x06, 0x26, 0xa7, 10, 9, 0, 2, 10, 9, 0, 1, // IPv4
    0x00, 0x50, 0x9c, 0x40, 0xaa, 0xbb, 0xcc, 0xdd, 0x11, 0x22, 0x33, 0x45, 0x80, 0x18, 0x01, 0x00, 0x95, 0x35, 0,
    0, // TCP
    1, 1, 8, 10, 0, 0, 0x20, 0x02, 0, 0, 0x10, 0x01, // options
    b'h', b'e', b'l', b'l', b'o', // payload
    0xee, // padding
];

fn syn_header() -> Header {
    Header {
        vlan: None,
        source_mac: [2, 0, 0, 0, 0, 1],
        destination_mac: [2, 0, 0, 0, 0, 2],
        source: IpAddr::V4(Ipv4Addr::new(10, 9, 0, 1)),
        destination: IpAddr::V4(Ipv4Addr::new(10, 9, 0, 2)),
        source_port: 40_000,
        destination_port: 80,
        seq: 0x1122_3344,
        ack: 0,
        flags: flags::SYN,
        window: 64_240,
        ident: 0x1234,
        tos: 0,
        ttl: towpath_wire::TTL,
        urgent: 0,
        options: Options {
            mss: Some(1460),
            window_scale: Some(7),
            sack_permitted: true,
            timestamps: Some(Timestamps { value: 0x1001, echo: 0 }),
            ..Options::default()
        },
    }
}

/// Sets bytes and then makes the IPv4 header checksum right again.
fn with(frame: &[u8], changes: &[(usize, u8)]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    for &(at, byte) in changes {
        frame[at] = byte;
    }
    let header = 14..14 + usize::from(frame[14] & 0xf) * 4;
    frame[24..26].fill(0);
    let sum = checksum::finish(checksum::add(0, &frame[header]));
    frame[24..26].copy_from_slice(&sum);
    frame
}

#[test]
fn a_syn_is_read() {
    let s = parse(SYN).unwrap();
    let h = syn_header();
    assert_eq!((s.source_mac, s.destination_mac), (h.source_mac, h.destination_mac));
    assert_eq!((s.source, s.destination), (h.source, h.destination));
    assert_eq!((s.source_port, s.destination_port), (40_000, 80));
    assert_eq!((s.seq, s.ack, s.flags, s.window, s.urgent, s.tos), (0x1122_3344, 0, flags::SYN, 64_240, 0, 0));
    assert_eq!((s.tcp_offset, s.payload_offset, s.payload_len), (34, 74, 0));
    assert_eq!(s.options, h.options);
    assert!(checksum_ok(SYN, &s, RxChecksum::Unknown));
}

/// RFC 9293 MUST-2, MUST-68, MUST-69.
#[test]
fn a_syn_is_made() {
    let mut out = [0xffu8; 100];
    assert_eq!(emit(&syn_header(), 0, &mut out), Some(74));
    fill_checksum(&mut out);
    assert_eq!(&out[..74], SYN);
    assert!(out[74..].iter().all(|&b| b == 0xff), "nothing is written after the frame");
}

#[test]
fn data_is_read_and_padding_is_not() {
    let s = parse(DATA).unwrap();
    assert_eq!(&DATA[s.payload_offset as usize..][..s.payload_len as usize], b"hello");
    assert_eq!(s.flags, flags::ACK | flags::PSH);
    assert_eq!(s.tos & 3, 3);
    assert_eq!(s.options.timestamps, Some(Timestamps { value: 0x2002, echo: 0x1001 }));
    assert!(checksum_ok(DATA, &s, RxChecksum::Unknown), "an odd length and padding after it");
}

#[test]
fn every_truncation_is_an_error() {
    for len in 0..SYN.len() {
        assert_eq!(parse(&SYN[..len]).unwrap_err(), ParseError::Truncated, "{len} bytes");
    }
    assert_eq!(parse(&with(SYN, &[(17, 39)])).unwrap_err(), ParseError::Truncated, "19 bytes of TCP");
}

#[test]
fn other_protocols_and_fragments_are_not_tcp() {
    for (what, changes) in [
        ("IPv6", &[(12, 0x86), (13, 0xdd)][..]),
        ("ARP", &[(13, 0x06)]),
        ("VLAN", &[(12, 0x81)]),
        ("version 6", &[(14, 0x65)]),
        ("UDP", &[(23, 17)]),
        ("more fragments", &[(20, 0x20)]),
        ("a last fragment", &[(20, 0), (21, 1)]),
        ("high offset", &[(20, 0x10)]),
    ] {
        assert_eq!(parse(&with(SYN, changes)).unwrap_err(), ParseError::NotTcp, "{what}");
    }
    assert!(parse(&with(SYN, &[(20, 0)])).is_ok(), "no DF is not a fragment");
}

#[test]
fn damaged_ip_headers() {
    for at in [15, 16, 17, 18, 19, 21, 22, 24, 25, 26, 29, 30, 33] {
        for bit in 0..8 {
            let mut frame = SYN.to_vec();
            frame[at] ^= 1 << bit;
            let error = parse(&frame).unwrap_err();
            let lengths = matches!(at, 16 | 17);
            assert!(
                error == ParseError::IpChecksum
                    || lengths && matches!(error, ParseError::Truncated | ParseError::BadHeader),
                "byte {at} bit {bit}: {error:?}"
            );
        }
    }
}

#[test]
fn impossible_lengths() {
    for (what, changes) in [
        ("IHL 4", &[(14, 0x44)][..]),
        ("total length within the IP header", &[(17, 19)]),
        ("data offset 4", &[(46, 0x40)]),
        ("data offset 0", &[(46, 0x00)]),
        ("data offset beyond the packet", &[(46, 0xf0)]),
    ] {
        assert_eq!(parse(&with(SYN, changes)).unwrap_err(), ParseError::BadHeader, "{what}");
    }
}

/// RFC 9293 MUST-7.
#[test]
fn a_segment_with_an_impossible_option_keeps_the_options_before_it() {
    let none = Options::default();
    let all_but_the_last = Options { window_scale: None, ..syn_header().options };
    for (what, change, kept) in
        [("length 0", (55, 0), none), ("length 1", (55, 1), none), ("beyond the header", (72, 5), all_but_the_last)]
    {
        assert_eq!(parse(&with(SYN, &[change])).unwrap().options, kept, "{what}");
    }
}

/// RFC 9293 MUST-63.
#[test]
fn sources_that_cannot_be_peers() {
    let land: &[(usize, u8)] = &[(29, 2), (34, 0), (35, 80)];
    for (what, changes) in [
        ("multicast", &[(26, 224)][..]),
        ("multicast", &[(26, 239)]),
        ("broadcast", &[(26, 255), (27, 255), (28, 255), (29, 255)]),
        ("0.0.0.0", &[(26, 0), (27, 0), (28, 0), (29, 0)]),
        ("LAND", land),
    ] {
        assert_eq!(parse(&with(SYN, changes)).unwrap_err(), ParseError::BadSource, "{what}");
    }
    assert!(parse(&with(SYN, &land[..1])).is_ok(), "same address, other port");
}

/// RFC 9293 MUST-50.
#[test]
fn ip_options_are_skipped() {
    let mut frame = SYN[..34].to_vec();
    frame.extend([1, 1, 1, 0]);
    frame.extend(&SYN[34..]);
    let frame = with(&frame, &[(14, 0x46), (17, 0x40)]);
    let s = parse(&frame).unwrap();
    assert_eq!((s.tcp_offset, s.payload_offset, s.payload_len), (38, 78, 0));
    assert_eq!(s.options, syn_header().options);
    assert!(checksum_ok(&frame, &s, RxChecksum::Unknown));
}

/// RFC 7126 §4.3. Without source routes RFC 9293 MUST-53 does not apply.
#[test]
fn a_packet_with_a_source_route_is_dropped() {
    for (options, routed) in [
        ([131, 3, 4, 0], true),
        ([1, 137, 3, 4], true),
        ([130, 3, 131, 0], false),
        ([0, 131, 3, 4], false),
        ([130, 0, 131, 3], false),
        ([130, 200, 131, 3], false),
    ] {
        let mut frame = SYN[..34].to_vec();
        frame.extend(options);
        frame.extend(&SYN[34..]);
        let frame = with(&frame, &[(14, 0x46), (17, 0x40)]);
        assert_eq!(parse(&frame).err(), routed.then_some(ParseError::BadHeader), "{options:?}");
    }
}

/// RFC 9293 MUST-3.
#[test]
fn a_damaged_segment_fails_the_checksum_but_not_where_the_port_vouches() {
    let good = parse(DATA).unwrap();
    for at in 34..DATA.len() - 1 {
        let mut frame = DATA.to_vec();
        frame[at] ^= 0x40;
        assert!(!checksum_ok(&frame, &good, RxChecksum::Unknown), "byte {at}");
        assert!(!checksum_ok(&frame, &good, RxChecksum::MaybePartial), "byte {at}");
        assert!(checksum_ok(&frame, &good, RxChecksum::Valid), "byte {at}");
    }
}

#[test]
fn a_partial_checksum_passes_only_where_it_may_be_partial() {
    let mut frame = DATA.to_vec();
    let offload = partial_checksum(&mut frame);
    assert!(offload.checksum_needed);
    assert_eq!((offload.checksum_start, offload.checksum_offset, offload.gso_bytes), (34, 16, 0));
    let s = parse(&frame).unwrap();
    assert!(!checksum_ok(&frame, &s, RxChecksum::Unknown));
    assert!(checksum_ok(&frame, &s, RxChecksum::MaybePartial));
    assert!(checksum_ok(DATA, &s, RxChecksum::MaybePartial), "a right sum passes too");
    // Do what a device does with the descriptor: sum from the start, complement, store.
    let start = usize::from(offload.checksum_start);
    let field = start + usize::from(offload.checksum_offset);
    let sum = checksum::finish(checksum::add(0, &frame[start..DATA.len() - 1]));
    frame[field..field + 2].copy_from_slice(&sum);
    assert_eq!(frame, DATA);
}

#[test]
fn what_does_not_fit_is_not_made() {
    let header = syn_header();
    assert_eq!(header.wire_bytes(), 74);
    assert_eq!(emit(&header, 26, &mut [0; 100]), Some(74));
    assert_eq!(emit(&header, 27, &mut [0; 100]), None);
    assert_eq!(emit(&header, 0, &mut [0; 73]), None);
    assert_eq!(emit(&header, 0, &mut []), None);
    assert_eq!(emit(&header, usize::MAX, &mut [0; 100]), None);
    let mut big = vec![0; 70_000];
    assert_eq!(emit(&header, 65_535 - 60, &mut big), Some(74));
    assert_eq!(emit(&header, 65_535 - 59, &mut big), None);
}

#[test]
fn checksums_of_frames_not_made_by_emit_are_left_alone() {
    for len in 0..SYN.len() {
        let mut frame = SYN[..len].to_vec();
        fill_checksum(&mut frame);
        assert!(!partial_checksum(&mut frame).checksum_needed);
        assert_eq!(frame, &SYN[..len]);
    }
}
