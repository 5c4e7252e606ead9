//! Headers, options and checksums, as `zerocopy` views over bytes. Malformed frames are rejected here.
//! This crate knows no connections.
#![forbid(unsafe_code)]

pub mod checksum;
pub mod emit;
pub mod error;
mod headers;
pub mod icmp;
pub mod ip;
mod network;
pub mod offload;
pub mod options;
pub mod segment;
pub mod template;
pub mod too_big;

pub use emit::{Header, TTL, emit, fill_checksum, has_partial_checksum, partial_checksum};
pub use error::ParseError;
pub use headers::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_VLAN, PROTOCOL_TCP};
pub use offload::{RxChecksum, TxOffload};
pub use options::{Options, SackBlocks, Timestamps};
pub use segment::{Segment, checksum_ok, flags, parse};

/// Bytes of an Ethernet II header.
pub const ETHERNET_BYTES: usize = 14;
/// Bytes of an IPv4 header without options.
pub const IPV4_BYTES: usize = 20;
/// Bytes of an IPv6 header without extension headers.
pub const IPV6_BYTES: usize = 40;
/// Bytes that an IEEE 802.1Q tag adds.
pub const VLAN_BYTES: usize = 4;
/// Bytes of a TCP header without options.
pub const TCP_BYTES: usize = 20;
/// Bytes that the timestamp option takes on the data path: NOP, NOP, TS (RFC 7323 appendix A).
pub const TIMESTAMP_BYTES: usize = 12;
