//! POSIX sockets on the ring contract. `towpath-preload` gives them the names of libc's functions.
//!
//! A TCP stream socket begins as a kernel socket: a *pending socket*. `listen` and `connect` ask the stack. If it takes
//! the socket, one end of an AF_UNIX socketpair replaces it under the same descriptor number. Calls on that number then
//! work on the slot's rings. All else is left to the kernel.
//!
//! Known limits: a descriptor that is passed to another user's program carries nothing there. A signal handler that
//! interrupts a copy and uses the same socket gets EAGAIN.

mod at_fork;
mod fd;
mod handler;
mod hidden_thread;
mod io;
mod lifecycle;
mod observe;
mod options;
mod ready;
mod uring;
mod wiring;

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod fake;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;

pub use handler::Posix;
pub use io::send::send_all;

/// Is `fd` a socket in a slot, one that has connected or listened?
pub fn is_in_a_slot(fd: core::ffi::c_int) -> bool {
    fd::table::socket(fd).is_some()
}
