//! Memory for machine code. No process has it writable and executable at the same time.
//!
//! A process that is confined may make no executable memory. So another one makes an [`Area`] for it and keeps the only
//! way to write there ([`Writer`]). The confined process maps it before it gives up the right to.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

/// Modules that an area has room for, and bytes of the code of each. Memory is used as needed.
pub const PLACES: u32 = 64;
/// See [`PLACES`].
pub const PLACE_BYTES: usize = 1 << 20;
const AREA_BYTES: usize = PLACES as usize * PLACE_BYTES;

/// A mapping.
#[derive(Debug)]
struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a mapping is memory, and whoever has it says who may write there.
unsafe impl Send for Mapping {}
// SAFETY: see above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// New memory, or that of a descriptor.
    fn new(bytes: usize, protection: libc::c_int, memory: Option<BorrowedFd<'_>>) -> io::Result<Self> {
        let flags = if memory.is_some() { libc::MAP_SHARED } else { libc::MAP_PRIVATE | libc::MAP_ANONYMOUS };
        let memory = memory.map_or(-1, |memory| memory.as_raw_fd());
        // SAFETY: a new mapping at a place that the kernel chooses.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, memory, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        // A core dump has no use for an area that is mostly empty.
        // SAFETY: the mapping is ours.
        unsafe { libc::madvise(start.as_ptr().cast(), bytes, libc::MADV_DONTDUMP) };
        Ok(Self { start, bytes })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nobody uses it any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// The way to write code into another process's area.
#[derive(Debug)]
pub struct Writer(Mapping);

impl Writer {
    /// A new area: the way to write there, and the memory, which nobody else can write.
    pub fn new() -> io::Result<(Self, OwnedFd)> {
        // SAFETY: the name ends with NUL.
        let memory =
            unsafe { libc::memfd_create(c"towpath-code".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
        if memory < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: it is a new descriptor that nothing else owns.
        let memory = unsafe { OwnedFd::from_raw_fd(memory) };
        // SAFETY: the call takes no memory.
        if unsafe { libc::ftruncate(memory.as_raw_fd(), AREA_BYTES as libc::off_t) } < 0 {
            return Err(io::Error::last_os_error());
        }
        let borrowed = std::os::fd::AsFd::as_fd(&memory);
        let writer = Self(Mapping::new(AREA_BYTES, libc::PROT_READ | libc::PROT_WRITE, Some(borrowed))?);
        // Mappings that are there stay writable.
        let seals = libc::F_SEAL_FUTURE_WRITE | libc::F_SEAL_GROW | libc::F_SEAL_SHRINK | libc::F_SEAL_SEAL;
        // SAFETY: the call takes no memory.
        if unsafe { libc::fcntl(memory.as_raw_fd(), libc::F_ADD_SEALS, seals) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok((writer, memory))
    }

    /// Writes code to a place.
    pub fn write(&mut self, place: u32, code: &[u8]) -> io::Result<()> {
        if place >= PLACES || code.len() > PLACE_BYTES {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let at = place as usize * PLACE_BYTES;
        // SAFETY: the place lies within the mapping. The other process runs nothing there that it has not asked for.
        unsafe { std::ptr::copy_nonoverlapping(code.as_ptr(), self.0.start.as_ptr().add(at), code.len()) };
        Ok(())
    }
}

/// Memory whose code another process writes.
#[derive(Debug)]
pub struct Area {
    mapping: Mapping,
    /// A bit for each place that is in use.
    used: Mutex<u64>,
}

/// Commands of `membarrier(2)`: threads of this process see new code as it is.
const REGISTER_SYNC_CORE: libc::c_int = 1 << 6;
const SYNC_CORE: libc::c_int = 1 << 5;

fn sync_cores(command: libc::c_int) {
    // Without it a thread may have read ahead only where it was a moment ago, which is not here.
    // SAFETY: the call takes no memory.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) };
}

impl Area {
    /// Maps the memory of a [`Writer`].
    pub fn map(memory: BorrowedFd<'_>) -> io::Result<Arc<Self>> {
        let mapping = Mapping::new(AREA_BYTES, libc::PROT_READ | libc::PROT_EXEC, Some(memory))?;
        sync_cores(REGISTER_SYNC_CORE);
        Ok(Arc::new(Self { mapping, used: Mutex::new(0) }))
    }

    /// A place for code; `None` = all are in use.
    pub fn place(self: &Arc<Self>) -> Option<Place> {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let number = (!*used).trailing_zeros();
        if number >= PLACES {
            return None;
        }
        *used |= 1 << number;
        Some(Place { area: Arc::clone(self), number })
    }
}

/// A place of an area. Its drop gives it back.
#[derive(Debug)]
pub struct Place {
    area: Arc<Area>,
    number: u32,
}

impl Place {
    /// Its number.
    pub fn number(&self) -> u32 {
        self.number
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        *self.area.used.lock().unwrap_or_else(PoisonError::into_inner) &= !(1 << self.number);
    }
}

/// Code that may be called.
#[derive(Debug)]
pub struct Code(Memory);

#[derive(Debug)]
enum Memory {
    Own(Mapping),
    Place(Place),
}

impl Code {
    /// Makes this code callable.
    pub fn new(code: &[u8]) -> io::Result<Self> {
        let mapping = Mapping::new(code.len().max(1), libc::PROT_READ | libc::PROT_WRITE, None)?;
        let (start, bytes) = (mapping.start.as_ptr(), mapping.bytes);
        // SAFETY: the mapping has this many bytes, and nobody else has it.
        let done = unsafe {
            std::ptr::copy_nonoverlapping(code.as_ptr(), start, code.len());
            libc::mprotect(start.cast(), bytes, libc::PROT_READ | libc::PROT_EXEC)
        };
        if done == 0 { Ok(Self(Memory::Own(mapping))) } else { Err(io::Error::last_os_error()) }
    }

    /// The code that another process has written to this place.
    pub fn at_place(place: Place) -> Self {
        sync_cores(SYNC_CORE);
        Self(Memory::Place(place))
    }

    /// Where a function of it begins; `None` = it is not in this memory.
    pub fn at(&self, offset: u32) -> Option<u64> {
        let (start, bytes) = match &self.0 {
            Memory::Own(mapping) => (mapping.start.as_ptr(), mapping.bytes),
            Memory::Place(place) => {
                let start = place.area.mapping.start.as_ptr();
                (start.wrapping_add(place.number as usize * PLACE_BYTES), PLACE_BYTES)
            }
        };
        ((offset as usize) < bytes).then(|| start.wrapping_add(offset as usize).expose_provenance() as u64)
    }
}
