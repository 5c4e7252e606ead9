//! Byte rings: plain memory addressed by free-running positions. Positions and their checks belong to the callers.

use crate::shared_bytes::copy;
use core::marker::PhantomData;

/// The bytes of one ring. Another process shares the memory and may write it at any moment. So bytes are copied in or
/// out, and never borrowed as a slice.
#[derive(Clone, Copy)]
pub struct ByteRing<'a> {
    base: *mut u8,
    mask: u32,
    mapping: PhantomData<&'a ()>,
}

// SAFETY: a ring is a view of a shared mapping that outlives it (`'a`). Bytes are only copied from and to it, which any
// thread may do. The protocol says which side may touch which positions; a breach of it garbles bytes and nothing else.
unsafe impl Send for ByteRing<'_> {}
// SAFETY: all methods take `&self`, and a ring has no state but its address and size, which never change.
unsafe impl Sync for ByteRing<'_> {}

impl ByteRing<'_> {
    /// A ring over the `capacity` bytes at `base`.
    ///
    /// # Safety
    /// `capacity` is a power of two, and `base..base + capacity` is valid for reads and writes as long as the result's
    /// lifetime lasts.
    #[inline]
    pub unsafe fn over(base: *mut u8, capacity: u32) -> Self {
        debug_assert!(capacity.is_power_of_two());
        Self { base, mask: capacity - 1, mapping: PhantomData }
    }

    /// Size in bytes.
    #[inline]
    pub fn capacity(&self) -> u32 {
        self.mask + 1
    }

    /// Copies `from` into the ring at position `at` (wraps). Never panics; a `from` longer than the ring is cut.
    #[inline]
    pub fn write(&self, at: u32, from: &[u8]) {
        let len = from.len().min(self.capacity() as usize);
        let [(first, first_len), (second, second_len)] = self.split(at, len);
        // SAFETY: `split` returns spans inside the ring whose lengths add up to `len <= from.len()`. `from` is a Rust
        // slice of this process's own memory, so it does not overlap the shared mapping.
        unsafe {
            copy(from.as_ptr(), first, first_len);
            copy(from.as_ptr().add(first_len), second, second_len);
        }
    }

    /// Copies from position `at` into `to` (wraps). Bytes of `to` beyond the ring's size are left alone.
    #[inline]
    pub fn read(&self, at: u32, to: &mut [u8]) {
        let len = to.len().min(self.capacity() as usize);
        let [(first, first_len), (second, second_len)] = self.split(at, len);
        // SAFETY: `split` returns spans inside the ring whose lengths add up to `len <= to.len()`. `to` is a Rust slice
        // of this process's own memory, so it does not overlap the shared mapping.
        unsafe {
            copy(first, to.as_mut_ptr(), first_len);
            copy(second, to.as_mut_ptr().add(first_len), second_len);
        }
    }

    /// The one or two contiguous spans of `len` bytes at `at`, for vectored copies from raw user memory. `len` beyond
    /// the ring's size is cut; the second span is empty if nothing wraps.
    #[inline]
    pub fn spans(&self, at: u32, len: u32) -> [(*mut u8, usize); 2] {
        self.split(at, len.min(self.capacity()) as usize)
    }

    /// The span of `len` bytes at `at`, if they are in the ring and in one piece.
    #[inline(always)]
    pub fn span(&self, at: u32, len: usize) -> Option<*mut u8> {
        let offset = at & self.mask;
        if len > (self.capacity() - offset) as usize {
            return None;
        }
        // SAFETY: `offset <= mask`, so it is inside the ring.
        Some(unsafe { self.base.add(offset as usize) })
    }

    /// Where the byte at `at` lies.
    #[inline(always)]
    pub fn place(&self, at: u32) -> *mut u8 {
        // SAFETY: the offset is at most `mask`, so it is inside the ring.
        unsafe { self.base.add((at & self.mask) as usize) }
    }

    /// `spans` for a length that is known to be no more than the capacity.
    #[inline]
    fn split(&self, at: u32, len: usize) -> [(*mut u8, usize); 2] {
        let offset = (at & self.mask) as usize;
        let first = len.min(self.capacity() as usize - offset);
        // SAFETY: `offset <= mask`, so it is inside the ring.
        [(unsafe { self.base.add(offset) }, first), (self.base, len - first)]
    }
}
