//! The headers as they lie in a frame.

use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// EtherType of IPv4.
pub const ETHERTYPE_IPV4: u16 = 0x0800;
/// EtherType of IPv6.
pub const ETHERTYPE_IPV6: u16 = 0x86dd;
/// EtherType of an IEEE 802.1Q tag.
pub const ETHERTYPE_VLAN: u16 = 0x8100;
/// Protocol number (IPv6: next header) of TCP.
pub const PROTOCOL_TCP: u8 = 6;
/// The "don't fragment" bit in `Ipv4::fragment`.
pub(crate) const DONT_FRAGMENT: u16 = 0x4000;
/// "More fragments" and the 13 bits of offset in `Ipv4::fragment`.
pub(crate) const FRAGMENT_MASK: u16 = 0x3fff;

/// The VLAN number in `Vlan::control`. The bits above it are priority and drop eligibility.
pub(crate) const VLAN_MASK: u16 = 0x0fff;

/// Ethernet II.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct Ethernet {
    pub destination: [u8; 6],
    pub source: [u8; 6],
    pub ethertype: U16,
}

/// An IEEE 802.1Q tag, without its own EtherType.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct Vlan {
    pub control: U16,
    pub ethertype: U16,
}

/// IPv6 without extension headers (RFC 8200 §3).
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct Ipv6 {
    /// Version (4 bits), traffic class (8), flow label (20).
    pub version_class_flow: U32,
    pub payload_len: U16,
    pub next_header: u8,
    pub hop_limit: u8,
    pub source: [u8; 16],
    pub destination: [u8; 16],
}

/// IPv4 without options (RFC 791 §3.1).
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct Ipv4 {
    pub version_ihl: u8,
    pub tos: u8,
    pub total_len: U16,
    pub ident: U16,
    pub fragment: U16,
    pub ttl: u8,
    pub protocol: u8,
    pub checksum: [u8; 2],
    pub source: [u8; 4],
    pub destination: [u8; 4],
}

/// All headers of an untagged IPv4 segment.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct Plain {
    pub ethernet: Ethernet,
    pub ip: Ipv4,
    pub tcp: Tcp,
}

/// All headers of an untagged IPv4 segment whose options are the timestamps, as those of an established connection.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct Usual {
    pub plain: Plain,
    pub options: [u8; 12],
}

/// TCP without options (RFC 9293 §3.1).
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct Tcp {
    pub source_port: U16,
    pub destination_port: U16,
    pub seq: U32,
    pub ack: U32,
    /// Data offset in 32-bit words (upper 4 bits), reserved (lower 4).
    pub data_offset: u8,
    pub flags: u8,
    pub window: U16,
    pub checksum: [u8; 2],
    pub urgent: U16,
}

/// Offset of the checksum field in the TCP header.
pub(crate) const TCP_CHECKSUM_OFFSET: usize = 16;
