//! POSIX sockets on the ring contract. `towpath-preload` gives them the names of libc's functions.
//!
//! A TCP stream socket begins as a kernel socket (*undecided*). `listen` and `connect` ask the stack; if it takes
//! the socket, one end of an AF_UNIX socketpair is put over the same descriptor number and from then on the calls on
//! that number work on the slot's rings. Everything else stays the kernel's.
//!
//! Known limits: a descriptor that is passed to another user's program carries nothing there; a signal handler that comes in the
//! middle of a copy and uses the same socket gets EAGAIN.
//!
//! Other libraries on the contract use the same code by what `narrow` shows.

mod accept;
mod address;
mod aio;
mod alone;
mod block;
mod books;
mod buffers;
mod cancel;
mod claim;
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
mod fcntl;
mod files;
mod foreign;
mod fork;
mod handler;
mod hold;
mod interest;
mod ioctl;
mod kept;
mod listen;
mod lock;
mod lookout;
mod message;
pub mod narrow;
mod nested;
mod options;
mod pass;
mod poll;
mod private;
mod question;
mod readiness;
mod receive;
mod renew;
mod secure;
mod select;
mod send;
mod session;
mod shutdown;
mod sigurg;
mod socket;
mod spare;
mod splice;
mod stacks;
mod standard;
mod stdio;
mod steer;
mod sys;
mod table;
mod tcp_info;
mod tid;
mod urgent;
mod uring;
mod user;
mod usual;
mod vectors;
mod view;
mod watch;

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod fake;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;

pub use handler::Posix;
pub use send::send_all;

/// Is `fd` a socket that has connected or listened, and is ours?
pub fn is_in_a_slot(fd: core::ffi::c_int) -> bool {
    socket::Socket::of(fd).is_some()
}
