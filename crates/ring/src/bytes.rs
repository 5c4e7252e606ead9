//! Byte rings: plain memory addressed by free-running positions. Positions and their checks belong to the callers.

use crate::shared_bytes::copy;
use core::marker::PhantomData;
use core::sync::atomic::AtomicU8;

/// The bytes of one ring. Another process shares the memory and may write it at any moment. So bytes are copied in or
/// out, and never borrowed as a slice of plain bytes.
///
/// The memory is in two parts, because most rings never grow. The first parts of all rings lie side by side, and the rest of
/// each elsewhere. So a ring that has not grown takes no page table of its own.
#[derive(Clone, Copy)]
pub struct ByteRing<'a> {
    base: *mut u8,
    /// Where the second part would begin if it began at offset 0.
    more: *mut u8,
    /// Bytes of the first part.
    first: u32,
    mask: u32,
    mapping: PhantomData<&'a ()>,
}

// SAFETY: a ring is a view of a shared mapping that outlives it (`'a`). Bytes are only copied from and to it, which any
// thread may do. The protocol says which side may touch which positions; a breach of it garbles bytes and nothing else.
unsafe impl Send for ByteRing<'_> {}
// SAFETY: all methods take `&self`, and a ring has no state but its address and size, which never change.
unsafe impl Sync for ByteRing<'_> {}

/// Some bytes of a ring in their order: pieces of memory. Those behind the last are empty.
pub type Pieces = [(*mut u8, usize); 3];

impl<'a> ByteRing<'a> {
    /// A ring over the `capacity` bytes at `base`.
    ///
    /// # Safety
    /// `capacity` is a power of two, and `base..base + capacity` is valid for reads and writes as long as the result's
    /// lifetime lasts.
    #[inline]
    pub unsafe fn over(base: *mut u8, capacity: u32) -> Self {
        debug_assert!(capacity.is_power_of_two());
        Self { base, more: base, first: capacity, mask: capacity - 1, mapping: PhantomData }
    }

    /// A ring over the `first` bytes at `base`, and behind them those at `more`, up to `capacity`.
    ///
    /// # Safety
    /// Both are powers of two, and `first` is no more than `capacity`. All of `base..base + first` and
    /// `more..more + capacity - first` are valid for reads and writes as long as the result's lifetime lasts.
    #[inline]
    pub unsafe fn over_two(base: *mut u8, first: u32, more: *mut u8, capacity: u32) -> Self {
        debug_assert!(capacity.is_power_of_two() && first.is_power_of_two() && first <= capacity);
        let more = more.wrapping_sub(first as usize);
        Self { base, more, first, mask: capacity - 1, mapping: PhantomData }
    }

    /// Size in bytes.
    #[inline]
    pub fn capacity(&self) -> u32 {
        self.mask + 1
    }

    /// Copies `from` into the ring at position `at` (wraps). Never panics; a `from` longer than the ring is cut.
    #[inline]
    pub fn write(&self, at: u32, from: &[u8]) {
        if let Some(to) = self.span(at, from.len()) {
            // SAFETY: from `to` on `from.len()` bytes are in the ring. `from` is a Rust slice of this process's own memory, so
            // it does not overlap the shared mapping.
            return unsafe { copy(from.as_ptr(), to, from.len()) };
        }
        let mut done = 0;
        for (to, len) in self.spans(at, from.len().min(self.capacity() as usize) as u32) {
            // SAFETY: the pieces are inside the ring, and their lengths add up to no more than `from.len()`. Otherwise as above.
            unsafe { copy(from.as_ptr().add(done), to, len) };
            done += len;
        }
    }

    /// Copies from position `at` into `to` (wraps). Bytes of `to` beyond the ring's size become zeros, so that nobody sees what was
    /// there before.
    #[inline]
    pub fn read(&self, at: u32, to: &mut [u8]) {
        if let Some(from) = self.span(at, to.len()) {
            // SAFETY: from `from` on `to.len()` bytes are in the ring. `to` is a Rust slice of this process's own memory, so it
            // does not overlap the shared mapping.
            return unsafe { copy(from, to.as_mut_ptr(), to.len()) };
        }
        let mut done = 0;
        for (from, len) in self.spans(at, to.len().min(self.capacity() as usize) as u32) {
            // SAFETY: the pieces are inside the ring, and their lengths add up to no more than `to.len()`. Otherwise as above.
            unsafe { copy(from, to.as_mut_ptr().add(done), len) };
            done += len;
        }
        to[done..].fill(0);
    }

    /// The contiguous pieces of `len` bytes at `at`, for vectored copies from raw user memory. `len` beyond the ring's size is
    /// cut.
    #[inline]
    pub fn spans(&self, at: u32, len: u32) -> Pieces {
        match self.span(at, len as usize) {
            Some(whole) => [(whole, len as usize), (whole, 0), (whole, 0)],
            None => self.pieces(at, len),
        }
    }

    /// The same pieces as shared memory, for whoever copies them itself; `None`: the ring is shorter.
    pub fn shared(&self, at: u32, len: u32) -> Option<[&'a [AtomicU8]; 3]> {
        let piece = |(start, len): (*mut u8, usize)| {
            // SAFETY: the piece is inside the ring, whose memory is there for `'a`. Bytes of an `AtomicU8` may change at any
            // moment, as another process may change these.
            unsafe { core::slice::from_raw_parts(start.cast_const().cast(), len) }
        };
        (len <= self.capacity()).then(|| self.spans(at, len).map(piece))
    }

    /// The pieces of what does not lie in one.
    #[cold]
    #[inline(never)]
    fn pieces(&self, at: u32, len: u32) -> Pieces {
        let len = len.min(self.capacity());
        let offset = at & self.mask;
        let mut left = len;
        let mut piece = |offset: u32| {
            let count = left.min(self.end(offset) - offset);
            left -= count;
            (self.at(offset), count as usize)
        };
        let one = piece(offset);
        let next = self.end(offset) & self.mask;
        [one, piece(next), piece(self.end(next) & self.mask)]
    }

    /// The span of `len` bytes at `at`, if they are in the ring and in one piece.
    #[inline(always)]
    pub fn span(&self, at: u32, len: usize) -> Option<*mut u8> {
        let offset = at & self.mask;
        if len > (self.end(offset) - offset) as usize {
            return None;
        }
        Some(self.at(offset))
    }

    /// Where the part ends in which the byte at this offset lies.
    #[inline(always)]
    fn end(&self, offset: u32) -> u32 {
        if offset < self.first { self.first } else { self.mask + 1 }
    }

    /// Where the byte at this offset lies, which is no more than `mask`.
    #[inline(always)]
    fn at(&self, offset: u32) -> *mut u8 {
        let part = if offset < self.first { self.base } else { self.more };
        part.wrapping_add(offset as usize)
    }
}

/// [`ByteRing::span`] of a ring of `capacity` bytes, a power of two, that lies in one part from `base` on.
#[inline(always)]
pub(crate) fn span_of_one(base: *mut u8, capacity: u32, at: u32, len: usize) -> Option<*mut u8> {
    let offset = at & (capacity - 1);
    (len <= (capacity - offset) as usize).then(|| base.wrapping_add(offset as usize))
}

/// How many of `unread` bytes are taken by a call that wants `most`. `None`: none, or a ring of `bytes` bytes cannot hold as many.
#[inline(always)]
pub(crate) fn count_of(unread: u32, bytes: u32, most: usize) -> Option<usize> {
    (unread.wrapping_sub(1) < bytes && most != 0).then_some((unread as usize).min(most))
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::Ordering;

    #[test]
    fn shared_pieces_are_the_bytes_of_the_ring() {
        let (mut first, mut more) = (*b"abcd", *b"EFGHijkl");
        // SAFETY: both parts live as long as the ring is used, and have 4 and 12 - 4 bytes or more.
        let ring = unsafe { ByteRing::over_two(first.as_mut_ptr(), 4, more.as_mut_ptr(), 8) };
        let text = |at, len| {
            let bytes = ring.shared(at, len)?.into_iter().flatten();
            Some(bytes.map(|byte| char::from(byte.load(Ordering::Relaxed))).collect::<String>())
        };
        for (at, len, expected) in [
            (0, 4, "abcd"),
            (4, 4, "EFGH"),
            (2, 4, "cdEF"),
            (6, 4, "GHab"),
            (3, 7, "dEFGHab"),
            (5, 8, "FGHabcdE"),
            (1, 8, "bcdEFGHa"),
            (9, 0, ""),
            (u32::MAX, 3, "Hab"),
        ] {
            assert_eq!(text(at, len).as_deref(), Some(expected), "{len} bytes at {at}");
        }
        assert_eq!(text(0, 9), None, "more than the ring has");
    }
}
