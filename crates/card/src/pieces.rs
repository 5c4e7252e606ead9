//! Records of connections in pieces: a record has as many bytes as its queues have, and the line has other things to carry as well.

use std::collections::HashMap;
use std::sync::Mutex;
use towpath_kernel::Moved;
use towpath_record::Record;

use crate::places::lock;

/// Bytes of a piece.
const PIECE: usize = 64 << 10;
/// Most bytes that a client's records may have together while they are under way.
const MOST: usize = 256 << 20;

/// A piece of the record of one connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Place of the client.
    pub place: u32,
    /// The connection's slot.
    pub slot: u32,
    /// See [`Moved::closing`].
    pub closing: bool,
    /// See [`Moved::fin`].
    pub fin: bool,
    /// No other follows.
    pub last: bool,
    /// What follows the pieces before.
    pub bytes: Vec<u8>,
}

/// The pieces of a connection.
pub fn cut(place: u32, moved: &Moved) -> Vec<Piece> {
    let (slot, closing, fin, bytes) = (moved.slot, moved.closing, moved.fin, moved.record.encode());
    let count = bytes.len().div_ceil(PIECE);
    let piece = |(number, bytes): (usize, &[u8])| Piece {
        place,
        slot,
        closing,
        fin,
        last: number + 1 == count,
        bytes: bytes.to_vec(),
    };
    bytes.chunks(PIECE).enumerate().map(piece).collect()
}

/// What has come of one client.
#[derive(Default)]
struct Came {
    /// Records of which there is more to come, by slot.
    parts: HashMap<u32, Vec<u8>>,
    whole: Vec<Moved>,
    bytes: usize,
}

/// What has come, by place.
#[derive(Default)]
pub struct Pieces(Mutex<HashMap<u32, Came>>);

impl Pieces {
    /// One more. What is no record in the end is dropped, and its connection with it.
    pub fn add(&self, piece: Piece) {
        let Piece { place, slot, closing, fin, last, bytes } = piece;
        let mut all = lock(&self.0);
        let came = all.entry(place).or_default();
        came.bytes += bytes.len();
        if came.bytes > MOST {
            return;
        }
        let mut record = came.parts.remove(&slot).unwrap_or_default();
        record.extend_from_slice(&bytes);
        if !last {
            came.parts.insert(slot, record);
            return;
        }
        match Record::decode(&record) {
            Ok(record) => came.whole.push(Moved { slot, closing, fin, record }),
            Err(why) => tracing::warn!(slot, %why, "the record of a connection"),
        }
    }
    /// All that has come of a client.
    pub fn take(&self, place: u32) -> Vec<Moved> {
        lock(&self.0).remove(&place).map(|came| came.whole).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use towpath_record::{Queue, Settings, Window};

    fn moved(slot: u32, queued: usize) -> Moved {
        let bytes = (0..queued).map(|n| n as u8).collect();
        let record = Record {
            local: "10.0.0.1:80".parse().unwrap(),
            remote: "10.0.0.2:4711".parse().unwrap(),
            send: Queue { first: 1, bytes },
            sent: 0,
            receive: Queue { first: 9, bytes: Vec::new() },
            window: Window::default(),
            mss: 1448,
            scale: None,
            sack: true,
            timestamp: Some(7),
            settings: Settings::default(),
        };
        Moved { slot, closing: slot == 2, fin: slot == 1, record }
    }

    #[test]
    fn records_come_out_of_their_pieces_whatever_comes_between() {
        let (one, two) = (moved(1, 3 * PIECE + 7), moved(2, 0));
        let pieces = Pieces::default();
        let (long, short) = (cut(5, &one), cut(5, &two));
        assert!(long.len() >= 4 && short.len() == 1);
        let (first, rest) = long.split_at(2);
        first.iter().chain(&short).chain(rest).for_each(|piece| pieces.add(piece.clone()));
        cut(6, &one)[..2].iter().for_each(|piece| pieces.add(piece.clone()));
        assert_eq!(pieces.take(5), [two, one]);
        assert!(pieces.take(5).is_empty() && pieces.take(6).is_empty(), "half a record is none");
    }

    #[test]
    fn what_is_no_record_is_dropped() {
        let pieces = Pieces::default();
        pieces.add(Piece { place: 1, slot: 1, closing: false, fin: false, last: true, bytes: vec![0xff; 100] });
        assert!(pieces.take(1).is_empty());
    }
}
