//! Memory shared with the kernel: a mapping that is unmapped on drop, and the four AF_XDP rings.

use std::io;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

const WRITABLE: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// A memory mapping that this value owns.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: only this value owns the mapping, and mappings belong to the process, not to a thread.
unsafe impl Send for Mapping {}

impl Mapping {
    /// A shared mapping of a part of `fd`.
    pub fn shared(fd: BorrowedFd<'_>, bytes: usize, offset: libc::off_t) -> io::Result<Self> {
        Self::map(bytes, WRITABLE, libc::MAP_SHARED | libc::MAP_POPULATE, fd.as_raw_fd(), offset)
    }

    /// [`Mapping::shared`], through which nobody can write.
    pub fn read_only(fd: BorrowedFd<'_>, bytes: usize, offset: libc::off_t) -> io::Result<Self> {
        Self::map(bytes, libc::PROT_READ, libc::MAP_SHARED | libc::MAP_POPULATE, fd.as_raw_fd(), offset)
    }

    fn map(bytes: usize, access: i32, flags: i32, fd: i32, offset: libc::off_t) -> io::Result<Self> {
        // SAFETY: the kernel chooses the address of a new mapping, so no existing memory is touched.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, flags, fd, offset) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // Core dumps have no packets. An error leaves the mapping usable.
        // SAFETY: the range is the new mapping. The call changes nothing in it.
        unsafe { libc::madvise(start, bytes, libc::MADV_DONTDUMP) };
        match NonNull::new(start.cast()) {
            Some(start) => Ok(Self { start, bytes }),
            None => Err(io::Error::other("mmap returned address 0")),
        }
    }

    /// The address of the first byte.
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Its size.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `start` and `bytes` are those of a mapping that we made. No pointer into it outlives this value.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// Zeroed memory of this process for packets. Core dumps leave it out, and its pages are allocated at their first use.
#[derive(Debug)]
pub struct Buffer(Mapping);

impl Buffer {
    /// Of this many bytes.
    pub fn new(bytes: usize) -> io::Result<Self> {
        Mapping::map(bytes, WRITABLE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0).map(Self)
    }
}

impl Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the mapping has so many bytes, and only this value and its borrowers use them.
        unsafe { std::slice::from_raw_parts(self.0.start.as_ptr(), self.0.bytes) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for reading, and `self` is borrowed by the writer alone.
        unsafe { std::slice::from_raw_parts_mut(self.0.start.as_ptr(), self.0.bytes) }
    }
}

/// Offsets of a ring's parts in its mapping, in bytes (`xdp_ring_offset`).
#[derive(Clone, Copy)]
pub(crate) struct RingOffsets {
    pub producer: u64,
    pub consumer: u64,
    pub flags: u64,
    pub entries: u64,
}

impl From<libc::xdp_ring_offset> for RingOffsets {
    fn from(o: libc::xdp_ring_offset) -> Self {
        Self { producer: o.producer, consumer: o.consumer, flags: o.flags, entries: o.desc }
    }
}

/// One single-producer single-consumer ring, shared with the kernel. Entries are plain data.
pub(crate) struct Ring<T> {
    memory: Mapping,
    offsets: RingOffsets,
    size: u32,
    /// Our copy of the producer's position. It is ahead of the shared one if we produce, and behind it if we consume.
    produced: u32,
    /// Our copy of the consumer's position, likewise.
    consumed: u32,
    entries: PhantomData<T>,
}

impl<T: Copy + Send> Ring<T> {
    /// Maps a ring of `size` entries (a power of two).
    pub fn map(fd: BorrowedFd<'_>, size: u32, offsets: RingOffsets, page_offset: libc::off_t) -> io::Result<Self> {
        let bytes = offsets.entries + u64::from(size) * size_of::<T>() as u64;
        let word_end = offsets.producer.max(offsets.consumer).max(offsets.flags) + 4;
        let aligned = [offsets.producer, offsets.consumer, offsets.flags].iter().all(|o| o % 4 == 0)
            && offsets.entries.is_multiple_of(align_of::<T>() as u64);
        if !aligned || !size.is_power_of_two() {
            return Err(io::Error::other("the kernel's ring layout is not aligned"));
        }
        let memory = Mapping::shared(fd, bytes.max(word_end) as usize, page_offset)?;
        let mut ring = Self { memory, offsets, size, produced: 0, consumed: 0, entries: PhantomData };
        (ring.produced, ring.consumed) = (ring.producer(), ring.consumer());
        Ok(ring)
    }

    fn word(&self, offset: u64) -> &AtomicU32 {
        // SAFETY: `map` has checked that the word lies in the mapping and is aligned. The kernel accesses it only
        // atomically, too. The reference lives no longer than the mapping.
        unsafe { &*self.memory.start().as_ptr().add(offset as usize).cast::<AtomicU32>() }
    }

    /// The producer's position now. It counts all entries since the ring was made.
    pub fn producer(&self) -> u32 {
        self.word(self.offsets.producer).load(Ordering::Acquire)
    }

    /// The consumer's position now, likewise.
    pub fn consumer(&self) -> u32 {
        self.word(self.offsets.consumer).load(Ordering::Acquire)
    }

    /// Can both positions be those of this ring?
    pub fn fits(&self) -> bool {
        self.producer().wrapping_sub(self.consumer()) <= self.size
    }

    /// The entries that wait for the consumer, as they were when the ring was mapped.
    pub fn queued(&self) -> impl Iterator<Item = T> {
        let waiting = self.produced.wrapping_sub(self.consumed).min(self.size);
        // SAFETY: the producer has written these entries before it published its position, which was loaded with acquire.
        // Nobody writes them before the consumer has taken them. Every bit pattern is a valid T (u64 or xdp_desc).
        (0..waiting).map(|at| unsafe { self.entry(self.consumed.wrapping_add(at)).read() })
    }

    fn entry(&self, position: u32) -> *mut T {
        let index = (position & (self.size - 1)) as usize;
        // SAFETY: index < size, and `map` has mapped `size` entries from this offset.
        unsafe { self.memory.start().as_ptr().add(self.offsets.entries as usize).cast::<T>().add(index) }
    }

    /// Does the kernel need a system call to continue (XDP_USE_NEED_WAKEUP)?
    #[inline]
    pub fn needs_wakeup(&self) -> bool {
        self.word(self.offsets.flags).load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }

    /// As consumer: the number of entries that can be read.
    #[inline]
    pub fn readable(&mut self) -> u32 {
        if self.produced == self.consumed {
            self.produced = self.word(self.offsets.producer).load(Ordering::Acquire);
        }
        // More than `size` entries are impossible, so a larger claim is not followed.
        self.produced.wrapping_sub(self.consumed).min(self.size)
    }

    /// As consumer: the next of [`Ring::readable`] entries, which stays.
    #[inline]
    pub fn peek(&mut self) -> Option<T> {
        // SAFETY: the acquire load of the producer's position orders the kernel's write of this entry before this read.
        // The kernel does not write it again before `give_back`. Every bit pattern is a valid T (u64 or xdp_desc).
        (self.readable() != 0).then(|| unsafe { self.entry(self.consumed).read() })
    }

    /// As consumer: takes the next of [`Ring::readable`] entries. [`Ring::give_back`] returns them.
    #[inline]
    pub fn next(&mut self) -> Option<T> {
        let entry = self.peek()?;
        self.advance();
        Some(entry)
    }

    /// As consumer: takes the entry that [`Ring::peek`] has returned.
    #[inline]
    pub fn advance(&mut self) {
        self.consumed = self.consumed.wrapping_add(1);
    }

    /// As consumer: lets the kernel overwrite all entries that [`Ring::next`] has returned.
    #[inline]
    pub fn give_back(&mut self) {
        self.word(self.offsets.consumer).store(self.consumed, Ordering::Release);
    }

    /// As producer: has [`Ring::push`] room?
    #[inline]
    pub fn has_room(&mut self) -> bool {
        self.unconsumed() < self.size || self.waiting() < self.size
    }

    /// As producer: adds an entry; false = full. Visible to the kernel after [`Ring::publish`].
    #[inline]
    pub fn push(&mut self, entry: T) -> bool {
        if !self.has_room() {
            return false;
        }
        // SAFETY: the acquire load of the consumer's position shows that the kernel has read the old entry.
        unsafe { self.entry(self.produced).write(entry) };
        self.produced = self.produced.wrapping_add(1);
        true
    }

    /// As producer: entries that the kernel had not taken at the last load of its position.
    fn unconsumed(&self) -> u32 {
        self.produced.wrapping_sub(self.consumed)
    }

    /// As producer: makes pushed entries visible to the kernel.
    #[inline]
    pub fn publish(&mut self) {
        self.word(self.offsets.producer).store(self.produced, Ordering::Release);
    }

    /// As producer: the position, which counts all entries since the ring was made.
    pub fn position(&self) -> u32 {
        self.produced
    }

    /// As producer: how many entries the kernel does not see yet.
    pub fn unpublished(&self) -> u32 {
        self.produced.wrapping_sub(self.word(self.offsets.producer).load(Ordering::Relaxed)).min(self.size)
    }

    /// As producer: the one at this place of the [`Ring::unpublished`] ones.
    pub fn unpublished_entry(&self, place: u32) -> Option<T> {
        let count = self.unpublished();
        // SAFETY: `push` has written this entry, and the kernel takes it only after `publish`. Every bit pattern is a valid T (u64 or
        // xdp_desc).
        (place < count).then(|| unsafe { self.entry(self.produced.wrapping_sub(count - place)).read() })
    }

    /// As producer: keeps of the unpublished entries from this place on those for which `keep` says so.
    pub fn retain_unpublished(&mut self, from: u32, mut keep: impl FnMut(T) -> bool) {
        let count = self.unpublished();
        let from = from.min(count);
        let mut kept = from;
        for place in from..count {
            let Some(entry) = self.unpublished_entry(place) else { continue };
            if keep(entry) {
                // SAFETY: the kernel does not use entries that it does not see yet.
                unsafe { self.entry(self.produced.wrapping_sub(count - kept)).write(entry) };
                kept += 1;
            }
        }
        self.produced = self.produced.wrapping_sub(count - kept);
    }

    /// As producer: entries that the kernel has not taken yet.
    #[inline]
    pub fn waiting(&mut self) -> u32 {
        self.consumed = self.word(self.offsets.consumer).load(Ordering::Acquire);
        self.unconsumed()
    }
}
