//! Options that can only be read, and that are no number or are not the library's own.

use crate::io::user;
use crate::lifecycle::address;
use crate::options::buffers;
use crate::options::values::give;
use core::sync::atomic::Ordering::Relaxed;
use libc::{c_int, c_void, socklen_t};
use towpath_client::private::flag;
use towpath_client::socket::Socket;
use towpath_client::stack_info;
use towpath_client::sys::{self, Sys};
use towpath_hook::{outcome, real};
use towpath_ring::lines::state;

/// A name of Linux that libc lacks.
const SO_PEERGROUPS: c_int = 59;

/// `getsockopt` of such an option; `None` = it is another.
///
/// # Safety
/// `len` is null or valid, and `out` is null or has `*len` writable bytes.
pub unsafe fn get(
    fd: c_int,
    socket: &Socket,
    (level, name): (c_int, c_int),
    out: *mut c_void,
    len: *mut socklen_t,
) -> Option<Sys<c_int>> {
    // SAFETY: the caller vouches for `len` and `out`.
    Some(unsafe {
        match (level, name) {
            // The number of the socketpair behind the descriptor: no other socket of this host has it.
            (libc::SOL_SOCKET, libc::SO_COOKIE) => outcome(real::getsockopt(fd, level, name, out, len)),
            // The descriptor's own namespace is that of the thread which has made the pair.
            (libc::SOL_SOCKET, libc::SO_NETNS_COOKIE) => match socket.session.namespace() {
                Some(_) if user::read(len) != Ok(size_of::<u64>() as socklen_t) => Err(libc::EINVAL),
                Some(namespace) => give(namespace, out, len),
                None => outcome(real::getsockopt(fd, level, name, out, len)),
            },
            // TCP has no credentials of the peer.
            (libc::SOL_SOCKET, libc::SO_PEERCRED) => give(libc::ucred { pid: 0, uid: !0, gid: !0 }, out, len),
            (libc::SOL_SOCKET, SO_PEERGROUPS) => Err(libc::ENODATA),
            (libc::SOL_SOCKET, libc::SO_MEMINFO) => give(memory(socket), out, len),
            // The filter of a listener with a kernel half is the stack's.
            (libc::SOL_SOCKET, libc::SO_GET_FILTER) if socket.kernel_half() => nothing(len),
            // The algorithms tell nothing about themselves, no SYN is saved, and no IP options are set.
            (libc::IPPROTO_TCP, libc::TCP_CC_INFO | libc::TCP_SAVED_SYN) | (libc::IPPROTO_IP, libc::IP_OPTIONS) => {
                nothing(len)
            }
            (libc::IPPROTO_IP, libc::IP_MTU) => path_mtu(socket).and_then(|mtu| give(mtu, out, len)),
            (libc::IPPROTO_IPV6, libc::IPV6_MTU) if socket.has(flag::SIX) => {
                path_mtu(socket).and_then(|mtu| give(mtu, out, len))
            }
            _ => return None,
        }
    })
}

/// A value of no bytes.
///
/// # Safety
/// `len` may be any address.
unsafe fn nothing(len: *mut socklen_t) -> Sys<c_int> {
    // SAFETY: `user::read` and `user::write` accept any address.
    unsafe {
        if (user::read(len)? as i32) < 0 {
            return Err(libc::EINVAL);
        }
        user::write(len, 0)?;
    }
    Ok(0)
}

/// `SO_MEMINFO`, in Linux's order: received bytes, their limit, bytes on their way, their limit, reserved bytes, queued
/// bytes, bytes of options, backlog, drops.
fn memory(socket: &Socket) -> [u32; 9] {
    let limit = |name, at| buffers::get(socket, name, at).cast_unsigned();
    let listens = socket.state() == state::LISTENING;
    let (unread, queued) = if listens { (0, 0) } else { (socket.view().readable(), stack_info::queued(socket).0) };
    let receive = limit(libc::SO_RCVBUF, |line| &line.receive_buffer);
    let send = limit(libc::SO_SNDBUF, |line| &line.send_buffer);
    [unread, receive, 0, send, 0, queued, 0, 0, 0]
}

/// The MTU of the path to the peer, as this host's kernel knows it.
fn path_mtu(socket: &Socket) -> Sys<c_int> {
    let info = socket.info();
    let (remote, port) = (towpath_ring::address::load(&info.remote_addr), info.ports.load(Relaxed) as u16);
    // A connection that has ended still has its path, as on Linux.
    if socket.state() == state::LISTENING || port == 0 {
        return Err(libc::ENOTCONN);
    }
    let six = remote.to_ipv4_mapped().is_none();
    let (domain, level, name, headers) = if six {
        (libc::AF_INET6, libc::IPPROTO_IPV6, libc::IPV6_MTU, 60)
    } else {
        (libc::AF_INET, libc::IPPROTO_IP, libc::IP_MTU, 40)
    };
    // SAFETY: integers only.
    let probe = outcome(unsafe { real::socket(domain, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) })?;
    let mtu = address::connect(probe, six, (remote, port)).and_then(|()| sys::getsockopt(probe, level, name, 0));
    sys::close(probe);
    // Only the stack may know a way to the peer.
    Ok(mtu.unwrap_or_else(|_| info.mss.load(Relaxed) as c_int + headers))
}
