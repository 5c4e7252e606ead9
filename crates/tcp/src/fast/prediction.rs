//! Header prediction (Van Jacobson 1990). One look at a flow and a segment tells whether this is the segment that a busy
//! connection has nearly always.
//!
//! The predicted path is the stages' own functions, compiled a second time without what the prediction excludes. So each
//! rule stands once. [`rare`](super::rare::rare) marks the conditions that are excluded, and checks each in builds with
//! assertions.

use super::plan::{self, Plan};
use super::segment::Segment;
use crate::messages::AppUpdate;
use crate::table::bits::{
    ABORTING, ACTIVE, APP_CLOSED, AckDebt, Agreed, AppFlags, BYPASSING, CORK, DEAD, DSACK, ECN, ECN_ECHO, ECN_EDGES,
    ECN_REDUCED, FIN_ACKED, FIN_RECEIVED, FIN_WANTED, FlagSet, HELD, KEEPALIVE, LIMIT_WAIT, LOST, LossFlags, MARKED,
    NODELAY, PACE_WAIT, PACED, PASSIVE_CLOSE, PROBE, QUICKACK, QueueFlags, RECOVER_SET, RECOVERY, REMOVING, RESEND,
    RESET, ReceiveFlags, Requests, SCHEDULED, SCORED, SHUT_RD, TAIL, TIMESTAMPS, TRACKED, TRIMMED, UNDO, URGENT_OUT,
    V6, VLAN,
};
use crate::table::tcb::{Marks, Tcb};
use crate::table::{Lines, ProtocolLine, word};

/// Nothing of this is set on a flow that receives the predicted segment.
const RECEIVES: Marks = Marks::mask(DEAD.and(ECN), QueueFlags::EMPTY, DSACK.and(ECN_EDGES), LOST.and(TAIL).and(RESEND))
    .and(
        FIN_RECEIVED.and(PASSIVE_CLOSE).and(FIN_ACKED).and(ECN_ECHO).and(TRIMMED).and(HELD),
        APP_CLOSED.and(QUICKACK).and(SHUT_RD).and(FIN_WANTED),
    );
/// Nothing of this is set on a flow whose application's words are predicted.
const UPDATES: Marks = RECEIVES.and(ReceiveFlags::EMPTY, CORK);
/// Nor of these.
const REPAIRS: LossFlags = RECOVERY.and(RECOVER_SET).and(TRACKED).and(SCORED).and(UNDO).and(ECN_REDUCED).and(MARKED);

/// The words that the predicted receiving path reads.
pub(super) const RECEIVE_READS: u16 = !(word::SND_WL1 | word::RCV_LIMIT);
/// The words that it changes. Those that it seldom changes are stored when that happens
/// ([`FlowTurn::seldom`](super::context::FlowTurn::seldom)).
pub(super) const RECEIVE_WRITES: u16 = word::SND_UNA | word::SND_WL1 | word::RCV_NXT | word::MARKS;

/// The flow, if this is the segment that is expected next: data in order, within the window, that acknowledge data which
/// are out. It has no losses, marks or end: without a FIN nothing beyond what is queued has been sent.
#[inline(always)]
pub(super) fn expected(line: &ProtocolLine, s: &Segment) -> Option<Tcb> {
    const FLAGS: u16 = word::MARKS | word::MSS;
    const HERE: u16 = word::RCV_NXT | word::RCV_ADV | word::TS_RECENT | word::RCV_MSS;
    const THERE: u16 = word::SND_UNA | word::SND_NXT | word::SND_MAX;
    let usual = s.is_plain() && s.payload_len != 0;
    let mut t = line.load_words::<FLAGS>();
    if !usual || t.marked(RECEIVES) || t.any(REPAIRS) || t.in_a_row() != 0 {
        return None;
    }
    line.load_more::<HERE>(&mut t);
    let in_order = s.seq == t.rcv_nxt().0
        && s.payload_len as i32 <= t.rcv_adv().distance(t.rcv_nxt())
        && (s.stamp.wrapping_sub(t.ts_recent()) as i32) >= 0
        && t.out_of_order() == 0;
    if !in_order {
        return None;
    }
    line.load_more::<THERE>(&mut t);
    let acked = s.ack.wrapping_sub(t.snd_una().0);
    if t.snd_nxt() != t.snd_max() || acked.wrapping_sub(1) >= t.flight() {
        return None;
    }
    line.load_more::<{ RECEIVE_READS & !(FLAGS | HERE | THERE) }>(&mut t);
    Some(t)
}

/// The words that the predicted path of the application's words reads.
pub(super) const UPDATE_READS: u16 = !(word::SND_WL1 | word::TS_RECENT | word::RCV_MSS | word::LAST_ACK);
/// The words that it may change.
pub(super) const UPDATE_WRITES: u16 = word::SND_QUEUED | word::RCV_LIMIT | word::MARKS;

/// The flow, if the application's words only move positions, and it has no losses, marks or end.
#[inline(always)]
pub(super) fn plain(line: &ProtocolLine, update: &AppUpdate) -> Option<Tcb> {
    const FLAGS: u16 = word::MARKS | word::MSS;
    let mut t = line.load_words::<FLAGS>();
    if t.marked(UPDATES) || t.any(REPAIRS) || t.in_a_row() != 0 || !moves(&t, update) {
        return None;
    }
    line.load_more::<{ UPDATE_READS & !FLAGS }>(&mut t);
    Some(t)
}

/// Do these words do no more than move positions of a flow with such flags?
#[inline(always)]
fn moves(t: &Tcb, update: &AppUpdate) -> bool {
    let ends = [update.shut_wr, update.shut_rd, update.closed, update.abort].map(u8::from);
    update.marks.is_none()
        && u32::from_ne_bytes(ends) == 0
        && !update.quickack
        && !update.cork
        && update.nodelay == t.has(NODELAY)
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

/// The words that the predicted turn to send reads.
pub(super) const SEND_READS: u16 = !(word::SND_WL1 | word::LAST_ACK);
/// The words that it may change.
pub(super) const SEND_WRITES: u16 = word::SND_MAX | word::LAST_ACK | word::SND_NXT | word::RCV_ADV | word::MARKS;

/// Nothing of this is set on a flow whose reply may go at once. It is in no queue to send, and nothing holds it back.
const REPLIES: Marks = UPDATES.or(SENDS).or(Marks::mask(
    Agreed::EMPTY,
    SCHEDULED.and(BYPASSING).and(LIMIT_WAIT).and(PACE_WAIT),
    AckDebt::EMPTY,
    Requests::EMPTY,
));

/// The words that an update with a reply reads.
pub(super) const REPLY_READS: u16 = UPDATE_READS | SEND_READS;
/// The words that it may change.
pub(super) const REPLY_WRITES: u16 = UPDATE_WRITES | SEND_WRITES;

/// [`plain`], of a flow whose turn to send would be predicted, too, if the windows let all go that is queued then.
#[inline(always)]
pub(super) fn replies(line: &ProtocolLine, update: &AppUpdate) -> Option<Tcb> {
    const FLAGS: u16 = word::MARKS | word::MSS | word::RCV_MSS;
    let mut t = line.load_words::<FLAGS>();
    let excluded = t.marked(REPLIES) || t.any(REPAIRS.and(UNEVEN)) || t.in_a_row() != 0 || t.out_of_order() != 0;
    if excluded || !t.has(TIMESTAMPS) || !moves(&t, update) {
        return None;
    }
    line.load_more::<{ REPLY_READS & !FLAGS }>(&mut t);
    Some(t)
}

/// The flow and the plan of its turn to send, if nothing is in flight and one new segment carries all that is queued.
#[inline(always)]
pub(super) fn all_unsent(lines: &Lines) -> Option<(Tcb, Plan)> {
    const FLAGS: u16 = word::MARKS | word::MSS | word::RCV_MSS;
    const PLAN: u16 = word::SND_UNA | word::SND_NXT | word::SND_MAX | word::SND_QUEUED | word::SND_WND | word::CWND;
    let mut t = lines.protocol.load_words::<FLAGS>();
    // A flow that sends is on the slow path's list, and nearly always since long.
    let known = t.has(TIMESTAMPS) && t.has(ACTIVE);
    if t.marked(SENDS) || !known || t.any(UNEVEN) || t.in_a_row() != 0 || t.out_of_order() != 0 {
        return None;
    }
    lines.protocol.load_more::<PLAN>(&mut t);
    // It checks itself against the general plan, which reads no other words.
    let plan = plan::whole(&t, lines)?;
    lines.protocol.load_more::<{ SEND_READS & !(FLAGS | PLAN) }>(&mut t);
    Some((t, plan))
}
