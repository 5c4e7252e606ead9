//! The network layer of a received frame: IPv4 or IPv6, checked, and what both say.

use crate::checksum;
use crate::headers::{FRAGMENT_MASK, Ipv4, Ipv6, PROTOCOL_TCP};
use crate::segment::ParseError;
use crate::{IPV4_BYTES, IPV6_BYTES};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use zerocopy::FromBytes;

/// IPv6 next headers (RFC 8200 §4).
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const DESTINATION_OPTIONS: u8 = 60;
/// So many extension headers are skipped: more serve no purpose but to cost time.
const MAX_EXTENSIONS: usize = 8;

/// What the network header says; `header_len <= total_len`, and both lie within the bytes that it was read from.
pub(crate) struct Packet {
    pub source: IpAddr,
    pub destination: IpAddr,
    /// Type of service or traffic class.
    pub tos: u8,
    /// Offset of the TCP header.
    pub header_len: usize,
    /// Offset of the packet's end.
    pub total_len: usize,
    /// The source cannot be a peer's.
    pub bad_source: bool,
    /// Source and destination are the same.
    pub to_itself: bool,
}

/// An IPv4 packet with TCP in it (RFC 791 §3.1).
#[inline(always)]
pub(crate) fn ipv4(bytes: &[u8]) -> Result<Packet, ParseError> {
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
    if !checksum::right(checksum::add(0, &bytes[..header_len])) {
        return Err(ParseError::IpChecksum);
    }
    if ip.protocol != PROTOCOL_TCP || ip.fragment.get() & FRAGMENT_MASK != 0 {
        return Err(ParseError::NotTcp);
    }
    let source = Ipv4Addr::from(ip.source);
    Ok(Packet {
        source: source.into(),
        destination: Ipv4Addr::from(ip.destination).into(),
        tos: ip.tos,
        header_len,
        total_len,
        bad_source: source.is_multicast() || source.is_broadcast() || source.is_unspecified(),
        to_itself: ip.source == ip.destination,
    })
}

/// An IPv6 packet with TCP in it (RFC 8200 §3), extension headers skipped.
pub(crate) fn ipv6(bytes: &[u8]) -> Result<Packet, ParseError> {
    let (ip, _) = Ipv6::ref_from_prefix(bytes).map_err(|_| ParseError::Truncated)?;
    let first = ip.version_class_flow.get();
    if first >> 28 != 6 {
        return Err(ParseError::NotTcp);
    }
    let total_len = IPV6_BYTES + usize::from(ip.payload_len.get());
    let packet = bytes.get(..total_len).ok_or(ParseError::Truncated)?;
    let header_len = skip_extensions(packet, ip.next_header)?;
    let source = Ipv6Addr::from(ip.source);
    Ok(Packet {
        source: source.into(),
        destination: Ipv6Addr::from(ip.destination).into(),
        tos: (first >> 20) as u8,
        header_len,
        total_len,
        // An IPv4-mapped address on the wire would pass for an IPv4 peer (RFC 4038 §4.2 names the danger).
        bad_source: source.is_multicast() || source.is_unspecified() || source.to_ipv4_mapped().is_some(),
        to_itself: ip.source == ip.destination,
    })
}

/// Offset of the TCP header. Fragments, and headers that ask for more than to be skipped, are not ours.
fn skip_extensions(packet: &[u8], first: u8) -> Result<usize, ParseError> {
    let (mut next, mut at) = (first, IPV6_BYTES);
    for nth in 0..=MAX_EXTENSIONS {
        if next == PROTOCOL_TCP {
            return Ok(at);
        }
        // Hop-by-hop options stand only in the first place (RFC 8200 §4.1).
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

/// May all these options be skipped by one who does not know them (RFC 8200 §4.2: the two highest bits of the type are 0)?
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
