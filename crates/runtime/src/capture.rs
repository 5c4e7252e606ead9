//! A running capture, as the service sees it.

use rustix::fd::BorrowedFd;
pub use towpath_capture::Wish;

/// A running capture. Its drop ends it: when that returns, no thread of the stack touches the memory any more.
pub trait Capture: Send {
    /// The memory in which frames are left; see [`towpath_capture::memory`].
    fn memory(&self) -> BorrowedFd<'_>;
    /// Looks for what no thread of the stack sees pass. Returns when it is to be called again.
    fn look(&mut self) -> Next;
    /// For [`Next::Called`].
    fn call(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// When [`Capture::look`] is called again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// At once: much passes.
    Now,
    /// In [`LOOK_MS`].
    Soon,
    /// When [`Capture::call`] is readable: nothing can pass before.
    Called,
}

/// Time between two looks while something may pass, ms.
pub const LOOK_MS: u64 = 1;
