//! IPv4 socket addresses as C programs pass them. Addresses and ports in host byte order.

use crate::sys::Sys;
use libc::{c_int, sockaddr, sockaddr_in, socklen_t};
use towpath_hook::{outcome, real};

const LEN: usize = size_of::<sockaddr_in>();

/// An address and port.
pub type Address = (u32, u16);

/// Reads an address; `None` unless it is a whole AF_INET one.
///
/// # Safety
/// `addr` must be null or have `len` readable bytes.
pub unsafe fn read(addr: *const sockaddr, len: socklen_t) -> Option<Address> {
    if addr.is_null() || (len as usize) < LEN {
        return None;
    }
    // SAFETY: there are enough bytes, at any alignment.
    let addr = unsafe { addr.cast::<sockaddr_in>().read_unaligned() };
    (c_int::from(addr.sin_family) == libc::AF_INET)
        .then(|| (u32::from_be(addr.sin_addr.s_addr), u16::from_be(addr.sin_port)))
}

/// Writes an address as `accept` and `getsockname` do: cut to `*len`, and `*len` becomes the full length.
///
/// # Safety
/// `len` must be null or valid; `addr` must be null or have `*len` writable bytes.
pub unsafe fn write(address: Address, addr: *mut sockaddr, len: *mut socklen_t) -> Sys<()> {
    if addr.is_null() {
        return Ok(());
    }
    if len.is_null() {
        return Err(libc::EFAULT);
    }
    // SAFETY: the caller vouches for `len`.
    let room = unsafe { *len };
    if room as i32 >= 0 {
        let value = make(address);
        // SAFETY: `addr` has `room` bytes, `value` has LEN.
        unsafe {
            let count = LEN.min(room as usize);
            core::ptr::copy_nonoverlapping((&raw const value).cast::<u8>(), addr.cast::<u8>(), count);
            *len = LEN as socklen_t;
        }
        return Ok(());
    }
    Err(libc::EINVAL)
}

fn make((address, port): Address) -> sockaddr_in {
    sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: port.to_be(),
        sin_addr: libc::in_addr { s_addr: address.to_be() },
        sin_zero: [0; 8],
    }
}

/// The local address of a kernel socket.
pub fn of_kernel(fd: c_int) -> Sys<Address> {
    let mut value = make((0, 0));
    let mut len = LEN as socklen_t;
    // SAFETY: `value` has `len` bytes.
    outcome(unsafe { real::getsockname(fd, (&raw mut value).cast(), &raw mut len) })?;
    Ok((u32::from_be(value.sin_addr.s_addr), u16::from_be(value.sin_port)))
}

/// Binds a kernel socket to any address and a port of the kernel's choice.
pub fn bind_any(fd: c_int) -> Sys<()> {
    let value = make((0, 0));
    // SAFETY: `value` has LEN bytes.
    outcome(unsafe { real::bind(fd, (&raw const value).cast(), LEN as socklen_t) }).map(|_| ())
}
