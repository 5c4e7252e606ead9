//! Writing of frames to be sent.

use crate::checksum;
use crate::headers::{
    DONT_FRAGMENT, ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_VLAN, Ethernet, Ipv4, Ipv6, PROTOCOL_TCP, Plain,
    TCP_CHECKSUM_OFFSET, Tcp, VLAN_MASK, Vlan,
};
use crate::offload::TxOffload;
use crate::options::Options;
use crate::{ETHERNET_BYTES, IPV4_BYTES, IPV6_BYTES, TCP_BYTES, VLAN_BYTES};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use zerocopy::{FromBytes, IntoBytes};

/// Time to live or hop limit unless an application has set another: the recommended default (RFC 1700, Linux's too).
pub const TTL: u8 = 64;

/// The header fields of one frame.
#[derive(Clone, Copy, Debug)]
pub struct Header {
    /// Ethernet source.
    pub source_mac: [u8; 6],
    /// Ethernet destination.
    pub destination_mac: [u8; 6],
    /// VLAN to tag the frame with (IEEE 802.1Q), 1-4095.
    pub vlan: Option<u16>,
    /// Source address.
    pub source: IpAddr,
    /// Destination address, of the same family.
    pub destination: IpAddr,
    /// TCP source port.
    pub source_port: u16,
    /// TCP destination port.
    pub destination_port: u16,
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgement number.
    pub ack: u32,
    /// See [`crate::flags`].
    pub flags: u8,
    /// Window as it goes into the header (already scaled).
    pub window: u16,
    /// IPv4 identification; IPv6 has none. The packet has DF set, so any value is allowed (RFC 6864 §4.1).
    /// A counter lets a device that cuts super-segments number them.
    pub ident: u16,
    /// IPv4 type of service or IPv6 traffic class: DSCP, unchanged from the application (RFC 9293 SHLD-22), and ECN.
    pub tos: u8,
    /// IPv4 time to live or IPv6 hop limit (RFC 9293 MUST-49).
    pub ttl: u8,
    /// Urgent pointer; means something only with [`crate::flags::URG`].
    pub urgent: u16,
    /// TCP options.
    pub options: Options,
}

impl Header {
    /// Bytes of all headers: the payload's offset in the frame.
    #[inline]
    pub fn wire_bytes(&self) -> usize {
        self.tcp_offset() + TCP_BYTES + self.options.wire_bytes()
    }

    #[inline]
    fn tcp_offset(&self) -> usize {
        let tag = if self.vlan.is_some() { VLAN_BYTES } else { 0 };
        ETHERNET_BYTES + tag + if self.source.is_ipv4() { IPV4_BYTES } else { IPV6_BYTES }
    }
}

/// Offsets and sums of a frame whose headers have been written, so that they need not be parsed again.
#[derive(Clone, Copy, Debug)]
pub struct Made {
    /// The payload's offset in the frame.
    pub payload_offset: usize,
    /// The frame's length.
    pub end: usize,
    tcp_offset: usize,
    /// The pseudo-header's sum.
    pseudo: u64,
}

impl Made {
    #[inline(always)]
    pub(crate) fn of(payload_offset: usize, end: usize, tcp_offset: usize, pseudo: u64) -> Self {
        Self { payload_offset, end, tcp_offset, pseudo }
    }

    /// [`fill_checksum`] of the frame, with its payload in place.
    #[inline]
    pub fn fill_checksum(&self, frame: &mut [u8]) {
        fill(frame, (self.pseudo, self.tcp_offset, self.end));
    }

    /// [`partial_checksum`] of the frame.
    #[inline]
    pub fn partial_checksum(&self, frame: &mut [u8]) -> TxOffload {
        leave(frame, (self.pseudo, self.tcp_offset))
    }
}

/// Writes Ethernet, IP (header checksum right) and TCP headers (checksum field 0) for a payload of `payload_len` bytes;
/// returns the payload's offset. `None`: headers and payload do not fit `out`, the packet would be longer than 65,535
/// bytes, or the addresses are of different families.
#[inline]
pub fn emit(header: &Header, payload_len: usize, out: &mut [u8]) -> Option<usize> {
    make(header, payload_len, out).map(|made| made.payload_offset)
}

/// Like [`emit`], but returns all offsets and sums of the frame.
pub fn make(header: &Header, payload_len: usize, out: &mut [u8]) -> Option<Made> {
    let (IpAddr::V4(source), IpAddr::V4(destination), None) = (header.source, header.destination, header.vlan) else {
        return make_other(*header, payload_len, out);
    };
    const START: usize = ETHERNET_BYTES + IPV4_BYTES;
    const FIXED: usize = START + TCP_BYTES;
    let payload_offset = FIXED + header.options.wire_bytes();
    let total_len = u16::try_from((payload_offset - ETHERNET_BYTES).checked_add(payload_len)?).ok()?;
    let end = ETHERNET_BYTES + usize::from(total_len);
    if end > out.len() {
        return None;
    }
    let (headers, rest) = Plain::mut_from_prefix(out).ok()?;
    *headers = Plain {
        ethernet: ethernet(header, ETHERTYPE_IPV4),
        ip: ipv4(header, source, destination, total_len),
        tcp: tcp(header, payload_offset - START),
    };
    header.options.write(rest.get_mut(..payload_offset - FIXED)?);
    let pseudo = checksum::pseudo_header(source.octets(), destination.octets(), total_len - IPV4_BYTES as u16);
    Some(Made { payload_offset, end, tcp_offset: START, pseudo })
}

/// All but untagged IPv4: IPv6, and either family with a VLAN tag.
#[inline(never)]
fn make_other(header: Header, payload_len: usize, out: &mut [u8]) -> Option<Made> {
    let header = &header;
    let (payload_offset, tcp_offset) = (header.wire_bytes(), header.tcp_offset());
    let end = payload_offset.checked_add(payload_len)?;
    let (headers, options) = out.get_mut(..end)?[..payload_offset].split_at_mut(tcp_offset + TCP_BYTES);
    let (link, rest) = headers.split_at_mut(ETHERNET_BYTES);
    let ethertype = if header.source.is_ipv4() { ETHERTYPE_IPV4 } else { ETHERTYPE_IPV6 };
    let rest = match header.vlan {
        None => {
            link.copy_from_slice(ethernet(header, ethertype).as_bytes());
            rest
        }
        Some(vlan) => {
            link.copy_from_slice(ethernet(header, ETHERTYPE_VLAN).as_bytes());
            let (tag, rest) = rest.split_at_mut(VLAN_BYTES);
            // Priority 0 (best effort), not drop eligible.
            let vlan = Vlan { control: (vlan & VLAN_MASK).into(), ethertype: ethertype.into() };
            tag.copy_from_slice(vlan.as_bytes());
            rest
        }
    };
    let (network, segment) = rest.split_at_mut(rest.len() - TCP_BYTES);
    let tcp_len = end - tcp_offset;
    let total_len = u16::try_from(network.len() + tcp_len).ok()?;
    let pseudo = match (header.source, header.destination) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            network.copy_from_slice(ipv4(header, from, to, total_len).as_bytes());
            checksum::pseudo_header(from.octets(), to.octets(), tcp_len as u16)
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            network.copy_from_slice(ipv6(header, from, to, tcp_len).as_bytes());
            checksum::pseudo_header_v6(from.octets(), to.octets(), tcp_len as u16)
        }
        _ => return None,
    };
    segment.copy_from_slice(tcp(header, payload_offset - tcp_offset).as_bytes());
    header.options.write(options);
    Some(Made { payload_offset, end, tcp_offset, pseudo })
}

#[inline(always)]
fn ethernet(header: &Header, ethertype: u16) -> Ethernet {
    Ethernet { destination: header.destination_mac, source: header.source_mac, ethertype: ethertype.into() }
}

#[inline(always)]
fn ipv4(header: &Header, source: Ipv4Addr, destination: Ipv4Addr, total_len: u16) -> Ipv4 {
    let mut ip = Ipv4 {
        version_ihl: 0x45,
        tos: header.tos,
        total_len: total_len.into(),
        ident: header.ident.into(),
        fragment: DONT_FRAGMENT.into(),
        ttl: header.ttl,
        protocol: PROTOCOL_TCP,
        checksum: [0; 2],
        source: source.octets(),
        destination: destination.octets(),
    };
    ip.checksum = checksum::finish(checksum::header(zerocopy::transmute_ref!(&ip)));
    ip
}

/// The flow label is 0, which means none (RFC 6437 §2).
fn ipv6(header: &Header, source: Ipv6Addr, destination: Ipv6Addr, payload_len: usize) -> Ipv6 {
    Ipv6 {
        version_class_flow: (6 << 28 | u32::from(header.tos) << 20).into(),
        payload_len: (payload_len as u16).into(),
        next_header: PROTOCOL_TCP,
        hop_limit: header.ttl,
        source: source.octets(),
        destination: destination.octets(),
    }
}

/// `len`: bytes of the header with its options.
#[inline(always)]
fn tcp(header: &Header, len: usize) -> Tcp {
    Tcp {
        source_port: header.source_port.into(),
        destination_port: header.destination_port.into(),
        seq: header.seq.into(),
        ack: header.ack.into(),
        data_offset: (len as u8 / 4) << 4,
        flags: header.flags,
        window: header.window.into(),
        checksum: [0; 2],
        urgent: header.urgent.into(),
    }
}

/// The pseudo-header's sum, the TCP header's offset and the packet's end, of a frame made by [`emit`].
#[inline]
fn locate(frame: &[u8]) -> Option<(u64, usize, usize)> {
    let (ethernet, rest) = Ethernet::ref_from_prefix(frame).ok()?;
    let (pseudo, start, tcp_len) = if ethernet.ethertype.get() == ETHERTYPE_IPV4 {
        locate_v4(rest, ETHERNET_BYTES)?
    } else {
        locate_other(ethernet.ethertype.get(), rest)?
    };
    let end = start + usize::from(tcp_len);
    (usize::from(tcp_len) >= TCP_BYTES && end <= frame.len()).then_some((pseudo, start, end))
}

#[inline]
fn locate_v4(packet: &[u8], offset: usize) -> Option<(u64, usize, u16)> {
    let (ip, _) = Ipv4::ref_from_prefix(packet).ok()?;
    let ip_len = u16::from(ip.version_ihl & 0xf) * 4;
    let tcp_len = ip.total_len.get().checked_sub(ip_len)?;
    Some((checksum::pseudo_header(ip.source, ip.destination, tcp_len), offset + usize::from(ip_len), tcp_len))
}

/// [`locate`] for all but untagged IPv4.
#[inline(never)]
fn locate_other(mut ethertype: u16, mut rest: &[u8]) -> Option<(u64, usize, u16)> {
    let mut offset = ETHERNET_BYTES;
    if ethertype == ETHERTYPE_VLAN {
        let (tag, inner) = Vlan::ref_from_prefix(rest).ok()?;
        (ethertype, rest, offset) = (tag.ethertype.get(), inner, offset + VLAN_BYTES);
    }
    if ethertype == ETHERTYPE_IPV4 {
        return locate_v4(rest, offset);
    }
    let (ip, _) = Ipv6::ref_from_prefix(rest).ok()?;
    let tcp_len = ip.payload_len.get();
    Some((checksum::pseudo_header_v6(ip.source, ip.destination, tcp_len), offset + IPV6_BYTES, tcp_len))
}

/// Computes and stores the TCP checksum (RFC 9293 MUST-2) of a frame made by [`emit`], whose payload is in place.
/// The field's old content does not matter. A frame that [`emit`] cannot have made is left alone.
#[inline]
pub fn fill_checksum(frame: &mut [u8]) {
    if let Some(place) = locate(frame) {
        fill(frame, place);
    }
}

#[inline]
fn fill(frame: &mut [u8], (pseudo, start, end): (u64, usize, usize)) {
    let Some(segment) = frame.get_mut(start..end).filter(|segment| segment.len() >= TCP_BYTES) else { return };
    segment[TCP_CHECKSUM_OFFSET..TCP_CHECKSUM_OFFSET + 2].fill(0);
    let sum = checksum::finish(checksum::add(pseudo, segment));
    segment[TCP_CHECKSUM_OFFSET..TCP_CHECKSUM_OFFSET + 2].copy_from_slice(&sum);
}

/// Stores only the pseudo-header sum, and returns the [`TxOffload`] for a port that computes the rest.
/// `gso_bytes` is left 0 for the caller.
#[inline]
pub fn partial_checksum(frame: &mut [u8]) -> TxOffload {
    locate(frame).map_or_else(TxOffload::default, |(pseudo, start, _)| leave(frame, (pseudo, start)))
}

/// Has a TCP frame only the pseudo-header's sum ([`partial_checksum`])? Of other frames the answer means nothing.
pub fn has_partial_checksum(frame: &[u8]) -> bool {
    locate(frame).is_some_and(|(pseudo, start, _)| {
        let field = start + TCP_CHECKSUM_OFFSET;
        frame.get(field..field + 2) == Some(&checksum::fold(pseudo).to_ne_bytes())
    })
}

#[inline]
fn leave(frame: &mut [u8], (pseudo, start): (u64, usize)) -> TxOffload {
    let field = start + TCP_CHECKSUM_OFFSET;
    let Some(field) = frame.get_mut(field..field + 2) else { return TxOffload::default() };
    field.copy_from_slice(&checksum::fold(pseudo).to_ne_bytes());
    TxOffload {
        gso_bytes: 0,
        checksum_start: start as u16,
        checksum_offset: TCP_CHECKSUM_OFFSET as u16,
        checksum_needed: true,
    }
}
