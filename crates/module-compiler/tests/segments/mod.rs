//! Segments of spliced connections, and what they become.

use towpath_rng::Rng;

pub const FIN: u8 = 1;
pub const SYN: u8 = 2;
pub const RST: u8 = 4;
pub const ACK: u8 = 16;

/// A connection as received segments name it: both addresses, of which IPv4 has four bytes, both ports, and IP's version.
pub type Connection = [u8; 40];

/// Is it over IPv6?
pub fn is_v6(connection: &Connection) -> bool {
    connection[36] == 6
}

/// The addresses as they stand in packets.
pub fn addresses(connection: &Connection) -> Vec<u8> {
    let bytes = if is_v6(connection) { 16 } else { 4 };
    [&connection[..bytes], &connection[16..16 + bytes]].concat()
}

/// Its bytes but for the version.
pub fn named(connection: &Connection) -> Vec<u8> {
    [&addresses(connection)[..], &connection[32..36]].concat()
}

/// `struct towpath_splice`, without what the module counts.
#[derive(Clone, Copy)]
pub struct Splice {
    pub to: Connection,
    pub macs: [u8; 12],
    pub seq: u32,
    pub ack: u32,
    pub tsval: u32,
    pub tsecr: u32,
    pub left: u8,
    pub right: u8,
    pub tagged: bool,
    pub out: u32,
}

impl Splice {
    /// To a connection over the same version of IP.
    pub fn random(rng: &mut Rng, from: &Connection) -> Self {
        let (to, mut macs) = (connection(rng, is_v6(from)), [0; 12]);
        rng.fill(&mut macs);
        let out = [0, 1, 9, 70_000][rng.below(4) as usize];
        let shift = rng.below(15) as u8;
        let (left, right) = if rng.chance(500_000) { (shift, 0) } else { (0, shift) };
        let [seq, ack, tsval, tsecr] = std::array::from_fn(|_| number(rng));
        Self { to, macs, seq, ack, tsval, tsecr, left, right, tagged: false, out }
    }

    pub fn value(&self) -> Vec<u8> {
        let numbers = [self.seq, self.ack, self.tsval, self.tsecr].map(u32::to_ne_bytes).concat();
        let shifts = [self.left, self.right, 0, self.tagged.into()];
        [&self.to[..], &self.macs, &numbers, &shifts, &[0; 12], &self.out.to_ne_bytes(), &[0; 40]].concat()
    }
}

/// Any number, often one near where sums overflow.
pub fn number(rng: &mut Rng) -> u32 {
    [0, 1, 0xffff, 0x1_0000, u32::MAX, rng.next_u64() as u32][rng.below(6) as usize]
}

#[derive(Clone)]
pub enum Opt {
    Nop,
    Timestamps(u32, u32),
    Sack(Vec<u32>),
    /// Of this kind, with these bytes.
    Other(u8, Vec<u8>),
    /// No more options, but bytes.
    End(Vec<u8>),
}

impl Opt {
    pub fn bytes(&self) -> Vec<u8> {
        let numbers = |numbers: &[u32]| numbers.iter().flat_map(|number| number.to_be_bytes()).collect::<Vec<_>>();
        let (kind, body) = match self {
            Self::Nop => return vec![1],
            Self::End(rest) => return [&[0], &rest[..]].concat(),
            Self::Timestamps(value, echo) => (8, numbers(&[*value, *echo])),
            Self::Sack(edges) => (5, numbers(edges)),
            Self::Other(kind, body) => (*kind, body.clone()),
        };
        [&[kind, body.len() as u8 + 2], &body[..]].concat()
    }

    pub fn random(rng: &mut Rng) -> Self {
        let some = |rng: &mut Rng, most| {
            let mut bytes = vec![0; rng.below(most) as usize];
            rng.fill(&mut bytes);
            bytes
        };
        match rng.below(12) {
            0..=3 => Self::Nop,
            4..=6 => Self::Timestamps(number(rng), number(rng)),
            7..=9 => Self::Sack((0..2 * rng.below(5)).map(|_| number(rng)).collect()),
            10 => Self::Other([2, 3, 4, 19, 254][rng.below(5) as usize], some(rng, 12)),
            _ => Self::End(some(rng, 9)),
        }
    }
}

/// A segment, and the parts of its frame that stay as they are.
#[derive(Clone)]
pub struct Segment {
    pub macs: [u8; 12],
    pub connection: Connection,
    pub rest_of_ip: [u8; 3],
    pub seq: u32,
    pub ack: u32,
    pub flags: u8,
    pub window: u16,
    pub urgent: [u8; 2],
    pub options: Vec<Opt>,
    pub payload: Vec<u8>,
    pub padding: usize,
}

/// The Internet checksum as RFC 1071 defines it.
pub fn checksum(pieces: &[&[u8]]) -> [u8; 2] {
    let bytes = pieces.concat();
    let words = bytes.chunks(2).map(|pair| u64::from(pair[0]) << 8 | u64::from(*pair.get(1).unwrap_or(&0)));
    let mut sum: u64 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (!sum as u16).to_be_bytes()
}

impl Segment {
    pub fn random(rng: &mut Rng, connection: Connection, longest: u64) -> Self {
        let (mut options, mut bytes) = (Vec::new(), 0);
        while rng.chance(800_000) {
            let option = Opt::random(rng);
            bytes += option.bytes().len();
            if bytes > 40 {
                break;
            }
            let ends = matches!(option, Opt::End(_));
            options.push(option);
            if ends {
                break;
            }
        }
        let mut macs = [0; 12];
        rng.fill(&mut macs);
        let mut payload = vec![0; rng.below(longest) as usize];
        rng.fill(&mut payload);
        let flags = if rng.chance(100_000) { 0 } else { ACK } | [0, 0, 0, FIN, RST, 8, 32][rng.below(7) as usize];
        Self {
            macs,
            connection,
            rest_of_ip: [rng.below(256) as u8, rng.below(256) as u8, 2 + rng.below(254) as u8],
            seq: number(rng),
            ack: number(rng),
            flags,
            window: number(rng) as u16,
            urgent: [0, rng.below(9) as u8],
            options,
            payload,
            padding: rng.below(7) as usize,
        }
    }

    /// Its frame, with whole checksums.
    pub fn bytes(&self) -> Vec<u8> {
        let mut options: Vec<u8> = self.options.iter().flat_map(Opt::bytes).collect();
        options.resize(options.len().next_multiple_of(4), 1);
        let tcp_length = 20 + options.len() + self.payload.len();
        let (length, [tos, ident, ttl]) = (tcp_length as u16, self.rest_of_ip);
        let (addresses, ports) = (addresses(&self.connection), &self.connection[32..36]);
        let ip = if is_v6(&self.connection) {
            let [high, low] = length.to_be_bytes();
            [&[0x60 | tos >> 4, tos << 4, ident, tos, high, low, 6, ttl], &addresses[..]].concat()
        } else {
            let [high, low] = (20 + length).to_be_bytes();
            let mut ip = [&[0x45, tos, high, low, 0, ident, 0x40, 0, ttl, 6, 0, 0], &addresses[..]].concat();
            let sum = checksum(&[&ip]);
            ip[10..12].copy_from_slice(&sum);
            ip
        };
        let numbers = [self.seq, self.ack].map(u32::to_be_bytes).concat();
        let words = [(5 + options.len() as u8 / 4) << 4, self.flags];
        let mut tcp = [ports, &numbers, &words, &self.window.to_be_bytes(), &[0; 2], &self.urgent, &options].concat();
        let sum = checksum(&[&addresses, &[0, 6], &length.to_be_bytes(), &tcp, &self.payload]);
        tcp[16..18].copy_from_slice(&sum);
        let kind: [u8; 2] = if is_v6(&self.connection) { [0x86, 0xdd] } else { [8, 0] };
        [&self.macs[..], &kind, &ip[..], &tcp, &self.payload, &vec![0xa5; self.padding]].concat()
    }

    /// Its frame with the tag of this VLAN.
    pub fn tagged(&self, vlan: u16) -> Vec<u8> {
        let mut frame = self.bytes();
        frame.splice(12..12, [0x8100, vlan].map(u16::to_be_bytes).concat());
        frame
    }

    /// Where its TCP header begins.
    pub fn tcp_at(&self) -> usize {
        if is_v6(&self.connection) { 54 } else { 34 }
    }

    /// What goes on.
    pub fn spliced(&self, by: &Splice) -> Self {
        let mut sent = by.to;
        sent[..32].rotate_left(16);
        sent[32..36].rotate_left(2);
        let acknowledges = self.flags & ACK != 0;
        let option = |option: &Opt| match option {
            Opt::Timestamps(value, echo) => {
                let by_echo = if acknowledges && *echo != 0 { by.tsecr } else { 0 };
                Opt::Timestamps(value.wrapping_add(by.tsval), echo.wrapping_add(by_echo))
            }
            Opt::Sack(edges) => Opt::Sack(edges.iter().map(|edge| edge.wrapping_add(by.ack)).collect()),
            other => other.clone(),
        };
        let [tos, ident, ttl] = self.rest_of_ip;
        Self {
            macs: by.macs,
            connection: sent,
            rest_of_ip: [tos, ident, ttl - 1],
            seq: self.seq.wrapping_add(by.seq),
            ack: self.ack.wrapping_add(if acknowledges { by.ack } else { 0 }),
            window: (u64::from(self.window) << by.left >> by.right).min(0xffff) as u16,
            options: self.options.iter().map(option).collect(),
            ..self.clone()
        }
    }
}

pub fn connection(rng: &mut Rng, v6: bool) -> Connection {
    let mut connection = [0; 40];
    rng.fill(&mut connection);
    if !v6 {
        connection[4..16].fill(0);
        connection[20..32].fill(0);
    }
    connection[36..].copy_from_slice(&(if v6 { 6u32 } else { 4 }).to_ne_bytes());
    connection
}

/// A connection over the one or the other, and what becomes of its segments.
pub fn spliced(rng: &mut Rng, v6: bool) -> (Connection, Splice) {
    let key = connection(rng, v6);
    (key, Splice::random(rng, &key))
}
