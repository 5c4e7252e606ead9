//! The socketpairs whose ends are the descriptors of sockets.
//!
//! The pair of a connection is kept when the connection is closed, and the next one gets it. To make a pair, to hand its other
//! end over, and to destroy both took a fifth of a server's CPU time with short connections.
//! A pair is kept only if nobody else can have a copy of the descriptor. Nor is one kept of whose open file the program has
//! changed something by `fcntl`, `ioctl` or `setsockopt`: the next connection would inherit that.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, Ordering};
use libc::c_int;
use rustix::process::{Resource, getrlimit};
use std::sync::atomic::AtomicU64;
use towpath_client::lock::Lock;
use towpath_client::private::flag;
use towpath_client::session::Session;
use towpath_client::socket::Socket;
use towpath_client::sys::{self, Sys};
use towpath_client::{descriptor_reserve, descriptors};
use towpath_ring::control::Request;

/// Most pairs that are kept at a time.
const MOST: usize = 32;
/// They are at most the program's limit of descriptors divided by this. A program that opens other files up to its limit misses
/// so many.
const SHARE: u64 = 64;
/// Pairs are kept only while the program's descriptors have numbers below the limit divided by this.
const ROOM: u64 = 2;
/// So many closes pass before a limit that the program has changed is seen.
const ASK_LIMIT: u32 = 32;
/// Numbers of ends are below this (`Request::Attach`).
const NUMBERS: u32 = 1 << 30;

/// A pair whose end on our side has a descriptor.
#[derive(Clone, Copy)]
pub struct Pair {
    /// The descriptor of our end.
    pub fd: c_int,
    /// Is it close-on-exec?
    pub close_on_exec: bool,
    other: Other,
    forks: u64,
    /// `fd` is a protected descriptor of the library's.
    protected: bool,
}

/// The end of the service.
#[derive(Clone, Copy)]
enum Other {
    /// Still here, as this descriptor.
    Here(c_int),
    /// The service has it, by this number.
    There(u32),
}

/// A pair that is kept.
#[derive(Clone, Copy)]
struct Kept {
    session: &'static Session,
    fd: c_int,
    number: u32,
    forks: u64,
}

/// The pairs that are kept. It never allocates: a signal handler may close and accept.
struct Pairs {
    lock: Lock,
    kept: UnsafeCell<[Option<Kept>; MOST]>,
}

// SAFETY: `kept` is only accessed under the lock.
unsafe impl Sync for Pairs {}

static PAIRS: Pairs = Pairs { lock: Lock::new(), kept: UnsafeCell::new([None; MOST]) };
/// The number of the last end that was made.
static LAST: AtomicU32 = AtomicU32::new(0);
/// The number that the first end after the last fork gets.
static SINCE_FORK: AtomicU32 = AtomicU32::new(1);
/// How often this process has forked. A child has copies of what its parent had.
static FORKS: AtomicU64 = AtomicU64::new(0);

/// Runs `work` with the pairs that are kept. `None`: a signal handler has interrupted other work with them.
fn with_kept<R>(work: impl FnOnce(&mut [Option<Kept>; MOST]) -> R) -> Option<R> {
    let _locked = PAIRS.lock.lock()?;
    // SAFETY: the lock is held, so this is the only reference.
    Some(work(unsafe { &mut *PAIRS.kept.get() }))
}

/// The next number of an end.
fn number() -> u32 {
    of_count(LAST.fetch_add(1, Ordering::Relaxed))
}

fn of_count(count: u32) -> u32 {
    1 + count % (NUMBERS - 1)
}

/// Has the end of this number been made since the last fork? A child has copies of those that are older.
fn is_younger_than_fork(number: u32) -> bool {
    (number + (NUMBERS - 1) - SINCE_FORK.load(Ordering::SeqCst)) % (NUMBERS - 1) < NUMBERS / 2
}

impl Pair {
    /// For a socket of this session that has its descriptors. The program keeps neither number. `may_reuse`: one that was kept
    /// will do.
    pub fn for_promoted(session: &'static Session, may_reuse: bool) -> Sys<Self> {
        let forks = forks();
        if may_reuse && let Some(Kept { fd, number, .. }) = take(session, forks) {
            return Ok(Self { fd, close_on_exec: true, other: Other::There(number), forks, protected: true });
        }
        descriptor_reserve::pair().map(|pair| Self::of(pair, forks))
    }

    /// For a socket that this session accepts. Its end gets the number that it would get on Linux.
    pub fn for_accepted(session: &'static Session, close_on_exec: bool) -> Sys<Self> {
        let forks = forks();
        match take_as(session, close_on_exec, forks) {
            Some(pair) => Ok(pair),
            None => descriptor_reserve::pair_for_one().map(|pair| Self::of(pair, forks)),
        }
    }

    fn of([fd, theirs]: [c_int; 2], forks: u64) -> Self {
        Self { fd, close_on_exec: true, other: Other::Here(theirs), forks, protected: false }
    }

    /// Gives the service the other end, which hangs up when the last descriptor of ours is closed. `keep`: another connection
    /// may have the pair after this one; [`Pair::installed`] follows.
    pub fn attach(self, socket: &Socket, keep: bool) {
        let (slot, generation) = (socket.slot.raw(), socket.generation);
        // If sending fails the service has died, which every later call on the socket finds out.
        let number = match self.other {
            Other::Here(theirs) => {
                let end = number();
                let _ = socket.session.send(&Request::Attach { slot, generation, end }, &[theirs]);
                sys::close(theirs);
                end
            }
            Other::There(end) => {
                let _ = socket.session.send(&Request::Reattach { slot, generation, end }, &[]);
                end
            }
        };
        if keep {
            socket.private().accepts.store(number, Ordering::Relaxed);
            socket.mark(flag::OWN_PAIR, true);
        }
        descriptor_reserve::refill(socket.session.control());
    }

    /// The descriptor is in the table by now, so that every later fork marks its socket as shared. One that came before may
    /// have copied it.
    pub fn installed(&self, socket: &Socket) {
        if self.forks != forks() {
            socket.mark(flag::OWN_PAIR, false);
        }
    }

    /// Closes `fd`. The descriptors that the socket had are copies of it by now.
    pub fn release(&self) {
        if self.protected { descriptors::unprotect(self.fd) } else { sys::close(self.fd) }
    }

    /// Closes it. No socket has it.
    pub fn close(self) {
        self.release();
        if let Other::Here(theirs) = self.other {
            sys::close(theirs);
        }
    }
}

fn forks() -> u64 {
    FORKS.load(Ordering::SeqCst)
}

/// A pair that was kept, if there is one. `forks`: since before this call.
fn take(session: &Session, forks: u64) -> Option<Kept> {
    loop {
        let fits = |kept: &Kept| core::ptr::eq(kept.session, session) || kept.session.is_dead();
        let kept =
            with_kept(|all| all.iter_mut().find(|kept| kept.as_ref().is_some_and(fits)).and_then(Option::take))??;
        // A pair that is older than a fork may have copies in the child.
        if kept.forks == forks && !kept.session.is_dead() {
            return Some(kept);
        }
        descriptors::unprotect(kept.fd);
    }
}

/// [`take`], as the lowest free descriptor.
fn take_as(session: &Session, close_on_exec: bool, forks: u64) -> Option<Pair> {
    let kept = take(session, forks)?;
    let command = if close_on_exec { libc::F_DUPFD_CLOEXEC } else { libc::F_DUPFD };
    let fd = sys::fcntl(kept.fd, command, 0);
    descriptors::unprotect(kept.fd);
    let Ok(fd) = fd else {
        // The program may have no number left. It shall have those of the pairs.
        drop_all();
        return None;
    };
    Some(Pair { fd, close_on_exec, other: Other::There(kept.number), forks, protected: false })
}

/// The pair of a socket whose last descriptor is being closed, if it can be kept when the socket has ended.
pub struct Candidate {
    session: &'static Session,
    number: u32,
    forks: u64,
    most: usize,
}

/// Looks whether the pair of the socket behind `fd` can be kept.
pub fn candidate(fd: c_int, socket: &Socket) -> Option<Candidate> {
    // Before the flags: whoever forks marks all sockets as shared first, and counts then.
    let (forks, number) = (forks(), socket.private().accepts.load(Ordering::Relaxed));
    let spoilt = flag::SHARED | flag::NAMED | flag::EMULATED_ON_PAIR | flag::FILE_CHANGED;
    if !socket.has(flag::OWN_PAIR) || socket.has(spoilt) || socket.session.is_dead() || !is_younger_than_fork(number) {
        return None;
    }
    let is_asked = ASKED.fetch_add(1, Ordering::Relaxed).is_multiple_of(ASK_LIMIT);
    let limit = if is_asked { ask_limit() } else { LIMIT.load(Ordering::Relaxed) };
    let most = most_of(limit);
    ((fd as u64) < limit / ROOM).then_some(Candidate { session: socket.session, number, forks, most })
}

/// The program's limit of descriptors, as it was not long ago. Until it has been asked for no pair is kept.
static LIMIT: AtomicU64 = AtomicU64::new(0);
/// Counts the closes that need it. The first asks for it.
static ASKED: AtomicU32 = AtomicU32::new(0);

fn ask_limit() -> u64 {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    LIMIT.store(limit, Ordering::Relaxed);
    limit
}

/// The most pairs that are kept under this limit.
fn most_of(limit: u64) -> usize {
    MOST.min((limit / SHARE) as usize)
}

/// Keeps the pair with the end `fd`, which the caller closes. Its socket has ended.
pub fn keep(fd: c_int, Candidate { session, number, forks, mut most }: Candidate) {
    let has_room = with_kept(|all| all[..most].iter().any(Option::is_none));
    if has_room != Some(true) {
        return;
    }
    let copy = descriptors::high_copy(fd).or_else(|_| {
        // The program may have lowered its limit.
        most = most_of(ask_limit());
        descriptors::protected_copy(fd)
    });
    let Ok(copy) = copy else { return };
    let kept = Kept { session, fd: copy, number, forks };
    // Another thread may have taken the room.
    let is_kept = with_kept(|all| all[..most].iter_mut().find(|room| room.is_none()).map(|room| *room = Some(kept)));
    if is_kept.flatten().is_none() {
        descriptors::unprotect(copy);
    }
}

/// Closes all pairs that are kept.
fn drop_all() {
    let first = || with_kept(|all| all.iter_mut().find_map(Option::take)).flatten();
    while let Some(kept) = first() {
        descriptors::unprotect(kept.fd);
    }
}

/// This process is about to fork, or has: its other threads go on meanwhile.
pub fn forking() {
    FORKS.fetch_add(1, Ordering::SeqCst);
    SINCE_FORK.store(of_count(LAST.load(Ordering::Relaxed)), Ordering::SeqCst);
    drop_all();
}

/// In a forked child: what is kept is the parent's. Its numbers are not its parent's, whose connection to the service it may
/// have to use.
pub fn forked() {
    // Another thread may have been writing: `forking` had emptied it, so little is lost.
    if PAIRS.lock.is_taken() {
        // SAFETY: a forked child has one thread.
        unsafe { *PAIRS.kept.get() = [None; MOST] };
    }
    PAIRS.lock.reset();
    drop_all();
    let (scrambled, bits) = ((sys::getpid() as u32).wrapping_mul(0x9e37_79b9), NUMBERS.trailing_zeros());
    let first = scrambled >> (u32::BITS - bits);
    LAST.store(first, Ordering::Relaxed);
    SINCE_FORK.store(of_count(first), Ordering::SeqCst);
}
