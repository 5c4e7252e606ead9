//! The two ends of a captured frame, also of one that was cut.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use towpath_wire::ip::locate;

const TCP: u8 = 6;

/// Source and destination of a TCP segment; `None` = it is none, or a later fragment.
pub fn ends(frame: &[u8]) -> Option<[SocketAddr; 2]> {
    let Segment { ip, version, tcp } = segment(frame)?;
    let (from, to): (IpAddr, IpAddr) = if version == 4 {
        let address = |at: usize| Ipv4Addr::new(ip[at], ip[at + 1], ip[at + 2], ip[at + 3]);
        (address(12).into(), address(16).into())
    } else {
        let address = |at: usize| ip.get(at..)?.first_chunk::<16>().map(|octets| Ipv6Addr::from(*octets));
        (address(8)?.into(), address(24)?.into())
    };
    let port = |at: usize| ip.get(at..)?.first_chunk().map(|port| u16::from_be_bytes(*port));
    Some([SocketAddr::new(from, port(tcp)?), SocketAddr::new(to, port(tcp + 2)?)])
}

/// Both addresses and ports of such a segment as they stand in the frame, one behind the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// Over IPv4.
    V4([u32; 3]),
    /// Over IPv6.
    V6([u32; 9]),
}

/// The key of such a segment. `None`: there is something between addresses and ports, too.
#[inline]
pub fn key(frame: &[u8]) -> Option<Key> {
    // The usual case. At constant places each field is one load.
    if let Some(headers) = frame.first_chunk::<38>()
        && headers[12..15] == [8, 0, 0x45]
        && headers[23] == TCP
        && headers[20] & 0x1f | headers[21] == 0
    {
        return Some(Key::V4(words(&headers[26..])));
    }
    other_key(frame)
}

#[cold]
fn other_key(frame: &[u8]) -> Option<Key> {
    match segment(frame)? {
        Segment { ip, version: 4, tcp: 20 } => Some(Key::V4(words(ip.get(12..24)?))),
        Segment { ip, version: 6, tcp: 40 } => Some(Key::V6(words(ip.get(8..44)?))),
        _ => None,
    }
}

#[inline]
fn words<const N: usize>(bytes: &[u8]) -> [u32; N] {
    let mut words = [0; N];
    words.iter_mut().zip(bytes.as_chunks().0).for_each(|(word, bytes)| *word = u32::from_ne_bytes(*bytes));
    words
}

impl Key {
    /// Of segments that go from one end to the other. `None`: their addresses are of two families.
    pub fn of(from: SocketAddr, to: SocketAddr) -> Option<Self> {
        let [high, low] = [from, to].map(|end| end.port().to_be_bytes());
        let ports = [high[0], high[1], low[0], low[1]];
        match (from.ip(), to.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                Some(Self::V4(words(&[&from.octets()[..], &to.octets(), &ports].concat())))
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                Some(Self::V6(words(&[&from.octets()[..], &to.octets(), &ports].concat())))
            }
            _ => None,
        }
    }
}

struct Segment<'a> {
    ip: &'a [u8],
    version: u8,
    /// Where its header of TCP begins.
    tcp: usize,
}

#[inline]
fn segment(frame: &[u8]) -> Option<Segment<'_>> {
    let (at, version) = locate(frame)?;
    let ip = &frame[at..];
    let (protocol, fragment, tcp) = match version {
        4 => (ip[9], u16::from_be_bytes([ip[6], ip[7]]) & 0x1fff, usize::from(ip[0] & 15) * 4),
        _ => (ip[6], 0, 40),
    };
    (protocol == TCP && fragment == 0).then_some(Segment { ip, version, tcp })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conversation::Conversation;

    #[test]
    fn the_ends_are_found_as_long_as_the_ports_are_there() {
        for (text, needed) in [(["10.0.0.1:4000", "10.0.0.2:80"], 38), (["[fd00::1]:4000", "[fd00::2]:80"], 58)] {
            let both = text.map(|end| end.parse().expect("an address"));
            Conversation::opens(both, |frame| {
                for length in 0..frame.len() {
                    let found = ends(&frame[..length]);
                    assert_eq!(found.is_some(), length >= needed, "{length} bytes");
                    assert!(found.is_none_or(|found| found == both || found == [both[1], both[0]]));
                    let key = key(&frame[..length]);
                    assert_eq!(key.is_some(), length >= needed, "{length} bytes");
                    assert_eq!(key, found.and_then(|[from, to]| Key::of(from, to)), "{length} bytes");
                }
            });
        }
    }
}
