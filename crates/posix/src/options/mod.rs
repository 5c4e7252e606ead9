//! Socket options of sockets in slots. The [`table`] says who acts on each: the stack, this library, or a kernel behind
//! the stack.
//! An option on which nobody acts is emulated: its value is stored and read back. An unknown option fails with
//! ENOPROTOOPT.

pub mod buffers;
pub mod by_descriptor;
pub mod halves;
pub mod handover;
mod number;
pub mod peek;
pub mod pending;
mod ranges;
pub mod splice;
mod stack;
pub mod table;
pub mod tcp_info;
mod told;
mod values;

use crate::io::secure;
use core::sync::atomic::Ordering::Relaxed;
use libc::{c_int, c_void, socklen_t};
use towpath_client::private::flag;
use towpath_client::socket::Socket;
use towpath_client::sys::Sys;
use towpath_ring::lines::state;

/// `setsockopt` on a socket in a slot.
///
/// # Safety
/// The contract of `setsockopt`: `value` is null or has `len` readable bytes.
pub unsafe fn set(
    fd: c_int,
    socket: &Socket,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> Sys<c_int> {
    let private = socket.private();
    // SAFETY: the caller vouches for `value`, and any bytes are a value of each of these types.
    let number = unsafe {
        if let Some(what) = secure::option(level, name) {
            return secure::set(socket, what, value, len);
        }
        match (level, name) {
            (libc::SOL_SOCKET, libc::SO_LINGER) => {
                values::set_linger(private, values::given(value, len)?);
                return Ok(0);
            }
            (libc::SOL_SOCKET, libc::SO_RCVTIMEO) => {
                return values::set_time(&private.receive_timeout_us, values::given(value, len)?);
            }
            (libc::SOL_SOCKET, libc::SO_SNDTIMEO) => {
                return values::set_time(&private.send_timeout_us, values::given(value, len)?);
            }
            (libc::IPPROTO_TCP, libc::TCP_CONGESTION) => {
                stack::set_congestion(socket, values::congestion(value, len)?);
                return Ok(0);
            }
            (libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE) => {
                stack::set_max_pacing(socket, values::pacing_rate(value, len)?);
                return Ok(0);
            }
            // As on Linux, IPV6_V6ONLY cannot change once the socket has an address.
            (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) if socket.has(flag::SIX) => return Err(libc::EINVAL),
            (libc::IPPROTO_IPV6, _) if !socket.has(flag::SIX) => return Err(libc::ENOPROTOOPT),
            _ => values::number(level, value, len)?,
        }
    };
    match table::find(level, name) {
        Some(row) => number::set(fd, socket, row, name, number)?,
        None => set_other(socket, level, name, number)?,
    }
    Ok(0)
}

/// `setsockopt` for options of one number that are not in the table.
fn set_other(socket: &Socket, level: c_int, name: c_int, number: c_int) -> Sys<()> {
    match (level, name) {
        (libc::SOL_SOCKET, libc::SO_RCVLOWAT) => {
            let asked = if number < 0 { c_int::MAX } else { number } as u32;
            let limit = socket.private().receive_limit.load(Relaxed);
            // Linux clamps it to what `SO_RCVBUF` has room for: a higher mark would never be reached.
            let most = if socket.options().receive_buffer.load(Relaxed) == 0 { asked } else { limit };
            socket.private().low_water.store(asked.min(most), Relaxed);
            Ok(())
        }
        (libc::SOL_SOCKET, libc::SO_INCOMING_CPU) => Ok(()),
        // A socket with a filter would be the kernel's.
        (libc::SOL_SOCKET, libc::SO_DETACH_FILTER) => Err(libc::ENOENT),
        (libc::SOL_SOCKET, libc::SO_PASSCRED) => Err(libc::EOPNOTSUPP),
        (libc::IPPROTO_IP, libc::IP_MULTICAST_TTL) => Err(libc::EINVAL),
        _ => Err(libc::ENOPROTOOPT),
    }
}

/// `getsockopt` on a socket in a slot.
///
/// # Safety
/// The contract of `getsockopt`: `len` is null or valid, `out` is null or has `*len` writable bytes.
pub unsafe fn get(
    fd: c_int,
    socket: &Socket,
    level: c_int,
    name: c_int,
    out: *mut c_void,
    len: *mut socklen_t,
) -> Sys<c_int> {
    let private = socket.private();
    // SAFETY: the caller vouches for `len` and `out`.
    unsafe {
        if let Some(told) = told::get(fd, socket, (level, name), out, len) {
            return told;
        }
        match (level, name) {
            (libc::SOL_SOCKET, libc::SO_LINGER) => values::give(values::linger_of(private), out, len),
            (libc::SOL_SOCKET, libc::SO_RCVTIMEO) => {
                values::give(values::time_of(&private.receive_timeout_us), out, len)
            }
            (libc::SOL_SOCKET, libc::SO_SNDTIMEO) => values::give(values::time_of(&private.send_timeout_us), out, len),
            (libc::IPPROTO_TCP, libc::TCP_INFO) if socket.kernel_half() => {
                values::give(tcp_info::of_halves(fd, socket), out, len)
            }
            (libc::IPPROTO_TCP, libc::TCP_INFO) => values::give(tcp_info::tcp_info(socket), out, len),
            (libc::IPPROTO_TCP, libc::TCP_CONGESTION) => values::give(stack::congestion_name(socket), out, len),
            (libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE) => {
                values::give_pacing_rate(stack::max_pacing(socket), out, len)
            }
            (libc::IPPROTO_IPV6, _) if !socket.has(flag::SIX) => Err(libc::EOPNOTSUPP),
            _ => {
                let number = match table::find(level, name) {
                    Some(row) => number::get(fd, socket, row)?,
                    None => get_other(socket, level, name)?,
                };
                values::give(number, out, len)
            }
        }
    }
}

/// `getsockopt` for options of one number that are not in the table.
fn get_other(socket: &Socket, level: c_int, name: c_int) -> Sys<c_int> {
    Ok(match (level, name) {
        (libc::SOL_SOCKET, libc::SO_ERROR) => socket.take_error().unwrap_or(0),
        (libc::SOL_SOCKET, libc::SO_TYPE) => libc::SOCK_STREAM,
        (libc::SOL_SOCKET, libc::SO_DOMAIN) if socket.has(flag::SIX) => libc::AF_INET6,
        (libc::SOL_SOCKET, libc::SO_DOMAIN) => libc::AF_INET,
        (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => socket.has(flag::V6ONLY).into(),
        // -1, as on Linux for a socket for which no CPU has received: the stack's CPUs are not the program's.
        (libc::SOL_SOCKET, libc::SO_INCOMING_CPU) => -1,
        (libc::IPPROTO_IP, libc::IP_MULTICAST_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_HOPS) => 1,
        (libc::SOL_SOCKET, libc::SO_PROTOCOL) => libc::IPPROTO_TCP,
        (libc::SOL_SOCKET, libc::SO_ACCEPTCONN) => (socket.state() == state::LISTENING).into(),
        (libc::SOL_SOCKET, libc::SO_RCVLOWAT) => socket.private().low_water.load(Relaxed).max(1) as c_int,
        (libc::SOL_SOCKET, libc::SO_SNDLOWAT) => 1,
        (libc::SOL_SOCKET, libc::SO_PASSCRED) => return Err(libc::EOPNOTSUPP),
        (libc::SOL_SOCKET | libc::IPPROTO_TCP | libc::IPPROTO_IP | libc::IPPROTO_IPV6, _) => {
            return Err(libc::ENOPROTOOPT);
        }
        _ => return Err(libc::EOPNOTSUPP),
    })
}
