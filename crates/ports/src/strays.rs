//! Frames of ours that have come on a receive queue without a socket, because the queue is younger than the service. The
//! steering program copies them to a ring buffer. That is slower than a socket, and loses none but in a flood.

use crate::RxChecksum;
use aya::maps::{MapData, RingBuf};
use std::os::fd::{AsFd, BorrowedFd};
use towpath_wire::{checksum_ok, parse};

/// Bytes of a record before its frame.
const LENGTH: usize = 4;

/// See the module.
pub struct Strays {
    ring: RingBuf<MapData>,
    checksum: RxChecksum,
}

impl Strays {
    /// `checksum`: what is known of the checksums of the interface's frames.
    pub(crate) fn new(ring: RingBuf<MapData>, checksum: RxChecksum) -> Self {
        Self { ring, checksum }
    }

    /// The next frame. TCP segments with a wrong checksum are left out.
    pub fn next_frame(&mut self) -> Option<Box<[u8]>> {
        loop {
            let frame = frame_of(&self.ring.next()?).map(Box::from);
            if let Some(frame) = frame.filter(|frame| is_right(frame, self.checksum)) {
                return Some(frame);
            }
        }
    }

    /// The descriptor that becomes readable when a frame waits.
    pub fn readable(&self) -> BorrowedFd<'_> {
        self.ring.as_fd()
    }
}

/// The frame of a record; `None` = the record is none of the program's.
fn frame_of(record: &[u8]) -> Option<&[u8]> {
    let (length, frame) = record.split_first_chunk::<LENGTH>()?;
    frame.get(..u32::from_ne_bytes(*length) as usize)
}

/// Not a segment with a wrong checksum. Others than segments are judged where they are used.
fn is_right(frame: &[u8], checksum: RxChecksum) -> bool {
    parse(frame).map_or(true, |segment| checksum_ok(frame, &segment, checksum))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_has_its_frame_and_no_more() {
        assert_eq!(frame_of(&[2, 0, 0, 0, 7, 8, 9, 9]), Some(&[7, 8][..]));
        assert_eq!(frame_of(&[5, 0, 0, 0, 7, 8, 9, 9]), None);
        assert_eq!(frame_of(&[1, 0]), None);
    }
}
