//! The IP packet in a frame, for simulated switches and relays that mark or cut packets without parsing TCP.

use crate::{ETHERNET_BYTES, checksum};

const VLAN: [u8; 2] = [0x81, 0x00];
const IPV4: [u8; 2] = [0x08, 0x00];
const IPV6: [u8; 2] = [0x86, 0xdd];

/// Offset of the IP header, after one VLAN tag if there is one, and its version.
/// `None` = EtherType and header do not agree, or the fixed header (20 or 40 bytes) is incomplete.
pub fn locate(frame: &[u8]) -> Option<(usize, u8)> {
    let kind = |at: usize| frame.get(at..at + 2).map(|kind| [kind[0], kind[1]]);
    let (at, kind) = match kind(12)? {
        VLAN => (ETHERNET_BYTES + 4, kind(16)?),
        other => (ETHERNET_BYTES, other),
    };
    let version = frame.get(at)? >> 4;
    let fixed = match (kind, version) {
        (IPV4, 4) => 20,
        (IPV6, 6) => 40,
        _ => return None,
    };
    (frame.len() >= at + fixed).then_some((at, version))
}

/// Sets CE on an ECN-capable packet (RFC 3168 §5). False = not ECN-capable, and unchanged. True also if it was marked
/// before.
pub fn mark_ce(frame: &mut [u8]) -> bool {
    let Some((at, version)) = locate(frame) else { return false };
    // The IPv6 traffic class spans two bytes. Its low two bits are in the upper half of the second.
    let mask = if version == 4 { 0x03 } else { 0x30 };
    if frame[at + 1] & mask == 0 {
        return false;
    }
    frame[at + 1] |= mask;
    if version == 4 {
        fill_header_checksum(frame, at);
    }
    true
}

/// Recomputes the header checksum of the IPv4 packet at `at`. A truncated header is left alone.
pub fn fill_header_checksum(frame: &mut [u8], at: usize) {
    let Some(first) = frame.get(at) else { return };
    let end = at + usize::from(first & 15) * 4;
    if end < at + 20 || end > frame.len() {
        return;
    }
    frame[at + 10..at + 12].fill(0);
    let sum = checksum::finish(checksum::add(0, &frame[at..end]));
    frame[at + 10..at + 12].copy_from_slice(&sum);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ipv4(ecn: u8) -> Vec<u8> {
        let mut frame = vec![2; 12];
        frame.extend([8, 0, 0x45, ecn, 0, 20, 0, 1, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        fill_header_checksum(&mut frame, 14);
        frame
    }

    #[test]
    fn only_ecn_capable_packets_are_marked_and_the_header_stays_right() {
        for ecn in [1, 2, 3] {
            let mut frame = ipv4(ecn);
            assert!(mark_ce(&mut frame));
            assert_eq!(frame[15], 3);
            assert!(checksum::right(checksum::add(0, &frame[14..])));
        }
        let mut frame = ipv4(0);
        assert!(!mark_ce(&mut frame));
        assert_eq!(frame, ipv4(0));
    }

    #[test]
    fn what_is_no_ip_packet_is_left_alone() {
        let whole = ipv4(2);
        for len in 0..whole.len() {
            assert!(!mark_ce(&mut whole[..len].to_vec()), "{len} bytes");
        }
        let mut forged = ipv4(2);
        forged[14] = 0x65;
        assert!(!mark_ce(&mut forged), "version 6 behind IPv4's EtherType");
    }
}
