//! Memory for machine code. It is never writable and executable at the same time.

use std::io;
use std::ptr::NonNull;

/// Code that may be called.
#[derive(Debug)]
pub struct Code {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: nobody writes the code after it was made, and unmapping it needs the only owner.
unsafe impl Send for Code {}
// SAFETY: see above.
unsafe impl Sync for Code {}

impl Code {
    /// Makes this code callable.
    pub fn new(code: &[u8]) -> io::Result<Self> {
        let bytes = code.len().max(1);
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at a place that the kernel chooses.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let made = Self { start, bytes };
        // SAFETY: the mapping has this many bytes, and nobody else has it.
        let done = unsafe {
            std::ptr::copy_nonoverlapping(code.as_ptr(), start.as_ptr(), code.len());
            libc::mprotect(start.as_ptr().cast(), bytes, libc::PROT_READ | libc::PROT_EXEC)
        };
        if done == 0 { Ok(made) } else { Err(io::Error::last_os_error()) }
    }

    /// Where a function of it begins.
    pub fn at(&self, offset: u32) -> u64 {
        self.start.as_ptr().wrapping_add(offset as usize).expose_provenance() as u64
    }
}

impl Drop for Code {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nobody calls it any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}
