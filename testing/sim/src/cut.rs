//! What a device with segmentation offload does: it cuts a super-segment into frames.

use crate::frame::{framed, header_of};
use towpath_ports::TxOffload;
use towpath_wire::emit::Header;
use towpath_wire::{emit, flags, segment};

/// The frames that go on the wire, with right checksums.
///
/// # Panics
/// If the frame is no TCP segment, or needs no cutting although it is said to.
pub fn cut(frame: &[u8], offload: TxOffload) -> Vec<Vec<u8>> {
    if offload.gso_bytes == 0 {
        let mut frame = frame.to_vec();
        if offload.checksum_needed {
            emit::fill_checksum(&mut frame);
        }
        return vec![frame];
    }
    assert!(offload.checksum_needed, "a super-segment whose checksum is not left to the device");
    let s = segment::parse(frame).expect("a super-segment is a TCP segment");
    let payload = &frame[s.payload_offset as usize..][..s.payload_len as usize];
    assert!(payload.len() > usize::from(offload.gso_bytes), "a super-segment of one segment");
    assert!(s.flags & (flags::SYN | flags::RST | flags::URG) == 0, "a super-segment with flags {:x}", s.flags);
    let parts = payload.chunks(offload.gso_bytes.into());
    let last = parts.len() - 1;
    let one = |(n, part): (usize, &[u8])| {
        // As the kernel does: the first segment has CWR, the last one FIN and PSH.
        let not_first = if n == 0 { 0 } else { flags::CWR };
        let not_last = if n == last { 0 } else { flags::FIN | flags::PSH };
        let seq = s.seq.wrapping_add(n as u32 * u32::from(offload.gso_bytes));
        let header = Header { seq, flags: s.flags & !not_first & !not_last, tos: s.tos, ..header_of(&s) };
        framed(&header, part).expect("a part is a frame")
    };
    parts.enumerate().map(one).collect()
}
