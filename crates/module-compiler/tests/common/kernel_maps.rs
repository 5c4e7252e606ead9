//! What is in a map of the kernel, as this crate's own maps show it.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use towpath_modules::map::Element;
use towpath_modules::{Map, MapKind, MapSpec};

/// Commands of `bpf(2)`.
const LOOKUP: libc::c_int = 1;
const NEXT_KEY: libc::c_int = 4;
const PAGE: usize = 4096;

/// `bpf(2)` on an element: the map, the key, and where the value or the next key goes.
fn element(command: libc::c_int, map: &OwnedFd, key: Option<&[u8]>, to: &mut [u8]) -> bool {
    let key = key.map_or(0, |key| key.as_ptr() as u64);
    let mut attributes = [map.as_raw_fd() as u64, key, to.as_mut_ptr() as u64, 0];
    // SAFETY: the key is one of this map's, and there is room for what is written.
    unsafe { libc::syscall(libc::SYS_bpf, command, attributes.as_mut_ptr(), size_of_val(&attributes)) == 0 }
}

/// How many CPUs there could be.
pub fn possible_cpus() -> usize {
    let possible = std::fs::read_to_string("/sys/devices/system/cpu/possible").unwrap();
    possible.trim().rsplit(['-', ',']).next().unwrap().parse::<usize>().unwrap() + 1
}

/// All elements, by their keys. Of a per-CPU map it is the first CPU's value. Records of a ring buffer are taken out, and of a program
/// only its place is shown.
pub fn elements(map: &OwnedFd, spec: &MapSpec) -> Vec<Element> {
    if spec.kind == MapKind::RingBuf {
        return records(map, spec.entries as usize);
    }
    let (mut key, mut next) = (None, vec![0; spec.key_size as usize]);
    let (size, copies) = match spec.kind.is_per_cpu() {
        true => ((spec.value_size as usize).next_multiple_of(8), possible_cpus()),
        false => (spec.value_size as usize, 1),
    };
    let (mut all, mut value) = (Vec::new(), vec![0; size * copies]);
    while element(NEXT_KEY, map, key.as_deref(), &mut next) {
        key = Some(next.clone());
        if element(LOOKUP, map, key.as_deref(), &mut value) {
            all.push((next.clone(), vec![value[..spec.value_size as usize].to_vec()]));
        }
    }
    shown(all, spec.kind)
}

/// The same of a map of ours, for one flow group.
pub fn own_elements(map: &Map) -> Vec<Element> {
    shown(map.elements(), map.spec().kind)
}

fn shown(mut all: Vec<Element>, kind: MapKind) -> Vec<Element> {
    if kind == MapKind::ProgArray {
        all.iter_mut().for_each(|(_, values)| values.clear());
    }
    if kind == MapKind::LpmTrie {
        // The kernel shows what stood behind a prefix, which is no part of the key.
        for (key, _) in &mut all {
            let (length, bytes) = key.split_at_mut(4);
            let length = u32::from_ne_bytes(length.try_into().unwrap()) as usize;
            for (place, byte) in bytes.iter_mut().enumerate() {
                *byte &= !(0xffu32 >> length.saturating_sub(8 * place).min(8)) as u8;
            }
        }
    }
    if kind != MapKind::RingBuf {
        all.sort();
    }
    all
}

/// Takes the records out of a ring buffer, as libbpf does.
fn records(map: &OwnedFd, size: usize) -> Vec<Element> {
    let mapped = |length, protection, offset: usize| {
        // SAFETY: the kernel chooses the place.
        let at = unsafe {
            let nowhere = std::ptr::null_mut();
            libc::mmap(nowhere, length, protection, libc::MAP_SHARED, map.as_raw_fd(), offset as libc::off_t)
        };
        assert_ne!(at, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
        at.cast::<u8>()
    };
    let own = mapped(PAGE, libc::PROT_READ | libc::PROT_WRITE, 0);
    // The memory is there twice, so that a record that begins before the end goes on behind it.
    let ring = mapped(PAGE + 2 * size, libc::PROT_READ, PAGE);
    let mut all = Vec::new();
    // SAFETY: the positions, headers and records lie in the pages that are mapped, and nobody else reads.
    unsafe {
        let (consumer, producer) = (AtomicU64::from_ptr(own.cast()), AtomicU64::from_ptr(ring.cast()));
        let mut position = consumer.load(Ordering::Acquire);
        while position < producer.load(Ordering::Acquire) {
            let at = ring.add(PAGE + position as usize % size);
            let header = AtomicU32::from_ptr(at.cast()).load(Ordering::Acquire);
            let (busy, discarded, length) = (header >> 31, header >> 30 & 1, (header & 0x3fff_ffff) as usize);
            assert_eq!(busy, 0, "nobody writes a record");
            if discarded == 0 {
                all.push((Vec::new(), vec![std::slice::from_raw_parts(at.add(8), length).to_vec()]));
            }
            position += (length + 8).next_multiple_of(8) as u64;
        }
        consumer.store(position, Ordering::Release);
        libc::munmap(own.cast(), PAGE);
        libc::munmap(ring.cast(), PAGE + 2 * size);
    }
    all
}
