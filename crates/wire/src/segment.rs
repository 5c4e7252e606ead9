//! Parsing and checking of received frames.

use crate::checksum;
use crate::error::ParseError;
use crate::headers::{
    ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_VLAN, Ethernet, Plain, TCP_CHECKSUM_OFFSET, Tcp, Usual, VLAN_MASK, Vlan,
};
use crate::network::{self, Network, Packet};
use crate::offload::RxChecksum;
use crate::options::STAMPS_START;
pub use crate::options::{Options, SackBlocks, Timestamps};
use crate::{ETHERNET_BYTES, IPV4_BYTES, TCP_BYTES, VLAN_BYTES};
use std::mem::offset_of;
use std::net::{IpAddr, Ipv4Addr};
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

/// A checked view of one Ethernet, IPv4 or IPv6, and TCP frame (plain values; no borrow).
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    /// Ethernet source.
    pub source_mac: [u8; 6],
    /// Ethernet destination.
    pub destination_mac: [u8; 6],
    /// VLAN that the frame is tagged with (IEEE 802.1Q), 1-4095.
    pub vlan: Option<u16>,
    /// Source: unicast, never an IPv4-mapped IPv6 address.
    pub source: IpAddr,
    /// Destination, of the same family.
    pub destination: IpAddr,
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
    /// IPv4 type of service or IPv6 traffic class: DSCP and, in the low two bits, ECN (RFC 3168 §5).
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

impl Segment {
    /// An empty value to parse into.
    pub const NONE: Self = Self {
        source_mac: [0; 6],
        destination_mac: [0; 6],
        vlan: None,
        source: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        destination: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        source_port: 0,
        destination_port: 0,
        seq: 0,
        ack: 0,
        flags: 0,
        window: 0,
        urgent: 0,
        tos: 0,
        tcp_offset: 0,
        payload_offset: 0,
        payload_len: 0,
        options: Options::NONE,
    };
}

/// Checks a frame's headers and reads them. The TCP checksum is left to [`checksum_ok`], as it touches the payload.
///
/// Never panics, whatever the bytes. Bytes after the packet's own length (Ethernet padding) are ignored.
pub fn parse(frame: &[u8]) -> Result<Segment, ParseError> {
    let (ethernet, rest) = Ethernet::ref_from_prefix(frame).map_err(|_| ParseError::Truncated)?;
    if ethernet.ethertype.get() == ETHERTYPE_IPV4 {
        return parse_tcp(ethernet, None, ETHERNET_BYTES, rest, &network::ipv4(rest)?, Options::parse);
    }
    parse_other(ethernet, rest)
}

/// A frame in the usual layout: untagged IPv4 without options, TCP with timestamps alone. The layout makes all places
/// constant, and each field is read from the frame where the caller needs it.
#[derive(Clone, Copy)]
pub struct UsualSegment<'a> {
    headers: &'a Usual,
    payload_len: u32,
}

impl<'a> UsualSegment<'a> {
    /// Bytes of the headers: the payload's offset.
    pub const HEADERS: usize = size_of::<Usual>();

    /// Checks a frame's headers as [`parse`] does, but for its addresses: they have to be those of a connection, and only
    /// good ones have connections. `None`: another layout, or a fault.
    #[inline(always)]
    pub fn check(frame: &'a [u8]) -> Option<Self> {
        let (headers, rest) = Usual::ref_from_prefix(frame).ok()?;
        let Plain { ethernet, ip, tcp } = &headers.plain;
        // Not one condition: the places in the frame are constant only behind branches.
        if ethernet.ethertype.get() != ETHERTYPE_IPV4 {
            return None;
        }
        if ip.version_ihl != 0x45 {
            return None;
        }
        if tcp.data_offset >> 4 != 8 {
            return None;
        }
        Timestamps::alone(&headers.options)?;
        if !ip.carries_tcp() {
            return None;
        }
        // What is shorter than these headers comes out as longer than any frame.
        let payload_len = usize::from(ip.total_len.get()).wrapping_sub(Self::HEADERS - ETHERNET_BYTES);
        if payload_len > rest.len() {
            return None;
        }
        if !ip.checksum_is_right() {
            return None;
        }
        Some(Self { headers, payload_len: payload_len as u32 })
    }

    /// Source and destination address, then the ports in the same order, as they lie in the frame.
    #[inline(always)]
    pub fn ends(&self) -> ([u8; 8], [u8; 4]) {
        (self.bytes(offset_of!(Plain, ip.source)), self.bytes(offset_of!(Plain, tcp.source_port)))
    }
    /// Sequence number in the high half, acknowledgement number in the low one.
    #[inline(always)]
    pub fn numbers(&self) -> u64 {
        u64::from_be_bytes(self.bytes(offset_of!(Plain, tcp.seq)))
    }
    /// TSval in the high half, TSecr in the low one.
    #[inline(always)]
    pub fn stamps(&self) -> u64 {
        u64::from_be_bytes(self.bytes(offset_of!(Usual, options) + STAMPS_START.len()))
    }
    /// Window as it is in the header, unscaled.
    #[inline(always)]
    pub fn window(&self) -> u16 {
        self.headers.plain.tcp.window.get()
    }
    /// IPv4 type of service.
    #[inline(always)]
    pub fn tos(&self) -> u8 {
        self.headers.plain.ip.tos
    }
    /// Bytes of payload.
    #[inline(always)]
    pub fn payload_len(&self) -> u32 {
        self.payload_len
    }
    /// Bytes of the headers, at a place that is constant. So they are one load, and what several loads make of them is not.
    #[inline(always)]
    fn bytes<const N: usize>(&self, at: usize) -> [u8; N] {
        let all: &[u8; size_of::<Usual>()] = zerocopy::transmute_ref!(self.headers);
        let mut bytes = [0; N];
        bytes.copy_from_slice(&all[at..at + N]);
        bytes
    }

    /// See [`flags`].
    #[inline(always)]
    pub fn flags(&self) -> u8 {
        self.headers.plain.tcp.flags
    }

    /// See [`checksum_ok`].
    #[inline(always)]
    pub fn checksum_ok(&self, frame: &[u8], what: RxChecksum) -> bool {
        what == RxChecksum::Valid || checksum_ok(frame, &self.read(), what)
    }

    /// All fields. Inlining leaves out what the caller does not read.
    #[inline(always)]
    pub fn read(&self) -> Segment {
        let Plain { ethernet, ip, tcp } = &self.headers.plain;
        let stamps = Timestamps::alone(&self.headers.options).unwrap_or_default();
        let options = Options { timestamps: Some(stamps), ..Options::NONE };
        let tcp_offset = ETHERNET_BYTES + IPV4_BYTES;
        fields(ethernet, None, ip, tcp, (tcp_offset, Self::HEADERS, self.payload_len as usize), options)
    }
}

/// All but untagged IPv4: IPv6, and either family with one IEEE 802.1Q tag.
#[inline(never)]
fn parse_other(ethernet: &Ethernet, mut rest: &[u8]) -> Result<Segment, ParseError> {
    let (mut vlan, mut offset, mut ethertype) = (None, ETHERNET_BYTES, ethernet.ethertype.get());
    if ethertype == ETHERTYPE_VLAN {
        let (tag, inner) = Vlan::ref_from_prefix(rest).map_err(|_| ParseError::Truncated)?;
        // VLAN 0 means no VLAN: the tag carries only a priority (IEEE 802.1Q §9.6).
        vlan = Some(tag.control.get() & VLAN_MASK).filter(|number| *number != 0);
        (offset, ethertype, rest) = (offset + VLAN_BYTES, tag.ethertype.get(), inner);
    }
    match ethertype {
        ETHERTYPE_IPV4 => parse_tcp(ethernet, vlan, offset, rest, &network::ipv4(rest)?, Options::parse),
        ETHERTYPE_IPV6 => parse_tcp(ethernet, vlan, offset, rest, &network::ipv6(rest)?, Options::parse),
        _ => Err(ParseError::NotTcp),
    }
}

/// Can a segment have these [ends](UsualSegment::ends)? [`parse`] refuses those that cannot. Who looks a flow up needs not ask: none
/// has such ends.
#[inline]
pub fn ends_are_possible((addresses, ports): ([u8; 8], [u8; 4])) -> bool {
    let [a, b, c, d, destination @ ..] = addresses;
    let (source, is_one_port) = ([a, b, c, d], ports[..2] == ports[2..]);
    !(network::is_bad_source(source) || source == destination && is_one_port)
}

/// The TCP header in a packet that starts at `offset` of the frame. `read`: reads its options.
#[inline(always)]
fn parse_tcp<H: Network>(
    ethernet: &Ethernet,
    vlan: Option<u16>,
    offset: usize,
    rest: &[u8],
    packet: &Packet<'_, H>,
    read: impl FnOnce(&[u8]) -> Options,
) -> Result<Segment, ParseError> {
    let segment = &rest[packet.tcp..packet.end];
    let (tcp, _) = Tcp::ref_from_prefix(segment).map_err(|_| ParseError::Truncated)?;
    let tcp_len = usize::from(tcp.data_offset >> 4) * 4;
    let options = segment.get(TCP_BYTES..tcp_len).ok_or(ParseError::BadHeader)?;
    let land = packet.header.to_itself() && tcp.source_port == tcp.destination_port;
    // RFC 9293 §3.9.2.3, MUST-63: also a SYN from an impossible address.
    if land || packet.header.bad_source() {
        return Err(ParseError::BadSource);
    }
    let (at, len) = (offset + packet.tcp, packet.end - packet.tcp - tcp_len);
    Ok(fields(ethernet, vlan, packet.header, tcp, (at, at + tcp_len, len), read(options)))
}

/// All fields of a frame with these headers. `places`: offsets of TCP header and payload, and the payload's length.
#[inline(always)]
fn fields(
    ethernet: &Ethernet,
    vlan: Option<u16>,
    ip: &impl Network,
    tcp: &Tcp,
    places: (usize, usize, usize),
    options: Options,
) -> Segment {
    let (tcp_offset, payload_offset, payload_len) = places;
    Segment {
        source_mac: ethernet.source,
        destination_mac: ethernet.destination,
        vlan,
        source: ip.source(),
        destination: ip.destination(),
        source_port: tcp.source_port.get(),
        destination_port: tcp.destination_port.get(),
        seq: tcp.seq.get(),
        ack: tcp.ack.get(),
        flags: tcp.flags,
        window: tcp.window.get(),
        urgent: tcp.urgent.get(),
        tos: ip.tos(),
        tcp_offset: tcp_offset as u16,
        payload_offset: payload_offset as u32,
        payload_len: payload_len as u32,
        options,
    }
}

/// Is the TCP checksum of a parsed frame right? Computes only as much as `what` requires.
///
/// `segment` must come from [`parse`] of the same frame. With another frame the answer is meaningless, but nothing
/// panics.
#[inline(always)]
pub fn checksum_ok(frame: &[u8], segment: &Segment, what: RxChecksum) -> bool {
    if what == RxChecksum::Valid {
        return true;
    }
    let start = usize::from(segment.tcp_offset);
    let end = segment.payload_offset as usize + segment.payload_len as usize;
    let Some(tcp) = frame.get(start..end) else { return false };
    // Numbers are handed on, and no part of the segment: what nobody else reads of it is never written.
    let Some(pseudo) = pseudo_header(segment.source, segment.destination, tcp.len() as u16) else { return false };
    if what == RxChecksum::MaybePartial {
        // CHECKSUM_PARTIAL: the field holds the uncomplemented sum of the pseudo-header. The data never left the host.
        let field = tcp.get(TCP_CHECKSUM_OFFSET..TCP_CHECKSUM_OFFSET + 2);
        if field == Some(&checksum::fold(pseudo).to_ne_bytes()) {
            return true;
        }
    }
    sum_ok(pseudo, tcp)
}

/// The sum of the pseudo-header; `None`: the addresses are of two families.
#[inline(always)]
fn pseudo_header(source: IpAddr, destination: IpAddr, len: u16) -> Option<u64> {
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(to)) => Some(checksum::pseudo_header(source.octets(), to.octets(), len)),
        (IpAddr::V6(source), IpAddr::V6(to)) => Some(checksum::pseudo_header_v6(source.octets(), to.octets(), len)),
        _ => None,
    }
}

/// Checks `tcp`, the TCP header and payload.
#[inline(never)]
fn sum_ok(pseudo: u64, tcp: &[u8]) -> bool {
    checksum::right(checksum::add(pseudo, tcp))
}
