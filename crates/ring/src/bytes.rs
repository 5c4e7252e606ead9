//! Byte rings: plain memory addressed by free-running positions. Positions and their checks belong to the callers.

/// The bytes of one ring. The memory is shared with another process that may write it at any moment, so it is only
/// ever copied in or out, never borrowed as a slice.
#[derive(Clone, Copy)]
pub struct ByteRing<'a> {
    base: *mut u8,
    mask: u32,
    region: core::marker::PhantomData<&'a crate::Region>,
}

impl ByteRing<'_> {
    /// Size in bytes.
    pub fn capacity(&self) -> u32 {
        self.mask + 1
    }
    /// Copies `from` into the ring at position `at` (wraps). Panics never; `from` longer than the ring is cut.
    pub fn write(&self, at: u32, from: &[u8]) {
        let _ = (self.base, at, from);
        todo!()
    }
    /// Copies from position `at` into `to` (wraps).
    pub fn read(&self, at: u32, to: &mut [u8]) {
        let _ = (at, to);
        todo!()
    }
    /// The one or two contiguous spans of `len` bytes at `at`, for vectored copies from raw user memory.
    pub fn spans(&self, at: u32, len: u32) -> [(*mut u8, usize); 2] {
        let _ = (at, len);
        todo!()
    }
}
