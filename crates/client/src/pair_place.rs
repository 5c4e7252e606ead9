//! The pair regions of a session, as this process has mapped them.

use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, Ordering};
use towpath_ring::PairRegion;
use towpath_ring::pair::CONTEXTS;

/// One of the peer's doorbells.
pub(crate) struct Doorbell {
    /// -1 = not asked for yet. As long as its session lasts the descriptor is never closed, only replaced (`dup3`).
    pub(crate) fd: AtomicI32,
    /// Which doorbell it is.
    pub(crate) number: AtomicU32,
}

/// A pair region as this process has mapped it. It is never unmapped, but another pair may take its place.
pub(crate) struct Mapped {
    pub(crate) region: PairRegion,
    /// By side and slot: the slot in this client's own region.
    pub(crate) owners: [Box<[AtomicU32]>; 2],
    /// By side of the pair, and context.
    pub(crate) doorbells: [[Doorbell; CONTEXTS]; 2],
    /// The sides that are this client's (bits).
    pub(crate) sides: AtomicU32,
}

/// One of a session's places for pair regions.
pub(crate) struct Place {
    /// The number of the pair in it; 0 = none.
    pub(crate) number: AtomicU32,
    /// The last region in it; null = there was none.
    pub(crate) mapped: AtomicPtr<Mapped>,
}

impl Place {
    pub(crate) const fn new() -> Self {
        Self { number: AtomicU32::new(0), mapped: AtomicPtr::new(core::ptr::null_mut()) }
    }

    /// The region that is in it, or was.
    #[inline(always)]
    pub(crate) fn mapped(&self) -> Option<&'static Mapped> {
        // SAFETY: the pointer is null or a leaked box.
        unsafe { self.mapped.load(Ordering::Acquire).as_ref() }
    }
}
