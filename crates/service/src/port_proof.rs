//! Proof that a client has a port: the service believes the kernel, and nothing that the library says.
//!
//! A client shows a bound socket, so the kernel has let its user have the port. The client can unbind that socket at any
//! time, so the service binds a socket of its own to the same address beside it, which no client can reach. For a listener this socket listens for a
//! moment: the kernel allows that only if nobody else has the port. From then on it stays bound without `SO_REUSEADDR`,
//! so no other user's socket can listen there.

use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::fstat;
use rustix::io::Errno;
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, ipproto, sockopt};
use std::net::SocketAddr;
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

/// Proves that the user of `shown` has its port, for a listener (`listens`) or for the local end of connections. `home`
/// is the namespace that the service serves. Returns the service's own socket, which holds the port until it is closed.
/// An error is the answer to the client's command.
pub fn prove(shown: &OwnedFd, listens: bool, home: Option<u64>) -> Result<(OwnedFd, Grant), i32> {
    if sockopt::socket_protocol(shown).ok().flatten() != Some(ipproto::TCP) {
        return Err(-libc::EINVAL);
    }
    if home.is_none() || namespace(shown) != home {
        return Err(NOT_OURS + not_ours::ELSEWHERE as i32);
    }
    hold(shown, listens).map_err(|error| match error {
        // The service may not bind such a port; the client's own socket can use it.
        Errno::ACCESS | Errno::PERM => NOT_OURS + not_ours::ELSEWHERE as i32,
        error => -error.raw_os_error(),
    })
}

fn hold(shown: &OwnedFd, listens: bool) -> Result<(OwnedFd, Grant), Errno> {
    let local = bound_to(shown)?;
    let own = like(shown)?;
    let reuse = sockopt::socket_reuseaddr(shown)?;
    sockopt::set_socket_reuseaddr(&own, true)?;
    sockopt::set_socket_reuseaddr(shown, true)?;
    let bound = bind_beside(&own, &local, listens);
    sockopt::set_socket_reuseaddr(shown, reuse)?;
    bound?;
    sockopt::set_socket_reuseaddr(&own, reuse && !listens)?;
    let dual = local.is_ipv6() && local.ip().is_unspecified() && !sockopt::ipv6_v6only(&own)?;
    Ok((own, Grant { addr: local.ip().to_canonical(), port: local.port(), dual, listens }))
}

fn bind_beside(own: &OwnedFd, local: &SocketAddr, listens: bool) -> Result<(), Errno> {
    rustix::net::bind(own, local)?;
    if listens {
        rustix::net::listen(own, 0)?;
        // Before it stops listening: without the option nobody else can listen beside it.
        sockopt::set_socket_reuseaddr(own, false)?;
        rustix::net::shutdown(own, Shutdown::Both)?;
    }
    Ok(())
}

/// The address and port to which a socket is bound, or was: a socket that is unbound still shows its last port. The
/// kernel then decides about the service's own socket alone.
fn bound_to(socket: &OwnedFd) -> Result<SocketAddr, Errno> {
    let local = SocketAddr::try_from(rustix::net::getsockname(socket)?).map_err(|_| Errno::INVAL)?;
    if local.port() == 0 { Err(Errno::INVAL) } else { Ok(local) }
}

/// A new socket that the kernel treats as the shown one when it looks for conflicts of ports.
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
    sockopt::set_socket_reuseport(&own, sockopt::socket_reuseport(shown)?)?;
    let mut device = [0; DEVICE_NAME];
    let length = get(shown, libc::SO_BINDTODEVICE, &mut device)?;
    if length > 0 {
        set(&own, libc::SO_BINDTODEVICE, &device[..length.min(DEVICE_NAME)])?;
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
fn get(socket: impl AsFd, option: i32, value: &mut [u8]) -> Result<usize, Errno> {
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

/// Sets an option of the socket level.
fn set(socket: impl AsFd, option: i32, value: &[u8]) -> Result<(), Errno> {
    let length = value.len() as libc::socklen_t;
    // SAFETY: `value` has `length` bytes.
    let result = unsafe {
        libc::setsockopt(socket.as_fd().as_raw_fd(), libc::SOL_SOCKET, option, value.as_ptr().cast(), length)
    };
    if result == 0 { Ok(()) } else { Err(last_error()) }
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)
}

#[cfg(test)]
mod tests;
