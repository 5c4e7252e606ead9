//! The protocol stage's line of a flow, and the working copy that the stages use.

use super::words::Word;
use crate::seq::Seq;

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
    /// Where the pending events are (`messages::event`, eight bits).
    pub const EVENT_SHIFT: u32 = 56;
    /// The pending events.
    pub const EVENTS: u64 = 0xff << EVENT_SHIFT;
}

/// The protocol stage's state of a flow: one line.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct ProtocolLine([Word; 16]);

/// A working copy of a [`ProtocolLine`].
#[derive(Clone, Copy, Debug, Default)]
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
    /// Duplicate acknowledgements in a row, up to 15.
    pub dup_acks: u8,
    /// Duplicate acknowledgements to be sent, up to 15: one for each segment that came ahead of a hole, however many there were in
    /// a batch, as the peer counts them (RFC 5681 §3.2, §4.2).
    pub acks_due: u8,
    /// The peer's window shift.
    pub snd_wscale: u8,
    /// Our window shift.
    pub rcv_wscale: u8,
    /// Entry in the out-of-order table plus one; 0 = everything is in order.
    pub out_of_order: u16,
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
        let w = |i: usize| self.0[i].get();
        let (sizes, small) = (w(14), w(15));
        Tcb {
            snd_una: Seq(w(0)),
            snd_nxt: Seq(w(1)),
            snd_max: Seq(w(2)),
            snd_queued: Seq(w(3)),
            snd_wnd: w(4),
            cwnd: w(5),
            snd_wl1: Seq(w(7)),
            rcv_nxt: Seq(w(8)),
            rcv_adv: Seq(w(9)),
            rcv_limit: Seq(w(10)),
            last_ack: Seq(w(11)),
            ts_recent: w(12),
            flags: u64::from(w(13)) | u64::from(w(6)) << 32,
            mss: sizes as u16,
            rcv_mss: (sizes >> 16) as u16,
            dup_acks: small as u8 & 15,
            acks_due: (small >> 4) as u8 & 15,
            snd_wscale: (small >> 8) as u8 & 15,
            rcv_wscale: (small >> 12) as u8 & 15,
            out_of_order: (small >> 16) as u16,
        }
    }
    #[inline]
    pub(crate) fn store(&self, t: &Tcb) {
        let sizes = u32::from(t.mss) | u32::from(t.rcv_mss) << 16;
        let small = u32::from(t.dup_acks.min(15))
            | u32::from(t.acks_due.min(15)) << 4
            | u32::from(t.snd_wscale & 15) << 8
            | u32::from(t.rcv_wscale & 15) << 12
            | u32::from(t.out_of_order) << 16;
        let words = [
            t.snd_una.0,
            t.snd_nxt.0,
            t.snd_max.0,
            t.snd_queued.0,
            t.snd_wnd,
            t.cwnd,
            (t.flags >> 32) as u32,
            t.snd_wl1.0,
            t.rcv_nxt.0,
            t.rcv_adv.0,
            t.rcv_limit.0,
            t.last_ack.0,
            t.ts_recent,
            t.flags as u32,
            sizes,
            small,
        ];
        for (word, value) in self.0.iter().zip(words) {
            word.set(value);
        }
    }
    /// The flags alone.
    #[inline]
    pub(crate) fn flags(&self) -> u64 {
        u64::from(self.0[13].get()) | u64::from(self.0[6].get()) << 32
    }
    /// Changes the flags alone.
    #[inline]
    pub(crate) fn set_flags(&self, flags: u64) {
        self.0[13].set(flags as u32);
        self.0[6].set((flags >> 32) as u32);
    }
}
