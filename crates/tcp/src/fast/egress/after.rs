//! What changes of a flow when a segment of it has gone, and when its turn to send ends. All ways out have it from here.

use super::{End, repair};
use crate::fast::context::FlowTurn;
use crate::fast::plan::Plan;
use crate::fast::rare::rare;
use crate::fast::{close, post, recovery};
use crate::messages::event;
use crate::table::bits::{
    ABORTING, ACK_OWED, ACTIVE, DEAD, DELAYED, FIN_SENT, REMOVING, SACK, SCHEDULED, TIMING, TRACKED,
};
use crate::table::stages::{Close, Egress, Loss, Post};

/// The segment at SND.NXT has been sent.
#[inline(always)]
pub(super) fn go_on<const PREDICTED: bool>(by: Egress, turn: &mut FlowTurn<'_>, plan: &Plan) {
    let t = &mut turn.t;
    if !rare::<PREDICTED>(|| plan.end().before(t.snd_nxt())) {
        t.next(by).snd_nxt = plan.end();
    }
}

/// A segment with data or FIN goes.
#[inline(always)]
pub(super) fn record<const PREDICTED: bool>(by: Egress, turn: &mut FlowTurn<'_>, plan: &Plan) {
    let (loss, end, t) = (Loss::from(by), plan.end(), &turn.t);
    // RFC 8985 §6.1: the time of sending is kept of a segment that is not alone in flight. A super-segment is several.
    let alone = t.idle() && plan.len <= u32::from(t.mss());
    if rare::<PREDICTED>(|| t.has(TRACKED) || (!alone && t.has(SACK))) {
        repair::track(loss, turn, plan.seq, end);
    }
    if rare::<PREDICTED>(|| plan.seq.before(turn.t.snd_max())) {
        turn.lines.recovery.retransmits.add(by, 1);
        turn.lines.seldom.bytes_resent.add(by, u64::from(plan.len));
        turn.state.counters.retransmits += 1;
        repair::resent(turn, plan.seq, end.bytes_since(plan.seq));
        recovery::resent(loss, turn, plan.seq, end.bytes_since(plan.seq));
        // Karn (RFC 9293 MUST-18): an answer now may be to either copy.
        turn.t.clear(loss, TIMING);
    } else if !turn.t.has(TIMING) {
        turn.t.set(loss, TIMING);
        turn.lines.measures.rtt_seq.set(by, end.0);
        turn.lines.measures.rtt_at.set(by, turn.now.0 as u32);
    }
    if !rare::<PREDICTED>(|| end.before(turn.t.snd_max())) {
        turn.t.sent(by).snd_max = end;
    }
    if rare::<PREDICTED>(|| plan.fin && !turn.t.has(FIN_SENT)) {
        turn.t.set(by, FIN_SENT);
        turn.raise(by, event::TX_CLOSED);
    }
}

/// The end of a turn to send.
#[inline(always)]
pub(super) fn end_turn<const PREDICTED: bool>(by: Egress, turn: &mut FlowTurn<'_>, end: End) {
    let post = Post::from(by);
    let (flow, id) = (turn.flow, &turn.lines.identity);
    if rare::<PREDICTED>(|| !turn.t.has(DEAD) && !turn.t.has(ACTIVE)) {
        turn.activate(by);
    }
    if end == End::Done {
        turn.t.clear(post, SCHEDULED);
    }
    let aborts = rare::<PREDICTED>(|| turn.t.has(ABORTING) && !turn.t.has(DEAD));
    if aborts && matches!(end, End::Done | End::NoCredit) {
        close::abort(Close::from(by), turn);
    }
    match end {
        End::Quota | End::NoCredit => turn.state.scheduler.by(post).push(id.port(), id.class(), flow),
        End::NoRoom => turn.state.scheduler.by(post).push_front(id.port(), id.class(), flow),
        End::Done => {
            if rare::<PREDICTED>(|| turn.t.has(ACK_OWED) && !turn.t.has(DELAYED) && !turn.t.has(DEAD)) {
                post::delay(post, turn, turn.state.config.delayed_ack_us);
            }
            if !PREDICTED || rare::<PREDICTED>(|| turn.t.has(REMOVING)) {
                post::settle(post, &mut turn.t, &mut turn.state.outbox, flow);
            }
        }
    }
}
