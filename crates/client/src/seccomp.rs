//! Has the program set a seccomp filter?
//!
//! Many filters kill whoever makes a call that the program itself does not need. So the library makes such calls only for a
//! program without a filter of its own.

use core::sync::atomic::{AtomicBool, Ordering};

static FILTERED: AtomicBool = AtomicBool::new(false);

/// The program sets a filter, or tries to.
pub fn set_filter() {
    FILTERED.store(true, Ordering::Relaxed);
}

/// It has.
pub fn is_filtered() -> bool {
    FILTERED.load(Ordering::Relaxed)
}
