//! The queues by which an application notifies the stack of new data. Their addresses are looked up once.

use crate::private;
use core::ptr::NonNull;
use core::sync::atomic::AtomicU32;
use towpath_ring::Region;
use towpath_ring::dirty::DirtySet;
use towpath_ring::layout::QueueWords;

/// One data queue.
pub struct DataQueue {
    queue: NonNull<private::Queue>,
    words: NonNull<QueueWords>,
    entries: NonNull<[AtomicU32]>,
    /// Its number.
    pub number: u32,
}

// SAFETY: the pointers stand for shared references to atomics, which any thread may use.
unsafe impl Send for DataQueue {}
// SAFETY: the pointers stand for shared references to atomics, which any thread may use.
unsafe impl Sync for DataQueue {}

impl DataQueue {
    /// The data queue of a number; too high a number means the last queue. It must not outlive the region.
    pub fn of(region: &Region, number: usize) -> Self {
        let number = number.min(region.geometry().flow_groups as usize - 1);
        Self {
            queue: NonNull::from(&private::header(region).queues[number]),
            words: NonNull::from(region.data_queue_words(number)),
            entries: NonNull::from(region.data_queue(number).entries()),
            number: number as u32,
        }
    }

    /// The application's own words.
    #[inline(always)]
    pub fn queue(&self) -> &private::Queue {
        // SAFETY: it is in the region, which outlives this, so it is mapped. It consists of atomics.
        unsafe { self.queue.as_ref() }
    }

    /// The words that the stack shares.
    #[inline(always)]
    pub fn words(&self) -> &QueueWords {
        // SAFETY: they are in the region, which outlives this, so they are mapped. They consist of atomics.
        unsafe { self.words.as_ref() }
    }

    /// The queue.
    #[inline(always)]
    pub fn set(&self) -> DirtySet<'_> {
        // SAFETY: they are in the region, which outlives this, so they are mapped. They are atomics, and those of a set.
        unsafe { DirtySet::of_words(self.words(), self.entries.as_ref()) }
    }
}
