//! A sleep in a call. It ends in order if the thread is cancelled, or if a signal handler jumps out of the call.

use crate::cancel;
use crate::undo_log::{Entry, Undo};
use core::sync::atomic::AtomicU32;
use towpath_hook::cancel::CANCELED;

/// A sleep during which the thread cannot be cancelled, but is woken instead. Dropping it ends it.
pub struct Sleep {
    cancelable: bool,
    _entry: Entry,
}

impl Sleep {
    /// A sleep on a futex word, or on something that a signal interrupts. `undo` is done at its end.
    #[inline]
    pub fn on(word: Option<&AtomicU32>, undo: Undo) -> Self {
        let mut cancelable = false;
        let entry = Entry::new(undo, || {
            cancelable = cancel::disable();
            cancelable
        });
        if cancelable {
            cancel::asleep_on(word);
        }
        Self { cancelable, _entry: entry }
    }

    /// Must the call be given up, because the thread is cancelled?
    pub fn check(&self) -> Result<(), i32> {
        if self.cancelable && cancel::take() { Err(CANCELED) } else { Ok(()) }
    }

    /// The result of a sleep that a cancellation may have interrupted.
    pub fn interrupted<T>(&self, slept: Result<T, i32>) -> Result<T, i32> {
        match slept {
            Err(libc::EINTR) => self.check().and(slept),
            slept => slept,
        }
    }
}
