//! The protocol stage's line of a flow, and the working copy that the stages use.

use super::words::Counter;
use crate::seq::Seq;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Bits of [`Tcb::flags`] beyond the public ones of [`crate::flow::flow_flags`].
pub(crate) mod bits {
    use crate::flow::flow_flags;

    /// The public bits.
    pub const PUBLIC: u64 = 0x7ff | flow_flags::SACK | flow_flags::PACE_WAIT | flow_flags::ECN | flow_flags::LIMIT_WAIT;
    /// Owned by a fast path.
    pub const INSTALLED: u64 = 1 << 11;
    /// Reset or aborted: segments are ignored until removal.
    pub const DEAD: u64 = 1 << 12;
    /// Removed, but still in one of the queues.
    pub const REMOVING: u64 = 1 << 13;
    /// In the scheduler's queue.
    pub const SCHEDULED: u64 = 1 << 14;
    /// An acknowledgement goes out in this turn, alone if no data does.
    pub const ACK_NOW: u64 = 1 << 15;
    /// An acknowledgement is owed, but may wait for data to carry it.
    pub const ACK_OWED: u64 = 1 << 16;
    /// In the queue of delayed acknowledgements.
    pub const DELAYED: u64 = 1 << 17;
    /// The application does not want received data.
    pub const SHUT_RD: u64 = 1 << 18;
    /// Partial segments are held.
    pub const CORK: u64 = 1 << 19;
    /// A segment is being timed (`Measures::rtt_seq`).
    pub const TIMING: u64 = 1 << 20;
    /// A window probe is to be sent.
    pub const PROBE: u64 = 1 << 21;
    /// The first unacknowledged segment is to be sent again.
    pub const RESEND: u64 = 1 << 22;
    /// A RST is to be sent.
    pub const RESET: u64 = 1 << 23;
    /// `Identity::recover` still means something.
    pub const RECOVER_SET: u64 = 1 << 24;
    /// A keepalive probe is to be sent.
    pub const KEEPALIVE: u64 = 1 << 48;
    /// `TCP_QUICKACK`: acknowledge at once.
    pub const QUICKACK: u64 = 1 << 49;
    /// `Recovery::snd_up` may be ahead of what is acknowledged.
    pub const URGENT_OUT: u64 = 1 << 50;
    /// `Recovery::rcv_up` means something.
    pub const URGENT_IN: u64 = 1 << 51;
    /// `Recovery::duplicate` is to be reported (RFC 2883).
    pub const DSACK: u64 = 1 << 33;
    /// Paced (`Rate::pacing` is not 0).
    pub const PACED: u64 = 1 << 41;
    /// Had more to send at the end of its last turn than pacing, its quota or its port let go.
    pub const PACE_LATE: u64 = 1 << 42;
    /// An IPv6 flow: its addresses are in the line `Addresses`.
    pub const V6: u64 = 1 << 52;
    /// Its frames are tagged with `Addresses::vlan`.
    pub const VLAN: u64 = 1 << 53;
    /// RFC 8257 instead of RFC 3168, if `flow_flags::ECN`.
    pub const ECN_DCTCP: u64 = 1 << 44;
    /// Acknowledgements carry ECE: until CWR comes, or as long as marks come (`DCTCP.CE`).
    pub const ECN_ECHO: u64 = 1 << 45;
    /// The next new segment carries CWR.
    pub const ECN_CWR: u64 = 1 << 46;
    /// `Rate::ecn_recover` means something.
    pub const ECN_REDUCED: u64 = 1 << 47;
    /// How many of `Rate::ecn_edges` are to be acknowledged: up to two, one bit each.
    pub const ECN_EDGE: u64 = 1 << 25;
    /// See `ECN_EDGE`.
    pub const ECN_EDGES: u64 = 3 << 25;
    /// In its port's queue of what no rate limit holds back.
    pub const PRESSING: u64 = 1 << 28;
    /// `Recovery::board` is the flow's scoreboard.
    pub const TRACKED: u64 = 1 << 34;
    /// `Recovery::left` is not 0.
    pub const SCORED: u64 = 1 << 35;
    /// Something on the scoreboard is lost and to be sent again.
    pub const LOST: u64 = 1 << 36;
    /// The tail is to be probed.
    pub const TAIL: u64 = 1 << 37;
    /// The last reduction can be undone.
    pub const UNDO: u64 = 1 << 38;
    /// The application has aborted: RST is to follow what may go now.
    pub const ABORTING: u64 = 1 << 39;
    /// Where the pending events are (`messages::event`, eight bits).
    pub const EVENT_SHIFT: u32 = 56;
    /// The pending events.
    pub const EVENTS: u64 = 0xff << EVENT_SHIFT;
}

/// The protocol stage's state of a flow: one line, word by word as a [`Tcb`] lies in memory, so that loading and storing are plain copies.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct ProtocolLine([Counter; 8]);

/// The word that is `Tcb::flags`.
const FLAGS: usize = std::mem::offset_of!(Tcb, flags) / 8;

/// A working copy of a [`ProtocolLine`].
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct Tcb {
    /// Oldest unacknowledged.
    pub snd_una: Seq,
    /// Next to send; moves back on a time-out.
    pub snd_nxt: Seq,
    /// One beyond the highest ever sent.
    pub snd_max: Seq,
    /// End of the queued data.
    pub snd_queued: Seq,
    /// The peer's window in bytes, from `snd_una`: 32 bits (RFC 9293 REC-1).
    pub snd_wnd: u32,
    /// Congestion window in bytes.
    pub cwnd: u32,
    /// Sequence number of the segment that updated `snd_wnd` last. (WL2 is not needed: old acknowledgements are ignored.)
    pub snd_wl1: Seq,
    /// Next expected.
    pub rcv_nxt: Seq,
    /// Right edge of the window advertised so far.
    pub rcv_adv: Seq,
    /// End of the room in the receive ring: the highest that the right edge may be.
    pub rcv_limit: Seq,
    /// Acknowledgement number sent last (Last.ACK.sent, RFC 7323 §4.3).
    pub last_ack: Seq,
    /// The peer's timestamp to echo.
    pub ts_recent: u32,
    /// `flow_flags` and [`bits`].
    pub flags: u64,
    /// Largest payload to send.
    pub mss: u16,
    /// Largest payload seen, as estimate of the peer's segments.
    pub rcv_mss: u16,
    /// Entry in the out-of-order table plus one; 0 = everything is in order.
    pub out_of_order: u16,
    /// Duplicate acknowledgements.
    pub acks: Acks,
    /// Window shifts.
    pub shifts: Shifts,
}

/// Two small numbers about duplicate acknowledgements, up to 15 each.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable)]
#[repr(transparent)]
pub(crate) struct Acks(u8);

impl Acks {
    /// Duplicate acknowledgements received in a row.
    #[inline]
    pub fn seen(self) -> u8 {
        self.0 & 15
    }
    #[inline]
    pub fn set_seen(&mut self, count: u8) {
        self.0 = self.0 & !15 | count.min(15);
    }
    /// Duplicate acknowledgements to be sent: one for each segment that came ahead of a hole, however many there were in a batch, as the
    /// peer counts them (RFC 5681 §3.2, §4.2).
    #[inline]
    pub fn due(self) -> u8 {
        self.0 >> 4
    }
    #[inline]
    pub fn set_due(&mut self, count: u8) {
        self.0 = self.0 & 15 | count.min(15) << 4;
    }
}

/// Both window shifts (RFC 7323 §2), up to 14.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable)]
#[repr(transparent)]
pub(crate) struct Shifts(u8);

impl Shifts {
    pub fn new(peer: u8, ours: u8) -> Self {
        Self(peer.min(14) | ours.min(14) << 4)
    }
    /// The peer's.
    #[inline]
    pub fn peer(self) -> u8 {
        self.0 & 15
    }
    /// Ours.
    #[inline]
    pub fn ours(self) -> u8 {
        self.0 >> 4
    }
}

impl Tcb {
    /// Are all these bits set?
    #[inline]
    pub fn has(&self, bits: u64) -> bool {
        self.flags & bits == bits
    }
    /// Is any of these bits set?
    #[inline]
    pub fn any(&self, bits: u64) -> bool {
        self.flags & bits != 0
    }
    /// Bytes that the peer may still send, as advertised.
    #[inline]
    pub fn rcv_wnd(&self) -> u32 {
        self.rcv_adv.distance(self.rcv_nxt).max(0) as u32
    }
    /// Is nothing outstanding?
    #[inline]
    pub fn idle(&self) -> bool {
        self.snd_una == self.snd_max
    }
}

impl ProtocolLine {
    #[inline]
    pub(crate) fn load(&self) -> Tcb {
        let [a, b, c, d, e, f, g, h] = &self.0;
        let words = [a.get(), b.get(), c.get(), d.get(), e.get(), f.get(), g.get(), h.get()];
        zerocopy::transmute!(words)
    }
    #[inline]
    pub(crate) fn store(&self, t: &Tcb) {
        let words: [u64; 8] = zerocopy::transmute!(*t);
        for (word, value) in self.0.iter().zip(&words) {
            word.set(*value);
        }
    }
    /// The flags alone.
    #[inline]
    pub(crate) fn flags(&self) -> u64 {
        self.0[FLAGS].get()
    }
    /// Changes the flags alone.
    #[inline]
    pub(crate) fn set_flags(&self, flags: u64) {
        self.0[FLAGS].set(flags);
    }
}
