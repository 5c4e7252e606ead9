//! Measurements of a program's TCP sockets, by which the service finds out which carrier suits them. The service makes
//! a sealed memfd for each process. The library adds, and the service reads. Nobody's data depends on it. A program
//! that writes nonsense there harms only the choices that are made for it.
//!
//! | offset | what |
//! |---|---|
//! | 0 | [`Head`] |
//! | 64 | [`CLASSES`] times a [`Class`], taken in order |

use crate::MapError;
use crate::mapping::{Access, Mapping, put_header};
use crate::memory::{SEALS, check_sealed, unsealed_memfd};
use crate::word::claim;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};

/// Environment variable: `1` asks for being measured. `towpath run --auto` sets it.
pub const VARIABLE: &str = "TOWPATH_AUTO";
/// First bytes of the memory.
const MAGIC: [u8; 8] = *b"TOWPFIG\0";
/// Version of the format.
const VERSION: u32 = 1;
/// Classes of sockets that one process can have. Sockets of further classes are not measured.
pub const CLASSES: usize = 128;
/// The kernel picks most port numbers from here on (Linux's default `ip_local_port_range`), so they say nothing. They
/// are one class, 0.
pub const NAMELESS_PORTS: u16 = 32_768;
/// Buckets of a histogram: eight to each doubling, from 1 µs to 1 s.
pub const BUCKETS: usize = 160;
/// See [`BUCKETS`].
const BUCKETS_PER_DOUBLING: f64 = 8.0;

/// The carrier of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum CarriedBy {
    /// The stack that the service serves.
    Stack = 0,
    /// The program's own kernel.
    Kernel = 1,
}

impl CarriedBy {
    /// Both.
    pub const BOTH: [Self; 2] = [Self::Stack, Self::Kernel];

    /// The other one.
    pub fn other(self) -> Self {
        match self {
            Self::Stack => Self::Kernel,
            Self::Kernel => Self::Stack,
        }
    }
}

/// The class of a socket: sockets of a program that are alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClassKey {
    /// Has the program accepted it, or connected?
    pub accepts: bool,
    /// If the program has connected: is the peer on this host?
    pub local: bool,
    /// The listener's port; 0 = one of [`NAMELESS_PORTS`].
    pub port: u16,
}

impl ClassKey {
    /// Of a connection that a listener at this port has accepted.
    pub fn accepted(port: u16) -> Self {
        Self { accepts: true, local: false, port: named(port) }
    }
    /// Of a connection to this port, of this host or another.
    pub fn connected(port: u16, local: bool) -> Self {
        Self { accepts: false, local, port: named(port) }
    }
    fn word(self) -> u64 {
        1 << 32 | u64::from(self.accepts) << 17 | u64::from(self.local) << 16 | u64::from(self.port)
    }
    fn of(word: u64) -> Option<Self> {
        let flags = |bit: u32| word & 1 << bit != 0;
        (word >> 18 == 1 << 14).then_some(Self { accepts: flags(17), local: flags(16), port: word as u16 })
    }
}

fn named(port: u16) -> u16 {
    if port >= NAMELESS_PORTS { 0 } else { port }
}

/// The first 64 bytes.
#[repr(C, align(64))]
pub struct Head {
    magic: [u8; 8],
    version: u32,
    classes: u32,
}

/// Sums for one class and carrier. Only the library writes them.
#[repr(C, align(64))]
pub struct ClassCounters {
    /// Connections that were measured.
    pub connections: AtomicU64,
    /// Calls that sent or received.
    pub calls: AtomicU64,
    /// Bytes received.
    pub received: AtomicU64,
    /// Bytes sent.
    pub sent: AtomicU64,
    /// Times that something was sent after something was received, or first of all. For requests and answers, this is
    /// the requests.
    pub turns: AtomicU64,
    /// CPU time of the program's threads from one call to the next, ns, over a sample of the calls.
    pub cpu_ns: AtomicU64,
    /// Calls in that sample.
    pub cpu_calls: AtomicU64,
    /// Time during which bytes were moving, ns.
    pub busy_ns: AtomicU64,
    /// Bytes that moved in that time.
    pub busy_bytes: AtomicU64,
    /// Histogram of the times from sending to the next byte received, by their logarithm, over a sample of the turns.
    pub waits: [AtomicU32; BUCKETS],
}

/// One class.
#[repr(C, align(64))]
pub struct Class {
    /// [`ClassKey`]; 0 = free.
    key: AtomicU64,
    /// One call in this many has its CPU time and wait taken; 0 = the library chooses. The service writes it.
    pub interval: AtomicU32,
    /// One connection in this many is measured; 0 = each. The service writes it.
    pub one_of: AtomicU32,
    /// Of [`CarriedBy::Stack`] and of [`CarriedBy::Kernel`].
    pub by_carrier: [ClassCounters; 2],
}

const BYTES: usize = size_of::<Head>() + CLASSES * size_of::<Class>();
const _: () = assert!(size_of::<Head>() == 64);

/// The bucket of a time.
pub fn bucket(ns: u64) -> usize {
    let doublings = (ns.max(1000) as f64 / 1000.0).log2();
    ((doublings * BUCKETS_PER_DOUBLING) as usize).min(BUCKETS - 1)
}

/// The time that stands for a bucket: its middle.
fn time_of(bucket: usize) -> f64 {
    1000.0 * ((bucket as f64 + 0.5) / BUCKETS_PER_DOUBLING).exp2()
}

impl ClassCounters {
    /// Notes a wait.
    pub fn waited(&self, ns: u64) {
        self.waits[bucket(ns)].fetch_add(1, Relaxed);
    }

    /// The counters as they stand.
    pub fn read(&self) -> ClassStats {
        let of = |word: &AtomicU64| word.load(Relaxed);
        ClassStats {
            connections: of(&self.connections),
            calls: of(&self.calls),
            received: of(&self.received),
            sent: of(&self.sent),
            turns: of(&self.turns),
            cpu_ns: of(&self.cpu_ns),
            cpu_calls: of(&self.cpu_calls),
            busy_ns: of(&self.busy_ns),
            busy_bytes: of(&self.busy_bytes),
            waits: self.waits.each_ref().map(|bucket| bucket.load(Relaxed)),
        }
    }
}

/// The measurements of a class and carrier: [`ClassCounters`] as they stood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassStats {
    /// See [`ClassCounters::connections`].
    pub connections: u64,
    /// See [`ClassCounters::calls`].
    pub calls: u64,
    /// See [`ClassCounters::received`].
    pub received: u64,
    /// See [`ClassCounters::sent`].
    pub sent: u64,
    /// See [`ClassCounters::turns`].
    pub turns: u64,
    /// See [`ClassCounters::cpu_ns`].
    pub cpu_ns: u64,
    /// See [`ClassCounters::cpu_calls`].
    pub cpu_calls: u64,
    /// See [`ClassCounters::busy_ns`].
    pub busy_ns: u64,
    /// See [`ClassCounters::busy_bytes`].
    pub busy_bytes: u64,
    /// See [`ClassCounters::waits`].
    pub waits: [u32; BUCKETS],
}

impl Default for ClassStats {
    fn default() -> Self {
        Self {
            connections: 0,
            calls: 0,
            received: 0,
            sent: 0,
            turns: 0,
            cpu_ns: 0,
            cpu_calls: 0,
            busy_ns: 0,
            busy_bytes: 0,
            waits: [0; BUCKETS],
        }
    }
}

impl ClassStats {
    /// Joins both, number by number.
    fn with(&self, other: &Self, join: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            connections: join(self.connections, other.connections),
            calls: join(self.calls, other.calls),
            received: join(self.received, other.received),
            sent: join(self.sent, other.sent),
            turns: join(self.turns, other.turns),
            cpu_ns: join(self.cpu_ns, other.cpu_ns),
            cpu_calls: join(self.cpu_calls, other.cpu_calls),
            busy_ns: join(self.busy_ns, other.busy_ns),
            busy_bytes: join(self.busy_bytes, other.busy_bytes),
            waits: core::array::from_fn(|at| join(self.waits[at].into(), other.waits[at].into()) as u32),
        }
    }
    /// The sum of both.
    pub fn plus(&self, other: &Self) -> Self {
        self.with(other, u64::saturating_add)
    }
    /// The difference since `before`.
    pub fn since(&self, before: &Self) -> Self {
        self.with(before, u64::saturating_sub)
    }
    /// Bytes in both directions.
    pub fn bytes(&self) -> u64 {
        self.sent.saturating_add(self.received)
    }
    /// How many waits were measured.
    pub fn wait_count(&self) -> u64 {
        self.waits.iter().map(|count| u64::from(*count)).sum()
    }
    /// The median wait, ns; `None` = none was measured.
    pub fn median_wait_ns(&self) -> Option<f64> {
        let half = self.wait_count().div_ceil(2);
        let mut seen = 0;
        self.waits
            .iter()
            .position(|count| {
                seen += u64::from(*count);
                half > 0 && seen >= half
            })
            .map(time_of)
    }
    /// CPU time of all calls, ns, extrapolated from those that were measured.
    pub fn all_cpu_ns(&self) -> Option<f64> {
        (self.cpu_calls > 0).then(|| self.cpu_ns as f64 / self.cpu_calls as f64 * self.calls as f64)
    }
    /// Bytes per second while bytes were moving.
    pub fn goodput(&self) -> Option<f64> {
        (self.busy_ns > 0).then(|| self.busy_bytes as f64 * 1e9 / self.busy_ns as f64)
    }
}

/// The mapped memory.
pub struct StatsRegion(Mapping);

impl StatsRegion {
    /// Makes an empty one, and the memfd for the library.
    pub fn create() -> Result<(Self, OwnedFd), MapError> {
        let memfd = unsealed_memfd("towpath-figures", BYTES)?;
        let mapping = Mapping::new(memfd.as_fd(), BYTES, Access::ReadWrite)?;
        // SAFETY: the mapping is ours alone, page-aligned and longer than the header.
        unsafe { put_header!(mapping, Head { magic: MAGIC, version: VERSION, classes: CLASSES as u32 }) };
        rustix::fs::fcntl_add_seals(&memfd, SEALS).map_err(std::io::Error::from)?;
        Ok((Self(mapping), memfd))
    }

    /// Maps one that the service has made.
    pub fn map(fd: BorrowedFd<'_>) -> Result<Self, MapError> {
        if check_sealed(fd)? != BYTES {
            return Err(MapError::Format("not the size of a stats region"));
        }
        let region = Self(Mapping::new(fd, BYTES, Access::ReadWrite)?);
        // SAFETY: the mapping begins page-aligned with the header, whose words are written once, before anybody else
        // maps it.
        let head = unsafe { &*region.0.base.cast::<Head>() };
        if (head.magic, head.version, head.classes) != (MAGIC, VERSION, CLASSES as u32) {
            return Err(MapError::Format("not a stats region"));
        }
        Ok(region)
    }

    /// One class by number.
    pub fn class(&self, number: usize) -> Option<&Class> {
        if number >= CLASSES {
            return None;
        }
        // SAFETY: the mapping has room for `CLASSES` classes after the header, each aligned like the header. They hold
        // only atomics, for which all bits are valid.
        Some(unsafe { &*self.0.base.add(size_of::<Head>()).cast::<Class>().add(number) })
    }

    /// The number of a class, which gets one now if it has none. `None` = there is none left.
    pub fn enter(&self, key: ClassKey) -> Option<usize> {
        let word = key.word();
        (0..CLASSES).find(|number| self.class(*number).is_some_and(|class| claim(&class.key, word)))
    }

    /// A class that somebody has entered.
    pub fn find(&self, key: ClassKey) -> Option<&Class> {
        let word = key.word();
        (0..CLASSES).filter_map(|number| self.class(number)).find(|class| class.key.load(Acquire) == word)
    }

    /// Every class that somebody has entered.
    pub fn keys(&self) -> impl Iterator<Item = ClassKey> {
        (0..CLASSES).filter_map(|number| ClassKey::of(self.class(number)?.key.load(Acquire)))
    }
}

#[cfg(test)]
mod tests;
