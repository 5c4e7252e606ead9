//! The memory of one slot of a region, found once: a stack that serves a connection looks there for each segment.

use crate::layout::SlotLines;
use crate::{ByteRing, Region, Slot};
use core::mem::transmute;
use std::sync::Arc;

/// The lines and the rings of one slot. The region stays mapped as long as this lives.
pub struct SlotMemory {
    lines: *const SlotLines,
    /// They live as long as the region does, and are handed out for no longer than this lives.
    tx: ByteRing<'static>,
    rx: ByteRing<'static>,
    region: Arc<Region>,
}

// SAFETY: the memory belongs to the process, not to a thread. What is handed out are atomics and copying views.
unsafe impl Send for SlotMemory {}
// SAFETY: the methods that take `&self` hand out atomics and copying views only, which threads may share.
unsafe impl Sync for SlotMemory {}

impl SlotMemory {
    /// The memory of this slot, with rings of these sizes ([`ring_size`](crate::ring_size)).
    pub fn new(region: &Arc<Region>, slot: Slot, (send, receive): (u32, u32)) -> Self {
        Self {
            lines: region.lines(slot),
            tx: kept(region.tx_halved(slot, send)),
            rx: kept(region.rx_halved(slot, receive)),
            region: Arc::clone(region),
        }
    }
    /// Its rings have these sizes from now on. `slot` is the same as before.
    pub fn resize(&mut self, slot: Slot, (send, receive): (u32, u32)) {
        self.tx = kept(self.region.tx_halved(slot, send));
        self.rx = kept(self.region.rx_halved(slot, receive));
    }
    /// All lines of the slot.
    #[inline(always)]
    pub fn lines(&self) -> &SlotLines {
        // SAFETY: the lines lie in the mapping, which is there as long as `region` is. All their words are atomics.
        unsafe { &*self.lines }
    }
    /// The send ring.
    #[inline(always)]
    pub fn tx(&self) -> ByteRing<'_> {
        self.tx
    }
    /// The receive ring.
    #[inline(always)]
    pub fn rx(&self) -> ByteRing<'_> {
        self.rx
    }
}

/// A view that is kept together with the region that it is of.
fn kept(ring: ByteRing<'_>) -> ByteRing<'static> {
    // SAFETY: only the lifetime changes. `SlotMemory` keeps the region, whose addresses stay mapped until it is dropped, and
    // hands the view out for no longer than it lives itself.
    unsafe { transmute(ring) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::Geometry;
    use core::sync::atomic::Ordering::Relaxed;

    #[test]
    fn it_is_the_memory_of_its_slot_also_after_the_rings_have_grown_and_the_region_is_nobodys() {
        let bytes = 4096;
        let geometry = Geometry {
            slots: 16,
            app_slots: 8,
            tx_bytes: bytes,
            rx_bytes: bytes,
            tx_most: 4 * bytes,
            rx_most: 2 * bytes,
            ..Geometry::DEFAULT
        };
        let region = Arc::new(Region::create(geometry).unwrap().0);
        let (slot, first) = (region.slot(5).unwrap(), geometry.first_halvings());
        let mut memory = SlotMemory::new(&region, slot, first);
        assert_eq!((memory.tx().capacity(), memory.rx().capacity()), (bytes, bytes));
        region.app(slot).tx_tail.store(7, Relaxed);
        assert_eq!(memory.lines().app.tx_tail.load(Relaxed), 7);
        memory.resize(slot, (0, 0));
        assert_eq!((memory.tx().capacity(), memory.rx().capacity()), (4 * bytes, 2 * bytes));
        for (ring, same, at) in [
            (memory.tx(), region.tx_halved(slot, 0), 4 * bytes - 1),
            (memory.rx(), region.rx_halved(slot, 0), 2 * bytes - 1),
        ] {
            ring.write(at, b"ab");
            let mut read = [0; 2];
            same.read(at, &mut read);
            assert_eq!(&read, b"ab");
        }
        drop(region);
        let mut read = [0; 2];
        memory.tx().read(4 * bytes - 1, &mut read);
        assert_eq!(&read, b"ab");
    }
}
