//! ICMP errors about TCP segments, of both families (RFC 792, RFC 4443), checked.

use crate::checksum;
use crate::headers::{
    ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_VLAN, Ethernet, FRAGMENT_MASK, Ipv4, Ipv6, PROTOCOL_TCP, Vlan,
};
use crate::{IPV4_BYTES, IPV6_BYTES};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use zerocopy::FromBytes;

/// Protocol number of ICMP, and next header of ICMPv6.
pub(crate) const PROTOCOLS: (u8, u8) = (1, 58);
/// Bytes of an ICMP error before the packet that it quotes.
pub(crate) const HEADER_BYTES: usize = 8;
/// The offset in `Ipv4::fragment`.
const OFFSET_MASK: u16 = 0x1fff;

/// Error types, with the types and codes of both families mapped to one list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IcmpKind {
    /// No route to the network.
    NetworkUnreachable,
    /// The host does not answer, or is out of scope.
    HostUnreachable,
    /// The network is unknown, forbidden, or unreachable for this type of service (IPv4: 6, 9, 11).
    NetworkRefused,
    /// The host is unknown (IPv4: 7).
    HostUnknown,
    /// The source host is isolated (IPv4: 8).
    HostIsolated,
    /// Forbidden by policy; IPv4 also: unreachable for this type of service (12).
    Prohibited,
    /// The host has no TCP.
    ProtocolUnreachable,
    /// Nothing on the host uses that port.
    PortUnreachable,
    /// The source route failed.
    SourceRouteFailed,
    /// The packet is too large for the next hop: fragmentation needed (RFC 1191), packet too big (RFC 8201).
    TooBig {
        /// The next hop's MTU in bytes; 0 = not stated, by an old router.
        mtu: u32,
    },
    /// Time to live exceeded in transit, or fragment reassembly time exceeded.
    TimeExceeded,
    /// A header field that a node could not process.
    ParameterProblem,
    /// Source quench, which is deprecated and ignored (RFC 6633).
    SourceQuench,
}

/// An ICMP error about a segment that claims to be ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcmpError {
    /// The kind of error.
    pub kind: IcmpKind,
    /// Our address.
    pub local: IpAddr,
    /// Our port.
    pub local_port: u16,
    /// The peer's address.
    pub remote: IpAddr,
    /// The peer's port.
    pub remote_port: u16,
    /// The segment's sequence number. An off-path attacker does not know it (RFC 5927 §4.1).
    pub seq: u32,
    /// Length of the quoted packet.
    pub packet_bytes: u32,
}

/// Reads an ICMP error about a TCP segment. `None` = something else, or damaged. Never panics, whatever the bytes.
pub fn parse(frame: &[u8]) -> Option<IcmpError> {
    let (ethernet, mut rest) = Ethernet::ref_from_prefix(frame).ok()?;
    let mut ethertype = ethernet.ethertype.get();
    if ethertype == ETHERTYPE_VLAN {
        let (tag, inner) = Vlan::ref_from_prefix(rest).ok()?;
        (ethertype, rest) = (tag.ethertype.get(), inner);
    }
    match ethertype {
        ETHERTYPE_IPV4 => v4(rest),
        ETHERTYPE_IPV6 => v6(rest),
        _ => None,
    }
}

fn v4(bytes: &[u8]) -> Option<IcmpError> {
    let (ip, header_len) = ipv4(bytes)?;
    let message = bytes.get(header_len..usize::from(ip.total_len.get()))?;
    let whole = ip.fragment.get() & FRAGMENT_MASK == 0;
    if !whole || ip.protocol != PROTOCOLS.0 || !checksum::right(checksum::add(0, &bytes[..header_len])) {
        return None;
    }
    if !checksum::right(checksum::add(0, message)) {
        return None;
    }
    let (&[kind, code, _, _, _, _, high, low], quoted) = message.split_first_chunk::<HEADER_BYTES>()?;
    let kind = match (kind, code) {
        (3, 0) => IcmpKind::NetworkUnreachable,
        (3, 1) => IcmpKind::HostUnreachable,
        (3, 6 | 9 | 11) => IcmpKind::NetworkRefused,
        (3, 7) => IcmpKind::HostUnknown,
        (3, 8) => IcmpKind::HostIsolated,
        (3, 2) => IcmpKind::ProtocolUnreachable,
        (3, 3) => IcmpKind::PortUnreachable,
        (3, 4) => IcmpKind::TooBig { mtu: u32::from(u16::from_be_bytes([high, low])) },
        (3, 5) => IcmpKind::SourceRouteFailed,
        (3, 10 | 12..=15) => IcmpKind::Prohibited,
        (4, _) => IcmpKind::SourceQuench,
        (11, _) => IcmpKind::TimeExceeded,
        (12, _) => IcmpKind::ParameterProblem,
        _ => return None,
    };
    let (about, header_len) = ipv4(quoted)?;
    // Only the first fragment of a packet has the ports.
    if about.protocol != PROTOCOL_TCP || about.fragment.get() & OFFSET_MASK != 0 || about.source != ip.destination {
        return None;
    }
    let (local, remote) = (Ipv4Addr::from(about.source), Ipv4Addr::from(about.destination));
    let packet_bytes = u32::from(about.total_len.get());
    segment(kind, local.into(), remote.into(), quoted.get(header_len..)?, packet_bytes)
}

/// An IPv4 header and its length. Its total length is not checked, as errors quote only a part of the packet.
fn ipv4(bytes: &[u8]) -> Option<(&Ipv4, usize)> {
    let (ip, _) = Ipv4::ref_from_prefix(bytes).ok()?;
    let header_len = usize::from(ip.version_ihl & 0xf) * 4;
    let good = ip.version_ihl >> 4 == 4 && header_len >= IPV4_BYTES && header_len <= bytes.len();
    good.then_some((ip, header_len))
}

fn v6(bytes: &[u8]) -> Option<IcmpError> {
    let (ip, rest) = Ipv6::ref_from_prefix(bytes).ok()?;
    let message = rest.get(..usize::from(ip.payload_len.get()))?;
    if ip.version_class_flow.get() >> 28 != 6 || ip.next_header != PROTOCOLS.1 {
        return None;
    }
    // RFC 8200 §8.1.
    let pseudo = checksum::add(checksum::add(0, &ip.source), &ip.destination);
    let pseudo = checksum::add(pseudo, &(message.len() as u32).to_be_bytes());
    let pseudo = checksum::add(pseudo, &[0, 0, 0, ip.next_header]);
    if !checksum::right(checksum::add(pseudo, message)) {
        return None;
    }
    let (&[kind, code, _, _, a, b, c, d], quoted) = message.split_first_chunk::<HEADER_BYTES>()?;
    let kind = match (kind, code) {
        (1, 0) => IcmpKind::NetworkUnreachable,
        (1, 1 | 5 | 6) => IcmpKind::Prohibited,
        (1, 4) => IcmpKind::PortUnreachable,
        (1, 2 | 3) => IcmpKind::HostUnreachable,
        // Linux treats an unknown code so.
        (1, _) => IcmpKind::ParameterProblem,
        (2, _) => IcmpKind::TooBig { mtu: u32::from_be_bytes([a, b, c, d]) },
        (3, _) => IcmpKind::TimeExceeded,
        // A host without TCP sends "unrecognized next header" (RFC 4443 §3.4).
        (4, 1) => IcmpKind::ProtocolUnreachable,
        (4, _) => IcmpKind::ParameterProblem,
        _ => return None,
    };
    let (about, tcp) = Ipv6::ref_from_prefix(quoted).ok()?;
    let six = about.version_class_flow.get() >> 28 == 6;
    if !six || about.next_header != PROTOCOL_TCP || about.source != ip.destination {
        return None;
    }
    let (local, remote) = (Ipv6Addr::from(about.source), Ipv6Addr::from(about.destination));
    let packet_bytes = IPV6_BYTES as u32 + u32::from(about.payload_len.get());
    segment(kind, local.into(), remote.into(), tcp, packet_bytes)
}

/// Reads the first eight bytes of a TCP header. An error need not quote more (RFC 792).
fn segment(kind: IcmpKind, local: IpAddr, remote: IpAddr, tcp: &[u8], packet_bytes: u32) -> Option<IcmpError> {
    let (&[a, b, c, d, e, f, g, h], _) = tcp.split_first_chunk::<8>()?;
    Some(IcmpError {
        kind,
        local,
        local_port: u16::from_be_bytes([a, b]),
        remote,
        remote_port: u16::from_be_bytes([c, d]),
        seq: u32::from_be_bytes([e, f, g, h]),
        packet_bytes,
    })
}
