//! What each descriptor number is. One word per number, no heap, no lock: most calls of most programs are on
//! descriptors that are none of our business, and find that out with one load.

use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

/// Descriptor numbers from here on are always the kernel's (Linux's default ceiling, `fs.nr_open`).
pub const NUMBERS: usize = 1 << 20;

static TABLE: [AtomicU64; NUMBERS] = [const { AtomicU64::new(0) }; NUMBERS];
/// No number above this has ever been anything else than the kernel's.
static HIGHEST: AtomicI32 = AtomicI32::new(-1);

/// What a descriptor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// None of our business.
    Kernel,
    /// A TCP kernel socket that has neither listened nor connected yet.
    Undecided(Undecided),
    /// A socket in a slot.
    Slot {
        /// Its number, and in the bits from [`SLOT_BITS`] on that of its session.
        slot: u32,
        /// The connection's or listener's generation.
        generation: u32,
    },
    /// An epoll descriptor; the number of its instance.
    Epoll(u32),
    /// A descriptor of the library's own that the program must not touch.
    Internal,
    /// An io_uring; its number.
    Ring(u32),
}

/// What is known about an undecided socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Undecided {
    /// `bind` has succeeded.
    pub bound: bool,
    /// `setsockopt` has been used, so there is something to carry over.
    pub options: bool,
    /// `SO_REUSEADDR` was asked for, but is off on the kernel socket because that reserves the port.
    pub reuse_hidden: bool,
    /// An AF_INET6 socket.
    pub six: bool,
    /// F_SETOWN has been used.
    pub owned: bool,
    /// `TCP_CONGESTION` that was asked for: its number, 0 = none (below 16).
    pub congestion: u8,
    /// Which of the options that the stack has to know have been set (18 bits, see `steer`).
    pub steered: u32,
    /// Options that are only kept have been set (see `kept`).
    pub kept: bool,
    /// `SO_RCVTIMEO` and `SO_SNDTIMEO` are negative: no call waits. (The kernel does not tell.)
    pub no_wait: [bool; 2],
    /// The kernel has refused a connect that did not wait, and is yet to say so.
    pub refused: bool,
    /// Descriptors of this process with the same number are copies of one socket; 0 = there are no copies (30 bits).
    pub family: u32,
}

const KIND: u64 = 7;
/// [`Kind::Slot`].
const SLOT: u64 = 2;
/// The same, and its calls are counted.
const WATCHED_SLOT: u64 = 6;
/// [`Kind::Kernel`], and its calls are counted.
const WATCHED_KERNEL: u64 = 7;
/// Bits of a slot's number within its session.
pub const SLOT_BITS: u32 = 21;
/// Bits that are left for the number of a slot and its session.
const SLOT_MASK: u32 = u32::MAX >> 3;
const FAMILIES: u32 = (1 << 30) - 1;

fn encode(kind: Kind) -> u64 {
    match kind {
        Kind::Kernel => 0,
        Kind::Undecided(u) => {
            let flags = [u.bound, u.options, u.reuse_hidden, u.six, u.owned];
            let word = flags.iter().zip(3..).fold(1, |word, (flag, bit)| word | u64::from(*flag) << bit);
            word | u64::from(u.congestion & 15) << 8
                | u64::from(u.kept) << 12
                | u64::from(u.steered >> 16 & 3) << 13
                | u64::from(u.refused) << 15
                | u64::from(u.steered & 0xffff) << 16
                | u64::from(u.family & FAMILIES) << 32
                | u64::from(u.no_wait[0]) << 62
                | u64::from(u.no_wait[1]) << 63
        }
        Kind::Slot { slot, generation } => SLOT | u64::from(slot & SLOT_MASK) << 3 | u64::from(generation) << 32,
        Kind::Epoll(id) => 3 | u64::from(id) << 3,
        Kind::Internal => 4,
        Kind::Ring(id) => 5 | u64::from(id) << 3,
    }
}

fn decode(word: u64) -> Kind {
    match word & KIND {
        1 => Kind::Undecided(Undecided {
            bound: word & 8 != 0,
            options: word & 16 != 0,
            reuse_hidden: word & 32 != 0,
            six: word & 64 != 0,
            owned: word & 128 != 0,
            congestion: (word >> 8) as u8 & 15,
            steered: ((word >> 16) & 0xffff | (word >> 13 & 3) << 16) as u32,
            kept: word & 1 << 12 != 0,
            refused: word & 1 << 15 != 0,
            family: (word >> 32) as u32 & FAMILIES,
            no_wait: [word & 1 << 62 != 0, word & 1 << 63 != 0],
        }),
        3 => Kind::Epoll((word >> 3) as u32),
        4 => Kind::Internal,
        5 => Kind::Ring((word >> 3) as u32),
        SLOT | WATCHED_SLOT => Kind::Slot { slot: word as u32 >> 3, generation: (word >> 32) as u32 },
        _ => Kind::Kernel,
    }
}

/// What the calls that move bytes have to know of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// As in [`Kind::Slot`].
    Slot {
        /// See there.
        slot: u32,
        /// See there.
        generation: u32,
    },
    /// Its calls are counted (see `watch`), be it a slot's or the kernel's.
    Watched,
    /// Something else.
    Other,
}

/// What `fd` is for a call that moves bytes.
#[inline(always)]
pub fn look(fd: i32) -> Look {
    let word = TABLE.get(fd as u32 as usize).map_or(0, |word| word.load(Ordering::Acquire));
    match word & KIND {
        SLOT => Look::Slot { slot: word as u32 >> 3, generation: (word >> 32) as u32 },
        WATCHED_SLOT | WATCHED_KERNEL => Look::Watched,
        _ => Look::Other,
    }
}

/// Slot and generation of a socket of the process's own session whose calls are not counted.
#[inline(always)]
pub fn look_for_own(fd: i32) -> Option<(u32, u32)> {
    let word = TABLE.get(fd as u32 as usize)?.load(Ordering::Acquire);
    let others = u64::from(u32::MAX << (SLOT_BITS + 3));
    (word & (KIND | others) == SLOT).then_some((word as u32 >> 3, (word >> 32) as u32))
}

/// The number of the epoll instance behind a descriptor, if it is one.
#[inline(always)]
pub fn look_for_epoll(fd: i32) -> Option<u32> {
    let word = TABLE.get(fd as u32 as usize)?.load(Ordering::Acquire);
    match decode(word) {
        Kind::Epoll(id) => Some(id),
        _ => None,
    }
}

/// Are its calls counted?
#[inline]
pub fn is_watched(fd: i32) -> bool {
    TABLE.get(fd as u32 as usize).is_some_and(|word| word.load(Ordering::Relaxed) & KIND >= WATCHED_SLOT)
}

/// The calls on a socket in a slot, or on one of the kernel's, are counted from now on.
pub fn watch(fd: i32) {
    change(fd, [(SLOT, WATCHED_SLOT), (0, WATCHED_KERNEL)]);
}

/// They are not counted any more.
pub fn unwatch(fd: i32) {
    change(fd, [(WATCHED_SLOT, SLOT), (WATCHED_KERNEL, 0)]);
}

fn change(fd: i32, kinds: [(u64, u64); 2]) {
    let Some(word) = TABLE.get(fd as u32 as usize) else { return };
    let changed = |word: u64| {
        let (_, to) = kinds.iter().find(|(from, _)| word & KIND == *from)?;
        Some(word & !KIND | to)
    };
    let _ = word.fetch_update(Ordering::AcqRel, Ordering::Acquire, changed);
}

/// What `fd` is.
#[inline]
pub fn get(fd: i32) -> Kind {
    match TABLE.get(fd as u32 as usize) {
        Some(word) => {
            let word = word.load(Ordering::Acquire);
            if word == 0 { Kind::Kernel } else { decode(word) }
        }
        None => Kind::Kernel,
    }
}

/// Says what `fd` is from now on.
pub fn set(fd: i32, kind: Kind) {
    let Some(word) = TABLE.get(fd as u32 as usize) else { return };
    word.store(encode(kind), Ordering::Release);
    if kind != Kind::Kernel {
        HIGHEST.fetch_max(fd, Ordering::Relaxed);
    }
}

/// Changes what is known about an undecided socket, for all its descriptors.
pub fn update_undecided(fd: i32, change: impl FnOnce(&mut Undecided)) {
    if let Kind::Undecided(mut undecided) = get(fd) {
        change(&mut undecided);
        for copy in copies(fd) {
            set(copy, Kind::Undecided(undecided));
        }
    }
}

/// All descriptors of this process for the socket behind `fd`, which is not the kernel's.
pub fn copies(fd: i32) -> Vec<i32> {
    let same = |kind: &Kind| match (kind, get(fd)) {
        (Kind::Undecided(one), Kind::Undecided(other)) => one.family == other.family,
        (one, other) => *one == other,
    };
    match get(fd) {
        Kind::Undecided(Undecided { family: 0, .. }) => vec![fd],
        _ => within(0, u32::MAX).filter(|(_, kind)| same(kind)).map(|(copy, _)| copy).collect(),
    }
}

/// The number of one more family.
pub fn new_family() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    (NEXT.fetch_add(1, Ordering::Relaxed) & FAMILIES).max(1)
}

/// All descriptors in `first..=last` that are not simply the kernel's.
pub fn within(first: u32, last: u32) -> impl Iterator<Item = (i32, Kind)> {
    let highest = HIGHEST.load(Ordering::Relaxed);
    let first = first.min(i32::MAX as u32) as i32;
    let last = last.min(i32::MAX as u32) as i32;
    (first..=last.min(highest)).map(|fd| (fd, get(fd))).filter(|(_, kind)| *kind != Kind::Kernel)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_survives_encoding() {
        for kind in [
            Kind::Kernel,
            Kind::Undecided(Undecided { bound: true, options: false, reuse_hidden: true, ..Undecided::default() }),
            Kind::Undecided(Undecided {
                six: true,
                owned: true,
                congestion: 7,
                steered: 0x3_ffff,
                family: 77,
                kept: true,
                no_wait: [true, false],
                ..Undecided::default()
            }),
            Kind::Slot { slot: 65_535, generation: u32::MAX },
            Kind::Slot { slot: 0, generation: 0 },
            Kind::Slot { slot: 7 << SLOT_BITS | 65_535, generation: 1 },
            Kind::Epoll(77),
            Kind::Internal,
            Kind::Ring(5),
        ] {
            assert_eq!(decode(encode(kind)), kind);
        }
    }

    #[test]
    fn a_watched_descriptor_is_what_it_was() {
        let slot = Kind::Slot { slot: 77, generation: 9 };
        for (fd, kind) in [(1_000_001, slot), (1_000_002, Kind::Kernel)] {
            set(fd, kind);
            let before = look(fd);
            watch(fd);
            assert_eq!((get(fd), look(fd), is_watched(fd)), (kind, Look::Watched, true));
            unwatch(fd);
            assert_eq!((get(fd), look(fd), is_watched(fd)), (kind, before, false));
            watch(fd);
            set(fd, Kind::Kernel);
            assert!(!is_watched(fd), "the number is somebody else's");
        }
        set(1_000_003, Kind::Internal);
        watch(1_000_003);
        assert_eq!((get(1_000_003), is_watched(-1)), (Kind::Internal, false));
    }

    #[test]
    fn impossible_descriptors_are_the_kernels() {
        assert_eq!(get(-1), Kind::Kernel);
        assert_eq!(get(i32::MIN), Kind::Kernel);
        assert_eq!(get(i32::MAX), Kind::Kernel);
        set(-1, Kind::Internal);
        assert_eq!(get(-1), Kind::Kernel);
    }
}
