//! The queues by which an application notifies the stack of new data. Their addresses are looked up once.

use crate::private;
use core::ptr::NonNull;
use towpath_ring::Region;
use towpath_ring::layout::QueueWords;

/// The words of one data queue that a sender reads, to see that others have already notified the stack.
pub struct DataQueue {
    queue: NonNull<private::Queue>,
    words: NonNull<QueueWords>,
}

// SAFETY: both pointers stand for shared references to atomics, which any thread may use.
unsafe impl Send for DataQueue {}
// SAFETY: both pointers stand for shared references to atomics, which any thread may use.
unsafe impl Sync for DataQueue {}

impl DataQueue {
    /// The data queue of a number; too high a number means the last queue. It must not outlive the region.
    pub fn of(region: &Region, number: usize) -> Self {
        let number = number.min(region.geometry().flow_groups as usize - 1);
        let header = private::header(region);
        Self { queue: NonNull::from(&header.queues[number]), words: NonNull::from(region.data_queue_words(number)) }
    }

    /// Its words.
    #[inline(always)]
    pub fn words(&self) -> (&private::Queue, &QueueWords) {
        // SAFETY: both are in the region, which outlives this, so they are mapped. They consist of atomics.
        unsafe { (self.queue.as_ref(), self.words.as_ref()) }
    }
}
