//! Connection records in chunks. A record holds whole queues of bytes, and other messages share the byte stream with
//! it.

use std::collections::HashMap;
use std::sync::Mutex;
use towpath_kernel::MovedConnection;
use towpath_kernel::record::ConnectionRecord;

use crate::lock::lock;

/// Bytes of a chunk.
const CHUNK_BYTES: usize = 64 << 10;
/// Most bytes of one client's records in transit.
const MOST_BYTES: usize = 256 << 20;

/// A part of a connection record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordChunk {
    /// Index of the client.
    pub index: u32,
    /// The connection's slot.
    pub slot: u32,
    /// See [`MovedConnection::closing`].
    pub closing: bool,
    /// See [`MovedConnection::fin`].
    pub fin: bool,
    /// The record is complete.
    pub last: bool,
    /// Bytes that follow those of the earlier chunks.
    pub bytes: Vec<u8>,
}

/// Cuts a connection's record into chunks.
pub fn cut(index: u32, moved: &MovedConnection) -> Vec<RecordChunk> {
    let (slot, closing, fin, bytes) = (moved.slot, moved.closing, moved.fin, moved.record.encode());
    let count = bytes.len().div_ceil(CHUNK_BYTES);
    let chunk = |(number, bytes): (usize, &[u8])| RecordChunk {
        index,
        slot,
        closing,
        fin,
        last: number + 1 == count,
        bytes: bytes.to_vec(),
    };
    bytes.chunks(CHUNK_BYTES).enumerate().map(chunk).collect()
}

/// The chunks of one client that have arrived.
#[derive(Default)]
struct Arrived {
    /// Incomplete records, by slot.
    parts: HashMap<u32, Vec<u8>>,
    whole: Vec<MovedConnection>,
    bytes: usize,
}

/// Chunks that have arrived, by client.
#[derive(Default)]
pub struct RecordChunks(Mutex<HashMap<u32, Arrived>>);

impl RecordChunks {
    /// Adds a chunk. If the complete bytes are no record, they are dropped, and the connection is lost.
    pub fn add(&self, chunk: RecordChunk) {
        let RecordChunk { index, slot, closing, fin, last, bytes } = chunk;
        let mut all = lock(&self.0);
        let arrived = all.entry(index).or_default();
        arrived.bytes += bytes.len();
        if arrived.bytes > MOST_BYTES {
            return;
        }
        let mut record = arrived.parts.remove(&slot).unwrap_or_default();
        record.extend_from_slice(&bytes);
        if !last {
            arrived.parts.insert(slot, record);
            return;
        }
        match ConnectionRecord::decode(&record) {
            Ok(record) => arrived.whole.push(MovedConnection { slot, closing, fin, record }),
            Err(why) => tracing::warn!(slot, %why, "the record of a connection"),
        }
    }
    /// Takes the complete records of a client.
    pub fn take(&self, index: u32) -> Vec<MovedConnection> {
        lock(&self.0).remove(&index).map(|arrived| arrived.whole).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use towpath_kernel::record::{Queue, Settings, Window};

    fn moved(slot: u32, queued: usize) -> MovedConnection {
        let bytes = (0..queued).map(|n| n as u8).collect();
        let record = ConnectionRecord {
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
        MovedConnection { slot, closing: slot == 2, fin: slot == 1, record }
    }

    #[test]
    fn records_come_out_of_their_chunks_whatever_comes_between() {
        let (one, two) = (moved(1, 3 * CHUNK_BYTES + 7), moved(2, 0));
        let chunks = RecordChunks::default();
        let (long, short) = (cut(5, &one), cut(5, &two));
        assert!(long.len() >= 4 && short.len() == 1);
        let (first, rest) = long.split_at(2);
        first.iter().chain(&short).chain(rest).for_each(|chunk| chunks.add(chunk.clone()));
        cut(6, &one)[..2].iter().for_each(|chunk| chunks.add(chunk.clone()));
        assert_eq!(chunks.take(5), [two, one]);
        assert!(chunks.take(5).is_empty() && chunks.take(6).is_empty(), "half a record is none");
    }

    #[test]
    fn what_is_no_record_is_dropped() {
        let chunks = RecordChunks::default();
        chunks.add(RecordChunk { index: 1, slot: 1, closing: false, fin: false, last: true, bytes: vec![0xff; 100] });
        assert!(chunks.take(1).is_empty());
    }
}
