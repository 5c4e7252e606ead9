//! The memory between a service and the command that captures.
#![allow(clippy::unwrap_used)]

use rustix::fd::AsFd;
use std::sync::Arc;
use towpath_capture::cbpf::Program;
use towpath_capture::memory::LEAST_RING;
use towpath_capture::record::{Header, Kind, Name, Record};
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
        writers[1].leave(header(round), &bytes[..bytes.len() - round as usize]);
        let record = reader.next(1).unwrap();
        assert_eq!(record, Record { header: header(round), bytes: bytes[..bytes.len() - round as usize].to_vec() });
        assert!(reader.next(1).is_none() && reader.next(0).is_none());
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
        writers[0].leave(header(0), &frame);
    }
    assert_eq!(reader.counts(), (fit as u64 + 10, 10));
    assert_eq!((0..).take_while(|_| reader.next(0).is_some()).count(), fit);
    writers[0].leave(header(0), &frame);
    assert_eq!(reader.next(0).unwrap().bytes, frame);
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
            writers[0].leave(header(0), &[1; 1000]);
        }
    }
    while reader.next(0).is_some() {}
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
    let record = reader.next(0).unwrap();
    assert_eq!((record.bytes.len(), record.header.length, record.header.time_ns), (96, 300, 5));
    assert!(reader.next(0).is_none());
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
        let record = reader.next(0).unwrap();
        assert_eq!((record.header.time_ns, record.bytes), (6, vec![1; length]));
    }
    tap.frame(0, true, 7, &[]);
    assert!(reader.next(0).is_none());
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
