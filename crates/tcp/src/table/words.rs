//! Words of the flow table: relaxed atomics, which only the thread that owns the flow writes.

use super::permit::Writes;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use zerocopy::FromZeros;

/// A 32-bit word that belongs to `State`. The stages that may write `State` may write it.
#[derive(Debug, Default, FromZeros)]
#[repr(transparent)]
pub(crate) struct Word<State>(AtomicU32, PhantomData<State>);

impl<State> Word<State> {
    #[inline(always)]
    pub(crate) fn get(&self) -> u32 {
        self.0.load(Relaxed)
    }
    #[inline(always)]
    pub(crate) fn set<S: Writes<State>>(&self, _: S, value: u32) {
        self.0.store(value, Relaxed);
    }
    #[inline(always)]
    pub(crate) fn add<S: Writes<State>>(&self, by: S, n: u32) {
        self.set(by, self.get().wrapping_add(n));
    }
}

/// A 64-bit word that belongs to `State`.
#[derive(Debug, Default, FromZeros)]
#[repr(transparent)]
pub(crate) struct Counter<State>(PlainCounter, PhantomData<State>);

impl<State> Counter<State> {
    #[inline(always)]
    pub(crate) fn get(&self) -> u64 {
        self.0.get()
    }
    #[inline(always)]
    pub(crate) fn set<S: Writes<State>>(&self, _: S, value: u64) {
        self.0.set(value);
    }
    #[inline(always)]
    pub(crate) fn add<S: Writes<State>>(&self, by: S, n: u64) {
        self.set(by, self.get().wrapping_add(n));
    }
}

/// A 32-bit word of the protocol line, which may have several owners.
#[derive(Debug, Default, FromZeros)]
#[repr(transparent)]
pub(super) struct PlainWord(AtomicU32);

impl PlainWord {
    #[inline(always)]
    pub(super) fn get(&self) -> u32 {
        self.0.load(Relaxed)
    }
    #[inline(always)]
    pub(super) fn set(&self, value: u32) {
        self.0.store(value, Relaxed);
    }
}

/// A 64-bit word, which may have several owners.
#[derive(Debug, Default, FromZeros)]
#[repr(transparent)]
pub(super) struct PlainCounter(AtomicU64);

impl PlainCounter {
    #[inline(always)]
    pub(super) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
    #[inline(always)]
    pub(super) fn set(&self, value: u64) {
        self.0.store(value, Relaxed);
    }
}
