//! Maps in user space. They have the kernel's semantics, and its numbers.

mod cells;
mod codes;
mod devices;
mod hash;
mod lpm;
mod ring;

use crate::object::{MapKind, MapSpec};
use cells::Cells;
pub use cells::{clear, copy};
pub use codes::error;
use codes::{ANY, EXIST, NO_EXIST};
use devices::Devices;
use hash::Hash;
use lpm::Lpm;
pub use ring::Ring;
use std::sync::atomic::{AtomicU32, Ordering};

/// A map.
#[derive(Debug)]
pub struct Map {
    spec: MapSpec,
    body: Body,
}

#[derive(Debug)]
enum Body {
    /// With a copy for each flow group, or one; and bytes from one value to the next.
    Array {
        cells: Cells,
        stride: usize,
        copies: usize,
    },
    Hash(Hash),
    Devices(Devices),
    Lpm(Lpm),
    Ring(Ring),
    /// Numbers of programs, from 1.
    Programs(Box<[AtomicU32]>),
}

/// An element, as it is shown: the key, and a value (of a per-CPU map one for each flow group).
pub type Element = (Vec<u8>, Vec<Vec<u8>>);

impl Map {
    /// A new map for this many flow groups. `program` gives the number of a program by its name.
    pub fn new(spec: &MapSpec, groups: usize, program: impl Fn(&str) -> Option<usize>) -> Self {
        let MapSpec { kind, key_size, value_size, entries, .. } = *spec;
        let copies = if kind.is_per_cpu() { groups.max(1) } else { 1 };
        let hash = |lru| Body::Hash(Hash::new(key_size, value_size, entries, lru, copies as u32));
        let body = match kind {
            MapKind::Array | MapKind::PerCpuArray => {
                let stride = (value_size as usize).next_multiple_of(8);
                let cells = Cells::new(stride * entries as usize * copies);
                let length = spec.initial.len().min(stride);
                // SAFETY: the memory has at least one value, and is not shared yet.
                unsafe { copy(spec.initial.as_ptr(), cells.start(), length) };
                Body::Array { cells, stride, copies }
            }
            MapKind::Hash | MapKind::PerCpuHash | MapKind::DevMapHash => hash(false),
            MapKind::DevMap => Body::Devices(Devices::new(value_size, entries)),
            MapKind::LruHash | MapKind::LruPerCpuHash => hash(true),
            MapKind::LpmTrie => Body::Lpm(Lpm::new(key_size, value_size, entries)),
            MapKind::RingBuf => Body::Ring(Ring::new(entries)),
            MapKind::ProgArray => {
                let places: Box<[_]> = (0..entries).map(|_| AtomicU32::new(0)).collect();
                for (place, name) in &spec.programs {
                    let number = program(name).map_or(0, |number| number as u32 + 1);
                    places[*place as usize].store(number, Ordering::Relaxed);
                }
                Body::Programs(places)
            }
        };
        Self { spec: spec.clone(), body }
    }

    /// What it was made from.
    pub fn spec(&self) -> &MapSpec {
        &self.spec
    }

    /// Bytes that it takes.
    pub fn bytes(&self) -> u64 {
        self.spec.bytes(self.copies())
    }

    /// Copies of each value.
    fn copies(&self) -> usize {
        match &self.body {
            Body::Array { copies, .. } => *copies,
            Body::Hash(hash) => hash.copies() as usize,
            Body::Devices(_) | Body::Lpm(_) | Body::Ring(_) | Body::Programs(_) => 1,
        }
    }

    /// Where its first value is, which programs name as variables.
    pub fn first_value(&self) -> *mut u8 {
        match &self.body {
            Body::Array { cells, .. } => cells.start(),
            _ => std::ptr::null_mut(),
        }
    }

    /// May a program have these bytes, and write them if `write`?
    pub fn has_value(&self, at: usize, length: usize, write: bool) -> bool {
        match &self.body {
            Body::Array { cells, stride, .. } => {
                let Some(offset) = at.checked_sub(cells.start() as usize) else { return false };
                let fits = offset % stride + length <= self.spec.value_size as usize;
                offset < cells.bytes() && fits && !(write && self.spec.read_only)
            }
            // Programs only read interfaces.
            Body::Devices(devices) => devices.has_value(at, length) && !write,
            Body::Hash(hash) => hash.has_value(at, length) && !(write && self.spec.kind.is_of_devices()),
            Body::Lpm(lpm) => lpm.has_value(at, length),
            Body::Ring(_) | Body::Programs(_) => false,
        }
    }

    /// The value of a key, for a flow group; null if there is none.
    ///
    /// # Safety
    /// The key has as many bytes as this map's.
    #[inline]
    pub unsafe fn lookup(&self, key: *const u8, group: u32) -> *mut u8 {
        match &self.body {
            Body::Array { cells, stride, copies } => {
                // SAFETY: the key has four bytes, as the caller promises.
                let index = unsafe { number(key) } as usize;
                if index >= self.spec.entries as usize {
                    return std::ptr::null_mut();
                }
                let row = if *copies > 1 { (group as usize).min(copies - 1) * self.spec.entries as usize } else { 0 };
                cells.start().wrapping_add((row + index) * stride)
            }
            // SAFETY: as promised by the caller.
            Body::Hash(hash) => unsafe { hash.lookup(key, group) },
            // SAFETY: the key has four bytes, as the caller promises.
            Body::Devices(devices) => devices.lookup(unsafe { number(key) }),
            // SAFETY: as promised by the caller.
            Body::Lpm(lpm) => unsafe { lpm.lookup(key) },
            Body::Ring(_) | Body::Programs(_) => std::ptr::null_mut(),
        }
    }

    /// Sets a value, for a flow group. 0, or an errno below 0.
    ///
    /// # Safety
    /// Key and value have as many bytes as this map's.
    pub unsafe fn update(&self, key: *const u8, value: *const u8, flags: u64, group: u32) -> i64 {
        if flags > EXIST {
            return error(libc::EINVAL);
        }
        match &self.body {
            Body::Array { .. } => {
                // SAFETY: as promised by the caller.
                let at = unsafe { self.lookup(key, group) };
                match (at.is_null(), flags) {
                    (true, _) => error(libc::E2BIG),
                    (false, NO_EXIST) => error(libc::EEXIST),
                    // SAFETY: both have the bytes of a value.
                    _ => unsafe {
                        copy(value, at, self.spec.value_size as usize);
                        0
                    },
                }
            }
            // SAFETY: as promised by the caller.
            Body::Hash(hash) => unsafe { hash.update(key, value, flags, group) },
            Body::Devices(_) if flags == NO_EXIST => error(libc::EEXIST),
            // SAFETY: the key has four bytes and the value those of this map's, as the caller promises.
            Body::Devices(devices) => match unsafe { devices.set(number(key), value) } {
                true => 0,
                false => error(libc::E2BIG),
            },
            // SAFETY: as promised by the caller.
            Body::Lpm(lpm) => unsafe { lpm.update(key, value, flags) },
            Body::Ring(_) | Body::Programs(_) => error(libc::EINVAL),
        }
    }

    /// Removes a key. 0, or an errno below 0.
    ///
    /// # Safety
    /// The key has as many bytes as this map's.
    pub unsafe fn delete(&self, key: *const u8) -> i64 {
        match &self.body {
            // SAFETY: as promised by the caller.
            Body::Hash(hash) => unsafe { hash.delete(key) },
            // SAFETY: the key has four bytes, as the caller promises.
            Body::Devices(devices) => match devices.remove(unsafe { number(key) }) {
                true => 0,
                false => error(libc::EINVAL),
            },
            // SAFETY: as promised by the caller.
            Body::Lpm(lpm) => unsafe { lpm.delete(key) },
            Body::Array { .. } | Body::Ring(_) | Body::Programs(_) => error(libc::EINVAL),
        }
    }

    /// The ring buffer that it is.
    pub fn ring(&self) -> Option<&Ring> {
        if let Body::Ring(ring) = &self.body { Some(ring) } else { None }
    }

    /// The number of the program at a place.
    pub fn program(&self, place: u32) -> Option<usize> {
        let Body::Programs(places) = &self.body else { return None };
        let number = places.get(place as usize)?.load(Ordering::Acquire);
        (number as usize).checked_sub(1)
    }

    /// Puts a program at a place, or none.
    pub fn set_program(&self, place: u32, program: Option<usize>) -> bool {
        let Body::Programs(places) = &self.body else { return false };
        let Some(at) = places.get(place as usize) else { return false };
        at.store(program.map_or(0, |program| program as u32 + 1), Ordering::Release);
        true
    }

    /// All elements; of a ring buffer the records that were not read yet, which are taken out.
    pub fn elements(&self) -> Vec<Element> {
        match &self.body {
            Body::Array { stride, copies, cells } => {
                let value = |row: usize, index: u32| {
                    let mut bytes = vec![0; self.spec.value_size as usize];
                    let place = (row * self.spec.entries as usize + index as usize) * stride;
                    // SAFETY: it is a value in our memory.
                    unsafe { copy(cells.start().wrapping_add(place), bytes.as_mut_ptr(), bytes.len()) };
                    bytes
                };
                let element =
                    |index: u32| (index.to_ne_bytes().to_vec(), (0..*copies).map(|row| value(row, index)).collect());
                (0..self.spec.entries).map(element).collect()
            }
            Body::Hash(hash) => hash.entries(),
            Body::Devices(devices) => devices.entries(),
            Body::Lpm(lpm) => lpm.entries(),
            Body::Ring(ring) => std::iter::from_fn(|| ring.next()).map(|record| (Vec::new(), vec![record])).collect(),
            Body::Programs(places) => {
                let there = places.iter().zip(0u32..).map(|(at, place)| (at.load(Ordering::Acquire), place));
                let there = there.filter(|(number, _)| *number != 0);
                there
                    .map(|(number, place)| (place.to_ne_bytes().to_vec(), vec![number.to_ne_bytes().to_vec()]))
                    .collect()
            }
        }
    }

    /// Sets a value for all flow groups. An error says an errno, or that lengths are wrong (EINVAL).
    pub fn set(&self, key: &[u8], value: &[u8]) -> Result<(), i32> {
        let lengths = (self.spec.key_size as usize, self.spec.value_size as usize);
        if (key.len(), value.len()) != lengths || self.spec.read_only {
            return Err(if self.spec.read_only { libc::EPERM } else { libc::EINVAL });
        }
        if self.spec.kind.is_of_devices() {
            self.may_have(value)?;
        }
        for group in 0..self.copies() as u32 {
            // SAFETY: key and value have the bytes of this map's, as was looked at.
            let done = unsafe { self.update(key.as_ptr(), value.as_ptr(), ANY, group) };
            if done != 0 {
                return Err(-done as i32);
            }
        }
        Ok(())
    }

    /// Can a map of interfaces have this value? A program behind the index is none that modules run.
    fn may_have(&self, value: &[u8]) -> Result<(), i32> {
        let word =
            |at: usize| value.get(at..at + 4).and_then(|word| word.try_into().ok()).map_or(0, i32::from_ne_bytes);
        let (index, program) = (word(0), word(4));
        match () {
            // As in the kernel, a descriptor below 1 is none.
            () if program > 0 => Err(libc::EOPNOTSUPP),
            () if index == 0 && self.spec.kind == MapKind::DevMapHash => Err(libc::ENODEV),
            () => Ok(()),
        }
    }

    /// Copies the value of a key, for the first flow group. False: there is none, or a length is wrong.
    pub fn get(&self, key: &[u8], value: &mut [u8]) -> bool {
        if (key.len(), value.len()) != (self.spec.key_size as usize, self.spec.value_size as usize) {
            return false;
        }
        // SAFETY: the key has the bytes of this map's.
        let at = unsafe { self.lookup(key.as_ptr(), 0) };
        if !at.is_null() {
            // SAFETY: both have the bytes of a value.
            unsafe { copy(at, value.as_mut_ptr(), value.len()) };
        }
        !at.is_null()
    }

    /// Writes a part of the value of a key, for the first flow group. False: there is none, or a length is wrong.
    pub fn put(&self, key: &[u8], offset: usize, bytes: &[u8]) -> bool {
        let fits = offset.checked_add(bytes.len()).is_some_and(|end| end <= self.spec.value_size as usize);
        if key.len() != self.spec.key_size as usize || !fits || self.spec.read_only {
            return false;
        }
        // SAFETY: the key has the bytes of this map's.
        let at = unsafe { self.lookup(key.as_ptr(), 0) };
        if !at.is_null() {
            // SAFETY: the bytes lie within the value.
            unsafe { copy(bytes.as_ptr(), at.wrapping_add(offset), bytes.len()) };
        }
        !at.is_null()
    }

    /// Removes a key. An error says an errno.
    pub fn remove(&self, key: &[u8]) -> Result<(), i32> {
        if key.len() != self.spec.key_size as usize {
            return Err(libc::EINVAL);
        }
        // SAFETY: the key has the bytes of this map's.
        match unsafe { self.delete(key.as_ptr()) } {
            0 => Ok(()),
            done => Err(-done as i32),
        }
    }
}

/// # Safety
/// There are four bytes, which may be read.
unsafe fn number(at: *const u8) -> u32 {
    let mut bytes = [0; 4];
    // SAFETY: as promised by the caller.
    unsafe { copy(at, bytes.as_mut_ptr(), 4) };
    u32::from_ne_bytes(bytes)
}
