//! Addresses in the contract's form: always IPv6, with IPv4 as `::ffff:a.b.c.d`.

use crate::socket::Socket;
use core::net::Ipv6Addr;
use core::sync::atomic::Ordering;

/// An address and port (host byte order).
pub type Address = (Ipv6Addr, u16);

/// No address, no port.
pub const ANY: Address = (Ipv6Addr::UNSPECIFIED, 0);

/// Is this an address that only the kernel serves: one that needs an interface beside it, or a multicast group?
pub fn is_kernels(address: Ipv6Addr) -> bool {
    address.is_unicast_link_local() || address.is_multicast()
}

/// The local address of a socket in a slot.
pub fn local(socket: &Socket) -> Address {
    let info = socket.info();
    (towpath_ring::address::load(&info.local_addr), (info.ports.load(Ordering::Relaxed) >> 16) as u16)
}
