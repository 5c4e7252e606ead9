//! Operations on the bytes of a frame: filling checksums, cutting super-frames, flipping bits.

use towpath_rng::Rng;
use towpath_wire::{ETHERNET_BYTES, checksum, ip};

const VLAN: [u8; 2] = [0x81, 0x00];
const TCP: u8 = 6;
const UDP: u8 = 17;
const FIN_PSH: u8 = 0x01 | 0x08;
const CWR: u8 = 0x80;

/// Work that is left to a device: a partial checksum, or a super-frame to be cut (`struct virtio_net_hdr`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unfinished {
    /// Start of the sum, and offset of its field from there; `None` = the checksum is complete.
    pub checksum: Option<(u16, u16)>,
    /// Payload bytes per frame after cutting; 0 = not a super-frame.
    pub segment_bytes: u16,
}

/// Flips one to three different bits of one 16-bit word after the Ethernet header, so that the one's complement sum
/// always changes. False = there is no such word.
pub fn flip_bits(frame: &mut [u8], rng: &mut Rng) -> bool {
    let words = frame.len().saturating_sub(ETHERNET_BYTES) / 2;
    if words == 0 {
        return false;
    }
    let at = ETHERNET_BYTES + rng.below(words as u64) as usize * 2;
    let mut mask = 1u16 << rng.below(16);
    for _ in 0..rng.below(3) {
        mask |= 1 << rng.below(16);
    }
    frame[at] ^= (mask >> 8) as u8;
    frame[at + 1] ^= mask as u8;
    true
}

/// Passes the frame to `out` as a wire would carry it: with its checksum, and cut if it is a super-frame.
/// False = a super-frame of a protocol that cannot be cut.
pub fn finish(frame: &mut [u8], unfinished: Unfinished, mut out: impl FnMut(&[u8])) -> bool {
    if unfinished.segment_bytes > 0 {
        return cut(frame, usize::from(unfinished.segment_bytes), out).is_some();
    }
    if let Some((start, field)) = unfinished.checksum {
        fill(frame, start.into(), field.into());
    }
    out(frame);
    true
}

/// Completes a checksum whose field holds the pseudo-header's sum (as `skb_checksum_help` does).
fn fill(frame: &mut [u8], start: usize, field: usize) {
    if start + field + 2 > frame.len() {
        return;
    }
    let mut sum = checksum::finish(checksum::add(0, &frame[start..]));
    // In UDP a zero checksum means none (RFC 768).
    if field == 6 && sum == [0, 0] {
        sum = [0xff, 0xff];
    }
    frame[start + field..start + field + 2].copy_from_slice(&sum);
}

/// Offsets in a super-frame.
struct Super {
    /// Start of the IP header.
    ip: usize,
    version: u8,
    protocol: u8,
    /// Start of the TCP or UDP header.
    transport: usize,
    /// Start of the payload.
    payload: usize,
}

fn take_apart(frame: &[u8]) -> Option<Super> {
    let (ip, version) = ip::locate(frame)?;
    let (protocol, transport) = match version {
        4 => (*frame.get(ip + 9)?, ip + usize::from(frame[ip] & 15) * 4),
        _ => (*frame.get(ip + 6)?, ip + 40),
    };
    let payload = match protocol {
        TCP => transport + usize::from(frame.get(transport + 12)? >> 4) * 4,
        UDP => transport + 8,
        _ => return None,
    };
    let minimum = if protocol == TCP { 20 } else { 8 };
    (payload >= transport + minimum && transport >= ip + 20 && payload < frame.len()).then_some(Super {
        ip,
        version,
        protocol,
        transport,
        payload,
    })
}

fn cut(frame: &[u8], segment_bytes: usize, mut out: impl FnMut(&[u8])) -> Option<()> {
    let apart = take_apart(frame)?;
    let (head, payload) = frame.split_at(apart.payload);
    let mut piece = Vec::with_capacity(head.len() + segment_bytes);
    let pieces = payload.len().div_ceil(segment_bytes);
    for (index, chunk) in payload.chunks(segment_bytes).enumerate() {
        piece.clear();
        piece.extend_from_slice(head);
        piece.extend_from_slice(chunk);
        piece_headers(&mut piece, &apart, index, index * segment_bytes, index + 1 == pieces);
        out(&piece);
    }
    Some(())
}

/// Corrects lengths, identification, sequence number, flags and checksums of the `index`-th piece. Its payload starts
/// at `offset` of the super-frame's.
fn piece_headers(piece: &mut [u8], apart: &Super, index: usize, offset: usize, last: bool) {
    let &Super { ip: network, version, protocol, transport, .. } = apart;
    let length = (piece.len() - transport) as u16;
    if version == 4 {
        let total = (piece.len() - network) as u16;
        piece[network + 2..network + 4].copy_from_slice(&total.to_be_bytes());
        let id = u16::from_be_bytes([piece[network + 4], piece[network + 5]]).wrapping_add(index as u16);
        piece[network + 4..network + 6].copy_from_slice(&id.to_be_bytes());
        ip::fill_header_checksum(piece, network);
    } else {
        let payload = (piece.len() - network - 40) as u16;
        piece[network + 4..network + 6].copy_from_slice(&payload.to_be_bytes());
    }
    let field = if protocol == TCP {
        let sequence = &mut piece[transport + 4..transport + 8];
        let first = u32::from_be_bytes([sequence[0], sequence[1], sequence[2], sequence[3]]);
        sequence.copy_from_slice(&first.wrapping_add(offset as u32).to_be_bytes());
        if !last {
            piece[transport + 13] &= !FIN_PSH;
        }
        if index > 0 {
            piece[transport + 13] &= !CWR;
        }
        16
    } else {
        piece[transport + 4..transport + 6].copy_from_slice(&length.to_be_bytes());
        6
    };
    let addresses = if version == 4 { network + 12..network + 20 } else { network + 8..network + 40 };
    let mut pseudo = checksum::add(0, &piece[addresses]);
    pseudo = checksum::add(pseudo, &[0, protocol]);
    pseudo = checksum::add(pseudo, &length.to_be_bytes());
    piece[transport + field..transport + field + 2].fill(0);
    let folded = checksum::fold(pseudo).to_ne_bytes();
    piece[transport + field..transport + field + 2].copy_from_slice(&folded);
    fill(piece, transport, field);
}

/// Puts back a VLAN tag that the kernel has removed from the frame.
pub fn insert_tag(frame: &mut Vec<u8>, tag: u16) {
    if frame.len() < 12 {
        return;
    }
    let tag = tag.to_be_bytes();
    frame.splice(12..12, [VLAN[0], VLAN[1], tag[0], tag[1]]);
}

#[cfg(test)]
#[path = "frame_tests.rs"]
mod tests;
