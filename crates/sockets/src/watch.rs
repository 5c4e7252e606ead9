//! What connections cost and give, measured where the service asks for it (`towpath run --auto`): on the stack and on the kernel alike.
//!
//! The calls on a descriptor that is watched take another way; those on others do not notice. Each connection is watched
//! for so many calls, and then no more. CPU time is that of the thread from a call to its next one: so it has everything in it, also
//! what the program does to wait for the next request. It is taken for some calls only, drawn at random, because the clock is a system
//! call; the numbers are kept beside the descriptor and added to the service's board when a call is drawn, and at the end.

use crate::address::{self, Address};
use crate::session::Session;
use crate::socket::Socket;
use crate::sys;
use crate::{fork, shutdown, table};
use core::cell::Cell;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use libc::{c_int, ssize_t};
use rustix::fd::AsFd;
use std::sync::OnceLock;
use towpath_hook::Answer;
use towpath_ring::control::{Reply, Request};
use towpath_ring::figures::{self, Board, Class, Key, Sums, Way};
use towpath_ring::report::Count;

/// Descriptors below this can be watched.
const NUMBERS: usize = 1 << 16;
/// Calls of a connection that are counted.
const CALLS: u32 = 1 << 16;
/// A call in so many is drawn if the service does not say.
const INTERVAL: u32 = 32;
/// The largest interval that is believed.
const INTERVAL_MAX: u32 = 1 << 16;
/// Bytes that are further apart than this do not belong to one busy time, ns.
const PAUSE_NS: u64 = 1_000_000_000;

/// Which way bytes go in a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the program.
    Send = 1,
    /// To it.
    Receive = 2,
}

/// What is kept for a descriptor. Threads that use one at the same time may lose a count.
#[repr(align(64))]
struct Watch {
    /// Number of the class, from 1 on, twice; and 1 if it is the kernel's. 0 = not watched.
    class: AtomicU32,
    /// Calls until it is not watched any more.
    left: AtomicU32,
    /// Calls until one is drawn.
    until: AtomicU32,
    /// The last [`Direction`] in which bytes went.
    last: AtomicU32,
    calls: AtomicU32,
    turns: AtomicU32,
    sent: AtomicU64,
    received: AtomicU64,
    /// When a turn that was drawn began, ns.
    turn_ns: AtomicU64,
    /// When the last call was drawn, ns.
    drawn_ns: AtomicU64,
}

static WATCHES: [Watch; NUMBERS] = [const { Watch::new() }; NUMBERS];
static BOARD: AtomicPtr<Board> = AtomicPtr::new(core::ptr::null_mut());
/// Connections that could have been watched.
static CONNECTIONS: AtomicU32 = AtomicU32::new(0);

/// A call that was drawn, whose thread has not made its next one.
#[derive(Clone, Copy)]
struct Drawn {
    /// As in [`Watch`].
    class: u32,
    /// Calls for which it stands.
    stands_for: u32,
    cpu_ns: u64,
}

thread_local! {
    static DRAWN: Cell<Option<Drawn>> = const { Cell::new(None) };
    static RANDOM: Cell<u32> = const { Cell::new(0) };
}

fn board() -> Option<&'static Board> {
    // SAFETY: null or a leaked box that is never changed back.
    unsafe { BOARD.load(Acquire).as_ref() }
}

/// Is anything watched?
#[inline]
pub fn is_on() -> bool {
    !BOARD.load(Relaxed).is_null()
}

/// Asks the service to be measured, if somebody wants that.
pub fn start(session: &Session) {
    if std::env::var_os(figures::VARIABLE).is_none_or(|value| value != "1") {
        return;
    }
    let Some((Reply::Figures, descriptors)) = session.ask_with(&Request::Figures, &[]) else { return };
    let board = descriptors.first().and_then(|memfd| Board::map(memfd.as_fd()).ok());
    if let Some(board) = board {
        clock_ns();
        BOARD.store(Box::into_raw(Box::new(board)), Release);
    }
}

/// In a forked child: its thread's clock begins anew, and what its parent has counted the parent will add.
pub fn forked() {
    DRAWN.set(None);
    if is_on() {
        let watched = WATCHES.iter().enumerate().filter(|(fd, _)| table::is_watched(*fd as c_int));
        watched.for_each(|(_, watch)| watch.forget());
    }
}

/// A connect has been given to the stack, or to the kernel.
pub fn connected(fd: c_int, way: Way, remote: Address) {
    if !is_on() {
        return;
    }
    let local = match Socket::of(fd) {
        // The policy has sent it there.
        Some(socket) if socket.session.stack != 0 => return,
        Some(socket) => shutdown::local(&socket).0,
        None => address::of_kernel(fd, remote.0.to_ipv4_mapped().is_none()).map_or(address::ANY.0, |local| local.0),
    };
    // The service goes by the same.
    let here = remote.0.to_canonical().is_loopback() || remote.0 == local;
    connection(fd, way, Key::connected(remote.1, here));
}

/// The kernel has been left a connect for this reason.
pub fn left_to_kernel(fd: c_int, why: Count, remote: Address) {
    // For other reasons it could not have gone the other way.
    if is_on() && matches!(why, Count::Policy | Count::NoListener) && table::get(fd) == table::Kind::Kernel {
        connected(fd, Way::Kernel, remote);
    }
}

/// The stack's connection has been accepted.
pub fn accepted(fd: c_int, socket: &Socket) {
    if is_on() && socket.session.stack == 0 {
        connection(fd, Way::Stack, Key::accepted(shutdown::local(socket).1));
    }
}

/// The kernel has been left a listener at this port: what it accepts is watched.
pub fn listening(fd: c_int, port: u16) {
    if let Some((number, watch)) =
        board().and_then(|board| board.enter(Key::accepted(port))).zip(WATCHES.get(fd as usize))
    {
        watch.begin((number as u32 + 1) << 1 | Way::Kernel as u32, 1);
        table::watch(fd);
    }
}

/// The kernel's listener `from` has accepted `fd`.
pub fn accepted_by_kernel(from: c_int, fd: c_int) {
    let class = WATCHES.get(from as usize).map_or(0, |watch| watch.class.load(Relaxed));
    if class != 0 {
        begin(fd, class);
    }
}

fn connection(fd: c_int, way: Way, key: Key) {
    if let Some(number) = board().and_then(|board| board.enter(key)) {
        begin(fd, (number as u32 + 1) << 1 | way as u32);
    }
}

fn begin(fd: c_int, class: u32) {
    let Some(of) = class_of(class) else { return };
    let one_of = of.one_of.load(Relaxed).clamp(1, INTERVAL_MAX);
    let nth = CONNECTIONS.fetch_add(1, Relaxed);
    let Some(watch) = WATCHES.get(fd as usize).filter(|_| nth.is_multiple_of(one_of)) else { return };
    sums(of, class).connections.fetch_add(1, Relaxed);
    // A random beginning, so that what all connections do first is drawn no more often than anything else.
    watch.begin(class, 1 + random() % interval(of));
    table::watch(fd);
}

/// The descriptor is closed, or has been watched for long enough.
#[cold]
pub fn end(fd: c_int) {
    // In a `vfork` child this memory is the parent's, but the descriptors are not.
    if fork::in_vfork_child() {
        return;
    }
    table::unwatch(fd);
    if let Some(watch) = WATCHES.get(fd as usize) {
        watch.add();
        watch.class.store(0, Relaxed);
    }
}

/// All descriptors of a range are closed.
pub fn end_range(first: u32, last: u32) {
    if is_on() {
        (first..=last.min(NUMBERS as u32 - 1))
            .filter(|fd| table::is_watched(*fd as c_int))
            .for_each(|fd| end(fd as c_int));
    }
}

/// Does a call on a descriptor that is watched, and counts it.
#[cold]
#[inline(never)]
pub fn during(fd: c_int, direction: Direction, call: impl FnOnce() -> Answer<ssize_t>) -> Answer<ssize_t> {
    let Some(watch) = WATCHES.get(fd as usize) else { return call() };
    let begun_ns = watch.call();
    let answer = call();
    let count = answer.and_then(Result::ok).unwrap_or(0);
    watch.called(direction, count.max(0) as u64, begun_ns);
    if watch.left.load(Relaxed) == 0 {
        end(fd);
    }
    answer
}

impl Watch {
    const fn new() -> Self {
        Self {
            class: AtomicU32::new(0),
            left: AtomicU32::new(0),
            until: AtomicU32::new(0),
            last: AtomicU32::new(0),
            calls: AtomicU32::new(0),
            turns: AtomicU32::new(0),
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
            turn_ns: AtomicU64::new(0),
            drawn_ns: AtomicU64::new(0),
        }
    }

    fn begin(&self, class: u32, until: u32) {
        self.class.store(class, Relaxed);
        self.left.store(CALLS, Relaxed);
        self.until.store(until, Relaxed);
        self.last.store(0, Relaxed);
        self.forget();
    }

    /// Nothing has been counted.
    fn forget(&self) {
        [&self.calls, &self.turns].into_iter().for_each(|word| word.store(0, Relaxed));
        [&self.sent, &self.received, &self.turn_ns, &self.drawn_ns].into_iter().for_each(|word| word.store(0, Relaxed));
    }

    /// A call begins. If it is drawn: when, ns; else 0.
    fn call(&self) -> u64 {
        let until = self.until.load(Relaxed);
        self.until.store(until.wrapping_sub(1), Relaxed);
        if until > 1 && DRAWN.get().is_none() { 0 } else { self.look(until <= 1) }
    }

    /// The thread's last call was drawn, or this one is.
    #[cold]
    fn look(&self, draw: bool) -> u64 {
        let cpu_ns = sys::clock(libc::CLOCK_THREAD_CPUTIME_ID).as_nanos() as u64;
        if let Some(Drawn { class, stands_for, cpu_ns: since }) = DRAWN.take()
            && let Some((of, spent)) = class_of(class).zip(cpu_ns.checked_sub(since))
        {
            let (spent, stands_for) = (spent.saturating_sub(clock_ns()), u64::from(stands_for));
            let sums = sums(of, class);
            sums.cpu_ns.fetch_add(spent.saturating_mul(stands_for), Relaxed);
            sums.cpu_calls.fetch_add(stands_for, Relaxed);
        }
        let class = self.class.load(Relaxed);
        let Some(of) = class_of(class).filter(|_| draw) else { return 0 };
        let now_ns = sys::clock(libc::CLOCK_MONOTONIC).as_nanos() as u64;
        self.draw(of, class, now_ns);
        DRAWN.set(Some(Drawn { class, stands_for: interval(of), cpu_ns }));
        now_ns
    }

    /// What has been counted since the last draw goes to the board, and the next draw is fixed.
    fn draw(&self, of: &'static Class, class: u32, now_ns: u64) {
        let moved = self.sent.load(Relaxed) + self.received.load(Relaxed);
        self.add();
        let since = now_ns.saturating_sub(self.drawn_ns.swap(now_ns, Relaxed));
        if since < PAUSE_NS {
            let sums = sums(of, class);
            sums.busy_ns.fetch_add(since, Relaxed);
            sums.busy_bytes.fetch_add(moved, Relaxed);
        }
        // On average the interval, and in no step with what the program repeats.
        self.until.store(1 + random() % (2 * interval(of) - 1), Relaxed);
    }

    /// A call has moved so many bytes.
    fn called(&self, direction: Direction, count: u64, begun_ns: u64) {
        let add = |word: &AtomicU64| word.store(word.load(Relaxed).wrapping_add(count), Relaxed);
        let one_more = |word: &AtomicU32| word.store(word.load(Relaxed).wrapping_add(1), Relaxed);
        one_more(&self.calls);
        self.left.store(self.left.load(Relaxed).saturating_sub(1), Relaxed);
        if count == 0 {
            return;
        }
        let before = self.last.swap(direction as u32, Relaxed);
        if direction == Direction::Receive {
            add(&self.received);
            let turn_ns = self.turn_ns.load(Relaxed);
            if turn_ns != 0 {
                self.waited(turn_ns);
            }
            return;
        }
        add(&self.sent);
        if before != Direction::Send as u32 {
            one_more(&self.turns);
            self.turn_ns.store(begun_ns, Relaxed);
        }
    }

    #[cold]
    fn waited(&self, turn_ns: u64) {
        self.turn_ns.store(0, Relaxed);
        let class = self.class.load(Relaxed);
        if let Some(of) = class_of(class) {
            sums(of, class).waited((sys::clock(libc::CLOCK_MONOTONIC).as_nanos() as u64).saturating_sub(turn_ns));
        }
    }

    /// Adds what was counted to the board.
    fn add(&self) {
        let class = self.class.load(Relaxed);
        let Some(sums) = class_of(class).map(|of| sums(of, class)) else { return };
        let of = |word: &AtomicU64| word.swap(0, Relaxed);
        let short = |word: &AtomicU32| u64::from(word.swap(0, Relaxed));
        for (sum, count) in [
            (&sums.calls, short(&self.calls)),
            (&sums.turns, short(&self.turns)),
            (&sums.sent, of(&self.sent)),
            (&sums.received, of(&self.received)),
        ] {
            sum.fetch_add(count, Relaxed);
        }
    }
}

/// The class of a number as in [`Watch`].
fn class_of(class: u32) -> Option<&'static Class> {
    board()?.class((class >> 1).checked_sub(1)? as usize)
}

fn sums(of: &'static Class, class: u32) -> &'static Sums {
    &of.ways[(class & 1) as usize]
}

fn interval(of: &Class) -> u32 {
    match of.interval.load(Relaxed) {
        0 => INTERVAL,
        interval => interval.min(INTERVAL_MAX),
    }
}

/// What asking the clock twice costs at least, ns: it is in each measurement, and taken out of it.
fn clock_ns() -> u64 {
    static COST: OnceLock<u64> = OnceLock::new();
    *COST.get_or_init(|| {
        let ask = || sys::clock(libc::CLOCK_THREAD_CPUTIME_ID);
        let least = (0..32).map(|_| {
            let first = ask();
            ask().saturating_sub(first)
        });
        least.min().map_or(0, |cost| cost.as_nanos() as u64)
    })
}

/// Numbers that are in no step with anything (xorshift32).
fn random() -> u32 {
    let mut x = match RANDOM.get() {
        0 => sys::ticks() as u32 | 1,
        x => x,
    };
    x ^= x << 13;
    x ^= x >> 17;
    x ^= x << 5;
    RANDOM.set(x);
    x
}
