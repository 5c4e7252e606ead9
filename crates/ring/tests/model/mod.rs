//! Words for the model checker.
#![allow(dead_code)] // Not every model uses all of it.

use loom::sync::atomic::{AtomicU32, Ordering, fence};
use towpath_ring::dirty::{Fence, Word};

/// Nothing left out.
pub const WHOLE: u8 = 0;
/// Bits of `WITHOUT`: what to leave out, to show that the model notices.
pub const NO_PUSH_FENCE: u8 = 1;
pub const NO_ACKNOWLEDGE_FENCE: u8 = 2;
pub const NO_ARM_FENCE: u8 = 4;
pub const NO_RING_FENCE: u8 = 8;
/// Release stores are relaxed ones.
pub const NO_RELEASE: u8 = 16;

/// A word of the model checker, on which parts of the protocol can be left out.
pub struct ModelWord<const WITHOUT: u8>(AtomicU32);

impl<const WITHOUT: u8> ModelWord<WITHOUT> {
    pub fn new() -> Self {
        Self(AtomicU32::new(0))
    }
}

impl<const WITHOUT: u8> Word for ModelWord<WITHOUT> {
    fn load(&self, order: Ordering) -> u32 {
        self.0.load(order)
    }
    fn store(&self, value: u32, order: Ordering) {
        let weak = WITHOUT & NO_RELEASE != 0 && order == Ordering::Release;
        self.0.store(value, if weak { Ordering::Relaxed } else { order });
    }
    fn fence(which: Fence) {
        let left_out = match which {
            Fence::Push => NO_PUSH_FENCE,
            Fence::Acknowledge => NO_ACKNOWLEDGE_FENCE,
            Fence::Arm => NO_ARM_FENCE,
            Fence::Notify => NO_RING_FENCE,
        };
        if WITHOUT & left_out == 0 {
            fence(Ordering::SeqCst);
        }
    }
}
