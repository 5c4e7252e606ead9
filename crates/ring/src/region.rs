//! One client's region: a sealed memfd, mapped by the service and by the client's processes.

use crate::bytes::{count_of, span_of_one};
use crate::dirty::DirtySet;
use crate::layout::{
    HEADER_BYTES, Header, MAGIC, PAGE, PRIVATE_HEADER_BYTES, PRIVATE_SLOT_BYTES, QueueWords, SlotLines, VERSION,
};
use crate::mapping::{Access, Mapping, put_header};
use crate::memory::{MapError, check_brought, check_sealed, new_memory};
use crate::{
    AppLine, ByteRing, CommandLine, CountsLine, Geometry, InfoLine, Layout, OptionsLine, Slot, StackLine, ring_size,
};
use core::ops::Range;
use core::sync::atomic::{AtomicU32, Ordering};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::rand::{GetRandomFlags, getrandom};
use std::io;
use std::sync::Arc;

/// A mapped region.
pub struct Region {
    mapping: Mapping,
    layout: Layout,
    places: Places,
    token: u64,
    offset: u64,
}

/// The addresses of the parts that every call on a socket uses, computed once.
struct Places {
    lines: *mut u8,
    private: *mut u8,
    /// Behind the part of the private area that belongs to no slot.
    private_slots: *mut u8,
    tx: *mut u8,
    rx: *mut u8,
    /// The bits that no [`Slot::offset`] has.
    no_offset: u32,
}

// SAFETY: the addresses are parts of the region's mapping, which belongs to the process and not to a thread.
unsafe impl Send for Places {}
// SAFETY: the addresses never change, and the region hands out atomics and copying views only.
unsafe impl Sync for Places {}

impl Places {
    /// Those of a mapping that has this layout.
    fn of(mapping: &Mapping, layout: &Layout) -> Self {
        let at = |offset: usize| mapping.base.wrapping_add(offset);
        let first = Slot(0);
        Self {
            lines: at(layout.lines(first)),
            private: at(layout.private()),
            private_slots: at(layout.private() + PRIVATE_HEADER_BYTES),
            tx: at(layout.tx(first)),
            rx: at(layout.rx(first)),
            no_offset: !Slot(layout.geometry().slots - 1).offset(),
        }
    }
}

impl Region {
    /// Service side: makes and seals a memfd (no shrinking, no growing, no further seals) and maps it.
    pub fn create(geometry: Geometry) -> Result<(Self, OwnedFd), MapError> {
        let memfd = new_memory(geometry)?;
        Self::create_on(memfd.as_fd(), geometry).map(|region| (region, memfd))
    }

    /// Service side: makes a region of the memory that a client has made, if that is as [`new_memory`] makes it. The client
    /// may change every byte of it at any time.
    pub fn create_on(memfd: BorrowedFd<'_>, geometry: Geometry) -> Result<Self, MapError> {
        let layout = Layout::new(geometry)?;
        check_brought(memfd, layout.total_bytes())?;
        let mapping = Mapping::new(memfd, layout.total_bytes(), Access::ReadWrite)?;
        Self::begin(mapping, layout, 0)
    }

    /// Service side: makes a region from byte `offset` (a multiple of the page) of a memfd that has others too. That
    /// part of it must be all zeros and nobody's.
    pub(crate) fn create_in(memfd: BorrowedFd<'_>, offset: u64, geometry: Geometry) -> Result<Self, MapError> {
        let layout = Layout::new(geometry)?;
        let mapping = Mapping::part(memfd, offset, layout.total_bytes(), Access::ReadWrite)?;
        Self::begin(mapping, layout, offset)
    }

    /// Writes the header.
    fn begin(mapping: Mapping, layout: Layout, offset: u64) -> Result<Self, MapError> {
        let geometry = layout.geometry();
        let (total_bytes, token) = (layout.total_bytes() as u64, random_token()?);
        // SAFETY: the mapping is page-aligned and at least `HEADER_BYTES` long. Nobody reads what is written here before
        // `Welcome`, but for a client that breaks the contract and harms itself.
        unsafe {
            put_header!(
                mapping,
                Header { magic: MAGIC, version: VERSION, total_bytes: total_bytes, token: token, geometry: geometry }
            )
        };
        Ok(Self { places: Places::of(&mapping, &layout), mapping, layout, token, offset })
    }

    /// Application side: checks seals, size and header, maps.
    pub fn map(fd: BorrowedFd<'_>, geometry: Geometry) -> Result<Self, MapError> {
        Self::map_at(fd, 0, geometry)
    }

    /// The same of a region that begins at byte `offset` of a memfd which has others too (see [`crate::guest_memory`]);
    /// 0 = it has none.
    pub fn map_at(fd: BorrowedFd<'_>, offset: u64, geometry: Geometry) -> Result<Self, MapError> {
        let layout = Layout::new(geometry)?;
        let (size, total) = (check_sealed(fd)? as u64, layout.total_bytes() as u64);
        let fits = if offset == 0 { size == total } else { offset.checked_add(total).is_some_and(|end| end <= size) };
        if !fits {
            return Err(MapError::Format("its size is not the announced one"));
        }
        let mapping = Mapping::part(fd, offset, layout.total_bytes(), Access::ReadWrite)?;
        Self::check(mapping, layout, offset)
    }

    /// The region that begins at byte `offset` of a mapping that has others too.
    pub(crate) fn within(whole: &Arc<Mapping>, offset: u64, geometry: Geometry) -> Result<Self, MapError> {
        let layout = Layout::new(geometry)?;
        let at = usize::try_from(offset).ok().and_then(|at| Mapping::within(whole, at, layout.total_bytes()));
        Self::check(at.ok_or(MapError::Format("it does not lie in its file"))?, layout, offset)
    }

    /// Checks the header.
    fn check(mapping: Mapping, layout: Layout, offset: u64) -> Result<Self, MapError> {
        let geometry = layout.geometry();
        // SAFETY: `HEADER_BYTES` are mapped and aligned, and every bit pattern is a `Header`. The volatile load makes
        // one copy of memory that may be changing; the copy is then checked.
        let header = unsafe { mapping.base.cast::<Header>().read_volatile() };
        if header.magic != MAGIC {
            return Err(MapError::Format("no Towpath region"));
        }
        if header.version != VERSION {
            return Err(MapError::Format("of another version"));
        }
        if header.geometry != geometry || header.total_bytes != layout.total_bytes() as u64 {
            return Err(MapError::Format("its sizes are not the announced ones"));
        }
        Ok(Self { places: Places::of(&mapping, &layout), mapping, layout, token: header.token, offset })
    }

    /// The addresses at which it is mapped.
    pub fn addresses(&self) -> Range<usize> {
        self.mapping.addresses()
    }

    /// Where it begins in its memfd, bytes.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The other side is gone for good: lets the memory go, and keeps the addresses, which have zeros from now on.
    pub fn retire(&self) -> io::Result<()> {
        self.mapping.retire()
    }

    /// The layout.
    #[inline]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The sizes.
    #[inline]
    pub fn geometry(&self) -> Geometry {
        self.layout.geometry()
    }

    /// Bytes of each receive ring when it has its largest size.
    #[inline(always)]
    pub fn rx_space(&self) -> u32 {
        self.layout.rx_space()
    }

    /// Never 0. A forked child shows it (`Request::Hello { join }`) to get the same region again.
    pub fn token(&self) -> u64 {
        self.token
    }

    /// Checks a slot number.
    #[inline]
    pub fn slot(&self, raw: u32) -> Option<Slot> {
        self.layout.slot(raw)
    }

    /// The slot of this [`Slot::offset`], with its lines and its part of the private area. `None`: there is none.
    #[inline(always)]
    pub fn slot_at(&self, offset: u32) -> Option<(Slot, &SlotLines, *mut u8)> {
        const { assert!(size_of::<SlotLines>() == 4 * PRIVATE_SLOT_BYTES) };
        if offset & self.places.no_offset != 0 {
            return None;
        }
        // SAFETY: the offset is that of a slot of this region. There its lines are, as in `lines`.
        let lines = unsafe { &*self.places.lines.add(offset as usize).cast() };
        Some((
            Slot(offset / size_of::<SlotLines>() as u32),
            lines,
            self.places.private_slots.wrapping_add(offset as usize / 4),
        ))
    }

    /// The application's line of a slot.
    #[inline]
    pub fn app(&self, slot: Slot) -> &AppLine {
        &self.lines(slot).app
    }
    /// The command line of a slot.
    #[inline]
    pub fn command(&self, slot: Slot) -> &CommandLine {
        &self.lines(slot).command
    }
    /// Options line of a slot.
    #[inline]
    pub fn options(&self, slot: Slot) -> &OptionsLine {
        &self.lines(slot).options
    }
    /// The stack's line of a slot.
    #[inline]
    pub fn stack(&self, slot: Slot) -> &StackLine {
        &self.lines(slot).stack
    }
    /// The information line of a slot.
    #[inline]
    pub fn info(&self, slot: Slot) -> &InfoLine {
        &self.lines(slot).info
    }

    /// The counts of a slot.
    #[inline]
    pub fn counts(&self, slot: Slot) -> &CountsLine {
        // SAFETY: the layout's offset is inside the mapping with a whole line behind it, and aligned as the line is. The
        // line consists of atomics, for which any bytes are valid.
        unsafe { &*self.at(self.layout.counts(slot)).cast() }
    }

    /// May the rings of this region grow: the send rings, the receive rings?
    #[inline]
    pub fn grows(&self) -> (bool, bool) {
        let (send, receive) = self.layout.first_halvings();
        (send != 0, receive != 0)
    }
    /// The send ring of a slot, of the size that its line says. The stack loads the size after the send tail.
    #[inline]
    pub fn tx(&self, slot: Slot) -> ByteRing<'_> {
        self.tx_halved(slot, ring_size::SEND.of(self.app(slot).want.load(Ordering::Relaxed)))
    }
    /// The receive ring of a slot, of the size that its line says. The application loads the size after the receive tail.
    #[inline]
    pub fn rx(&self, slot: Slot) -> ByteRing<'_> {
        self.rx_halved(slot, ring_size::RECEIVE.of(self.stack(slot).flow_group.load(Ordering::Relaxed)))
    }
    /// The send ring of a slot, of this size, which is no less than the first one.
    #[inline]
    pub fn tx_halved(&self, slot: Slot, halvings: u32) -> ByteRing<'_> {
        let (most, first) = (self.layout.first_halvings().0, self.geometry().tx_bytes);
        self.ring((self.layout.tx(slot), self.layout.tx_more(slot)), first, most - halvings.min(most))
    }
    /// The receive ring of a slot, of this size, which is no less than the first one.
    #[inline]
    pub fn rx_halved(&self, slot: Slot, halvings: u32) -> ByteRing<'_> {
        let (most, first) = (self.layout.first_halvings().1, self.geometry().rx_bytes);
        self.ring((self.layout.rx(slot), self.layout.rx_more(slot)), first, most - halvings.min(most))
    }
    /// The first part of a slot's ring, if those of all slots lie one behind the other from `first` on, with `bytes` bytes each.
    #[inline(always)]
    fn first_part(&self, first: *mut u8, slot: Slot, bytes: u32) -> *mut u8 {
        first.wrapping_add(self.layout.index(slot) * bytes as usize)
    }
    /// The ring whose two parts lie at these offsets. It has been doubled so many times: no more than the layout has room for, as
    /// both callers make sure.
    #[inline]
    fn ring(&self, (base, more): (usize, usize), first: u32, doublings: u32) -> ByteRing<'_> {
        // SAFETY: the offsets are the layout's, with `first` bytes and the rest of the largest size behind them, inside the mapping.
        // The size is no larger than that, by the limit on `doublings`, and `check` has made sure of powers of two.
        unsafe { ByteRing::over_two(self.at(base), first, self.at(more), first << doublings) }
    }
    /// [`ByteRing::span`] of a slot's send ring.
    #[inline(always)]
    pub fn tx_span(&self, slot: Slot, at: u32, len: usize) -> Option<*mut u8> {
        match self.grows().0 {
            true => self.tx(slot).span(at, len),
            false => self.first_tx_span(slot, at, len),
        }
    }
    /// [`Region::tx_span`], if the send rings of this region do not grow.
    #[inline(always)]
    pub fn first_tx_span(&self, slot: Slot, at: u32, len: usize) -> Option<*mut u8> {
        let bytes = self.geometry().tx_bytes;
        span_of_one(self.first_part(self.places.tx, slot, bytes), bytes, at, len)
    }
    /// The next `unread` bytes of a slot's receive ring from this position on, but no more than `most`: where they lie, and how
    /// many they are. `None`: there are none, the ring has no room for so many, or they do not lie in one piece.
    #[inline(always)]
    pub fn rx_piece(&self, slot: Slot, at: u32, unread: u32, most: usize) -> Option<(*mut u8, usize)> {
        if self.grows().1 {
            let ring = self.rx(slot);
            let count = count_of(unread, ring.capacity(), most)?;
            return Some((ring.span(at, count)?, count));
        }
        self.first_rx_piece(slot, at, unread, most)
    }
    /// [`Region::rx_piece`], if the receive rings of this region do not grow.
    #[inline(always)]
    pub fn first_rx_piece(&self, slot: Slot, at: u32, unread: u32, most: usize) -> Option<(*mut u8, usize)> {
        let bytes = self.geometry().rx_bytes;
        let count = count_of(unread, bytes, most)?;
        Some((span_of_one(self.first_part(self.places.rx, slot, bytes), bytes, at, count)?, count))
    }

    /// Application side: touches the lines of these slots before the stack does.
    pub fn touch_lines(&self, slots: Range<u32>) {
        let last = self.geometry().slots;
        let lines = |slot: u32| HEADER_BYTES + slot.min(last) as usize * size_of::<SlotLines>();
        self.mapping.touch(lines(slots.start) / PAGE * PAGE, lines(slots.end).next_multiple_of(PAGE));
    }

    /// Application side: touches these bytes of a slot's receive ring, from the ring's beginning, before the stack does. False:
    /// they could not be had.
    pub fn touch_receive_ring(&self, slot: Slot, bytes: Range<u32>) -> bool {
        self.receive_pages(slot, bytes).into_iter().all(|pages| self.mapping.touch(pages.start, pages.end))
    }

    /// Application side: touches the places of the next `bytes` bytes of a slot's receive ring from this position on.
    pub fn touch_next(&self, slot: Slot, position: u32, bytes: u32) -> bool {
        let ring = self.rx(slot).capacity();
        let (from, bytes) = (position & (ring - 1), bytes.min(ring));
        let over = (from + bytes).saturating_sub(ring);
        self.touch_receive_ring(slot, from..from + bytes - over) && self.touch_receive_ring(slot, 0..over)
    }

    /// Has somebody touched all these bytes of a slot's receive ring? This waits for no lock that a client can keep.
    pub fn has_memory(&self, slot: Slot, bytes: Range<u32>) -> bool {
        self.receive_pages(slot, bytes).into_iter().all(|pages| self.mapping.is_resident(pages.start, pages.end))
    }

    /// The pages of these bytes of a slot's receive ring, in both of its parts.
    fn receive_pages(&self, slot: Slot, bytes: Range<u32>) -> [Range<usize>; 2] {
        let (first, most) = (self.geometry().rx_bytes, self.geometry().rx_space());
        let pages = |base: usize, from: u32, to: u32| {
            (base + from as usize) / PAGE * PAGE..(base + to as usize).next_multiple_of(PAGE)
        };
        let more = |at: u32| at.clamp(first, most) - first;
        [
            pages(self.layout.rx(slot), bytes.start.min(first), bytes.end.min(first)),
            pages(self.layout.rx_more(slot), more(bytes.start), more(bytes.end)),
        ]
    }

    /// Application side: touches the entries of a context's event queues, all of which are used in turn, and the sequence
    /// words of the first slots.
    pub fn touch_events(&self, context: usize) {
        for thread in 0..self.layout.threads() {
            let (sequence, _) = self.layout.event_words(context, thread, Slot(0));
            self.mapping.touch(self.layout.event(context, thread), (sequence + 1).next_multiple_of(PAGE));
        }
    }

    /// Application side: gives back what is free of a slot's rings, but for the first `kept` bytes of each (send, receive). It
    /// reads as zeros afterwards. Nobody may use the slot's rings meanwhile but the stack, which goes on with what is queued.
    ///
    /// The service never does this to the memory of a client. The call waits for a lock of the file, and any process that
    /// has the file can keep that for ever.
    pub fn give_back_rings(&self, slot: Slot, kept: (u32, u32)) {
        self.give_back(slot, kept, 0);
    }

    /// Application side: gives back what is free of a slot's rings, but for the places of the next `bytes` bytes that come.
    pub fn give_back_idle_rings(&self, slot: Slot, bytes: u32) {
        self.give_back(slot, (0, 0), bytes);
    }

    fn give_back(&self, slot: Slot, kept: (u32, u32), next: u32) {
        let (app, stack, layout, geometry) = (self.app(slot), self.stack(slot), &self.layout, self.geometry());
        let (tail, head) = (app.tx_tail.load(Ordering::Relaxed), app.rx_head.load(Ordering::Relaxed));
        let queued = (stack.tx_head.load(Ordering::Acquire), tail);
        let unread = (head, stack.rx_tail.load(Ordering::Acquire));
        let (sends, receives) = (self.tx(slot).capacity(), self.rx(slot).capacity());
        // The application has touched all that it has granted. The stack may not have doubled the ring yet.
        let granted = self.rx_halved(slot, ring_size::RECEIVE_GRANTED.of(app.want.load(Ordering::Relaxed))).capacity();
        let rings = [
            (layout.tx(slot), layout.tx_more(slot), geometry.tx_bytes, kept.0, sends, sends, (queued, 0)),
            (layout.rx(slot), layout.rx_more(slot), geometry.rx_bytes, kept.1, receives, granted, (unread, next)),
        ];
        for (base, more, first, kept, bytes, touched, ((from, to), next)) in rings {
            // Nothing, if the ring has all that is touched.
            let beyond = (bytes.max(kept) as usize).next_multiple_of(PAGE)..touched as usize;
            let len = to.wrapping_sub(from).saturating_add(next);
            for part in free_parts(bytes, kept, from, len).into_iter().chain([beyond]) {
                let first = first as usize;
                self.mapping.give_back(base + part.start.min(first), base + part.end.min(first));
                self.mapping.give_back(more + part.start.max(first) - first, more + part.end.max(first) - first);
            }
        }
    }

    /// Memory of the application side that the stack never reads: `PRIVATE_HEADER_BYTES` + `PRIVATE_SLOT_BYTES` per
    /// slot.
    #[inline]
    pub fn private(&self) -> (*mut u8, usize) {
        (self.places.private, self.layout.private_bytes())
    }

    /// A slot's part of that memory.
    #[inline(always)]
    pub fn private_slot(&self, slot: Slot) -> *mut u8 {
        self.places.private_slots.wrapping_add(self.layout.index(slot) * PRIVATE_SLOT_BYTES)
    }

    /// Data doorbells of flow group `queue` (a higher number is taken as the last one), application to stack.
    /// Sequence words: `AppLine::data_seq`, `StackLine::data_ack`.
    #[inline]
    pub fn data_queue(&self, queue: usize) -> DirtySet<'_> {
        self.queue(self.layout.data_queue(queue.min(self.geometry().flow_groups as usize - 1)))
    }
    /// The words of the data doorbells that [`Region::data_queue`] gives.
    #[inline]
    pub fn data_queue_words(&self, queue: usize) -> &QueueWords {
        let offset = self.layout.data_queue(queue.min(self.geometry().flow_groups as usize - 1));
        // SAFETY: a queue's offset is a multiple of 4096 and its words are inside the mapping; what is public of them
        // are atomics.
        unsafe { &*self.at(offset).cast() }
    }
    /// Command doorbells, application to stack. Sequence words: `AppLine::ctl_seq`, `StackLine::ctl_ack`.
    #[inline]
    pub fn commands(&self) -> DirtySet<'_> {
        self.queue(self.layout.data_queue(self.geometry().flow_groups as usize))
    }
    /// Events raised by `thread` for `context`: first the flow groups, then the slow path. Higher numbers are taken as
    /// the last ones.
    #[inline]
    pub fn events(&self, context: usize, thread: usize) -> DirtySet<'_> {
        self.queue(self.layout.event(context, thread))
    }
    /// Sequence (stack-written) and acknowledge (application-written) words of `slot` in that event set.
    #[inline]
    pub fn event_words(&self, context: usize, thread: usize, slot: Slot) -> (&AtomicU32, &AtomicU32) {
        let (seq, ack) = self.layout.event_words(context, thread, slot);
        // SAFETY: the layout's offsets are inside the mapping and multiples of 4; the words are only used atomically.
        unsafe { (&*self.at(seq).cast(), &*self.at(ack).cast()) }
    }

    /// Queues an event again, whether its last entry was acknowledged or not: the stack that queued it may have died in
    /// between. `tail` is the writer's position in that queue.
    pub fn queue_event_again(&self, context: usize, source: usize, slot: Slot, tail: &mut u32) {
        let (seq, ack) = self.event_words(context, source, slot);
        self.events(context, source).push_again(tail, slot);
        seq.store(ack.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// The sequence and the acknowledge words of an event set, of all slots.
    #[inline]
    pub fn all_event_words(&self, context: usize, thread: usize) -> (&[AtomicU32], &[AtomicU32]) {
        let slots = self.geometry().slots as usize;
        let (seq, ack) = self.layout.event_words(context, thread, Slot(0));
        // SAFETY: the layout's offsets are inside the mapping and aligned. From each on there is an atomic word for
        // every slot.
        unsafe {
            let of = |offset| core::slice::from_raw_parts(self.at(offset).cast::<AtomicU32>(), slots);
            (of(seq), of(ack))
        }
    }

    /// All lines of a slot.
    #[inline]
    pub fn lines(&self, slot: Slot) -> &SlotLines {
        // SAFETY: the lines of the slots lie one behind the other from the first one's place on, as the layout has them. The
        // index is one of this region's, so these are inside the mapping. They are aligned, and all words are atomics.
        unsafe { &*self.places.lines.cast::<SlotLines>().add(self.layout.index(slot)) }
    }

    /// A queue of the application by its number: the data queues, then the command queue.
    pub(crate) fn queue_at(&self, queue: usize) -> DirtySet<'_> {
        self.queue(self.layout.data_queue(queue))
    }

    /// The memory that it is in.
    pub(crate) fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    #[inline]
    fn queue(&self, offset: usize) -> DirtySet<'_> {
        // SAFETY: a queue's offset is a multiple of 4096, and its words and `slots` entries, a power of two, are inside the mapping. All
        // of them are atomics; `QueueWords` has others only as padding, which nobody touches.
        unsafe {
            let words: &QueueWords = &*self.at(offset).cast();
            let entries = self.at(self.layout.entries(offset)).cast::<AtomicU32>();
            let entries = core::slice::from_raw_parts(entries, self.geometry().slots as usize);
            DirtySet::of_words(words, entries)
        }
    }

    #[inline]
    fn at(&self, offset: usize) -> *mut u8 {
        debug_assert!(offset <= self.layout.total_bytes());
        // SAFETY: only called with offsets of the layout, which are inside the mapping.
        unsafe { self.mapping.base.add(offset) }
    }
}

/// The free pages behind the first `kept` bytes of a ring of `bytes` bytes in which `len` from position `from` on are in use. A
/// range that ends before it begins has none.
fn free_parts(bytes: u32, kept: u32, from: u32, len: u32) -> [Range<usize>; 2] {
    let (ring, kept) = (bytes as usize, (kept as usize).next_multiple_of(PAGE));
    if len == 0 {
        return [kept..ring, 0..0];
    }
    let (begin, end) = ((from & (bytes - 1)) as usize, (from & (bytes - 1)) as usize + len as usize);
    let before = begin / PAGE * PAGE;
    match end.checked_sub(ring) {
        // They go on at the ring's beginning. An impossible length leaves nothing free.
        Some(over) => [over.next_multiple_of(PAGE).max(kept)..before, 0..0],
        None => [kept..before, end.next_multiple_of(PAGE).max(kept)..ring],
    }
}

/// A random number other than 0.
fn random_token() -> io::Result<u64> {
    loop {
        let mut bytes = [0u8; 8];
        // Requests up to 256 bytes are never cut short once the kernel's generator is ready, which it waits for.
        match getrandom(&mut bytes, GetRandomFlags::empty()) {
            Ok(8) if bytes != [0; 8] => return Ok(u64::from_ne_bytes(bytes)),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
