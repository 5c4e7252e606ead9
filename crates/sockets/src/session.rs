//! The connection to the service: registration, the mapped region, and descriptors that the program cannot close.

use crate::doors::Door;
use crate::lock::Lock;
use crate::lookout::Lookout;
use crate::private::{Header, Private};
use crate::sys::{self, Sys};
use crate::table::{self, Kind};
use crate::{fallback, fault, fork, spare, stacks, watch};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use core::time::Duration;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use towpath_ring::control::Request;
use towpath_ring::layout::{PRIVATE_HEADER_BYTES, PRIVATE_SLOT_BYTES};
use towpath_ring::{Geometry, Region, Slot};

mod talk;

use talk::{Welcome, hello};
pub use talk::{Whose, ask, call, whose};

/// How long to look for work before sleeping, unless `TOWPATH_SPIN_US` says otherwise: two wake-ups' worth (about 10 µs
/// each), so that waiting never costs more than twice what the better choice would have.
const SPIN_US: u64 = 20;
/// With fewer usable CPUs than this a program does not spin by default: it would take the CPU from the stack's core or from the
/// peer that it waits for (redis, one connection, two CPUs: 11,000 requests/s with spinning, 18,000 without).
const SPINNING_CPUS: usize = 4;
/// Our own descriptors lie from here on, out of the way of programs that expect small numbers.
const HIGH_NUMBERS: u64 = 900;
/// A blocked call looks this often whether the service still lives. No round number: a signal that comes between two
/// sleeps does not end the call, and programs set alarms to whole seconds.
pub const LIFE_CHECK: Duration = Duration::from_millis(937);

/// Most sessions of a process: its own, and one for each other family that it has sockets of.
pub const SESSIONS: usize = 16;

/// A registered process family.
pub struct Session {
    /// Its number in this process; 0 = its own.
    pub number: u32,
    /// Which of the service's other stacks it is with, by the service's number and one; 0 = the service itself.
    pub stack: u32,
    /// The region.
    pub region: Region,
    /// Its sizes, checked when it was mapped.
    pub geometry: Geometry,
    /// The data queues, by the number that the stack's line of a slot has.
    pub doors: [Door; Geometry::MAX_CORES as usize],
    /// How long to spin, µs.
    pub spin_us: u64,
    /// How long to spin for the other side of a direct connection, µs.
    pub direct_spin_us: u64,
    control: AtomicI32,
    /// The number that the service has given this process.
    process: AtomicU32,
    token: u64,
    /// Where the service is. Kept, because programs clear their environment before they fork (nginx does).
    path: Vec<u8>,
    /// The process that `control` belongs to.
    joined_pid: AtomicI32,
    /// Eventfds: one per data queue, then the command queue's.
    doorbells: Vec<AtomicI32>,
    /// One request that has an answer at a time; also held while re-joining.
    talking: Lock,
    dead: AtomicBool,
    /// When somebody last looked whether the service lives, ms.
    checked_ms: AtomicU64,
    /// Who looks whether it is still there.
    pub lookout: Lookout,
    /// The stack has no event contexts left for us.
    pub out_of_contexts: AtomicBool,
    /// The stack takes no files.
    no_files: AtomicBool,
    /// Its connection is its parent's, because it could not join.
    shares_connection: AtomicBool,
    /// The process's own with its stack: its contexts tell of events.
    pub tells: bool,
}

static SESSION: AtomicPtr<Session> = AtomicPtr::new(core::ptr::null_mut());
/// Those of other families, from number 1 on.
static OTHERS: [AtomicPtr<Session>; SESSIONS - 1] = [const { AtomicPtr::new(core::ptr::null_mut()) }; SESSIONS - 1];
pub(crate) static STARTING: Lock = Lock::new();
static TRIED: AtomicBool = AtomicBool::new(false);

/// The session, if there is one.
#[inline]
pub fn get() -> Option<&'static Session> {
    // SAFETY: null or a leaked box that is never changed back.
    unsafe { SESSION.load(Ordering::Acquire).as_ref() }
}

/// The session of a number.
#[inline]
pub fn numbered(number: u32) -> Option<&'static Session> {
    match number {
        0 => get(),
        // SAFETY: as in `get`.
        _ => unsafe { OTHERS.get(number as usize - 1)?.load(Ordering::Acquire).as_ref() },
    }
}

/// The process's own session, then others.
pub fn all() -> impl Iterator<Item = &'static Session> {
    (0..SESSIONS as u32).map_while(numbered)
}

/// The sessions whose stacks have gone, by bit; looks if that was some time ago, or now.
pub fn gone(now: bool) -> u32 {
    let alive = |session: &Session| if now { session.check_alive() } else { session.check_alive_if_due() };
    all().filter(|session| !alive(session)).fold(0, |gone, session| gone | 1 << session.number)
}

/// The session; the first call registers with the service. `None` for good if that fails.
pub fn start() -> Option<&'static Session> {
    if !TRIED.load(Ordering::Acquire) {
        let _starting = STARTING.lock()?;
        if !TRIED.load(Ordering::Acquire) {
            if let Some(path) = std::env::var_os("TOWPATH_SOCKET") {
                match register(path.as_bytes()) {
                    Ok(_) => fault::install(),
                    Err(error) => {
                        fallback::no_session(Some(&error));
                        complain(&format!("{}: {error}", path.to_string_lossy()));
                    }
                }
            } else {
                fallback::no_session(None);
                complain("TOWPATH_SOCKET is not set");
            }
            TRIED.store(true, Ordering::Release);
        }
    }
    get().filter(|session| !session.is_dead())
}

/// The session; registers with the service at `path` if there is none yet. For libraries that say what has failed.
pub fn open(path: &[u8]) -> Result<&'static Session, std::io::Error> {
    let _starting = STARTING.lock().ok_or(std::io::ErrorKind::WouldBlock)?;
    match get() {
        Some(session) if session.is_dead() => Err(std::io::Error::from_raw_os_error(libc::ENETDOWN)),
        Some(session) => Ok(session),
        None => register(path),
    }
}

/// Under `STARTING`.
fn register(path: &[u8]) -> Result<&'static Session, std::io::Error> {
    Ok(install(Session::register(path, call(path)?, 0)?))
}

fn install(session: Session) -> &'static Session {
    let session = Box::leak(Box::new(Session { tells: true, ..session }));
    SESSION.store(session, Ordering::Release);
    spare::fill(session.control());
    watch::start(session);
    session
}

/// Where a socket lives: its session, slot and generation.
pub type Place = (&'static Session, u32, u32);

/// Asks the service where the socket of a descriptor lives that has come from elsewhere. A process that has no session yet becomes
/// one more of the family that the socket is from; else it joins that family too. `None`: it can be nothing here.
pub fn adopt(fd: i32) -> Option<Place> {
    if !TRIED.load(Ordering::Acquire) {
        let _starting = STARTING.lock()?;
        if !TRIED.load(Ordering::Acquire) {
            let path = std::env::var_os("TOWPATH_SOCKET")?;
            let socket = call(path.as_bytes()).ok()?;
            let family = match whose(|| ask(borrow(&socket.as_raw_fd()), &Request::Adopt, &[fd]))? {
                Whose::Here(token, ..) => token,
                Whose::There(_) => 0,
            };
            install(Session::register(path.as_bytes(), socket, family).ok()?);
            fault::install();
            TRIED.store(true, Ordering::Release);
        }
    }
    let session = get().filter(|session| !session.is_dead())?;
    match whose(|| session.ask_with(&Request::Adopt, &[fd]))? {
        Whose::Here(token, slot, generation) => Some((of_family(session, token)?, slot, generation)),
        Whose::There(stack) => stacks::adopt(session, stack, fd),
    }
}

/// The session of the family that has the region `token` of the stack that `own` is with.
pub fn of_family(own: &Session, token: u64) -> Option<&'static Session> {
    let known = || all().find(|session| session.token == token && session.stack == own.stack);
    known().or_else(|| {
        let _starting = STARTING.lock()?;
        known().or_else(|| add(|| Session::register(&own.path, call(&own.path).ok()?, token).ok(), own.stack, false))
    })
}

/// One more session beside the process's own, if there is room. Under `STARTING`.
pub fn add(make: impl FnOnce() -> Option<Session>, stack: u32, tells: bool) -> Option<&'static Session> {
    let number = stacks::vacant().map_or(all().count(), |number| number as usize);
    let place = OTHERS.get(number.checked_sub(1)?)?;
    let mut session = make()?;
    (session.number, session.stack, session.tells) = (number as u32, stack, tells);
    let session = Box::leak(Box::new(session));
    place.store(session, Ordering::Release);
    Some(session)
}

/// Is a program without its stack to fail instead of using kernel sockets?
pub fn required() -> bool {
    std::env::var_os("TOWPATH_REQUIRE").is_some_and(|value| value == "1")
}

fn complain(why: &str) {
    if required() {
        let line = format!("towpath: no service ({why}); TCP sockets fail because TOWPATH_REQUIRE=1\n");
        let _ = rustix::io::write(borrow(&libc::STDERR_FILENO), line.as_bytes());
    }
}

/// Moves a descriptor out of the program's way and reach.
pub fn protect(fd: OwnedFd) -> Sys<i32> {
    protected_copy(fd.as_raw_fd())
}

/// Another number for a descriptor, out of the program's way and reach.
pub fn protected_copy(fd: i32) -> Sys<i32> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
    let lowest = HIGH_NUMBERS.min(limit / 2) as i32;
    let high = sys::fcntl(fd, libc::F_DUPFD_CLOEXEC, lowest)?;
    table::set(high, Kind::Internal);
    Ok(high)
}

/// Closes a descriptor that `protect` made.
pub fn unprotect(fd: i32) {
    table::set(fd, Kind::Kernel);
    sys::close(fd);
}

/// Borrows a descriptor number of our own.
pub fn borrow(fd: &i32) -> BorrowedFd<'_> {
    // SAFETY: numbers in the session's and contexts' words stay open as long as those; the program cannot close them.
    unsafe { BorrowedFd::borrow_raw(*fd) }
}

impl Session {
    /// With a new region, or as one more process of the family that has the region `join`.
    pub(crate) fn register(path: &[u8], socket: OwnedFd, join: u64) -> Result<Self, std::io::Error> {
        let Welcome { socket, geometry, token, process, offset, fds } = hello(socket, join)?;
        let mut fds = fds.into_iter();
        let memfd = fds.next().ok_or(std::io::ErrorKind::InvalidData)?;
        let region = Region::map_at(memfd.as_fd(), offset, geometry).map_err(std::io::Error::other)?;
        let doorbells: Vec<AtomicI32> = fds
            .map(|fd| protect(fd).map(AtomicI32::new))
            .collect::<Sys<_>>()
            .map_err(std::io::Error::from_raw_os_error)?;
        if doorbells.len() != geometry.cores as usize + 1 {
            return Err(std::io::ErrorKind::InvalidData.into());
        }
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let default_us = if cpus < SPINNING_CPUS { 0 } else { SPIN_US };
        let chosen = std::env::var("TOWPATH_SPIN_US").ok().and_then(|s| s.parse().ok());
        let spin_us = chosen.unwrap_or(default_us);
        // The other side may well have another CPU, even if this program has only one.
        // SAFETY: an integer only.
        let online = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
        let direct_spin_us = chosen.unwrap_or(if online > 1 { SPIN_US } else { 0 });
        let session = Self {
            number: 0,
            stack: 0,
            doors: core::array::from_fn(|number| Door::of(&region, number)),
            region,
            geometry,
            spin_us,
            direct_spin_us,
            control: AtomicI32::new(protect(socket).map_err(std::io::Error::from_raw_os_error)?),
            process: AtomicU32::new(process),
            token,
            path: path.to_vec(),
            joined_pid: AtomicI32::new(fork::pid()),
            doorbells,
            talking: Lock::new(),
            dead: AtomicBool::new(false),
            checked_ms: AtomicU64::new(0),
            lookout: Lookout::default(),
            out_of_contexts: AtomicBool::new(false),
            no_files: AtomicBool::new(false),
            shares_connection: AtomicBool::new(false),
            tells: false,
        };
        let (namespace, theirs) = (sys::pid_namespace(), &session.header().pid_namespace);
        if join == 0 {
            theirs.store(namespace, Ordering::Relaxed);
        } else if ![0, namespace].contains(&theirs.load(Ordering::Relaxed)) && namespace != 0 {
            return Err(std::io::Error::from_raw_os_error(libc::EXDEV));
        }
        Ok(session)
    }

    /// Its connection to the service.
    pub fn control(&self) -> i32 {
        self.control.load(Ordering::Acquire)
    }

    /// In a forked child, registers it as one more process of its parent's region. Until then the child holds the
    /// parent's registration open, so that the region outlives a parent that exits at once.
    pub fn join(&self) {
        if self.joined_pid.load(Ordering::Relaxed) == fork::pid() {
            return;
        }
        let Some(_talking) = self.talking.lock() else { return };
        if self.joined_pid.load(Ordering::Relaxed) == fork::pid() {
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
                unprotect(self.control.swap(control, Ordering::AcqRel));
            }
            // Not allowed any more (the child has given up its rights): the parent's registration still serves for
            // everything that has no answer, so only contexts cannot be had.
            None => {
                self.shares_connection.store(true, Ordering::Relaxed);
                self.out_of_contexts.store(true, Ordering::Relaxed);
            }
        }
        self.joined_pid.store(fork::pid(), Ordering::Release);
    }

    /// Called in a forked child, where no other thread exists.
    pub fn forked(&self) {
        self.talking.reset();
        self.out_of_contexts.store(false, Ordering::Relaxed);
        // As long as it still may: servers that start as root give that up in their children.
        if rustix::process::geteuid().is_root() {
            self.join();
        }
    }

    /// Where the service is.
    pub fn path(&self) -> &[u8] {
        &self.path
    }

    /// The number of this process, for `CommandLine::holder`.
    pub fn process(&self) -> u32 {
        self.join();
        self.process.load(Ordering::Relaxed)
    }

    /// Has the service gone?
    #[inline]
    pub fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Relaxed)
    }

    /// Before a sleep: looks whether the service is still there if nobody has done so for [`LIFE_CHECK`]. For programs whose
    /// sleeps all end before that. False = it has gone.
    pub fn check_alive_if_due(&self) -> bool {
        let now_ms = sys::clock(libc::CLOCK_MONOTONIC_COARSE).as_millis() as u64;
        let last_ms = self.checked_ms.load(Ordering::Relaxed);
        if now_ms.wrapping_sub(last_ms) < LIFE_CHECK.as_millis() as u64 {
            return !self.is_dead();
        }
        self.checked_ms.store(now_ms, Ordering::Relaxed);
        self.check_alive()
    }

    /// Looks whether the service is still there.
    pub fn check_alive(&self) -> bool {
        let fd = self.control.load(Ordering::Acquire);
        let mut poll = [libc::pollfd { fd, events: libc::POLLRDHUP, revents: 0 }];
        let gone = sys::ppoll(&mut poll, Some(Duration::ZERO), core::ptr::null()) == Ok(1);
        if gone {
            self.dead.store(true, Ordering::Release);
        }
        !self.is_dead()
    }

    /// Rings the bell of a data queue (`0..cores`) or the command queue (`cores`).
    pub fn ring_bell(&self, queue: usize) {
        if let Some(bell) = self.doorbells.get(queue) {
            towpath_ring::wake::ring(borrow(&bell.load(Ordering::Relaxed)));
        }
    }

    /// The part of the private area that belongs to no slot.
    #[inline]
    pub fn header(&self) -> &Header {
        header(&self.region)
    }

    /// A slot's private part.
    #[inline]
    pub fn private(&self, slot: Slot) -> &Private {
        let (base, _) = self.region.private();
        // SAFETY: the area has `PRIVATE_SLOT_BYTES` for each slot of the region after the header; else as above.
        unsafe { &*base.add(PRIVATE_HEADER_BYTES + slot.index() * PRIVATE_SLOT_BYTES).cast::<Private>() }
    }
}

/// [`Session::header`] of a region.
#[inline]
pub fn header(region: &Region) -> &Header {
    let (base, _) = region.private();
    // SAFETY: the private area begins page-aligned with this many bytes (asserted), starts as zeros, which is a valid
    // value, and only holds atomics.
    unsafe {
        const { assert!(size_of::<Header>() <= PRIVATE_HEADER_BYTES) };
        &*base.cast::<Header>()
    }
}
