//! Interfaces by number (a devmap). An element is an interface's index, and 0 is none.

use super::cells::copy;
use std::sync::atomic::{AtomicU64, Ordering};

/// See the module.
#[derive(Debug)]
pub struct Devices {
    /// The index stands in the first four bytes.
    all: Box<[AtomicU64]>,
    value_size: usize,
}

fn has_interface(value: u64) -> bool {
    value.to_ne_bytes()[..4] != [0; 4]
}

impl Devices {
    /// None yet.
    pub fn new(value_size: u32, entries: u32) -> Self {
        Self { all: (0..entries).map(|_| AtomicU64::new(0)).collect(), value_size: value_size as usize }
    }

    /// May a program read these bytes?
    pub fn has_value(&self, at: usize, length: usize) -> bool {
        let Some(offset) = at.checked_sub(self.all.as_ptr() as usize) else { return false };
        offset < size_of_val(&*self.all) && offset % size_of::<u64>() + length <= self.value_size
    }

    /// The value at a place; null if there is none.
    pub fn lookup(&self, place: u32) -> *mut u8 {
        match self.all.get(place as usize) {
            Some(value) if has_interface(value.load(Ordering::Relaxed)) => value.as_ptr().cast(),
            _ => std::ptr::null_mut(),
        }
    }

    /// Sets the value at a place. 0 removes it. False: it is beyond the end.
    ///
    /// # Safety
    /// The value has as many bytes as this map's.
    pub unsafe fn set(&self, place: u32, value: *const u8) -> bool {
        let mut bytes = [0; 8];
        // SAFETY: as promised by the caller; no value has more.
        unsafe { copy(value, bytes.as_mut_ptr(), self.value_size.min(8)) };
        self.store(place, u64::from_ne_bytes(bytes))
    }

    /// Removes the value at a place. False: it is beyond the end.
    pub fn remove(&self, place: u32) -> bool {
        self.store(place, 0)
    }

    fn store(&self, place: u32, value: u64) -> bool {
        self.all.get(place as usize).inspect(|at| at.store(value, Ordering::Relaxed)).is_some()
    }

    /// All values, by their places.
    pub fn entries(&self) -> Vec<super::Element> {
        let there = self.all.iter().map(|value| value.load(Ordering::Relaxed)).zip(0u32..);
        let there = there.filter(|(value, _)| has_interface(*value));
        let element = |(value, place): (u64, u32)| {
            (place.to_ne_bytes().to_vec(), vec![value.to_ne_bytes()[..self.value_size].to_vec()])
        };
        there.map(element).collect()
    }
}
