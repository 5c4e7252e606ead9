//! Waking the threads of this process that sleep on an instance.

use super::Instance;
use core::sync::atomic::{AtomicI32, Ordering};
use libc::{c_int, epoll_event};
use towpath_client::descriptors;
use towpath_hook::real;

impl Instance {
    /// Wakes a thread of this process that sleeps on the instance. It puts an eventfd that is always readable into the
    /// native set, which counts as an edge.
    pub fn nudge(&self) {
        if self.sleepers.load(Ordering::SeqCst) == 0 {
            return;
        }
        let Some(ready) = always_readable() else { return };
        self.nudged.store(true, Ordering::SeqCst);
        let events = (libc::EPOLLIN | libc::EPOLLET | libc::EPOLLONESHOT) as u32;
        let mut event = epoll_event { events, u64: self.mark() };
        let fd = self.fd.load(Ordering::Relaxed);
        // SAFETY: `event` lives until the calls return.
        unsafe {
            if real::epoll_ctl(fd, libc::EPOLL_CTL_MOD, ready, &raw mut event) != 0 {
                real::epoll_ctl(fd, libc::EPOLL_CTL_ADD, ready, &raw mut event);
            }
        }
    }

    /// Takes the eventfd of `nudge` out of the native set.
    pub fn calm(&self) {
        if self.nudged.swap(false, Ordering::SeqCst)
            && let Some(ready) = always_readable()
        {
            // SAFETY: for EPOLL_CTL_DEL the kernel reads no event, so null is allowed.
            unsafe { real::epoll_ctl(self.descriptor(), libc::EPOLL_CTL_DEL, ready, core::ptr::null_mut()) };
        }
    }
}

/// An eventfd of this process that is always readable.
fn always_readable() -> Option<c_int> {
    static READY: AtomicI32 = AtomicI32::new(-1);
    let fd = READY.load(Ordering::Acquire);
    if fd >= 0 {
        return Some(fd);
    }
    let made = towpath_ring::wake::doorbell().ok()?;
    towpath_ring::wake::notify(rustix::fd::AsFd::as_fd(&made));
    let made = descriptors::protect(made).ok()?;
    match READY.compare_exchange(-1, made, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => Some(made),
        Err(other) => {
            descriptors::unprotect(made);
            Some(other)
        }
    }
}
