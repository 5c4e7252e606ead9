//! The transmission control block: a working copy of a flow's protocol line, in parts by their writers.

use super::bits::{
    AckDebt, Agreed, AppFlags, FIN_WANTED, FlagSet, LIMIT_WAIT, LossFlags, MARKS, PACE_WAIT, QueueFlags, ReceiveFlags,
    Reports, Requests, Timing,
};
use super::permit::{Part, Writes};
use crate::seq::Seq;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Makes a part of the block that lies in these 32-bit words of the protocol line.
macro_rules! part {
    ($(#[$doc:meta])* $name:ident in $words:expr => { $($(#[$about:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable)]
        #[repr(C)]
        pub struct $name {
            $($(#[$about])* pub(crate) $field: $type,)*
        }
        impl Part for $name {
            const WORDS: u16 = $words;
        }
    };
}

part! {
    /// The state of the receive direction, and the peer's acknowledgement and window. Written by the receiving stage.
    Received in 0b1_1111 => {
        /// Oldest unacknowledged.
        snd_una: Seq,
        /// The peer's window in bytes, from `snd_una`: 32 bits (RFC 9293 REC-1).
        snd_wnd: u32,
        /// Sequence number of the segment that updated `snd_wnd` last. (WL2 is not needed: old acknowledgements are
        /// ignored.)
        snd_wl1: Seq,
        /// Next expected.
        rcv_nxt: Seq,
        /// The peer's timestamp to echo.
        ts_recent: u32,
    }
}
part! {
    /// The peer's segment size. Written by the receiving stage.
    PeerSegment in 1 << 5 => {
        /// Largest payload seen, as estimate of the peer's segments.
        rcv_mss: u16,
    }
}
part! {
    /// Segments that came ahead of a hole. Written by the receiving stage, and at the end of a flow.
    Ahead in 1 << 5 => {
        /// Entry in the out-of-order table plus one; 0 = everything is in order.
        out_of_order: u16,
    }
}
part! {
    /// The extent of what has been sent. Written by egress.
    Sent in 0b11 << 6 => {
        /// One beyond the highest ever sent.
        snd_max: Seq,
        /// Acknowledgement number sent last (Last.ACK.sent, RFC 7323 §4.3).
        last_ack: Seq,
    }
}
part! {
    /// Where sending goes on. Shared: egress moves it forwards, an acknowledgement too, loss recovery back.
    Next in 1 << 8 => {
        /// Next to send.
        snd_nxt: Seq,
    }
}
part! {
    /// The window that the peer was promised. Shared: egress promises it, and the peer's FIN takes one number beyond
    /// it.
    Advertised in 1 << 9 => {
        /// Right edge of the window.
        rcv_adv: Seq,
    }
}
part! {
    /// The extent of what the application has written.
    Written in 1 << 10 => {
        /// End of the queued data.
        snd_queued: Seq,
    }
}
part! {
    /// Room in the receive ring. Shared: the application makes room by reading, the receiving stage by discarding.
    Room in 1 << 11 => {
        /// End of the room: the highest that the right edge of the window may be.
        rcv_limit: Seq,
    }
}
part! {
    /// The congestion window. Written by loss recovery.
    Congestion in 1 << 12 => {
        /// Congestion window in bytes.
        cwnd: u32,
    }
}
part! {
    /// The path's segment size. Written by the slow path's messages.
    SegmentSize in 1 << 13 => {
        /// Largest payload to send.
        mss: u16,
    }
}
part! {
    /// Duplicate acknowledgements received. Written by loss recovery.
    DuplicateAcks in 1 << 13 => {
        /// How many came in a row, at most [`MANY`].
        in_a_row: u8,
    }
}
/// Duplicate acknowledgements to be sent: one for each segment that came ahead of a hole, because the peer counts them
/// (RFC 5681 §3.2, §4.2). A batch may have several. At most 15. Shared like `AckDebt`.
#[derive(Debug, Default)]
pub struct DuplicatesOwed;

impl Part for DuplicatesOwed {
    const WORDS: u16 = MARKS;
}

/// The largest window that the peer has offered. Shared: the receiving stage raises it, a window probe lowers it.
#[derive(Debug, Default)]
pub struct PeerWindow;

/// Where `DuplicateAcks` stops to count: beyond the third nothing depends on their number.
const MANY: u8 = 15;
/// The most duplicate acknowledgements that are owed: four bits.
const OWED_MAX: u8 = 15;
/// Their number in [`Marks`].
const DUPLICATES_OWED: u64 = (OWED_MAX as u64) << DuplicatesOwed::SHIFT;

impl DuplicateAcks {
    #[inline]
    pub(crate) fn one_more(&mut self) {
        self.in_a_row = (self.in_a_row + 1).min(MANY);
    }
}

/// The flags but those of loss recovery, and the duplicate acknowledgements that are owed: one word, which a stage keeps
/// in a register.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable)]
#[repr(transparent)]
pub(crate) struct Marks(u64);

/// A set of flags that is a byte of [`Marks`], or half a byte.
trait InMarks {
    /// Its lowest bit.
    const SHIFT: u32;
}

/// Says where which set begins.
macro_rules! in_marks {
    ($($set:ident: $bit:literal;)*) => {
        $(impl InMarks for $set {
            const SHIFT: u32 = $bit;
        })*
    };
}

in_marks! {
    AppFlags: 0;
    QueueFlags: 8;
    Reports: 16;
    ReceiveFlags: 24;
    AckDebt: 32;
    Agreed: 40;
    Requests: 48;
    DuplicatesOwed: 56;
    Timing: 60;
}

impl Marks {
    /// Flags of several owners, to look for all of them at once.
    pub(crate) const fn mask(agreed: Agreed, queue: QueueFlags, owed: AckDebt, requests: Requests) -> Self {
        Self(
            (agreed.0 as u64) << Agreed::SHIFT
                | (queue.0 as u64) << QueueFlags::SHIFT
                | (owed.0 as u64) << AckDebt::SHIFT
                | (requests.0 as u64) << Requests::SHIFT,
        )
    }
    /// These flags too.
    pub(crate) const fn and(self, receive: ReceiveFlags, app: AppFlags) -> Self {
        Self(self.0 | (receive.0 as u64) << ReceiveFlags::SHIFT | (app.0 as u64) << AppFlags::SHIFT)
    }
    /// These too.
    pub(crate) const fn and_reports(self, reports: Reports) -> Self {
        Self(self.0 | (reports.0 as u64) << Reports::SHIFT)
    }
    /// All of these too.
    pub(crate) const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
    /// Any number of duplicate acknowledgements too.
    pub(crate) const fn and_duplicates(self) -> Self {
        Self(self.0 | DUPLICATES_OWED)
    }
}

/// A working copy of a protocol line. Everybody may read it; to write a part, a stage shows that it may.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Tcb {
    received: Received,
    segment: PeerSegment,
    ahead: Ahead,
    sent: Sent,
    next: Next,
    advertised: Advertised,
    written: Written,
    room: Room,
    congestion: Congestion,
    size: SegmentSize,
    duplicates: DuplicateAcks,
    loss: LossFlags,
    marks: Marks,
}

/// The block as the words of its line.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(super) struct Block {
    pub words: [u32; 14],
    pub marks: u64,
}

impl From<Block> for Tcb {
    #[inline(always)]
    fn from(block: Block) -> Self {
        zerocopy::transmute!(block)
    }
}

impl From<Tcb> for Block {
    #[inline(always)]
    fn from(t: Tcb) -> Self {
        zerocopy::transmute!(t)
    }
}

/// A set of flags in the block.
pub(crate) trait InTcb: FlagSet + Part {
    fn of(t: &Tcb) -> Self;
    fn put(self, t: &mut Tcb);
    fn set(self, t: &mut Tcb);
    fn clear(self, t: &mut Tcb);
}

/// Says that a set is part of [`Marks`].
macro_rules! in_tcb {
    ($($set:ident)*) => {
        $(impl InTcb for $set {
            #[inline(always)]
            fn of(t: &Tcb) -> Self {
                Self((t.marks.0 >> Self::SHIFT) as u8)
            }
            #[inline(always)]
            fn put(self, t: &mut Tcb) {
                t.marks.0 = t.marks.0 & !(0xff << Self::SHIFT) | u64::from(self.0) << Self::SHIFT;
            }
            #[inline(always)]
            fn set(self, t: &mut Tcb) {
                t.marks.0 |= u64::from(self.0) << Self::SHIFT;
            }
            #[inline(always)]
            fn clear(self, t: &mut Tcb) {
                t.marks.0 &= !(u64::from(self.0) << Self::SHIFT);
            }
        })*
    };
}

in_tcb! { ReceiveFlags AppFlags QueueFlags Reports Agreed AckDebt Requests Timing }

impl InTcb for LossFlags {
    #[inline(always)]
    fn of(t: &Tcb) -> Self {
        t.loss
    }
    #[inline(always)]
    fn put(self, t: &mut Tcb) {
        t.loss = self;
    }
    #[inline(always)]
    fn set(self, t: &mut Tcb) {
        FlagSet::set(&mut t.loss, self);
    }
    #[inline(always)]
    fn clear(self, t: &mut Tcb) {
        FlagSet::clear(&mut t.loss, self);
    }
}

/// A field that everybody may read.
macro_rules! read {
    ($($part:ident { $($field:ident: $type:ty),* })*) => {
        $($(
            #[inline(always)]
            pub(crate) fn $field(&self) -> $type {
                self.$part.$field
            }
        )*)*
    };
}

/// A part, for a stage that may write it.
macro_rules! write {
    ($($part:ident: $type:ty;)*) => {
        $(
            /// This part, for a stage that may write it.
            #[inline(always)]
            pub fn $part<S: Writes<$type>>(&mut self, _: S) -> &mut $type {
                &mut self.$part
            }
        )*
    };
}

impl Tcb {
    read! {
        received { snd_una: Seq, snd_wnd: u32, snd_wl1: Seq, rcv_nxt: Seq, ts_recent: u32 }
        segment { rcv_mss: u16 }
        ahead { out_of_order: u16 }
        sent { snd_max: Seq, last_ack: Seq }
        next { snd_nxt: Seq }
        advertised { rcv_adv: Seq }
        written { snd_queued: Seq }
        room { rcv_limit: Seq }
        congestion { cwnd: u32 }
        size { mss: u16 }
        duplicates { in_a_row: u8 }
    }
    write! {
        received: Received;
        segment: PeerSegment;
        ahead: Ahead;
        sent: Sent;
        next: Next;
        advertised: Advertised;
        written: Written;
        room: Room;
        congestion: Congestion;
        size: SegmentSize;
        duplicates: DuplicateAcks;
    }

    /// Duplicate acknowledgements that are to be sent.
    #[inline(always)]
    pub(crate) fn duplicates_owed(&self) -> u8 {
        ((self.marks.0 & DUPLICATES_OWED) >> DuplicatesOwed::SHIFT) as u8
    }
    /// So many are to be sent; no more than 15 are kept.
    #[inline(always)]
    pub(crate) fn owe_duplicates<S: Writes<DuplicatesOwed>>(&mut self, _: S, count: u8) {
        let count = u64::from(count.min(OWED_MAX));
        self.marks.0 = self.marks.0 & !DUPLICATES_OWED | count << DuplicatesOwed::SHIFT;
    }

    /// All these flags are set.
    #[inline(always)]
    pub(crate) fn has<F: InTcb>(&self, flags: F) -> bool {
        F::of(self).has(flags)
    }
    /// Some of these flags are set.
    #[inline(always)]
    pub(crate) fn any<F: InTcb>(&self, flags: F) -> bool {
        F::of(self).any(flags)
    }
    /// Some of these flags of several owners are set.
    #[inline(always)]
    pub(crate) fn marked(&self, mask: Marks) -> bool {
        self.marks.0 & mask.0 != 0
    }
    #[inline(always)]
    pub(crate) fn set<F: InTcb, S: Writes<F>>(&mut self, _: S, flags: F) {
        flags.set(self);
    }
    #[inline(always)]
    pub(crate) fn clear<F: InTcb, S: Writes<F>>(&mut self, _: S, flags: F) {
        flags.clear(self);
    }
    #[inline(always)]
    pub(crate) fn replace<F: InTcb, S: Writes<F>>(&mut self, _: S, flags: F) {
        flags.put(self);
    }
    /// The owner's flags as a whole.
    #[inline(always)]
    pub(crate) fn flags<F: InTcb>(&self) -> F {
        F::of(self)
    }

    /// Bytes that the peer may still send, as advertised.
    #[inline]
    pub(crate) fn rcv_wnd(&self) -> u32 {
        self.rcv_adv().distance(self.rcv_nxt()).max(0) as u32
    }
    /// Nothing is outstanding.
    #[inline]
    pub(crate) fn idle(&self) -> bool {
        self.snd_una() == self.snd_max()
    }
    /// Bytes sent and not acknowledged.
    #[inline]
    pub(crate) fn flight(&self) -> u32 {
        self.snd_max().bytes_since(self.snd_una())
    }
    /// Something waits to be sent that no acknowledgement on its way will release: behind a closed or silly window, or
    /// `TCP_CORK`. The slow path then sees to it that it does not wait for ever (RFC 9293 MUST-60).
    #[inline]
    pub(crate) fn stuck(&self) -> bool {
        let unsent = self.snd_queued().distance(self.snd_nxt());
        self.idle() && !self.any(PACE_WAIT | LIMIT_WAIT) && (unsent > 0 || (unsent == 0 && self.has(FIN_WANTED)))
    }
}
