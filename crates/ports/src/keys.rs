//! The keys of the program's tables of connections.

use std::net::{IpAddr, SocketAddr};

/// `struct flow` of the program: addresses and ports in network byte order.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct FlowKey {
    remote: [u8; 4],
    local: [u8; 4],
    remote_port: [u8; 2],
    local_port: [u8; 2],
}

/// `struct flow6` of the program.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct FlowKey6 {
    remote: [u8; 16],
    local: [u8; 16],
    remote_port: [u8; 2],
    local_port: [u8; 2],
}

// SAFETY: the fields are byte arrays, so there is no padding and every bit pattern is valid.
unsafe impl aya::Pod for FlowKey {}
// SAFETY: the fields are byte arrays, so there is no padding and every bit pattern is valid.
unsafe impl aya::Pod for FlowKey6 {}

/// The key of one connection. IPv4 and IPv6 have tables of their own.
#[derive(PartialEq, Eq)]
pub enum Key {
    /// Of the tables for IPv4.
    V4(FlowKey),
    /// Of the tables for IPv6.
    V6(FlowKey6),
}

impl Key {
    /// The key of the connection between two ends.
    pub fn of(local: SocketAddr, remote: SocketAddr) -> Self {
        let (remote_port, local_port) = (remote.port().to_be_bytes(), local.port().to_be_bytes());
        match (local.ip(), remote.ip()) {
            (IpAddr::V4(local), IpAddr::V4(remote)) => {
                Self::V4(FlowKey { remote: remote.octets(), local: local.octets(), remote_port, local_port })
            }
            (local, remote) => {
                Self::V6(FlowKey6 { remote: octets(remote), local: octets(local), remote_port, local_port })
            }
        }
    }
}

/// An address in its IPv6 form.
fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}
