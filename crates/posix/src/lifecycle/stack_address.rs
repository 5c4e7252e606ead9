//! Addresses that the stack's network has and this kernel lacks. A socket can be bound to one: the kernel reserves the
//! port with `IP_FREEBIND`, and the stack binds the address.

use crate::fd::table::Pending;
use crate::lifecycle::address::{self, Address};
use crate::lifecycle::registration;
use libc::c_int;
use towpath_client::session::Session;
use towpath_client::{query, sys};

/// Allows a pending socket to be bound to an address that only the stack has. False: the stack lacks it too.
pub fn allow(fd: c_int, six: bool, address: Address) -> bool {
    let named = !address.0.is_unspecified() && !address::is_kernels(address.0);
    let has = |session: &'static Session| !session.is_foreign(fd) && query::has(session, address);
    named && registration::start().is_some_and(has) && free(fd, six)
}

/// Does the program mean a listener for packets that only this kernel's routes and firewall bring to it? With
/// IP_TRANSPARENT those are for any address. With IP_FREEBIND they are for one that neither this host nor the stack has.
pub fn is_foreign(fd: c_int, pending: Pending, session: &'static Session, address: Address) -> bool {
    // Sockets of IPv6 share both options with their namesakes.
    let is_on = |option| sys::getsockopt::<c_int>(fd, libc::IPPROTO_IP, option, 0).is_ok_and(|on| on != 0);
    let bound_anyhow = || {
        !pending.foreign
            && !address.0.is_unspecified()
            && is_on(libc::IP_FREEBIND)
            && is_not_local(pending.six, address)
            && !query::has(session, address)
    };
    is_on(libc::IP_TRANSPARENT) || bound_anyhow()
}

/// Does the kernel lack this address?
pub fn is_not_local(six: bool, address: Address) -> bool {
    let Ok(probe) = sys::socket(if six { libc::AF_INET6 } else { libc::AF_INET }) else { return false };
    let bound = address::bind(probe, six, (address.0, 0));
    sys::close(probe);
    bound == Err(libc::EADDRNOTAVAIL)
}

/// Lets the kernel bind the socket to any address (IP_FREEBIND).
fn free(fd: c_int, six: bool) -> bool {
    let (level, option) =
        if six { (libc::IPPROTO_IPV6, libc::IPV6_FREEBIND) } else { (libc::IPPROTO_IP, libc::IP_FREEBIND) };
    sys::setsockopt(fd, level, option, 1).is_ok()
}
