//! The addresses of this host.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ptr::null_mut;

/// Has an interface of this host this address? The sandbox lets no socket connect, which would say it, too.
pub fn is_of_this_host(address: IpAddr) -> bool {
    let mut first = null_mut();
    // SAFETY: the call writes the pointer, and nothing if it fails.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return false;
    }
    let (mut found, mut next) = (false, first);
    // SAFETY: each pointer of the list is null or leads to an entry, until the list is given back.
    while let Some(entry) = unsafe { next.as_ref() } {
        // SAFETY: the address of an entry is null or complete.
        found |= unsafe { ip(entry.ifa_addr) } == Some(address);
        next = entry.ifa_next;
    }
    // SAFETY: the list is not used any more.
    unsafe { libc::freeifaddrs(first) };
    found
}

/// # Safety
/// The pointer is null or leads to a complete address of its family.
unsafe fn ip(address: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: said by the caller.
    match i32::from(unsafe { address.as_ref() }?.sa_family) {
        libc::AF_INET => {
            // SAFETY: of this family, it has this type.
            let four = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(Ipv4Addr::from_bits(u32::from_be(four.sin_addr.s_addr)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: of this family, it has this type.
            let six = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(Ipv6Addr::from(six.sin6_addr.s6_addr).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_addresses_of_interfaces_are_this_hosts_and_no_others() {
        let of = |text: &str| is_of_this_host(text.parse().expect("an address"));
        assert!(of("127.0.0.1"));
        for other in ["0.0.0.0", "192.0.2.1", "255.255.255.255", "224.0.0.1", "::", "2001:db8::1"] {
            assert!(!of(other), "{other}");
        }
    }
}
