//! Closing a descriptor of which there may be copies, in this process or another one.
//!
//! On Linux the `close` of the last copy ends the connection before it returns. So a program that closes one connection and
//! then writes on another relies on their order. The service sees the last copy go as well, but later.
//! Only the kernel knows how many copies there are. It takes a file out of an epoll set when the last descriptor of it is
//! closed. So the library makes a set with the descriptor, closes that, and asks the set.

use crate::lifecycle::in_flight;
use core::mem::MaybeUninit;
use libc::{c_int, c_ulong};
use rustix::event::{Timespec, epoll};
use std::sync::atomic::Ordering;
use towpath_client::socket::Socket;
use towpath_client::{descriptors, process, seccomp, sys};
use towpath_ring::lines::state;

/// The program calls `prctl`, perhaps to set a seccomp filter. Under one, the kernel is not asked what is left: see [`seccomp`].
pub fn controlled(option: c_int, filter: c_ulong) {
    // Without a filter the program only asks what there is. A vfork child has its parent's memory, and a filter of its own.
    if option == libc::PR_SET_SECCOMP && filter != 0 && !process::in_vfork_child() {
        seccomp::note_filter();
    }
}

/// A descriptor that is being closed. It may be the last one of its connection.
#[must_use]
pub struct Leaving {
    socket: Socket,
    /// The set with the descriptor, until it has been asked.
    set: Option<c_int>,
}

impl Leaving {
    /// `fd`, a descriptor of this socket, is about to be closed. `None`: the service is left to see whether it is the last one.
    pub fn begin(fd: c_int, socket: &Socket) -> Option<Self> {
        // The kernel ends a listener's socket. A close that waits, as SO_LINGER asks, would do so without a descriptor. A call in
        // flight may still use the slot.
        let listens = socket.kernel_half() || socket.state() == state::LISTENING;
        let waits = socket.private().linger_s.load(Ordering::Relaxed) > 0;
        if seccomp::is_filtered() || socket.is_gone() || listens || waits || in_flight::any(socket) {
            return None;
        }
        let set = descriptors::protect(epoll::create(epoll::CreateFlags::CLOEXEC).ok()?).ok()?;
        // There is an event while the socketpair has room. The library writes nothing to it.
        let (data, flags) = (epoll::EventData::new_u64(0), epoll::EventFlags::OUT);
        let is_in =
            epoll::add(sys::borrow(&set), sys::borrow(&fd), data, flags).is_ok() && has_event(set) == Some(true);
        if !is_in || !socket.enter_closer() {
            descriptors::unprotect(set);
            return None;
        }
        Some(Self { socket: *socket, set: Some(set) })
    }

    /// The descriptor has been closed. If it was the last one, the connection ends.
    pub fn closed(mut self) {
        let Some(set) = self.set.take() else { return };
        let has_copy = has_event(set) != Some(false);
        descriptors::unprotect(set);
        if has_copy {
            self.socket.leave_closer();
        } else {
            self.socket.end_by_closer();
        }
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        if let Some(set) = self.set {
            descriptors::unprotect(set);
            self.socket.leave_closer();
        }
    }
}

/// Has a file in this set an event? This waits for nothing. `None`: the set cannot tell.
fn has_event(set: c_int) -> Option<bool> {
    let mut events = [MaybeUninit::uninit(); 1];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    epoll::wait(sys::borrow(&set), &mut events, Some(&now)).ok().map(|(events, _)| !events.is_empty())
}
