//! Pair regions: the memory that each side gets, and the calls that are refused.
#![allow(clippy::unwrap_used)]

use rustix::fd::AsFd;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use towpath_ring::pair::{Unread, parts, release, release_all_but};
use towpath_ring::{Geometry, PairGeometry, PairRegion, Region};

const GEOMETRY: PairGeometry = PairGeometry { slots: 64, ring_bytes: 4096 };

#[test]
fn both_sides_see_each_others_words_and_rings() {
    let (service, memfd) = PairRegion::create(GEOMETRY, 7).unwrap();
    let [a, b] = [0, 1].map(|_| PairRegion::map(memfd.as_fd(), GEOMETRY, 7).unwrap());
    a.ring(63, 0).unwrap().write(4090, b"hello, world");
    a.lines(63, 0).line.tx_tail.store(4102, Relaxed);
    assert_eq!(b.lines(63, 0).line.tx_tail.load(Relaxed), 4102);
    let mut got = [0; 12];
    b.ring(63, 0).unwrap().read(4090, &mut got);
    assert_eq!(&got, b"hello, world");
    assert_eq!(service.lines(63, 0).line.tx_tail.load(Relaxed), 4102);
    assert!(service.ring(63, 0).is_none(), "the service does not even map what others say to each other");
    // A slot number out of range gives another slot of the region, not memory outside it.
    a.lines(64 + 5, 1).line.rx_head.store(9, Relaxed);
    assert_eq!(b.lines(5, 1).line.rx_head.load(Relaxed), 9);
}

#[test]
fn a_hint_is_of_the_byte_at_that_position() {
    let (service, memfd) = PairRegion::create(GEOMETRY, 7).unwrap();
    let region = PairRegion::map(memfd.as_fd(), GEOMETRY, 7).unwrap();
    for (n, (slot, side, position)) in (1..).zip([(0, 0, 0), (0, 1, 4095), (5, 0, 7), (5, 1, 4096), (63, 1, 10_000)]) {
        region.ring(slot, side).unwrap().write(position, &[n]);
        let at = region.byte(slot, side, position).unwrap();
        // SAFETY: the byte is in a ring that this process has mapped, and nobody writes to it now.
        assert_eq!(unsafe { at.read_volatile() }, n, "{slot} {side} {position}");
    }
    assert_eq!(region.byte(64 + 5, 2, 4096 + 7), region.byte(5, 0, 7), "numbers out of range stay in the region");
    assert!(service.byte(0, 0, 0).is_none());
    let lines = region.lines(3, 1);
    assert!(core::ptr::eq(lines.line.raised(), &raw const lines.line.data_seq), "one word with two names");
}

#[test]
fn a_span_of_an_end_is_that_of_its_ring() {
    let (service, memfd) = PairRegion::create(GEOMETRY, 7).unwrap();
    let region = PairRegion::map(memfd.as_fd(), GEOMETRY, 7).unwrap();
    for (slot, side) in [(0, 0), (0, 1), (63, 0), (63, 1), (64 + 5, 0), (u32::MAX, 3)] {
        let (end, ring) = (region.end(slot, side), region.ring(slot, side).unwrap());
        assert_eq!(end.other(), region.end(slot, 1 - (side & 1)));
        assert!(core::ptr::eq(region.lines_of(end), region.lines(slot, side)));
        for (at, len) in [(0, 1), (4095, 1), (4095, 2), (4096, 4096), (7, 4096), (u32::MAX, 1), (0, 4097)] {
            let span = ring.span(at, len);
            assert_eq!(region.span(end, at, len), span, "{slot} {side} {at} {len}");
            assert_eq!(region.piece(end, at, len as u32, usize::MAX), span.map(|from| (from, len)));
        }
        assert_eq!(region.piece(end, 0, 0, 9), None, "nothing is unread");
        assert_eq!(region.piece(end, 4090, 20, 6), ring.span(4090, 6).map(|from| (from, 6)), "as many as are wanted");
        assert!(service.span(end, 0, 1).is_none());
    }
}

#[test]
fn event_bitmaps_give_each_slot_once_and_bound_what_a_hostile_side_can_do() {
    let (_, memfd) = PairRegion::create(GEOMETRY, 1).unwrap();
    let [a, b] = [0, 1].map(|_| PairRegion::map(memfd.as_fd(), GEOMETRY, 1).unwrap());
    for slot in [3, 3, 60, 0, 3, 64, u32::MAX] {
        a.event_bitmap(1, 9).post(slot);
    }
    let taken = |bitmap: towpath_ring::event_bitmap::EventBitmap<'_>| {
        let mut slots = Vec::new();
        bitmap.take(|slot| slots.push(slot));
        slots
    };
    assert_eq!(taken(b.event_bitmap(1, 9)), [0, 3, 60]);
    assert!(
        taken(b.event_bitmap(1, 9)).is_empty()
            && taken(b.event_bitmap(1, 8)).is_empty()
            && taken(b.event_bitmap(0, 9)).is_empty()
    );
    let words = a.bitmap_words(1, 9);
    words.summary.store(u64::MAX, SeqCst);
    words.words.iter().for_each(|word| word.store(u64::MAX, SeqCst));
    let all: BTreeSet<u32> = taken(b.event_bitmap(1, 9)).into_iter().collect();
    assert_eq!(all, (0..64).collect(), "never a slot that the region does not have");
    assert!(!a.event_bitmap(1, 9).must_notify());
    b.event_bitmap(1, 9).arm();
    assert!(
        a.event_bitmap(1, 9).must_notify() && !a.event_bitmap(1, 9).must_notify(),
        "one request gets one notification"
    );
}

#[test]
fn another_pair_takes_the_place_under_the_same_addresses() {
    let (_, first) = PairRegion::create(GEOMETRY, 1).unwrap();
    let (_, second) = PairRegion::create(GEOMETRY, 2).unwrap();
    let mapped = PairRegion::map(first.as_fd(), GEOMETRY, 1).unwrap();
    let line = &mapped.lines(0, 0).line;
    line.tx_tail.store(5, Relaxed);
    mapped.replace(second.as_fd(), GEOMETRY, 2).unwrap();
    assert_eq!(line.tx_tail.load(Relaxed), 0);
    line.tx_tail.store(6, Relaxed);
    let other = PairRegion::map(second.as_fd(), GEOMETRY, 2).unwrap();
    assert_eq!(other.lines(0, 0).line.tx_tail.load(Relaxed), 6);
    release(second.as_fd(), GEOMETRY, true);
    assert_eq!(other.lines(0, 0).line.tx_tail.load(Relaxed), 6, "the lines stay");
    release(second.as_fd(), GEOMETRY, false);
    assert_eq!(other.lines(0, 0).line.tx_tail.load(Relaxed), 0);
}

#[test]
fn what_is_no_such_pair_is_not_mapped() {
    let (_, memfd) = PairRegion::create(GEOMETRY, 3).unwrap();
    assert!(PairRegion::map(memfd.as_fd(), GEOMETRY, 4).is_err(), "another pair");
    for wrong in [
        PairGeometry { slots: 128, ..GEOMETRY },
        PairGeometry { slots: 63, ..GEOMETRY },
        PairGeometry { slots: 1 << 20, ..GEOMETRY },
        PairGeometry { ring_bytes: 8192, ..GEOMETRY },
        PairGeometry { ring_bytes: 0, ..GEOMETRY },
    ] {
        assert!(PairRegion::map(memfd.as_fd(), wrong, 3).is_err(), "{wrong:?}");
    }
    let small = Geometry { slots: 16, app_slots: 8, tx_bytes: 4096, rx_bytes: 4096, contexts: 1, ..Geometry::DEFAULT };
    let (_, region) = Region::create(small).unwrap();
    assert!(PairRegion::map(region.as_fd(), GEOMETRY, 3).is_err(), "a client's region");
    let (pipe, _) = rustix::pipe::pipe().unwrap();
    assert!(PairRegion::map(pipe.as_fd(), GEOMETRY, 3).is_err(), "no memfd");
}

#[test]
fn each_field_of_a_header_is_checked() {
    for (at, wrong) in [(0, b"t"), (8, b"\xff"), (12, b"\x09")] {
        let (service, memfd) = PairRegion::create(GEOMETRY, 3).unwrap();
        assert!(PairRegion::map(memfd.as_fd(), GEOMETRY, 3).is_ok());
        rustix::io::pwrite(&memfd, wrong, at).unwrap();
        assert!(PairRegion::map(memfd.as_fd(), GEOMETRY, 3).is_err(), "byte {at}");
        drop(service);
    }
}

#[test]
fn a_retired_pair_has_zeros_of_its_own_at_the_same_addresses() {
    let (service, memfd) = PairRegion::create(GEOMETRY, 3).unwrap();
    let app = PairRegion::map(memfd.as_fd(), GEOMETRY, 3).unwrap();
    let word = &app.lines(9, 1).line.tx_tail;
    word.store(7, Relaxed);
    app.retire().unwrap();
    assert_eq!(word.load(Relaxed), 0);
    word.store(9, Relaxed);
    assert_eq!(service.lines(9, 1).line.tx_tail.load(Relaxed), 7, "the other side's are its own");
}

#[test]
fn sizes_follow_from_the_clients_rings() {
    let of = |tx_bytes, rx_bytes| PairGeometry::of(&Geometry { tx_bytes, rx_bytes, ..Geometry::DEFAULT });
    assert_eq!(of(4096, 4096), PairGeometry { slots: 4096, ring_bytes: 8192 });
    assert_eq!(of(4096, 131_072), PairGeometry { slots: 4096, ring_bytes: 262_144 });
    assert_eq!(of(16 << 20, 16 << 20), PairGeometry { slots: 64, ring_bytes: 32 << 20 });
}

#[test]
fn a_side_keeps_at_most_its_own_half_of_a_ring_from_being_used() {
    let geometry = PairGeometry { slots: 64, ring_bytes: 262_144 };
    // An option that is not set, or is larger than the ring, keeps nothing back.
    assert_eq!([0, 262_144, u32::MAX].map(|buffer| geometry.send_withheld(buffer)), [0; 3]);
    assert_eq!([0, 262_144, u32::MAX].map(|buffer| geometry.receive_withheld(buffer)), [0; 3]);
    assert_eq!(131_072 - geometry.send_withheld(8192), 4096);
    assert_eq!(131_072 - geometry.receive_withheld(8192), 6144);
    assert!(geometry.send_withheld(1) + geometry.receive_withheld(1) < geometry.ring_bytes);
}

#[test]
fn only_what_the_other_side_has_to_read_outlives_a_side() {
    let geometry = PairGeometry { slots: 64, ring_bytes: 16384 };
    let (_, memfd) = PairRegion::create(geometry, 4).unwrap();
    let app = PairRegion::map(memfd.as_fd(), geometry, 4).unwrap();
    for (slot, side) in (0..64).flat_map(|slot| [(slot, 0), (slot, 1)]) {
        app.ring(slot, side).unwrap().write(0, &[1; 16384]);
    }
    let memory = || rustix::fs::fstat(&memfd).unwrap().st_blocks as u64 * 512;
    // One that wraps, and one that contradicts the contract.
    let unread =
        [Unread { slot: 7, side: 1, from: 16384 - 100, len: 200 }, Unread { slot: 9, side: 0, from: 5, len: u32::MAX }];
    release_all_but(memfd.as_fd(), geometry, &unread);
    assert_eq!(memory(), 4096 + 2 * 4096 + 16384, "the header, two pages and a ring");
    let mut got = [0; 200];
    app.ring(7, 1).unwrap().read(16384 - 100, &mut got);
    assert_eq!(got, [1; 200]);
    app.ring(7, 0).unwrap().read(0, &mut got);
    assert_eq!(got, [0; 200]);
    let mut whole = [0; 16384];
    app.ring(9, 0).unwrap().read(0, &mut whole);
    assert_eq!(whole, [1; 16384]);
    release_all_but(memfd.as_fd(), geometry, &[]);
    assert_eq!(memory(), 4096);
    // Exactly the pages of what is to be read, in whatever order it is named. A slot is taken modulo the slots.
    let ring = app.ring(63, 1).unwrap();
    for (from, len, pages) in [(0, 1, 1), (4095, 1, 1), (4095, 2, 2), (4096, 4096, 1), (4096, 4097, 2), (16383, 2, 2)] {
        ring.write(0, &[1; 16384]);
        [62, 5].into_iter().for_each(|slot| app.ring(slot, 0).unwrap().write(0, &[1; 16384]));
        let unread = [
            Unread { slot: 64 + 63, side: 3, from, len },
            Unread { slot: 62, side: 0, from: 8192, len: 1 },
            Unread { slot: 5, side: 0, from: 100, len: 0 },
        ];
        release_all_but(memfd.as_fd(), geometry, &unread);
        assert_eq!(memory(), 4096 * (1 + 1 + pages), "{len} bytes from {from}");
        let mut got = vec![0; len as usize];
        ring.read(from, &mut got);
        assert_eq!(got, vec![1; len as usize], "{len} bytes from {from}");
    }
}

#[test]
fn each_side_has_lines_and_a_ring_of_its_own_for_each_slot() {
    let (_service, memfd) = PairRegion::create(GEOMETRY, 1).unwrap();
    let app = PairRegion::map(memfd.as_fd(), GEOMETRY, 1).unwrap();
    let lines = |slot, side| std::ptr::from_ref(app.lines(slot, side)).addr();
    let ring = |slot, side| app.ring(slot, side).unwrap().span(0, 4096).unwrap().addr();
    let begin = lines(0, 0) - 4096;
    let [bitmaps, rings, end] = parts(GEOMETRY);
    for at in 0..128 {
        let (slot, side) = (at as u32 / 2, at % 2);
        assert_eq!(lines(slot, side), begin + 4096 + 256 * at);
        assert_eq!(ring(slot, side), begin + rings + 4096 * at);
        assert_eq!((lines(64 + slot, 2 + side), ring(64 + slot, 2 + side)), (lines(slot, side), ring(slot, side)));
    }
    assert_eq!((bitmaps, end), (4096 + 256 * 128, rings + 4096 * 128));
    assert_eq!(std::ptr::from_ref(app.bitmap_words(0, 0)).addr(), begin + bitmaps);
    assert_eq!(rings, (bitmaps + 640 * 128).next_multiple_of(65_536));
}

#[test]
fn a_region_whose_own_sizes_are_no_pairs_is_not_mapped() {
    for wrong in [
        PairGeometry { slots: 32, ..GEOMETRY },
        PairGeometry { slots: 96, ..GEOMETRY },
        PairGeometry { slots: 8192, ..GEOMETRY },
        PairGeometry { ring_bytes: 2048, ..GEOMETRY },
        PairGeometry { ring_bytes: 12_288, ..GEOMETRY },
        PairGeometry { ring_bytes: 128 << 20, ..GEOMETRY },
    ] {
        let (_service, memfd) = PairRegion::create(wrong, 1).unwrap();
        assert!(PairRegion::map(memfd.as_fd(), wrong, 1).is_err(), "{wrong:?}");
    }
    for right in [PairGeometry { slots: 4096, ..GEOMETRY }, PairGeometry { ring_bytes: 64 << 20, ..GEOMETRY }] {
        let (_service, memfd) = PairRegion::create(right, 1).unwrap();
        assert!(PairRegion::map(memfd.as_fd(), right, 1).is_ok(), "{right:?}");
    }
}

#[test]
fn each_side_has_a_bitmap_of_its_own_for_each_context() {
    let (service, _memfd) = PairRegion::create(GEOMETRY, 1).unwrap();
    let at = |side, context| std::ptr::from_ref(service.bitmap_words(side, context)).addr();
    let all: BTreeSet<usize> = (0..2).flat_map(|side| (0..64).map(move |context| at(side, context))).collect();
    assert_eq!((all.len(), all.last().unwrap() - all.first().unwrap()), (128, 127 * 640));
    assert_eq!((at(2, 64), at(3, 65)), (at(0, 0), at(1, 1)));
}
