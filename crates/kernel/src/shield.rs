//! What keeps a kernel from answering the packets of connections that it does not have yet, or not any more: a listener at their
//! address whose filter drops everything. The address need not be there yet, and no packet filter of the host is asked for.

use crate::{connect, sys};
use rustix::fd::{AsFd, OwnedFd};
use std::net::SocketAddr;

/// `IP_FREEBIND`, which holds for IPv6 as well.
const FREEBIND: i32 = libc::IP_FREEBIND;

/// A shield for whatever comes to `local`. It stands beside every other socket there.
///
/// # Errors
/// errno.
pub fn raise(local: SocketAddr) -> Result<OwnedFd, i32> {
    let fd = connect::socket(local.ip())?;
    // A socket under repair may be bound where others are (SK_FORCE_REUSE).
    sys::set(&fd, libc::IPPROTO_TCP, libc::TCP_REPAIR, 1);
    begin(&fd);
    rustix::net::bind(&fd, &local).map_err(|error| error.raw_os_error())?;
    rustix::net::listen(&fd, 1).map_err(|error| error.raw_os_error())?;
    Ok(fd)
}

/// Before `bind`: the socket may be bound to an address that is still to come, and beside a shield; it hears nothing.
pub fn begin(fd: &OwnedFd) {
    sys::set(fd, libc::IPPROTO_IP, FREEBIND, 1);
    sys::set(fd, libc::SOL_SOCKET, libc::SO_REUSEPORT, 1);
    drop_all(fd);
}

/// Everything that comes to the socket is dropped unseen.
pub fn drop_all(fd: impl AsFd) {
    // One instruction, `ret #0`: nothing of the packet passes.
    let filter = [libc::sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: 0 }];
    sys::attach_filter(fd, &filter);
}

/// What comes is heard again.
pub fn drop_none(fd: impl AsFd) {
    sys::set(fd, libc::SOL_SOCKET, libc::SO_DETACH_FILTER, 0);
}
