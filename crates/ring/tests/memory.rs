//! The memory of a region: what a client may bring, which pages are touched, and what is given back.
#![allow(clippy::unwrap_used)]

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use std::sync::atomic::Ordering::Relaxed;
use towpath_ring::memory::new_memory;
use towpath_ring::metrics::MetricsRegion;
use towpath_ring::{Geometry, MapError, PairGeometry, PairRegion, Region, ring_size};

const RING: u32 = 65_536;
const GEOMETRY: Geometry = Geometry {
    slots: 64,
    app_slots: 32,
    tx_bytes: RING,
    rx_bytes: RING,
    contexts: 4,
    flow_groups: 2,
    ..Geometry::DEFAULT
};
const ALL: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

fn pages(memfd: &OwnedFd) -> u64 {
    rustix::fs::fstat(memfd).unwrap().st_blocks as u64 / 8
}

fn refusal(fd: impl AsFd) -> String {
    match Region::create_on(fd.as_fd(), GEOMETRY) {
        Err(error) => error.to_string(),
        Ok(_) => String::new(),
    }
}

fn memfd(flags: MemfdFlags, bytes: u64, seals: SealFlags) -> OwnedFd {
    let memfd = rustix::fs::memfd_create("brought", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | flags).unwrap();
    rustix::fs::ftruncate(&memfd, bytes).unwrap();
    rustix::fs::fcntl_add_seals(&memfd, seals).unwrap();
    memfd
}

#[test]
fn what_a_client_brings_is_a_memfd_of_small_pages_with_exactly_these_seals_and_this_size() {
    let good = new_memory(GEOMETRY).unwrap();
    let bytes = rustix::fs::fstat(&good).unwrap().st_size as u64;
    assert_eq!(refusal(&good), "");
    assert_eq!(refusal(memfd(MemfdFlags::empty(), bytes, ALL)), "", "whoever has made it");
    let seals = "region: its seals are not those against shrinking, growing and further seals alone";
    for missing in [SealFlags::SHRINK, SealFlags::GROW, SealFlags::SEAL] {
        assert_eq!(refusal(memfd(MemfdFlags::empty(), bytes, ALL.difference(missing))), seals, "without {missing:?}");
    }
    for more in [SealFlags::WRITE, SealFlags::FUTURE_WRITE] {
        assert_eq!(refusal(memfd(MemfdFlags::empty(), bytes, ALL | more)), seals, "with {more:?}");
    }
    for other in [0, bytes - 4096, bytes + 4096] {
        let why = "region: its size is not the announced one";
        assert_eq!(refusal(memfd(MemfdFlags::empty(), other, ALL)), why, "{other}");
    }
    let huge = bytes.next_multiple_of(2 << 20);
    assert_eq!(refusal(memfd(MemfdFlags::HUGETLB, huge, ALL)), "region: its memory has huge pages");
    let directory = std::env::temp_dir().join(format!("towpath-brought-{}", std::process::id()));
    let file = std::fs::File::create_new(&directory).unwrap();
    file.set_len(bytes).unwrap();
    assert_eq!(refusal(&file), "region: no memfd");
    std::fs::remove_file(&directory).unwrap();
    let (_reader, writer) = std::io::pipe().unwrap();
    assert_eq!(refusal(&writer), "region: no memfd");
    use rustix::fd::AsRawFd;
    let again = |flags| rustix::fs::open(format!("/proc/self/fd/{}", good.as_raw_fd()), flags, Mode::empty()).unwrap();
    assert_eq!(refusal(again(OFlags::RDONLY)), "region: Permission denied (os error 13)");
    assert_eq!(refusal(again(OFlags::PATH)), "region: Bad file descriptor (os error 9)");
}

#[test]
fn what_both_sides_always_use_is_there_before_the_service_has_it() {
    let memfd = new_memory(GEOMETRY).unwrap();
    let before = pages(&memfd);
    assert_eq!(before, 1 + 3, "the header, two data queues and the command queue");
    let region = Region::create_on(memfd.as_fd(), GEOMETRY).unwrap();
    for queue in 0..2 {
        assert!(region.data_queue(queue).is_empty(0));
    }
    assert!(region.commands().is_empty(0));
    assert_eq!(pages(&memfd), before, "the service has touched a page");
    // A region of another client on the same memory is this client's own trouble.
    let again = Region::create_on(memfd.as_fd(), GEOMETRY).unwrap();
    assert_ne!(again.token(), region.token());
}

#[test]
fn exactly_the_pages_that_are_asked_for_are_touched_and_keep_what_is_in_them() {
    let memfd = new_memory(GEOMETRY).unwrap();
    let region = Region::create_on(memfd.as_fd(), GEOMETRY).unwrap();
    let mut last = pages(&memfd);
    let mut touched = |what: &str, expected: u64| {
        let now = pages(&memfd);
        assert_eq!(now - last, expected, "{what}");
        last = now;
    };
    let slot = region.slot(40).unwrap();
    region.touch_receive_ring(slot, 0..16_384);
    touched("the ring's beginning", 4);
    region.touch_receive_ring(slot, 16_384..20_000);
    touched("the next page", 1);
    region.rx_halved(slot, 0).write(16_384, b"bytes");
    region.touch_receive_ring(slot, 0..u32::MAX);
    touched("the rest, and no other ring", u64::from(RING) / 4096 - 5);
    let mut got = [0; 5];
    region.rx_halved(slot, 0).read(16_384, &mut got);
    assert_eq!(&got, b"bytes");
    region.touch_lines(32..40);
    touched("lines of eight slots, which begin at the end of the header's page", 1);
    region.touch_lines(48..u32::MAX);
    touched("up to the last slot", 2);
    region.touch_events(3);
    touched("three event queues of a context", 3);
    region.touch_events(3);
    touched("nothing twice", 0);
}

/// Fills both rings of a slot and says which bytes are queued and unread.
fn filled(region: &Region, raw: u32, queued: (u32, u32), unread: (u32, u32)) {
    let slot = region.slot(raw).unwrap();
    region.tx(slot).write(0, &[1; RING as usize]);
    region.rx(slot).write(0, &[1; RING as usize]);
    region.stack(slot).tx_head.store(queued.0, Relaxed);
    region.app(slot).tx_tail.store(queued.0.wrapping_add(queued.1), Relaxed);
    region.app(slot).rx_head.store(unread.0, Relaxed);
    region.stack(slot).rx_tail.store(unread.0.wrapping_add(unread.1), Relaxed);
}

#[test]
fn rings_give_back_what_is_free_and_keep_every_byte_in_use() {
    const KEPT: u32 = 8192;
    let memfd = new_memory(GEOMETRY).unwrap();
    let region = Region::create_on(memfd.as_fd(), GEOMETRY).unwrap();
    let parts = [0, 1, 4095, 4096, 4097, 8191, 8192, 12_288, RING - 4097, RING - 1, RING];
    let begins = [0, 1, 4096, 8192, 8193, 20_000, RING - 1, RING, u32::MAX - 10_000, u32::MAX];
    for (nth, (from, len)) in begins.iter().flat_map(|from| parts.map(|len| (*from, len))).enumerate() {
        let raw = nth as u32 % 64;
        let slot = region.slot(raw).unwrap();
        filled(&region, raw, (from, len), (from, len));
        let before = pages(&memfd);
        region.give_back_rings(slot, (KEPT, KEPT));
        let given = before - pages(&memfd);
        for ring in [region.tx(slot), region.rx(slot)] {
            let mut got = vec![0; len as usize];
            ring.read(from, &mut got);
            assert_eq!(got, vec![1; len as usize], "{len} bytes from {from}");
            let mut first = [0; KEPT as usize];
            ring.read(0, &mut first);
            assert_eq!(first, [1; KEPT as usize], "{len} bytes from {from}");
        }
        let used: std::collections::HashSet<u32> =
            (0..len).map(|at| (from.wrapping_add(at) % RING) / 4096).chain(0..KEPT / 4096).collect();
        // Pages that the bytes in use share with a free part count as used.
        assert_eq!(given, 2 * u64::from(RING / 4096 - used.len() as u32), "{len} bytes from {from}");
    }
}

/// A ring that may grow, of which the application has granted all and the stack does not use all yet.
#[test]
fn rings_that_may_grow_give_back_what_is_free_of_both_of_their_parts() {
    const MOST: u32 = 65_536;
    const FIRST: u32 = 16_384;
    let geometry = Geometry { tx_bytes: FIRST, rx_bytes: FIRST, tx_most: MOST, rx_most: MOST, ..GEOMETRY };
    let memfd = new_memory(geometry).unwrap();
    let region = Region::create_on(memfd.as_fd(), geometry).unwrap();
    let slot = region.slot(7).unwrap();
    let [tx, rx] = [region.tx_halved(slot, 0), region.rx_halved(slot, 0)];
    // The send ring has its largest size, with bytes on both sides of the seam of its parts, and the receive ring its first.
    for (kept, sent, received) in [(8192, 2, 2), (0, 0, 0), (FIRST, 4, 4), (20_000, 5, 5), (MOST, 16, 16)] {
        tx.write(0, &[1; MOST as usize]);
        rx.write(0, &[1; MOST as usize]);
        ring_size::RECEIVE.set(&region.stack(slot).flow_group, 2);
        let app = region.app(slot);
        app.tx_tail.store(12_288 + 8192, Relaxed);
        region.stack(slot).tx_head.store(12_288, Relaxed);
        let queued: u64 = (3..5).filter(|page| *page >= sent).count() as u64;
        let before = pages(&memfd);
        region.give_back_rings(slot, (kept, kept));
        assert_eq!(before - pages(&memfd), 32 - sent - received - queued, "the first {kept} bytes are kept");
        for (ring, used) in [(tx, 12_288..20_480), (rx, 0..0)] {
            let mut got = vec![0; MOST as usize];
            ring.read(0, &mut got);
            let stays = |at: u32| at < kept.next_multiple_of(4096) || used.contains(&at);
            assert!((0..MOST).all(|at| (got[at as usize] == 1) == stays(at)), "the first {kept} bytes are kept");
        }
    }
}

/// The stack writes no byte into memory that nobody has touched, because a client can make it wait for that memory.
#[test]
fn bytes_of_a_receive_ring_have_memory_once_somebody_has_touched_all_of_them() {
    const MOST: u32 = 4 << 20;
    const FIRST: u32 = 16_384;
    let geometry = Geometry { slots: 16, app_slots: 8, rx_bytes: FIRST, rx_most: MOST, ..GEOMETRY };
    let memfd = new_memory(geometry).unwrap();
    let region = Region::create_on(memfd.as_fd(), geometry).unwrap();
    let [slot, other] = [3, 4].map(|raw| region.slot(raw).unwrap());
    assert!(!region.has_memory(slot, 0..1) && region.has_memory(slot, 0..0));
    region.touch_receive_ring(slot, 12_288..24_576);
    for (bytes, there) in [
        (12_288..24_576, true),
        (12_287..24_576, false),
        (12_288..24_577, false),
        (16_383..16_385, true),
        (20_481..20_482, true),
        (0..FIRST, false),
        (FIRST..FIRST + 4096, true),
        (24_576..32_768, false),
    ] {
        assert_eq!(region.has_memory(slot, bytes.clone()), there, "{bytes:?}");
    }
    region.touch_receive_ring(slot, 0..MOST);
    assert!(region.has_memory(slot, 0..MOST) && !region.has_memory(other, 0..1));
    // One page of many.
    for page in [0, 3, 4, 255, 256, 259, 260, 261, 700, MOST as usize / 4096 - 1] {
        let at = if page < 4 { region.layout().rx(slot) } else { region.layout().rx_more(slot) - FIRST as usize }
            + page * 4096;
        let hole = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&memfd, hole, at as u64, 4096).unwrap();
        let page = page as u32 * 4096;
        assert!(!region.has_memory(slot, 0..MOST) && !region.has_memory(slot, page..page + 1));
        assert!(region.has_memory(slot, 0..page) && region.has_memory(slot, page + 4096..MOST));
        region.touch_receive_ring(slot, page..page + 1);
        assert!(region.has_memory(slot, 0..MOST));
    }
}

#[test]
fn an_idle_ring_keeps_the_places_of_the_next_bytes() {
    const NEXT: u32 = 16_384;
    let memfd = new_memory(GEOMETRY).unwrap();
    let region = Region::create_on(memfd.as_fd(), GEOMETRY).unwrap();
    // So that only rings are counted.
    region.touch_lines(0..GEOMETRY.slots);
    for (raw, head) in (0..).zip([0, 1, 4096, 20_000, RING - 4096, RING - 1, RING, u32::MAX - 5, u32::MAX]) {
        let slot = region.slot(raw).unwrap();
        let before = pages(&memfd);
        assert!(region.touch_next(slot, head, NEXT));
        let places = (0..NEXT).map(|at| (head.wrapping_add(at) % RING) / 4096);
        let kept = places.collect::<std::collections::HashSet<u32>>().len() as u64;
        assert_eq!(pages(&memfd) - before, kept, "from {head}");
        filled(&region, raw, (head, 0), (head, 0));
        region.give_back_idle_rings(slot, NEXT);
        assert_eq!(pages(&memfd) - before, kept, "from {head}");
        let mut got = vec![0; NEXT as usize];
        region.rx(slot).read(head, &mut got);
        assert_eq!(got, vec![1; NEXT as usize], "from {head}");
    }
}

#[test]
fn rings_whose_words_contradict_the_contract_give_nothing_back() {
    let memfd = new_memory(GEOMETRY).unwrap();
    let region = Region::create_on(memfd.as_fd(), GEOMETRY).unwrap();
    filled(&region, 3, (5, RING + 1), (7, u32::MAX));
    let before = pages(&memfd);
    region.give_back_rings(region.slot(3).unwrap(), (0, 0));
    region.give_back_idle_rings(region.slot(3).unwrap(), 16_384);
    assert_eq!(pages(&memfd), before);
}

/// A program that another starts must not have its memory.
#[test]
fn no_other_program_inherits_memory() {
    let inherits = |fd: &OwnedFd| !rustix::io::fcntl_getfd(fd).unwrap().contains(rustix::io::FdFlags::CLOEXEC);
    assert!(!inherits(&new_memory(GEOMETRY).unwrap()));
    assert!(!inherits(&Region::create(GEOMETRY).unwrap().1));
    assert!(!inherits(&PairRegion::create(PairGeometry { slots: 64, ring_bytes: 4096 }, 1).unwrap().1));
    assert!(!inherits(&MetricsRegion::create(1, 1).unwrap().1));
}

#[test]
fn memory_of_impossible_sizes_is_not_made() {
    let bad = Geometry { slots: 17, ..GEOMETRY };
    assert!(matches!(new_memory(bad), Err(MapError::Geometry(_))));
    let memfd = new_memory(GEOMETRY).unwrap();
    assert!(matches!(Region::create_on(memfd.as_fd(), bad), Err(MapError::Geometry(_))));
}
