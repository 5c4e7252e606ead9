//! Proof that a client has a port for its connections: the service believes the kernel, and nothing that the library
//! says. (The proof of a listener is [`crate::shown_listener`].)
//!
//! A client shows a bound socket, so the kernel has let its user have the port. The client can unbind that socket at any
//! time. So the service binds a socket of its own, which no client can reach, to the same address beside it.

use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::fstat;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, sockopt};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use towpath_ring::command::{NOT_OURS, not_ours};
use towpath_runtime::Grant;

/// The longest name of a device, with the NUL (`IFNAMSIZ`).
const DEVICE_NAME: usize = 16;

/// The kernel's cookie of the network namespace to which a socket belongs. `None`: it is not an internet socket, or the
/// kernel is older than 5.14.
pub fn namespace(socket: impl AsFd) -> Option<u64> {
    let mut cookie = [0; 8];
    (get(socket, libc::SO_NETNS_COOKIE, &mut cookie).ok()? == cookie.len()).then(|| u64::from_ne_bytes(cookie))
}

/// The namespace of the sockets that this thread makes.
pub fn own_namespace() -> Option<u64> {
    namespace(rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).ok()?)
}

/// The user of a TCP socket. `None`: it is another descriptor. The client cannot make this wait, as it can
/// [`prove`].
pub fn owner(shown: &OwnedFd) -> Option<u32> {
    let is_tcp = sockopt::socket_protocol(shown).ok().flatten() == Some(ipproto::TCP);
    is_tcp.then(|| fstat(shown).map(|socket| socket.st_uid).ok()).flatten()
}

/// Proves that the user of `shown` has its port, for the local end of connections. `home` is the namespace that the
/// service serves. Returns the service's own socket, which holds the port until it is closed. An error is the answer to
/// the client's command.
pub fn prove(shown: &OwnedFd, home: Option<u64>) -> Result<(OwnedFd, Grant), i32> {
    if sockopt::socket_protocol(shown).ok().flatten() != Some(ipproto::TCP) {
        return Err(-libc::EINVAL);
    }
    let kernels = NOT_OURS + not_ours::ELSEWHERE as i32;
    if home.is_none() || namespace(shown) != home || is_bound_to_device(shown) {
        return Err(kernels);
    }
    hold(shown).map_err(|error| match error {
        // The service may not bind such a port; the client's own socket can use it.
        Errno::ACCESS | Errno::PERM => kernels,
        // Beside sockets of the same user that listen the kernel lets it connect.
        Errno::ADDRINUSE => kernels,
        error => -error.raw_os_error(),
    })
}

/// May a TCP socket be joined to another namespace in the kernel's stead? It must be unbound, and its packets those of the
/// namespace's usual routes. Returns its namespace.
pub fn joinable(shown: &OwnedFd) -> Option<u64> {
    let is_tcp = sockopt::socket_protocol(shown).ok().flatten() == Some(ipproto::TCP);
    let mut mark = [0; 4];
    let marked = get(shown, libc::SO_MARK, &mut mark) != Ok(mark.len()) || mark != [0; 4];
    let local = rustix::net::getsockname(shown).ok().and_then(|local| SocketAddr::try_from(local).ok());
    let bound = local.is_none_or(|local| local.port() != 0 || !local.ip().is_unspecified());
    if !is_tcp || marked || bound || is_bound_to_device(shown) {
        return None;
    }
    namespace(shown)
}

/// Does the kernel let the socket have its port on one device only? The stack would use it on others.
fn is_bound_to_device(socket: &OwnedFd) -> bool {
    let mut device = [0; DEVICE_NAME];
    let scoped = |local| matches!(SocketAddr::try_from(local), Ok(SocketAddr::V6(local)) if local.scope_id() != 0);
    get(socket, libc::SO_BINDTODEVICE, &mut device) != Ok(0) || rustix::net::getsockname(socket).is_ok_and(scoped)
}

fn hold(shown: &OwnedFd) -> Result<(OwnedFd, Grant), Errno> {
    let local = bound_to(shown)?;
    let own = like(shown)?;
    let (reuse, group) = (sockopt::socket_reuseaddr(shown)?, sockopt::socket_reuseport(shown)?);
    // Two sockets share the port for a moment. Beside a socket with SO_REUSEADDR anybody can bind, so one that lacks it
    // gets SO_REUSEPORT instead, beside which only its own user can.
    let grouped = group || !reuse;
    sockopt::set_socket_reuseaddr(&own, reuse)?;
    sockopt::set_socket_reuseport(&own, grouped)?;
    sockopt::set_socket_reuseport(shown, grouped)?;
    let bound = rustix::net::bind(&own, &local);
    sockopt::set_socket_reuseport(shown, group)?;
    bound?;
    sockopt::set_socket_reuseport(&own, group)?;
    let dual = local.is_ipv6() && local.ip().is_unspecified() && !sockopt::ipv6_v6only(&own)?;
    Ok((own, Grant { addr: local.ip().to_canonical(), port: local.port(), dual }))
}

/// The address and port to which a socket is bound that is not connected.
fn bound_to(socket: &OwnedFd) -> Result<SocketAddr, Errno> {
    // The port of an accepted connection is its listener's.
    if rustix::net::getpeername(socket) != Err(Errno::NOTCONN) {
        return Err(Errno::ISCONN);
    }
    let local = SocketAddr::try_from(rustix::net::getsockname(socket)?).map_err(|_| Errno::INVAL)?;
    let any: IpAddr = if local.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    // A socket that is unbound still shows its last port. It can be bound, which does no harm.
    if rustix::net::bind(socket, &SocketAddr::new(any, 0)) != Err(Errno::INVAL) || local.port() == 0 {
        return Err(Errno::INVAL);
    }
    Ok(local)
}

/// A new socket of the same family, owner and `IPV6_V6ONLY`, which may be bound to any address.
fn like(shown: &OwnedFd) -> Result<OwnedFd, Errno> {
    let family = sockopt::socket_domain(shown)?;
    // Sockets that share a port by SO_REUSEPORT must have the same owner.
    let own = as_user(fstat(shown)?.st_uid, || {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        rustix::net::socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))
    })?;
    if family == AddressFamily::INET6 {
        sockopt::set_ipv6_v6only(&own, sockopt::ipv6_v6only(shown)?)?;
        sockopt::set_ipv6_freebind(&own, true)?;
    } else {
        sockopt::set_ip_freebind(&own, true)?;
    }
    Ok(own)
}

/// Runs `make` with the file system's user changed, so that what it makes belongs to that user.
fn as_user<T>(uid: u32, make: impl FnOnce() -> T) -> T {
    // SAFETY: the calls take no pointers, and concern this thread only.
    let before = unsafe { libc::setfsuid(uid) };
    let made = make();
    // SAFETY: as for the first call.
    unsafe { libc::setfsuid(before.cast_unsigned()) };
    made
}

/// Reads an option of the socket level. Returns the length that the kernel gives.
pub fn get(socket: impl AsFd, option: i32, value: &mut [u8]) -> Result<usize, Errno> {
    let mut length = value.len() as libc::socklen_t;
    // SAFETY: `value` has room for `length` bytes.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            value.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if result == 0 { Ok(length as usize) } else { Err(last_error()) }
}

/// The error of this thread's last system call.
pub fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)
}

#[cfg(test)]
mod tests;
