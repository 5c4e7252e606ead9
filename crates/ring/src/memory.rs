//! The memory of a region: a sealed memfd, who makes it, and what the other side checks before it touches it.
//!
//! The kernel charges a page to the control group of whoever touches it first. So the library makes the memory where both
//! sides share this host's, and touches what it needs before the stack does. The service believes nothing of it.
//!
//! A region of a guest lies in the guest's memory, which one process has mapped for all clients before the first of them
//! comes. That of a remote stack may be registered with a network adapter, so its pages must be the service's to keep.

use crate::layout::GeometryError;
use crate::{Geometry, Layout};
use core::ops::Range;
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::process::{Resource, getrlimit};
use std::io;

/// Why a region cannot be mapped.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// memfd or mmap failed.
    #[error("region: {0}")]
    Io(#[from] io::Error),
    /// The sizes are no good.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// It is not a Towpath region, of another version, unsealed, or of another size.
    #[error("region: {0}")]
    Format(&'static str),
}

impl From<MapError> for io::Error {
    /// The kernel's own error keeps its number, so that a caller can tell a lack of memory from a wrong format.
    fn from(error: MapError) -> Self {
        match error {
            MapError::Io(error) => error,
            other => io::Error::new(io::ErrorKind::InvalidData, other),
        }
    }
}

/// The seals that make a mapped memfd safe to touch: its size stays as it is, so no access can raise SIGBUS.
pub(crate) const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);
/// `F_SEAL_EXEC`, which `MFD_NOEXEC_SEAL` sets.
const SEAL_EXEC: SealFlags = SealFlags::from_bits_retain(0x20);
/// The file system of memfds. Those with huge pages have another one, and a page of them may not be had at all.
const TMPFS: u64 = 0x0102_1994;

/// Application side: makes the memory of a region of these sizes and seals it. What both sides always use is charged to
/// this process.
pub fn new_memory(geometry: Geometry) -> Result<OwnedFd, MapError> {
    let layout = Layout::new(geometry)?;
    let bytes = layout.total_bytes();
    let memfd = unsealed_memfd("towpath-region", bytes)?;
    for Range { start, end } in layout.always_used() {
        // Should it fail, whoever touches the pages first has them charged.
        let _ = rustix::fs::fallocate(&memfd, FallocateFlags::KEEP_SIZE, start as u64, (end - start) as u64);
    }
    rustix::fs::fcntl_add_seals(&memfd, SEALS).map_err(io::Error::from)?;
    Ok(memfd)
}

/// Service side: checks the memory that a client has made for a region of `bytes` bytes.
///
/// A file of another file system may let a page wait for ever (FUSE) or not come at all (huge pages). One without these seals
/// may shrink. A seal against writing would only show as an error of `mmap`, so it is named here.
pub(crate) fn check_brought(fd: BorrowedFd<'_>, bytes: usize) -> Result<(), MapError> {
    // Asked first: it says that the file is the kernel's own, whose other answers come at once.
    let seals = seals(fd)?;
    if rustix::fs::fstatfs(fd).map_err(io::Error::from)?.f_type as u64 != TMPFS {
        return Err(MapError::Format("its memory has huge pages"));
    }
    if seals.difference(SEAL_EXEC) != SEALS {
        return Err(MapError::Format("its seals are not those against shrinking, growing and further seals alone"));
    }
    if size(fd)? != bytes {
        return Err(MapError::Format("its size is not the announced one"));
    }
    Ok(())
}

/// A zeroed memfd that can still be sealed.
pub(crate) fn unsealed_memfd(name: &str, bytes: usize) -> io::Result<OwnedFd> {
    // `ftruncate` beyond this limit ends the program by a signal.
    if getrlimit(Resource::Fsize).current.is_some_and(|most| most < bytes as u64) {
        return Err(rustix::io::Errno::FBIG.into());
    }
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memfd = match rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        // Kernels before 6.3 do not know the flag.
        Err(rustix::io::Errno::INVAL) => rustix::fs::memfd_create(name, flags)?,
        other => other?,
    };
    rustix::fs::ftruncate(&memfd, bytes as u64)?;
    Ok(memfd)
}

/// Checks that a descriptor is a memfd whose size cannot change any more, and returns that size.
pub(crate) fn check_sealed(fd: BorrowedFd<'_>) -> Result<usize, MapError> {
    if !seals(fd)?.contains(SEALS) {
        return Err(MapError::Format("not sealed"));
    }
    size(fd)
}

fn seals(fd: BorrowedFd<'_>) -> Result<SealFlags, MapError> {
    match rustix::fs::fcntl_get_seals(fd) {
        Ok(seals) => Ok(seals),
        Err(rustix::io::Errno::INVAL) => Err(MapError::Format("no memfd")),
        Err(error) => Err(MapError::Io(error.into())),
    }
}

fn size(fd: BorrowedFd<'_>) -> Result<usize, MapError> {
    let stat = rustix::fs::fstat(fd).map_err(io::Error::from)?;
    usize::try_from(stat.st_size).map_err(|_| MapError::Format("its size is no size"))
}
