//! Frames that wait to be written: their bytes as they were copied from the memory, and a list that is put in the order of their
//! times.

use crate::memory::Reader;
use crate::record::{self, HEADER_BYTES, Header, Kind};
use crate::tap::MOST_SNAP;
use std::io;

/// Bytes of a piece of memory, and most pieces.
const PIECE_BYTES: usize = 1 << 20;
const MOST_PIECES: usize = 64;
/// The longest record.
const LONGEST: usize = (HEADER_BYTES + MOST_SNAP as usize).next_multiple_of(8);

/// A piece of memory. Records stand one behind the other.
struct Piece {
    bytes: Box<[u8]>,
    filled: usize,
    /// Frames in it that are not written yet.
    frames: usize,
}

impl Piece {
    fn has_room(&self) -> bool {
        self.bytes.len() - self.filled >= LONGEST
    }
}

/// Where a frame waits.
struct Waiting {
    time_ns: u64,
    piece: u32,
    at: u32,
}

/// The frames that wait.
#[derive(Default)]
pub struct Held {
    pieces: Vec<Piece>,
    /// The one that is filled.
    current: usize,
    waiting: Vec<Waiting>,
}

impl Held {
    /// Takes what is in a ring, as long as there is room, and gives `name` the names among it.
    pub fn take(&mut self, reader: &mut Reader, ring: usize, mut name: impl FnMut(&[u8])) {
        while self.find_room() {
            let Self { pieces, current, waiting } = self;
            let Piece { bytes, filled, frames } = &mut pieces[*current];
            let before = (*filled, waiting.len());
            let taken = reader.take(ring, &mut bytes[before.0..], |at, header, bytes| match header.kind {
                Kind::Name => name(bytes),
                Kind::Frame { .. } => {
                    let at = (before.0 + at) as u32;
                    waiting.push(Waiting { time_ns: header.time_ns, piece: *current as u32, at });
                }
            });
            if taken == 0 {
                return;
            }
            *filled += taken;
            *frames += waiting.len() - before.1;
        }
    }

    /// Makes a piece the current one that has room for a record. False: there is none, and as many as may be.
    fn find_room(&mut self) -> bool {
        if let Some(piece) = self.pieces.get_mut(self.current) {
            if piece.frames == 0 {
                piece.filled = 0;
            }
            if piece.has_room() {
                return true;
            }
        }
        if let Some(free) = self.pieces.iter().position(|piece| piece.frames == 0) {
            (self.pieces[free].filled, self.current) = (0, free);
            return true;
        }
        if self.pieces.len() == MOST_PIECES {
            return false;
        }
        self.current = self.pieces.len();
        self.pieces.push(Piece { bytes: vec![0; PIECE_BYTES].into(), filled: 0, frames: 0 });
        true
    }

    /// Gives `write` the frames that were seen before `due_ns`, in the order of their times. If too many wait, all of them.
    pub fn write(&mut self, due_ns: u64, mut write: impl FnMut(Header, &[u8]) -> io::Result<()>) -> io::Result<()> {
        // Of one ring they mostly are.
        if !self.waiting.is_sorted_by_key(|frame| frame.time_ns) {
            self.waiting.sort_by_key(|frame| frame.time_ns);
        }
        let due = match self.find_room() {
            true => self.waiting.partition_point(|frame| frame.time_ns <= due_ns),
            false => self.waiting.len(),
        };
        for Waiting { piece, at, .. } in self.waiting.drain(..due) {
            let piece = &mut self.pieces[piece as usize];
            piece.frames -= 1;
            if let Some((header, bytes)) = record::at(&piece.bytes[..piece.filled], at as usize) {
                write(header, bytes)?;
            }
        }
        Ok(())
    }

    /// Does nothing wait?
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}
