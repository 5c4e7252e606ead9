//! Reads program files, past all hooks.

use std::ffi::CString;
use std::io::{Error, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// An open program file. It is read by system calls, because libc's functions are caught. In a `vfork` child the caught
/// ones would also mistake the child's descriptors for the parent's.
pub(crate) struct ElfFile(i64);

impl ElfFile {
    /// Opens it.
    pub fn open(file: &Path) -> std::io::Result<Self> {
        let path = CString::new(file.as_os_str().as_bytes())?;
        let flags = libc::O_RDONLY | libc::O_CLOEXEC;
        // SAFETY: the path is a C string.
        match unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags) } {
            fd if fd < 0 => Err(Error::last_os_error()),
            fd => Ok(Self(fd)),
        }
    }

    /// At most `bytes` bytes from `offset`.
    pub fn read(&self, offset: u64, bytes: usize) -> std::io::Result<Vec<u8>> {
        let mut found = vec![0; bytes];
        let count = self.read_at(offset, &mut found).ok_or(Error::from(ErrorKind::InvalidInput))?;
        found.truncate(count);
        Ok(found)
    }

    /// Reads from `offset` and returns how many bytes; 0 at the end, or if the file cannot be read.
    pub fn read_into(&self, offset: u64, into: &mut [u8]) -> usize {
        self.read_at(offset, into).unwrap_or(0)
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Option<usize> {
        // `pread` is not caught, but `syscall` is. A file gives at once all that it has.
        // SAFETY: there is room for as many bytes as are asked for.
        let read = unsafe { libc::pread(self.0 as i32, into.as_mut_ptr().cast(), into.len(), offset as i64) };
        usize::try_from(read).ok()
    }
}

impl Drop for ElfFile {
    fn drop(&mut self) {
        // SAFETY: the descriptor is this value's own.
        unsafe { libc::syscall(libc::SYS_close, self.0) };
    }
}
