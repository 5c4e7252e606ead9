//! Properties of every frame: emitting and parsing agree, nothing panics, and smoltcp agrees.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{EthernetFrame, IpAddress, Ipv4Packet, Ipv4Repr, TcpOption, TcpPacket, TcpRepr};
use std::net::{IpAddr, Ipv4Addr};
use towpath_wire::error::ParseError;
use towpath_wire::segment::UsualSegment;
use towpath_wire::{
    Header, Options, RxChecksum, SackBlocks, Timestamps, checksum_ok, emit, fill_checksum, flags, parse,
    partial_checksum,
};

prop_compose! {
    fn options()(
        mss in proptest::option::of(1u16..),
        window_scale in proptest::option::of(0u8..=14),
        sack_permitted in any::<bool>(),
        timestamps in proptest::option::of((any::<u32>(), any::<u32>())),
        blocks in proptest::collection::vec(any::<(u32, u32)>(), 0..=2),
    ) -> Options {
        let timestamps = timestamps.map(|(value, echo)| Timestamps { value, echo });
        // Beside all other options there is room for two blocks, as there is beside MSS, scale and timestamps.
        let mut sack = SackBlocks::default();
        for &(start, end) in blocks.iter().take(if timestamps.is_some() { 2 } else { 4 }) {
            sack.push(start, end);
        }
        Options { mss, window_scale, sack_permitted, timestamps, sack }
    }
}

prop_compose! {
    fn header()(
        macs in any::<([u8; 6], [u8; 6])>(),
        source in 0x0100_0000u32..0xe000_0000,
        destination in any::<u32>(),
        ports in any::<(u16, u16)>(),
        numbers in any::<(u32, u32)>(),
        flags in any::<u8>(),
        rest in any::<(u16, u16, u8, u8, u16)>(),
        options in options(),
    ) -> Header {
        Header {
            source_mac: macs.0, destination_mac: macs.1, vlan: None,
            source: IpAddr::V4(Ipv4Addr::from(source)), destination: IpAddr::V4(Ipv4Addr::from(destination)),
            source_port: ports.0, destination_port: ports.1,
            seq: numbers.0, ack: numbers.1, flags, window: rest.0, ident: rest.1, tos: rest.2, ttl: rest.3,
            urgent: rest.4, options,
        }
    }
}

fn frame(header: &Header, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![0xa5; header.wire_bytes() + payload.len()];
    let at = emit(header, payload.len(), &mut out).expect("it fits");
    out[at..].copy_from_slice(payload);
    fill_checksum(&mut out);
    out
}

proptest! {
    #[test]
    fn there_and_back(
        header in header(), payload in proptest::collection::vec(any::<u8>(), 0..3000), padding in 0usize..30,
    ) {
        prop_assume!(header.source != header.destination || header.source_port != header.destination_port);
        let mut bytes = frame(&header, &payload);
        bytes.resize(bytes.len() + padding, 0xcc);
        let s = parse(&bytes).expect("a good frame");
        prop_assert_eq!((s.source_mac, s.destination_mac), (header.source_mac, header.destination_mac));
        prop_assert_eq!((s.source, s.destination), (header.source, header.destination));
        prop_assert_eq!((s.source_port, s.destination_port), (header.source_port, header.destination_port));
        prop_assert_eq!((s.seq, s.ack, s.flags, s.window), (header.seq, header.ack, header.flags, header.window));
        prop_assert_eq!((s.tos, s.urgent, s.options), (header.tos, header.urgent, header.options));
        prop_assert_eq!(&bytes[s.payload_offset as usize..][..s.payload_len as usize], &payload[..]);
        prop_assert!(checksum_ok(&bytes, &s, RxChecksum::Unknown));
        let offload = partial_checksum(&mut bytes);
        prop_assert!(offload.checksum_needed);
        prop_assert!(checksum_ok(&bytes, &s, RxChecksum::MaybePartial));
    }

    /// The usual layout is a shorter way to read the same, whatever is changed. Only addresses are not looked at.
    #[test]
    fn the_usual_layout_is_read_as_any(
        header in header(), payload in proptest::collection::vec(any::<u8>(), 0..200), stamps in any::<(u32, u32)>(),
        cut in proptest::option::of(any::<prop::sample::Index>()), at in any::<prop::sample::Index>(), flip in 0u8..9,
    ) {
        let stamps = Some(Timestamps { value: stamps.0, echo: stamps.1 });
        let header = Header { options: Options { timestamps: stamps, ..Options::NONE }, vlan: None, ..header };
        let mut bytes = frame(&header, &payload);
        let at = at.index(bytes.len());
        bytes[at] ^= (1u16 << flip) as u8;
        bytes.truncate(cut.map_or(bytes.len(), |cut| cut.index(bytes.len())));
        match (UsualSegment::check(&bytes), parse(&bytes)) {
            (Some(usual), Ok(any)) => {
                prop_assert_eq!(format!("{:?}", usual.read()), format!("{any:?}"));
                prop_assert_eq!((usual.flags(), usual.tos(), usual.window()), (any.flags, any.tos, any.window));
                prop_assert_eq!(usual.numbers(), u64::from(any.seq) << 32 | u64::from(any.ack));
                let Timestamps { value, echo } = any.options.timestamps.unwrap_or_default();
                prop_assert_eq!(usual.stamps(), u64::from(value) << 32 | u64::from(echo));
                prop_assert_eq!((usual.payload_len(), UsualSegment::HEADERS as u32), (any.payload_len, any.payload_offset));
                let (addresses, ports) = usual.ends();
                prop_assert_eq!(&addresses[..], &bytes[26..34]);
                prop_assert_eq!(&ports[..], &[any.source_port.to_be_bytes(), any.destination_port.to_be_bytes()].concat()[..]);
                for what in [RxChecksum::Unknown, RxChecksum::Valid, RxChecksum::MaybePartial] {
                    prop_assert_eq!(usual.checksum_ok(&bytes, what), checksum_ok(&bytes, &any, what));
                }
            }
            (Some(_), Err(error)) => prop_assert_eq!(error, ParseError::BadSource),
            (None, Ok(_)) => prop_assert!(flip < 8, "an unchanged frame is usual"),
            (None, Err(_)) => {}
        }
    }

    /// One changed bit in IPv4 or TCP is always detected by some check.
    #[test]
    fn a_flipped_bit_is_found(
        header in header(), payload in proptest::collection::vec(any::<u8>(), 0..200), at in any::<prop::sample::Index>(), bit in 0u8..8,
    ) {
        let mut bytes = frame(&header, &payload);
        let at = 14 + at.index(bytes.len() - 14);
        bytes[at] ^= 1 << bit;
        if let Ok(s) = parse(&bytes) {
            prop_assert!(!checksum_ok(&bytes, &s, RxChecksum::Unknown), "byte {}", at);
        }
    }

    #[test]
    fn smoltcp_reads_what_we_make(header in header(), payload in proptest::collection::vec(any::<u8>(), 0..1460)) {
        prop_assume!(header.source_port != 0 && header.destination_port != 0);
        // smoltcp accepts only combinations of control flags that make sense.
        let header = Header { flags: header.flags & !(flags::SYN | flags::FIN | flags::RST), ..header };
        let bytes = frame(&header, &payload);
        let ethernet = EthernetFrame::new_checked(&bytes[..]).expect("Ethernet");
        prop_assert_eq!(ethernet.src_addr().0, header.source_mac);
        let ip = Ipv4Packet::new_checked(ethernet.payload()).expect("IPv4");
        prop_assert!(ip.verify_checksum());
        prop_assert_eq!((ip.dscp(), ip.ecn()), (header.tos >> 2, header.tos & 3));
        let repr = Ipv4Repr::parse(&ip, &ChecksumCapabilities::default()).expect("IPv4 fields");
        prop_assert_eq!((IpAddr::V4(repr.src_addr), IpAddr::V4(repr.dst_addr)), (header.source, header.destination));
        let tcp = TcpPacket::new_checked(ip.payload()).expect("TCP");
        let (from, to) = (IpAddress::from(header.source), IpAddress::from(header.destination));
        prop_assert!(tcp.verify_checksum(&from, &to));
        let tcp = TcpRepr::parse(&tcp, &from, &to, &ChecksumCapabilities::default()).expect("TCP fields");
        prop_assert_eq!(tcp.max_seg_size, header.options.mss);
        prop_assert_eq!(tcp.window_scale, header.options.window_scale);
        prop_assert_eq!(tcp.sack_permitted, header.options.sack_permitted);
        for (ours, theirs) in header.options.sack.as_slice().iter().zip(tcp.sack_ranges) {
            prop_assert_eq!(Some(*ours), theirs);
        }
        prop_assert_eq!(tcp.timestamp.map(|t| (t.tsval, t.tsecr)), header.options.timestamps.map(|t| (t.value, t.echo)));
        prop_assert_eq!(tcp.payload, &payload[..]);
    }

    /// If smoltcp can parse the options, both parse the same.
    #[test]
    fn options_are_read_as_smoltcp_reads_them(area in proptest::collection::vec(prop_oneof![0u8..12, any::<u8>()], 0..40)) {
        let ours = Options::parse(&area);
        let mut theirs = Options::default();
        let mut rest = &area[..];
        while !rest.is_empty() {
            let Ok((next, option)) = TcpOption::parse(rest) else { return Ok(()) };
            match option {
                TcpOption::EndOfList => break,
                TcpOption::MaxSegmentSize(mss) => theirs.mss = Some(mss).filter(|&m| m > 0),
                TcpOption::WindowScale(shift) => theirs.window_scale = Some(shift.min(14)),
                TcpOption::SackPermitted => theirs.sack_permitted = true,
                TcpOption::TimeStamp { tsval, tsecr } => theirs.timestamps = Some(Timestamps { value: tsval, echo: tsecr }),
                // smoltcp keeps three blocks, in the order of the wire.
                TcpOption::SackRange(blocks) => {
                    for (ours, theirs) in ours.sack.as_slice().iter().zip(blocks) {
                        prop_assert_eq!(Some(*ours), theirs);
                    }
                    theirs.sack = ours.sack;
                }
                _ => {}
            }
            rest = next;
        }
        prop_assert_eq!(ours, theirs);
    }
}

/// Any bytes: nothing panics, and an accepted segment lies within the frame.
fn accepts_only_what_is_there(bytes: &[u8]) {
    let Ok(s) = parse(bytes) else { return };
    let end = s.payload_offset as usize + s.payload_len as usize;
    assert!(end <= bytes.len());
    assert!(usize::from(s.tcp_offset) + 20 <= s.payload_offset as usize);
    for what in [RxChecksum::Unknown, RxChecksum::Valid, RxChecksum::MaybePartial] {
        checksum_ok(bytes, &s, what);
        // With a segment of another frame any answer is allowed, but no panic.
        checksum_ok(&bytes[..end / 2], &s, what);
    }
    let mut copy = bytes.to_vec();
    fill_checksum(&mut copy);
    let again = parse(&copy).expect("only the TCP checksum has changed");
    assert!(checksum_ok(&copy, &again, RxChecksum::Unknown));
}

#[test]
fn fuzz_raw_bytes() {
    bolero::check!().with_iterations(20_000).with_max_len(200).for_each(accepts_only_what_is_there);
}

/// A valid frame with a few bytes changed and the IPv4 checksum corrected, as random bytes rarely pass the checks.
#[test]
fn fuzz_bent_frames() {
    bolero::check!().with_type::<(Vec<(u8, u8)>, u8, [u8; 40], bool)>().with_iterations(20_000).for_each(
        |(changes, payload, options, repair)| {
            let mut bytes = vec![0u8; 14 + 20 + 20 + 40 + usize::from(*payload)];
            let total = (bytes.len() - 14) as u16;
            bytes[12] = 8;
            bytes[14] = 0x45;
            bytes[16..18].copy_from_slice(&total.to_be_bytes());
            bytes[23] = 6;
            bytes[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
            bytes[46] = 0xf0;
            bytes[54..94].copy_from_slice(options);
            for &(at, byte) in changes.iter().take(4) {
                let at = usize::from(at) % bytes.len();
                bytes[at] = byte;
            }
            if *repair {
                let header = usize::from(bytes[14] & 0xf) * 4;
                bytes[24..26].fill(0);
                let sum = towpath_wire::checksum::finish(towpath_wire::checksum::add(0, &bytes[14..14 + header]));
                bytes[24..26].copy_from_slice(&sum);
            }
            accepts_only_what_is_there(&bytes);
        },
    );
}

#[test]
fn fuzz_options() {
    bolero::check!().with_iterations(20_000).with_max_len(40).for_each(|bytes: &[u8]| {
        assert!(Options::parse(bytes).sack.as_slice().len() <= 4);
    });
}
