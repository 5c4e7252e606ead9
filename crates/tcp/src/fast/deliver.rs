//! Fourth stage: payload from the frame straight into the application's ring, the only copy. Touches no flow's state.

use super::batch::Item;
use crate::buffers::{Rings, RxBatch};
use crate::counters::{Counters, Stage};

/// Copies what the protocol stage has accepted.
#[inline(always)]
pub(super) fn run(counters: &mut Counters, frames: &impl RxBatch, rings: &mut impl Rings, batch: &[Item]) {
    let mut copied = 0;
    for item in batch {
        if item.copy.len == 0 {
            continue;
        }
        let from = item.copy.offset as usize;
        // The range comes from `parse` of this frame.
        if let Some(bytes) = frames.bytes(item.frame as usize).get(from..from + item.copy.len as usize) {
            rings.deliver(item.flow, item.copy.position, bytes);
            copied += 1;
        }
    }
    counters.stage(Stage::Deliver, copied);
}
