//! The metrics region as the service and its readers see it.
#![allow(clippy::unwrap_used)]

use rustix::fd::AsFd;
use rustix::mm::{MapFlags, ProtFlags};
use std::sync::atomic::Ordering::Relaxed;
use towpath_ring::metrics::{MAX_ROWS, MAX_WORDS, MetricsRegion, NAMES_BYTES};

#[test]
fn readers_see_names_and_values() {
    let (mut service, memfd) = MetricsRegion::create(3, 20).unwrap();
    service.set_names(&["segments_in", "segments_out", "drops"]).unwrap();
    for core in 0..3 {
        for i in 0..20 {
            service.word(core, i).unwrap().store(u64::from(core) << 32 | u64::from(i), Relaxed);
        }
    }
    let reader = MetricsRegion::map_readonly(memfd.as_fd()).unwrap();
    assert_eq!((reader.rows(), reader.words_per_row()), (3, 20));
    assert_eq!(reader.names(), ["segments_in", "segments_out", "drops"]);
    for core in 0..3 {
        for i in 0..20 {
            assert_eq!(reader.word(core, i), Some(u64::from(core) << 32 | u64::from(i)));
        }
    }
    assert_eq!(reader.word(3, 0), None);
    assert_eq!(reader.word(0, 20), None);
    assert!(service.row(3).is_none());
    service.word(2, 19).unwrap().store(7, Relaxed);
    assert_eq!(reader.word(2, 19), Some(7));
}

#[test]
fn rows_lie_as_the_format_says_and_fill_whole_pages() {
    for (rows, words, bytes) in [(1, 1, 16_384), (3, 20, 16_384), (32, 16, 16_384), (33, 16, 20_480), (2, 257, 20_480)]
    {
        let (service, memfd) = MetricsRegion::create(rows, words).unwrap();
        assert_eq!(rustix::fs::fstat(&memfd).unwrap().st_size, bytes, "{rows} rows of {words} words");
        let at = |row| std::ptr::from_ref(service.word(row, 0).unwrap()).addr();
        for row in 1..rows {
            assert_eq!(at(row) - at(row - 1), (8 * words as usize).next_multiple_of(128));
        }
    }
}

#[test]
fn names_that_do_not_fit_are_refused() {
    let (mut service, memfd) = MetricsRegion::create(1, 2).unwrap();
    assert!(service.set_names(&["a", "b", "c"]).is_err());
    assert!(service.set_names(&["a\nb"]).is_err());
    assert!(service.set_names(&[""]).is_err());
    assert!(service.set_names(&["a", &"x".repeat(NAMES_BYTES - 1)]).is_err());
    let longest = "x".repeat(NAMES_BYTES - 2);
    service.set_names(&["a", &longest]).unwrap();
    assert_eq!(MetricsRegion::map_readonly(memfd.as_fd()).unwrap().names(), ["a", &longest]);
}

#[test]
fn sizes_are_checked() {
    for (cores, words) in [(0, 1), (1, 0), (MAX_ROWS + 1, 1), (1, MAX_WORDS + 1)] {
        assert!(MetricsRegion::create(cores, words).is_err());
    }
    let (service, _memfd) = MetricsRegion::create(MAX_ROWS, MAX_WORDS).unwrap();
    service.word(MAX_ROWS - 1, MAX_WORDS - 1).unwrap().store(1, Relaxed);
}

#[test]
fn a_reader_cannot_write() {
    let (_service, memfd) = MetricsRegion::create(1, 1).unwrap();
    // SAFETY: a fresh mapping at an address of the kernel's choice; nothing is accessed through it.
    let writable =
        unsafe { rustix::mm::mmap(std::ptr::null_mut(), 4096, ProtFlags::WRITE, MapFlags::SHARED, &memfd, 0) };
    assert_eq!(writable.unwrap_err(), rustix::io::Errno::PERM);
    assert_eq!(rustix::io::write(&memfd, b"x").unwrap_err(), rustix::io::Errno::PERM);
    assert_eq!(rustix::fs::ftruncate(&memfd, 0).unwrap_err(), rustix::io::Errno::PERM);
}

#[test]
fn a_region_of_another_kind_is_refused() {
    let geometry = towpath_ring::Geometry {
        slots: 16,
        app_slots: 8,
        tx_bytes: 4096,
        rx_bytes: 4096,
        contexts: 1,
        ..towpath_ring::Geometry::DEFAULT
    };
    let (_region, memfd) = towpath_ring::Region::create(geometry).unwrap();
    assert!(MetricsRegion::map_readonly(memfd.as_fd()).is_err());
}
