//! A connection record as bytes: a magic word, the version, the length of the fields, then the fields. Each field has
//! a number and a length, little-endian. Readers skip unknown fields and give absent ones their defaults. The version
//! changes only with a field that every reader must understand.

use super::fields::{ConnectionRecord, Invalid, MAX_QUEUE_BYTES, Queue, Settings, Window};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::time::Duration;

/// The first bytes of a record.
const MAGIC: [u8; 4] = *b"TwPc";
/// The version written. Readers refuse later ones.
pub const VERSION: u16 = 1;
/// Bytes of the length of all fields.
const LENGTH_BYTES: usize = 4;
/// Bytes of a field's number and length.
const HEAD: usize = 6;

/// Numbers of the fields. A number is never reused.
mod field {
    pub const LOCAL: u16 = 1;
    pub const REMOTE: u16 = 2;
    pub const SEND: u16 = 3;
    pub const SENT: u16 = 4;
    pub const RECEIVE: u16 = 5;
    pub const WINDOW: u16 = 6;
    pub const MSS: u16 = 7;
    pub const SCALE: u16 = 8;
    pub const SACK: u16 = 9;
    pub const TIMESTAMP: u16 = 10;
    pub const NO_DELAY: u16 = 32;
    pub const CORKED: u16 = 33;
    pub const URGENT_INLINE: u16 = 34;
    pub const KEEPALIVE: u16 = 35;
    pub const USER_TIMEOUT: u16 = 36;
    pub const LINGER: u16 = 37;
    pub const BUFFERS: u16 = 38;
    pub const TRAFFIC_CLASS: u16 = 39;
    pub const HOPS: u16 = 40;
    pub const CONGESTION: u16 = 41;
}

/// Why bytes are no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The magic word is missing.
    #[error("not a connection record")]
    NotOne,
    /// A later version has written it.
    #[error("a connection record of version {0}; this program knows {VERSION}")]
    Version(u16),
    /// The bytes end within the record, or go on behind it.
    #[error("a connection record that is cut off or longer than it says")]
    Short,
    /// A field's length does not fit its type.
    #[error("field {0} of a connection record has {1} bytes")]
    Length(u16, usize),
    /// A mandatory field is missing.
    #[error("a connection record without field {0}")]
    Missing(u16),
    /// The values contradict each other.
    #[error("a connection record that cannot be: {0}")]
    Invalid(#[from] Invalid),
}

impl ConnectionRecord {
    /// The record as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer(Vec::with_capacity(256 + self.send.bytes.len() + self.receive.bytes.len()));
        out.0.extend(MAGIC);
        out.0.extend(VERSION.to_le_bytes());
        out.0.extend([0; LENGTH_BYTES]);
        out.put(field::LOCAL, &[&address(self.local)]);
        out.put(field::REMOTE, &[&address(self.remote)]);
        out.put(field::SEND, &[&self.send.first.to_le_bytes(), &self.send.bytes]);
        out.put(field::SENT, &[&self.sent.to_le_bytes()]);
        out.put(field::RECEIVE, &[&self.receive.first.to_le_bytes(), &self.receive.bytes]);
        let Window { update, send, largest, receive, announced_at } = self.window;
        out.words(field::WINDOW, &[update, send, largest, receive, announced_at]);
        out.put(field::MSS, &[&self.mss.to_le_bytes()]);
        if let Some((send, receive)) = self.scale {
            out.put(field::SCALE, &[&[send, receive]]);
        }
        out.flag(field::SACK, self.sack);
        if let Some(value) = self.timestamp {
            out.words(field::TIMESTAMP, &[value]);
        }
        out.settings(&self.settings);
        let fields = (out.0.len() - MAGIC.len() - 2 - LENGTH_BYTES) as u32;
        out.0[MAGIC.len() + 2..][..LENGTH_BYTES].copy_from_slice(&fields.to_le_bytes());
        out.0
    }

    /// Reads a record.
    ///
    /// # Errors
    /// If the bytes are no record, or one that describes no possible connection.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let rest = bytes.strip_prefix(&MAGIC).ok_or(DecodeError::NotOne)?;
        let (version, rest) = rest.split_first_chunk().ok_or(DecodeError::Short)?;
        let version = u16::from_le_bytes(*version);
        if version == 0 || version > VERSION {
            return Err(DecodeError::Version(version));
        }
        let (fields, rest) = rest.split_first_chunk().ok_or(DecodeError::Short)?;
        if u32::from_le_bytes(*fields) as usize != rest.len() {
            return Err(DecodeError::Short);
        }
        let record = read(rest)?;
        record.check()?;
        Ok(record)
    }
}

fn address(end: SocketAddr) -> Vec<u8> {
    let mut out = match end.ip() {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    out.extend(end.port().to_le_bytes());
    if let SocketAddr::V6(end) = end {
        out.extend(end.scope_id().to_le_bytes());
    }
    out
}

struct Writer(Vec<u8>);

impl Writer {
    fn put(&mut self, number: u16, parts: &[&[u8]]) {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        self.0.extend(number.to_le_bytes());
        self.0.extend((len as u32).to_le_bytes());
        parts.iter().for_each(|part| self.0.extend(*part));
    }

    fn words(&mut self, number: u16, words: &[u32]) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.put(number, &[&bytes]);
    }

    fn flag(&mut self, number: u16, on: bool) {
        if on {
            self.put(number, &[]);
        }
    }

    fn settings(&mut self, settings: &Settings) {
        self.flag(field::NO_DELAY, settings.no_delay);
        self.flag(field::CORKED, settings.corked);
        self.flag(field::URGENT_INLINE, settings.urgent_inline);
        if let Some((idle, interval, probes)) = settings.keepalive {
            self.words(field::KEEPALIVE, &[milliseconds(idle), milliseconds(interval), probes]);
        }
        if let Some(time) = settings.user_timeout {
            self.words(field::USER_TIMEOUT, &[milliseconds(time)]);
        }
        if let Some(time) = settings.linger {
            self.words(field::LINGER, &[milliseconds(time)]);
        }
        if let Some((send, receive)) = settings.buffers {
            self.words(field::BUFFERS, &[send, receive]);
        }
        if let Some(class) = settings.traffic_class {
            self.put(field::TRAFFIC_CLASS, &[&[class]]);
        }
        if let Some(hops) = settings.hops {
            self.put(field::HOPS, &[&[hops]]);
        }
        if let Some(name) = &settings.congestion {
            self.put(field::CONGESTION, &[name.as_bytes()]);
        }
    }
}

fn milliseconds(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}

/// The fields read until now.
#[derive(Default)]
struct Fields {
    local: Option<SocketAddr>,
    remote: Option<SocketAddr>,
    send: Option<Queue>,
    sent: Option<u32>,
    receive: Option<Queue>,
    window: Option<Window>,
    mss: Option<u16>,
    scale: Option<(u8, u8)>,
    sack: bool,
    timestamp: Option<u32>,
    settings: Settings,
}

fn read(mut rest: &[u8]) -> Result<ConnectionRecord, DecodeError> {
    let mut fields = Fields::default();
    while !rest.is_empty() {
        let (head, after) = rest.split_first_chunk::<HEAD>().ok_or(DecodeError::Short)?;
        let [n0, n1, l0, l1, l2, l3] = *head;
        let (number, len) = (u16::from_le_bytes([n0, n1]), u32::from_le_bytes([l0, l1, l2, l3]) as usize);
        let (value, after) = after.split_at_checked(len).ok_or(DecodeError::Short)?;
        if !fields.take(number, value)? {
            fields.settings.take(number, value)?;
        }
        rest = after;
    }
    let need = DecodeError::Missing;
    Ok(ConnectionRecord {
        local: fields.local.ok_or(need(field::LOCAL))?,
        remote: fields.remote.ok_or(need(field::REMOTE))?,
        send: fields.send.ok_or(need(field::SEND))?,
        sent: fields.sent.ok_or(need(field::SENT))?,
        receive: fields.receive.ok_or(need(field::RECEIVE))?,
        window: fields.window.ok_or(need(field::WINDOW))?,
        mss: fields.mss.ok_or(need(field::MSS))?,
        scale: fields.scale,
        sack: fields.sack,
        timestamp: fields.timestamp,
        settings: fields.settings,
    })
}

impl Fields {
    /// Is it one of these?
    fn take(&mut self, number: u16, value: &[u8]) -> Result<bool, DecodeError> {
        let wrong = DecodeError::Length(number, value.len());
        match number {
            field::LOCAL => self.local = Some(end(value).ok_or(wrong)?),
            field::REMOTE => self.remote = Some(end(value).ok_or(wrong)?),
            field::SEND => self.send = Some(queue(value).ok_or(wrong)?),
            field::SENT => self.sent = Some(word(value).ok_or(wrong)?),
            field::RECEIVE => self.receive = Some(queue(value).ok_or(wrong)?),
            field::WINDOW => {
                let [update, send, largest, receive, announced_at] = words(value).ok_or(wrong)?;
                self.window = Some(Window { update, send, largest, receive, announced_at });
            }
            field::MSS => self.mss = Some(u16::from_le_bytes(value.try_into().map_err(|_| wrong)?)),
            field::SCALE => {
                let [send, receive] = value.try_into().map_err(|_| wrong)?;
                self.scale = Some((send, receive));
            }
            field::SACK => self.sack = true,
            field::TIMESTAMP => self.timestamp = Some(word(value).ok_or(wrong)?),
            _ => return Ok(false),
        }
        Ok(true)
    }
}

impl Settings {
    fn take(&mut self, number: u16, value: &[u8]) -> Result<(), DecodeError> {
        let wrong = DecodeError::Length(number, value.len());
        let time = |value: u32| Duration::from_millis(u64::from(value));
        match number {
            field::NO_DELAY => self.no_delay = true,
            field::CORKED => self.corked = true,
            field::URGENT_INLINE => self.urgent_inline = true,
            field::KEEPALIVE => {
                let [idle, interval, probes] = words(value).ok_or(wrong)?;
                self.keepalive = Some((time(idle), time(interval), probes));
            }
            field::USER_TIMEOUT => self.user_timeout = Some(time(word(value).ok_or(wrong)?)),
            field::LINGER => self.linger = Some(time(word(value).ok_or(wrong)?)),
            field::BUFFERS => {
                let [send, receive] = words(value).ok_or(wrong)?;
                self.buffers = Some((send, receive));
            }
            field::TRAFFIC_CLASS => self.traffic_class = Some(byte(value).ok_or(wrong)?),
            field::HOPS => self.hops = Some(byte(value).ok_or(wrong)?),
            field::CONGESTION => {
                self.congestion = Some(String::from_utf8(value.to_vec()).map_err(|_| Invalid::Congestion)?);
            }
            // A later writer's field. The version would say if it had to be understood.
            _ => {}
        }
        Ok(())
    }
}

fn byte(value: &[u8]) -> Option<u8> {
    <[u8; 1]>::try_from(value).ok().map(|[byte]| byte)
}

fn word(value: &[u8]) -> Option<u32> {
    words(value).map(|[word]| word)
}

fn words<const N: usize>(value: &[u8]) -> Option<[u32; N]> {
    let mut out = [0; N];
    if value.len() != N * 4 {
        return None;
    }
    for (word, bytes) in out.iter_mut().zip(value.chunks_exact(4)) {
        *word = u32::from_le_bytes(bytes.try_into().ok()?);
    }
    Some(out)
}

fn queue(value: &[u8]) -> Option<Queue> {
    let (first, bytes) = value.split_first_chunk::<4>()?;
    (bytes.len() <= MAX_QUEUE_BYTES).then(|| Queue { first: u32::from_le_bytes(*first), bytes: bytes.to_vec() })
}

fn end(value: &[u8]) -> Option<SocketAddr> {
    match value.len() {
        6 => {
            let (ip, port) = value.split_first_chunk::<4>()?;
            Some(SocketAddr::from((Ipv4Addr::from(*ip), u16::from_le_bytes(port.try_into().ok()?))))
        }
        22 => {
            let (ip, rest) = value.split_first_chunk::<16>()?;
            let (port, scope) = rest.split_first_chunk::<2>()?;
            let scope = u32::from_le_bytes(scope.try_into().ok()?);
            Some(SocketAddrV6::new(Ipv6Addr::from(*ip), u16::from_le_bytes(*port), 0, scope).into())
        }
        _ => None,
    }
}
