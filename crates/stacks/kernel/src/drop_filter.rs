//! Drop filters keep a kernel from answering packets of connections that it does not have: not yet, or no longer. A
//! drop filter is a listener at the connections' address whose socket filter drops every packet. It works before the
//! host has the address, and needs no packet filter of the host.

use crate::{socket, sys};
use rustix::fd::{AsFd, OwnedFd};
use std::net::SocketAddr;

/// `IP_FREEBIND`. It holds for IPv6 as well.
const FREEBIND: i32 = libc::IP_FREEBIND;

/// A drop filter for all packets to `local`. It coexists with every other socket at that address.
///
/// # Errors
/// The errno of the call that failed.
pub fn raise(local: SocketAddr) -> Result<OwnedFd, i32> {
    let fd = socket::create(local.ip())?;
    // A socket under repair may be bound to an address in use (SK_FORCE_REUSE).
    sys::set(&fd, libc::IPPROTO_TCP, libc::TCP_REPAIR, 1);
    begin(&fd);
    rustix::net::bind(&fd, &local).map_err(|error| error.raw_os_error())?;
    rustix::net::listen(&fd, 1).map_err(|error| error.raw_os_error())?;
    Ok(fd)
}

/// To be called before `bind`. Allows an address that does not exist yet and one that a drop filter has, and drops
/// every packet.
pub fn begin(fd: &OwnedFd) {
    sys::set(fd, libc::IPPROTO_IP, FREEBIND, 1);
    sys::set(fd, libc::SOL_SOCKET, libc::SO_REUSEPORT, 1);
    drop_all(fd);
}

/// Drops every packet that comes to the socket.
pub fn drop_all(fd: impl AsFd) {
    // One instruction, `ret #0`: no byte of the packet passes.
    let filter = [libc::sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: 0 }];
    sys::attach_filter(fd, &filter);
}

/// Lets packets in again.
pub fn drop_none(fd: impl AsFd) {
    sys::set(fd, libc::SOL_SOCKET, libc::SO_DETACH_FILTER, 0);
}
