//! Calls from the client into the library above it. The POSIX library keeps a table of descriptors and counts events
//! for `towpath doctor`. The native API does neither.

use core::sync::atomic::{AtomicPtr, Ordering};
use towpath_ring::report::Count;

/// The functions that the client calls.
pub struct Callbacks {
    /// The descriptor now belongs to the library: the program must not close it.
    pub protected: fn(i32),
    /// The library is about to close the descriptor.
    pub unprotected: fn(i32),
    /// Counts an event.
    pub count: fn(Count),
    /// Does the program have a descriptor of a socket of the session with this number?
    pub is_session_open: fn(u32) -> bool,
    /// The session of this number has ended. Another session may get the number.
    pub forget_session: fn(u32),
    /// Hands each socket of the session of this number, of which the program has a descriptor, to [`crate::idle::look_at`]. If that
    /// wants it, [`crate::idle::give_back`] follows, while the socket cannot be closed.
    pub look_at_idle: fn(u32),
}

static NONE: Callbacks = Callbacks {
    protected: |_| {},
    unprotected: |_| {},
    count: |_| {},
    is_session_open: |_| true,
    forget_session: |_| {},
    look_at_idle: |_| {},
};
static INSTALLED: AtomicPtr<Callbacks> = AtomicPtr::new((&raw const NONE).cast_mut());

/// Sets the callbacks. Called once, before there is a session.
pub fn install(callbacks: &'static Callbacks) {
    INSTALLED.store(core::ptr::from_ref(callbacks).cast_mut(), Ordering::Release);
}

pub(crate) fn get() -> &'static Callbacks {
    // SAFETY: points at `NONE` or at what `install` was given. Both are `'static` and never changed.
    unsafe { &*INSTALLED.load(Ordering::Acquire) }
}
