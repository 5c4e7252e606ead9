//! The records in the memory of a capture: frames, and names of connections.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Bytes of a record's header.
pub const HEADER_BYTES: usize = 24;
/// The place of frames that were made for a direct connection.
pub const DIRECT: u16 = 0xffff;
/// The place of frames of the kernel.
pub const KERNEL: u16 = 0xfffe;

/// The kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A frame.
    Frame {
        /// Sent by this host.
        outgoing: bool,
    },
    /// A [`Name`].
    Name,
}

/// The header of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Its kind.
    pub kind: Kind,
    /// Where: the number of the stack's port, [`DIRECT`] or [`KERNEL`].
    pub place: u16,
    /// When, ns since 1970.
    pub time_ns: u64,
    /// The frame's length on the wire.
    pub length: u32,
}

/// The record at this place of some bytes: its header, and what follows. `None`: it is not whole.
pub fn at(bytes: &[u8], place: usize) -> Option<(Header, &[u8])> {
    let (header, behind) = bytes.get(place..)?.split_first_chunk()?;
    let (header, length) = Header::decode(header);
    Some((header, behind.get(..length as usize)?))
}

impl Header {
    /// The header of a record of this many bytes.
    pub fn encode(&self, bytes: usize) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        let kind = match self.kind {
            Kind::Frame { outgoing } => u16::from(outgoing),
            Kind::Name => 2,
        };
        out[..4].copy_from_slice(&(bytes as u32).to_ne_bytes());
        out[4..6].copy_from_slice(&kind.to_ne_bytes());
        out[6..8].copy_from_slice(&self.place.to_ne_bytes());
        out[8..16].copy_from_slice(&self.time_ns.to_ne_bytes());
        out[16..20].copy_from_slice(&self.length.to_ne_bytes());
        out
    }

    /// The header, and how many bytes follow it.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> (Self, u32) {
        let half = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        let word = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let long = |at: usize| std::array::from_fn(|i| bytes[at + i]);
        let kind = match half(4) {
            2 => Kind::Name,
            other => Kind::Frame { outgoing: other & 1 != 0 },
        };
        let header = Self { kind, place: half(6), time_ns: u64::from_ne_bytes(long(8)), length: word(16) };
        (header, word(0))
    }
}

/// The owner of one end of a connection. A listener's remote end is 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// The end.
    pub local: SocketAddr,
    /// The other end.
    pub remote: SocketAddr,
    /// Its process.
    pub pid: i32,
    /// Its user.
    pub uid: u32,
    /// Its program.
    pub program: String,
}

impl Name {
    /// The header of its record.
    pub const HEADER: Header = Header { kind: Kind::Name, place: 0, time_ns: 0, length: 0 };

    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64);
        for end in [self.local, self.remote] {
            let ip = match end.ip() {
                IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                IpAddr::V6(ip) => ip,
            };
            out.extend(ip.octets());
            out.extend(end.port().to_ne_bytes());
        }
        out.extend(self.pid.to_ne_bytes());
        out.extend(self.uid.to_ne_bytes());
        out.extend(self.program.as_bytes());
        out
    }

    /// Reads it back.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let end = |at: usize| {
            let ip: [u8; 16] = *bytes.get(at..)?.first_chunk()?;
            let port: [u8; 2] = *bytes.get(at + 16..)?.first_chunk()?;
            Some(SocketAddr::new(Ipv6Addr::from(ip).to_canonical(), u16::from_ne_bytes(port)))
        };
        Some(Self {
            local: end(0)?,
            remote: end(18)?,
            pid: i32::from_ne_bytes(*bytes.get(36..)?.first_chunk()?),
            uid: u32::from_ne_bytes(*bytes.get(40..)?.first_chunk()?),
            program: String::from_utf8_lossy(bytes.get(44..)?).into_owned(),
        })
    }
}
