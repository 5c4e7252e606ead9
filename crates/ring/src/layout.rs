//! Where everything lies in a region. Both sides compute it from the same [`Geometry`].

use crate::ring_size::halvings;
use crate::{AppLine, CommandLine, CountsLine, InfoLine, OptionsLine, StackLine};
use core::ops::Range;
use core::sync::atomic::AtomicU32;

/// Version of the region format and of the control messages. Changes with every incompatible change of either.
pub const VERSION: u32 = 16;
/// First bytes of every region.
pub const MAGIC: [u8; 8] = *b"TOWPATH\0";
/// Bytes of the header at offset 0.
pub const HEADER_BYTES: usize = 4096;
/// Bytes at the start of the private area that belong to no slot.
pub const PRIVATE_HEADER_BYTES: usize = 4096;
/// Bytes of the private area for each slot.
pub const PRIVATE_SLOT_BYTES: usize = 128;
/// Bits of a [`Slot::offset`]. The lowest nine are 0.
pub const OFFSET_BITS: u32 = 25;
/// Parts of a region start at multiples of this, so that one part's pages hold nothing else.
pub(crate) const PAGE: usize = 4096;
/// Rings start at a multiple of this, the largest page of any kernel. So a kernel with such pages, too, has most rings' memory in
/// pages of their own, and takes it back when they are idle.
pub(crate) const RINGS: usize = 65_536;

/// The sizes a region is built from. The service fixes them; the application reads them once at mapping time and
/// checks them.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Socket slots, a power of two from 16 to 65,536.
    pub slots: u32,
    /// Slots `0..app_slots` are allocated by the application (`connect`, `listen`), the rest by the stack (`accept`).
    pub app_slots: u32,
    /// Bytes of each send ring at first, a power of two from 4 KiB to 16 MiB.
    pub tx_bytes: u32,
    /// Bytes of each receive ring at first, likewise.
    pub rx_bytes: u32,
    /// Bytes of each send ring at most, likewise; 0 = they do not grow.
    pub tx_most: u32,
    /// Bytes of each receive ring at most, likewise.
    pub rx_most: u32,
    /// Event contexts, 1 to 64.
    pub contexts: u32,
    /// Flow groups, 1 to 16. The application has one data queue for each flow group, and one command queue. Each
    /// context has an event queue for each thread of the stack that raises events: one for each flow group, then the
    /// slow path's.
    pub flow_groups: u32,
}

impl Geometry {
    /// The sizes that a service uses unless it is configured otherwise. The memory is sparse: only slots in use cost
    /// pages.
    pub const DEFAULT: Self = Self {
        // Enough for the connections of most programs; 512 bytes of lines each.
        slots: 16_384,
        app_slots: 8_192,
        // One 64 KiB segment in flight and one being filled; two such per direction.
        tx_bytes: 131_072,
        rx_bytes: 131_072,
        tx_most: 0,
        rx_most: 0,
        contexts: 64,
        flow_groups: 1,
    };

    /// Most flow groups that a region can be made for.
    pub const MAX_FLOW_GROUPS: u32 = 16;

    /// Bytes of each send ring when it has its largest size.
    #[inline]
    pub fn tx_space(&self) -> u32 {
        self.tx_bytes.max(self.tx_most)
    }

    /// Bytes of each receive ring when it has its largest size.
    #[inline]
    pub fn rx_space(&self) -> u32 {
        self.rx_bytes.max(self.rx_most)
    }

    /// The sizes with which rings begin, as [`ring_size`](crate::ring_size) keeps them: of the send and of the receive ring.
    pub fn first_halvings(&self) -> (u32, u32) {
        (halvings(self.tx_space(), self.tx_bytes), halvings(self.rx_space(), self.rx_bytes))
    }

    /// Usable bytes of a send ring when a kernel socket with an `SO_SNDBUF` sits behind the ring. `buffer` is the
    /// option as it reads; 0 = not set. Half of `buffer` is for data, which the socket behind holds. The ring's share
    /// is a quarter of `buffer`. So both together hold as much as Linux lets go, to within a factor of two.
    pub fn send_limit(&self, buffer: u32) -> u32 {
        if buffer == 0 { self.tx_bytes } else { (buffer / 4).clamp(1, self.tx_bytes) }
    }

    /// The same of a receive ring and an `SO_RCVBUF`. There is room for as much as `SO_RCVLOWAT` can ask for on Linux.
    pub fn receive_limit(&self, buffer: u32) -> u32 {
        if buffer == 0 { self.rx_bytes } else { (buffer / 2).clamp(1, self.rx_bytes) }
    }

    /// Checks every size against its documented range.
    pub fn check(&self) -> Result<(), GeometryError> {
        let size = |what, value: u32, good: bool, rule| {
            if good { Ok(()) } else { Err(GeometryError::Size { what, value: value.into(), rule }) }
        };
        let ring = |bytes: u32| bytes.is_power_of_two() && (4096..=16 << 20).contains(&bytes);
        let slots_good = self.slots.is_power_of_two() && (16..=65_536).contains(&self.slots);
        size("slots", self.slots, slots_good, "a power of two from 16 to 65536")?;
        size("app_slots", self.app_slots, (1..=self.slots).contains(&self.app_slots), "from 1 to slots")?;
        size("tx_bytes", self.tx_bytes, ring(self.tx_bytes), "a power of two from 4096 to 16777216")?;
        size("rx_bytes", self.rx_bytes, ring(self.rx_bytes), "a power of two from 4096 to 16777216")?;
        let most = |most, bytes| most == 0 || ring(most) && most >= bytes;
        let rule = "0, or a power of two up to 16777216 and no less than the ring has at first";
        size("tx_most", self.tx_most, most(self.tx_most, self.tx_bytes), rule)?;
        size("rx_most", self.rx_most, most(self.rx_most, self.rx_bytes), rule)?;
        size("contexts", self.contexts, (1..=64).contains(&self.contexts), "from 1 to 64")?;
        size("flow_groups", self.flow_groups, (1..=Self::MAX_FLOW_GROUPS).contains(&self.flow_groups), "from 1 to 16")
    }
}

impl Default for Geometry {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// A geometry that cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GeometryError {
    /// A size is outside its range or no power of two.
    #[error("{what} is {value}: it must be {rule}")]
    Size {
        /// Which field.
        what: &'static str,
        /// Its value.
        value: u64,
        /// The rule that it breaks.
        rule: &'static str,
    },
}

/// A slot number known to be inside its region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(pub(crate) u32);

impl Slot {
    /// The number.
    #[inline]
    pub fn index(self) -> usize {
        self.0 as usize
    }
    /// The number as stored in shared memory.
    #[inline]
    pub fn raw(self) -> u32 {
        self.0
    }
    /// The distance of its lines from those of the first slot, bytes. It has [`OFFSET_BITS`].
    #[inline]
    pub fn offset(self) -> u32 {
        self.0 * size_of::<SlotLines>() as u32
    }
}

/// The first bytes of a region. Written once, before the region is given away.
#[repr(C, align(64))]
pub struct Header {
    /// [`MAGIC`].
    pub magic: [u8; 8],
    /// [`VERSION`].
    pub version: u32,
    pub(crate) _reserved: u32,
    /// Bytes of the whole region, which is also the memfd's size.
    pub total_bytes: u64,
    /// Random number that a forked child shows to get the same region again.
    pub token: u64,
    /// The sizes from which the layout follows.
    pub geometry: Geometry,
}

/// The cache lines of one slot: first the application's, then the stack's. So a processor that fetches lines in pairs
/// does not fetch the other side's.
#[repr(C, align(512))]
pub struct SlotLines {
    /// Written by the application.
    pub app: AppLine,
    /// Written by the application.
    pub command: CommandLine,
    /// Written by the application.
    pub options: OptionsLine,
    /// Written by the stack.
    pub stack: StackLine,
    /// Written by the stack.
    pub info: InfoLine,
}

/// The words of one dirty set, before its entries. Writer's and reader's words lie in different pairs of cache lines.
#[repr(C, align(128))]
pub struct QueueWords {
    /// Count of pushes. Written by the writer.
    pub tail: AtomicU32,
    pub(crate) _writer: [u32; 31],
    /// Count of pops. Written by the reader.
    pub head: AtomicU32,
    /// 1 while the reader wants to be notified. Written by the reader.
    pub armed: AtomicU32,
    pub(crate) _reader: [u32; 30],
}

const _: () = assert!(size_of::<usize>() == 8, "regions need 64-bit addresses");
const _: () = assert!(size_of::<Header>() <= HEADER_BYTES);
const _: () = assert!(size_of::<SlotLines>() == 512 && 65_536 << 9 == 1 << OFFSET_BITS);
const _: () = assert!(size_of::<QueueWords>() == 256);

/// Byte offsets of the parts of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    geometry: Geometry,
    /// One less than the slots, which are a power of two.
    mask: u32,
    /// [`Geometry::rx_space`].
    rx_space: u32,
    first_halvings: (u32, u32),
    data_queues: usize,
    data_stride: usize,
    events: usize,
    event_stride: usize,
    private: usize,
    counts: usize,
    tx: usize,
    rx: usize,
    tx_more: usize,
    rx_more: usize,
    total: usize,
}

impl Layout {
    /// Computes the layout of a checked geometry.
    pub fn new(geometry: Geometry) -> Result<Self, GeometryError> {
        geometry.check()?;
        // No sum can overflow: the largest checked geometry makes a little over 2 TiB.
        let slots = geometry.slots as usize;
        let threads = geometry.flow_groups as usize + 1;
        let data_stride = pages(size_of::<QueueWords>() + 4 * slots);
        let event_stride = pages(size_of::<QueueWords>() + 3 * 4 * slots);
        let data_queues = pages(HEADER_BYTES + slots * size_of::<SlotLines>());
        let events = data_queues + threads * data_stride;
        let private = events + geometry.contexts as usize * threads * event_stride;
        let counts = pages(private + PRIVATE_HEADER_BYTES + slots * PRIVATE_SLOT_BYTES);
        let tx = (counts + slots * size_of::<CountsLine>()).next_multiple_of(RINGS);
        let rx = tx + slots * geometry.tx_bytes as usize;
        let tx_more = rx + slots * geometry.rx_bytes as usize;
        let rx_more = tx_more + slots * (geometry.tx_space() - geometry.tx_bytes) as usize;
        let total = rx_more + slots * (geometry.rx_space() - geometry.rx_bytes) as usize;
        Ok(Self {
            geometry,
            mask: geometry.slots - 1,
            rx_space: geometry.rx_space(),
            first_halvings: geometry.first_halvings(),
            data_queues,
            data_stride,
            events,
            event_stride,
            private,
            counts,
            tx,
            rx,
            tx_more,
            rx_more,
            total,
        })
    }

    /// The sizes it was computed from.
    #[inline]
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// [`Geometry::first_halvings`].
    #[inline]
    pub(crate) fn first_halvings(&self) -> (u32, u32) {
        self.first_halvings
    }

    /// [`Geometry::rx_space`].
    #[inline(always)]
    pub(crate) fn rx_space(&self) -> u32 {
        self.rx_space
    }

    /// Bytes of the whole region, a multiple of 4096.
    pub fn total_bytes(&self) -> usize {
        self.total
    }

    /// The pages that every client and its stack use, from their first to their last byte: the header, and the words of the
    /// queues. Entries of queues are written by the application, which so touches them first.
    pub(crate) fn always_used(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let (queues, stride) = (self.data_queues, self.data_stride);
        let words = (0..self.threads()).map(move |queue| queues + queue * stride..queues + queue * stride + PAGE);
        core::iter::once(0..HEADER_BYTES).chain(words)
    }

    /// Where the rings begin, which lie at the end, bytes.
    pub(crate) fn rings(&self) -> usize {
        self.tx
    }

    /// Checks a slot number.
    #[inline]
    pub fn slot(&self, raw: u32) -> Option<Slot> {
        (raw <= self.mask).then_some(Slot(raw))
    }

    /// The slots that the application allocates.
    pub fn app_slots(&self) -> impl ExactSizeIterator<Item = Slot> + use<> {
        (0..self.geometry.app_slots).map(Slot)
    }

    /// The slots that the stack allocates, for accepted connections.
    pub fn stack_slots(&self) -> impl ExactSizeIterator<Item = Slot> + use<> {
        (self.geometry.app_slots..self.geometry.slots).map(Slot)
    }

    /// May the application allocate this slot?
    pub fn is_app_slot(&self, slot: Slot) -> bool {
        slot.0 < self.geometry.app_slots
    }

    /// Sources of events in the stack: the flow groups, then the slow path.
    #[inline]
    pub fn threads(&self) -> usize {
        self.geometry.flow_groups as usize + 1
    }

    /// Offset of a slot's [`SlotLines`]. A slot of a larger region is taken modulo this one's slots, so that every
    /// offset is inside the region.
    #[inline]
    pub fn lines(&self, slot: Slot) -> usize {
        HEADER_BYTES + self.index(slot) * size_of::<SlotLines>()
    }

    /// Offset of a dirty set of the application: of a flow group's data, or, as the last, of commands. A higher number
    /// is taken as the last.
    #[inline]
    pub fn data_queue(&self, queue: usize) -> usize {
        self.data_queues + queue.min(self.geometry.flow_groups as usize) * self.data_stride
    }

    /// Offset of the event queue of stack thread `thread` for `context`. Higher numbers are taken as the last.
    #[inline]
    pub fn event(&self, context: usize, thread: usize) -> usize {
        let context = context.min(self.geometry.contexts as usize - 1);
        let thread = thread.min(self.geometry.flow_groups as usize);
        self.events + (context * self.threads() + thread) * self.event_stride
    }

    /// Offset of the entries of a queue that starts at `queue`.
    #[inline]
    pub fn entries(&self, queue: usize) -> usize {
        queue + size_of::<QueueWords>()
    }

    /// Offsets of the sequence and the acknowledge word of `slot` in that event queue.
    #[inline]
    pub fn event_words(&self, context: usize, thread: usize, slot: Slot) -> (usize, usize) {
        let slots = self.geometry.slots as usize;
        let seq = self.entries(self.event(context, thread)) + 4 * slots + 4 * self.index(slot);
        (seq, seq + 4 * slots)
    }

    /// Offset of the application's private area.
    #[inline]
    pub fn private(&self) -> usize {
        self.private
    }

    /// Bytes of the application's private area.
    #[inline]
    pub fn private_bytes(&self) -> usize {
        PRIVATE_HEADER_BYTES + self.geometry.slots as usize * PRIVATE_SLOT_BYTES
    }

    /// Offset of a slot's [`CountsLine`].
    #[inline]
    pub fn counts(&self, slot: Slot) -> usize {
        self.counts + self.index(slot) * size_of::<CountsLine>()
    }

    /// Offset of what a slot's send ring may have beyond its first size.
    #[inline]
    pub fn tx_more(&self, slot: Slot) -> usize {
        self.tx_more + self.index(slot) * (self.geometry.tx_space() - self.geometry.tx_bytes) as usize
    }

    /// Offset of what a slot's receive ring may have beyond its first size.
    #[inline]
    pub fn rx_more(&self, slot: Slot) -> usize {
        self.rx_more + self.index(slot) * (self.geometry.rx_space() - self.geometry.rx_bytes) as usize
    }

    /// Offset of a slot's send ring, as far as its first size goes.
    #[inline]
    pub fn tx(&self, slot: Slot) -> usize {
        self.tx + self.index(slot) * self.geometry.tx_bytes as usize
    }

    /// Offset of a slot's receive ring, as far as its first size goes.
    #[inline]
    pub fn rx(&self, slot: Slot) -> usize {
        self.rx + self.index(slot) * self.geometry.rx_bytes as usize
    }

    /// The number of a slot modulo this region's slots.
    #[inline(always)]
    pub(crate) fn index(&self, slot: Slot) -> usize {
        (slot.0 & self.mask) as usize
    }
}

/// Rounds up to whole pages.
fn pages(bytes: usize) -> usize {
    bytes.next_multiple_of(PAGE)
}
