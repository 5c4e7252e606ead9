//! A running capture, as the service sees it.

use rustix::fd::BorrowedFd;
pub use towpath_capture::Wish;

/// A running capture. Its drop ends it: when that returns, no thread of the stack touches the memory any more.
pub trait Capture: Send {
    /// The memory in which frames are left; see [`towpath_capture::memory`].
    fn memory(&self) -> BorrowedFd<'_>;
    /// Looks for what no thread of the stack sees pass. The service calls this every [`LOOK_MS`], and at once again if
    /// it returns true: much passes.
    fn look(&mut self) -> bool;
}

/// Time between two calls of [`Capture::look`], ms.
pub const LOOK_MS: u64 = 1;
