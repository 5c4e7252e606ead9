//! A peer at the other end of a byte stream that violates the protocol ends the link, and nothing else happens.
#![allow(clippy::unwrap_used)]

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::sync::Arc;
use std::time::Duration;
use towpath_remote::link::inbox;
use towpath_remote::link::stream::{HEADER, Stream};
use towpath_remote::{Broken, Link};
use towpath_ring::span::Span;

const KEY: u32 = inbox::KEYS;
const MEMORY: usize = 8192;

/// A frame of the protocol.
fn frame(number: u32, key: u32, offset: u64, bytes: &[u8], immediate: Option<u32>) -> Vec<u8> {
    let mut frame = vec![if immediate.is_some() { b'I' } else { b'W' }, 0, 0, 0];
    let words = [number, key, bytes.len() as u32, offset as u32, (offset >> 32) as u32, immediate.unwrap_or(0)];
    words.iter().for_each(|word| frame.extend(word.to_le_bytes()));
    assert_eq!(frame.len(), HEADER);
    frame.extend_from_slice(bytes);
    frame
}

/// The result of these bytes: entries, then why the link ended.
fn read(bytes: &[u8]) -> (Vec<Vec<u8>>, Broken, Span) {
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    let link = Arc::new(Stream::new(theirs).unwrap()) as Arc<dyn Link>;
    let (_outbox, mut inbox) = inbox::open(&link).unwrap();
    let memory = Span::fresh(MEMORY).unwrap();
    link.register(KEY, memory.clone()).unwrap();
    let bytes = bytes.to_vec();
    let writer = std::thread::spawn(move || {
        // The reader may have ended the link.
        let _ = std::io::Write::write_all(&mut std::fs::File::from(ours), &bytes);
    });
    let (mut arrivals, mut records) = (Vec::new(), Vec::new());
    let broken = loop {
        let waited = link.wait(&mut arrivals, Duration::from_secs(10));
        let read = arrivals.drain(..).try_for_each(|arrival| {
            let each = |_, record: &[u8]| {
                records.push(record.to_vec());
                Ok(())
            };
            inbox.arrived(arrival, each).map(drop)
        });
        if let Err(broken) = waited.and(read) {
            break broken;
        }
    };
    drop((link, _outbox));
    writer.join().unwrap();
    (records, broken, memory)
}

/// Three entries and some bytes, as an honest peer sends them.
fn honest() -> Vec<u8> {
    let mut all = frame(0, KEY, 100, b"payload", None);
    let mut tail = 0;
    for (number, record) in [(1, &b"first"[..]), (2, &b"second"[..]), (3, &b""[..])] {
        let mut bytes = (record.len() as u32).to_le_bytes().to_vec();
        bytes.extend_from_slice(record);
        all.extend(frame(number, 0, tail, &bytes, Some(bytes.len() as u32)));
        tail += bytes.len() as u64;
    }
    all
}

#[test]
fn what_an_honest_peer_sends_arrives_however_it_is_cut() {
    let (records, broken, memory) = read(&honest());
    assert_eq!(records, [&b"first"[..], b"second", b""]);
    assert!(matches!(broken, Broken::Ended), "{broken}");
    let mut got = [0; 7];
    memory.read(100, &mut got);
    assert_eq!(&got, b"payload");
    for cut in 0..honest().len() {
        let (records, broken, _) = read(&honest()[..cut]);
        assert!(records.len() <= 3 && matches!(broken, Broken::Ended), "cut at {cut}: {broken}");
    }
}

#[test]
fn frames_that_are_replayed_missing_or_too_long_end_the_link() {
    let one = |number| frame(number, KEY, 0, b"x", None);
    let long = |length: u32| {
        let mut frame = one(0);
        frame[12..16].copy_from_slice(&length.to_le_bytes());
        frame
    };
    let mail = |bytes: &[u8], immediate| frame(0, 0, 0, bytes, Some(immediate));
    let cases = [
        ([one(0), one(0)].concat(), "twice"),
        ([one(0), one(2)].concat(), "missing"),
        (long(1 << 20), "too long"),
        (long(u32::MAX), "too long"),
        (frame(0, KEY + 1, 0, b"x", None), "no memory"),
        (frame(0, KEY, MEMORY as u64, b"x", None), "as long"),
        (frame(0, KEY, u64::MAX, b"xyz", Some(0)), "as long"),
        (vec![0; 100], "begins so"),
        (mail(&9u32.to_le_bytes(), 4), "longer than what has come"),
        (mail(&u32::MAX.to_le_bytes(), 8), "longer than what has come"),
        (mail(&[], (1 << 31) - 1), "more has come"),
        (mail(&[], 3), "longer than what has come"),
    ];
    for (bytes, why) in cases {
        let (records, broken, memory) = read(&bytes);
        assert!(broken.to_string().contains(why), "{broken}, not {why}");
        assert!(records.is_empty());
        let mut beyond = [0; 8];
        memory.read(MEMORY as u64 - 8, &mut beyond);
        assert_eq!(beyond, [0; 8]);
    }
}

#[test]
fn fuzz_bytes_of_a_stream() {
    type Edit = (u16, u8);
    type Extra = Vec<(u8, u64, Vec<u8>, Option<u32>)>;
    bolero::check!().with_type::<(Vec<Edit>, Extra, Vec<u8>)>().with_iterations(1_000).for_each(
        |(edits, extra, noise)| {
            let mut bytes = honest();
            for (number, (key, offset, part, immediate)) in (4..).zip(extra.iter().take(8)) {
                // Mostly inside registered memory.
                let key = if key % 4 == 0 { u32::from(*key) } else { KEY * u32::from(key % 2) };
                bytes.extend(frame(number, key, offset % (2 * MEMORY as u64), part, *immediate));
            }
            for (at, byte) in edits.iter().take(4) {
                let at = usize::from(*at) % bytes.len();
                bytes[at] = *byte;
            }
            bytes.extend_from_slice(noise);
            let (records, _, _) = read(&bytes);
            assert!(records.iter().map(Vec::len).sum::<usize>() <= 16 * inbox::LONGEST);
        },
    );
}
