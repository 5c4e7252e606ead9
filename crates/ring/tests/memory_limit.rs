//! A program that may make no large files. The limit is the process's, so this test has a program of its own.
#![allow(clippy::unwrap_used)]

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::sync::atomic::Ordering::Relaxed;
use towpath_ring::memory::new_memory;
use towpath_ring::{Geometry, Layout, MapError, Region};

#[test]
fn a_limit_of_file_sizes_refuses_the_region_and_sends_no_signal() {
    let whole = getrlimit(Resource::Fsize);
    setrlimit(Resource::Fsize, Rlimit { current: Some(1 << 20), maximum: whole.maximum }).unwrap();
    let refused = new_memory(Geometry::DEFAULT);
    setrlimit(Resource::Fsize, whole).unwrap();
    let Err(MapError::Io(error)) = refused else { panic!("the memory was made") };
    assert_eq!(error.raw_os_error(), Some(27), "EFBIG");
    assert!(new_memory(Geometry::DEFAULT).is_ok());
    let exactly = Layout::new(Geometry::DEFAULT).unwrap().total_bytes() as u64;
    for (most, made) in [(exactly, true), (exactly - 1, false)] {
        setrlimit(Resource::Fsize, Rlimit { current: Some(most), maximum: whole.maximum }).unwrap();
        assert_eq!(new_memory(Geometry::DEFAULT).is_ok(), made, "{most} of {exactly}");
    }
    setrlimit(Resource::Fsize, whole).unwrap();
    // The program sets the limit itself, and then the service goes.
    let (region, _memfd) = Region::create(Geometry::DEFAULT).unwrap();
    let word = &region.app(region.slot(3).unwrap()).tx_tail;
    word.store(7, Relaxed);
    setrlimit(Resource::Fsize, Rlimit { current: Some(0), maximum: whole.maximum }).unwrap();
    region.retire().unwrap();
    setrlimit(Resource::Fsize, whole).unwrap();
    assert_eq!(word.load(Relaxed), 0);
}
