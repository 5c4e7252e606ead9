//! Measures connections on the stack and on the kernel if the service asks for it (`towpath run --auto`).
//!
//! Calls on a measured descriptor take a path of their own, so others cost nothing. Each connection is measured for a
//! limited number of calls.
//! CPU time is the thread's time from one call to its next, so it includes waiting for the next request. Reading that
//! clock is a system call, so only a random sample of calls is drawn for it. Counts are kept beside the descriptor.
//! They are added to the service's statistics at each draw and at the end.

use crate::fd::table;
use crate::lifecycle::address::{self, Address};
use core::cell::Cell;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use libc::{c_int, ssize_t};
use rustix::fd::AsFd;
use std::sync::OnceLock;
use towpath_client::session::Session;
use towpath_client::socket::Socket;
use towpath_client::{process, sys};
use towpath_hook::Answer;
use towpath_ring::control::{Reply, Request};
use towpath_ring::report::Count;
use towpath_ring::stats::{self, CarriedBy, Class, ClassCounters, ClassKey, StatsRegion};

/// Descriptors below this can be measured.
const NUMBERS: usize = 1 << 16;
/// The number of calls for which a connection is measured.
const CALLS: u32 = 1 << 16;
/// One call in so many is drawn, unless the service says otherwise.
const INTERVAL: u32 = 32;
/// The largest interval that the service may set.
const INTERVAL_MAX: u32 = 1 << 16;
/// A pause longer than this ends a busy period, ns.
const PAUSE_NS: u64 = 1_000_000_000;

/// The direction of a call's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the program.
    Send = 1,
    /// To the program.
    Receive = 2,
}

/// The counts of one descriptor. Threads that use it at the same time may lose a count.
#[repr(align(64))]
struct Measurement {
    /// The number of the class (from 1 on) times two, plus 1 if the kernel carries the connection. 0 = not measured.
    class: AtomicU32,
    /// Calls left until the measurement ends.
    left: AtomicU32,
    /// Calls left until one is drawn.
    until: AtomicU32,
    /// The last [`Direction`] in which bytes went.
    last: AtomicU32,
    calls: AtomicU32,
    turns: AtomicU32,
    sent: AtomicU64,
    received: AtomicU64,
    /// When a drawn turn began, ns.
    turn_ns: AtomicU64,
    /// When the last call was drawn, ns.
    drawn_ns: AtomicU64,
}

static MEASUREMENTS: [Measurement; NUMBERS] = [const { Measurement::new() }; NUMBERS];
static STATS: AtomicPtr<StatsRegion> = AtomicPtr::new(core::ptr::null_mut());
/// The number of connections that could have been measured.
static CONNECTIONS: AtomicU32 = AtomicU32::new(0);

/// A drawn call, whose cost is known when the thread makes its next call.
#[derive(Clone, Copy)]
struct Drawn {
    /// As in [`Measurement`].
    class: u32,
    /// The number of calls that it stands for.
    stands_for: u32,
    cpu_ns: u64,
}

thread_local! {
    static DRAWN: Cell<Option<Drawn>> = const { Cell::new(None) };
    static RANDOM: Cell<u32> = const { Cell::new(0) };
}

fn stats() -> Option<&'static StatsRegion> {
    // SAFETY: the pointer is null or a leaked box, and never changes again.
    unsafe { STATS.load(Acquire).as_ref() }
}

/// Is anything measured?
#[inline]
pub fn is_on() -> bool {
    !STATS.load(Relaxed).is_null()
}

/// Asks the service for the statistics, if measuring is wanted.
pub fn start(session: &Session) {
    if std::env::var_os(stats::VARIABLE).is_none_or(|value| value != "1") {
        return;
    }
    let Some((Reply::Stats, descriptors)) = session.ask_with(&Request::Stats, &[]) else { return };
    let stats = descriptors.first().and_then(|memfd| StatsRegion::map(memfd.as_fd()).ok());
    if let Some(stats) = stats {
        clock_ns();
        STATS.store(Box::into_raw(Box::new(stats)), Release);
    }
}

/// In a forked child: the thread's CPU clock starts anew, and the parent adds its own counts.
pub fn forked() {
    DRAWN.set(None);
    if is_on() {
        let measured = MEASUREMENTS.iter().enumerate().filter(|(fd, _)| table::is_measured(*fd as c_int));
        measured.for_each(|(_, measurement)| measurement.forget());
    }
}

/// A connect has been answered: the stack or the kernel carries it.
pub fn connected(fd: c_int, way: CarriedBy, remote: Address) {
    if !is_on() {
        return;
    }
    let local = match table::socket(fd) {
        // The policy has chosen another stack, so there is nothing to decide.
        Some(socket) if socket.session.stack != 0 => return,
        Some(socket) => address::local(&socket).0,
        None => address::of_kernel(fd, remote.0.to_ipv4_mapped().is_none()).map_or(address::ANY.0, |local| local.0),
    };
    // The service classifies by the same rule.
    let here = remote.0.to_canonical().is_loopback() || remote.0 == local;
    connection(fd, way, ClassKey::connected(remote.1, here));
}

/// A connect was left to the kernel for the reason `why`.
pub fn left_to_kernel(fd: c_int, why: Count, remote: Address) {
    // For any other reason the stack could not have carried it.
    if is_on() && matches!(why, Count::Policy | Count::NoListener) && table::get(fd) == table::Descriptor::Kernel {
        connected(fd, CarriedBy::Kernel, remote);
    }
}

/// A connection of the stack has been accepted.
pub fn accepted(fd: c_int, socket: &Socket) {
    if is_on() && socket.session.stack == 0 {
        connection(fd, CarriedBy::Stack, ClassKey::accepted(address::local(socket).1));
    }
}

/// A listener at this port was left to the kernel: its connections are measured.
pub fn listening(fd: c_int, port: u16) {
    if let Some((number, measurement)) =
        stats().and_then(|stats| stats.enter(ClassKey::accepted(port))).zip(MEASUREMENTS.get(fd as usize))
    {
        measurement.begin((number as u32 + 1) << 1 | CarriedBy::Kernel as u32, 1);
        table::measure(fd);
    }
}

/// The kernel's listener `from` has accepted `fd`.
pub fn accepted_by_kernel(from: c_int, fd: c_int) {
    let class = MEASUREMENTS.get(from as usize).map_or(0, |measurement| measurement.class.load(Relaxed));
    if class != 0 {
        begin(fd, class);
    }
}

/// The kernel half of a listener of the stack has accepted `fd`.
pub fn accepted_by_kernel_half(fd: c_int, listener: &Socket) {
    if is_on() && listener.session.stack == 0 {
        connection(fd, CarriedBy::Kernel, ClassKey::accepted(address::local(listener).1));
    }
}

fn connection(fd: c_int, way: CarriedBy, key: ClassKey) {
    if let Some(number) = stats().and_then(|stats| stats.enter(key)) {
        begin(fd, (number as u32 + 1) << 1 | way as u32);
    }
}

fn begin(fd: c_int, class: u32) {
    let Some(of) = class_of(class) else { return };
    let one_of = of.one_of.load(Relaxed).clamp(1, INTERVAL_MAX);
    let nth = CONNECTIONS.fetch_add(1, Relaxed);
    let Some(measurement) = MEASUREMENTS.get(fd as usize).filter(|_| nth.is_multiple_of(one_of)) else { return };
    sums(of, class).connections.fetch_add(1, Relaxed);
    // The first draw is at random, so that a connection's first calls are not drawn more often than others.
    measurement.begin(class, 1 + random() % interval(of));
    table::measure(fd);
}

/// The descriptor is closed, or has been measured for long enough.
#[cold]
pub fn end(fd: c_int) {
    // A `vfork` child shares its parent's memory, but not its descriptors.
    if process::in_vfork_child() {
        return;
    }
    table::unmeasure(fd);
    if let Some(measurement) = MEASUREMENTS.get(fd as usize) {
        measurement.add();
        measurement.class.store(0, Relaxed);
    }
}

/// All descriptors of a range are closed.
pub fn end_range(first: u32, last: u32) {
    if is_on() {
        (first..=last.min(NUMBERS as u32 - 1))
            .filter(|fd| table::is_measured(*fd as c_int))
            .for_each(|fd| end(fd as c_int));
    }
}

/// Makes a call on a measured descriptor and counts it.
#[cold]
#[inline(never)]
pub fn during(fd: c_int, direction: Direction, call: impl FnOnce() -> Answer<ssize_t>) -> Answer<ssize_t> {
    let Some(measurement) = MEASUREMENTS.get(fd as usize) else { return call() };
    let begun_ns = measurement.call();
    let answer = call();
    let count = answer.and_then(Result::ok).unwrap_or(0);
    measurement.called(direction, count.max(0) as u64, begun_ns);
    if measurement.left.load(Relaxed) == 0 {
        end(fd);
    }
    answer
}

impl Measurement {
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

    /// Resets the counts.
    fn forget(&self) {
        [&self.calls, &self.turns].into_iter().for_each(|word| word.store(0, Relaxed));
        [&self.sent, &self.received, &self.turn_ns, &self.drawn_ns].into_iter().for_each(|word| word.store(0, Relaxed));
    }

    /// A call begins. Returns the time in ns if the call is drawn, else 0.
    fn call(&self) -> u64 {
        let until = self.until.load(Relaxed);
        self.until.store(until.wrapping_sub(1), Relaxed);
        if until > 1 && DRAWN.get().is_none() { 0 } else { self.look(until <= 1) }
    }

    /// Ends the drawn call before this one, if there is one, and draws this call if `draw` says so.
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

    /// Adds the counts since the last draw to the statistics, and chooses the next draw.
    fn draw(&self, of: &'static Class, class: u32, now_ns: u64) {
        let moved = self.sent.load(Relaxed) + self.received.load(Relaxed);
        self.add();
        let since = now_ns.saturating_sub(self.drawn_ns.swap(now_ns, Relaxed));
        if since < PAUSE_NS {
            let sums = sums(of, class);
            sums.busy_ns.fetch_add(since, Relaxed);
            sums.busy_bytes.fetch_add(moved, Relaxed);
        }
        // The interval on average, but out of step with patterns of the program.
        self.until.store(1 + random() % (2 * interval(of) - 1), Relaxed);
    }

    /// A call has moved `count` bytes.
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

    /// Adds the counts to the statistics.
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

/// The class of a number of [`Measurement::class`].
fn class_of(class: u32) -> Option<&'static Class> {
    stats()?.class((class >> 1).checked_sub(1)? as usize)
}

fn sums(of: &'static Class, class: u32) -> &'static ClassCounters {
    &of.by_carrier[(class & 1) as usize]
}

fn interval(of: &Class) -> u32 {
    match of.interval.load(Relaxed) {
        0 => INTERVAL,
        interval => interval.min(INTERVAL_MAX),
    }
}

/// The least cost of reading the clock twice, ns. It is in each measurement and is subtracted.
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

/// Random numbers (xorshift32). Not testing/rng, which is no part of a program: a word of this thread is all it needs.
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
