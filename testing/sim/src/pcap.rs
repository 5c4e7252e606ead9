//! Captures in the classic pcap format, with times in µs.

use towpath_tcp::time::Micros;

const MAGIC: u32 = 0xa1b2_c3d4;
const VERSION: [u16; 2] = [2, 4];
const LONGEST_FRAME: u32 = 1 << 18;
const ETHERNET: u32 = 1;

/// A file with these frames, each with the time at which it was sent.
pub fn file<'a>(frames: impl IntoIterator<Item = &'a (Micros, Vec<u8>)>) -> Vec<u8> {
    let mut out = Vec::new();
    out.extend(MAGIC.to_le_bytes());
    out.extend(VERSION.map(u16::to_le_bytes).concat());
    // Time zone and accuracy, which are always 0.
    out.extend([0; 8]);
    out.extend([LONGEST_FRAME, ETHERNET].map(u32::to_le_bytes).concat());
    for (at, frame) in frames {
        let len = frame.len() as u32;
        let words = [(at.0 / 1_000_000) as u32, (at.0 % 1_000_000) as u32, len, len];
        out.extend(words.map(u32::to_le_bytes).concat());
        out.extend(frame);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_its_header_and_each_frame_with_its_time() {
        let file = file(&[(Micros(3_000_005), vec![1, 2, 3]), (Micros(4_000_000), vec![])]);
        assert_eq!(file.len(), 24 + 16 + 3 + 16);
        assert_eq!(file[..6], [0xd4, 0xc3, 0xb2, 0xa1, 2, 0]);
        assert_eq!(file[20..24], [1, 0, 0, 0]);
        assert_eq!(file[24..43], [3, 0, 0, 0, 5, 0, 0, 0, 3, 0, 0, 0, 3, 0, 0, 0, 1, 2, 3]);
    }
}
