//! Frames of ours that have come on a receive queue without a socket, because the queue is younger than the service. The
//! steering program copies them to a ring buffer. That is slower than a socket, and loses none but in a flood.

use crate::RxChecksum;
use aya::maps::{MapData, RingBuf};
use std::os::fd::{AsFd, BorrowedFd};
use towpath_wire::{checksum_ok, parse};

/// Bytes of a record before its frame, and of each of the two words there.
const HEAD: usize = 8;
const WORD: usize = 4;

/// See the module.
pub struct Strays {
    ring: RingBuf<MapData>,
    /// What is known of the checksums of each interface's frames, by its place.
    checksums: Vec<Option<RxChecksum>>,
}

impl Strays {
    pub(crate) fn new(ring: RingBuf<MapData>) -> Self {
        Self { ring, checksums: Vec::new() }
    }

    /// What is known of the checksums of this interface's frames.
    pub(crate) fn expect(&mut self, place: u32, checksum: RxChecksum) {
        let place = place as usize;
        if self.checksums.len() <= place {
            self.checksums.resize(place + 1, None);
        }
        self.checksums[place] = Some(checksum);
    }

    /// The next frame, and the place of its interface. TCP segments with a wrong checksum are left out.
    pub fn next_frame(&mut self) -> Option<(u32, Box<[u8]>)> {
        loop {
            let record = self.ring.next()?;
            let Some((place, frame)) = frame_of(&record) else { continue };
            let checksum = self.checksums.get(place as usize).copied().flatten();
            if checksum.is_some_and(|checksum| is_right(frame, checksum)) {
                return Some((place, frame.into()));
            }
        }
    }

    /// The descriptor that becomes readable when a frame waits.
    pub fn readable(&self) -> BorrowedFd<'_> {
        self.ring.as_fd()
    }
}

/// Place and frame of a record; `None` = the record is none of the program's.
fn frame_of(record: &[u8]) -> Option<(u32, &[u8])> {
    let (head, frame) = record.split_first_chunk::<HEAD>()?;
    let (length, place) = head.split_first_chunk::<WORD>()?;
    let place = u32::from_ne_bytes(place.try_into().ok()?);
    Some((place, frame.get(..u32::from_ne_bytes(*length) as usize)?))
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
        assert_eq!(frame_of(&[2, 0, 0, 0, 1, 0, 0, 0, 7, 8, 9, 9]), Some((1, &[7, 8][..])));
        assert_eq!(frame_of(&[5, 0, 0, 0, 1, 0, 0, 0, 7, 8, 9, 9]), None);
        assert_eq!(frame_of(&[1, 0, 0, 0, 1]), None);
    }
}
