//! Waiting that ends with the service.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::BorrowedFd;

/// Waits for a time, or until `stop` is readable. True if it is.
pub fn stopped_within(stop: BorrowedFd<'_>, pause_ms: u64) -> bool {
    let time = Timespec { tv_sec: (pause_ms / 1000) as i64, tv_nsec: (pause_ms % 1000 * 1_000_000) as i64 };
    poll(&mut [PollFd::from_borrowed_fd(stop, PollFlags::IN)], Some(&time)).is_ok_and(|ready| ready > 0)
}
