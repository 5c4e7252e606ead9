//! Addresses: the contract has IPv6 ones only, with IPv4 as `::ffff:a.b.c.d`.

use core::net::{IpAddr, Ipv6Addr, SocketAddr};

/// As the contract has it.
pub fn to_contract(address: SocketAddr) -> (Ipv6Addr, u16) {
    let ip = match address.ip() {
        IpAddr::V4(four) => four.to_ipv6_mapped(),
        IpAddr::V6(six) => six,
    };
    (ip, address.port())
}

/// As programs have it.
pub fn from_contract((ip, port): (Ipv6Addr, u16)) -> SocketAddr {
    SocketAddr::new(ip.to_canonical(), port)
}
