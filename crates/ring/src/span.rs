//! A part of shared memory as something to copy to and from: what a transport to another machine writes into.

use crate::Region;
use crate::mapping::{Access, Mapping};
use crate::memory::unsealed_memfd;
use crate::shared_bytes::copy;
use core::ptr;
use rustix::fd::AsFd;
use std::io;
use std::sync::Arc;

/// Bytes of a mapping, which stays mapped as long as this lives. They may change at any moment, so they are only
/// copied.
#[derive(Clone)]
pub struct Span {
    base: *mut u8,
    bytes: u64,
    _mapped: Arc<dyn Send + Sync>,
}

// SAFETY: the memory belongs to the process, not to a thread, and is only copied from and to; `_mapped` keeps it
// mapped.
unsafe impl Send for Span {}
// SAFETY: a span has no state but its address and size, which never change.
unsafe impl Sync for Span {}

impl Span {
    /// Zeros of this process's own.
    pub fn fresh(bytes: usize) -> io::Result<Self> {
        let memfd = unsealed_memfd("towpath-span", bytes)?;
        let mapping = Arc::new(Mapping::new(memfd.as_fd(), bytes, Access::ReadWrite)?);
        Ok(Self { base: mapping.base, bytes: bytes as u64, _mapped: mapping })
    }
    /// All send rings of a region, slot by slot, as far as their first sizes go.
    pub fn of_sends(region: &Arc<Region>) -> Self {
        let slots = u64::from(region.geometry().slots);
        let base = region.slot(0).map_or(ptr::null_mut(), |slot| region.tx(slot).spans(0, 1)[0].0);
        Self { base, bytes: slots * u64::from(region.geometry().tx_bytes), _mapped: Arc::clone(region) as Arc<_> }
    }
    /// All receive rings of a region, slot by slot, as far as their first sizes go.
    pub fn of_receives(region: &Arc<Region>) -> Self {
        let slots = u64::from(region.geometry().slots);
        let base = region.slot(0).map_or(ptr::null_mut(), |slot| region.rx(slot).spans(0, 1)[0].0);
        Self { base, bytes: slots * u64::from(region.geometry().rx_bytes), _mapped: Arc::clone(region) as Arc<_> }
    }
    /// How many bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
    /// Where they begin in this process: for a device that is to write there itself.
    pub fn address(&self) -> *mut u8 {
        self.base
    }
    fn at(&self, offset: u64, length: usize) -> Option<*mut u8> {
        let end = offset.checked_add(length as u64)?;
        (end <= self.bytes).then(|| self.base.wrapping_add(offset as usize))
    }
    /// Copies there; false = it has no such bytes, and nothing was copied.
    pub fn write(&self, offset: u64, from: &[u8]) -> bool {
        let Some(to) = self.at(offset, from.len()) else { return false };
        // SAFETY: the bytes lie inside the span, which is mapped; `from` is a slice of this process's own memory.
        unsafe { copy(from.as_ptr(), to, from.len()) };
        true
    }
    /// Copies from there; false = it has no such bytes.
    pub fn read(&self, offset: u64, to: &mut [u8]) -> bool {
        let Some(from) = self.at(offset, to.len()) else { return false };
        // SAFETY: the bytes lie inside the span, which is mapped; `to` is a slice of this process's own memory.
        unsafe { copy(from, to.as_mut_ptr(), to.len()) };
        true
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::Geometry;

    #[test]
    fn a_span_covers_all_rings_of_its_kind_and_not_a_byte_more() {
        let geometry = Geometry { slots: 16, app_slots: 8, tx_bytes: 4096, rx_bytes: 8192, ..Geometry::DEFAULT };
        let region = Arc::new(Region::create(geometry).unwrap().0);
        let (sends, receives) = (Span::of_sends(&region), Span::of_receives(&region));
        assert_eq!((sends.bytes(), receives.bytes()), (16 * 4096, 16 * 8192));
        let first = region.slot(0).unwrap();
        assert_eq!(Some(sends.address()), region.tx(first).span(0, 1));
        assert_eq!(Some(receives.address()), region.rx(first).span(0, 1));
        let slot = region.slot(15).unwrap();
        assert!(sends.write(15 * 4096 + 4093, b"end") && receives.write(15 * 8192, b"begin"));
        let mut got = [0; 5];
        region.tx(slot).read(4093, &mut got[..3]);
        assert_eq!(&got[..3], b"end");
        region.rx(slot).read(0, &mut got);
        assert_eq!(&got, b"begin");
        for (offset, length) in [(16 * 4096, 1), (16 * 4096 - 1, 2), (u64::MAX, 2), (1 << 63, 1)] {
            assert!(!sends.write(offset, &vec![0; length]) && !sends.read(offset, &mut vec![0; length]));
        }
        drop(region);
        assert!(receives.read(15 * 8192, &mut got), "it keeps its region mapped");
    }
}
