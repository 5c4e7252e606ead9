//! Tells a peer that its packets are too large for the path behind us, as a router does: fragmentation needed (RFC 1191), packet
//! too big (RFC 8201).

use crate::checksum;
use crate::headers::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_VLAN, PROTOCOL_TCP};
use crate::icmp::{HEADER_BYTES, PROTOCOLS};
use crate::{IPV4_BYTES, IPV6_BYTES, TCP_BYTES, TTL};
use std::net::{IpAddr, SocketAddr};

/// Bytes of the quoted segment. Over IPv4 an error need not quote more (RFC 792).
const QUOTED: (usize, usize) = (8, TCP_BYTES);

/// What the peer is told.
#[derive(Clone, Copy, Debug)]
pub struct TooBig {
    /// Ethernet addresses of the next hop, and ours.
    pub macs: [[u8; 6]; 2],
    /// The VLAN of that link.
    pub vlan: Option<u16>,
    /// Where the packet came from,
    pub from: SocketAddr,
    /// and went to: an end of ours, which says so.
    pub to: SocketAddr,
    /// Its sequence number.
    pub seq: u32,
    /// Its length.
    pub packet_bytes: u16,
    /// The largest packet that gets through.
    pub mtu: u16,
}

impl TooBig {
    /// The frame. `None`: the ends are of two families.
    pub fn frame(&self) -> Option<Box<[u8]>> {
        let (kind, ip) = match (self.to.ip(), self.from.ip()) {
            (IpAddr::V4(to), IpAddr::V4(from)) => (
                ETHERTYPE_IPV4,
                self.v4(PROTOCOLS.0, to.octets(), from.octets(), self.icmp4(to.octets(), from.octets())),
            ),
            (IpAddr::V6(to), IpAddr::V6(from)) => (
                ETHERTYPE_IPV6,
                self.v6(PROTOCOLS.1, to.octets(), from.octets(), self.icmp6(to.octets(), from.octets())),
            ),
            _ => return None,
        };
        let tag = self.vlan.map(|vlan| [ETHERTYPE_VLAN, vlan].map(u16::to_be_bytes).concat());
        Some([&self.macs.concat()[..], &tag.unwrap_or_default(), &kind.to_be_bytes(), &ip].concat().into())
    }

    /// The packet's first bytes of TCP: the rest is nothing.
    fn tcp(&self, bytes: usize) -> Vec<u8> {
        let ports = [self.from.port(), self.to.port()].map(u16::to_be_bytes).concat();
        let mut tcp = [&ports[..], &self.seq.to_be_bytes()].concat();
        tcp.resize(bytes, 0);
        tcp
    }

    fn icmp4(&self, to: [u8; 4], from: [u8; 4]) -> Vec<u8> {
        let mut quoted = self.v4(PROTOCOL_TCP, from, to, self.tcp(QUOTED.0));
        quoted[2..4].copy_from_slice(&self.packet_bytes.to_be_bytes());
        crate::ip::fill_header_checksum(&mut quoted, 0);
        let [high, low] = self.mtu.to_be_bytes();
        let mut message = [&[3, 4, 0, 0, 0, 0, high, low], &quoted[..]].concat();
        let sum = checksum::finish(checksum::add(0, &message));
        message[2..4].copy_from_slice(&sum);
        message
    }

    fn icmp6(&self, to: [u8; 16], from: [u8; 16]) -> Vec<u8> {
        let mut quoted = self.v6(PROTOCOL_TCP, from, to, self.tcp(QUOTED.1));
        let payload_bytes = self.packet_bytes.saturating_sub(IPV6_BYTES as u16);
        quoted[4..6].copy_from_slice(&payload_bytes.to_be_bytes());
        let [high, low] = self.mtu.to_be_bytes();
        let mut message = [&[2, 0, 0, 0, 0, 0, high, low], &quoted[..]].concat();
        let pseudo = checksum::add(checksum::add(0, &to), &from);
        let pseudo = checksum::add(pseudo, &[0, 0, 0, message.len() as u8, 0, 0, 0, PROTOCOLS.1]);
        let sum = checksum::finish(checksum::add(pseudo, &message));
        message[2..4].copy_from_slice(&sum);
        message
    }

    fn v4(&self, protocol: u8, source: [u8; 4], destination: [u8; 4], payload: Vec<u8>) -> Vec<u8> {
        let bytes = (IPV4_BYTES + payload.len()) as u8;
        let mut packet = vec![0x45, 0, 0, bytes, 0, 0, 0x40, 0, TTL, protocol, 0, 0];
        packet.extend([source, destination].concat());
        packet.extend(payload);
        crate::ip::fill_header_checksum(&mut packet, 0);
        packet
    }

    fn v6(&self, protocol: u8, source: [u8; 16], destination: [u8; 16], payload: Vec<u8>) -> Vec<u8> {
        let mut packet = vec![0x60, 0, 0, 0, 0, payload.len() as u8, protocol, TTL];
        packet.extend([source, destination].concat());
        packet.extend(payload);
        packet
    }
}

// The largest message's length fits the bytes in which it is written.
const _: () = assert!(IPV6_BYTES + HEADER_BYTES + IPV6_BYTES + TCP_BYTES < 256);

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::icmp::{IcmpError, IcmpKind, parse};

    #[test]
    fn what_is_said_is_what_a_router_would_say() {
        for (from, to) in [("10.0.0.2:4000", "10.0.0.1:80"), ("[fd00::2]:4000", "[fd00::1]:80")] {
            let (from, to): (SocketAddr, SocketAddr) = (from.parse().unwrap(), to.parse().unwrap());
            let (macs, seq, packet_bytes, mtu) = ([[2; 6], [4; 6]], 77, 1500, 1400);
            let [frame, tagged] =
                [None, Some(7)].map(|vlan| TooBig { macs, vlan, from, to, seq, packet_bytes, mtu }.frame().unwrap());
            let expected = IcmpError {
                kind: IcmpKind::TooBig { mtu: 1400 },
                // The peer reads it: its own end is the one that the packet came from.
                local: from.ip(),
                local_port: 4000,
                remote: to.ip(),
                remote_port: 80,
                seq,
                packet_bytes: 1500,
            };
            assert_eq!((parse(&frame), &frame[..6]), (Some(expected), &[2; 6][..]));
            assert_eq!((parse(&tagged), &tagged[12..16]), (Some(expected), &[0x81, 0, 0, 7][..]));
            let other = if from.is_ipv4() { "[fd00::1]:80" } else { "10.0.0.1:80" };
            assert!(
                TooBig { macs, vlan: None, from, to: other.parse().unwrap(), seq, packet_bytes, mtu }.frame().is_none()
            );
        }
    }
}
