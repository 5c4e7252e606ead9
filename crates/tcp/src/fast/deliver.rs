//! Fourth stage: payload from the frame straight into the application's ring, the only copy. Touches no flow's state.

use super::batch::{Copy, Item};
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
        if let Some(bytes) = piece(frames.bytes(item.frame as usize), &item.copy) {
            rings.deliver(item.flow, item.copy.position, bytes);
            copied += 1;
        }
    }
    counters.stage(Stage::Deliver, copied);
}

/// The bytes of a frame that are to be copied.
#[inline(always)]
pub(super) fn piece<'a>(frame: &'a [u8], copy: &Copy) -> Option<&'a [u8]> {
    // The range comes from `parse` of this frame.
    frame.get(copy.offset as usize..(copy.offset + copy.len) as usize)
}
