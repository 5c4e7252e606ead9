//! The region of a pair of clients: memory that two clients share for the connections between them, and nobody else
//! maps. See the section *Pair region* of LAYOUT.md.

use crate::bytes::{count_of, span_of_one};
use crate::event_bitmap::{EventBitmap, MAX_SLOTS, WORD_SLOTS};
use crate::layout::{RINGS, VERSION};
use crate::mapping::{Access, Mapping, put_header};
use crate::memory::{SEALS, check_sealed, unsealed_memfd};
use crate::{AppLine, ByteRing, Geometry, MapError};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::io;

/// First bytes of every pair region.
pub const MAGIC: [u8; 8] = *b"TOWPAIR\0";
/// Event contexts of each side.
pub const CONTEXTS: usize = 64;
/// Pair regions of one client at most.
pub const PLACES: usize = 64;
const HEADER_BYTES: usize = 4096;
/// Memory is given back by the page.
const PAGE: usize = 4096;
/// A pair region's rings take no more address space than this, unless so few slots are left.
const SPACE: u64 = 4 << 30;
const FEWEST_SLOTS: u32 = 64;

/// The sizes of a pair region: the same for all pairs of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairGeometry {
    /// Connections, a power of two from 64 to 4096.
    pub slots: u32,
    /// Bytes of each ring, a power of two.
    pub ring_bytes: u32,
}

impl PairGeometry {
    /// The sizes for a service whose clients' regions have this geometry. A ring holds as much as the send ring of one
    /// side and the receive ring of the other together. So a program may have as many bytes under way as through a
    /// stack.
    pub fn of(geometry: &Geometry) -> Self {
        let ring_bytes = (geometry.tx_bytes + geometry.rx_bytes).next_power_of_two();
        let fit = (SPACE / (2 * u64::from(ring_bytes))) as u32;
        Self { slots: fit.clamp(FEWEST_SLOTS, MAX_SLOTS), ring_bytes }
    }

    /// Bytes of the sender's half of a ring that its `SO_SNDBUF` keeps it from using. `buffer` is the option as it
    /// reads; 0 = not set. As many bytes as the program has asked for remain: on Linux the other half of the value goes
    /// to bookkeeping.
    pub fn send_withheld(&self, buffer: u32) -> u32 {
        self.withheld(buffer, buffer / 2)
    }

    /// The same of a receiver's `SO_RCVBUF` and the other half. Three quarters of the option's value remain, as over
    /// Linux's loopback device.
    pub fn receive_withheld(&self, buffer: u32) -> u32 {
        self.withheld(buffer, buffer - buffer / 4)
    }

    fn withheld(&self, buffer: u32, remains: u32) -> u32 {
        if buffer == 0 { 0 } else { (self.ring_bytes / 2).saturating_sub(remains.max(1)) }
    }
}

/// The first bytes of a pair region. Written once by the service.
#[repr(C, align(64))]
pub struct PairHeader {
    /// [`MAGIC`].
    pub magic: [u8; 8],
    /// [`VERSION`].
    pub version: u32,
    /// Number of the pair, never 0.
    pub pair: u32,
}

/// One side's lines of a connection.
#[repr(C, align(256))]
pub struct PairLines {
    /// The words that this side shows the other. It keeps its own positions in its own region.
    pub line: AppLine,
    /// Counts events for this side; futex word of its blocking calls. Written by the other side and by the service.
    pub event_seq: AtomicU32,
    /// Bytes of the ring that this side writes which its `SO_SNDBUF` keeps it from using. Written by this side.
    pub send_withheld: AtomicU32,
    /// Bytes of the ring that the other side writes which this side's `SO_RCVBUF` keeps it from using. Written by this
    /// side.
    pub receive_withheld: AtomicU32,
}

/// The event bitmap of one side for one of its event contexts.
#[repr(C, align(128))]
pub struct BitmapWords {
    /// 1 while this side wants to be notified.
    pub armed: AtomicU32,
    /// Number of the doorbell, never 0. If it has changed, the writer must ask for the doorbell anew. Written by this
    /// side.
    pub doorbell: AtomicU32,
    _this: [u32; 14],
    /// See [`EventBitmap`]. It begins a cache line, which the words of the first 448 slots share: an event of theirs
    /// moves one line between the processors.
    pub summary: AtomicU64,
    /// See [`EventBitmap`].
    pub words: [AtomicU64; 64],
}

const _: () = assert!(size_of::<PairLines>() == 256);
const _: () = assert!(size_of::<BitmapWords>() == 640 && core::mem::offset_of!(BitmapWords, summary) == 64);

/// A mapped pair region. The service maps what comes before the rings.
pub struct PairRegion {
    mapping: Mapping,
    geometry: PairGeometry,
    /// One less than the ends, of which each slot has two.
    mask: u32,
    places: Places,
}

/// The addresses of its parts, computed once.
struct Places {
    lines: *mut u8,
    bitmaps: *mut u8,
    /// How many words an event bitmap has.
    words: usize,
    /// `None` if the rings are not mapped.
    rings: Option<NonNull<u8>>,
}

// SAFETY: the addresses are parts of the region's mapping, which belongs to the process and not to a thread.
unsafe impl Send for Places {}
// SAFETY: the addresses never change, and the region hands out atomics and copying views only.
unsafe impl Sync for Places {}

impl Places {
    fn of(mapping: &Mapping, geometry: PairGeometry, with_rings: bool) -> Self {
        let at = |offset| mapping.base.wrapping_add(offset);
        let rings = if with_rings { NonNull::new(at(rings(geometry))) } else { None };
        Self {
            lines: at(HEADER_BYTES),
            bitmaps: at(bitmaps(geometry)),
            words: (geometry.slots / WORD_SLOTS).max(1) as usize,
            rings,
        }
    }
}

/// One side of one connection, by the number of its lines and of the ring that it writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End(u32);

impl End {
    /// The other side of the connection.
    #[inline(always)]
    pub fn other(self) -> Self {
        Self(self.0 ^ 1)
    }
}

impl PairRegion {
    /// Service side: makes and seals the memfd of pair number `pair`, and maps all but its rings.
    pub fn create(geometry: PairGeometry, pair: u32) -> Result<(Self, OwnedFd), MapError> {
        let memfd = unsealed_memfd("towpath-pair", total_bytes(geometry))?;
        rustix::fs::fcntl_add_seals(&memfd, SEALS).map_err(io::Error::from)?;
        let mapping = Mapping::new(memfd.as_fd(), rings(geometry), Access::ReadWrite)?;
        // SAFETY: the mapping is page-aligned and longer than the header, and nobody else has it yet.
        unsafe { put_header!(mapping, PairHeader { magic: MAGIC, version: VERSION, pair: pair }) };
        Ok((Self { places: Places::of(&mapping, geometry, false), mapping, geometry, mask: mask(geometry) }, memfd))
    }

    /// Application side: checks and maps the region of pair number `pair`.
    pub fn map(fd: BorrowedFd<'_>, geometry: PairGeometry, pair: u32) -> Result<Self, MapError> {
        check(fd, geometry)?;
        let mapping = Mapping::new(fd, total_bytes(geometry), Access::ReadWrite)?;
        let region = Self { places: Places::of(&mapping, geometry, true), mapping, geometry, mask: mask(geometry) };
        region.check_header(pair)?;
        Ok(region)
    }

    /// Puts another pair's region in the place of this one, under the same addresses. A thread that still looks at the
    /// old one's words sees the new one's.
    pub fn replace(&self, fd: BorrowedFd<'_>, geometry: PairGeometry, pair: u32) -> Result<(), MapError> {
        if geometry != self.geometry {
            return Err(MapError::Format("its sizes are not those of the other pairs"));
        }
        check(fd, geometry)?;
        self.mapping.replace(fd)?;
        self.check_header(pair)
    }

    /// The pair is gone for good: lets the memory go, and keeps the addresses, which have zeros from now on.
    pub fn retire(&self) -> io::Result<()> {
        self.mapping.retire()
    }

    fn check_header(&self, pair: u32) -> Result<(), MapError> {
        // SAFETY: mapped and aligned, every bit pattern is a header, and volatile makes it one copy, which is then
        // checked.
        let header = unsafe { self.mapping.base.cast::<PairHeader>().read_volatile() };
        if header.magic != MAGIC || header.version != VERSION || header.pair != pair {
            return Err(MapError::Format("not the announced pair"));
        }
        Ok(())
    }

    /// Its sizes.
    #[inline]
    pub fn geometry(&self) -> PairGeometry {
        self.geometry
    }

    /// One side (0 or 1) of a connection. A slot beyond the region's is taken modulo its slots.
    #[inline(always)]
    pub fn end(&self, slot: u32, side: usize) -> End {
        End(slot << 1 | (side & 1) as u32)
    }

    /// The lines of one side (0 or 1) of a connection. A slot beyond the region's is taken modulo its slots.
    #[inline]
    pub fn lines(&self, slot: u32, side: usize) -> &PairLines {
        self.lines_of(self.end(slot, side))
    }

    /// The lines of one side of a connection.
    #[inline(always)]
    pub fn lines_of(&self, end: End) -> &PairLines {
        // SAFETY: inside the mapping and a multiple of 256; all words are atomics.
        unsafe { &*self.places.lines.cast::<PairLines>().add(self.number(end)) }
    }

    /// The words of one side's event bitmap for a context (modulo 64).
    #[inline]
    pub fn bitmap_words(&self, side: usize, context: usize) -> &BitmapWords {
        let at = size_of::<BitmapWords>() * (CONTEXTS * (side & 1) + context % CONTEXTS);
        // SAFETY: inside the mapping and a multiple of 128; all words are atomics.
        unsafe { &*self.places.bitmaps.add(at).cast() }
    }

    /// One side's event bitmap for a context: written by the other side.
    #[inline]
    pub fn event_bitmap(&self, side: usize, context: usize) -> EventBitmap<'_> {
        let words = self.bitmap_words(side, context);
        let slots = words.words.get(..self.places.words).unwrap_or(&words.words);
        EventBitmap::over(&words.summary, slots, &words.armed)
    }

    /// The ring that one side writes and the other reads. Not for the service, which has not mapped it.
    #[inline]
    pub fn ring(&self, slot: u32, side: usize) -> Option<ByteRing<'_>> {
        self.ring_of(self.end(slot, side))
    }

    /// [`PairRegion::ring`] of the side that writes it.
    #[inline]
    pub fn ring_of(&self, end: End) -> Option<ByteRing<'_>> {
        let ring_bytes = self.geometry.ring_bytes;
        // SAFETY: the rings are mapped to the last, and their size is a power of two.
        Some(unsafe { ByteRing::over(self.begin_of(end)?, ring_bytes) })
    }

    /// [`ByteRing::span`] of that ring.
    #[inline(always)]
    pub fn span(&self, end: End, position: u32, len: usize) -> Option<*mut u8> {
        span_of_one(self.begin_of(end)?, self.geometry.ring_bytes, position, len)
    }

    /// The next `unread` bytes of that ring from this position on, but no more than `most`: see [`Region::rx_piece`].
    ///
    /// [`Region::rx_piece`]: crate::Region::rx_piece
    #[inline(always)]
    pub fn piece(&self, end: End, position: u32, unread: u32, most: usize) -> Option<(*mut u8, usize)> {
        let count = count_of(unread, self.geometry.ring_bytes, most)?;
        Some((self.span(end, position, count)?, count))
    }

    /// Where the byte at this position of that ring is, for a hint to the processor. `None` to the service.
    #[inline]
    pub fn byte(&self, slot: u32, side: usize, position: u32) -> Option<*const u8> {
        self.byte_of(self.end(slot, side), position)
    }

    /// [`PairRegion::byte`] of the ring that this side writes.
    #[inline(always)]
    pub fn byte_of(&self, end: End, position: u32) -> Option<*const u8> {
        let ring_bytes = self.geometry.ring_bytes;
        Some(self.begin_of(end)?.wrapping_add((position & (ring_bytes - 1)) as usize))
    }

    /// Where the ring of the side that writes it begins.
    #[inline(always)]
    fn begin_of(&self, end: End) -> Option<*mut u8> {
        Some(self.places.rings?.as_ptr().wrapping_add(self.geometry.ring_bytes as usize * self.number(end)))
    }

    /// The number of an end, which may be of a larger region.
    #[inline(always)]
    fn number(&self, end: End) -> usize {
        (end.0 & self.mask) as usize
    }
}

fn mask(geometry: PairGeometry) -> u32 {
    2 * geometry.slots - 1
}

/// Gives the memory of a pair region back to the kernel; it reads as zeros afterwards. Only when nobody uses it any
/// more.
pub fn release(memfd: BorrowedFd<'_>, geometry: PairGeometry, rings_only: bool) {
    let from = if rings_only { rings(geometry) } else { 0 };
    punch(memfd, from, total_bytes(geometry));
}

/// The bytes of a ring that its reader has not read.
#[derive(Clone, Copy, Debug)]
pub struct Unread {
    /// The connection's slot.
    pub slot: u32,
    /// The side that has written them.
    pub side: usize,
    /// Position of the first.
    pub from: u32,
    /// How many. More than the ring has contradict the contract and count as a whole ring.
    pub len: u32,
}

/// One side of a pair is gone: gives back the rings but for what the other has still to read.
pub fn release_all_but(memfd: BorrowedFd<'_>, geometry: PairGeometry, unread: &[Unread]) {
    let ring_bytes = geometry.ring_bytes as usize;
    let mut kept: Vec<(usize, usize)> = Vec::new();
    for one in unread {
        let slot = (one.slot & (geometry.slots - 1)) as usize;
        let ring = rings(geometry) + ring_bytes * (2 * slot + (one.side & 1));
        let (from, len) = (one.from as usize & (ring_bytes - 1), (one.len as usize).min(ring_bytes));
        let first = len.min(ring_bytes - from);
        for (at, len) in [(ring + from, first), (ring, len - first)].into_iter().filter(|(_, len)| *len > 0) {
            kept.push((at / PAGE * PAGE, (at + len).next_multiple_of(PAGE)));
        }
    }
    kept.sort_unstable();
    kept.push((total_bytes(geometry), total_bytes(geometry)));
    let mut free = rings(geometry);
    for (from, to) in kept {
        punch(memfd, free, from);
        free = free.max(to);
    }
}

/// Gives the memory from byte `from` to byte `to` back to the kernel.
fn punch(memfd: BorrowedFd<'_>, from: usize, to: usize) {
    use rustix::fs::{FallocateFlags, fallocate};
    if from < to {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        // Should it fail, the memory goes with the last mapping.
        let _ = fallocate(memfd, flags, from as u64, (to - from) as u64);
    }
}

/// Where the event bitmaps begin.
fn bitmaps(geometry: PairGeometry) -> usize {
    HEADER_BYTES + 2 * size_of::<PairLines>() * geometry.slots as usize
}

/// Where the rings begin.
fn rings(geometry: PairGeometry) -> usize {
    (bitmaps(geometry) + 2 * CONTEXTS * size_of::<BitmapWords>()).next_multiple_of(RINGS)
}

fn total_bytes(geometry: PairGeometry) -> usize {
    rings(geometry) + 2 * geometry.slots as usize * geometry.ring_bytes as usize
}

/// Where event bitmaps and rings begin, and the end, for the table in the documentation.
pub fn parts(geometry: PairGeometry) -> [usize; 3] {
    [bitmaps(geometry), rings(geometry), total_bytes(geometry)]
}

fn check(fd: BorrowedFd<'_>, geometry: PairGeometry) -> Result<(), MapError> {
    let slots = geometry.slots.is_power_of_two() && (FEWEST_SLOTS..=MAX_SLOTS).contains(&geometry.slots);
    let ring = geometry.ring_bytes.is_power_of_two() && (4096..=64 << 20).contains(&geometry.ring_bytes);
    if !slots || !ring || check_sealed(fd)? != total_bytes(geometry) {
        return Err(MapError::Format("its sizes are not a pair's"));
    }
    Ok(())
}
