//! IPv6 and VLAN tags: frames written by hand, every kind of malformed frame, and our frames parsed by another stack.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{EthernetFrame, IpAddress, Ipv6Packet, Ipv6Repr, TcpPacket, TcpRepr};
use std::net::{IpAddr, Ipv6Addr};
use towpath_wire::{
    Header, Options, ParseError, RxChecksum, Timestamps, checksum_ok, emit, fill_checksum, flags, parse,
    partial_checksum,
};

/// SYN from [fd00::1]:40000 to [fd00::2]:80, traffic class 3, flow label 0x12345: MSS 1440.
/// The checksum was computed by a separate program.
const SYN: &[u8] = &[
    0x02, 0, 0, 0, 0, 0x02, 0x02, 0, 0, 0, 0, 0x01, 0x86, 0xdd, // Ethernet
    0x60, 0x31, 0x23, 0x45, 0x00, 0x18, 0x06, 0x40, // IPv6
    0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x01, // source
    0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x02, // destination
    0x9c, 0x40, 0x00, 0x50, 0x11, 0x22, 0x33, 0x44, 0, 0, 0, 0, 0x60, 0x02, 0xfa, 0xf0, 0xc2, 0x4e, 0, 0, // TCP
    2, 4, 0x05, 0xa0, // MSS
];

fn v6(last: u16) -> IpAddr {
    Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last).into()
}

fn header() -> Header {
    Header {
        vlan: None,
        source_mac: [2, 0, 0, 0, 0, 1],
        destination_mac: [2, 0, 0, 0, 0, 2],
        source: v6(1),
        destination: v6(2),
        source_port: 40_000,
        destination_port: 80,
        seq: 0x1122_3344,
        ack: 0,
        flags: flags::SYN,
        window: 64_240,
        ident: 0x1234,
        tos: 3,
        ttl: 64,
        urgent: 0,
        options: Options { mss: Some(1440), ..Options::default() },
    }
}

fn frame(header: &Header, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![0xa5; header.wire_bytes() + payload.len()];
    let at = emit(header, payload.len(), &mut out).expect("it fits");
    out[at..].copy_from_slice(payload);
    fill_checksum(&mut out);
    out
}

/// The SYN with these bytes between the IPv6 header and TCP.
fn with_extensions(first: u8, extensions: &[u8]) -> Vec<u8> {
    let mut frame = [&SYN[..54], extensions, &SYN[54..]].concat();
    frame[20] = first;
    let len = (frame.len() - 54) as u16;
    frame[18..20].copy_from_slice(&len.to_be_bytes());
    frame
}

#[test]
fn a_syn_is_read() {
    let (s, h) = (parse(SYN).unwrap(), header());
    assert_eq!((s.source_mac, s.destination_mac, s.vlan), (h.source_mac, h.destination_mac, None));
    assert_eq!((s.source, s.destination), (v6(1), v6(2)));
    assert_eq!((s.source_port, s.destination_port), (40_000, 80));
    assert_eq!((s.seq, s.ack, s.flags, s.window, s.tos), (0x1122_3344, 0, flags::SYN, 64_240, 3));
    assert_eq!((s.tcp_offset, s.payload_offset, s.payload_len), (54, 78, 0));
    assert_eq!(s.options, h.options);
    assert!(checksum_ok(SYN, &s, RxChecksum::Unknown));
}

#[test]
fn a_syn_is_made() {
    let mut out = [0xffu8; 100];
    assert_eq!(emit(&header(), 0, &mut out), Some(78));
    fill_checksum(&mut out);
    let mut expected = SYN.to_vec();
    expected[14..18].copy_from_slice(&[0x60, 0x30, 0, 0]); // no flow label
    assert_eq!(&out[..78], expected);
    assert!(out[78..].iter().all(|&b| b == 0xff), "nothing is written after the frame");
    let mixed = Header { destination: IpAddr::from([10, 0, 0, 1]), ..header() };
    assert_eq!(emit(&mixed, 0, &mut out), None, "two families");
    assert_eq!(emit(&header(), 23, &mut out), None, "no room");
    let mut large = vec![0; 70_000];
    assert_eq!(emit(&header(), 65_535 - 64, &mut large), Some(78));
    assert_eq!(emit(&header(), 65_535 - 63, &mut large), None, "longer than 65,535 bytes");
}

#[test]
fn every_truncation_is_an_error() {
    for len in 0..SYN.len() {
        assert_eq!(parse(&SYN[..len]).unwrap_err(), ParseError::Truncated, "{len} bytes");
    }
    let padded = [SYN, &[0xcc; 9]].concat();
    assert_eq!(parse(&padded).unwrap().payload_len, 0, "padding is no payload");
}

#[test]
fn extension_headers_that_may_be_skipped_are() {
    for (what, first, bytes) in [
        ("hop-by-hop with PadN", 0, &[6, 0, 1, 4, 0, 0, 0, 0][..]),
        ("destination options with an unknown option to be skipped", 60, &[6, 0, 0x1e, 4, 1, 2, 3, 4]),
        ("routing without segments left", 43, &[6, 0, 4, 0, 0, 0, 0, 0]),
        ("Pad1 alone", 60, &[6, 0, 0, 0, 0, 0, 0, 0]),
        ("two of them", 0, &[60, 0, 1, 4, 0, 0, 0, 0, 6, 0, 1, 4, 0, 0, 0, 0]),
    ] {
        let frame = with_extensions(first, bytes);
        let s = parse(&frame).unwrap_or_else(|e| panic!("{what}: {e}"));
        assert_eq!((s.tcp_offset as usize, s.destination_port), (54 + bytes.len(), 80), "{what}");
        assert!(checksum_ok(&frame, &s, RxChecksum::Unknown), "{what}");
    }
}

#[test]
fn what_is_not_ours_to_skip_is_not_tcp() {
    let nine = [60, 0, 1, 4, 0, 0, 0, 0].repeat(9);
    for (what, first, bytes) in [
        ("a fragment", 44, &[6, 0, 0, 1, 0, 0, 0, 1][..]),
        ("an atomic fragment", 44, &[6, 0, 0, 0, 0, 0, 0, 1]),
        ("routing with segments left", 43, &[6, 0, 4, 1, 0, 0, 0, 0]),
        ("an option to be refused", 60, &[6, 0, 0xc2, 4, 0, 1, 0, 0]),
        ("an option longer than its header", 60, &[6, 0, 1, 5, 0, 0, 0, 0]),
        ("hop-by-hop in second place", 60, &[0, 0, 1, 4, 0, 0, 0, 0, 6, 0, 1, 4, 0, 0, 0, 0]),
        ("UDP", 17, &[]),
        ("no next header", 59, &[]),
        ("ICMPv6", 58, &[]),
        ("authentication", 51, &[6, 0, 0, 0, 0, 0, 0, 0]),
        ("nine extension headers", 60, &nine),
    ] {
        assert_eq!(parse(&with_extensions(first, bytes)).unwrap_err(), ParseError::NotTcp, "{what}");
    }
    let mut short = with_extensions(60, &[6, 200, 1, 4, 0, 0, 0, 0]);
    assert_eq!(parse(&short).unwrap_err(), ParseError::Truncated, "a header beyond the packet");
    short[14] = 0x40;
    assert_eq!(parse(&short).unwrap_err(), ParseError::NotTcp, "version 4");
}

#[test]
fn sources_that_cannot_be_a_peers_are_refused() {
    for source in ["::", "ff02::1", "::ffff:10.0.0.1"] {
        let bad = Header { source: source.parse().unwrap(), ..header() };
        assert_eq!(parse(&frame(&bad, b"")).unwrap_err(), ParseError::BadSource, "{source}");
    }
    let land = Header { source: v6(2), source_port: 80, ..header() };
    assert_eq!(parse(&frame(&land, b"")).unwrap_err(), ParseError::BadSource, "LAND");
    let neighbour = Header { source: v6(2), ..header() };
    assert!(parse(&frame(&neighbour, b"")).is_ok(), "the same host, another port");
}

#[test]
fn one_vlan_tag_is_read_and_made() {
    for base in [header(), Header { source: [10, 0, 0, 1].into(), destination: [10, 0, 0, 2].into(), ..header() }] {
        let tagged = Header { vlan: Some(0xabc), ..base };
        let mut bytes = frame(&tagged, b"hello");
        assert_eq!(bytes[12..16], [0x81, 0, 0x0a, 0xbc]);
        bytes[14] |= 0xf0; // priority 7, drop eligible
        let s = parse(&bytes).unwrap();
        assert_eq!((s.vlan, s.source, s.destination), (Some(0xabc), base.source, base.destination));
        assert_eq!(&bytes[s.payload_offset as usize..][..s.payload_len as usize], b"hello");
        assert!(checksum_ok(&bytes, &s, RxChecksum::Unknown));
        assert_eq!(partial_checksum(&mut bytes).checksum_start, s.tcp_offset);
        assert!(checksum_ok(&bytes, &s, RxChecksum::MaybePartial));
        let untagged = frame(&base, b"hello");
        assert_eq!(bytes[18..s.tcp_offset as usize], untagged[14..s.tcp_offset as usize - 4], "the packet is the same");
        bytes[14..16].copy_from_slice(&[0xe0, 0]);
        assert_eq!(parse(&bytes).unwrap().vlan, None, "a tag with a priority alone");
        assert_eq!(parse(&bytes[..16]).unwrap_err(), ParseError::Truncated);
        let twice = [&bytes[..12], &[0x81, 0, 0, 1], &bytes[12..]].concat();
        assert_eq!(parse(&twice).unwrap_err(), ParseError::NotTcp, "two tags");
    }
}

proptest! {
    #[test]
    fn there_and_back_and_smoltcp_reads_it(
        addresses in any::<([u8; 16], [u8; 16])>(), ports in (1u16.., 1u16..), numbers in any::<(u32, u32)>(),
        rest in any::<(u16, u8)>(), ttl in 1u8.., vlan in proptest::option::of(1u16..4096),
        stamps in any::<(u32, u32)>(), payload in proptest::collection::vec(any::<u8>(), 0..1440),
    ) {
        let (source, destination) = (Ipv6Addr::from(addresses.0), Ipv6Addr::from(addresses.1));
        prop_assume!(!source.is_multicast() && !source.is_unspecified() && source.to_ipv4_mapped().is_none());
        let header = Header {
            vlan, source: source.into(), destination: destination.into(), source_port: ports.0, destination_port: ports.1,
            seq: numbers.0, ack: numbers.1, flags: flags::ACK, window: rest.0, tos: rest.1, ttl,
            options: Options { timestamps: Some(Timestamps { value: stamps.0, echo: stamps.1 }), ..Options::default() },
            ..header()
        };
        let bytes = frame(&header, &payload);
        let s = parse(&bytes).expect("a good frame");
        prop_assert_eq!((s.vlan, s.source, s.destination), (vlan, header.source, header.destination));
        prop_assert_eq!((s.seq, s.ack, s.window, s.tos, s.options), (numbers.0, numbers.1, rest.0, rest.1, header.options));
        prop_assert!(checksum_ok(&bytes, &s, RxChecksum::Unknown));

        let plain = frame(&Header { vlan: None, ..header }, &payload);
        let ethernet = EthernetFrame::new_checked(&plain[..]).expect("Ethernet");
        let ip = Ipv6Packet::new_checked(ethernet.payload()).expect("IPv6");
        prop_assert_eq!((ip.traffic_class(), ip.hop_limit()), (header.tos, ttl));
        let repr = Ipv6Repr::parse(&ip).expect("IPv6 fields");
        prop_assert_eq!((repr.src_addr, repr.dst_addr), (source, destination));
        let tcp = TcpPacket::new_checked(ip.payload()).expect("TCP");
        let (from, to) = (IpAddress::Ipv6(source), IpAddress::Ipv6(destination));
        let tcp = TcpRepr::parse(&tcp, &from, &to, &ChecksumCapabilities::default()).expect("TCP fields");
        prop_assert_eq!(tcp.payload, &payload[..]);
    }

    /// One changed bit in an address, the payload length, the next header or TCP is always detected.
    #[test]
    fn a_flipped_bit_is_found(payload in proptest::collection::vec(any::<u8>(), 0..200), at in any::<prop::sample::Index>(), bit in 0u8..8) {
        let mut bytes = frame(&header(), &payload);
        let at = 18 + at.index(bytes.len() - 18);
        prop_assume!(at != 21); // the hop limit is in no checksum
        bytes[at] ^= 1 << bit;
        if let Ok(s) = parse(&bytes) {
            prop_assert!(!checksum_ok(&bytes, &s, RxChecksum::Unknown), "byte {}", at);
        }
    }
}

/// A good frame with extension headers of any bytes, and with a few bytes changed.
#[test]
fn fuzz_bent_ipv6_frames() {
    bolero::check!().with_type::<(Vec<(u8, u8)>, Vec<u8>, u8, bool)>().with_iterations(20_000).for_each(
        |(changes, extensions, first, tagged)| {
            let units = (extensions.len() / 8).min(8) * 8;
            let mut bytes = with_extensions(if units == 0 { 6 } else { *first % 64 }, &extensions[..units]);
            if *tagged {
                bytes.splice(12..12, [0x81, 0, 0, 5]);
            }
            for &(at, byte) in changes.iter().take(4) {
                let at = usize::from(at) % bytes.len();
                bytes[at] = byte;
            }
            let Ok(s) = parse(&bytes) else { return };
            let end = s.payload_offset as usize + s.payload_len as usize;
            assert!(end <= bytes.len());
            assert!(usize::from(s.tcp_offset) + 20 <= s.payload_offset as usize);
            for what in [RxChecksum::Unknown, RxChecksum::Valid, RxChecksum::MaybePartial] {
                checksum_ok(&bytes, &s, what);
                checksum_ok(&bytes[..end / 2], &s, what);
            }
        },
    );
}
