//! Records are decoded as they were encoded, and other bytes are refused.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use towpath_kernel::record::{ConnectionRecord, DecodeError, Invalid, Queue, Settings, VERSION, Window};

fn record() -> ConnectionRecord {
    ConnectionRecord {
        local: "192.0.2.1:4000".parse().unwrap(),
        remote: "198.51.100.7:80".parse().unwrap(),
        send: Queue { first: u32::MAX - 2, bytes: b"to be sent".to_vec() },
        sent: 5,
        receive: Queue { first: 77, bytes: b"unread".to_vec() },
        window: Window { update: 70, send: 65_535 << 7, largest: 65_535 << 7, receive: 1 << 20, announced_at: 80 },
        mss: 1448,
        scale: Some((7, 10)),
        sack: true,
        timestamp: Some(0xdead_beef),
        settings: Settings {
            no_delay: true,
            keepalive: Some((Duration::from_secs(60), Duration::from_secs(5), 3)),
            linger: Some(Duration::ZERO),
            congestion: Some("cubic".into()),
            ..Settings::default()
        },
    }
}

/// With the right length.
fn sized(mut bytes: Vec<u8>) -> Vec<u8> {
    let fields = bytes.len() as u32 - 10;
    bytes[6..10].copy_from_slice(&fields.to_le_bytes());
    bytes
}

fn without(bytes: &[u8], field: u16) -> Vec<u8> {
    let (mut out, mut rest) = (bytes[..10].to_vec(), &bytes[10..]);
    while !rest.is_empty() {
        let len = 6 + u32::from_le_bytes(rest[2..6].try_into().unwrap()) as usize;
        if u16::from_le_bytes([rest[0], rest[1]]) != field {
            out.extend(&rest[..len]);
        }
        rest = &rest[len..];
    }
    sized(out)
}

#[test]
fn a_record_comes_back_as_it_was() {
    assert_eq!(ConnectionRecord::decode(&record().encode()), Ok(record()));
    assert_eq!(record().send_next(), 2, "sequence numbers go round");
    assert_eq!(record().receive_next(), 83);
}

#[test]
fn fields_of_later_writers_are_skipped_and_absent_ones_have_defaults() {
    let mut bytes = record().encode();
    bytes.extend(*b"\xff\x7f\x03\x00\x00\x00new");
    assert_eq!(ConnectionRecord::decode(&bytes), Err(DecodeError::Short), "longer than it says");
    assert_eq!(ConnectionRecord::decode(&sized(bytes)), Ok(record()));
    let plain = without(&without(&record().encode(), 8), 10);
    let expected = ConnectionRecord {
        scale: None,
        timestamp: None,
        window: Window { send: 9, largest: 9, receive: 9, ..record().window },
        ..record()
    };
    let small = ConnectionRecord { window: expected.window, ..ConnectionRecord::decode(&record().encode()).unwrap() };
    assert_eq!(
        ConnectionRecord::decode(&plain),
        Err(DecodeError::Invalid(Invalid::Window)),
        "no scale for such windows"
    );
    assert_eq!(ConnectionRecord::decode(&without(&without(&small.encode(), 8), 10)), Ok(expected));
}

#[test]
fn what_is_no_record_is_refused() {
    let bytes = record().encode();
    assert_eq!(ConnectionRecord::decode(b"GET / HTTP/1.1\r\n"), Err(DecodeError::NotOne));
    for len in 0..bytes.len() {
        assert!(ConnectionRecord::decode(&bytes[..len]).is_err(), "cut off after {len}");
    }
    let mut later = bytes.clone();
    later[4..6].copy_from_slice(&(VERSION + 1).to_le_bytes());
    assert_eq!(ConnectionRecord::decode(&later), Err(DecodeError::Version(VERSION + 1)));
    for field in 1..=7 {
        assert_eq!(ConnectionRecord::decode(&without(&bytes, field)), Err(DecodeError::Missing(field)));
    }
}

#[test]
fn what_cannot_be_is_refused() {
    type Spoil = fn(&mut ConnectionRecord);
    let cases: [(Invalid, Spoil); 8] = [
        (Invalid::Families, |record| record.local = "[2001:db8::1]:1".parse().unwrap()),
        (Invalid::NoEnd, |record| record.remote.set_port(0)),
        (Invalid::NoEnd, |record| record.local.set_ip(IpAddr::from([0, 0, 0, 0]))),
        (Invalid::Sent, |record| record.sent = 11),
        (Invalid::Scale, |record| record.scale = Some((15, 0))),
        (Invalid::Mss, |record| record.mss = 47),
        (Invalid::Window, |record| record.window.receive = u32::MAX),
        (Invalid::Congestion, |record| record.settings.congestion = Some("../x".into())),
    ];
    for (expected, spoil) in cases {
        let mut record = record();
        spoil(&mut record);
        assert_eq!(ConnectionRecord::decode(&record.encode()), Err(expected.into()));
    }
}

#[test]
fn any_bytes_are_a_record_or_refused() {
    let seed = record().encode();
    bolero::check!().with_type::<(Vec<u8>, u16, u8)>().for_each(|(bytes, at, value)| {
        let _ = ConnectionRecord::decode(bytes);
        let mut spoiled = seed.clone();
        let at = usize::from(*at) % spoiled.len();
        spoiled[at] = *value;
        if let Ok(record) = ConnectionRecord::decode(&spoiled) {
            assert_eq!(ConnectionRecord::decode(&record.encode()), Ok(record), "what is accepted can be passed on");
        }
    });
}

proptest! {
    #[test]
    fn all_records_that_can_be_come_back(
        port in 1u16.., six: bool, first: u32, bytes: Vec<u8>, unread: Vec<u8>, mss in 48u16.., shifts in proptest::option::of((0u8..15, 0u8..15)),
        stamp: Option<u32>, class: Option<u8>, hops: Option<u8>, buffers: Option<(u32, u32)>, user in proptest::option::of(0u32..),
    ) {
        let ip: IpAddr = if six { "fe80::1%0".split('%').next().unwrap().parse().unwrap() } else { [192, 0, 2, 9].into() };
        let settings = Settings {
            traffic_class: class, hops, buffers, user_timeout: user.map(|ms| Duration::from_millis(u64::from(ms))), ..Settings::default()
        };
        let record = ConnectionRecord {
            local: SocketAddr::from((ip, port)), remote: SocketAddr::from((ip, 80)), sent: bytes.len() as u32 / 2,
            send: Queue { first, bytes }, receive: Queue { first: !first, bytes: unread }, window: Window::default(), mss, scale: shifts,
            sack: six, timestamp: stamp, settings,
        };
        prop_assert_eq!(ConnectionRecord::decode(&record.encode()), Ok(record));
    }
}
