//! Has the program set a seccomp filter?
//!
//! Many filters kill whoever makes a call that the program itself does not need. So the library makes such calls only for a
//! program without a filter of its own. One that was there before the program is not known.

use core::sync::atomic::{AtomicBool, Ordering};

static FILTERED: AtomicBool = AtomicBool::new(false);

/// The program sets a filter, or tries to.
pub fn note_filter() {
    FILTERED.store(true, Ordering::Relaxed);
}

/// Has it set one, as far as was seen?
pub fn is_filtered() -> bool {
    FILTERED.load(Ordering::Relaxed)
}
