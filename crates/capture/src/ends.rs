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

/// Both addresses and ports of such a segment as they stand in the frame, one behind the other. `None`: there is something
/// between them, too.
pub fn key(frame: &[u8]) -> Option<&[u8]> {
    match segment(frame)? {
        Segment { ip, version: 4, tcp: 20 } => ip.get(12..24),
        Segment { ip, version: 6, tcp: 40 } => ip.get(8..44),
        _ => None,
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
                    assert_eq!(key(&frame[..length]).is_some(), length >= needed, "{length} bytes");
                }
            });
        }
    }
}
