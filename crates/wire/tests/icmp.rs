//! ICMP errors: valid, damaged and hostile ones.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use towpath_wire::checksum::{add, finish};
use towpath_wire::icmp::{IcmpError, IcmpKind, parse};

const ROUTER: [u8; 4] = [10, 0, 0, 254];
const US: [u8; 4] = [10, 0, 0, 1];
const PEER: [u8; 4] = [10, 9, 9, 9];
/// From port 4660 to port 80, number 0x01020304.
const TCP: [u8; 8] = [0x12, 0x34, 0, 80, 1, 2, 3, 4];

fn ipv4(source: [u8; 4], destination: [u8; 4], protocol: u8, total: usize) -> Vec<u8> {
    let total = (total as u16).to_be_bytes();
    let mut ip = vec![0x45, 0, total[0], total[1], 0, 0, 0x40, 0, 64, protocol, 0, 0];
    ip.extend(source);
    ip.extend(destination);
    let sum = finish(add(0, &ip));
    ip[10..12].copy_from_slice(&sum);
    ip
}

fn v4(kind: u8, code: u8, mtu: u16) -> Vec<u8> {
    let mut message = vec![kind, code, 0, 0, 0, 0];
    message.extend(mtu.to_be_bytes());
    message.extend(ipv4(US, PEER, 6, 1500));
    message.extend(TCP);
    let sum = finish(add(0, &message));
    message[2..4].copy_from_slice(&sum);
    let mut frame = vec![2; 12];
    frame.extend([8, 0]);
    frame.extend(ipv4(ROUTER, US, 1, 20 + message.len()));
    frame.extend(message);
    frame
}

fn v6(kind: u8, code: u8, mtu: u32) -> Vec<u8> {
    let (us, peer) = (Ipv6Addr::LOCALHOST.octets(), Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2).octets());
    let header = |source: [u8; 16], destination: [u8; 16], next: u8, len: u16| {
        let mut ip = vec![0x60, 0, 0, 0];
        ip.extend(len.to_be_bytes());
        ip.extend([next, 64]);
        ip.extend(source);
        ip.extend(destination);
        ip
    };
    let mut message = vec![kind, code, 0, 0];
    message.extend(mtu.to_be_bytes());
    message.extend(header(us, peer, 6, 1460));
    message.extend(TCP);
    let pseudo = add(add(add(0, &peer), &us), &[0, 0, 0, message.len() as u8, 0, 0, 0, 58]);
    let sum = finish(add(pseudo, &message));
    message[2..4].copy_from_slice(&sum);
    let mut frame = vec![2; 12];
    frame.extend([0x86, 0xdd]);
    frame.extend(header(peer, us, 58, message.len() as u16));
    frame.extend(message);
    frame
}

#[test]
fn an_error_names_the_segment_that_it_is_about() {
    let error = IcmpError {
        kind: IcmpKind::TooBig { mtu: 1400 },
        local: Ipv4Addr::from(US).into(),
        local_port: 4660,
        remote: Ipv4Addr::from(PEER).into(),
        remote_port: 80,
        seq: 0x0102_0304,
        packet_bytes: 1500,
    };
    assert_eq!(parse(&v4(3, 4, 1400)), Some(error));
    let six = IcmpError {
        kind: IcmpKind::TooBig { mtu: 1400 },
        local: Ipv6Addr::LOCALHOST.into(),
        remote: IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, 2]),
        ..error
    };
    assert_eq!(parse(&v6(2, 0, 1400)), Some(six));
}

#[test]
fn kinds_of_both_families() {
    use IcmpKind::*;
    let four = |kind, code| parse(&v4(kind, code, 0)).map(|error| error.kind);
    let cases = [(3, 0), (3, 1), (3, 2), (3, 3), (3, 5), (3, 13), (4, 0), (11, 0), (12, 0), (0, 0), (8, 0), (5, 0)];
    let kinds = [
        Some(NetworkUnreachable),
        Some(HostUnreachable),
        Some(ProtocolUnreachable),
        Some(PortUnreachable),
        Some(SourceRouteFailed),
        Some(Prohibited),
        Some(SourceQuench),
        Some(TimeExceeded),
        Some(ParameterProblem),
    ];
    for (i, (kind, code)) in cases.into_iter().enumerate() {
        assert_eq!(four(kind, code), kinds.get(i).copied().flatten(), "{kind} {code}");
    }
    for (kind, codes) in [
        (NetworkRefused, &[6, 9, 11][..]),
        (HostUnknown, &[7]),
        (HostIsolated, &[8]),
        (Prohibited, &[10, 12, 13, 14, 15]),
    ] {
        codes.iter().for_each(|code| assert_eq!(four(3, *code), Some(kind), "{code}"));
    }
    assert_eq!(four(3, 16), None, "Linux knows no more");
    let six = |kind, code| parse(&v6(kind, code, 0)).map(|error| error.kind);
    assert_eq!([six(1, 1), six(1, 2), six(1, 5)], [Prohibited, HostUnreachable, Prohibited].map(Some));
    assert_eq!([six(1, 6), six(1, 7)], [Prohibited, ParameterProblem].map(Some));
    assert_eq!([six(1, 0), six(1, 3), six(1, 4)], [NetworkUnreachable, HostUnreachable, PortUnreachable].map(Some));
    assert_eq!([six(3, 0), six(4, 0), six(4, 1)], [TimeExceeded, ParameterProblem, ProtocolUnreachable].map(Some));
    assert_eq!([six(128, 0), six(135, 0)], [None; 2]);
}

#[test]
fn what_is_not_intact_is_nothing() {
    for good in [v4(3, 4, 1400), v6(2, 0, 1400)] {
        for len in 0..good.len() {
            assert_eq!(parse(&good[..len]), None, "{len}");
        }
        for byte in 14..good.len() {
            let mut bent = good.clone();
            bent[byte] ^= 0x10;
            if let Some(error) = parse(&bent) {
                // No checksum covers IPv6's traffic class, flow label and hop limit.
                assert_eq!(Some(error), parse(&good), "{byte}");
                assert!(good[12] == 0x86 && matches!(byte, 14..18 | 21), "{byte}");
            }
        }
    }
}

#[test]
fn an_error_about_somebody_elses_packet_is_nothing() {
    let mut message = vec![3, 1, 0, 0, 0, 0, 0, 0];
    message.extend(ipv4(PEER, US, 6, 1500));
    message.extend(TCP);
    let sum = finish(add(0, &message));
    message[2..4].copy_from_slice(&sum);
    let mut frame = vec![2; 12];
    frame.extend([8, 0]);
    frame.extend(ipv4(ROUTER, US, 1, 20 + message.len()));
    frame.extend(message);
    assert_eq!(parse(&frame), None);
}

#[test]
fn fuzz_icmp() {
    bolero::check!().with_iterations(20_000).with_max_len(160).for_each(|bytes: &[u8]| {
        let _ = parse(bytes);
        let mut frame = v4(3, 4, 1400);
        for (i, byte) in bytes.iter().enumerate() {
            let at = 14 + i % (frame.len() - 14);
            frame[at] = *byte;
        }
        let _ = parse(&frame);
        frame[12..14].copy_from_slice(&[0x86, 0xdd]);
        let _ = parse(&frame);
    });
}
