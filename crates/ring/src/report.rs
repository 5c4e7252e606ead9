//! The report of the processes under `towpath doctor` about their sockets: a memfd that all of them map and write with
//! atomics. Records stay when their process has been killed. Nobody acts on the report.
//!
//! | offset | what |
//! |---|---|
//! | 0 | [`Head`] |
//! | 64 | [`RECORDS`] times a [`Record`], taken in order |

use crate::MapError;
use crate::mapping::{Access, Mapping, put_header};
use crate::memory::{SEALS, check_sealed, unsealed_memfd};
use crate::word::claim;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};

/// Environment variable with the path of the report.
pub const VARIABLE: &str = "TOWPATH_REPORT";
/// First bytes of a report.
const MAGIC: [u8; 8] = *b"TOWPRPT\0";
/// Version of the format.
const VERSION: u32 = 3;
/// Programs that a report has room for; a process has one for each program that it executes.
pub const RECORDS: u32 = 1024;
/// Different refused calls of one program.
const REFUSALS: usize = 32;
/// Bytes of a program's command line that are kept.
pub const LINE_BYTES: usize = 128;
/// Bytes of the reason why a program is hooked as it is.
pub const WHY_BYTES: usize = 160;

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// A count that is kept for each program.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum Count { $($(#[$doc])* $name,)* }

        impl Count {
            /// All of them, in the order of their numbers.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// Its name in JSON.
            pub fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

counts! {
    /// Accelerated: connections that it has opened, joined with the other program directly.
    ConnectedDirect = "connected_direct",
    /// Accelerated: connections that it has opened, carried by the stack.
    ConnectedStack = "connected_stack",
    /// Accelerated: connections that it has accepted, joined with the other program directly.
    AcceptedDirect = "accepted_direct",
    /// Accelerated: connections that it has accepted, carried by the stack.
    AcceptedStack = "accepted_stack",
    /// The kernel's: connections that the kernel's half of an accelerated listener has accepted.
    AcceptedKernel = "accepted_kernel",
    /// Accelerated: listeners.
    Listening = "listening",
    /// The kernel's: UDP.
    Udp = "udp",
    /// The kernel's: AF_UNIX.
    Unix = "unix",
    /// The kernel's: AF_NETLINK.
    Netlink = "netlink",
    /// The kernel's: SOCK_RAW and AF_PACKET.
    Raw = "raw",
    /// The kernel's: any other family or protocol.
    OtherProtocol = "other_protocol",
    /// The kernel's: `TOWPATH_SOCKET` is not set.
    NoVariable = "no_variable",
    /// The kernel's: nobody listens at the service's socket.
    ServiceAbsent = "service_absent",
    /// The kernel's: the service does not admit the user.
    NotAdmitted = "not_admitted",
    /// The kernel's: the service has as many clients of this user, or descriptors, as it may have.
    ServiceFull = "service_full",
    /// The kernel's: library and service do not match.
    WrongVersion = "wrong_version",
    /// The kernel's: registration failed otherwise.
    ServiceRefused = "service_refused",
    /// The kernel's: the service has gone.
    ServiceGone = "service_gone",
    /// The kernel's: no slot is left in the region.
    NoSlot = "no_slot",
    /// The kernel's: a link-local or multicast address, or IPv4 on a socket of IPv6 only.
    Address = "address",
    /// The kernel's: an address of this host at which no Towpath program listens.
    NoListener = "no_listener",
    /// The kernel's: the service has no interface for that destination, or not that local address.
    Elsewhere = "elsewhere",
    /// The kernel's: the operator's policy says so.
    Policy = "policy",
    /// The kernel's: the host's firewall refuses the connection or translates it.
    Firewall = "firewall",
    /// The kernel's: IP options are set.
    IpOptions = "ip_options",
    /// The kernel's: an option is set that only the kernel can act on.
    KernelOption = "kernel_option",
    /// `io_uring_setup` that was refused.
    IoUringRefused = "io_uring_refused",
    /// `io_uring_setup` that was left to the kernel.
    IoUringLeft = "io_uring_left",
    /// `io_uring_setup` whose operations on accelerated descriptors are carried.
    IoUringCarried = "io_uring_carried",
    /// AIO on an accelerated descriptor that was refused.
    AioRefused = "aio_refused",
    /// Failed: the policy gives it to another stack, which cannot be reached or does not carry it.
    StackUnreachable = "stack_unreachable",
    /// Libraries loaded at run time that make system calls on sockets themselves, or a wait past the library.
    OwnCalls = "own_calls",
    /// No event context was available: `epoll_wait` polls.
    NoContext = "no_context",
    /// Kernel: the process has no memory or address space for its region.
    NoMemory = "no_memory",
    /// Kernel: the process may not open as many descriptors as registration needs.
    NoDescriptor = "no_descriptor",
    /// The kernel's: a socket of another network namespace than the service's.
    Namespace = "namespace",
    /// A watched socket was ready, and no event told of it: `epoll_wait` found it about a second later.
    EventMissed = "event_missed",
}

const COUNTS: usize = 64;
const _: () = assert!(Count::ALL.len() <= COUNTS);

/// How a program's calls are caught.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum HookMethod {
    /// Not at all.
    None = 0,
    /// By LD_PRELOAD.
    Preload = 1,
    /// By the loader.
    Inject = 2,
}

/// Which call was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Call {
    /// `setsockopt`
    SetOption = 1,
    /// `getsockopt`
    GetOption = 2,
}

/// A refused call, its level and name, and how often. `key` 0 = free.
#[repr(C)]
struct Refusal {
    key: AtomicU64,
    times: AtomicU32,
    _pad: AtomicU32,
}

/// The first 64 bytes.
#[repr(C, align(64))]
pub struct Head {
    magic: [u8; 8],
    version: u32,
    records: u32,
    /// Records that were asked for.
    next: AtomicU32,
}

/// The record of one program.
#[repr(C, align(64))]
pub struct Record {
    /// Its process; 0 = the record is not complete. Stored last.
    pid: AtomicU32,
    parent: AtomicU32,
    method: AtomicU32,
    lost: AtomicU32,
    line: [AtomicU8; LINE_BYTES],
    why: [AtomicU8; WHY_BYTES],
    counts: [AtomicU32; COUNTS],
    refusals: [Refusal; REFUSALS],
}

const BYTES: usize = size_of::<Head>() + RECORDS as usize * size_of::<Record>();
const _: () = assert!(size_of::<Head>() == 64);

/// The contents of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The process.
    pub pid: u32,
    /// Its parent.
    pub parent: u32,
    /// How its calls are caught.
    pub method: HookMethod,
    /// Its command line, as far as there was room.
    pub line: String,
    /// Why it is hooked as it is; empty = the usual.
    pub why: String,
    /// All counts that are not zero.
    pub counts: Vec<(Count, u32)>,
    /// Refused calls: which, level, name, how often.
    pub refused: Vec<(Call, u32, u32, u32)>,
}

impl Record {
    /// Counts one more of these.
    pub fn count(&self, what: Count) {
        self.counts[what as usize].fetch_add(1, Relaxed);
    }

    /// Says something of the program: why it is hooked so, or what that misses.
    pub fn say(&self, what: &[u8]) {
        store(&self.why, what);
    }

    /// Counts one more refusal of such a call.
    pub fn refused(&self, call: Call, level: i32, name: i32) {
        let key = (call as u64) << 48 | u64::from(level as u16) << 32 | u64::from(name as u32);
        for refusal in &self.refusals {
            if claim(&refusal.key, key) {
                refusal.times.fetch_add(1, Relaxed);
                return;
            }
        }
        self.lost.fetch_add(1, Relaxed);
    }

    fn read(&self) -> Option<Program> {
        let pid = self.pid.load(Acquire);
        let method = match self.method.load(Relaxed) {
            1 => HookMethod::Preload,
            2 => HookMethod::Inject,
            _ => HookMethod::None,
        };
        let counts = Count::ALL.iter().map(|count| (*count, self.counts[*count as usize].load(Relaxed)));
        let refused = self.refusals.iter().filter_map(|refusal| {
            let key = refusal.key.load(Relaxed);
            let call = match key >> 48 {
                1 => Call::SetOption,
                2 => Call::GetOption,
                _ => return None,
            };
            Some((call, (key >> 32) as u32 & 0xffff, key as u32, refusal.times.load(Relaxed)))
        });
        (pid != 0).then(|| Program {
            pid,
            parent: self.parent.load(Relaxed),
            method,
            line: text(&self.line),
            why: text(&self.why),
            counts: counts.filter(|(_, times)| *times > 0).collect(),
            refused: refused.collect(),
        })
    }
}

/// The text, without characters that would spoil a terminal.
fn text(bytes: &[AtomicU8]) -> String {
    let bytes: Vec<u8> = bytes.iter().map(|byte| byte.load(Relaxed)).take_while(|byte| *byte != 0).collect();
    String::from_utf8_lossy(&bytes).chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

fn store(room: &[AtomicU8], text: &[u8]) {
    room.iter().zip(text).for_each(|(to, from)| to.store(*from, Relaxed));
}

/// A mapped report.
pub struct Report(Mapping);

impl Report {
    /// Makes an empty report and the memfd that others open.
    pub fn create() -> Result<(Self, OwnedFd), MapError> {
        let memfd = unsealed_memfd("towpath-report", BYTES)?;
        let mapping = Mapping::new(memfd.as_fd(), BYTES, Access::ReadWrite)?;
        // SAFETY: the mapping is ours alone, page-aligned and longer than the header.
        unsafe {
            put_header!(mapping, Head { magic: MAGIC, version: VERSION, records: RECORDS, next: AtomicU32::new(0) })
        };
        rustix::fs::fcntl_add_seals(&memfd, SEALS).map_err(std::io::Error::from)?;
        Ok((Self(mapping), memfd))
    }

    /// Maps a report that another process has made.
    pub fn map(fd: BorrowedFd<'_>) -> Result<Self, MapError> {
        if check_sealed(fd)? != BYTES {
            return Err(MapError::Format("not the size of a report"));
        }
        let report = Self(Mapping::new(fd, BYTES, Access::ReadWrite)?);
        let head = report.head();
        if (head.magic, head.version, head.records) != (MAGIC, VERSION, RECORDS) {
            return Err(MapError::Format("not a report"));
        }
        Ok(report)
    }

    fn head(&self) -> &Head {
        // SAFETY: the mapping begins page-aligned with the header, and lives as long as `self`. Its plain words are
        // written once, before anybody else maps it.
        unsafe { &*self.0.base.cast() }
    }

    fn record(&self, number: u32) -> Option<&Record> {
        if number >= RECORDS {
            return None;
        }
        // SAFETY: the mapping has room for `RECORDS` records after the header, each aligned like the header. They hold
        // only atomics, for which all bits are valid.
        Some(unsafe { &*self.0.base.add(size_of::<Head>()).cast::<Record>().add(number as usize) })
    }

    /// Takes a record for a program. `None` = there is none left.
    pub fn enter(&self, pid: u32, parent: u32, method: HookMethod, line: &[u8], why: &[u8]) -> Option<&Record> {
        // A number that is already too large is not counted up, because it would wrap some time.
        let next = &self.head().next;
        if next.load(Relaxed) > 2 * RECORDS {
            return None;
        }
        let record = self.record(next.fetch_add(1, Relaxed))?;
        record.parent.store(parent, Relaxed);
        record.method.store(method as u32, Relaxed);
        store(&record.line, line);
        store(&record.why, why);
        record.pid.store(pid, Release);
        Some(record)
    }

    /// All programs in the order in which they came.
    pub fn programs(&self) -> Vec<Program> {
        let count = self.head().next.load(Relaxed).min(RECORDS);
        (0..count).filter_map(|number| self.record(number)?.read()).collect()
    }

    /// Programs for which there was no record, at least.
    pub fn left_out(&self) -> u32 {
        self.head().next.load(Relaxed).saturating_sub(RECORDS)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_one_writes_another_reads() {
        let (report, memfd) = Report::create().unwrap();
        let other = Report::map(memfd.as_fd()).unwrap();
        let record = other.enter(7, 1, HookMethod::Inject, b"server -p\x1b 1", b"is statically linked").unwrap();
        record.count(Count::Udp);
        record.count(Count::Udp);
        record.refused(Call::SetOption, 1, 26);
        record.refused(Call::SetOption, 1, 26);
        let programs = report.programs();
        assert_eq!(programs.len(), 1);
        let program = &programs[0];
        assert_eq!((program.pid, program.parent, program.method), (7, 1, HookMethod::Inject));
        assert_eq!((program.line.as_str(), program.why.as_str()), ("server -p? 1", "is statically linked"));
        assert_eq!(program.counts, [(Count::Udp, 2)]);
        assert_eq!(program.refused, [(Call::SetOption, 1, 26, 2)]);
    }

    #[test]
    fn a_programs_record_is_read_as_it_was_written() {
        let (report, _memfd) = Report::create().unwrap();
        let first = report.enter(1, 0, HookMethod::None, b"one\xff", b"").unwrap();
        let second = report.enter(2, 1, HookMethod::Preload, b"two\ttwo", b"usual").unwrap();
        second.say(b"makes calls itself");
        first.count(Count::ConnectedDirect);
        first.count(Count::Namespace);
        second.refused(Call::GetOption, 0xffff, -1);
        second.refused(Call::GetOption, -1, 7);
        second.refused(Call::SetOption, 0, 7);
        let [one, two] = <[Program; 2]>::try_from(report.programs()).unwrap();
        assert_eq!((one.method, one.line.as_str(), one.why.as_str()), (HookMethod::None, "one\u{fffd}", ""));
        assert_eq!(one.counts, [(Count::ConnectedDirect, 1), (Count::Namespace, 1)]);
        assert_eq!((two.pid, two.parent, two.method), (2, 1, HookMethod::Preload));
        assert_eq!((two.line.as_str(), two.why.as_str(), two.counts.len()), ("two?two", "makes calls itself", 0));
        let get = |name| (Call::GetOption, 0xffff, name, 1);
        assert_eq!(two.refused, [get(u32::MAX), get(7), (Call::SetOption, 0, 7, 1)]);
        assert_eq!(report.left_out(), 0);
    }

    #[test]
    fn counts_have_a_number_and_a_name_of_their_own() {
        let names: std::collections::BTreeSet<&str> = Count::ALL.iter().map(|count| count.name()).collect();
        assert_eq!(names.len(), Count::ALL.len());
        assert_eq!((Count::ConnectedDirect.name(), Count::Namespace.name()), ("connected_direct", "namespace"));
        assert!(Count::ALL.iter().enumerate().all(|(at, count)| *count as usize == at));
    }

    #[test]
    fn programs_beyond_the_last_record_are_counted_for_a_while_only() {
        let (report, _memfd) = Report::create().unwrap();
        report.head().next.store(RECORDS - 1, Relaxed);
        let enter = || report.enter(1, 1, HookMethod::Inject, b"", b"").is_some();
        assert!(enter() && !enter());
        assert_eq!(report.left_out(), 1);
        report.head().next.store(2 * RECORDS, Relaxed);
        assert!(!enter() && !enter() && !enter());
        assert_eq!(report.left_out(), RECORDS + 1, "the number does not wrap");
    }

    #[test]
    fn refusals_for_which_there_is_no_room_are_counted_together() {
        let (report, _memfd) = Report::create().unwrap();
        let record = report.enter(1, 1, HookMethod::Inject, b"", b"").unwrap();
        for name in 0..REFUSALS as i32 + 2 {
            record.refused(Call::SetOption, 6, name);
        }
        record.refused(Call::SetOption, 6, 0);
        assert_eq!(record.lost.load(Relaxed), 2);
        assert_eq!(report.programs()[0].refused[0], (Call::SetOption, 6, 0, 2));
    }

    #[test]
    fn what_is_no_report_is_not_mapped() {
        let (_report, memfd) = Report::create().unwrap();
        for at in [0, 8, 12] {
            let mut before = [0; 1];
            rustix::io::pread(&memfd, &mut before, at).unwrap();
            rustix::io::pwrite(&memfd, &[before[0] ^ 1], at).unwrap();
            assert!(Report::map(memfd.as_fd()).is_err(), "byte {at}");
            rustix::io::pwrite(&memfd, &before, at).unwrap();
        }
        assert!(Report::map(memfd.as_fd()).is_ok());
        let (_stats, other) = crate::stats::StatsRegion::create().unwrap();
        assert!(Report::map(other.as_fd()).is_err(), "of another size");
    }

    #[test]
    fn a_report_is_bounded() {
        let (report, _memfd) = Report::create().unwrap();
        for _ in 0..RECORDS + 9 {
            let record = report.enter(1, 1, HookMethod::Preload, &[b'x'; 1000], &[b'y'; 1000]);
            for name in 0..100 {
                record.inspect(|record| record.refused(Call::GetOption, 6, name));
            }
        }
        assert_eq!((report.programs().len(), report.left_out()), (RECORDS as usize, 9));
        let program = &report.programs()[0];
        assert_eq!((program.line.len(), program.why.len(), program.refused.len()), (LINE_BYTES, WHY_BYTES, REFUSALS));
    }

    #[test]
    fn nonsense_is_read_without_harm() {
        let (report, memfd) = Report::create().unwrap();
        let mapping = Mapping::new(memfd.as_fd(), BYTES, Access::ReadWrite).unwrap();
        // SAFETY: the mapping has `BYTES` bytes, and everything behind the plain words is atomics.
        unsafe { mapping.base.add(16).write_bytes(0xff, BYTES - 16) };
        assert_eq!(report.programs().len(), RECORDS as usize);
        assert!(report.enter(1, 1, HookMethod::Preload, b"x", b"").is_none());
        let (_report, other) = Report::create().unwrap();
        let mapping = Mapping::new(other.as_fd(), BYTES, Access::ReadWrite).unwrap();
        // SAFETY: the mapping is longer than 64 bytes, and this test is its only user.
        unsafe { mapping.base.write_bytes(1, 64) };
        assert!(Report::map(other.as_fd()).is_err());
    }
}
