//! A sleep in a call: it ends in order if the thread is cancelled, or if a signal handler leaves the call.

use crate::cancel;
use crate::undo_log::{Entry, Undo};
use core::sync::atomic::AtomicU32;
use towpath_hook::cancel::CANCELED;

/// A sleep in which the thread is not cancelled, but woken; until dropped.
pub struct Sleep {
    cancelable: bool,
    _entry: Entry,
}

impl Sleep {
    /// A sleep on a futex word, or on something that a signal interrupts. `undo` is done after it.
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

    /// Is the call to be given up?
    pub fn check(&self) -> Result<(), i32> {
        if self.cancelable && cancel::take() { Err(CANCELED) } else { Ok(()) }
    }

    /// The outcome of a sleep that may have been interrupted for that.
    pub fn interrupted<T>(&self, slept: Result<T, i32>) -> Result<T, i32> {
        match slept {
            Err(libc::EINTR) => self.check().and(slept),
            slept => slept,
        }
    }
}
