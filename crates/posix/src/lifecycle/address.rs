//! Socket addresses in the form of C programs. Inside the library every address is an IPv6 address; IPv4 is
//! `::ffff:a.b.c.d`.

use crate::io::user;
use core::mem::zeroed;
use core::net::{Ipv4Addr, Ipv6Addr};
use libc::{c_int, sockaddr, sockaddr_in, sockaddr_in6, socklen_t};
use towpath_client::sys::Sys;
use towpath_hook::{outcome, real};

pub use towpath_client::address::{ANY, Address, is_kernels, local};

const LEN: usize = size_of::<sockaddr_in>();
const LEN6: usize = size_of::<sockaddr_in6>();
/// The least length that Linux accepts for an IPv6 address: without the scope (RFC 2133).
const LEN6_LEAST: usize = 24;

/// Reads an address. `None`: it is incomplete or of another family (`six`: AF_INET6). EFAULT: it cannot be read.
///
/// # Safety
/// `addr` may be any address.
pub unsafe fn read(six: bool, addr: *const sockaddr, len: socklen_t) -> Sys<Option<Address>> {
    let least = if six { LEN6_LEAST } else { LEN };
    if (len as usize) < least {
        return Ok(None);
    }
    // SAFETY: `whole` has room for the bytes that are copied, and any bytes are a valid address.
    let whole = unsafe {
        let mut whole: Either = zeroed();
        user::copy((&raw mut whole).cast(), addr.cast(), least)?;
        whole
    };
    // SAFETY: both members of the union consist of integers, so any bytes are valid.
    Ok(unsafe {
        if six {
            let whole = whole.six;
            (c_int::from(whole.sin6_family) == libc::AF_INET6)
                .then(|| (Ipv6Addr::from_octets(whole.sin6_addr.s6_addr), u16::from_be(whole.sin6_port)))
        } else {
            (c_int::from(whole.four.sin_family) == libc::AF_INET).then(|| of_four(&whole.four))
        }
    })
}

/// Is this AF_UNSPEC, which ends a connection?
///
/// # Safety
/// `addr` may be any address.
pub unsafe fn is_unspecified(addr: *const sockaddr, len: socklen_t) -> bool {
    let family = addr.cast::<libc::sa_family_t>();
    if (len as usize) < size_of::<libc::sa_family_t>() {
        return false;
    }
    // SAFETY: `user::read` accepts any address, and any bytes are a valid family.
    unsafe { user::read(family) }.is_ok_and(|family| c_int::from(family) == libc::AF_UNSPEC)
}

fn of_four(addr: &sockaddr_in) -> Address {
    let four = Ipv4Addr::from_bits(u32::from_be(addr.sin_addr.s_addr));
    (four.to_ipv6_mapped(), u16::from_be(addr.sin_port))
}

/// Writes an address as `accept` and `getsockname` do: cut to `*len`, which becomes the full length. `six` is the
/// socket's family.
///
/// # Safety
/// `addr` and `len` may be any addresses.
pub unsafe fn write(six: bool, address: Address, addr: *mut sockaddr, len: *mut socklen_t) -> Sys<()> {
    let (value, full) = make(six, address);
    // SAFETY: `value` has `full` bytes, and `user` accepts any address of the program.
    unsafe {
        let room = user::read(len)?;
        if (room as i32) < 0 {
            return Err(libc::EINVAL);
        }
        user::write(len, full as socklen_t)?;
        user::copy(addr.cast(), (&raw const value).cast(), full.min(room as usize))
    }
}

/// Room for an address of either family.
#[repr(C)]
union Either {
    four: sockaddr_in,
    six: sockaddr_in6,
}

fn make(six: bool, (address, port): Address) -> (Either, usize) {
    if !six {
        let four = address.to_ipv4_mapped().unwrap_or(Ipv4Addr::UNSPECIFIED);
        let four = sockaddr_in {
            sin_family: libc::AF_INET as u16,
            sin_port: port.to_be(),
            sin_addr: libc::in_addr { s_addr: four.to_bits().to_be() },
            sin_zero: [0; 8],
        };
        return (Either { four }, LEN);
    }
    let six = sockaddr_in6 {
        sin6_family: libc::AF_INET6 as u16,
        sin6_port: port.to_be(),
        sin6_flowinfo: 0,
        sin6_addr: libc::in6_addr { s6_addr: address.octets() },
        sin6_scope_id: 0,
    };
    (Either { six }, LEN6)
}

/// The local address of a kernel socket.
pub fn of_kernel(fd: c_int, six: bool) -> Sys<Address> {
    let (mut value, full) = make(six, ANY);
    let mut len = full as socklen_t;
    // SAFETY: `value` has room for `len` bytes.
    outcome(unsafe { real::getsockname(fd, (&raw mut value).cast(), &raw mut len) })?;
    // SAFETY: both members of the union consist of integers, so any bytes are valid.
    unsafe { read(six, (&raw const value).cast(), full as socklen_t) }?.ok_or(libc::EINVAL)
}

/// Binds a kernel socket to the unspecified address and a port that the kernel chooses.
pub fn bind_any(fd: c_int, six: bool) -> Sys<()> {
    bind(fd, six, ANY)
}

/// Binds a kernel socket.
pub fn bind(fd: c_int, six: bool, address: Address) -> Sys<()> {
    let (value, full) = make(six, address);
    // SAFETY: `value` has `full` bytes.
    outcome(unsafe { real::bind(fd, (&raw const value).cast(), full as socklen_t) }).map(|_| ())
}

/// Connects a kernel socket.
pub fn connect(fd: c_int, six: bool, address: Address) -> Sys<()> {
    let (value, full) = make(six, address);
    // SAFETY: `value` has `full` bytes.
    outcome(unsafe { real::connect(fd, (&raw const value).cast(), full as socklen_t) }).map(|_| ())
}

/// Ends a kernel socket's connection (AF_UNSPEC).
pub fn disconnect(fd: c_int) -> Sys<()> {
    let nowhere = sockaddr { sa_family: libc::AF_UNSPEC as u16, sa_data: [0; 14] };
    // SAFETY: `nowhere` is a whole `sockaddr`.
    outcome(unsafe { real::connect(fd, &raw const nowhere, size_of::<sockaddr>() as socklen_t) }).map(|_| ())
}
