//! The end of the pipeline: what the flow group has made leaves in the order in which it was made, and not before what was
//! accepted earlier is copied.

use super::items::{Made, Output, What};
use super::order::{Reorder, put};
use rtrb::Producer;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// It belongs to the thread that has the ports and tells applications.
#[derive(Debug)]
pub struct Commit<F> {
    made: Reorder<Made<F>>,
    /// Received frames whose payload is copied.
    copied: Reorder<F>,
    spent: Producer<F>,
    free: Producer<F>,
    /// The number of copies up to the first that is not made yet, for the flow group.
    watermark: Arc<AtomicU64>,
}

impl<F> Commit<F> {
    pub(super) fn new(
        made: Reorder<Made<F>>,
        copied: Reorder<F>,
        (spent, free): (Producer<F>, Producer<F>),
        watermark: Arc<AtomicU64>,
    ) -> Self {
        Self { made, copied, spent, free, watermark }
    }

    /// What may leave next. `None`: nothing now.
    #[inline]
    pub fn next_output(&mut self) -> Option<Output<F>> {
        self.take_copies();
        loop {
            if self.made.peek()?.after > self.copied.taken() {
                return None;
            }
            match self.made.pop()?.what {
                What::Output(output) => return Some(output),
                What::Abandoned(frame) => self.give_back(frame),
            }
        }
    }

    /// How many frames, events and messages have left, or were abandoned.
    pub fn left(&self) -> u64 {
        self.made.taken()
    }

    /// Completions have made the bytes visible to this thread, which shows them to others.
    #[inline]
    fn take_copies(&mut self) {
        let before = self.copied.taken();
        while let Some(frame) = self.copied.pop() {
            put(&mut self.spent, frame);
        }
        if self.copied.taken() != before {
            self.watermark.store(self.copied.taken(), Ordering::Release);
        }
    }

    /// The flow group may use a frame again that has been sent.
    #[inline]
    pub fn give_back(&mut self, frame: F) {
        put(&mut self.free, frame);
    }
}
