#![allow(clippy::unwrap_used)]
use super::*;
use towpath_wire::checksum;
use towpath_wire::ip::{fill_header_checksum, mark_ce};

/// An IPv4 or IPv6 frame with a TCP (or UDP) header and `payload` bytes; the checksum field is not filled.
fn frame(version: u8, protocol: u8, payload: usize) -> (Vec<u8>, usize) {
    let mut frame = vec![2; 12];
    let transport = if protocol == TCP { 20 } else { 8 };
    if version == 4 {
        frame.extend([0x08, 0x00, 0x45, 0b10]);
        frame.extend(((20 + transport + payload) as u16).to_be_bytes());
        frame.extend([0x10, 0x00, 0x40, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        fill_header_checksum(&mut frame, ETHERNET_BYTES);
    } else {
        frame.extend([0x86, 0xdd, 0x60, 0x20, 0, 0]);
        frame.extend(((transport + payload) as u16).to_be_bytes());
        frame.extend([protocol, 64]);
        frame.extend([0xfd; 32]);
    }
    let at = frame.len();
    frame.extend([0x12, 0x34, 0x00, 0x50]);
    if protocol == TCP {
        frame.extend([0xff, 0xff, 0xff, 0x00, 0, 0, 0, 9, 0x50, 0x10 | FIN_PSH | CWR, 1, 0, 0, 0, 0, 0]);
    } else {
        frame.extend(((8 + payload) as u16).to_be_bytes());
        frame.extend([0, 0]);
    }
    frame.extend((0..payload).map(|n| (n * 7) as u8));
    (frame, at)
}

/// Are the lengths and both checksums right?
fn sound(frame: &[u8], version: u8, at: usize, protocol: u8) -> bool {
    let (addresses, length_right) = if version == 4 {
        let total = usize::from(u16::from_be_bytes([frame[16], frame[17]]));
        (26..34, total == frame.len() - 14 && checksum::right(checksum::add(0, &frame[14..34])))
    } else {
        (22..54, usize::from(u16::from_be_bytes([frame[18], frame[19]])) == frame.len() - 54)
    };
    let mut sum = checksum::add(0, &frame[addresses]);
    sum = checksum::add(sum, &[0, protocol]);
    sum = checksum::add(sum, &((frame.len() - at) as u16).to_be_bytes());
    length_right && checksum::right(checksum::add(sum, &frame[at..]))
}

#[test]
fn a_super_frame_is_cut_as_a_device_would() {
    for version in [4, 6] {
        let (mut whole, at) = frame(version, TCP, 3000);
        let unfinished = Unfinished { checksum: Some((at as u16, 16)), segment_bytes: 1448 };
        let mut pieces = Vec::new();
        assert!(finish(&mut whole, unfinished, |piece| pieces.push(piece.to_vec())));
        assert_eq!(pieces.iter().map(|p| p.len() - at - 20).collect::<Vec<_>>(), [1448, 1448, 104]);
        assert!(pieces.iter().all(|piece| sound(piece, version, at, TCP)));
        let payload: Vec<u8> = pieces.iter().flat_map(|p| p[at + 20..].to_vec()).collect();
        assert_eq!(payload, whole[at + 20..]);
        let sequence = |p: &[u8]| u32::from_be_bytes(p[at + 4..at + 8].try_into().unwrap());
        assert_eq!(sequence(&pieces[1]), 0xffff_ff00u32.wrapping_add(1448), "across the wrap");
        let flags: Vec<u8> = pieces.iter().map(|p| p[at + 13] & (FIN_PSH | CWR)).collect();
        assert_eq!(flags, [CWR, 0, FIN_PSH]);
        if version == 4 {
            assert_eq!(pieces[2][18..20], [0x10, 0x02], "identification goes on");
        }
    }
}

#[test]
fn udp_super_frames_are_cut_too_and_others_refused() {
    let (mut whole, at) = frame(4, UDP, 2500);
    let unfinished = Unfinished { checksum: Some((at as u16, 6)), segment_bytes: 1000 };
    let mut pieces = Vec::new();
    assert!(finish(&mut whole, unfinished, |piece| pieces.push(piece.to_vec())));
    assert_eq!(pieces.len(), 3);
    assert!(pieces.iter().all(|piece| sound(piece, 4, at, UDP)));

    let (mut other, _) = frame(4, 47, 2500);
    assert!(!finish(&mut other, Unfinished { checksum: None, segment_bytes: 1000 }, |_| panic!(
        "nothing to hand over"
    )));
}

#[test]
fn an_unfinished_checksum_is_filled() {
    let (mut whole, at) = frame(4, TCP, 100);
    let mut pseudo = checksum::add(0, &whole[26..34]);
    pseudo = checksum::add(pseudo, &[0, TCP, 0, 120]);
    whole[at + 16..at + 18].copy_from_slice(&checksum::fold(pseudo).to_ne_bytes());
    let unfinished = Unfinished { checksum: Some((at as u16, 16)), segment_bytes: 0 };
    let mut got = Vec::new();
    assert!(finish(&mut whole, unfinished, |piece| got = piece.to_vec()));
    assert!(sound(&got, 4, at, TCP));
}

#[test]
fn inconsistent_headers_are_survived() {
    for version in [4, 6] {
        let (whole, _) = frame(version, TCP, 200);
        for len in 0..whole.len() {
            for poison in [0u8, 0x4f, 0xff] {
                let mut frame = whole[..len].to_vec();
                if let Some(byte) = frame.get_mut(14) {
                    *byte = poison;
                }
                if let Some(byte) = frame.get_mut(46) {
                    *byte = poison;
                }
                finish(&mut frame.clone(), Unfinished { checksum: Some((34, 16)), segment_bytes: 50 }, |_| {});
                finish(&mut frame.clone(), Unfinished { checksum: Some((0xffff, 16)), segment_bytes: 0 }, |_| {});
                mark_ce(&mut frame);
                flip_bits(&mut frame, &mut Rng::new(1));
            }
        }
    }
}

#[test]
fn marking_keeps_the_packet_sound_also_behind_a_tag() {
    for version in [4, 6] {
        let (whole, at) = frame(version, TCP, 50);
        let mut marked = Vec::new();
        finish(&mut whole.clone(), Unfinished { checksum: None, segment_bytes: 1000 }, |f| marked = f.to_vec());
        assert!(mark_ce(&mut marked));
        assert!(sound(&marked, version, at, TCP));
        assert_eq!(if version == 4 { marked[15] & 3 } else { marked[15] >> 4 & 3 }, 3);

        let mut tagged = whole.clone();
        insert_tag(&mut tagged, 42);
        assert_eq!((tagged.len(), &tagged[12..16]), (whole.len() + 4, &[0x81, 0, 0, 42][..]));
        assert!(mark_ce(&mut tagged));
    }
    let (mut deaf, _) = frame(4, TCP, 50);
    deaf[15] = 0;
    let before = deaf.clone();
    assert!(!mark_ce(&mut deaf));
    assert_eq!(deaf, before);
}
