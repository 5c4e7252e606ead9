//! The pair regions of a session, as this process has mapped them.

use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, Ordering};
use std::iter::successors;
use towpath_ring::pair::CONTEXTS;
use towpath_ring::{PairGeometry, PairRegion};

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
    /// The next one of [`SPARE`].
    next: AtomicPtr<Mapped>,
}

/// Those of sessions that have ended. A program may outlive many services, and the addresses of each would count (RLIMIT_AS).
static SPARE: AtomicPtr<Mapped> = AtomicPtr::new(core::ptr::null_mut());

impl Mapped {
    pub(crate) fn new(region: PairRegion) -> Self {
        let owners = || (0..region.geometry().slots).map(|_| AtomicU32::new(0)).collect();
        let doorbell = || Doorbell { fd: AtomicI32::new(-1), number: AtomicU32::new(0) };
        let doorbells = core::array::from_fn(|_| core::array::from_fn(|_| doorbell()));
        let owners = [owners(), owners()];
        Self { region, owners, doorbells, sides: AtomicU32::new(0), next: AtomicPtr::default() }
    }

    /// No session has it any more: another one's pair may take its place.
    pub(crate) fn spare(&'static self) {
        let own = core::ptr::from_ref(self).cast_mut();
        let _ = SPARE.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |next| {
            self.next.store(next, Ordering::Relaxed);
            Some(own)
        });
    }

    /// One that no session has, of these sizes.
    pub(crate) fn take_spare(geometry: PairGeometry) -> Option<&'static Self> {
        // Whoever takes any takes all first, and so is alone with them.
        let all = SPARE.swap(core::ptr::null_mut(), Ordering::AcqRel);
        // SAFETY: each pointer is null or a leaked box.
        let next = |pointer: *mut Self| unsafe { pointer.as_ref() };
        let mut taken = None;
        for mapped in successors(next(all), |mapped| next(mapped.next.load(Ordering::Relaxed))).collect::<Vec<_>>() {
            if taken.is_none() && mapped.region.geometry() == geometry {
                taken = Some(mapped);
            } else {
                mapped.spare();
            }
        }
        taken
    }
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
