//! What the service maps for others holds its fields and zeros, and no old memory of the service.
#![allow(clippy::unwrap_used)]

use std::fs::File;
use std::hint::black_box;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use towpath_ring::metrics::MetricsRegion;
use towpath_ring::report::Report;
use towpath_ring::stats::StatsRegion;
use towpath_ring::{Geometry, PairGeometry, PairRegion, Region};

/// Leaves a pattern where the next call has its stack.
#[inline(never)]
fn dirty() {
    black_box([0xa5u8; 32 << 10]);
}

#[test]
fn a_header_shows_nothing_of_the_memory_of_its_maker() {
    let geometry =
        Geometry { slots: 16, app_slots: 8, tx_bytes: 4096, rx_bytes: 4096, contexts: 1, ..Geometry::DEFAULT };
    type Make<'a> = &'a dyn Fn() -> OwnedFd;
    // With the bytes of the fields.
    let makers: [(&str, u64, Make<'_>); 5] = [
        ("a pair region", 16, &|| PairRegion::create(PairGeometry { slots: 64, ring_bytes: 4096 }, 1).unwrap().1),
        ("a region", 64, &|| Region::create(geometry).unwrap().1),
        ("metrics", 24, &|| MetricsRegion::create(1, 8).unwrap().1),
        ("statistics", 16, &|| StatsRegion::create().unwrap().1),
        ("a report", 20, &|| Report::create().unwrap().1),
    ];
    for (name, fields, make) in makers {
        dirty();
        let file = File::from(make());
        let mut bytes = vec![0; 512];
        file.read_exact_at(&mut bytes, fields).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 0), "{name}: {bytes:x?}");
    }
}
