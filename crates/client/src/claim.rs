//! Claiming a slot of the application's range.

use crate::private::used::{CLAIMED, LIVE, NO, WHICH, claimed, claimer};
use crate::process;
use crate::session::Session;
use crate::sys;
use core::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use towpath_ring::Slot;

/// How long a stack that was woken may take to free slots.
const AWAKE_WITHIN: Duration = Duration::from_millis(2);

impl Session {
    /// Claims a free slot of the application's range. If there is none, a stack that naps is woken: it may have ends of direct
    /// connections to look at.
    pub fn claim_slot(&self) -> Option<Slot> {
        let mut slot = self.claim_free_slot();
        if slot.is_none() && self.region.commands().is_napping() {
            self.notify_queue(self.geometry.flow_groups as usize);
            let end = Instant::now() + AWAKE_WITHIN;
            while slot.is_none() && Instant::now() < end {
                std::thread::sleep(Duration::from_micros(50));
                slot = self.claim_free_slot();
            }
        }
        slot
    }

    fn claim_free_slot(&self) -> Option<Slot> {
        let slots = self.geometry.app_slots;
        let begin = self.header().next_slot.fetch_add(1, Ordering::Relaxed);
        for i in 0..slots {
            let slot = self.region.slot(begin.wrapping_add(i) % slots)?;
            let word: &AtomicU32 = &self.private(slot).used;
            let seen = word.load(Ordering::Relaxed);
            let free = self.region.stack(slot).state.load(Ordering::Acquire) == towpath_ring::lines::state::FREE;
            // A claimer that died before posting has abandoned the slot. A posted command is decided soon.
            let abandoned = || {
                let posted = self.region.command(slot).seq.load(Ordering::Acquire);
                let decided = self.region.stack(slot).command_done.load(Ordering::Acquire) == posted;
                seen & WHICH == CLAIMED && decided && !sys::alive(claimer(seen))
            };
            if !free || (seen != NO && seen != LIVE && !abandoned()) {
                continue;
            }
            if word.compare_exchange(seen, claimed(process::pid()), Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                self.header().next_slot.store(slot.raw() + 1, Ordering::Relaxed);
                self.header().slots_claimed.fetch_max(slot.raw() + 1, Ordering::Relaxed);
                return Some(slot);
            }
        }
        None
    }
}
