//! The table of descriptors: the kind of each number in one word, without heap or lock. Most calls of most programs are
//! on other descriptors, and one load tells them so.

use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use towpath_client::session::{self, Session, SlotWords};
use towpath_client::socket::{SLOT_BITS, Socket};
use towpath_ring::Slot;
use towpath_ring::layout::{OFFSET_BITS, SlotLines};

/// Descriptor numbers from here on are always the kernel's (Linux's default ceiling, `fs.nr_open`).
pub const NUMBERS: usize = 1 << 20;

static TABLE: [AtomicU64; NUMBERS] = [const { AtomicU64::new(0) }; NUMBERS];
/// No number above this has ever been anything but the kernel's.
static HIGHEST: AtomicI32 = AtomicI32::new(-1);

/// The kind of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Descriptor {
    /// A descriptor of the kernel's.
    Kernel,
    /// A TCP kernel socket that has neither listened nor connected yet, or a listener whose service has gone.
    Pending(Pending),
    /// A socket in a slot.
    Slot {
        /// The slot's number. The bits from `SLOT_BITS` on are its session's number.
        slot: u32,
        /// The connection's or listener's generation.
        generation: u32,
    },
    /// An epoll descriptor, with the number of its instance.
    Epoll(u32),
    /// A descriptor of the library's own that the program must not touch.
    Internal,
    /// An io_uring, with the number of its ring.
    Ring(u32),
}

/// The record of a pending socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pending {
    /// `bind` has succeeded.
    pub bound: bool,
    /// `bind` has left the port to the kernel, so any other will do.
    pub any_port: bool,
    /// `setsockopt` has been used for an option that no other field tells of, so promotion copies all that may be set.
    pub options: bool,
    /// The program has set `TCP_NODELAY`.
    pub no_delay: bool,
    /// The library has let the kernel bind an address that only the stack has.
    pub foreign: bool,
    /// The program has set `SO_REUSEADDR`, but it is off on the kernel socket, so that the port is reserved.
    pub reuse_hidden: bool,
    /// It is an AF_INET6 socket.
    pub six: bool,
    /// F_SETOWN has been used: the socket has an owner for SIGURG.
    pub owned: bool,
    /// The number of the `TCP_CONGESTION` that the program has set; 0 = none (below 16).
    pub congestion: u8,
    /// The options for the stack that the program has set (18 bits, see `options::table`).
    pub steered: u32,
    /// The program has set emulated options.
    pub emulated: bool,
    /// `SO_RCVTIMEO` and `SO_SNDTIMEO` were set to negative times: no call waits. The kernel does not tell this.
    pub no_wait: [bool; 2],
    /// The kernel has refused a non-blocking connect and has not reported it yet.
    pub refused: bool,
    /// Another process may have it too.
    pub shared: bool,
    /// A listener whose service has gone.
    pub lost: bool,
    /// A lost listener is non-blocking for the program. The kernel socket tells this only until another process that has it
    /// lets it join a service.
    pub nonblock: bool,
    /// The copies of one socket have the same number here; 0 = it has no copies (24 bits).
    pub family: u32,
}

const KIND_BITS: u32 = 3;
/// From the number of a slot to its offset. The bits below it are 0, and have the kind.
const LINES_SHIFT: u32 = size_of::<SlotLines>().ilog2();
const KIND: u64 = (1 << KIND_BITS) - 1;
/// [`Descriptor::Slot`].
const SLOT: u64 = 2;
/// [`Descriptor::Epoll`].
const EPOLL: u64 = 3;
/// [`Descriptor::Slot`] whose calls are measured.
const MEASURED_SLOT: u64 = 6;
/// [`Descriptor::Kernel`] whose calls are measured.
const MEASURED_KERNEL: u64 = 7;
/// The numbers of sessions are below this.
const SESSIONS: u32 = 1 << (u32::BITS - KIND_BITS - OFFSET_BITS);
const _: () = assert!(session::SESSIONS <= SESSIONS as usize);
const FAMILIES: u32 = (1 << 24) - 1;

/// A slot and its session in the word: the [`Slot::offset`], and above it the session's number.
fn place_of(number: u32) -> u32 {
    (number & ((1 << SLOT_BITS) - 1)) << LINES_SHIFT & ((1 << OFFSET_BITS) - 1)
        | (number >> SLOT_BITS & (SESSIONS - 1)) << OFFSET_BITS
}

/// The number of the slot and its session in a word.
#[inline(always)]
fn number_at(word: u64) -> u32 {
    let word = word as u32;
    (word & ((1 << OFFSET_BITS) - 1)) >> LINES_SHIFT | (word >> OFFSET_BITS) << SLOT_BITS
}

fn encode(kind: Descriptor) -> u64 {
    match kind {
        Descriptor::Kernel => 0,
        Descriptor::Pending(u) => {
            let flags = [u.bound, u.options, u.reuse_hidden, u.six, u.owned];
            let word = flags.iter().zip(3..).fold(1, |word, (flag, bit)| word | u64::from(*flag) << bit);
            word | u64::from(u.congestion & 15) << 8
                | u64::from(u.emulated) << 12
                | u64::from(u.steered >> 16 & 3) << 13
                | u64::from(u.refused) << 15
                | u64::from(u.steered & 0xffff) << 16
                | u64::from(u.family & FAMILIES) << 32
                | u64::from(u.no_delay) << 56
                | u64::from(u.lost) << 57
                | u64::from(u.nonblock) << 58
                | u64::from(u.shared) << 59
                | u64::from(u.foreign) << 60
                | u64::from(u.any_port) << 61
                | u64::from(u.no_wait[0]) << 62
                | u64::from(u.no_wait[1]) << 63
        }
        Descriptor::Slot { slot, generation } => SLOT | u64::from(place_of(slot)) | u64::from(generation) << 32,
        Descriptor::Epoll(id) => EPOLL | u64::from(id) << 3,
        Descriptor::Internal => 4,
        Descriptor::Ring(id) => 5 | u64::from(id) << 3,
    }
}

fn decode(word: u64) -> Descriptor {
    match word & KIND {
        1 => Descriptor::Pending(Pending {
            bound: word & 8 != 0,
            no_delay: word & 1 << 56 != 0,
            lost: word & 1 << 57 != 0,
            nonblock: word & 1 << 58 != 0,
            shared: word & 1 << 59 != 0,
            foreign: word & 1 << 60 != 0,
            any_port: word & 1 << 61 != 0,
            options: word & 16 != 0,
            reuse_hidden: word & 32 != 0,
            six: word & 64 != 0,
            owned: word & 128 != 0,
            congestion: (word >> 8) as u8 & 15,
            steered: ((word >> 16) & 0xffff | (word >> 13 & 3) << 16) as u32,
            emulated: word & 1 << 12 != 0,
            refused: word & 1 << 15 != 0,
            family: (word >> 32) as u32 & FAMILIES,
            no_wait: [word & 1 << 62 != 0, word & 1 << 63 != 0],
        }),
        EPOLL => Descriptor::Epoll((word >> 3) as u32),
        4 => Descriptor::Internal,
        5 => Descriptor::Ring((word >> 3) as u32),
        SLOT | MEASURED_SLOT => Descriptor::Slot { slot: number_at(word), generation: (word >> 32) as u32 },
        _ => Descriptor::Kernel,
    }
}

/// The target of a call that moves bytes.
pub enum Target {
    /// A socket in a slot.
    Ours(Socket),
    /// A descriptor whose calls are measured (see `measure`), of a slot or of the kernel.
    Measured,
    /// Something else.
    Other,
}

/// The target of a call on `fd` that moves bytes.
#[inline(always)]
pub fn target(fd: i32) -> Target {
    let word = TABLE.get(fd as u32 as usize).map_or(0, |word| word.load(Ordering::Acquire));
    match word & KIND {
        SLOT => Socket::at(number_at(word), (word >> 32) as u32).map_or(Target::Other, Target::Ours),
        MEASURED_SLOT | MEASURED_KERNEL => Target::Measured,
        _ => Target::Other,
    }
}

/// The socket behind a descriptor, if it is in a slot.
#[inline]
pub fn socket(fd: i32) -> Option<Socket> {
    match get(fd) {
        Descriptor::Slot { slot, generation } => Socket::at(slot, generation),
        _ => None,
    }
}

/// The kind of this socket's descriptors.
pub fn kind_of(socket: &Socket) -> Descriptor {
    Descriptor::Slot { slot: socket.number(), generation: socket.generation }
}

/// What the table has of a descriptor.
#[derive(Clone, Copy)]
pub struct Named(u64);

/// What the table has of `fd`; `None` if it has no place for such a number.
#[inline(always)]
pub fn named(fd: i32) -> Option<Named> {
    Some(Named(TABLE.get(fd as u32 as usize)?.load(Ordering::Acquire)))
}

impl Named {
    /// Slot, words and generation, if it is a socket of this session whose calls are not measured.
    #[inline(always)]
    pub fn own(self, session: &Session) -> Option<(Slot, SlotWords<'_>, u32)> {
        // Another kind leaves some of the lowest bits set, and another session some of the highest. No slot's offset has them.
        let (slot, words) = session.slot_at((self.0 as u32).wrapping_sub(SLOT as u32) ^ session.tag)?;
        Some((slot, words, (self.0 >> 32) as u32))
    }
}

/// The number of the epoll instance behind a descriptor, if it is one.
#[inline(always)]
pub fn look_for_epoll(fd: i32) -> Option<u32> {
    let word = TABLE.get(fd as u32 as usize)?.load(Ordering::Acquire);
    (word & KIND == EPOLL).then_some((word >> KIND_BITS) as u32)
}

/// Are its calls measured?
#[inline]
pub fn is_measured(fd: i32) -> bool {
    TABLE.get(fd as u32 as usize).is_some_and(|word| word.load(Ordering::Relaxed) & KIND >= MEASURED_SLOT)
}

/// From now on, calls on this socket are measured. It is in a slot or the kernel's.
pub fn measure(fd: i32) {
    change(fd, [(SLOT, MEASURED_SLOT), (0, MEASURED_KERNEL)]);
}

/// Ends the measuring of a descriptor.
pub fn unmeasure(fd: i32) {
    if !is_diverted(fd) {
        change(fd, [(MEASURED_SLOT, SLOT), (MEASURED_KERNEL, 0)]);
    }
}

/// Descriptors of sockets whose calls take the path of measured ones, because `ready::past` looks at them.
static DIVERTED: [AtomicU64; NUMBERS / 64] = [const { AtomicU64::new(0) }; NUMBERS / 64];

fn diverted(fd: i32) -> Option<(&'static AtomicU64, u64)> {
    let fd = fd as u32 as usize;
    Some((DIVERTED.get(fd / 64)?, 1 << (fd % 64)))
}

/// Do its calls take the path of measured ones, although nobody may measure them?
#[inline]
pub fn is_diverted(fd: i32) -> bool {
    diverted(fd).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
}

/// From now on calls on this socket take the path of measured ones.
pub fn divert(fd: i32) {
    if let Some((word, bit)) = diverted(fd) {
        word.fetch_or(bit, Ordering::Relaxed);
        change(fd, [(SLOT, MEASURED_SLOT); 2]);
    }
}

/// Nobody looks at its calls any more. The next one finds out whether they are measured.
pub fn restore(fd: i32) {
    if let Some((word, bit)) = diverted(fd) {
        word.fetch_and(!bit, Ordering::Relaxed);
    }
}

fn change(fd: i32, kinds: [(u64, u64); 2]) {
    let Some(word) = TABLE.get(fd as u32 as usize) else { return };
    let changed = |word: u64| {
        let (_, to) = kinds.iter().find(|(from, _)| word & KIND == *from)?;
        Some(word & !KIND | to)
    };
    let _ = word.fetch_update(Ordering::AcqRel, Ordering::Acquire, changed);
}

/// The kind of `fd`.
#[inline]
pub fn get(fd: i32) -> Descriptor {
    match TABLE.get(fd as u32 as usize) {
        Some(word) => {
            let word = word.load(Ordering::Acquire);
            if word == 0 { Descriptor::Kernel } else { decode(word) }
        }
        None => Descriptor::Kernel,
    }
}

/// Sets the kind of `fd`.
pub fn set(fd: i32, kind: Descriptor) {
    let Some(word) = TABLE.get(fd as u32 as usize) else { return };
    word.store(encode(kind), Ordering::Release);
    if kind != Descriptor::Kernel {
        HIGHEST.fetch_max(fd, Ordering::Relaxed);
    }
}

/// Changes the record of a pending socket, for all its descriptors.
pub fn update_pending(fd: i32, change: impl Fn(&mut Pending)) {
    let changed = |word: u64| match decode(word) {
        Descriptor::Pending(mut pending) => {
            change(&mut pending);
            Some(encode(Descriptor::Pending(pending)))
        }
        _ => None,
    };
    for word in copies(fd).into_iter().filter_map(|copy| TABLE.get(copy as u32 as usize)) {
        // Another thread may change something else of it.
        let _ = word.fetch_update(Ordering::AcqRel, Ordering::Acquire, changed);
    }
}

/// All descriptors of this process for the socket behind `fd`, which is pending or in a slot.
pub fn copies(fd: i32) -> Vec<i32> {
    let same = |kind: &Descriptor| match (kind, get(fd)) {
        (Descriptor::Pending(one), Descriptor::Pending(other)) => one.family == other.family,
        (one, other) => *one == other,
    };
    match get(fd) {
        Descriptor::Pending(Pending { family: 0, .. }) => vec![fd],
        _ => within(0, u32::MAX).filter(|(_, kind)| same(kind)).map(|(copy, _)| copy).collect(),
    }
}

/// A new number for the copies of one pending socket.
pub fn new_family() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    (NEXT.fetch_add(1, Ordering::Relaxed) & FAMILIES).max(1)
}

/// All descriptors in `first..=last` that are not the kernel's.
pub fn within(first: u32, last: u32) -> impl Iterator<Item = (i32, Descriptor)> {
    let highest = HIGHEST.load(Ordering::Relaxed);
    let first = first.min(i32::MAX as u32) as i32;
    let last = last.min(i32::MAX as u32) as i32;
    (first..=last.min(highest)).map(|fd| (fd, get(fd))).filter(|(_, kind)| *kind != Descriptor::Kernel)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_survives_encoding() {
        for kind in [
            Descriptor::Kernel,
            Descriptor::Pending(Pending { bound: true, options: false, reuse_hidden: true, ..Pending::default() }),
            Descriptor::Pending(Pending {
                six: true,
                owned: true,
                congestion: 7,
                steered: 0x3_ffff,
                family: FAMILIES,
                emulated: true,
                shared: true,
                lost: true,
                nonblock: true,
                no_wait: [true, false],
                no_delay: true,
                ..Pending::default()
            }),
            Descriptor::Pending(Pending { any_port: true, ..Pending::default() }),
            Descriptor::Slot { slot: 65_535, generation: u32::MAX },
            Descriptor::Slot { slot: 0, generation: 0 },
            Descriptor::Slot { slot: 7 << towpath_client::socket::SLOT_BITS | 65_535, generation: 1 },
            Descriptor::Epoll(77),
            Descriptor::Internal,
            Descriptor::Ring(5),
        ] {
            assert_eq!(decode(encode(kind)), kind);
        }
    }

    #[test]
    fn a_measured_descriptor_is_what_it_was() {
        let slot = Descriptor::Slot { slot: 77, generation: 9 };
        for (fd, kind) in [(1_000_001, slot), (1_000_002, Descriptor::Kernel)] {
            set(fd, kind);
            measure(fd);
            assert_eq!((get(fd), is_measured(fd)), (kind, true));
            assert!(matches!(target(fd), Target::Measured));
            unmeasure(fd);
            assert_eq!((get(fd), is_measured(fd)), (kind, false));
            assert!(!matches!(target(fd), Target::Measured));
            measure(fd);
            set(fd, Descriptor::Kernel);
            assert!(!is_measured(fd), "the number belongs to another descriptor");
        }
        set(1_000_003, Descriptor::Internal);
        measure(1_000_003);
        assert_eq!((get(1_000_003), is_measured(-1)), (Descriptor::Internal, false));
    }

    #[test]
    fn impossible_descriptors_are_the_kernels() {
        assert_eq!(get(-1), Descriptor::Kernel);
        assert_eq!(get(i32::MIN), Descriptor::Kernel);
        assert_eq!(get(i32::MAX), Descriptor::Kernel);
        set(-1, Descriptor::Internal);
        assert_eq!(get(-1), Descriptor::Kernel);
    }
}
