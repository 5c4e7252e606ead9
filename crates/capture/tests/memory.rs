//! The memory between a service and the command that captures.
#![allow(clippy::unwrap_used)]

mod common;

use common::records;
use rustix::fd::AsFd;
use std::sync::Arc;
use towpath_capture::cbpf::Program;
use towpath_capture::memory::LEAST_RING;
use towpath_capture::record::{HEADER_BYTES, Header, Kind, Name};
use towpath_capture::{Filter, Memory, Reader, Tap, Wish};
use towpath_modules::{Insn, Module, Object};

fn header(time_ns: u64) -> Header {
    Header { kind: Kind::Frame { outgoing: time_ns.is_multiple_of(2) }, place: 3, time_ns, length: 9000 }
}

#[test]
fn frames_come_out_as_they_went_in_also_where_the_ring_wraps() {
    let (memory, mut writers) = Memory::new(2, 0).unwrap();
    let mut reader = Reader::new(memory.as_fd()).unwrap();
    let bytes: Vec<u8> = (0..40_001u32).map(|i| (i % 251) as u8).collect();
    for round in 0..50u64 {
        writers[1].batch().leave(header(round), &bytes[..bytes.len() - round as usize]);
        assert_eq!(records(&mut reader, 1), [(header(round), bytes[..bytes.len() - round as usize].to_vec())]);
        assert!(records(&mut reader, 1).is_empty() && records(&mut reader, 0).is_empty());
    }
    assert_eq!(reader.counts(), (50, 0));
}

#[test]
fn a_full_ring_drops_and_counts_and_goes_on_when_it_is_read() {
    let (memory, mut writers) = Memory::new(1, 1).unwrap();
    let mut reader = Reader::new(memory.as_fd()).unwrap();
    let frame = vec![7; 1000];
    let fit = LEAST_RING as usize / 1024;
    for _ in 0..fit + 10 {
        writers[0].batch().leave(header(0), &frame);
    }
    assert_eq!(reader.counts(), (fit as u64 + 10, 10));
    assert_eq!(records(&mut reader, 0).len(), fit);
    writers[0].batch().leave(header(0), &frame);
    assert_eq!(records(&mut reader, 0)[0].1, frame);
    assert_eq!(reader.counts(), (fit as u64 + 11, 10));
}

#[test]
fn a_reader_that_writes_nonsense_only_loses_frames() {
    let (memory, mut writers) = Memory::new(1, 0).unwrap();
    let mut reader = Reader::new(memory.as_fd()).unwrap();
    // The reader's position of the first ring.
    for nonsense in [1u64, 8, u64::MAX, 1 << 63, u64::from(LEAST_RING)] {
        rustix::io::pwrite(memory.as_fd(), &nonsense.to_ne_bytes(), 4096).unwrap();
        for _ in 0..2000 {
            writers[0].batch().leave(header(0), &[1; 1000]);
        }
    }
    records(&mut reader, 0);
}

/// A batch is seen when it is whole. What has no room is dropped, and a shorter frame behind it is kept.
#[test]
fn a_batch_is_left_together_as_far_as_there_is_room() {
    let (memory, mut writers) = Memory::new(1, 1).unwrap();
    let mut reader = Reader::new(memory.as_fd()).unwrap();
    let mut batch = writers[0].batch();
    for bytes in [1000, 2000, LEAST_RING as usize, 3000] {
        batch.leave(header(bytes as u64), &vec![7; bytes]);
    }
    assert!(records(&mut reader, 0).is_empty());
    drop(batch);
    let lengths: Vec<_> = records(&mut reader, 0).iter().map(|(_, bytes)| bytes.len()).collect();
    assert_eq!((lengths, reader.counts()), (vec![1000, 2000, 3000], (4, 1)));
}

/// A reader whose room is too small for all of them takes whole records, and the others later.
#[test]
fn records_are_taken_whole() {
    let (memory, mut writers) = Memory::new(1, 0).unwrap();
    let mut reader = Reader::new(memory.as_fd()).unwrap();
    for number in 0..1000 {
        writers[0].batch().leave(header(number), &vec![number as u8; 1 + number as usize % 300]);
    }
    let (mut seen, mut to) = (0, [0; 1003]);
    while reader.take(0, &mut to, |_, about, bytes| {
        assert_eq!((about, bytes), (header(seen), &vec![seen as u8; 1 + seen as usize % 300][..]));
        seen += 1;
    }) > 0
    {}
    assert_eq!(seen, 1000);
    writers[0].batch().leave(header(0), &[1; 1000]);
    assert_eq!(reader.take(0, &mut to, |_, _, _| panic!("it is longer")), 0);
    assert_eq!(records(&mut reader, 0).len(), 1);
}

/// The service is believed only as far as its words agree with each other.
#[test]
fn a_ring_that_contradicts_itself_is_read_no_further() {
    // The writer's position of the first ring, and its first record's length.
    for (tail, length) in [(8u64, 0u32), (1 << 40, 8), (u64::MAX, 8), (64, 1000), (64, u32::MAX), (67, 40)] {
        let (memory, _writers) = Memory::new(1, 0).unwrap();
        let mut reader = Reader::new(memory.as_fd()).unwrap();
        let mut record = header(1).encode(0);
        record[..4].copy_from_slice(&length.to_ne_bytes());
        rustix::io::pwrite(memory.as_fd(), &record[..HEADER_BYTES], 8192).unwrap();
        rustix::io::pwrite(memory.as_fd(), &tail.to_ne_bytes(), 4096 + 128).unwrap();
        let found: usize = (0..3).map(|_| records(&mut reader, 0).len()).sum();
        assert!(found <= 1, "{tail} {length}: {found}");
        assert_eq!(found == 1, tail == 67, "{tail} {length}");
    }
}

#[test]
fn other_memory_is_refused() {
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    let other = rustix::fs::memfd_create("other", flags).unwrap();
    assert!(Reader::new(other.as_fd()).is_err());
    let (memory, _writers) = Memory::new(1, 0).unwrap();
    rustix::io::pwrite(memory.as_fd(), &3u32.to_ne_bytes(), 8).unwrap();
    assert!(Reader::new(memory.as_fd()).is_err(), "its size is another one");
}

#[test]
fn a_tap_filters_and_cuts() {
    let (memory, mut writers) = Memory::new(1, 0).unwrap();
    let mut reader = Reader::new(memory.as_fd()).unwrap();
    // The first byte is 1: 96 bytes of it.
    let filter = Program::parse("4,48 0 0 0,21 0 1 1,6 0 0 96,6 0 0 0").unwrap();
    let wish = Wish { filter: Some(Filter::Program(filter.into())), snap: 200, bytes: 0 };
    let mut tap = Tap::new(writers.remove(0), &wish);
    tap.frame(0, true, 5, &[1; 300]);
    tap.frame(0, true, 6, &[2; 300]);
    let [(header, bytes)] = &records(&mut reader, 0)[..] else { panic!("one is kept") };
    assert_eq!((bytes.len(), header.length, header.time_ns), (96, 300, 5));
    assert_eq!(reader.counts(), (1, 0));
}

#[test]
fn a_module_keeps_what_it_lets_pass_and_has_only_copies() {
    let insn = |code, dst, src, off, imm| Insn { code, dst, src, off, imm };
    let mut object = Object::null();
    // A first byte of 1 passes, and is set to 9.
    object.programs[0].insns = vec![
        insn(0x61, 2, 1, 0, 0),
        insn(0x61, 3, 1, 4, 0),
        insn(0xbf, 4, 2, 0, 0),
        insn(0x07, 4, 0, 0, 1),
        insn(0xb7, 0, 0, 0, 1),
        insn(0x2d, 4, 3, 4, 0),
        insn(0x71, 5, 2, 0, 0),
        insn(0x72, 2, 0, 0, 9),
        insn(0x55, 5, 0, 1, 1),
        insn(0xb7, 0, 0, 0, 2),
        insn(0x95, 0, 0, 0, 0),
    ];
    let module = Arc::new(Module::interpreted(&object, 0, 1).unwrap());
    let (memory, mut writers) = Memory::new(1, 1 << 20).unwrap();
    let mut reader = Reader::new(memory.as_fd()).unwrap();
    let wish = Wish { filter: Some(Filter::Module(module)), snap: 80_000, bytes: 0 };
    let mut tap = Tap::new(writers.remove(0), &wish);
    // Also the longest frames, and one that is longer than any.
    for length in [1, 300, 65_549, 70_000] {
        tap.frame(0, true, 5, &vec![2; length]);
        tap.frame(0, true, 6, &vec![1; length]);
        let [(header, bytes)] = &records(&mut reader, 0)[..] else { panic!("one is kept") };
        assert_eq!((header.time_ns, bytes), (6, &vec![1; length]));
    }
    tap.frame(0, true, 7, &[]);
    assert!(records(&mut reader, 0).is_empty());
    assert_eq!(reader.counts(), (4, 0));
}

#[test]
fn a_name_comes_out_as_it_went_in() {
    for (local, remote) in [("10.0.0.1:80", "0.0.0.0:0"), ("[fd00::1]:80", "[fd00::2]:4000")] {
        let (local, remote) = (local.parse().unwrap(), remote.parse().unwrap());
        let name = Name { local, remote, pid: 7, uid: 1000, program: "redis-server".into() };
        assert_eq!(Name::decode(&name.encode()), Some(name));
    }
    assert_eq!(Name::decode(&[0; 43]), None);
}
