//! The connection to the service: registration, and the mapped region.

use crate::data_queue::DataQueue;
use crate::descriptors::{protect, unprotect};
use crate::idle_time::IdleTime;
use crate::liveness::{LIFE_CHECK, Liveness};
use crate::lock::Lock;
use crate::pair_place::Place;
use crate::private::{self, Header, Private};
use crate::sys::{self, Sys, borrow};
use crate::tid::tid;
use crate::{callbacks, liveness, process, signals};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};
use core::time::Duration;
use rustix::fd::{AsFd, OwnedFd};
use towpath_ring::control::features;
use towpath_ring::layout::SlotLines;
use towpath_ring::pair::PLACES;
use towpath_ring::{Geometry, Region, Slot};

mod error;
mod service;

pub use error::SessionError;
pub use service::ShownFile;
pub(crate) use service::{ANSWER, Whose, ask, be_patient, call, call_at_once, whose};
use service::{Welcome, hello};

/// How long to spin before sleeping, unless `TOWPATH_SPIN_US` is set: the time of two wake-ups (about 10 µs each). Then
/// waiting costs at most twice as much as the better choice.
const SPIN_US: u64 = 20;
/// The same in a program with direct connections. One that opens many waits for the service to join the next: 30 µs and more.
/// That is more than waiting should cost, but a wait that was in vain makes such spins rare (`direct::spin`). Connections of one
/// request had 9,200, 11,100 and 17,200 per second with 20, 60 and 100 µs (two CPUs).
const DIRECT_SPIN_US: u64 = 100;
/// With fewer usable CPUs than this a program does not spin by default, because it would take the CPU from the stack or
/// its peer. Example: redis, one connection, two CPUs: 11,000 requests/s with spinning, 18,000 without.
const SPINNING_CPUS: usize = 4;
/// The most sessions of a process: its own, and one for each other client or stack whose sockets it has. Those whose service
/// has gone, but not their sockets, count too.
pub const SESSIONS: usize = 16;

/// A slot's lines and its private part.
pub type SlotWords<'a> = (&'a SlotLines, &'a Private);

/// One region of one service, and the connection to that service.
pub struct Session {
    /// Its number in this process.
    pub number: u32,
    /// Its number, above the bits of a [`Slot::offset`].
    pub tag: u32,
    /// The number of the service's other stack plus one; 0 = the service itself.
    pub stack: u32,
    /// The region.
    pub region: Region,
    /// Its sizes, checked when it was mapped.
    pub geometry: Geometry,
    /// The data queues, by the number in a slot's stack line.
    pub(crate) data_queues: [DataQueue; Geometry::MAX_FLOW_GROUPS as usize],
    /// How long to spin, µs.
    pub spin_us: u64,
    /// How long to spin for the other side of a direct connection, µs.
    pub direct_spin_us: u64,
    control: AtomicI32,
    /// The number that the service has given this process.
    process: AtomicU32,
    pub(crate) token: u64,
    /// Bits of [`towpath_ring::control::features`].
    features: u32,
    /// The network namespace whose sockets the stack serves, as SO_NETNS_COOKIE names it; 0: it has a network of its own.
    namespace: u64,
    /// When its idle connections give memory back.
    pub(crate) idle: IdleTime,
    /// The service's path. Kept, because programs clear their environment before they fork (nginx does).
    pub(crate) path: Vec<u8>,
    /// The process that `control` belongs to.
    joined_pid: AtomicI32,
    /// Eventfds: one per data queue, then the command queue's.
    doorbells: Vec<AtomicI32>,
    /// Held during a request that has an answer, and while the process joins.
    talking: Lock,
    /// Answers that have not come in time and will come on `control`. Changed while `talking` is held.
    unheard: AtomicU32,
    dead: AtomicBool,
    /// When the service was found dead, ms of the coarse monotonic clock.
    pub(crate) died_ms: AtomicU64,
    /// When a thread last checked whether the service is alive, ms.
    checked_ms: AtomicU64,
    /// Which thread checks the service often.
    pub liveness: Liveness,
    /// The stack has no event contexts left for this process.
    pub out_of_contexts: AtomicBool,
    /// The stack does not send files.
    no_files: AtomicBool,
    /// The process uses its parent's connection, because it could not join.
    shares_connection: AtomicBool,
    /// The places of pair regions that are in use (bits).
    pub(crate) pairs: AtomicU64,
    /// The places themselves.
    pub(crate) places: [Place; PLACES],
    /// It is the process's own session with its stack, so contexts can subscribe to its sockets.
    pub can_subscribe: bool,
    /// How often its stack has refused listeners that wait for a service.
    pub refusals: AtomicU32,
}

/// The process's own session.
static OWN: AtomicPtr<Session> = AtomicPtr::new(core::ptr::null_mut());
/// [`OWN`] as long as calls may take the usual path on its sockets: see [`usual`].
static USUAL: AtomicPtr<Session> = AtomicPtr::new(core::ptr::null_mut());
/// All sessions by number.
static ALL: [AtomicPtr<Session>; SESSIONS] = [const { AtomicPtr::new(core::ptr::null_mut()) }; SESSIONS];
pub(crate) static STARTING: Lock = Lock::new();

/// The process's own session, if there is one. After its service's end it is that one until there is another.
#[inline]
pub fn get() -> Option<&'static Session> {
    // SAFETY: the pointer is null or a leaked box, and never becomes null again.
    unsafe { OWN.load(Ordering::Acquire).as_ref() }
}

/// The process's own session, unless its service has died or a thread of the process has ever been cancelled. A call that asks
/// this needs to ask neither again: it may be as late as a call that has asked just before.
#[inline(always)]
pub fn usual() -> Option<&'static Session> {
    // SAFETY: the pointer is null or a leaked box.
    unsafe { USUAL.load(Ordering::Acquire).as_ref() }
}

/// A service has been found dead, or a thread is being cancelled: [`usual`] may have to end.
pub(crate) fn review_usual() {
    // The word is looked at again after it has been stored. So of two threads the later one sees what both have found.
    loop {
        let usual = get().filter(|own| !own.is_dead() && !towpath_hook::cancel::ever());
        USUAL.store(usual.map_or(core::ptr::null_mut(), |own| core::ptr::from_ref(own).cast_mut()), Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let now = get().filter(|own| !own.is_dead() && !towpath_hook::cancel::ever());
        if usual.map(core::ptr::from_ref) == now.map(core::ptr::from_ref) {
            return;
        }
    }
}

/// The session of this number.
#[inline]
pub fn numbered(number: u32) -> Option<&'static Session> {
    // SAFETY: the pointer is null or a leaked box.
    unsafe { ALL.get(number as usize)?.load(Ordering::Acquire).as_ref() }
}

/// The session of this number is another from now on, or none (null). The caller holds `STARTING`.
pub(crate) fn set_numbered(number: u32, session: *mut Session) {
    ALL[number as usize].store(session, Ordering::Release);
}

/// This session is the process's own from now on. The caller holds `STARTING`.
pub(crate) fn set_own(session: &'static Session) {
    OWN.store(core::ptr::from_ref(session).cast_mut(), Ordering::Release);
    review_usual();
}

/// All sessions.
pub fn all() -> impl Iterator<Item = &'static Session> {
    (0..SESSIONS as u32).filter_map(numbered)
}

/// Milliseconds of the coarse monotonic clock.
pub fn coarse_ms() -> u64 {
    sys::clock(libc::CLOCK_MONOTONIC_COARSE).as_millis() as u64
}

/// The sessions (bits) whose stacks have died. Checks `now`, or if the last check was some time ago.
pub fn gone(now: bool) -> u32 {
    let alive = |session: &Session| {
        if now {
            session.look_at_idle();
            session.check_alive()
        } else {
            session.check_alive_if_due()
        }
    };
    all().filter(|session| !alive(session)).fold(0, |gone, session| gone | 1 << session.number)
}

impl Session {
    /// Registers with a new region, or as one more process of the client that has the region `join`.
    pub(crate) fn register(path: &[u8], socket: OwnedFd, join: u64) -> Result<Self, SessionError> {
        let Welcome { socket, geometry, token, process, offset, features, namespace, idle_ms, fds } =
            hello(socket, join)?;
        let mut fds = fds.into_iter();
        let wrong = || SessionError::Version(std::io::ErrorKind::InvalidData.into());
        let memfd = fds.next().ok_or_else(wrong)?;
        let region = Region::map_at(memfd.as_fd(), offset, geometry)?;
        let doorbells: Vec<AtomicI32> =
            fds.map(|fd| protect(fd).map(AtomicI32::new)).collect::<Sys<_>>().map_err(SessionError::errno)?;
        if doorbells.len() != geometry.flow_groups as usize + 1 {
            return Err(wrong());
        }
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let default_us = if cpus < SPINNING_CPUS { 0 } else { SPIN_US };
        let chosen = std::env::var("TOWPATH_SPIN_US").ok().and_then(|s| s.parse().ok());
        let spin_us = chosen.unwrap_or(default_us);
        // The peer may have another CPU, even if this program has only one.
        // SAFETY: `sysconf` takes a number and no memory.
        let online = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
        let direct_spin_us = chosen.unwrap_or(if online > 1 { DIRECT_SPIN_US } else { 0 });
        let session = Self {
            number: 0,
            tag: 0,
            stack: 0,
            data_queues: core::array::from_fn(|number| DataQueue::of(&region, number)),
            region,
            geometry,
            spin_us,
            direct_spin_us,
            control: AtomicI32::new(protect(socket).map_err(SessionError::errno)?),
            process: AtomicU32::new(process),
            token,
            features,
            namespace,
            idle: IdleTime::new(idle_ms),
            path: path.to_vec(),
            joined_pid: AtomicI32::new(process::pid()),
            doorbells,
            talking: Lock::new(),
            unheard: AtomicU32::new(0),
            dead: AtomicBool::new(false),
            died_ms: AtomicU64::new(0),
            checked_ms: AtomicU64::new(0),
            liveness: Liveness::default(),
            out_of_contexts: AtomicBool::new(false),
            no_files: AtomicBool::new(false),
            shares_connection: AtomicBool::new(false),
            pairs: AtomicU64::new(0),
            places: [const { Place::new() }; PLACES],
            can_subscribe: false,
            refusals: AtomicU32::new(0),
        };
        let (namespace, theirs) = (sys::pid_namespace(), &session.header().pid_namespace);
        if join == 0 {
            theirs.store(namespace, Ordering::Relaxed);
        } else if ![0, namespace].contains(&theirs.load(Ordering::Relaxed)) && namespace != 0 {
            return Err(SessionError::errno(libc::EXDEV));
        }
        Ok(session)
    }

    /// The connection to the service.
    pub fn control(&self) -> i32 {
        self.control.load(Ordering::Acquire)
    }

    /// In a forked child: registers it as one more process of its parent's client. Until then the child holds the
    /// parent's registration open, so that the region outlives a parent that exits at once.
    pub fn join(&self) {
        if self.joined_pid.load(Ordering::Relaxed) == process::pid() || self.is_dead() {
            return;
        }
        let Some(_talking) = self.talking.lock() else { return };
        if self.joined_pid.load(Ordering::Relaxed) == process::pid() {
            return;
        }
        let joined = call(&self.path)
            .and_then(|socket| hello(socket, self.token))
            .ok()
            .filter(|welcome| welcome.geometry == self.geometry);
        match joined.and_then(|welcome| Some((protect(welcome.socket).ok()?, welcome.process))) {
            Some((control, process)) => {
                self.process.store(process, Ordering::Relaxed);
                self.shares_connection.store(false, Ordering::Relaxed);
                self.unheard.store(0, Ordering::Relaxed);
                unprotect(self.control.swap(control, Ordering::AcqRel));
            }
            // The child has given up its rights. The parent's registration still serves for all that needs no answer,
            // so only contexts are not to be had.
            None => {
                self.shares_connection.store(true, Ordering::Relaxed);
                self.out_of_contexts.store(true, Ordering::Relaxed);
            }
        }
        self.joined_pid.store(process::pid(), Ordering::Release);
    }

    /// In a forked child, which has one thread.
    pub fn forked(&self) {
        self.talking.reset();
        self.out_of_contexts.store(false, Ordering::Relaxed);
        // Joins while it may: servers that start as root give that right up in their children.
        if rustix::process::geteuid().is_root() {
            self.join();
        }
    }

    /// The service's path.
    pub fn path(&self) -> &[u8] {
        &self.path
    }

    /// The number of this process, for `CommandLine::holder`.
    pub fn process(&self) -> u32 {
        self.join();
        self.process.load(Ordering::Relaxed)
    }

    /// Does the descriptor of a listener stay the kernel's own listening socket?
    #[inline]
    pub fn listens_in_kernel(&self) -> bool {
        self.features & features::LISTENS_IN_KERNEL != 0
    }

    /// Has the library made the region's memory?
    pub(crate) fn makes_memory(&self) -> bool {
        self.features & features::CLIENT_MEMORY != 0
    }

    /// Has the service stacks for other network namespaces?
    pub(crate) fn finds_stacks(&self) -> bool {
        self.features & features::OTHER_NAMESPACES != 0
    }

    /// The network namespace to which its sockets belong, as SO_NETNS_COOKIE names it. `None`: the stack has a network of its
    /// own, or the service does not say.
    pub fn namespace(&self) -> Option<u64> {
        (self.namespace != 0).then_some(self.namespace)
    }

    /// Does the stack serve sockets of other network namespaces than this one's? The kernel says to which one belongs: that
    /// in which it was made, wherever it is used. Asking takes 0.4 µs.
    pub fn is_foreign(&self, socket: i32) -> bool {
        let of = || sys::getsockopt::<u64>(socket, libc::SOL_SOCKET, libc::SO_NETNS_COOKIE, 0);
        self.namespace != 0 && of().is_ok_and(|namespace| namespace != self.namespace)
    }

    /// Has the service died?
    #[inline]
    pub fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Relaxed)
    }

    /// Looks at the idle connections, and whether the service is alive, if no thread has for [`LIFE_CHECK`]. For programs that only
    /// sleep for shorter times. False: it has died.
    pub fn check_alive_if_due(&self) -> bool {
        let now_ms = coarse_ms();
        let last_ms = self.checked_ms.load(Ordering::Relaxed);
        if now_ms.wrapping_sub(last_ms) < LIFE_CHECK.as_millis() as u64 {
            return !self.is_dead();
        }
        self.checked_ms.store(now_ms, Ordering::Relaxed);
        self.look_at_idle();
        self.check_alive()
    }

    /// Checks whether the service is alive. False: it has died.
    pub fn check_alive(&self) -> bool {
        if self.is_dead() {
            return false;
        }
        let fd = self.control.load(Ordering::Acquire);
        let mut poll = [libc::pollfd { fd, events: libc::POLLRDHUP, revents: 0 }];
        let gone = sys::ppoll(&mut poll, Some(Duration::ZERO), core::ptr::null()) == Ok(1);
        if gone {
            self.died_ms.store(coarse_ms(), Ordering::Relaxed);
            self.dead.store(true, Ordering::SeqCst);
            review_usual();
            liveness::found_dead();
        }
        !self.is_dead()
    }

    /// The service has gone, and no descriptor is of this session: its memory and descriptors go. A thread that is still
    /// in a call of it finds zeros, and so the end.
    pub(crate) fn retire(&self) {
        let taken = self.doorbells.iter().chain([&self.control]).map(|fd| fd.swap(-1, Ordering::AcqRel));
        taken.filter(|fd| *fd >= 0).for_each(unprotect);
        // Without it the memory stays, for as long as the process lives.
        let _ = self.region.retire();
    }

    /// Notifies the doorbell of a data queue (`0..flow_groups`) or of the command queue (`flow_groups`).
    pub fn notify_queue(&self, queue: usize) {
        if let Some(doorbell) = self.doorbells.get(queue)
            && let fd @ 0.. = doorbell.load(Ordering::Relaxed)
        {
            towpath_ring::wake::notify(borrow(&fd));
        }
    }

    /// A thread is about to sleep, or has slept in vain. This looks at the idle connections, if it is time to.
    pub(crate) fn look_at_idle(&self) {
        if !self.makes_memory() || self.is_dead() || process::in_vfork_child() || !self.idle.is_due(coarse_ms()) {
            return;
        }
        // Whoever has no id yet locks nothing at one look.
        tid();
        // A handler that jumped out of this would leave locks behind.
        let _blocked = signals::Blocked::now();
        (callbacks::get().look_at_idle)(self.number);
    }

    /// The part of the private area that belongs to no slot.
    #[inline]
    pub fn header(&self) -> &Header {
        private::header(&self.region)
    }

    /// The slot of this [`Slot::offset`], and where its words are. `None`: there is none.
    #[inline(always)]
    pub fn slot_at(&self, offset: u32) -> Option<(Slot, SlotWords<'_>)> {
        let (slot, lines, private) = self.region.slot_at(offset)?;
        // SAFETY: it is the slot's part of this region's private area.
        Some((slot, (lines, unsafe { private::at(private) })))
    }

    /// A slot's private part.
    #[inline]
    pub fn private(&self, slot: Slot) -> &Private {
        private::of_slot(&self.region, slot)
    }
}
