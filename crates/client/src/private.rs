//! The application's own words for each slot, in the region's private area. All processes of the client share them, and
//! no stack reads them.

use crate::lock::Lock;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64};
use towpath_ring::layout::{PRIVATE_HEADER_BYTES, PRIVATE_SLOT_BYTES};
use towpath_ring::{Geometry, Region, Slot};

/// The data queues and the command queue.
pub const QUEUES: usize = Geometry::MAX_FLOW_GROUPS as usize + 1;

/// The writer's side of one doorbell queue.
#[repr(C, align(64))]
#[derive(Default)]
pub struct Queue {
    /// One thread at a time pushes.
    pub lock: Lock,
    /// The slot that is being pushed, plus one; 0 = none.
    pub pushing: AtomicU32,
    /// The number of slots that had been pushed when the stack was last notified.
    pub notified: AtomicU32,
    /// The tail after the pushes of a signal handler that has interrupted a push, plus 2^32; 0 = none has.
    pub nested: AtomicU64,
}

/// The part that belongs to no slot.
#[repr(C)]
pub struct Header {
    /// Where the search for a free slot begins.
    pub next_slot: AtomicU32,
    /// Number of the newest doorbell (`BitmapWords`).
    pub next_doorbell: AtomicU32,
    /// The PID namespace of the client's processes (its inode; 0 = not known). In another namespace the ids of lock
    /// owners mean other threads.
    pub pid_namespace: AtomicU64,
    /// No slot of the application's range from this number on has ever been claimed.
    pub slots_claimed: AtomicU32,
    /// A process has said that the service is gone.
    pub said_gone: AtomicU32,
    /// A process has said that there is a service again.
    pub said_back: AtomicU32,
    /// After the service's end: until when a process registers for the client (monotonic clock, ms); 0 = none does.
    pub succeeding_ms: AtomicU64,
    /// After the service's end: the token of the region that the client has at the next one; 0 = none yet.
    pub successor: AtomicU64,
    /// How many slots of the stack's range have been touched (see `memory`).
    pub children_touched: AtomicU32,
    /// The doorbell queues.
    pub queues: [Queue; QUEUES],
}

/// Values of [`Private::used`].
pub mod used {
    /// The application does not use the slot.
    pub const NO: u32 = 0;
    /// A process is making a command for it. The process's id is in the bits above.
    pub const CLAIMED: u32 = 1;
    /// The bits that tell these values apart.
    pub const WHICH: u32 = 3;

    /// The word of a slot that this process claims.
    pub const fn claimed(pid: i32) -> u32 {
        (pid as u32) << 2 | CLAIMED
    }
    /// The process that has claimed a slot.
    pub const fn claimer(word: u32) -> i32 {
        (word >> 2) as i32
    }
    /// A socket uses it. If the stack nevertheless says FREE, the socket's last descriptor was closed unseen.
    pub const LIVE: u32 = 2;
}

/// Bits of [`Private::flags`].
pub mod flag {
    /// `O_NONBLOCK`.
    pub const NONBLOCK: u32 = 1;
    /// More than one descriptor may exist (dup, fork), so `close` of one does not end the socket.
    pub const SHARED: u32 = 2;
    /// The pending error has been reported.
    pub const ERROR_TAKEN: u32 = 4;
    /// `connect` has returned EINPROGRESS and its outcome has not been asked for.
    pub const CONNECT_PENDING: u32 = 8;
    /// `SO_REUSEADDR` reads as set.
    pub const REUSEADDR: u32 = 16;
    /// `SO_REUSEPORT` reads as set.
    pub const REUSEPORT: u32 = 32;
    /// An AF_INET6 socket.
    pub const SIX: u32 = 64;
    /// `IPV6_V6ONLY` reads as set.
    pub const V6ONLY: u32 = 128;
    /// `TCP_QUICKACK` reads as switched off.
    pub const QUICKACK_OFF: u32 = 256;
    /// `SO_OOBINLINE`.
    pub const OOBINLINE: u32 = 512;
    /// `shutdown` for reading: the bytes in the ring can still be read, then comes the end.
    pub const SHUT_RD: u32 = 1024;
    /// `TCP_CORK` reads as set.
    pub const CORKED: u32 = 2048;
    /// The last bytes were sent with MSG_MORE, so the stack holds them back as with `TCP_CORK`.
    pub const MORE: u32 = 4096;
    /// Emulated options have been set on the socketpair (see `emulated`).
    pub const EMULATED_ON_PAIR: u32 = 8192;
    /// Bytes were sent on a direct connection after the peer had closed, which counts as a reset by the peer.
    pub const SENT_TO_NOBODY: u32 = 16384;
    /// The service knows the name of the socket, by which it recognises its descriptors (see `passing`).
    pub const NAMED: u32 = 32768;
    /// A file has been given to the stack to send (see `files`).
    pub const FILE: u32 = 65536;
    /// The stack's kernel encrypts what is sent (see `secure`).
    pub const SECURE: u32 = 131_072;
    /// A listener whose descriptor is the kernel's own socket, which really listens: connections come to both halves.
    pub const KERNEL_HALF: u32 = 262_144;
    /// The kernel has chosen the port of a listener with a kernel half, and takes it back when that listens no longer.
    pub const ANY_PORT: u32 = 524_288;
    /// It has given memory back since data last moved (see `idle`).
    pub const GAVE_BACK: u32 = 1_048_576;
    /// A connection whose pair may be kept for another one (see `pairs` in `towpath-posix`).
    pub const OWN_PAIR: u32 = 2_097_152;
    /// The kernel has been asked for something that may have changed the descriptor's open file: owner, signal, flags.
    pub const FILE_CHANGED: u32 = 4_194_304;
    /// Bytes are spliced from it or to it (see `hand_over` in `towpath-posix`).
    pub const SPLICES: u32 = 8_388_608;
}

/// One slot's part.
#[repr(C, align(64))]
pub struct Private {
    /// `used::*`.
    pub used: AtomicU32,
    /// `flag::*`.
    pub flags: AtomicU32,
    /// One thread at a time moves `rx_head`.
    pub receiving: Lock,
    /// One thread at a time moves `tx_tail`.
    pub sending: Lock,
    /// One thread at a time posts a command for a slot in use.
    pub commanding: Lock,
    /// `rx_head` as of the last doorbell.
    pub notified_head: AtomicU32,
    /// `SO_RCVLOWAT`, bytes; 0 = 1.
    pub low_water: AtomicU32,
    /// How much of the receive ring has been touched, from its beginning; all ones: all (see `memory`). It outlives the use
    /// of the slot.
    pub touched: AtomicU32,
    /// `SO_RCVTIMEO`, µs; 0 = none.
    pub receive_timeout_us: AtomicU64,
    /// `SO_SNDTIMEO`, µs; 0 = none.
    pub send_timeout_us: AtomicU64,
    /// `SO_LINGER`, seconds; as a complement (negative) if it is off.
    pub linger_s: AtomicI32,
    /// Usable bytes of the send ring, by `SO_SNDBUF`; never more than the ring has.
    pub send_limit: AtomicU32,
    /// Bytes of the receive ring that the stack fills before it waits for the receive head; fewer with `SO_RCVBUF`.
    pub receive_limit: AtomicU32,
    /// Emulated options, one bit each.
    pub emulated: AtomicU32,
    /// The urgent byte that the program has read with MSG_OOB, and the one that the receive head has passed (see
    /// `urgent`).
    pub urgent_read: AtomicU64,
    /// See `urgent_read`.
    pub urgent_passed: AtomicU64,
    /// `SO_PEEK_OFF` (see `options::peek` in `towpath-posix`); 0 = -1, the default.
    pub peek: AtomicU64,
    /// Calls in flight on the socket (see `in_flight`).
    pub users: AtomicU32,
    /// `StackLine::soft_error` when it was last reported.
    pub soft_error: AtomicU32,
    /// Accepts on a listener with a kernel half, which take turns by it. With [`flag::OWN_PAIR`]: the number of the pair.
    pub accepts: AtomicU32,
    /// What the stack last said of the rings' sizes (see `ring_growth`). Under `receiving`.
    pub sizes: AtomicU32,
    /// Direct connection: bytes sent. Others: bytes of files that have been given to the stack. Under `sending`.
    pub sent: AtomicU64,
    /// Direct connection: bytes read, under `receiving`. Others: how much of a file is given to the stack at a time
    /// (see `files` in `towpath-posix`), under `sending`.
    pub read: AtomicU64,
    /// The positions of both rings as they were last looked at, in one word (see `idle`).
    pub idle_at: AtomicU32,
    /// When they were first found there, ms of the coarse monotonic clock, modulo 2^32.
    pub idle_since: AtomicU32,
}

impl Private {
    /// Can other processes have the socket too? [`flag::SHARED`] is set before they get it.
    #[inline(always)]
    pub fn is_shared(&self) -> bool {
        self.flags.load(core::sync::atomic::Ordering::Relaxed) & flag::SHARED != 0
    }
}

const _: () = assert!(size_of::<Header>() <= PRIVATE_HEADER_BYTES);

/// The part of a region's private area that belongs to no slot.
#[inline]
pub fn header(region: &Region) -> &Header {
    let (base, _) = region.private();
    // SAFETY: the private area begins at a page boundary with this many bytes (asserted). It starts as zeros, which is
    // a valid value, and holds only atomics.
    unsafe {
        const { assert!(size_of::<Header>() <= PRIVATE_HEADER_BYTES) };
        &*base.cast::<Header>()
    }
}

/// A slot's part of a region's private area.
#[inline(always)]
pub fn of_slot(region: &Region, slot: Slot) -> &Private {
    // SAFETY: it is the slot's part.
    unsafe { at(region.private_slot(slot)) }
}

/// The same, for whoever knows where it is.
///
/// # Safety
/// It is a slot's part of a region's private area, and the region outlives the reference.
#[inline(always)]
pub unsafe fn at<'a>(place: *mut u8) -> &'a Private {
    // SAFETY: behind the header the area has `PRIVATE_SLOT_BYTES` for each slot of the region, with their alignment. It
    // starts as zeros, which is a valid value, and holds only atomics.
    unsafe {
        const { assert!(size_of::<Private>() <= PRIVATE_SLOT_BYTES) };
        &*place.cast::<Private>()
    }
}
