//! The state of a client that all threads share. State that the client must not be trusted with stands here and not in
//! its region.

use crate::ClientNamespace;
use crate::client_setup::{ClientId, ClientSetup, Lease, RemoteWaker};
use crate::event_count::EventCount;
use crate::give_way::woken;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use towpath_recorder::{self as recorder, Entry, Kind};
use towpath_ring::dirty::{acknowledge, acknowledge_all};
use towpath_ring::lines::app_flags;
use towpath_ring::wake::{futex_wake, futex_wake_one, notify};
use towpath_ring::{AppLine, Region, Slot};

/// The private words of one slot. The thread that writes the slot's stack line writes them. Other threads only count events.
pub struct SlotWords {
    /// Generation of the slot's present (or last) use.
    pub generation: AtomicU32,
    /// Events raised so far; the shared word is made of them.
    pub events: EventCount,
    /// A message about this slot is on its way to another thread. It bounds the messages that a client can cause.
    pub relayed: AtomicBool,
}

impl SlotWords {
    const fn new() -> Self {
        Self { generation: AtomicU32::new(0), events: EventCount::new(), relayed: AtomicBool::new(false) }
    }
}

/// Slots whose words lie together.
const PART: usize = 64;

/// The words of so many slots.
type Part = Arc<[SlotWords; PART]>;

/// The private words of one slot, found once for whoever needs them again and again.
pub struct SlotWordsOf {
    part: Part,
    place: u32,
}

impl SlotWordsOf {
    /// The words.
    #[inline(always)]
    pub fn get(&self) -> &SlotWords {
        &self.part[self.place as usize % PART]
    }
}

/// How much all rings of a client may have beyond their first sizes. Rings do not shrink while their connection is open. So this
/// bounds what many connections hold that were busy once, and what the service pays for a client that takes pages away.
pub const MOST_GROWTH_KIB: u32 = 256 << 10;

/// One client, as all threads know it.
pub struct ClientShared {
    /// Its number for the service.
    pub id: ClientId,
    /// Its place in the threads' tables. It is used again when every thread has forgotten the client.
    pub index: u32,
    /// Its region.
    pub region: Arc<Region>,
    /// One eventfd for each flow group, then the command queue's. Watched edge-triggered, never read.
    pub doorbells: Vec<OwnedFd>,
    /// Its user.
    pub uid: u32,
    /// Its process.
    pub pid: i32,
    /// Its program.
    pub name: String,
    /// Its network namespace.
    pub namespace: ClientNamespace,
    /// Words and entries of it that contradicted the contract.
    pub contract_violations: AtomicU64,
    /// Its part of the time of flow groups, ns.
    pub busy_ns: AtomicU64,
    /// See [`ClientSetup::remote_waker`].
    remote_waker: Option<Arc<dyn RemoteWaker>>,
    /// See [`ClientSetup::lease`].
    lease: Option<Lease>,
    /// KiB that its rings have, or may have, beyond their first sizes.
    grown: AtomicU32,
    /// In parts, which are made at their first use: most clients use few of their slots.
    slots: Box<[OnceLock<Part>]>,
}

impl ClientShared {
    /// A client that nobody knows yet.
    pub fn new(id: ClientId, index: u32, setup: ClientSetup) -> Self {
        let slots = setup.region.geometry().slots as usize;
        Self {
            id,
            index,
            region: setup.region,
            doorbells: setup.doorbells,
            uid: setup.uid,
            pid: setup.pid,
            name: setup.name,
            namespace: setup.namespace,
            contract_violations: AtomicU64::new(0),
            busy_ns: AtomicU64::new(0),
            remote_waker: setup.remote_waker,
            lease: setup.lease,
            grown: AtomicU32::new(0),
            slots: (0..slots.div_ceil(PART)).map(|_| OnceLock::new()).collect(),
        }
    }
    /// Takes a descriptor of the service for this client. `None`: its user has his share.
    pub fn take_descriptor(self: &Arc<Self>) -> Option<DescriptorShare> {
        let taken = self.lease.as_ref().is_none_or(|lease| lease.take_descriptor());
        taken.then(|| DescriptorShare(Arc::clone(self)))
    }
    /// May a ring of it grow by these bytes, a multiple of 1024? Then they are counted, until [`ClientShared::give_growth`].
    pub fn take_growth(&self, bytes: u32) -> bool {
        let more = |grown: u32| (grown + bytes / 1024 <= MOST_GROWTH_KIB).then_some(grown + bytes / 1024);
        self.grown.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }
    /// A connection is over whose rings had taken so much.
    pub fn give_growth(&self, bytes: u32) {
        self.grown.fetch_sub(bytes / 1024, Ordering::Relaxed);
    }
    /// Wakes the threads that sleep in calls on a slot: the first, or all.
    pub fn wake(&self, slot: Slot, first: bool) {
        towpath_probes::wake(self.index, self.pid);
        let word = &self.region.stack(slot).event_seq;
        if let Some(remote_waker) = &self.remote_waker {
            return remote_waker.wake(slot, first);
        }
        if first {
            futex_wake_one(word)
        } else {
            futex_wake(word)
        }
        woken();
    }
    /// Notifies through the doorbell of an event context.
    pub fn notify(&self, context: usize, doorbell: &OwnedFd) {
        towpath_probes::wake(self.index, self.pid);
        if let Some(remote_waker) = &self.remote_waker {
            return remote_waker.notify(context as u32);
        }
        notify(doorbell.as_fd());
        woken();
    }
    /// The private words of a slot.
    #[inline]
    pub fn words(&self, slot: Slot) -> &SlotWords {
        &self.part(slot)[slot.index() % PART]
    }
    /// The same, to be kept.
    pub fn words_of(&self, slot: Slot) -> SlotWordsOf {
        SlotWordsOf { part: Arc::clone(self.part(slot)), place: slot.raw() }
    }
    #[inline]
    fn part(&self, slot: Slot) -> &Part {
        self.slots[slot.index() / PART].get_or_init(|| Arc::new([const { SlotWords::new() }; PART]))
    }
    /// The generation of the slot's present use.
    #[inline]
    pub fn generation(&self, slot: Slot) -> u32 {
        self.words(slot).generation.load(Ordering::Relaxed)
    }
    /// Takes the next slot of a flow group's data queue, whose reader stands at `head`. `Some(None)` = an invalid
    /// number, which is counted.
    #[inline]
    pub fn next_data(&self, flow_group: usize, head: &mut u32) -> Option<Option<Slot>> {
        let raw = self.region.data_queue(flow_group).pop(head)?;
        let slot = self.known(raw);
        if let Some(slot) = slot {
            acknowledge(&self.region.app(slot).data_seq, &self.region.stack(slot).data_ack);
        }
        Some(slot)
    }
    /// The same of as many slots as `numbers` has room for. Returns how many entries there were. Those that name no slot are
    /// counted, and name none to the caller either.
    #[inline]
    pub fn next_data_some(&self, flow_group: usize, head: &mut u32, numbers: &mut [u32]) -> usize {
        let count = self.region.data_queue(flow_group).pop_some(head, numbers);
        if count != 0 {
            let slots = numbers[..count].iter().filter_map(|raw| self.known(*raw));
            acknowledge_all(slots.map(|slot| {
                let lines = self.region.lines(slot);
                (&lines.app.data_seq, &lines.stack.data_ack)
            }));
        }
        count
    }
    /// The same of the command queue.
    pub fn next_command(&self, head: &mut u32) -> Option<Option<Slot>> {
        let raw = self.region.commands().pop(head)?;
        let slot = self.known(raw);
        if let Some(slot) = slot {
            acknowledge(&self.region.app(slot).ctl_seq, &self.region.stack(slot).ctl_ack);
        }
        Some(slot)
    }
    #[inline]
    fn known(&self, raw: u32) -> Option<Slot> {
        let slot = self.region.slot(raw);
        if slot.is_none() {
            self.violated_contract();
        }
        slot
    }
    /// Counts a contract violation.
    pub fn violated_contract(&self) {
        self.contract_violations.fetch_add(1, Ordering::Relaxed);
        recorder::record(&Entry::new(Kind::Violation, self.index.into()));
    }
    /// [`AppWords::read`] for the slot's present use.
    #[inline]
    pub fn app_words(&self, slot: Slot) -> Option<AppWords> {
        AppWords::read(self.region.app(slot), self.generation(slot))
    }
}

/// A descriptor that counts to a client's user until this is dropped.
pub struct DescriptorShare(Arc<ClientShared>);

impl Drop for DescriptorShare {
    fn drop(&mut self) {
        if let Some(lease) = &self.0.lease {
            lease.give_descriptor_back();
        }
    }
}

/// One reading of an application's line.
#[derive(Clone, Copy, Debug)]
pub struct AppWords {
    /// `app_flags`.
    pub flags: u32,
    /// See `AppLine::tx_tail`.
    pub tx_tail: u32,
    /// See `AppLine::rx_head`.
    pub rx_head: u32,
    /// See `AppLine::want`.
    pub want: u32,
    /// Positions of the send ring that mean something; `None` = there was never one.
    pub marks: Option<AppMarks>,
}

impl AppWords {
    /// Reads an application's line once; `None` if it is meant for another generation.
    ///
    /// The generation is read first, then the flags, then the positions. The application stores them in the opposite
    /// order. So positions are at least as new as the flags, and a line that is being reset is never used.
    #[inline]
    pub fn read(line: &AppLine, generation: u32) -> Option<Self> {
        if line.generation.load(Ordering::Acquire) != generation {
            return None;
        }
        let flags = line.flags.load(Ordering::Acquire);
        let marks = (flags & MARKS != 0).then(|| AppMarks::read(line, flags));
        Some(Self {
            flags,
            tx_tail: line.tx_tail.load(Ordering::Acquire),
            rx_head: line.rx_head.load(Ordering::Acquire),
            // After the tail, which may need the new size.
            want: line.want.load(Ordering::Relaxed),
            marks,
        })
    }
}

/// The flags of marks.
const MARKS: u32 = app_flags::URGENT | app_flags::FLUSH | app_flags::RECORD;

/// Positions of the send ring to which the application has given a meaning; `None` = never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AppMarks {
    /// See `AppLine::urgent`.
    pub urgent: Option<u32>,
    /// See `AppLine::flush`.
    pub flush: Option<u32>,
    /// See `AppLine::record`.
    pub record: Option<u32>,
}

impl AppMarks {
    #[cold]
    fn read(line: &AppLine, flags: u32) -> Self {
        let mark = |flag, word: &AtomicU32| (flags & flag != 0).then(|| word.load(Ordering::Acquire));
        Self {
            urgent: mark(app_flags::URGENT, &line.urgent),
            flush: mark(app_flags::FLUSH, line.flush()),
            record: mark(app_flags::RECORD, line.record()),
        }
    }
}
