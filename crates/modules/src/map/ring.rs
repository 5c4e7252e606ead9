//! Records for a reader, in the order in which their memory was taken. Whoever takes some waits for nobody.
//!
//! The memory is twice as large as the buffer, so that a record that begins before the end goes on behind it. A header
//! of zero is one that is not yet written: the reader clears what it has read.

use super::cells::{self, Cells};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Bits of a header, as in the kernel: the record is being written, or was given up.
const BUSY: u32 = 1 << 31;
const DISCARD: u32 = 1 << 30;
/// The header is written.
const TAKEN: u32 = 1 << 29;
/// Bytes of a header.
const HEADER: usize = 8;

/// See the module.
#[derive(Debug)]
pub struct Ring {
    size: u64,
    cells: Cells,
    /// What is taken ends here.
    producer: AtomicU64,
    /// What is read ends here.
    consumer: AtomicU64,
    /// There is one reader at a time.
    reader: Mutex<()>,
}

/// # Safety
/// The header is one of a ring that is there as long as this runs.
unsafe fn header(at: *mut u8) -> &'static AtomicU32 {
    // SAFETY: as promised by the caller; headers are aligned, and used as atomics alone.
    unsafe { AtomicU32::from_ptr(at.cast()) }
}

impl Ring {
    /// An empty one of this many bytes, a power of two.
    pub fn new(size: u32) -> Self {
        Self {
            size: u64::from(size),
            cells: Cells::new(2 * size as usize),
            producer: AtomicU64::new(0),
            consumer: AtomicU64::new(0),
            reader: Mutex::new(()),
        }
    }

    fn at(&self, position: u64) -> *mut u8 {
        self.cells.start().wrapping_add((position & (self.size - 1)) as usize)
    }

    /// Memory for a record; null if there is no room.
    pub fn reserve(&self, length: u64) -> *mut u8 {
        let taken = length.saturating_add(HEADER as u64 + 7) & !7;
        if length >= u64::from(TAKEN) || taken > self.size {
            return std::ptr::null_mut();
        }
        let next = |from: u64| {
            let used = from - self.consumer.load(Ordering::Acquire).min(from);
            (used + taken < self.size).then_some(from + taken)
        };
        match self.producer.fetch_update(Ordering::AcqRel, Ordering::Acquire, next) {
            Ok(start) => {
                let at = self.at(start);
                // SAFETY: the header lies in our memory, and these bytes are nobody else's.
                unsafe { header(at) }.store(length as u32 | TAKEN | BUSY, Ordering::Release);
                at.wrapping_add(HEADER)
            }
            Err(_) => std::ptr::null_mut(),
        }
    }

    /// Shows a record to the reader, or gives it up.
    ///
    /// # Safety
    /// The record is one that [`Self::reserve`] has returned, and this is the first call for it.
    pub unsafe fn finish(record: *mut u8, discard: bool) {
        // SAFETY: as promised by the caller the record has a header before it.
        let header = unsafe { header(record.wrapping_sub(HEADER)) };
        let length = header.load(Ordering::Relaxed) & !BUSY;
        header.store(if discard { length | DISCARD } else { length }, Ordering::Release);
    }

    /// Takes a record out.
    pub fn next(&self) -> Option<Vec<u8>> {
        let _one = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let position = self.consumer.load(Ordering::Acquire);
            if position == self.producer.load(Ordering::Acquire) {
                return None;
            }
            let at = self.at(position);
            // SAFETY: records begin at these positions, in our memory.
            let state = unsafe { header(at) }.load(Ordering::Acquire);
            if state & TAKEN == 0 || state & BUSY != 0 {
                return None;
            }
            let length = (state & !(TAKEN | DISCARD)) as usize;
            let taken = (length + HEADER + 7) & !7;
            let mut record = vec![0; length];
            // SAFETY: the record is whole, and nobody else's until the position is moved.
            unsafe {
                cells::read(at.wrapping_add(HEADER), &mut record);
                cells::clear(at, taken);
            }
            self.consumer.store(position + taken as u64, Ordering::Release);
            if state & DISCARD == 0 {
                return Some(record);
            }
        }
    }
}
