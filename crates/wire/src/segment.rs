//! A received frame, checked.

use crate::checksum;
use crate::headers::{ETHERTYPE_IPV4, Ethernet, FRAGMENT_MASK, Ipv4, PROTOCOL_TCP, TCP_CHECKSUM_OFFSET, Tcp};
use crate::offload::RxChecksum;
pub use crate::options::{Options, SackBlocks, Timestamps};
use crate::{ETHERNET_BYTES, IPV4_BYTES, TCP_BYTES};
use std::net::Ipv4Addr;
use zerocopy::FromBytes;

/// The flag bits of the TCP header (RFC 9293 §3.1, RFC 3168 §6.1).
pub mod flags {
    /// No more data from the sender.
    pub const FIN: u8 = 1;
    /// Synchronise sequence numbers.
    pub const SYN: u8 = 2;
    /// Reset the connection.
    pub const RST: u8 = 4;
    /// Push.
    pub const PSH: u8 = 8;
    /// The acknowledgement number is valid.
    pub const ACK: u8 = 16;
    /// The urgent pointer is valid.
    pub const URG: u8 = 32;
    /// ECN echo.
    pub const ECE: u8 = 64;
    /// Congestion window reduced.
    pub const CWR: u8 = 128;
}

/// A checked view of one Ethernet+IPv4+TCP frame (plain values; no borrow).
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    /// Ethernet source.
    pub source_mac: [u8; 6],
    /// Ethernet destination.
    pub destination_mac: [u8; 6],
    /// IPv4 source: unicast.
    pub source: Ipv4Addr,
    /// IPv4 destination.
    pub destination: Ipv4Addr,
    /// TCP source port.
    pub source_port: u16,
    /// TCP destination port.
    pub destination_port: u16,
    /// Sequence number of the first byte of payload (or of the SYN).
    pub seq: u32,
    /// Acknowledgement number; means something only with [`flags::ACK`].
    pub ack: u32,
    /// See [`flags`].
    pub flags: u8,
    /// Window as it is in the header, unscaled.
    pub window: u16,
    /// Urgent pointer; means something only with [`flags::URG`].
    pub urgent: u16,
    /// IPv4 type of service: DSCP and, in the low two bits, ECN (RFC 3168 §5).
    pub tos: u8,
    /// Offset of the TCP header in the frame.
    pub tcp_offset: u16,
    /// Offset of the payload in the frame.
    pub payload_offset: u32,
    /// Bytes of payload, Ethernet padding excluded.
    pub payload_len: u32,
    /// TCP options.
    pub options: Options,
}

/// Why a frame is no segment of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// Shorter than its headers say.
    #[error("the frame is shorter than its headers say")]
    Truncated,
    /// Not IPv4, not TCP, or a fragment.
    #[error("not an unfragmented IPv4 TCP segment")]
    NotTcp,
    /// IPv4 header checksum wrong.
    #[error("the IPv4 header checksum is wrong")]
    IpChecksum,
    /// Header length, data offset or option length impossible.
    #[error("a header or option length is impossible")]
    BadHeader,
    /// Source = destination address and port (LAND), or the source is broadcast, multicast or 0.0.0.0.
    #[error("the source address cannot be a peer's")]
    BadSource,
}

/// Checks a frame's headers and reads them. The TCP checksum is left to [`checksum_ok`], as it touches the payload.
///
/// Never panics, whatever the bytes. Bytes after the IPv4 total length (Ethernet padding) are ignored.
#[inline]
pub fn parse(frame: &[u8]) -> Result<Segment, ParseError> {
    let (ethernet, rest) = Ethernet::ref_from_prefix(frame).map_err(|_| ParseError::Truncated)?;
    if ethernet.ethertype.get() != ETHERTYPE_IPV4 {
        return Err(ParseError::NotTcp);
    }
    let (ip, ip_len, total_len) = parse_ipv4(rest)?;
    let segment = &rest[ip_len..total_len];
    let (tcp, _) = Tcp::ref_from_prefix(segment).map_err(|_| ParseError::Truncated)?;
    let tcp_len = usize::from(tcp.data_offset >> 4) * 4;
    let options = segment.get(TCP_BYTES..tcp_len).ok_or(ParseError::BadHeader)?;
    let options = Options::parse(options)?;

    let source = Ipv4Addr::from(ip.source);
    let land = ip.source == ip.destination && tcp.source_port == tcp.destination_port;
    if land || source.is_multicast() || source.is_broadcast() || source.is_unspecified() {
        return Err(ParseError::BadSource);
    }
    Ok(Segment {
        source_mac: ethernet.source,
        destination_mac: ethernet.destination,
        source,
        destination: Ipv4Addr::from(ip.destination),
        source_port: tcp.source_port.get(),
        destination_port: tcp.destination_port.get(),
        seq: tcp.seq.get(),
        ack: tcp.ack.get(),
        flags: tcp.flags,
        window: tcp.window.get(),
        urgent: tcp.urgent.get(),
        tos: ip.tos,
        tcp_offset: (ETHERNET_BYTES + ip_len) as u16,
        payload_offset: (ETHERNET_BYTES + ip_len + tcp_len) as u32,
        payload_len: (total_len - ip_len - tcp_len) as u32,
        options,
    })
}

/// The IPv4 header, its length with options, and the total length; the latter two lie within `packet`.
#[inline]
fn parse_ipv4(packet: &[u8]) -> Result<(&Ipv4, usize, usize), ParseError> {
    let (ip, _) = Ipv4::ref_from_prefix(packet).map_err(|_| ParseError::Truncated)?;
    if ip.version_ihl >> 4 != 4 {
        return Err(ParseError::NotTcp);
    }
    let ip_len = usize::from(ip.version_ihl & 0xf) * 4;
    let total_len = usize::from(ip.total_len.get());
    if ip_len < IPV4_BYTES || total_len < ip_len {
        return Err(ParseError::BadHeader);
    }
    if total_len > packet.len() {
        return Err(ParseError::Truncated);
    }
    if !checksum::right(checksum::add(0, &packet[..ip_len])) {
        return Err(ParseError::IpChecksum);
    }
    if ip.protocol != PROTOCOL_TCP || ip.fragment.get() & FRAGMENT_MASK != 0 {
        return Err(ParseError::NotTcp);
    }
    Ok((ip, ip_len, total_len))
}

/// Whether the TCP checksum of a parsed frame is right, as far as `what` leaves that open.
///
/// `segment` must come from [`parse`] of the same frame; of another one the answer is `false` or meaningless, but there is
/// no panic.
#[inline]
pub fn checksum_ok(frame: &[u8], segment: &Segment, what: RxChecksum) -> bool {
    if what == RxChecksum::Valid {
        return true;
    }
    let start = usize::from(segment.tcp_offset);
    let end = segment.payload_offset as usize + segment.payload_len as usize;
    let Some(tcp) = frame.get(start..end) else { return false };
    let pseudo = checksum::pseudo_header(segment.source.octets(), segment.destination.octets(), tcp.len() as u16);
    if what == RxChecksum::MaybePartial {
        // CHECKSUM_PARTIAL: the field holds the pseudo-header's sum, uncomplemented, and the data never left the host.
        let field = tcp.get(TCP_CHECKSUM_OFFSET..TCP_CHECKSUM_OFFSET + 2);
        if field == Some(&checksum::fold(pseudo).to_ne_bytes()) {
            return true;
        }
    }
    checksum::right(checksum::add(pseudo, tcp))
}
