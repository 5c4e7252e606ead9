//! Header prediction (Van Jacobson 1990). One look at a flow and a segment tells whether this is the segment that a busy
//! connection has nearly always.
//!
//! The predicted path is the stages' own functions, compiled a second time without what the prediction excludes. So each
//! rule stands once. [`rare`](super::rare::rare) marks the conditions that are excluded, and checks each in builds with
//! assertions.

use super::plan::{self, Plan};
use super::segment::Segment;
use crate::messages::AppUpdate;
use crate::seq::Seq;
use crate::table::Lines;
use crate::table::bits::{
    ABORTING, APP_CLOSED, AppFlags, CORK, DEAD, DSACK, ECN, ECN_ECHO, ECN_EDGES, ECN_REDUCED, FIN_ACKED, FIN_RECEIVED,
    FIN_WANTED, FlagSet, HELD, KEEPALIVE, LOST, LossFlags, MARKED, NODELAY, PACED, PASSIVE_CLOSE, PROBE, QUICKACK,
    QueueFlags, RECOVER_SET, RECOVERY, REMOVING, RESEND, RESET, ReceiveFlags, SCORED, SHUT_RD, TAIL, TRACKED, TRIMMED,
    UNDO, URGENT_OUT, V6, VLAN,
};
use crate::table::tcb::{Marks, Tcb};
use towpath_wire::segment::flags;

/// Nothing of this is set on a flow that receives the predicted segment.
const RECEIVES: Marks = Marks::mask(DEAD.and(ECN), QueueFlags::EMPTY, DSACK.and(ECN_EDGES), LOST.and(TAIL).and(RESEND))
    .and(
        FIN_RECEIVED.and(PASSIVE_CLOSE).and(FIN_ACKED).and(ECN_ECHO).and(TRIMMED).and(HELD),
        APP_CLOSED.and(QUICKACK).and(SHUT_RD),
    );
/// Nor of these.
const REPAIRS: LossFlags = RECOVERY.and(RECOVER_SET).and(TRACKED).and(SCORED).and(UNDO).and(ECN_REDUCED).and(MARKED);

/// True if this is the segment that is expected next: data in order, within the window, that acknowledge data which
/// are out. The flow has no losses, marks or end.
#[inline(always)]
pub(super) fn expected(t: &Tcb, s: &Segment) -> bool {
    let acked = s.ack.wrapping_sub(t.snd_una().0);
    let Some(stamps) = s.timestamps else { return false };
    s.flags & !flags::PSH == flags::ACK
        && !t.marked(RECEIVES)
        && !t.any(REPAIRS)
        && s.seq == t.rcv_nxt().0
        && s.payload_len.wrapping_sub(1) < t.rcv_wnd()
        && acked.wrapping_sub(1) < t.flight()
        && !Seq(s.ack).after(t.snd_queued())
        && !t.snd_nxt().after(t.snd_queued())
        && (stamps.value.wrapping_sub(t.ts_recent()) as i32) >= 0
        && t.out_of_order() == 0
        && s.sack.is_empty()
}

/// True if the application's words only move positions, on a flow without losses, marks or an end.
#[inline(always)]
pub(super) fn plain(t: &Tcb, update: &AppUpdate) -> bool {
    // Not one test after the other: they hardly ever fail.
    let changes = update.closed | update.cork | update.quickack | update.shut_wr | update.shut_rd;
    !t.marked(RECEIVES)
        && !t.any(REPAIRS)
        && t.in_a_row() == 0
        && !t.snd_nxt().after(t.snd_queued())
        && update.marks.is_none()
        && !changes
        && update.nodelay == t.has(NODELAY)
        && !t.has(CORK)
}

/// Nothing of this is set on a flow whose turn to send is predicted.
const SENDS: Marks = Marks::mask(
    DEAD.and(ECN).and(V6).and(VLAN),
    PACED.and(REMOVING),
    DSACK.and(ECN_EDGES),
    RESET.and(RESEND).and(PROBE).and(KEEPALIVE).and(LOST).and(TAIL).and(URGENT_OUT),
)
.and(ReceiveFlags::EMPTY.and(ECN_ECHO), AppFlags::EMPTY.and(FIN_WANTED).and(CORK).and(ABORTING))
.and_duplicates();
/// Nor of these.
const UNEVEN: LossFlags = RECOVERY.and(TRACKED).and(SCORED).and(MARKED);

/// The plan of a flow's turn to send, if nothing is in flight and one new segment carries all that is queued.
#[inline(always)]
pub(super) fn all_unsent(t: &Tcb, lines: &Lines) -> Option<Plan> {
    let even = !t.marked(SENDS) && !t.any(UNEVEN) && t.out_of_order() == 0;
    if even { plan::whole(t, lines) } else { None }
}
