//! Addresses that the stack's network has and this kernel's has not. A socket can be bound to one: this kernel reserves the port for it,
//! by `IP_FREEBIND`, and the stack binds the address.

use crate::address::{self, Address};
use crate::{question, session, sys};
use libc::c_int;

/// Lets an undecided socket be bound to an address that only the stack has. False: nobody has it.
pub fn allow(fd: c_int, six: bool, address: Address) -> bool {
    let named = !address.0.is_unspecified() && !address::is_kernels(address.0);
    named && session::start().is_some_and(|session| question::has(session, address)) && free(fd, six)
}

/// Is it bound to an address that this kernel has not?
pub fn is(six: bool, address: Address) -> bool {
    let Ok(probe) = sys::socket(if six { libc::AF_INET6 } else { libc::AF_INET }) else { return false };
    let bound = address::bind(probe, six, (address.0, 0));
    sys::close(probe);
    bound == Err(libc::EADDRNOTAVAIL)
}

/// No more questions by this kernel.
fn free(fd: c_int, six: bool) -> bool {
    let (level, option) =
        if six { (libc::IPPROTO_IPV6, libc::IPV6_FREEBIND) } else { (libc::IPPROTO_IP, libc::IP_FREEBIND) };
    sys::setsockopt(fd, level, option, 1).is_ok()
}
