//! Programs that wait past the library: on an epoll descriptor of theirs, by system calls of their own that nobody has
//! found. The kernel knows nothing of accelerated sockets, so such a wait would sleep on.
//!
//! `interest::notice` has the kernel tell of the first event, and that shows here that the program waits so. From then on
//! the kernel tells of all events ([`bridge`]). Programs that wait through the library never come here.

pub mod bridge;
mod stand_in;

use crate::ready::instance::{self, waits};
use crate::ready::interest::notice;
use libc::c_int;

/// A call on a socket ends. Called for sockets whose calls take the path of measured ones, and for listeners.
#[inline]
pub fn called(fd: c_int) {
    look(fd);
    bridge::called(fd);
}

/// A call on this socket: has the program waited past the library on an instance that the socket is in?
#[inline]
pub fn look(fd: c_int) {
    if notice::is_any() {
        look_at_all(fd);
    }
}

#[cold]
fn look_at_all(fd: c_int) {
    instance::numbers()
        .filter(|id| instance::instance(*id).waits() == waits::UNSEEN)
        .for_each(|id| bridge::build(id, fd));
}
