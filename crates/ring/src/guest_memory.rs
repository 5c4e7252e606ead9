//! The file that this host and a guest map. A guest is another kernel that serves the contract. The file holds, at
//! fixed places, the regions of as many clients as the guest can have. A few words let the two sides wake each other.
//!
//! A futex and a doorbell belong to one kernel. So a guest cannot wake an application. It writes an entry into its
//! *wake queue* instead, and a thread on the host wakes the application. Only loads and stores cross, and each word has
//! one writer.

use crate::layout::VERSION;
use crate::mapping::{Access, Mapping, put_header};
use crate::memory::{SEALS, unsealed_memfd};
use crate::{Geometry, Layout, MapError, Region};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::io;
use std::sync::Arc;

/// First bytes of the file.
pub const MAGIC: [u8; 8] = *b"TOWPCARD";
/// Most clients of a guest.
pub const MAX_CLIENTS: u32 = 64;
/// Entries of the wake queue.
const WAKES: u32 = 4096;
/// Where the queue begins, bytes.
const QUEUE: usize = 4096;
/// Where the first region begins, bytes; each begins at a multiple of this.
const ALIGNMENT: usize = 65_536;

/// The file's first bytes, written once by the host before the guest has it.
#[repr(C, align(64))]
struct GuestHeader {
    magic: [u8; 8],
    /// [`VERSION`].
    version: u32,
    /// Regions.
    clients: u32,
    /// Bytes of the file that are used.
    total: u64,
    /// Bytes from one region to the next.
    stride: u64,
    /// Of every region.
    geometry: Geometry,
}

/// Written by the host.
#[repr(C, align(64))]
struct HostLine {
    /// Not 0 while the host's thread sleeps and wants to be woken. Each sleep has another number.
    armed: AtomicU32,
    /// Wakes taken from the queue.
    taken: AtomicU32,
    /// Asks for an echo in [`GuestLine::pong`].
    ping: AtomicU32,
    /// Counts up while the host's side lives.
    heartbeat: AtomicU32,
}

/// Written by the guest.
#[repr(C, align(64))]
struct GuestLine {
    /// Wakes put into the queue.
    put: AtomicU32,
    /// Count of wakes for which there was no room. After a change everybody is to be woken.
    lost: AtomicU32,
    /// Counts up while the guest lives.
    heartbeat: AtomicU32,
    /// See [`HostLine::ping`].
    pong: AtomicU32,
    /// Bytes of messages read.
    consumed: AtomicU32,
}

#[repr(C)]
struct Words {
    header: GuestHeader,
    host: HostLine,
    guest: GuestLine,
}

/// A request to wake somebody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// The threads that sleep in calls on a slot of a client.
    Slot {
        /// Place of the client's region.
        place: u32,
        /// The slot.
        slot: u32,
        /// Wakes only the one that has slept for longest.
        first: bool,
    },
    /// The threads that wait for an event context of a client.
    Context {
        /// Place of the client's region.
        place: u32,
        /// The context.
        context: u32,
    },
    /// Everybody: something was lost.
    All,
}

impl Wake {
    fn word(self) -> u64 {
        let of = |kind: u64, place: u32, value: u32| kind << 56 | u64::from(place & 0xff) << 32 | u64::from(value);
        match self {
            Self::All => 0,
            Self::Slot { place, slot, first: false } => of(1, place, slot),
            Self::Slot { place, slot, first: true } => of(2, place, slot),
            Self::Context { place, context } => of(3, place, context),
        }
    }
    fn of(word: u64) -> Self {
        let (place, value) = ((word >> 32 & 0xff) as u32, word as u32);
        match word >> 56 {
            kind @ 1..=2 => Self::Slot { place, slot: value, first: kind == 2 },
            3 => Self::Context { place, context: value },
            _ => Self::All,
        }
    }
}

/// The mapped file.
pub struct GuestMemory {
    mapping: Arc<Mapping>,
    clients: u32,
    stride: u64,
    geometry: Geometry,
}

impl GuestMemory {
    /// Host: makes and seals the file for `clients` regions of these sizes, and maps it. The file of a PCI BAR is a
    /// power of two long. Its unused bytes take no memory.
    pub fn create(geometry: Geometry, clients: u32, is_bar: bool) -> Result<(Self, OwnedFd), MapError> {
        let stride = Layout::new(geometry)?.total_bytes().next_multiple_of(ALIGNMENT) as u64;
        if !(1..=MAX_CLIENTS).contains(&clients) {
            return Err(MapError::Format("a guest has 1 to 64 clients"));
        }
        let total = ALIGNMENT as u64 + stride * u64::from(clients);
        let bytes = if is_bar { total.next_power_of_two() } else { total };
        let bytes = usize::try_from(bytes).map_err(|_| MapError::Format("its size is no size"))?;
        let memfd = unsealed_memfd("towpath-guest", bytes)?;
        rustix::fs::fcntl_add_seals(&memfd, SEALS).map_err(io::Error::from)?;
        // The regions are mapped one by one, when somebody uses them.
        let mapping = Mapping::new(memfd.as_fd(), ALIGNMENT, Access::ReadWrite)?;
        // SAFETY: the mapping is page-aligned and longer than a header, and nobody else has it yet.
        unsafe {
            put_header!(
                mapping,
                GuestHeader {
                    magic: MAGIC,
                    version: VERSION,
                    clients: clients,
                    total: total,
                    stride: stride,
                    geometry: geometry
                }
            )
        };
        Ok((Self { mapping: Arc::new(mapping), clients, stride, geometry }, memfd))
    }

    /// How many regions of these sizes fit a file of at most `bytes`.
    pub fn fit(geometry: Geometry, bytes: u64) -> Result<u32, MapError> {
        let stride = Layout::new(geometry)?.total_bytes().next_multiple_of(ALIGNMENT) as u64;
        Ok((bytes.saturating_sub(ALIGNMENT as u64) / stride).min(MAX_CLIENTS.into()) as u32)
    }

    /// Guest: maps all that the host has made. The host can do anything to a guest, so this looks for mistakes only,
    /// not for attacks.
    pub fn map(device: BorrowedFd<'_>) -> Result<Self, MapError> {
        let first = Mapping::new(device, ALIGNMENT, Access::ReadWrite)?;
        // SAFETY: the mapping is aligned and longer than a header; every bit pattern is one, and it is copied before it
        // is checked.
        let header = unsafe { first.base.cast::<GuestHeader>().read_volatile() };
        if header.magic != MAGIC {
            return Err(MapError::Format("not a guest's memory"));
        }
        if header.version != VERSION {
            return Err(MapError::Format("of another version"));
        }
        let (clients, stride) = (header.clients, header.stride);
        let whole = Layout::new(header.geometry)?.total_bytes() as u64 <= stride
            && (1..=MAX_CLIENTS).contains(&clients)
            && stride.checked_mul(clients.into()).and_then(|all| all.checked_add(ALIGNMENT as u64))
                == Some(header.total);
        let bytes = usize::try_from(header.total).ok().filter(|_| whole);
        let bytes = bytes.ok_or(MapError::Format("its sizes are not the announced ones"))?;
        drop(first);
        let mapping = Arc::new(Mapping::new(device, bytes, Access::ReadWrite)?);
        Ok(Self { mapping, clients, stride, geometry: header.geometry })
    }

    /// How many regions there are.
    pub fn clients(&self) -> u32 {
        self.clients
    }
    /// The sizes of every region.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }
    /// Where the region of place `place` begins, bytes.
    pub fn offset(&self, place: u32) -> u64 {
        ALIGNMENT as u64 + self.stride * u64::from(place)
    }
    /// The place whose region begins there.
    pub fn place(&self, offset: u64) -> Option<u32> {
        (0..self.clients).find(|place| self.offset(*place) == offset)
    }

    /// Host: makes an empty region in a place that nobody uses.
    pub fn begin(&self, memfd: BorrowedFd<'_>, place: u32) -> Result<Region, MapError> {
        let place = Some(place).filter(|place| *place < self.clients).ok_or(MapError::Format("no such place"))?;
        let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        // This empties the place for every process that may still have it mapped.
        rustix::fs::fallocate(memfd, flags, self.offset(place), self.stride).map_err(io::Error::from)?;
        Region::create_in(memfd, self.offset(place), self.geometry)
    }

    /// Guest: the region in a place, as the host has made it.
    pub fn region(&self, place: u32) -> Result<Region, MapError> {
        let place = Some(place).filter(|place| *place < self.clients).ok_or(MapError::Format("no such place"))?;
        Region::within(&self.mapping, self.offset(place), self.geometry)
    }

    fn words(&self) -> &Words {
        // SAFETY: the words lie inside the first page of the mapping, which is aligned. All are atomics but the header,
        // which nobody reads by this reference.
        unsafe { &*self.mapping.base.cast() }
    }
    fn entry(&self, position: u32) -> &AtomicU64 {
        let at = QUEUE + (position % WAKES) as usize * size_of::<AtomicU64>();
        // SAFETY: the queue lies before the first region, aligned.
        unsafe { &*self.mapping.base.add(at).cast() }
    }

    /// Guest: queues a wake. `put` is its own position. The state that it announces must be stored before.
    pub fn put(&self, put: &mut u32, wake: Wake) {
        let (host, guest) = (&self.words().host, &self.words().guest);
        if put.wrapping_sub(host.taken.load(Ordering::Acquire)) >= WAKES {
            let lost = guest.lost.load(Ordering::Relaxed);
            return guest.lost.store(lost.wrapping_add(1), Ordering::Release);
        }
        self.entry(*put).store(wake.word(), Ordering::Relaxed);
        *put = put.wrapping_add(1);
        guest.put.store(*put, Ordering::Release);
    }
    /// Guest, after one or more [`GuestMemory::put`]: must the host be woken? `notified` remembers for which sleep it
    /// has been.
    pub fn must_notify(&self, notified: &mut u32) -> bool {
        fence(Ordering::SeqCst);
        let armed = self.words().host.armed.load(Ordering::Relaxed);
        armed != 0 && std::mem::replace(notified, armed) != armed
    }

    /// Host: the next wake. `taken` and `lost` are its own positions.
    pub fn take(&self, taken: &mut u32, lost: &mut u32) -> Option<Wake> {
        let (host, guest) = (&self.words().host, &self.words().guest);
        let now_lost = guest.lost.load(Ordering::Acquire);
        if std::mem::replace(lost, now_lost) != now_lost {
            return Some(Wake::All);
        }
        let put = guest.put.load(Ordering::Acquire);
        if put == *taken {
            return None;
        }
        // A position further ahead than the queue is long violates the contract.
        if put.wrapping_sub(*taken) > WAKES {
            *taken = put;
            host.taken.store(put, Ordering::Release);
            return Some(Wake::All);
        }
        let wake = Wake::of(self.entry(*taken).load(Ordering::Relaxed));
        *taken = taken.wrapping_add(1);
        host.taken.store(*taken, Ordering::Release);
        Some(wake)
    }
    /// Host: is there anything to take? [`GuestMemory::take`] checks the positions.
    pub fn has_wakes(&self, taken: u32, lost: u32) -> bool {
        let guest = &self.words().guest;
        guest.put.load(Ordering::Acquire) != taken || guest.lost.load(Ordering::Acquire) != lost
    }
    /// Host: about to sleep. It fences, and the host must look once more after it. `sleeps` counts the sleeps.
    pub fn arm(&self, sleeps: &mut u32) {
        *sleeps = sleeps.wrapping_add(1).max(1);
        self.words().host.armed.store(*sleeps, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }
    /// Host: awake.
    pub fn disarm(&self) {
        self.words().host.armed.store(0, Ordering::Relaxed);
    }

    /// Host: the guest has died, and another is to be started. The host's own positions begin anew, too.
    pub fn restart(&self) {
        let (host, guest) = (&self.words().host, &self.words().guest);
        // Nobody else writes the dead one's words.
        for word in [&host.taken, &host.armed, &guest.put, &guest.lost, &guest.consumed] {
            word.store(0, Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
    }
    /// Guest: counts up the guest's heartbeat.
    pub fn beat(&self) {
        let heartbeat = &self.words().guest.heartbeat;
        heartbeat.store(heartbeat.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }
    /// Host: a number that changes while the guest lives.
    pub fn heartbeat(&self) -> u32 {
        self.words().guest.heartbeat.load(Ordering::Relaxed)
    }
    /// Host: counts up the host's heartbeat.
    pub fn beat_of_host(&self) {
        let heartbeat = &self.words().host.heartbeat;
        heartbeat.store(heartbeat.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }
    /// Guest: a number that changes while the host's side lives.
    pub fn heartbeat_of_host(&self) -> u32 {
        self.words().host.heartbeat.load(Ordering::Relaxed)
    }
    /// Guest: notes that `bytes` more bytes of messages have been read.
    pub fn consume(&self, bytes: usize) {
        let consumed = &self.words().guest.consumed;
        consumed.store(consumed.load(Ordering::Relaxed).wrapping_add(bytes as u32), Ordering::Release);
    }
    /// Host: how many bytes of messages the guest has read, modulo 2^32.
    pub fn consumed(&self) -> u32 {
        self.words().guest.consumed.load(Ordering::Acquire)
    }
    /// Host: asks for `value` back.
    pub fn ping(&self, value: u32) {
        self.words().host.ping.store(value, Ordering::Release);
    }
    /// Host: the value that the guest has given back last.
    pub fn pong(&self) -> u32 {
        self.words().guest.pong.load(Ordering::Acquire)
    }
    /// Guest: gives back the value that the host asks for, and returns it.
    pub fn echo(&self) -> u32 {
        let value = self.words().host.ping.load(Ordering::Acquire);
        self.words().guest.pong.store(value, Ordering::Release);
        value
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn small() -> Geometry {
        Geometry { slots: 16, app_slots: 8, tx_bytes: 4096, rx_bytes: 4096, ..Geometry::DEFAULT }
    }

    fn mapped_twice() -> (GuestMemory, GuestMemory, OwnedFd) {
        let (host, memfd) = GuestMemory::create(small(), 3, true).unwrap();
        let guest = GuestMemory::map(memfd.as_fd()).unwrap();
        (host, guest, memfd)
    }

    #[test]
    fn both_sides_see_a_clients_region_and_the_next_client_nothing_of_it() {
        let (host, guest, memfd) = mapped_twice();
        let mine = host.begin(memfd.as_fd(), 1).unwrap();
        let theirs = guest.region(1).unwrap();
        let apps = Region::map_at(memfd.as_fd(), host.offset(1), host.geometry()).unwrap();
        assert_eq!((mine.token(), mine.offset()), (theirs.token(), theirs.offset()));
        let slot = apps.slot(3).unwrap();
        apps.tx(slot).write(0, b"bytes");
        let mut got = [0; 5];
        theirs.tx(slot).read(0, &mut got);
        assert_eq!(&got, b"bytes");
        let next = host.begin(memfd.as_fd(), 1).unwrap();
        next.tx(slot).read(0, &mut got);
        assert_eq!(got, [0; 5]);
        assert_ne!(next.token(), theirs.token());
        assert!(guest.region(2).is_err() && guest.region(3).is_err() && host.begin(memfd.as_fd(), 3).is_err());
        assert_eq!((host.place(host.offset(2)), host.place(1)), (Some(2), None));
    }

    #[test]
    fn wakes_come_in_order_and_what_there_was_no_room_for_wakes_everybody() {
        let (host, guest, _memfd) = mapped_twice();
        let (mut put, mut notified, mut taken, mut lost, mut sleeps) = (0, 0, 0, 0, 0);
        let wakes = [
            Wake::Slot { place: 2, slot: 7, first: false },
            Wake::Slot { place: 0, slot: 65_535, first: true },
            Wake::Context { place: 1, context: 63 },
        ];
        assert_eq!(host.take(&mut taken, &mut lost), None);
        assert!(!guest.must_notify(&mut notified), "the host is awake");
        host.arm(&mut sleeps);
        for wake in wakes {
            guest.put(&mut put, wake);
        }
        assert!(guest.must_notify(&mut notified) && !guest.must_notify(&mut notified), "once for each sleep");
        host.arm(&mut sleeps);
        assert!(guest.must_notify(&mut notified));
        for wake in wakes {
            assert_eq!(host.take(&mut taken, &mut lost), Some(wake));
        }
        for _ in 0..=WAKES {
            guest.put(&mut put, Wake::Context { place: 0, context: 0 });
        }
        assert_eq!(host.take(&mut taken, &mut lost), Some(Wake::All));
        let rest = std::iter::from_fn(|| host.take(&mut taken, &mut lost)).count();
        assert_eq!(rest as u32, WAKES);
    }

    #[test]
    fn a_guest_that_is_started_again_begins_with_an_empty_queue() {
        let (host, guest, _memfd) = mapped_twice();
        let (mut put, mut taken, mut lost) = (0, 0, 0);
        (0..3).for_each(|context| guest.put(&mut put, Wake::Context { place: 0, context }));
        assert!(host.take(&mut taken, &mut lost).is_some());
        guest.consume(77);
        host.restart();
        (put, taken, lost) = (0, 0, 0);
        assert_eq!((host.take(&mut taken, &mut lost), host.consumed()), (None, 0));
        guest.put(&mut put, Wake::Context { place: 1, context: 5 });
        assert_eq!(host.take(&mut taken, &mut lost), Some(Wake::Context { place: 1, context: 5 }));
    }

    #[test]
    fn a_guest_that_lies_about_its_wakes_costs_a_look_at_everybody() {
        let (host, guest, _memfd) = mapped_twice();
        let (mut taken, mut lost) = (0, 0);
        guest.words().guest.put.store(WAKES + 1, Ordering::Relaxed);
        assert!(host.has_wakes(taken, lost));
        assert_eq!(host.take(&mut taken, &mut lost), Some(Wake::All));
        assert!(!host.has_wakes(taken, lost));
        guest.entry(taken).store(u64::MAX, Ordering::Relaxed);
        guest.words().guest.put.store(taken.wrapping_add(1), Ordering::Release);
        assert_eq!(host.take(&mut taken, &mut lost), Some(Wake::All), "a kind that there is not");
    }

    #[test]
    fn each_side_sees_the_words_of_the_other() {
        let (host, guest, _memfd) = mapped_twice();
        assert_eq!((host.clients(), guest.clients(), guest.geometry()), (3, 3, host.geometry()));
        let error = guest.region(3).err().map(|error| error.to_string());
        assert!(error.is_some_and(|error| error.contains("no such place")));
        for beats in 1..4 {
            guest.beat();
            assert_eq!((host.heartbeat(), guest.heartbeat_of_host()), (beats, 0));
        }
        host.beat_of_host();
        host.beat_of_host();
        assert_eq!((host.heartbeat(), guest.heartbeat_of_host()), (3, 2));
        guest.consume(5);
        guest.consume(7);
        assert_eq!(host.consumed(), 12);
        host.ping(4711);
        assert_eq!((host.pong(), guest.echo(), host.pong()), (0, 4711, 4711));
        let mut sleeps = u32::MAX;
        host.arm(&mut sleeps);
        assert_eq!(sleeps, 1, "0 is no sleep");
        assert!(guest.must_notify(&mut 0));
        host.disarm();
        assert!(!guest.must_notify(&mut 0));
    }

    #[test]
    fn a_queue_takes_as_many_wakes_as_it_has_entries() {
        let (host, guest, _memfd) = mapped_twice();
        let (mut put, mut taken, mut lost) = (0, 0, 0);
        let wake = |context| Wake::Context { place: 2, context };
        assert!(!host.has_wakes(taken, lost));
        (0..WAKES).for_each(|context| guest.put(&mut put, wake(context)));
        assert!(host.has_wakes(taken, lost));
        (0..WAKES).for_each(|context| assert_eq!(host.take(&mut taken, &mut lost), Some(wake(context))));
        assert!(!host.has_wakes(taken, lost));
        (0..WAKES).for_each(|context| guest.put(&mut put, wake(context)));
        let before = taken;
        guest.put(&mut put, wake(0));
        assert_eq!((put, host.has_wakes(put, lost)), (2 * WAKES, true), "the one without room is lost");
        assert_eq!((host.take(&mut taken, &mut lost), taken), (Some(Wake::All), before));
    }

    #[test]
    fn as_many_regions_fit_as_begin_and_end_in_the_file() {
        let geometry = Geometry { slots: 16, app_slots: 8, tx_bytes: 4096, rx_bytes: 4096, ..Geometry::DEFAULT };
        let (memory, memfd) = GuestMemory::create(geometry, 2, false).unwrap();
        let (first, stride) = (memory.offset(0), memory.offset(1) - memory.offset(0));
        assert_eq!((first, stride % ALIGNMENT as u64), (65_536, 0));
        assert_eq!(rustix::fs::fstat(&memfd).unwrap().st_size as u64, first + 2 * stride);
        let fit = |bytes| GuestMemory::fit(geometry, bytes).unwrap();
        assert_eq!([fit(0), fit(first + stride - 1), fit(first + stride), fit(first + 3 * stride - 1)], [0, 0, 1, 2]);
        assert_eq!(fit(u64::MAX), MAX_CLIENTS);
        let (_, bar) = GuestMemory::create(geometry, 2, true).unwrap();
        assert_eq!(rustix::fs::fstat(&bar).unwrap().st_size as u64, (first + 2 * stride).next_power_of_two());
        for wrong in [0, MAX_CLIENTS + 1] {
            assert!(GuestMemory::create(geometry, wrong, false).is_err());
        }
    }

    #[test]
    fn what_is_no_guest_memory_is_not_mapped() {
        let (memory, memfd) = GuestMemory::create(Geometry::DEFAULT, 1, false).unwrap();
        drop(memory);
        rustix::io::pwrite(&memfd, &[0; 8], 24).unwrap();
        assert!(GuestMemory::map(memfd.as_fd()).is_err(), "its stride is too small");
        // One field at a time is wrong. Fields that depend on it agree with it where they can.
        let with = |change: &dyn Fn(&mut GuestHeader)| {
            let (memory, memfd) = GuestMemory::create(small(), 3, false).unwrap();
            // SAFETY: the mapping is aligned and longer than a header, and nobody else has it.
            change(unsafe { &mut *memory.mapping.base.cast::<GuestHeader>() });
            GuestMemory::map(memfd.as_fd()).is_ok()
        };
        let file = |clients: u32, stride: u64| u64::from(clients) * stride + ALIGNMENT as u64;
        assert!(with(&|_| ()) && with(&|header| (header.clients, header.total) = (2, file(2, header.stride))));
        assert!(!with(&|header| header.magic[7] ^= 1) && !with(&|header| header.version += 1));
        assert!(!with(&|header| header.total -= 1) && !with(&|header| header.clients = 2));
        assert!(!with(&|header| (header.clients, header.total) = (0, file(0, header.stride))), "no clients");
        assert!(!with(&|header| (header.stride, header.total) = (4096, file(3, 4096))), "a region does not fit");
        assert!(!with(&|header| header.stride = u64::MAX), "more than there is");
        rustix::io::pwrite(&memfd, b"?", 0).unwrap();
        assert!(GuestMemory::map(memfd.as_fd()).is_err());
    }
}
