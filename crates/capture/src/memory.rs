//! The memory of a capture: a sealed memfd with one ring for each port, and one for everything else. The service makes
//! and writes it, the command that captures reads it. A ring that is full takes nothing, and counts.
//!
//! The reader writes one word of each ring, how far it has read. The writer stays inside its ring with any value there.

use crate::record::{self, HEADER_BYTES, Header};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use towpath_ring::ByteRing;

/// The smallest ring: some of the largest frames fit.
pub const LEAST_RING: u32 = 256 << 10;
/// The largest ring.
pub const LARGEST_RING: u32 = 1 << 30;
const MAGIC: [u8; 8] = *b"TOWCAPT1";
const PAGE: usize = 4096;
/// Most rings.
pub const MAX_RINGS: usize = 256;
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// First bytes of the memory.
#[repr(C)]
#[derive(Clone, Copy)]
struct Start {
    magic: [u8; 8],
    rings: u32,
    ring_bytes: u32,
}

/// The words of a ring. Each side writes its own line.
#[repr(C, align(128))]
struct Words {
    /// The reader's position.
    head: AtomicU64,
    _other: [u64; 15],
    /// The writer's position.
    tail: AtomicU64,
    /// Frames that the filter has let through.
    seen: AtomicU64,
    /// Those of them for which there was no room.
    dropped: AtomicU64,
}

/// A mapping of the memory.
struct Mapping {
    base: *mut u8,
    rings: usize,
    ring_bytes: u32,
}

// SAFETY: the mapping belongs to the process. It hands out atomics and copies only.
unsafe impl Send for Mapping {}
// SAFETY: threads may share atomics; a ring's bytes have one writer and one reader by type.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(fd: BorrowedFd<'_>, rings: usize, ring_bytes: u32) -> io::Result<Self> {
        let (prot, bytes) = (ProtFlags::READ | ProtFlags::WRITE, total(rings, ring_bytes));
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: a fresh mapping at an address of the kernel's choice touches no memory in use.
        let base = unsafe { rustix::mm::mmap(std::ptr::null_mut(), bytes, prot, flags, fd, 0)? };
        // Core dumps have no packets. An error leaves the mapping usable.
        // SAFETY: the range is the new mapping. The call changes nothing in it.
        let _ = unsafe { rustix::mm::madvise(base, bytes, Advice::LinuxDontDump) };
        Ok(Self { base: base.cast(), rings, ring_bytes })
    }

    fn words(&self, ring: usize) -> &Words {
        assert!(ring < self.rings);
        // SAFETY: the words of all rings lie in the mapping, aligned as `Words` is, and are atomics.
        unsafe { &*self.base.add(PAGE + ring * size_of::<Words>()).cast() }
    }

    fn ring(&self, ring: usize) -> ByteRing<'_> {
        assert!(ring < self.rings);
        let at = bytes_at(self.rings) + ring * self.ring_bytes as usize;
        // SAFETY: the rings lie in the mapping, and their size is a power of two.
        unsafe { ByteRing::over(self.base.add(at), self.ring_bytes) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: it is our own mapping, and every view of it borrows this.
        let _ = unsafe { rustix::mm::munmap(self.base.cast(), total(self.rings, self.ring_bytes)) };
    }
}

fn bytes_at(rings: usize) -> usize {
    PAGE + (rings * size_of::<Words>()).next_multiple_of(PAGE)
}

fn total(rings: usize, ring_bytes: u32) -> usize {
    bytes_at(rings) + rings * ring_bytes as usize
}

/// The memory of a capture, for the service.
pub struct Memory(OwnedFd);

impl Memory {
    /// Makes the memory, with a writer for each of `rings` rings. The rings take `bytes` together, or as little as that
    /// number of rings can.
    pub fn new(rings: usize, bytes: u64) -> io::Result<(Self, Vec<Writer>)> {
        if !(1..=MAX_RINGS).contains(&rings) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let each = u32::try_from(bytes / rings as u64).unwrap_or(u32::MAX).clamp(LEAST_RING, LARGEST_RING);
        // The largest power of two that is not more.
        let ring_bytes = 1 << each.ilog2();
        let memfd = rustix::fs::memfd_create("towpath-capture", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&memfd, total(rings, ring_bytes) as u64)?;
        rustix::fs::fcntl_add_seals(&memfd, SEALS)?;
        let mapping = Arc::new(Mapping::new(memfd.as_fd(), rings, ring_bytes)?);
        let start = Start { magic: MAGIC, rings: rings as u32, ring_bytes };
        // SAFETY: the mapping is page-aligned and longer than this, and nobody else has it yet.
        unsafe { mapping.base.cast::<Start>().write(start) };
        let writer = |ring| Writer { mapping: Arc::clone(&mapping), ring, tail: 0, seen: 0, dropped: 0 };
        Ok((Self(memfd), (0..rings).map(writer).collect()))
    }
}

impl AsFd for Memory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The only writer of one ring.
pub struct Writer {
    mapping: Arc<Mapping>,
    ring: usize,
    tail: u64,
    seen: u64,
    dropped: u64,
}

impl Writer {
    /// Begins to leave frames there that the reader sees together, when the batch is dropped.
    pub fn batch(&mut self) -> Batch<'_> {
        let Self { mapping, ring, tail, seen, dropped } = self;
        let words = mapping.words(*ring);
        // A head that is no position of this ring leaves no room.
        let used = tail.wrapping_sub(words.head.load(Ordering::Acquire));
        let room = u64::from(mapping.ring_bytes).saturating_sub(used);
        Batch { words, bytes: mapping.ring(*ring), room, tail, seen, dropped }
    }

    /// Leaves a record there that is no frame. False = there is no room.
    pub fn tell(&mut self, header: Header, bytes: &[u8]) -> bool {
        self.batch().put(header, bytes)
    }

    /// Counts frames that the filter would have let through, but were lost before they came here.
    pub fn lose_seen(&mut self, frames: u64) {
        self.seen += frames;
        self.mapping.words(self.ring).seen.store(self.seen, Ordering::Relaxed);
        self.lose(frames);
    }

    /// Counts frames that were lost before any filter.
    pub fn lose(&mut self, frames: u64) {
        self.dropped += frames;
        self.mapping.words(self.ring).dropped.store(self.dropped, Ordering::Relaxed);
    }
}

/// Frames that are left in a ring together. What the reader has taken is looked at once, and so are the reader's words written.
pub struct Batch<'a> {
    words: &'a Words,
    bytes: ByteRing<'a>,
    /// Bytes that are free.
    room: u64,
    tail: &'a mut u64,
    seen: &'a mut u64,
    dropped: &'a mut u64,
}

impl Batch<'_> {
    /// Leaves a frame there, or counts it as dropped. `bytes` follow its header.
    #[inline(always)]
    pub fn leave(&mut self, header: Header, bytes: &[u8]) {
        *self.seen += 1;
        if !self.put(header, bytes) {
            *self.dropped += 1;
        }
    }

    // A call would cost nearly as much as what is in it.
    #[inline(always)]
    fn put(&mut self, header: Header, bytes: &[u8]) -> bool {
        let taken = (HEADER_BYTES + bytes.len()).next_multiple_of(8) as u64;
        if taken > self.room {
            return false;
        }
        self.bytes.write(*self.tail as u32, &header.encode(bytes.len()));
        self.bytes.write((*self.tail as u32).wrapping_add(HEADER_BYTES as u32), bytes);
        self.room -= taken;
        *self.tail += taken;
        true
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        self.words.seen.store(*self.seen, Ordering::Relaxed);
        self.words.dropped.store(*self.dropped, Ordering::Relaxed);
        // The reader finds what was left before.
        self.words.tail.store(*self.tail, Ordering::Release);
    }
}

/// The reading side.
pub struct Reader {
    mapping: Mapping,
    heads: Vec<u64>,
}

impl Reader {
    /// Checks and maps the memory.
    pub fn new(memory: BorrowedFd<'_>) -> io::Result<Self> {
        let wrong = || io::Error::new(io::ErrorKind::InvalidData, "this is not the memory of a capture");
        if !rustix::fs::fcntl_get_seals(memory).is_ok_and(|seals| seals.contains(SEALS)) {
            return Err(wrong());
        }
        let mut start = [0; size_of::<Start>()];
        if rustix::io::pread(memory, &mut start[..], 0)? != start.len() || start[..8] != MAGIC {
            return Err(wrong());
        }
        let word = |at: usize| u32::from_ne_bytes([start[at], start[at + 1], start[at + 2], start[at + 3]]);
        let (rings, ring_bytes) = (word(8) as usize, word(12));
        let sizes = (1..=MAX_RINGS).contains(&rings)
            && ring_bytes.is_power_of_two()
            && (LEAST_RING..=LARGEST_RING).contains(&ring_bytes);
        if !sizes || rustix::fs::fstat(memory)?.st_size as u64 != total(rings, ring_bytes) as u64 {
            return Err(wrong());
        }
        Ok(Self { mapping: Mapping::new(memory, rings, ring_bytes)?, heads: vec![0; rings] })
    }

    /// How many rings.
    pub fn rings(&self) -> usize {
        self.heads.len()
    }

    /// Copies the records of a ring to `to`, as many as have room there, and calls `each` with the place, the header and the
    /// bytes of each. Returns how many bytes they take. A ring whose words contradict themselves is read no further.
    pub fn take(&mut self, ring: usize, to: &mut [u8], mut each: impl FnMut(usize, Header, &[u8])) -> usize {
        let words = self.mapping.words(ring);
        let head = self.heads[ring];
        let there = words.tail.load(Ordering::Acquire).wrapping_sub(head);
        if there == 0 || there > u64::from(self.mapping.ring_bytes) {
            return 0;
        }
        // Records begin at multiples of eight.
        let count = (to.len() & !7).min(there as usize);
        let copied = &mut to[..count];
        self.mapping.ring(ring).read(head as u32, copied);
        let mut at = 0;
        while let Some((header, bytes)) = record::at(copied, at) {
            each(at, header, bytes);
            at += (HEADER_BYTES + bytes.len()).next_multiple_of(8);
        }
        // More than there is if the writer's tail is none of its own.
        let taken = at.min(count);
        self.heads[ring] = head + taken as u64;
        words.head.store(self.heads[ring], Ordering::Release);
        taken
    }

    /// Of all rings: frames that the filter has let through, and those of them that were lost.
    pub fn counts(&self) -> (u64, u64) {
        (0..self.rings()).map(|ring| self.mapping.words(ring)).fold((0, 0), |(seen, dropped), words| {
            (seen + words.seen.load(Ordering::Relaxed), dropped + words.dropped.load(Ordering::Relaxed))
        })
    }
}
