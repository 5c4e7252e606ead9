//! Fuzzing of the frame parsers from a stored corpus: each file is replayed, and mutated.
//! `TOWPATH_WRITE_CORPUS=1` writes the files anew.
#![allow(clippy::unwrap_used)]

use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use towpath_wire::checksum::{add, finish};
use towpath_wire::{
    Header, Options, RxChecksum, SackBlocks, Timestamps, checksum_ok, emit, fill_checksum, flags, icmp, parse,
    partial_checksum,
};

fn directory() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/frames")
}

/// A good segment over IPv4, or over IPv6.
fn segment(six: bool, vlan: Option<u16>, flags: u8, options: Options, payload: &[u8]) -> Vec<u8> {
    let four = |n| Ipv4Addr::new(10, 0, 0, n).into();
    let long = |n| Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, n).into();
    let (source, destination) = if six { (long(1), long(2)) } else { (four(1), four(2)) };
    let header = Header {
        source_mac: [2, 0, 0, 0, 0, 1],
        destination_mac: [2, 0, 0, 0, 0, 2],
        vlan,
        source,
        destination,
        source_port: 40_000,
        destination_port: 80,
        seq: 0xffff_fff0,
        ack: 0x1122_3344,
        flags,
        window: 64_240,
        ident: 7,
        tos: 2,
        ttl: 64,
        urgent: 0,
        options,
    };
    let mut frame = vec![0; header.wire_bytes() + payload.len()];
    let at = emit(&header, payload.len(), &mut frame).unwrap();
    frame[at..].copy_from_slice(payload);
    fill_checksum(&mut frame);
    frame
}

fn sacks(n: u32) -> SackBlocks {
    let mut blocks = SackBlocks::default();
    (0..n).for_each(|i| blocks.push(i * 1000, i * 1000 + 500));
    blocks
}

/// A segment whose option area is these forty bytes.
fn with_area(area: &[u8; 40]) -> Vec<u8> {
    let mut frame = segment(false, None, flags::ACK, Options::default(), area);
    frame[46] = 0xf0;
    fill_checksum(&mut frame);
    frame
}

/// An ICMP error of ours about the start of a segment from 10.0.0.2.
fn icmp4(kind: u8, code: u8, mtu: u16) -> Vec<u8> {
    let about = segment(false, None, flags::ACK, Options::default(), b"quoted");
    let mut quoted = about[14..42].to_vec();
    let (from, to) = (quoted[12..16].to_vec(), quoted[16..20].to_vec());
    quoted[12..16].copy_from_slice(&to);
    quoted[16..20].copy_from_slice(&from);
    let mut message = vec![kind, code, 0, 0, 0, 0];
    message.extend(mtu.to_be_bytes());
    message.extend(quoted);
    let sum = finish(add(0, &message));
    message[2..4].copy_from_slice(&sum);
    let mut ip = vec![0x45, 0, 0, 20 + message.len() as u8, 0, 0, 0, 0, 64, 1, 0, 0, 10, 0, 0, 254, 10, 0, 0, 2];
    let sum = finish(add(0, &ip));
    ip[10..12].copy_from_slice(&sum);
    [about[..14].to_vec(), ip, message].concat()
}

fn area(bytes: &[u8]) -> [u8; 40] {
    let mut area = [1; 40];
    area[..bytes.len()].copy_from_slice(bytes);
    area
}

/// The corpus, by file name.
fn seeds() -> Vec<(String, Vec<u8>)> {
    let stamps = Some(Timestamps { value: 0x0102_0304, echo: 0x0506_0708 });
    let syn = Options {
        mss: Some(1460),
        window_scale: Some(7),
        sack_permitted: true,
        timestamps: stamps,
        ..Options::default()
    };
    let mut seeds = Vec::new();
    for six in [false, true] {
        for vlan in [None, Some(4095)] {
            let kind = format!("{}{}", if six { "v6" } else { "v4" }, if vlan.is_some() { "-vlan" } else { "" });
            let mut add = |name: &str, flags, options, payload: &[u8]| {
                seeds.push((format!("{kind}-{name}"), segment(six, vlan, flags, options, payload)));
            };
            add("syn", flags::SYN, syn, b"");
            add("syn-ack", flags::SYN | flags::ACK, Options { mss: Some(1), ..syn }, b"");
            add("data", flags::ACK | flags::PSH, Options { timestamps: stamps, ..Options::default() }, b"hello, world");
            add("odd-data", flags::ACK | flags::URG, Options::default(), b"x");
            add("fin", flags::ACK | flags::FIN, Options::default(), b"");
            add("rst", flags::RST, Options::default(), b"");
            add("sack", flags::ACK, Options { timestamps: stamps, sack: sacks(3), ..Options::default() }, b"");
        }
    }
    seeds.push((
        "v4-sack-four".into(),
        segment(false, None, flags::ACK, Options { sack: sacks(4), ..Options::default() }, b""),
    ));
    for (name, bytes) in [
        ("nops", &[1; 40][..]),
        ("end-first", &[0, 2, 4]),
        ("length-zero", &[2, 0]),
        ("length-one", &[8, 1]),
        ("beyond-the-end", &[5, 255]),
        ("scale-too-large", &[3, 3, 255]),
        ("mss-zero", &[2, 4, 0, 0]),
        ("mss-twice", &[2, 4, 5, 180, 2, 4, 0, 1]),
        ("sack-of-nothing", &[5, 2]),
        ("sack-of-half-a-block", &[5, 6, 0, 0, 0, 1]),
        ("sack-backwards", &[5, 10, 0, 0, 0, 9, 0, 0, 0, 1]),
        ("timestamps-short", &[8, 9, 0, 0, 0, 1, 0, 0, 0]),
        ("fast-open", &[34, 10, 1, 2, 3, 4, 5, 6, 7, 8]),
        ("experiment", &[254, 6, 0xf9, 0x89, 1, 2]),
        ("md5", &[19, 18, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
    ] {
        seeds.push((format!("options-{name}"), with_area(&area(bytes))));
    }
    for (name, kind, code, mtu) in [
        ("too-big", 3, 4, 1400),
        ("too-big-without-mtu", 3, 4, 0),
        ("port-unreachable", 3, 3, 0),
        ("time-exceeded", 11, 0, 0),
        ("quench", 4, 0, 0),
    ] {
        seeds.push((format!("icmp-{name}"), icmp4(kind, code, mtu)));
    }
    seeds
}

/// Nothing panics. An accepted segment lies within the frame, and parses the same after its checksum is filled in
/// again.
fn target(bytes: &[u8]) {
    let _ = icmp::parse(bytes);
    let Ok(s) = parse(bytes) else { return };
    let end = s.payload_offset as usize + s.payload_len as usize;
    assert!(end <= bytes.len() && usize::from(s.tcp_offset) + 20 <= s.payload_offset as usize);
    for what in [RxChecksum::Unknown, RxChecksum::Valid, RxChecksum::MaybePartial] {
        checksum_ok(bytes, &s, what);
    }
    let mut copy = bytes.to_vec();
    fill_checksum(&mut copy);
    let again = parse(&copy).unwrap();
    assert!(checksum_ok(&copy, &again, RxChecksum::Unknown));
    assert_eq!((again.seq, again.ack, again.flags, again.options), (s.seq, s.ack, s.flags, s.options));
    assert!(partial_checksum(&mut copy).checksum_needed);
    assert!(checksum_ok(&copy, &again, RxChecksum::MaybePartial));
}

#[test]
fn the_corpus_of_frames_is_what_its_maker_makes_and_is_replayed() {
    let write = std::env::var_os("TOWPATH_WRITE_CORPUS").is_some();
    for (name, frame) in seeds() {
        let file = directory().join(&name);
        if write {
            std::fs::create_dir_all(directory()).unwrap();
            std::fs::write(&file, &frame).unwrap();
        }
        assert!(std::fs::read(&file).unwrap_or_default() == frame, "{name}: TOWPATH_WRITE_CORPUS=1 writes it anew");
    }
    // Files that the list above does not make were found by a fuzzer.
    for entry in std::fs::read_dir(directory()).unwrap() {
        target(&std::fs::read(entry.unwrap().path()).unwrap());
    }
}

/// A file of the corpus with some bytes changed, cut or added, with a right or wrong IPv4 header checksum.
#[test]
fn fuzz_frames_of_the_corpus() {
    let seeds = seeds();
    bolero::check!().with_type::<(u8, Vec<(u8, u8)>, Option<u8>, bool)>().with_iterations(20_000).for_each(
        |(nth, edits, len, repair)| {
            let mut frame = seeds[usize::from(*nth) % seeds.len()].1.clone();
            for &(at, byte) in edits.iter().take(6) {
                let at = usize::from(at) % frame.len();
                frame[at] = byte;
            }
            if let Some(len) = len {
                frame.resize(usize::from(*len), 0xcc);
            }
            if *repair && frame.len() >= 34 && frame[12..14] == [8, 0] {
                let end = (14 + usize::from(frame[14] & 0xf) * 4).min(frame.len());
                frame[24..26].fill(0);
                let sum = finish(add(0, &frame[14..end]));
                frame[24..26].copy_from_slice(&sum);
            }
            target(&frame);
        },
    );
}
