//! Listeners.

use crate::address::{from_contract, to_contract};
use crate::connection::{begin, close};
use crate::error::errno;
use crate::event::{Source, sealed::Sealed};
use crate::kernel_half::KernelHalf;
use crate::{Connection, Stack};
use core::net::{Ipv6Addr, SocketAddr};
use core::sync::atomic::Ordering;
use rustix::fd::{AsFd, AsRawFd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use std::io;
use std::sync::Arc;
use towpath_client::accept;
use towpath_client::socket::Socket;
use towpath_ring::command::{Accepted, Command, V6ONLY, op};
use towpath_ring::lines::{app_flags, state};
use towpath_ring::options::{Options, option_flags};

/// Linux's default `net.core.somaxconn`.
const BACKLOG_MAX: u32 = 4096;
/// The flags that a connection takes over from its listener.
const INHERITED: u32 = app_flags::NODELAY | app_flags::CORK;

/// A listener. Dropping it releases its port a moment later.
pub struct Listener {
    socket: Socket,
    kernels: Option<Arc<KernelHalf>>,
}

impl Listener {
    /// Listens on `local` (port 0: any free one) for IPv4 or IPv6; `::` takes IPv6 only. Up to `backlog` connections
    /// wait to be accepted.
    pub fn bind(stack: &Stack, local: SocketAddr, backlog: u32) -> io::Result<Self> {
        Self::listen(stack, local, backlog, false)
    }

    /// The same for one of several listeners on a port, all of one user, among which connections are spread
    /// (`SO_REUSEPORT`): one per thread, say.
    pub fn bind_shared(stack: &Stack, local: SocketAddr, backlog: u32) -> io::Result<Self> {
        Self::listen(stack, local, backlog, true)
    }

    fn listen(stack: &Stack, local: SocketAddr, backlog: u32, shared: bool) -> io::Result<Self> {
        // A kernel socket has the port. It is made by system calls, whatever is preloaded.
        let family = if local.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let reservation = rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        if local.is_ipv6() {
            sockopt::set_ipv6_v6only(&reservation, true)?;
        }
        if shared {
            sockopt::set_socket_reuseport(&reservation, true)?;
        }
        rustix::net::bind(&reservation, &local)?;
        let bound = SocketAddr::try_from(rustix::net::getsockname(&reservation)?)?;
        let (local_addr, port): (Ipv6Addr, u16) = to_contract(bound);
        if towpath_client::address::is_kernels(local_addr) {
            return Err(errno(libc::ENETUNREACH));
        }
        let command = Command {
            op: op::LISTEN,
            local_addr,
            local_port: port.into(),
            backlog: backlog.min(BACKLOG_MAX),
            flags: if local.is_ipv6() { V6ONLY } else { 0 },
            ..Command::default()
        };
        let options = Options { flags: if shared { option_flags::REUSEPORT } else { 0 }, ..Options::default() };
        if !stack.session().listens_in_kernel() {
            let socket = begin(stack, &command, &options, Some(reservation.as_raw_fd()))?;
            return Ok(Self { socket, kernels: None });
        }
        let kernels = KernelHalf::listen(reservation, command.backlog)?;
        let socket = begin(stack, &command, &options, Some(kernels.as_fd().as_raw_fd()))?;
        Ok(Self { socket, kernels: Some(Arc::new(kernels)) })
    }

    /// Takes the next connection. `WouldBlock` = none is waiting.
    pub fn accept(&mut self) -> io::Result<(Connection, SocketAddr)> {
        if let Some(kernels) = &self.kernels
            && (self.socket.readable() as usize) < Accepted::BYTES
        {
            kernels.refuse();
        }
        let listener = &self.socket;
        let next = accept::next(listener, |socket| {
            Socket::reset(socket.session, socket.slot, listener.app().flags.load(Ordering::Relaxed) & INHERITED);
            accept::inherit_options(listener, socket);
            socket.adopt();
        });
        let Ok(Some((socket, remote))) = next else {
            let over = self.socket.state() != state::LISTENING;
            return Err(if over { errno(libc::ENETDOWN) } else { io::ErrorKind::WouldBlock.into() });
        };
        Ok((Connection::of(socket), from_contract(remote)))
    }

    /// Sets `TCP_NODELAY`, or clears it, for connections accepted from now on.
    pub fn set_nodelay(&mut self, on: bool) {
        self.socket.mark_app(app_flags::NODELAY, on);
    }

    /// The address on which it listens.
    pub fn local_addr(&self) -> SocketAddr {
        from_contract(towpath_client::address::local(&self.socket))
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        close(&self.socket);
    }
}

impl Sealed for Listener {
    fn socket(&self) -> &Socket {
        &self.socket
    }
    fn is_awaited(&self) -> bool {
        false
    }
    fn kernel_half(&self) -> Option<&Arc<KernelHalf>> {
        self.kernels.as_ref()
    }
}

impl Source for Listener {}
