//! POSIX sockets on the ring contract. As a `cdylib` this is `libtowpath.so`, to be preloaded into programs.
//!
//! A TCP stream socket begins as a kernel socket (*undecided*). `listen` and `connect` ask the stack; if it takes
//! the socket, one end of an AF_UNIX socketpair is put over the same descriptor number and from then on the calls on
//! that number work on the slot's rings. Everything else stays the kernel's.
//!
//! Known limits: a descriptor that is passed to another user's program carries nothing there; a signal handler that comes in the
//! middle of a copy and uses the same socket gets EAGAIN.
//!
//! The same sources are the crate `towpath-client`: without the symbols of libc, and with what `narrow` shows.
#![cfg_attr(towpath_client, allow(dead_code))]

mod accept;
mod address;
mod block;
mod cancel;
mod close;
mod connect;
mod context;
mod cork;
mod direct;
mod doors;
mod epoll;
mod epoll_wait;
mod fallback;
mod fault;
mod fork;
mod handler;
mod hold;
mod interest;
mod ioctl;
mod kept;
mod listen;
mod lock;
mod message;
#[cfg(towpath_client)]
pub mod narrow;
mod nested;
mod options;
mod pass;
mod poll;
mod private;
mod readiness;
mod receive;
mod renew;
mod select;
mod send;
mod session;
mod shutdown;
mod sigurg;
mod socket;
mod splice;
mod stdio;
mod steer;
mod sys;
mod table;
mod tcp_info;
mod urgent;
mod uring;
mod user;
mod view;

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod fake;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;

pub use handler::Posix;

// A test program that exported these would put them under its own feet.
#[cfg(all(not(any(test, towpath_client)), target_arch = "x86_64", target_env = "gnu"))]
mod print;
#[cfg(not(any(test, towpath_client)))]
towpath_hook::preload!(Posix);
#[cfg(not(any(test, towpath_client)))]
towpath_hook::preload_exec!();
#[cfg(all(target_arch = "x86_64", not(any(test, towpath_client))))]
towpath_hook::preload_uring!(Posix);
