//! The two ends of a captured frame, also of one that was cut.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use towpath_wire::ip::locate;

const TCP: u8 = 6;

/// Source and destination of a TCP segment; `None` = it is none, or a later fragment.
pub fn ends(frame: &[u8]) -> Option<[SocketAddr; 2]> {
    let (at, version) = locate(frame)?;
    let ip = &frame[at..];
    let (from, to, tcp): (IpAddr, IpAddr, usize) = if version == 4 {
        let fragment = u16::from_be_bytes([ip[6], ip[7]]) & 0x1fff;
        if ip[9] != TCP || fragment != 0 {
            return None;
        }
        let address = |at: usize| Ipv4Addr::new(ip[at], ip[at + 1], ip[at + 2], ip[at + 3]);
        (address(12).into(), address(16).into(), usize::from(ip[0] & 15) * 4)
    } else {
        if ip[6] != TCP {
            return None;
        }
        let address = |at: usize| ip.get(at..)?.first_chunk::<16>().map(|octets| Ipv6Addr::from(*octets));
        (address(8)?.into(), address(24)?.into(), 40)
    };
    let port = |at: usize| ip.get(at..)?.first_chunk().map(|port| u16::from_be_bytes(*port));
    Some([SocketAddr::new(from, port(tcp)?), SocketAddr::new(to, port(tcp + 2)?)])
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
                }
            });
        }
    }
}
