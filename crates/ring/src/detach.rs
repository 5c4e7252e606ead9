//! The end of a region: its client is gone, and bytes of it are still to be sent.
//!
//! Processes that the service does not know may have the region mapped, and what they write there is nobody's. So the
//! service takes what is still to be sent into memory of its own, and lets the client's go ([`Region::detach`]). Where
//! another kernel reads the client's memory that is impossible. There, only what need not be sent is given back
//! ([`Region::vacate`]).

use crate::layout::Header;
use crate::mapping::{Access, Mapping, kernel_page};
use crate::memory::unsealed_memfd;
use crate::shared_bytes::copy;
use crate::{Region, Slot};
use core::sync::atomic::{AtomicU64, Ordering};
use rustix::fd::AsFd;
use std::io;

/// Memory is given back by the page.
const PAGE: usize = 4096;

/// The bytes of a slot's send ring that are still to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unsent {
    slot: Slot,
    from: u32,
    len: u32,
}

impl Unsent {
    /// The slot.
    pub fn slot(&self) -> Slot {
        self.slot
    }
    /// Bytes.
    pub fn len(&self) -> u32 {
        self.len
    }
    /// Is nothing left to be sent?
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// Bytes of memory that they and the slot's words take.
    pub fn memory(&self) -> u64 {
        let page = kernel_page();
        let first = self.from as usize % page;
        // The lines of a slot, one page at most.
        (page + (first + self.len as usize).next_multiple_of(page)) as u64
    }
}

impl Region {
    /// What is still to be sent of a slot, by the words that both sides show. `None` = they contradict the contract.
    pub fn unsent(&self, slot: Slot) -> Option<Unsent> {
        let (app, stack) = (self.app(slot), self.stack(slot));
        let same_use = app.generation.load(Ordering::Acquire) == stack.generation.load(Ordering::Relaxed);
        let from = stack.tx_head.load(Ordering::Acquire);
        let len = app.tx_tail.load(Ordering::Acquire).wrapping_sub(from);
        (same_use && len <= self.tx(slot).capacity()).then_some(Unsent { slot, from, len })
    }

    /// Service side: the region of a client that is gone becomes memory of this process alone. Nothing is in it but the
    /// words and the bytes of these slots. Views of it stay valid. Queues are empty afterwards.
    ///
    /// Words that another thread of this process stores meanwhile may be lost.
    pub fn detach(&self, unsent: &[Unsent]) -> io::Result<()> {
        if self.offset() != 0 {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "other kernels read this region"));
        }
        let (layout, shared) = (self.layout(), self.mapping());
        let memfd = unsealed_memfd("towpath-orphans", layout.total_bytes())?;
        let own = Mapping::new(memfd.as_fd(), layout.total_bytes(), Access::ReadWrite)?;
        let words = |offset: usize, bytes: usize| {
            for at in (offset..offset + bytes).step_by(size_of::<AtomicU64>()) {
                // SAFETY: the parts of a layout begin at multiples of 64 bytes and lie inside both mappings, which are
                // of the same size. All of them are atomics, or a header that nobody writes any more.
                let (from, to) = unsafe { (&*shared.base.add(at).cast::<AtomicU64>(), &*own.base.add(at).cast()) };
                AtomicU64::store(to, from.load(Ordering::Relaxed), Ordering::Relaxed);
            }
        };
        words(0, size_of::<Header>());
        for one in unsent {
            words(layout.lines(one.slot), size_of::<crate::layout::SlotLines>());
            for (from, len) in self.tx(one.slot).spans(one.from, one.len) {
                // SAFETY: a span lies inside its ring, which is in the same place of both mappings. They do not
                // overlap, because `own` is fresh.
                unsafe { copy(from, own.base.add(from.offset_from_unsigned(shared.base)), len) };
            }
        }
        // A reader goes on from its own position, which is the next entry's.
        for queue in 0..=self.geometry().flow_groups as usize {
            let head = self.queue_at(queue).position();
            let at = layout.data_queue(queue);
            // SAFETY: a queue's words are inside the mapping, aligned, and atomics.
            let to = unsafe { &*own.base.add(at).cast::<crate::layout::QueueWords>() };
            to.head.store(head, Ordering::Relaxed);
            to.tail.store(head, Ordering::Relaxed);
        }
        shared.replace(memfd.as_fd())
    }

    /// Service side: gives back the rings of a client that is gone, but for these bytes. They read as zeros afterwards,
    /// wherever they are mapped.
    pub fn vacate(&self, unsent: &[Unsent]) {
        let layout = self.layout();
        let mut kept: Vec<(usize, usize)> = Vec::new();
        for one in unsent {
            for (from, len) in self.tx(one.slot).spans(one.from, one.len).into_iter().filter(|(_, len)| *len > 0) {
                // SAFETY: a span lies inside the mapping, which begins at `base`.
                let at = unsafe { from.offset_from_unsigned(self.mapping().base) };
                kept.push((at / PAGE * PAGE, (at + len).next_multiple_of(PAGE)));
            }
        }
        kept.sort_unstable();
        kept.push((layout.total_bytes(), layout.total_bytes()));
        let mut free = layout.rings();
        for (from, to) in kept {
            self.mapping().give_back(free, from);
            free = free.max(to);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::Geometry;
    use rustix::fd::OwnedFd;
    use std::sync::atomic::Ordering::Relaxed;

    fn region() -> (Region, OwnedFd) {
        let geometry = Geometry { slots: 16, app_slots: 8, tx_bytes: 16384, rx_bytes: 16384, ..Geometry::DEFAULT };
        Region::create(geometry).unwrap()
    }

    /// Fills all rings. The bytes of one slot from `from` on are still to be sent.
    fn filled(region: &Region, raw: u32, from: u32, len: u32) -> Unsent {
        for slot in (0..16).filter_map(|raw| region.slot(raw)) {
            region.tx(slot).write(0, &[1; 16384]);
            region.rx(slot).write(0, &[1; 16384]);
        }
        let slot = region.slot(raw).unwrap();
        region.app(slot).tx_tail.store(from.wrapping_add(len), Relaxed);
        region.stack(slot).tx_head.store(from, Relaxed);
        region.unsent(slot).unwrap()
    }

    fn memory_of(memfd: &OwnedFd) -> u64 {
        rustix::fs::fstat(memfd).unwrap().st_blocks as u64 * 512
    }

    fn holds(region: &Region, unsent: Unsent) -> bool {
        let mut got = vec![0; unsent.len as usize];
        region.tx(unsent.slot).read(unsent.from, &mut got);
        got == vec![1; got.len()]
    }

    #[test]
    fn a_detached_region_has_what_is_to_be_sent_and_shares_nothing() {
        let (region, memfd) = region();
        let slot = region.slot(3).unwrap();
        let app = Region::map(memfd.as_fd(), region.geometry()).unwrap();
        let (mut tail, mut head) = (0, 0);
        for _ in 0..3 {
            app.data_queue(0).push(&mut tail, slot, &app.app(slot).data_seq, &region.stack(slot).data_ack);
            crate::dirty::acknowledge(&app.app(slot).data_seq, &region.stack(slot).data_ack);
        }
        assert_eq!(region.data_queue(0).pop(&mut head), Some(3));
        // It wraps.
        let unsent = filled(&region, 3, 16384 - 100, 5000);
        assert_eq!((unsent.len(), unsent.memory()), (5000, 4096 + 12288));
        region.detach(&[unsent]).unwrap();
        assert!(region.data_queue(0).is_empty(head) && region.commands().is_empty(0));
        assert_eq!(region.unsent(slot), Some(unsent), "the words have come along");
        // A process that nobody knows goes on writing.
        app.tx(slot).write(0, &[2; 16384]);
        app.app(slot).tx_tail.store(7, Relaxed);
        assert!(holds(&region, unsent));
        assert_eq!(region.unsent(slot), Some(unsent));
        let other = region.slot(4).unwrap();
        let mut got = [9; 16384];
        region.tx(other).read(0, &mut got);
        assert_eq!(got, [0; 16384], "nothing else has come along");
    }

    #[test]
    fn what_is_to_be_sent_takes_whole_pages_and_those_of_its_lines() {
        let (region, _memfd) = region();
        let slot = region.slot(3).unwrap();
        for (from, len, pages) in
            [(0, 0, 0), (0, 1, 1), (0, 4096, 1), (1, 4096, 2), (4095, 1, 1), (4095, 2, 2), (8192, 4097, 2)]
        {
            let unsent = Unsent { slot, from, len };
            assert_eq!((unsent.memory(), unsent.len(), unsent.slot()), (4096 * (1 + pages), len, slot));
            assert_eq!(unsent.is_empty(), len == 0);
        }
    }

    #[test]
    fn a_whole_ring_is_to_be_sent_and_no_byte_more() {
        let (region, _memfd) = region();
        let slot = region.slot(2).unwrap();
        region.stack(slot).tx_head.store(u32::MAX, Relaxed);
        region.app(slot).tx_tail.store(16383, Relaxed);
        assert_eq!(region.unsent(slot), Some(Unsent { slot, from: u32::MAX, len: 16384 }));
        region.app(slot).tx_tail.store(16384, Relaxed);
        assert_eq!(region.unsent(slot), None);
    }

    #[test]
    fn a_region_of_which_others_have_a_part_is_not_detached() {
        let geometry = Geometry { slots: 16, app_slots: 8, tx_bytes: 4096, rx_bytes: 4096, ..Geometry::DEFAULT };
        let (host, memfd) = crate::guest_memory::GuestMemory::create(geometry, 1, false).unwrap();
        let region = host.begin(memfd.as_fd(), 0).unwrap();
        assert_eq!(region.detach(&[]).unwrap_err().kind(), io::ErrorKind::Unsupported);
    }

    #[test]
    fn a_vacated_region_keeps_its_words_and_exactly_those_pages() {
        let (region, memfd) = region();
        let before = memory_of(&memfd);
        filled(&region, 1, 0, 0);
        let rings = 16 * 2 * 16384;
        let whole = memory_of(&memfd);
        assert!(whole >= rings && before < rings);
        let slots = [1, 2, 2, 3].map(|raw| region.slot(raw).unwrap());
        let unsent = [(slots[0], 4096, 4096), (slots[1], 4095, 2), (slots[2], 5000, 10), (slots[3], 100, 0)];
        region.vacate(&unsent.map(|(slot, from, len)| Unsent { slot, from, len }));
        assert_eq!(memory_of(&memfd), whole - rings + 3 * 4096, "one page, and two that the others share");
        assert!(unsent.iter().all(|(slot, from, len)| holds(&region, Unsent { slot: *slot, from: *from, len: *len })));
    }

    #[test]
    fn a_vacated_region_keeps_the_pages_of_the_pages_of_what_is_to_be_sent() {
        let (region, memfd) = region();
        let unsent = filled(&region, 5, 16384 - 100, 5000);
        let rings = 16 * 2 * 16384;
        assert!(memory_of(&memfd) >= rings);
        region.vacate(&[unsent]);
        assert!(memory_of(&memfd) < rings / 2, "{} are left", memory_of(&memfd));
        assert!(holds(&region, unsent));
        region.vacate(&[]);
        assert!(!holds(&region, unsent));
    }

    #[test]
    fn words_that_contradict_the_contract_leave_nothing_to_send() {
        let (region, _memfd) = region();
        let slot = region.slot(2).unwrap();
        region.app(slot).tx_tail.store(16385, Relaxed);
        assert_eq!(region.unsent(slot), None);
        region.app(slot).tx_tail.store(0, Relaxed);
        region.app(slot).generation.store(1, Relaxed);
        assert_eq!(region.unsent(slot), None);
    }
}
