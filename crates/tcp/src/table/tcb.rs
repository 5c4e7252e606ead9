//! The transmission control block: a working copy of a flow's protocol line, in parts by their writers.

use super::bits::{
    AckDebt, Agreed, AppFlags, FIN_WANTED, FlagSet, LIMIT_WAIT, LossFlags, PACE_WAIT, QueueFlags, ReceiveFlags,
    Reports, Requests,
};
use super::permit::{Part, Writes};
use crate::seq::Seq;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Makes a part of the block that lies in these words of the protocol line.
macro_rules! part {
    ($(#[$doc:meta])* $name:ident in $words:literal { $($(#[$about:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable)]
        #[repr(C)]
        pub struct $name {
            $($(#[$about])* pub(crate) $field: $type,)*
        }
        impl Part for $name {
            const WORDS: u8 = $words;
        }
    };
}

part! {
    /// The state of the receive direction, and the peer's acknowledgement and window. Written by the receiving stage.
    Received in 0b111 {
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
    PeerSegment in 0b100 {
        /// Largest payload seen, as estimate of the peer's segments.
        rcv_mss: u16,
    }
}
part! {
    /// Segments that came ahead of a hole. Written by the receiving stage, and at the end of a flow.
    Ahead in 0b100 {
        /// Entry in the out-of-order table plus one; 0 = everything is in order.
        out_of_order: u16,
    }
}
part! {
    /// The extent of what has been sent. Written by egress.
    Sent in 0b1000 {
        /// One beyond the highest ever sent.
        snd_max: Seq,
        /// Acknowledgement number sent last (Last.ACK.sent, RFC 7323 §4.3).
        last_ack: Seq,
    }
}
part! {
    /// Where sending goes on. Shared: egress moves it forwards, an acknowledgement too, loss recovery back.
    Next in 0b1_0000 {
        /// Next to send.
        snd_nxt: Seq,
    }
}
part! {
    /// The window that the peer was promised. Shared: egress promises it, and the peer's FIN takes one number beyond
    /// it.
    Advertised in 0b1_0000 {
        /// Right edge of the window.
        rcv_adv: Seq,
    }
}
part! {
    /// The extent of what the application has written.
    Written in 0b10_0000 {
        /// End of the queued data.
        snd_queued: Seq,
    }
}
part! {
    /// Room in the receive ring. Shared: the application makes room by reading, the receiving stage by discarding.
    Room in 0b10_0000 {
        /// End of the room: the highest that the right edge of the window may be.
        rcv_limit: Seq,
    }
}
part! {
    /// The congestion window. Written by loss recovery.
    Congestion in 0b100_0000 {
        /// Congestion window in bytes.
        cwnd: u32,
    }
}
part! {
    /// The path's segment size. Written by the slow path's messages.
    SegmentSize in 0b100_0000 {
        /// Largest payload to send.
        mss: u16,
    }
}
part! {
    /// Duplicate acknowledgements received. Written by loss recovery.
    DuplicateAcks in 0b100_0000 {
        /// How many came in a row, at most [`MANY`].
        in_a_row: u8,
    }
}
part! {
    /// Duplicate acknowledgements to be sent. Shared like `AckDebt`.
    DuplicatesOwed in 0b1000_0000 {
        /// One for each segment that came ahead of a hole, because the peer counts them (RFC 5681 §3.2, §4.2). A batch
        /// may have several. At most 15.
        count: u8,
    }
}
/// The largest window that the peer has offered. Shared: the receiving stage raises it, a window probe lowers it.
#[derive(Debug, Default)]
pub struct PeerWindow;

/// Where `DuplicateAcks` stops to count: beyond the third nothing depends on their number.
const MANY: u8 = 15;
/// The most duplicate acknowledgements that are owed.
const OWED_MAX: u8 = 15;

impl DuplicateAcks {
    #[inline]
    pub(crate) fn one_more(&mut self) {
        self.in_a_row = (self.in_a_row + 1).min(MANY);
    }
}

impl DuplicatesOwed {
    #[inline]
    pub(crate) fn one_more(&mut self) {
        self.count = (self.count + 1).min(OWED_MAX);
    }
}

/// The flags but those of loss recovery, in one word.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct Marks {
    receive: ReceiveFlags,
    app: AppFlags,
    queue: QueueFlags,
    reports: Reports,
    agreed: Agreed,
    owed: AckDebt,
    requests: Requests,
    duplicates: DuplicatesOwed,
}

impl Marks {
    /// Flags of several owners, to look for all of them at once.
    pub(crate) const fn mask(agreed: Agreed, queue: QueueFlags, owed: AckDebt, requests: Requests) -> Self {
        let (receive, app, reports) = (ReceiveFlags::EMPTY, AppFlags::EMPTY, Reports::EMPTY);
        Self { receive, app, queue, reports, agreed, owed, requests, duplicates: DuplicatesOwed { count: 0 } }
    }
    /// These flags too.
    pub(crate) const fn and(self, receive: ReceiveFlags, app: AppFlags) -> Self {
        Self { receive: self.receive.and(receive), app: self.app.and(app), ..self }
    }
    #[inline(always)]
    fn any(self, mask: Self) -> bool {
        let (marks, mask): (u64, u64) = (zerocopy::transmute!(self), zerocopy::transmute!(mask));
        marks & mask != 0
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

/// Where a set of flags is.
pub(crate) trait InTcb: FlagSet + Part {
    fn of(t: &Tcb) -> Self;
    fn of_mut(t: &mut Tcb) -> &mut Self;
}

/// Says where each set of flags is.
macro_rules! in_tcb {
    ($($set:ident: $($field:ident).+;)*) => {
        $(impl InTcb for $set {
            #[inline(always)]
            fn of(t: &Tcb) -> Self {
                t.$($field).+
            }
            #[inline(always)]
            fn of_mut(t: &mut Tcb) -> &mut Self {
                &mut t.$($field).+
            }
        })*
    };
}

in_tcb! {
    ReceiveFlags: marks.receive;
    AppFlags: marks.app;
    QueueFlags: marks.queue;
    Reports: marks.reports;
    Agreed: marks.agreed;
    AckDebt: marks.owed;
    Requests: marks.requests;
    LossFlags: loss;
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
        self.marks.duplicates.count
    }
    /// The same, for a stage that may change their number.
    #[inline(always)]
    pub(crate) fn owed_duplicates<S: Writes<DuplicatesOwed>>(&mut self, _: S) -> &mut DuplicatesOwed {
        &mut self.marks.duplicates
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
        self.marks.any(mask)
    }
    #[inline(always)]
    pub(crate) fn set<F: InTcb, S: Writes<F>>(&mut self, _: S, flags: F) {
        F::of_mut(self).set(flags);
    }
    #[inline(always)]
    pub(crate) fn clear<F: InTcb, S: Writes<F>>(&mut self, _: S, flags: F) {
        F::of_mut(self).clear(flags);
    }
    #[inline(always)]
    pub(crate) fn replace<F: InTcb, S: Writes<F>>(&mut self, _: S, flags: F) {
        *F::of_mut(self) = flags;
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
