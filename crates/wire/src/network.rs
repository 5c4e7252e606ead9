//! The network layer of a received frame: IPv4 or IPv6 headers, checked.

use crate::checksum;
use crate::error::ParseError;
use crate::headers::{FRAGMENT_MASK, Ipv4, Ipv6, PROTOCOL_TCP};
use crate::{IPV4_BYTES, IPV6_BYTES};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use zerocopy::FromBytes;

/// IPv6 next headers (RFC 8200 §4).
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const DESTINATION_OPTIONS: u8 = 60;
/// Most extension headers that are skipped. A packet with more is rejected, as it only costs time.
const MAX_EXTENSIONS: usize = 8;

/// A network header, and the offsets of its TCP segment. Invariant: `tcp <= end`, both within the bytes it was read
/// from.
pub(crate) struct Packet<'a, H> {
    pub header: &'a H,
    pub tcp: usize,
    pub end: usize,
}

/// The fields that both families have.
pub(crate) trait Network {
    fn source(&self) -> IpAddr;
    fn destination(&self) -> IpAddr;
    /// Type of service or traffic class.
    fn tos(&self) -> u8;
    /// Can the source not be a peer's?
    fn bad_source(&self) -> bool;
    /// Are source and destination the same?
    fn to_itself(&self) -> bool;
}

impl Network for Ipv4 {
    #[inline]
    fn source(&self) -> IpAddr {
        IpAddr::V4(self.source.into())
    }
    #[inline]
    fn destination(&self) -> IpAddr {
        IpAddr::V4(self.destination.into())
    }
    #[inline]
    fn tos(&self) -> u8 {
        self.tos
    }
    #[inline]
    fn bad_source(&self) -> bool {
        is_bad_source(self.source)
    }
    #[inline]
    fn to_itself(&self) -> bool {
        self.source == self.destination
    }
}

/// Nobody sends from such an address.
#[inline]
pub(crate) fn is_bad_source(source: [u8; 4]) -> bool {
    let source = Ipv4Addr::from(source);
    source.is_multicast() || source.is_broadcast() || source.is_unspecified()
}

impl Network for Ipv6 {
    fn source(&self) -> IpAddr {
        IpAddr::V6(self.source.into())
    }
    fn destination(&self) -> IpAddr {
        IpAddr::V6(self.destination.into())
    }
    fn tos(&self) -> u8 {
        (self.version_class_flow.get() >> 20) as u8
    }
    /// An IPv4-mapped address on the wire would be taken for an IPv4 peer (RFC 4038 §4.2 describes the danger).
    fn bad_source(&self) -> bool {
        let source = Ipv6Addr::from(self.source);
        source.is_multicast() || source.is_unspecified() || source.to_ipv4_mapped().is_some()
    }
    fn to_itself(&self) -> bool {
        self.source == self.destination
    }
}

impl Ipv4 {
    /// Is the checksum right, of a header without options?
    #[inline(always)]
    pub(crate) fn checksum_is_right(&self) -> bool {
        checksum::header_is_right(zerocopy::transmute_ref!(self))
    }
    /// It carries TCP, and is no fragment.
    #[inline(always)]
    pub(crate) fn carries_tcp(&self) -> bool {
        self.protocol == PROTOCOL_TCP && self.fragment.get() & FRAGMENT_MASK == 0
    }
}

/// Reads an IPv4 packet that carries TCP (RFC 791 §3.1). IP options are skipped (RFC 9293 §3.9.2.1, MUST-50). A packet
/// with a source route is dropped (RFC 7126 §4.3; Linux: `accept_source_route` = 0), as there is no return path.
#[inline(always)]
pub(crate) fn ipv4(bytes: &[u8]) -> Result<Packet<'_, Ipv4>, ParseError> {
    let (ip, _) = Ipv4::ref_from_prefix(bytes).map_err(|_| ParseError::Truncated)?;
    if ip.version_ihl >> 4 != 4 {
        return Err(ParseError::NotTcp);
    }
    let header_len = usize::from(ip.version_ihl & 0xf) * 4;
    let total_len = usize::from(ip.total_len.get());
    if header_len < IPV4_BYTES || total_len < header_len {
        return Err(ParseError::BadHeader);
    }
    if total_len > bytes.len() {
        return Err(ParseError::Truncated);
    }
    let right = if header_len > IPV4_BYTES {
        let options = &bytes[IPV4_BYTES..header_len];
        if source_route(options) {
            return Err(ParseError::BadHeader);
        }
        let sum = checksum::fold(checksum::header(zerocopy::transmute_ref!(ip)));
        checksum::right(checksum::add(sum.into(), options))
    } else {
        ip.checksum_is_right()
    };
    if !right {
        return Err(ParseError::IpChecksum);
    }
    if !ip.carries_tcp() {
        return Err(ParseError::NotTcp);
    }
    Ok(Packet { header: ip, tcp: header_len, end: total_len })
}

/// Is there a source route among these options (RFC 791 §3.1)? The search ends at an option without a valid length.
#[cold]
fn source_route(mut options: &[u8]) -> bool {
    const END: u8 = 0;
    const NOTHING: u8 = 1;
    const LOOSE: u8 = 131;
    const STRICT: u8 = 137;
    while let [kind, rest @ ..] = options {
        options = match (*kind, rest) {
            (LOOSE | STRICT, _) => return true,
            (END, _) => return false,
            (NOTHING, _) => rest,
            (_, [length, ..]) if *length >= 2 => options.get(usize::from(*length)..).unwrap_or_default(),
            _ => return false,
        };
    }
    false
}

/// Reads an IPv6 packet that carries TCP (RFC 8200 §3). Extension headers are skipped.
pub(crate) fn ipv6(bytes: &[u8]) -> Result<Packet<'_, Ipv6>, ParseError> {
    let (ip, _) = Ipv6::ref_from_prefix(bytes).map_err(|_| ParseError::Truncated)?;
    if ip.version_class_flow.get() >> 28 != 6 {
        return Err(ParseError::NotTcp);
    }
    let total_len = IPV6_BYTES + usize::from(ip.payload_len.get());
    let packet = bytes.get(..total_len).ok_or(ParseError::Truncated)?;
    Ok(Packet { header: ip, tcp: skip_extensions(packet, ip.next_header)?, end: total_len })
}

/// Offset of the TCP header. Fragments, and extension headers that may not be skipped, are rejected.
fn skip_extensions(packet: &[u8], first: u8) -> Result<usize, ParseError> {
    let (mut next, mut at) = (first, IPV6_BYTES);
    for nth in 0..=MAX_EXTENSIONS {
        if next == PROTOCOL_TCP {
            return Ok(at);
        }
        // Hop-by-hop options are allowed only in the first place (RFC 8200 §4.1).
        let known = matches!(next, ROUTING | DESTINATION_OPTIONS) || next == HOP_BY_HOP && nth == 0;
        if !known {
            return Err(ParseError::NotTcp);
        }
        let rest = packet.get(at..).ok_or(ParseError::Truncated)?;
        let &[after, units, ..] = rest else { return Err(ParseError::Truncated) };
        let len = (usize::from(units) + 1) * 8;
        let header = rest.get(..len).ok_or(ParseError::Truncated)?;
        // §4.4: an unknown routing header is ignored if no segments are left.
        let skipped = if next == ROUTING { header[3] == 0 } else { may_skip(&header[2..]) };
        if !skipped {
            return Err(ParseError::NotTcp);
        }
        (next, at) = (after, at + len);
    }
    Err(ParseError::NotTcp)
}

/// May a node that does not know these options skip them all (RFC 8200 §4.2: the two highest bits of the type are 0)?
fn may_skip(mut options: &[u8]) -> bool {
    while let [kind, rest @ ..] = options {
        if kind >> 6 != 0 {
            return false;
        }
        options = match (kind, rest) {
            (0, _) => rest, // Pad1 has no length.
            (_, [len, rest @ ..]) if usize::from(*len) <= rest.len() => &rest[usize::from(*len)..],
            _ => return false,
        };
    }
    true
}
