//! Frames to be sent.

use crate::checksum;
use crate::headers::{DONT_FRAGMENT, ETHERTYPE_IPV4, Ethernet, Ipv4, PROTOCOL_TCP, TCP_CHECKSUM_OFFSET, Tcp};
use crate::offload::TxOffload;
use crate::options::Options;
use crate::{ETHERNET_BYTES, IPV4_BYTES, TCP_BYTES};
use std::net::Ipv4Addr;
use zerocopy::{FromBytes, IntoBytes};

/// Time to live unless an application has set another: the recommended default (RFC 1700, Linux's too).
pub const TTL: u8 = 64;

/// What goes into the headers of one frame.
#[derive(Clone, Copy, Debug)]
pub struct Header {
    /// Ethernet source.
    pub source_mac: [u8; 6],
    /// Ethernet destination.
    pub destination_mac: [u8; 6],
    /// IPv4 source.
    pub source: Ipv4Addr,
    /// IPv4 destination.
    pub destination: Ipv4Addr,
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
    /// IPv4 identification. The packet has DF set, so any value will do (RFC 6864 §4.1); a counter lets a device that cuts
    /// super-segments number them.
    pub ident: u16,
    /// IPv4 type of service: DSCP and ECN.
    pub tos: u8,
    /// IPv4 time to live (RFC 9293 MUST-49).
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
        ETHERNET_BYTES + IPV4_BYTES + TCP_BYTES + self.options.wire_bytes()
    }
}

/// Writes Ethernet, IPv4 (checksum right) and TCP headers (checksum field 0) for a payload of `payload_len` bytes; returns
/// the payload's offset. `None`: headers and payload do not fit `out`, or the packet would be longer than 65,535 bytes.
#[inline]
pub fn emit(header: &Header, payload_len: usize, out: &mut [u8]) -> Option<usize> {
    let payload_offset = header.wire_bytes();
    let total_len = u16::try_from((payload_offset - ETHERNET_BYTES).checked_add(payload_len)?).ok()?;
    if out.len() < ETHERNET_BYTES + usize::from(total_len) {
        return None;
    }
    let ethernet =
        Ethernet { destination: header.destination_mac, source: header.source_mac, ethertype: ETHERTYPE_IPV4.into() };
    let mut ip = Ipv4 {
        version_ihl: 0x45,
        tos: header.tos,
        total_len: total_len.into(),
        ident: header.ident.into(),
        fragment: DONT_FRAGMENT.into(),
        ttl: header.ttl,
        protocol: PROTOCOL_TCP,
        checksum: [0; 2],
        source: header.source.octets(),
        destination: header.destination.octets(),
    };
    ip.checksum = checksum::finish(checksum::add(0, ip.as_bytes()));
    let tcp_len = payload_offset - ETHERNET_BYTES - IPV4_BYTES;
    let tcp = Tcp {
        source_port: header.source_port.into(),
        destination_port: header.destination_port.into(),
        seq: header.seq.into(),
        ack: header.ack.into(),
        data_offset: (tcp_len as u8 / 4) << 4,
        flags: header.flags,
        window: header.window.into(),
        checksum: [0; 2],
        urgent: header.urgent.into(),
    };
    let (headers, options) = out[..payload_offset].split_at_mut(ETHERNET_BYTES + IPV4_BYTES + TCP_BYTES);
    headers[..ETHERNET_BYTES].copy_from_slice(ethernet.as_bytes());
    headers[ETHERNET_BYTES..ETHERNET_BYTES + IPV4_BYTES].copy_from_slice(ip.as_bytes());
    headers[ETHERNET_BYTES + IPV4_BYTES..].copy_from_slice(tcp.as_bytes());
    header.options.write(options);
    Some(payload_offset)
}

/// The pseudo-header's sum, the TCP header's offset and the packet's end, of a frame made by [`emit`].
#[inline]
fn locate(frame: &[u8]) -> Option<(u64, usize, usize)> {
    let (ip, _) = Ipv4::ref_from_prefix(frame.get(ETHERNET_BYTES..)?).ok()?;
    let ip_len = u16::from(ip.version_ihl & 0xf) * 4;
    let tcp_len = ip.total_len.get().checked_sub(ip_len)?;
    let start = ETHERNET_BYTES + usize::from(ip_len);
    let end = start + usize::from(tcp_len);
    (usize::from(tcp_len) >= TCP_BYTES && end <= frame.len())
        .then(|| (checksum::pseudo_header(ip.source, ip.destination, tcp_len), start, end))
}

/// Computes and stores the TCP checksum of a complete frame made by [`emit`] (payload in place). The field's old content
/// does not matter. A frame that [`emit`] cannot have made is left alone.
#[inline]
pub fn fill_checksum(frame: &mut [u8]) {
    let Some((pseudo, start, end)) = locate(frame) else { return };
    let field = start + TCP_CHECKSUM_OFFSET;
    frame[field..field + 2].fill(0);
    let sum = checksum::finish(checksum::add(pseudo, &frame[start..end]));
    frame[field..field + 2].copy_from_slice(&sum);
}

/// Stores only the pseudo-header sum and returns the [`TxOffload`] for a port that computes the rest. `gso_bytes` is left 0
/// for the caller.
#[inline]
pub fn partial_checksum(frame: &mut [u8]) -> TxOffload {
    let Some((pseudo, start, _)) = locate(frame) else { return TxOffload::default() };
    let field = start + TCP_CHECKSUM_OFFSET;
    frame[field..field + 2].copy_from_slice(&checksum::fold(pseudo).to_ne_bytes());
    TxOffload {
        gso_bytes: 0,
        checksum_start: start as u16,
        checksum_offset: TCP_CHECKSUM_OFFSET as u16,
        checksum_needed: true,
    }
}
