//! Makes, binds and names kernel sockets.

use crate::sys;
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use towpath_runtime::info::any;

/// A TCP socket of the family of an address.
pub fn create(addr: IpAddr) -> Result<OwnedFd, i32> {
    let family = if addr.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = rustix::net::socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))
        .map_err(|error| error.raw_os_error())?;
    // Urgent bytes stay in the ring at their position.
    sys::set(&fd, libc::SOL_SOCKET, libc::SO_OOBINLINE, 1);
    Ok(fd)
}

/// Binds beside the socket that reserves the port.
pub fn bind(fd: &OwnedFd, local: SocketAddr) -> Result<(), i32> {
    sys::set(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1);
    rustix::net::bind(fd, &local).map_err(|error| error.raw_os_error())
}

/// Local and remote address of a socket. The remote one is unspecified if there is none.
pub fn ends(fd: &OwnedFd) -> Option<(SocketAddr, SocketAddr)> {
    let local = SocketAddr::try_from(rustix::net::getsockname(fd).ok()?).ok()?;
    let remote = rustix::net::getpeername(fd).ok().flatten().and_then(|remote| SocketAddr::try_from(remote).ok());
    Some((local, remote.unwrap_or(SocketAddr::new(any(local.ip()), 0))))
}
