//! Clock, sleep and CPU of a thread.

use crate::mailbox::Doorbell;
use rustix::event::{Timespec, epoll};
use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The monotonic clock, µs.
#[inline]
pub fn now_us() -> u64 {
    let t = clock_gettime(ClockId::Monotonic);
    t.tv_sec as u64 * 1_000_000 + t.tv_nsec as u64 / 1000
}

/// Adds a descriptor to an epoll set. `edge`: edge-triggered, for a doorbell that is never read.
pub fn watch(set: &OwnedFd, fd: BorrowedFd<'_>, edge: bool) -> io::Result<()> {
    let flags = if edge { epoll::EventFlags::IN | epoll::EventFlags::ET } else { epoll::EventFlags::IN };
    Ok(epoll::add(set, fd, epoll::EventData::new_u64(0), flags)?)
}

/// An epoll set with a thread's doorbell in it.
pub fn epoll_with(doorbell: &Doorbell) -> io::Result<OwnedFd> {
    let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    watch(&set, doorbell.fd(), true)?;
    Ok(set)
}

/// Sleeps until something in the set happens, or for `timeout_us`.
pub fn wait(set: &OwnedFd, timeout_us: Option<u64>) {
    let timeout = timeout_us
        .map(|us| Timespec { tv_sec: (us / 1_000_000).min(3600) as i64, tv_nsec: (us % 1_000_000 * 1000) as i64 });
    let mut events = [std::mem::MaybeUninit::uninit(); 32];
    // The result does not matter, because the caller looks at everything.
    let _ = epoll::wait(set.as_fd(), &mut events, timeout.as_ref());
}

/// Binds the calling thread to one CPU.
pub fn pin(cpu: usize) -> io::Result<()> {
    if cpu >= CpuSet::MAX_CPU {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(sched_setaffinity(None, &set)?)
}
