//! State that the threads of the server share.

use crate::jobs::JobQueue;
use crate::layout::{CLIENTS, key, lane};
use crate::link::Link;
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, PoisonError, RwLock};
use towpath_forward::message::{self, ToHost};
use towpath_forward::server::commands::{Environment, ServerClient};
use towpath_forward::server::sender::MessageSender;
use towpath_ring::codec::{AppLineWords, app_word};
use towpath_ring::lines::{app_flags, want};
use towpath_ring::span::Span;
use towpath_ring::{Geometry, Region, Slot, wake};
use towpath_runtime::RemoteWaker;
use towpath_runtime::mailbox::Doorbell;

/// A client's region as the server has it.
pub struct RegionCopy {
    /// Index of the client.
    pub index: u32,
    /// Its lane.
    pub lane: u32,
    /// The server's copy of the region.
    pub region: Arc<Region>,
    /// Doorbells that the stack sleeps on: of the dirty set, of the command queue.
    doorbells: [OwnedFd; 2],
    /// Tail positions of these queues. One thread writes them.
    tails: [AtomicU32; 2],
    /// Slots for which the stack has written something.
    dirty: Box<[AtomicU64]>,
    /// Slots that the application has closed and the stack has not freed. The stack does not report when it frees
    /// them.
    pub closing: Box<[AtomicU64]>,
}

impl RegionCopy {
    /// Makes the stack report everything that happens in this slot.
    pub fn watch_slot(&self, slot: Slot) {
        let line = self.region.app(slot);
        if line.sleepers.load(Ordering::Relaxed) == 0 {
            line.want.store(want::WRITABLE, Ordering::Relaxed);
            line.sleepers.store(1, Ordering::Relaxed);
            // Earlier writes of the stack were not reported, so the slot is marked here.
            fence(Ordering::SeqCst);
            set_bit(&self.dirty, slot);
        }
    }
    /// Takes the slots with something to send.
    pub fn take_dirty(&self) -> Vec<Slot> {
        let words = self
            .dirty
            .iter()
            .map(|word| if word.load(Ordering::Relaxed) == 0 { 0 } else { word.swap(0, Ordering::AcqRel) });
        self.slots(words)
    }
    /// Marks a slot for later.
    pub fn mark_dirty(&self, slot: Slot) {
        set_bit(&self.dirty, slot);
    }
    /// True if there is something to send.
    pub fn is_dirty(&self) -> bool {
        self.dirty.iter().any(|word| word.load(Ordering::Acquire) != 0)
    }
    /// Slots that the application has closed.
    pub fn closing(&self) -> Vec<Slot> {
        self.slots(self.closing.iter().map(|word| word.load(Ordering::Relaxed)))
    }
    /// The slot has been freed.
    pub fn closed(&self, slot: Slot) {
        self.closing[slot.index() / 64].fetch_and(!(1 << (slot.index() % 64)), Ordering::Relaxed);
    }
    fn slots(&self, words: impl Iterator<Item = u64>) -> Vec<Slot> {
        let bits = |word: u64| (0..64).filter(move |bit| word >> bit & 1 != 0);
        words
            .zip((0..).step_by(64))
            .flat_map(|(word, at)| bits(word).map(move |bit| at + bit))
            .filter_map(|raw| self.region.slot(raw))
            .collect()
    }
    /// Stores an application's line, queues the slot and notifies the stack, as the application has done.
    pub fn apply_app_line(&self, slot: Slot, words: &AppLineWords, command: bool) {
        let (line, stack) = (self.region.app(slot), self.region.stack(slot));
        line.store(words);
        self.watch_slot(slot);
        if words[app_word::FLAGS] & app_flags::CLOSED != 0 {
            set_bit(&self.closing, slot);
        }
        let at = usize::from(command);
        let (queue, seq, ack) = match command {
            true => (self.region.commands(), &line.ctl_seq, &stack.ctl_ack),
            false => (self.region.data_queue(0), &line.data_seq, &stack.data_ack),
        };
        let mut tail = self.tails[at].load(Ordering::Relaxed);
        queue.push(&mut tail, slot, seq, ack);
        self.tails[at].store(tail, Ordering::Relaxed);
        if queue.must_notify() {
            wake::notify(self.doorbells[at].as_fd());
        }
    }
}

/// Sets a slot's bit.
pub fn set_bit(bits: &[AtomicU64], slot: Slot) {
    bits[slot.index() / 64].fetch_or(1 << (slot.index() % 64), Ordering::AcqRel);
}

/// A job for the sending thread.
pub enum ServerJob {
    /// Send a message.
    Message(u32, Vec<u8>),
    /// Send for this client from now on.
    Serve(Arc<RegionCopy>),
    /// Stop sending for the client of this index.
    Left(u32),
}

/// State that the threads share.
pub struct Shared {
    /// The link to the host.
    pub link: Arc<dyn Link>,
    pub geometry: Geometry,
    pub may_run: bool,
    pub clients: RwLock<HashMap<u32, Arc<RegionCopy>>>,
    /// Jobs for the sending thread.
    pub jobs: JobQueue<ServerJob>,
    /// Notified for jobs, and for writes of the stack.
    pub doorbell: Arc<Doorbell>,
    /// Watches the doorbell.
    pub epoll: OwnedFd,
    /// The server is to end.
    pub over: AtomicBool,
}

impl Shared {
    pub fn queue_job(&self, job: ServerJob) {
        if self.jobs.push(job) {
            self.doorbell.notify();
        } else {
            // The receiving thread sees that, and cleans up.
            self.link.close();
        }
    }
    pub fn client(&self, index: u32) -> Option<Arc<RegionCopy>> {
        self.clients.read().unwrap_or_else(PoisonError::into_inner).get(&index).cloned()
    }
    pub fn forget(&self, index: u32) {
        self.clients.write().unwrap_or_else(PoisonError::into_inner).remove(&index);
        self.link.deregister(key(index));
    }
}

/// Sends messages that concern no client.
pub struct HostMessages(pub Arc<Shared>);

impl MessageSender for HostMessages {
    fn send(&self, number: u32, message: &ToHost) -> io::Result<()> {
        let mut bytes = Vec::new();
        message::send(&mut bytes, number, message)?;
        self.0.queue_job(ServerJob::Message(0, bytes));
        Ok(())
    }
}

/// Wakes the sending thread when the stack has written for a client.
struct SendingWaker {
    shared: Arc<Shared>,
    client: Arc<RegionCopy>,
}

impl RemoteWaker for SendingWaker {
    fn wake(&self, slot: Slot, _: bool) {
        set_bit(&self.client.dirty, slot);
        self.shared.doorbell.notify();
    }
    /// No event context is open here.
    fn notify(&self, _: u32) {}
}

impl Drop for SendingWaker {
    fn drop(&mut self) {
        let (index, lane) = (self.client.index, self.client.lane);
        let mut bytes = Vec::new();
        let _ = message::send(&mut bytes, 0, &ToHost::Left { index });
        self.shared.queue_job(ServerJob::Left(index));
        // After everything that was sent for the client.
        self.shared.queue_job(ServerJob::Message(lane, bytes));
    }
}

pub struct RemoteEnvironment(pub Arc<Shared>);

impl Environment for RemoteEnvironment {
    fn client(&self, index: u32) -> io::Result<ServerClient> {
        let shared = &self.0;
        if index >= CLIENTS || shared.client(index).is_some() {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let region = Arc::new(Region::create(shared.geometry)?.0);
        let words = || (0..shared.geometry.slots.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        let client = Arc::new(RegionCopy {
            index,
            lane: lane(index, shared.link.lanes()),
            doorbells: [wake::doorbell()?, wake::doorbell()?],
            tails: Default::default(),
            dirty: words(),
            closing: words(),
            region: Arc::clone(&region),
        });
        shared.link.register(key(index), Span::of_sends(&region))?;
        shared.clients.write().unwrap_or_else(PoisonError::into_inner).insert(index, Arc::clone(&client));
        shared.queue_job(ServerJob::Serve(Arc::clone(&client)));
        let doorbells = client.doorbells.iter().map(|doorbell| doorbell.try_clone()).collect::<io::Result<_>>()?;
        Ok(ServerClient { region, doorbells, waker: Arc::new(SendingWaker { shared: Arc::clone(shared), client }) })
    }
    fn may_run(&self) -> bool {
        self.0.may_run
    }
}
