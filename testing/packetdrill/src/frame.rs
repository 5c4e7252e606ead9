//! Frames as bytes, built from segments and parsed. This does not use `towpath-wire` on purpose, as that is under test.

use crate::notation::{ACK, Segment, TcpOption, URG};

/// The stack's address.
pub const LOCAL: [u8; 4] = [192, 168, 0, 1];
/// The peer's address.
pub const REMOTE: [u8; 4] = [192, 0, 2, 1];
/// The address of the router between them.
const ROUTER: [u8; 4] = [192, 168, 0, 254];
/// The stack's MAC address.
pub const LOCAL_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
/// The peer's MAC address.
pub const REMOTE_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];

const IP: usize = 14;
const TCP: usize = IP + 20;

/// A frame, in the wire's numbers.
#[derive(Clone, Debug)]
pub struct Frame {
    /// Source port.
    pub source: u16,
    /// Destination port.
    pub destination: u16,
    /// Its headers.
    pub segment: Segment,
    /// Its payload.
    pub payload: Vec<u8>,
}

/// Bytes of the option area.
pub fn option_bytes(options: &[TcpOption]) -> Vec<u8> {
    let mut out = Vec::new();
    for option in options {
        match option {
            TcpOption::End => out.push(0),
            TcpOption::Nop => out.push(1),
            TcpOption::Mss(mss) => {
                out.extend([2, 4]);
                out.extend(mss.to_be_bytes());
            }
            TcpOption::WindowScale(shift) => out.extend([3, 3, *shift]),
            TcpOption::SackPermitted => out.extend([4, 2]),
            TcpOption::Sack(blocks) => {
                out.extend([5, 2 + 8 * blocks.len() as u8]);
                for (from, to) in blocks {
                    out.extend(from.to_be_bytes());
                    out.extend(to.to_be_bytes());
                }
            }
            TcpOption::Timestamps { value, echo } => {
                out.extend([8, 10]);
                out.extend(value.to_be_bytes());
                out.extend(echo.to_be_bytes());
            }
            TcpOption::Other(kind, body) => {
                out.extend([*kind, 2 + body.len() as u8]);
                out.extend(body);
            }
            TcpOption::Raw(bytes) => out.extend(bytes),
        }
    }
    out
}

/// Builds a frame from the peer.
pub fn build(frame: &Frame) -> Vec<u8> {
    let s = &frame.segment;
    let options = option_bytes(s.options.as_deref().unwrap_or(&[]));
    let mut tcp = Vec::new();
    tcp.extend(frame.source.to_be_bytes());
    tcp.extend(frame.destination.to_be_bytes());
    tcp.extend(s.seq.to_be_bytes());
    tcp.extend(s.ack.unwrap_or(0).to_be_bytes());
    tcp.extend([(((20 + options.len()) / 4) as u8) << 4, s.flags]);
    tcp.extend(s.win.unwrap_or(0).to_be_bytes());
    tcp.extend([0, 0]);
    tcp.extend(s.urgent.unwrap_or(0).to_be_bytes());
    tcp.extend(&options);
    tcp.extend(&frame.payload);
    let sum = checksum(&[&pseudo_header(REMOTE, LOCAL, tcp.len()), &tcp]);
    tcp[16..18].copy_from_slice(&sum.to_be_bytes());
    packet(REMOTE, s.tos.unwrap_or(0), s.ttl.unwrap_or(64), 6, &tcp)
}

/// Builds an ICMP error from the router about a segment of the stack.
pub fn icmp(kind: u8, code: u8, mtu: u16, ports: (u16, u16), seq: u32, len: u32) -> Vec<u8> {
    let mut about = ip_header(LOCAL, REMOTE, 0, 63, 6, 20 + len as usize).to_vec();
    about.extend(ports.0.to_be_bytes());
    about.extend(ports.1.to_be_bytes());
    about.extend(seq.to_be_bytes());
    let mut icmp = vec![kind, code, 0, 0, 0, 0];
    icmp.extend(mtu.to_be_bytes());
    icmp.extend(about);
    let sum = checksum(&[&icmp]);
    icmp[2..4].copy_from_slice(&sum.to_be_bytes());
    packet(ROUTER, 0, 64, 1, &icmp)
}

fn packet(source: [u8; 4], tos: u8, ttl: u8, protocol: u8, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    out.extend(LOCAL_MAC);
    out.extend(REMOTE_MAC);
    out.extend([8, 0]);
    out.extend(ip_header(source, LOCAL, tos, ttl, protocol, body.len()));
    out.extend(body);
    out
}

fn ip_header(source: [u8; 4], destination: [u8; 4], tos: u8, ttl: u8, protocol: u8, body: usize) -> [u8; 20] {
    let mut ip = [0u8; 20];
    (ip[0], ip[1]) = (0x45, tos);
    ip[2..4].copy_from_slice(&((20 + body) as u16).to_be_bytes());
    ip[6] = 0x40;
    (ip[8], ip[9]) = (ttl, protocol);
    ip[12..16].copy_from_slice(&source);
    ip[16..20].copy_from_slice(&destination);
    let sum = checksum(&[&ip]);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    ip
}

fn pseudo_header(source: [u8; 4], destination: [u8; 4], len: usize) -> [u8; 12] {
    let mut out = [0u8; 12];
    out[..4].copy_from_slice(&source);
    out[4..8].copy_from_slice(&destination);
    out[9] = 6;
    out[10..].copy_from_slice(&(len as u16).to_be_bytes());
    out
}

/// The checksum of RFC 1071. Only the last part may have an odd length.
fn checksum(parts: &[&[u8]]) -> u16 {
    let words = parts.iter().flat_map(|part| part.chunks(2));
    let mut sum: u32 = words.map(|w| u32::from(w[0]) << 8 | u32::from(w.get(1).copied().unwrap_or(0))).sum();
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn long(bytes: &[u8], at: usize) -> u32 {
    u32::from(word(bytes, at)) << 16 | u32::from(word(bytes, at + 2))
}

/// Parses a frame of the stack strictly.
pub fn parse(frame: &[u8]) -> Result<Frame, String> {
    if frame.len() < TCP + 20 || frame[..6] != REMOTE_MAC || frame[6..12] != LOCAL_MAC || word(frame, 12) != 0x800 {
        return Err("not an IPv4 frame to the peer".into());
    }
    let total = usize::from(word(frame, IP + 2));
    if frame[IP] != 0x45 || frame[IP + 9] != 6 || total + IP != frame.len() {
        return Err("a wrong IPv4 header".into());
    }
    if frame[IP + 12..IP + 16] != LOCAL || frame[IP + 16..TCP] != REMOTE {
        return Err("wrong addresses".into());
    }
    if checksum(&[&frame[IP..TCP]]) != 0 {
        return Err("a wrong IPv4 checksum".into());
    }
    let tcp = &frame[TCP..];
    if checksum(&[&pseudo_header(LOCAL, REMOTE, tcp.len()), tcp]) != 0 {
        return Err("a wrong TCP checksum".into());
    }
    let header = usize::from(tcp[12] >> 4) * 4;
    if header < 20 || header > tcp.len() {
        return Err("a wrong data offset".into());
    }
    let (flags, payload) = (tcp[13], tcp[header..].to_vec());
    let segment = Segment {
        tos: Some(frame[IP + 1]),
        ecn_only: false,
        ttl: Some(frame[IP + 8]),
        flags,
        seq: long(tcp, 4),
        len: payload.len() as u32,
        ack: (flags & ACK != 0).then(|| long(tcp, 8)),
        win: Some(word(tcp, 14)),
        urgent: (flags & URG != 0).then(|| word(tcp, 18)),
        options: Some(parse_options(&tcp[20..header])?),
    };
    Ok(Frame { source: word(tcp, 0), destination: word(tcp, 2), segment, payload })
}

fn parse_options(mut bytes: &[u8]) -> Result<Vec<TcpOption>, String> {
    let mut list = Vec::new();
    while let Some(&kind) = bytes.first() {
        if kind < 2 {
            list.push(if kind == 0 { TcpOption::End } else { TcpOption::Nop });
            bytes = &bytes[1..];
            continue;
        }
        let len = usize::from(*bytes.get(1).ok_or("an option without length")?);
        let body = bytes.get(2..len).ok_or("an option of impossible length")?;
        list.push(match (kind, body.len()) {
            (2, 2) => TcpOption::Mss(word(body, 0)),
            (3, 1) => TcpOption::WindowScale(body[0]),
            (4, 0) => TcpOption::SackPermitted,
            (5, n) if n % 8 == 0 => {
                TcpOption::Sack(body.chunks(8).map(|block| (long(block, 0), long(block, 4))).collect())
            }
            (8, 8) => TcpOption::Timestamps { value: long(body, 0), echo: long(body, 4) },
            _ => TcpOption::Other(kind, body.to_vec()),
        });
        bytes = &bytes[len..];
    }
    Ok(list)
}
