//! Regions as their two sides see them.
#![allow(clippy::unwrap_used)]

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use towpath_ring::layout::{HEADER_BYTES, PRIVATE_HEADER_BYTES, PRIVATE_SLOT_BYTES, SlotLines};
use towpath_ring::{CountsLine, Geometry, Layout, MapError, Region, dirty};

/// Small enough that a test may touch all of it.
fn small() -> Geometry {
    Geometry {
        slots: 32,
        app_slots: 16,
        tx_bytes: 4096,
        rx_bytes: 8192,
        contexts: 3,
        flow_groups: 2,
        ..Geometry::DEFAULT
    }
}

#[test]
fn both_sides_see_the_same_words_and_bytes() {
    let (stack, memfd) = Region::create(small()).unwrap();
    let app = Region::map(memfd.as_fd(), small()).unwrap();
    assert_ne!(app.token(), 0);
    assert_eq!(app.token(), stack.token());

    let slot = app.slot(7).unwrap();
    assert!(app.slot(32).is_none());
    app.tx(slot).write(4090, b"hello across the seam");
    app.app(slot).tx_tail.store(4111, Release);
    assert_eq!(stack.app(slot).tx_tail.load(Acquire), 4111);
    let mut got = [0; 21];
    stack.tx(slot).read(4090, &mut got);
    assert_eq!(&got, b"hello across the seam");
}

#[test]
fn a_slot_is_queued_once_until_acknowledged() {
    let (stack, memfd) = Region::create(small()).unwrap();
    let app = Region::map(memfd.as_fd(), small()).unwrap();
    let slot = app.slot(3).unwrap();
    let (mut tail, mut head) = (0, 0);
    let push = |tail: &mut u32| app.data_queue(1).push(tail, slot, &app.app(slot).data_seq, &app.stack(slot).data_ack);
    assert!(push(&mut tail));
    assert!(!push(&mut tail));
    assert!(stack.data_queue(0).is_empty(0));
    assert_eq!(stack.data_queue(1).pop(&mut head), Some(3));
    assert!(!push(&mut tail), "popped, but not acknowledged");
    dirty::acknowledge(&stack.app(slot).data_seq, &stack.stack(slot).data_ack);
    assert!(push(&mut tail));
    assert!(!app.data_queue(1).must_notify());
    stack.data_queue(1).arm();
    assert!(app.data_queue(1).must_notify());
}

/// Marks every byte of a part and checks that no other part has marked it before.
struct Map(Vec<u8>);

impl Map {
    fn claim(&mut self, start: usize, bytes: usize, align: usize) {
        assert_eq!(start % align, 0, "{start} is not a multiple of {align}");
        for byte in &mut self.0[start..start + bytes] {
            assert_eq!(*byte, 0, "parts overlap");
            *byte = 1;
        }
    }
}

#[test]
fn parts_do_not_overlap_and_lie_inside() {
    let layout = Layout::new(small()).unwrap();
    let mut map = Map(vec![0; layout.total_bytes()]);
    map.claim(0, HEADER_BYTES, 4096);
    let all: Vec<_> = layout.app_slots().chain(layout.stack_slots()).collect();
    assert_eq!(all.len(), 32);
    assert!(all.iter().all(|&slot| layout.is_app_slot(slot) == (slot.raw() < 16)));
    for &slot in &all {
        map.claim(layout.lines(slot), 256, 256);
        map.claim(layout.tx(slot), 4096, 4096);
        map.claim(layout.rx(slot), 8192, 4096);
    }
    for queue in 0..layout.threads() {
        map.claim(layout.data_queue(queue), 256, 4096);
        map.claim(layout.entries(layout.data_queue(queue)), 4 * 32, 128);
    }
    for context in 0..3 {
        for thread in 0..layout.threads() {
            map.claim(layout.event(context, thread), 256, 4096);
            map.claim(layout.entries(layout.event(context, thread)), 4 * 32, 128);
            for &slot in &all {
                let (seq, ack) = layout.event_words(context, thread, slot);
                map.claim(seq, 4, 4);
                map.claim(ack, 4, 4);
            }
        }
    }
    map.claim(layout.private(), PRIVATE_HEADER_BYTES + 32 * PRIVATE_SLOT_BYTES, 4096);
    assert_eq!(layout.total_bytes() % 4096, 0);
}

/// Rings that may grow: the rest of each has its place behind all first parts.
#[test]
fn parts_of_rings_that_grow_do_not_overlap_and_fill_the_region() {
    let geometry = Geometry { tx_most: 16_384, rx_most: 65_536, ..small() };
    assert_eq!((geometry.first_halvings(), geometry.tx_space(), geometry.rx_space()), ((2, 3), 16_384, 65_536));
    let layout = Layout::new(geometry).unwrap();
    let mut map = Map(vec![0; layout.total_bytes()]);
    for slot in layout.app_slots().chain(layout.stack_slots()) {
        map.claim(layout.lines(slot), size_of::<SlotLines>(), 256);
        map.claim(layout.counts(slot), size_of::<CountsLine>(), 64);
        map.claim(layout.tx(slot), 4096, 4096);
        map.claim(layout.rx(slot), 8192, 4096);
        map.claim(layout.tx_more(slot), 16_384 - 4096, 4096);
        map.claim(layout.rx_more(slot), 65_536 - 8192, 4096);
    }
    let rings = layout.tx(layout.slot(0).unwrap());
    assert!(map.0[rings..].iter().all(|byte| *byte == 1), "the rings lie at the end, without a gap");
    assert_eq!(layout.total_bytes() - rings, 32 * (16_384 + 65_536));
    map.claim(layout.private(), layout.private_bytes(), 4096);
    assert_eq!(Layout::new(small()).unwrap().geometry().first_halvings(), (0, 0));
    let (region, _memfd) = Region::create(geometry).unwrap();
    assert_eq!(region.grows(), (true, true));
    for (tx_most, rx_most, grows) in
        [(0, 65_536, (false, true)), (16_384, 0, (true, false)), (4096, 8192, (false, false))]
    {
        assert_eq!(Region::create(Geometry { tx_most, rx_most, ..small() }).unwrap().0.grows(), grows);
    }
}

/// The fast path asks for a span without making a ring first.
#[test]
fn a_span_of_a_slots_ring_is_that_of_the_ring() {
    for geometry in [small(), Geometry { tx_most: 16_384, rx_most: 65_536, ..small() }] {
        let (region, _memfd) = Region::create(geometry).unwrap();
        let slot = region.slot(5).unwrap();
        assert_eq!(region.rx_space(), geometry.rx_space());
        let (tx, rx) = (region.tx_halved(slot, 0), region.rx_halved(slot, 0));
        for at in [0, 1, 4095, 4096, 8191, 8192, 60_000, u32::MAX] {
            for len in [0, 1, 2, 4095, 4096, 4097, 8192, 57_344, 65_536] {
                assert_eq!(region.tx_span(slot, at, len), tx.span(at, len), "{len} bytes at {at}");
                let piece = rx.span(at, len).filter(|_| len > 0).map(|from| (from, len));
                assert_eq!(region.rx_piece(slot, at, len as u32, usize::MAX), piece, "{len} bytes at {at}");
                // A call that wants one byte gets it, if so many can be unread at all.
                let first =
                    rx.span(at, 1).filter(|_| (1..=rx.capacity() as usize).contains(&len)).map(|from| (from, 1));
                assert_eq!(region.rx_piece(slot, at, len as u32, 1), first, "one of {len} bytes at {at}");
                assert_eq!(region.rx_piece(slot, at, len as u32, 0), None);
            }
        }
    }
}

#[test]
fn the_event_words_of_all_slots_are_those_of_each() {
    let (region, _memfd) = Region::create(small()).unwrap();
    for (context, thread) in (0..3).flat_map(|context| (0..3).map(move |thread| (context, thread))) {
        let (seqs, acks) = region.all_event_words(context, thread);
        assert_eq!((seqs.len(), acks.len()), (32, 32));
        for slot in region.layout().app_slots().chain(region.layout().stack_slots()) {
            let (seq, ack) = region.event_words(context, thread, slot);
            assert!(std::ptr::eq(seq, &seqs[slot.index()]) && std::ptr::eq(ack, &acks[slot.index()]));
        }
    }
}

/// One that stayed would keep its memory for as long as the process runs.
#[test]
fn a_region_that_nobody_has_any_more_is_not_mapped() {
    let (region, memfd) = Region::create(small()).unwrap();
    let inode = format!(" {} ", rustix::fs::fstat(&memfd).unwrap().st_ino);
    let mapped = || std::fs::read_to_string("/proc/self/maps").unwrap().lines().any(|line| line.contains(&inode));
    assert!(mapped());
    drop(region);
    assert!(!mapped());
}

#[test]
fn numbers_out_of_range_stay_inside() {
    let (region, _memfd) = Region::create(small()).unwrap();
    assert_eq!(region.private().1, PRIVATE_HEADER_BYTES + 32 * PRIVATE_SLOT_BYTES, "what the application may use");
    let larger = Layout::new(Geometry { slots: 65_536, ..small() }).unwrap();
    let foreign = larger.slot(65_535).unwrap();
    region.app(foreign).flags.store(1, Relaxed);
    assert_eq!(region.app(region.slot(31).unwrap()).flags.load(Relaxed), 1);
    region.rx(foreign).write(u32::MAX, &[1; 10_000]);
    region.data_queue(usize::MAX).arm();
    assert!(region.data_queue(1).must_notify());
    assert!(!region.commands().must_notify(), "the command queue is no data queue");
    region.events(usize::MAX, usize::MAX).arm();
    assert!(region.events(2, 2).must_notify());
    let (seq, ack) = region.event_words(usize::MAX, usize::MAX, foreign);
    seq.store(1, Relaxed);
    ack.store(1, Relaxed);
}

#[test]
fn sizes_out_of_range_are_refused() {
    let good = Geometry::default();
    Layout::new(good).unwrap();
    let largest = Geometry {
        slots: 65_536,
        app_slots: 65_536,
        tx_bytes: 16 << 20,
        rx_bytes: 16 << 20,
        tx_most: 16 << 20,
        rx_most: 0,
        contexts: 64,
        flow_groups: 16,
    };
    assert!(Layout::new(largest).unwrap().total_bytes() < 1 << 42);
    for bad in [
        Geometry { slots: 0, ..good },
        Geometry { slots: 8, app_slots: 8, ..good },
        Geometry { slots: 10_000, ..good },
        Geometry { slots: 131_072, ..good },
        Geometry { app_slots: 0, ..good },
        Geometry { app_slots: good.slots + 1, ..good },
        Geometry { tx_bytes: 2048, ..good },
        Geometry { tx_bytes: 5000, ..good },
        Geometry { rx_bytes: 32 << 20, ..good },
        Geometry { tx_most: good.tx_bytes / 2, ..good },
        Geometry { rx_most: 3 * good.rx_bytes, ..good },
        Geometry { rx_most: 32 << 20, ..good },
        Geometry { contexts: 0, ..good },
        Geometry { contexts: 65, ..good },
        Geometry { flow_groups: 0, ..good },
        Geometry { flow_groups: 17, ..good },
    ] {
        assert!(Layout::new(bad).is_err(), "{bad:?}");
        assert!(matches!(Region::create(bad), Err(MapError::Geometry(_))), "{bad:?}");
    }
}

#[test]
fn the_default_region_is_sparse() {
    let (region, memfd) = Region::create(Geometry::DEFAULT).unwrap();
    assert!(region.layout().total_bytes() > 4 << 30);
    let slot = region.slot(Geometry::DEFAULT.slots - 1).unwrap();
    region.rx(slot).write(0, b"last");
    let used = rustix::fs::fstat(&memfd).unwrap().st_blocks * 512;
    assert!(used <= 64 << 10, "{used} bytes are in use");
}

#[test]
fn a_region_cannot_change_its_size_nor_its_seals() {
    let (_region, memfd) = Region::create(small()).unwrap();
    let size = rustix::fs::fstat(&memfd).unwrap().st_size as u64;
    for other in [0, size - 4096, size + 4096] {
        assert_eq!(rustix::fs::ftruncate(&memfd, other).unwrap_err(), Errno::PERM);
    }
    assert_eq!(rustix::fs::fcntl_add_seals(&memfd, SealFlags::FUTURE_WRITE).unwrap_err(), Errno::PERM);
    assert_eq!(rustix::fs::fcntl_add_seals(&memfd, SealFlags::WRITE).unwrap_err(), Errno::PERM);
}

/// A memfd with the given seals and contents.
fn forged(seals: SealFlags, size: u64, contents: &[u8]) -> OwnedFd {
    let memfd = rustix::fs::memfd_create("forged", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::io::write(&memfd, contents).unwrap();
    rustix::fs::ftruncate(&memfd, size).unwrap();
    rustix::fs::fcntl_add_seals(&memfd, seals).unwrap();
    memfd
}

#[test]
fn what_is_no_region_is_not_mapped() {
    let (_region, memfd) = Region::create(small()).unwrap();
    let size = rustix::fs::fstat(&memfd).unwrap().st_size as u64;
    let mut header = [0; 128];
    rustix::io::pread(&memfd, &mut header, 0).unwrap();
    let all = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    let refusal = |fd: &OwnedFd, geometry| match Region::map(fd.as_fd(), geometry) {
        Err(MapError::Format(why)) => why,
        Err(other) => panic!("{other}"),
        Ok(_) => "",
    };
    assert_eq!(refusal(&forged(all, size, &header), small()), "");
    for missing in [SealFlags::SHRINK, SealFlags::GROW, SealFlags::SEAL] {
        assert_eq!(refusal(&forged(all.difference(missing), size, &header), small()), "not sealed");
    }
    assert_eq!(refusal(&forged(all, size + 4096, &header), small()), "its size is not the announced one");
    assert_eq!(refusal(&forged(all, size, &[0; 128]), small()), "no Towpath region");
    let changed = |at: usize| {
        let mut other = header;
        other[at] ^= 1;
        refusal(&forged(all, size, &other), small())
    };
    assert_eq!(changed(0), "no Towpath region");
    assert_eq!(changed(8), "of another version");
    assert_eq!(changed(17), "its sizes are not the announced ones");
    assert_eq!(changed(36), "its sizes are not the announced ones");
    // Other sizes that make the same total: only the header can tell.
    let swapped = Geometry { tx_bytes: 8192, rx_bytes: 4096, ..small() };
    assert_eq!(refusal(&memfd, swapped), "its sizes are not the announced ones");
    let file = rustix::fs::open("/dev/null", rustix::fs::OFlags::RDWR, rustix::fs::Mode::empty()).unwrap();
    assert_eq!(refusal(&file, small()), "no memfd");
}

#[test]
fn each_word_of_a_slot_is_in_the_lines_that_both_sides_have() {
    let geometry = Geometry {
        slots: 16,
        app_slots: 8,
        tx_bytes: 4096,
        rx_bytes: 4096,
        contexts: 1,
        flow_groups: 3,
        ..Geometry::DEFAULT
    };
    let (region, _memfd) = Region::create(geometry).unwrap();
    assert_eq!(region.layout().threads(), 4);
    for slot in [0, 15].map(|raw| region.slot(raw).unwrap()) {
        let lines = region.lines(slot);
        assert!(std::ptr::eq(region.app(slot), &lines.app) && std::ptr::eq(region.stack(slot), &lines.stack));
        assert!(std::ptr::eq(region.info(slot), &lines.info) && std::ptr::eq(region.options(slot), &lines.options));
        assert!(std::ptr::eq(region.command(slot), &lines.command));
        // Words of one kind of slot that have another meaning for the other.
        assert!(std::ptr::eq(lines.app.kernel_accepts(), &lines.app.tx_tail));
        let counts = std::ptr::from_ref(region.counts(slot)).addr() - region.addresses().start;
        assert_eq!(counts, region.layout().counts(slot));
    }
    for queue in 0..4 {
        let words = std::ptr::from_ref(region.data_queue_words(queue)).addr() - region.addresses().start;
        assert_eq!(words, region.layout().data_queue(queue.min(2)));
    }
    assert_eq!(region.addresses().len(), region.layout().total_bytes());
}

#[test]
fn an_event_is_queued_again_whether_it_was_acknowledged_or_not() {
    let (region, _memfd) = Region::create(small()).unwrap();
    let slot = region.slot(4).unwrap();
    let (seq, ack) = region.event_words(1, 2, slot);
    let (mut tail, mut head) = (0, 0);
    for _ in 0..2 {
        region.queue_event_again(1, 2, slot, &mut tail);
        assert!(dirty::is_queued(seq, ack), "one entry stands for all events until it is acknowledged");
    }
    assert!(!region.events(1, 2).push(&mut tail, slot, seq, ack));
    assert_eq!([0; 3].map(|_| region.events(1, 2).pop(&mut head)), [Some(4), Some(4), None]);
    dirty::acknowledge(seq, ack);
    assert!(region.events(1, 2).push(&mut tail, slot, seq, ack));
}

/// No number of halvings leads out of the ring's memory.
#[test]
fn a_ring_has_its_largest_size_halved_so_often_and_no_less_than_the_first() {
    let (region, _memfd) = Region::create(Geometry { tx_most: 16_384, rx_most: 65_536, ..small() }).unwrap();
    let slot = region.slot(5).unwrap();
    for (halvings, tx, rx) in
        [(0, 16_384, 65_536), (1, 8192, 32_768), (2, 4096, 16_384), (3, 4096, 8192), (15, 4096, 8192)]
    {
        assert_eq!(region.tx_halved(slot, halvings).capacity(), tx);
        assert_eq!(region.rx_halved(slot, halvings).capacity(), rx);
    }
}

#[test]
fn a_command_is_read_as_it_was_posted() {
    let line = towpath_ring::CommandLine::default();
    let (remote_addr, local_addr) = ("fd00:1:2:3:4:5:6:7".parse().unwrap(), "::ffff:10.1.2.3".parse().unwrap());
    let command = towpath_ring::command::Command {
        op: 1,
        remote_addr,
        remote_port: 2,
        local_addr,
        local_port: 3,
        backlog: 4,
        flags: 5,
    };
    assert_eq!((line.read().0, line.post(&command), line.read()), (0, 1, (1, command)));
}

#[test]
fn a_kernel_socket_behind_a_ring_has_half_of_what_is_to_be_sent() {
    let geometry = Geometry { tx_bytes: 65_536, rx_bytes: 32_768, ..Geometry::DEFAULT };
    let buffers = [0, 1, 7, 8, 4608, 262_144, u32::MAX];
    assert_eq!(buffers.map(|buffer| geometry.send_limit(buffer)), [65_536, 1, 1, 2, 1152, 65_536, 65_536]);
    assert_eq!(buffers.map(|buffer| geometry.receive_limit(buffer)), [32_768, 1, 3, 4, 2304, 32_768, 32_768]);
}

#[test]
fn a_retired_region_has_zeros_of_its_own_at_the_same_addresses() {
    let geometry =
        Geometry { slots: 16, app_slots: 8, tx_bytes: 4096, rx_bytes: 4096, contexts: 1, ..Geometry::DEFAULT };
    let (region, memfd) = Region::create(geometry).unwrap();
    let other = Region::map(memfd.as_fd(), geometry).unwrap();
    let slot = region.slot(3).unwrap();
    let word = &region.app(slot).tx_tail;
    word.store(7, Relaxed);
    region.retire().unwrap();
    assert_eq!(word.load(Relaxed), 0);
    word.store(9, Relaxed);
    assert_eq!(other.app(slot).tx_tail.load(Relaxed), 7, "the other side's are its own");
}
