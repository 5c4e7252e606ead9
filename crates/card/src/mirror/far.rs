//! The other side: serves the kernel stack on copies of the regions.

use super::jobs::Jobs;
use super::record::Record;
use super::returner::Returner;
use super::wire::{Parts, Wire, receive};
use super::{CLIENTS, key, lane};
use crate::guest::ask::{Asker, Places};
use crate::guest::orders::{self, Server, Shared};
use crate::guest::post::Post;
use crate::message::{self, FromCard, ToCard};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, PoisonError, RwLock};
use towpath_kernel::{Kernel, KernelConfig};
use towpath_link::{Broken, Link, mail};
use towpath_ring::carry::{App, app};
use towpath_ring::layout::VERSION;
use towpath_ring::lines::{app_flags, want};
use towpath_ring::span::Span;
use towpath_ring::{Geometry, Layout, Region, Slot, wake};
use towpath_stack::Far;
use towpath_stack::mailbox::Bell;
use towpath_stack::thread::epoll_with;

/// Most bytes of a region that a near side may have made here; only what is used of it takes memory.
const REGION: usize = 64 << 30;
/// Most orders that have come and are not carried out.
const ORDERS: usize = 1 << 17;

/// How the other side serves.
#[derive(Clone, Debug)]
pub struct FarConfig {
    /// Its stack.
    pub kernel: KernelConfig,
    /// May the near side run programs here?
    pub may_run: bool,
}

/// A client, here.
pub struct Client {
    /// Its place.
    pub place: u32,
    /// Its lane.
    pub lane: u32,
    /// This side's copy of its region.
    pub region: Arc<Region>,
    /// What the stack sleeps on: doors, commands.
    bells: [OwnedFd; 2],
    /// Positions in these queues. One thread writes them.
    tails: [AtomicU32; 2],
    /// Slots for which the stack has written something.
    dirty: Box<[AtomicU64]>,
    /// Slots that the application has closed and the stack has not freed: it tells nobody of that.
    closing: Box<[AtomicU64]>,
}

impl Client {
    /// The stack tells of everything that happens in this slot from now on.
    pub fn attend(&self, slot: Slot) {
        let line = self.region.app(slot);
        if line.sleepers.load(Ordering::Relaxed) == 0 {
            line.want.store(want::WRITABLE, Ordering::Relaxed);
            line.sleepers.store(1, Ordering::Relaxed);
            // What it has written before is told of by us.
            fence(Ordering::SeqCst);
            set(&self.dirty, slot);
        }
    }
    /// Takes the slots for which there is something to carry.
    pub fn take_dirty(&self) -> Vec<Slot> {
        let words = self
            .dirty
            .iter()
            .map(|word| if word.load(Ordering::Relaxed) == 0 { 0 } else { word.swap(0, Ordering::AcqRel) });
        self.slots(words)
    }
    /// Carry it later.
    pub fn dirty_again(&self, slot: Slot) {
        set(&self.dirty, slot);
    }
    /// Is there something to carry?
    pub fn is_dirty(&self) -> bool {
        self.dirty.iter().any(|word| word.load(Ordering::Acquire) != 0)
    }
    /// Slots that are about to be freed.
    pub fn closing(&self) -> Vec<Slot> {
        self.slots(self.closing.iter().map(|word| word.load(Ordering::Relaxed)))
    }
    /// It is free.
    pub fn is_closed(&self, slot: Slot) {
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
    /// Stores an application's line, and rings for it as that would.
    fn bring(&self, slot: Slot, words: &App, command: bool) {
        let (line, stack) = (self.region.app(slot), self.region.stack(slot));
        line.bring(words);
        self.attend(slot);
        if words[app::FLAGS] & app_flags::CLOSED != 0 {
            set(&self.closing, slot);
        }
        let at = usize::from(command);
        let (queue, seq, ack) = match command {
            true => (self.region.commands(), &line.ctl_seq, &stack.ctl_ack),
            false => (self.region.doors(0), &line.door_seq, &stack.door_ack),
        };
        let mut tail = self.tails[at].load(Ordering::Relaxed);
        queue.push(&mut tail, slot, seq, ack);
        self.tails[at].store(tail, Ordering::Relaxed);
        if queue.must_ring() {
            wake::ring(self.bells[at].as_fd());
        }
    }
}

fn set(bits: &[AtomicU64], slot: Slot) {
    bits[slot.index() / 64].fetch_or(1 << (slot.index() % 64), Ordering::AcqRel);
}

/// What the returner is asked for.
pub enum Job {
    /// Send a message.
    Message(u32, Vec<u8>),
    /// Carry for this client from now on.
    Serve(Arc<Client>),
    /// Not any more.
    Left(u32),
}

/// What the threads share.
pub struct Inner {
    /// To the near side.
    pub link: Arc<dyn Link>,
    geometry: Geometry,
    may_run: bool,
    clients: RwLock<HashMap<u32, Arc<Client>>>,
    /// For the returner.
    pub jobs: Jobs<Job>,
    /// Rung for jobs, and for what the stack has written.
    pub bell: Arc<Bell>,
    /// Watches the bell.
    pub epoll: OwnedFd,
    /// It is over.
    pub over: AtomicBool,
}

impl Inner {
    fn give(&self, job: Job) {
        if self.jobs.give(job) {
            self.bell.ring();
        } else {
            // Whoever waits at the link is told, and does the rest.
            self.link.close();
        }
    }
    fn client(&self, place: u32) -> Option<Arc<Client>> {
        self.clients.read().unwrap_or_else(PoisonError::into_inner).get(&place).cloned()
    }
    fn forget(&self, place: u32) {
        self.clients.write().unwrap_or_else(PoisonError::into_inner).remove(&place);
        self.link.deregister(key(place));
    }
}

/// Messages of all that concerns no client.
struct Messages(Arc<Inner>);

impl Post for Messages {
    fn send(&self, number: u32, message: &FromCard) -> io::Result<()> {
        let mut bytes = Vec::new();
        message::send(&mut bytes, number, message)?;
        self.0.give(Job::Message(0, bytes));
        Ok(())
    }
}

/// The stack tells of a client.
struct Told {
    inner: Arc<Inner>,
    client: Arc<Client>,
}

impl Far for Told {
    fn wake(&self, slot: Slot, _: bool) {
        set(&self.client.dirty, slot);
        self.inner.bell.ring();
    }
    /// Nobody has a context here.
    fn ring(&self, _: u32) {}
}

impl Drop for Told {
    fn drop(&mut self) {
        let (place, lane) = (self.client.place, self.client.lane);
        let mut bytes = Vec::new();
        let _ = message::send(&mut bytes, 0, &FromCard::Left { place });
        self.inner.give(Job::Left(place));
        // After all that was carried for it.
        self.inner.give(Job::Message(lane, bytes));
    }
}

struct Copies(Arc<Inner>);

impl Shared for Copies {
    fn client(&self, place: u32) -> io::Result<orders::Client> {
        let inner = &self.0;
        if place >= CLIENTS || inner.client(place).is_some() {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let region = Arc::new(Region::create(inner.geometry).map_err(io::Error::other)?.0);
        let words = || (0..inner.geometry.slots.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        let client = Arc::new(Client {
            place,
            lane: lane(place, inner.link.lanes()),
            bells: [wake::doorbell()?, wake::doorbell()?],
            tails: Default::default(),
            dirty: words(),
            closing: words(),
            region: Arc::clone(&region),
        });
        inner.link.register(key(place), Span::of_sends(&region))?;
        inner.clients.write().unwrap_or_else(PoisonError::into_inner).insert(place, Arc::clone(&client));
        inner.give(Job::Serve(Arc::clone(&client)));
        let doorbells = client.bells.iter().map(|bell| bell.try_clone()).collect::<io::Result<_>>()?;
        Ok(orders::Client { region, doorbells, far: Arc::new(Told { inner: Arc::clone(inner), client }) })
    }
    fn may_run(&self) -> bool {
        self.0.may_run
    }
}

/// Why a near side is not served any more.
#[derive(Debug, thiserror::Error)]
pub enum FarError {
    /// The link is over.
    #[error(transparent)]
    Broken(#[from] Broken),
    /// This side cannot serve.
    #[error("serving: {0}")]
    Io(#[from] io::Error),
}

/// Serves one near side, until the link is over; why it is.
pub fn serve(link: Arc<dyn Link>, config: &FarConfig) -> FarError {
    let served = begin(link, config);
    match served {
        Ok(why) => FarError::Broken(why),
        Err(why) => why,
    }
}

fn begin(link: Arc<dyn Link>, config: &FarConfig) -> Result<Broken, FarError> {
    let (outbox, mut inbox) = mail::open(&link)?;
    let bell = Bell::new()?;
    let mut wire = Some(Wire::new(outbox));
    let mut reader: Option<Reader> = None;
    let mut failed = None;
    let why = receive(
        &*Arc::clone(&link),
        &mut inbox,
        |lane, record| match (&mut reader, record) {
            (Some(reader), record) => reader.record(lane, record),
            (None, Record::Greeting { version, geometry }) => {
                let wire = wire.take().ok_or(Broken::Rules("it greets twice"))?;
                let greeted = Reader::start(&link, &bell, (version, geometry), config, wire);
                reader = greeted.map_err(|error| failed = Some(error)).ok();
                if reader.is_some() { Ok(()) } else { Err(Broken::Ended) }
            }
            (None, _) => Err(Broken::Rules("it does not greet")),
        },
        || bell.ring(),
    );
    if let Some(reader) = reader {
        reader.end();
    }
    link.close();
    match failed {
        Some(error) => Err(error),
        None => Ok(why),
    }
}

/// The thread that reads what comes from the near side.
struct Reader {
    inner: Arc<Inner>,
    parts: Parts,
    asker: Asker,
    orders: SyncSender<(u32, ToCard)>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Reader {
    /// The near side has greeted: starts the stack and greets.
    fn start(
        link: &Arc<dyn Link>,
        bell: &Arc<Bell>,
        (version, geometry): (u32, Geometry),
        config: &FarConfig,
        mut wire: Wire,
    ) -> Result<Self, FarError> {
        let size = Layout::new(geometry).map(|layout| layout.total_bytes());
        let refuse = |why: &str, wire: &mut Wire| -> Result<Self, FarError> {
            let mut bytes = Vec::new();
            message::send(&mut bytes, 0, &FromCard::Broken { why: why.into() })?;
            wire.post(0, &bytes);
            wire.push()?;
            Err(io::Error::other(why.to_owned()).into())
        };
        if version != VERSION {
            return refuse("it is of another version", &mut wire);
        }
        if size.is_err() || size.is_ok_and(|size| size > REGION) || geometry.cores != 1 {
            return refuse("it serves no regions of that size", &mut wire);
        }
        let inner = Arc::new(Inner {
            link: Arc::clone(link),
            geometry,
            may_run: config.may_run,
            clients: RwLock::default(),
            jobs: Jobs::default(),
            epoll: epoll_with(bell)?,
            bell: Arc::clone(bell),
            over: AtomicBool::new(false),
        });
        let messages = Arc::new(Messages(Arc::clone(&inner))) as Arc<dyn Post>;
        let places = Places::default();
        let asker = Asker::new(Arc::clone(&messages), Arc::clone(&places));
        let stack = Arc::new(Kernel::start(&config.kernel, || Box::new(asker.clone()))?);
        let mut server = Server::new(Arc::clone(&messages), Box::new(Copies(Arc::clone(&inner))), stack, places)?;
        let (orders, work) = sync_channel(ORDERS);
        let returner = Returner::new(Arc::clone(&inner), wire);
        let spawn = |name: &str| std::thread::Builder::new().name(name.into());
        let threads =
            vec![spawn("returner").spawn(move || returner.run())?, spawn("orders").spawn(move || server.work(&work))?];
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned();
        messages.send(0, &FromCard::Hello { version: VERSION, release })?;
        Ok(Self { inner, parts: Parts::default(), asker, orders, threads })
    }

    fn record(&mut self, lane: u32, record: Record) -> Result<(), Broken> {
        match record {
            Record::Beat => {}
            Record::Part { last, bytes } => {
                if let Some((number, message)) = self.parts.message(lane, last, &bytes)? {
                    self.message(number, message)?;
                }
            }
            Record::App { place, slot, app } => {
                if let Some((client, slot)) = self.find(place, slot)? {
                    client.bring(slot, &app, false);
                }
            }
            Record::Command { place, slot, app, options, command } => {
                if let Some((client, slot)) = self.find(place, slot)? {
                    client.region.options(slot).bring(&options);
                    client.region.command(slot).bring(&command);
                    client.bring(slot, &app, true);
                }
            }
            Record::Greeting { .. } => return Err(Broken::Rules("it greets twice")),
            Record::Stack { .. } | Record::Info { .. } => {
                return Err(Broken::Rules("that is for the other side to hear"));
            }
        }
        Ok(())
    }

    /// A client and its slot; `None` = there is none.
    fn find(&self, place: u32, raw: u32) -> Result<Option<(Arc<Client>, Slot)>, Broken> {
        let Some(client) = self.inner.client(place) else { return Ok(None) };
        let slot = client.region.slot(raw).ok_or(Broken::Rules("there is no such slot"))?;
        Ok(Some((client, slot)))
    }

    fn message(&mut self, number: u32, message: ToCard) -> Result<(), Broken> {
        match &message {
            ToCard::Verdict(_) | ToCard::Limit(_) => {
                self.asker.answered(number, message);
                return Ok(());
            }
            ToCard::Hangup { place, slot, .. } => {
                let client = self.inner.client(*place);
                if let Some((client, slot)) =
                    client.and_then(|client| client.region.slot(*slot).map(|slot| (client, slot)))
                {
                    set(&client.closing, slot);
                    self.inner.bell.ring();
                }
            }
            ToCard::Remove { place } => self.inner.forget(*place),
            _ => {}
        }
        match self.orders.try_send((number, message)) {
            Err(TrySendError::Full(_)) => Err(Broken::Rules("it gives more orders than anybody can carry out")),
            // Without the thread that does it, this side is over.
            Err(TrySendError::Disconnected(_)) => Err(Broken::Ended),
            Ok(()) => Ok(()),
        }
    }

    /// The near side is gone, and with it all clients.
    fn end(self) {
        self.inner.over.store(true, Ordering::Release);
        self.inner.link.close();
        self.inner.bell.strike();
        drop(self.orders);
        self.asker.hang_up();
        for thread in self.threads {
            let _ = thread.join();
        }
    }
}
