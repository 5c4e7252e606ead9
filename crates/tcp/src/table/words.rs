//! Words of the flow table: relaxed atomics with one writer.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// A 32-bit word with one writer.
#[derive(Debug, Default)]
#[repr(transparent)]
pub(crate) struct Word(AtomicU32);

impl Word {
    #[inline]
    pub(crate) fn get(&self) -> u32 {
        self.0.load(Relaxed)
    }
    #[inline]
    pub(crate) fn set(&self, value: u32) {
        self.0.store(value, Relaxed);
    }
    #[inline]
    pub(crate) fn add(&self, n: u32) {
        self.set(self.get().wrapping_add(n));
    }
}

/// A 64-bit counter with one writer.
#[derive(Debug, Default)]
#[repr(transparent)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    #[inline]
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
    #[inline]
    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Relaxed);
    }
    #[inline]
    pub(crate) fn add(&self, n: u64) {
        self.set(self.get().wrapping_add(n));
    }
}
