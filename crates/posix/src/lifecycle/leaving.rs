//! Closing a descriptor of which there may be copies, in this process or another one.
//!
//! On Linux the `close` of the last copy ends the connection before it returns. So a program that closes one connection and
//! then writes on another relies on their order. The service sees the last copy go as well, but later.
//! Only the kernel knows how many copies there are. It takes a file out of an epoll set when the last descriptor of it is
//! closed. So the library makes a set with the descriptor, closes that, and asks the set.

use core::mem::take;
use core::time::Duration;
use libc::c_int;
use rustix::event::epoll;
use rustix::fd::IntoRawFd;
use std::sync::atomic::Ordering;
use towpath_client::close::abandon;
use towpath_client::private::flag;
use towpath_client::socket::Socket;
use towpath_client::sys;
use towpath_ring::lines::app_flags;

/// A descriptor that is being closed. It may be the last one of its connection.
#[must_use]
pub struct Leaving {
    socket: Socket,
    /// The set with the descriptor.
    set: c_int,
    /// Has the stack not been told of an end?
    goes_on: bool,
}

impl Leaving {
    /// `fd`, a descriptor of this socket, is about to be closed. `None`: the service is left to see whether it is the last one.
    pub fn begin(fd: c_int, socket: &Socket) -> Option<Self> {
        // The kernel ends a listener with its own half of it. A call in flight keeps a connection, in whatever process it is.
        let is_kept = socket.has(flag::KERNEL_HALF) || socket.private().users.load(Ordering::SeqCst) != 0;
        if is_kept || socket.is_gone() {
            return None;
        }
        let set = epoll::create(epoll::CreateFlags::CLOEXEC).ok()?.into_raw_fd();
        let leaving = Self { socket: *socket, set, goes_on: true };
        // Nobody writes to a socketpair, so there is always room, and the set has an event.
        let (data, flags) = (epoll::EventData::new_u64(0), epoll::EventFlags::OUT);
        epoll::add(sys::borrow(&set), sys::borrow(&fd), data, flags).ok()?;
        socket.app().flags.fetch_or(app_flags::CLOSING, Ordering::SeqCst);
        Some(leaving)
    }

    /// The descriptor has been closed. If it was the last one, the connection ends.
    pub fn closed(mut self) {
        let mut has_copy = [libc::pollfd { fd: self.set, events: libc::POLLIN, revents: 0 }];
        let was_last = sys::ppoll(&mut has_copy, Some(Duration::ZERO), core::ptr::null()) == Ok(0);
        if was_last && take(&mut self.goes_on) {
            abandon(&self.socket);
        }
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        sys::close(self.set);
        if self.goes_on && !self.socket.is_gone() {
            self.socket.app().flags.fetch_and(!app_flags::CLOSING, Ordering::SeqCst);
        }
    }
}
