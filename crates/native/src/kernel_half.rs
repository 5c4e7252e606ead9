//! The kernel's own listening socket of a listener. The stack takes SYNs from it, so the kernel decides who listens.
//!
//! Connections of this interface are of the stack only. The kernel accepts those of this host's programs without the
//! library. They are reset as soon as this program looks: at an `accept`, and while a stack that watches the listener
//! waits.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::ioctl_fionbio;
use rustix::net::{SocketFlags, accept_with, listen, sockopt};
use std::io;
use std::time::Duration;

/// The socket. It listens until this is dropped.
pub struct KernelHalf(OwnedFd);

impl KernelHalf {
    /// Lets a bound socket listen.
    pub fn listen(socket: OwnedFd, backlog: u32) -> io::Result<Self> {
        ioctl_fionbio(&socket, true)?;
        listen(&socket, backlog.cast_signed())?;
        Ok(Self(socket))
    }

    /// Resets the connections that the kernel has accepted.
    pub fn refuse(&self) {
        while let Ok(connection) = accept_with(&self.0, SocketFlags::CLOEXEC) {
            // Without it the peer would see an orderly end.
            let _ = sockopt::set_socket_linger(&connection, Some(Duration::ZERO));
        }
    }
}

impl AsFd for KernelHalf {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
