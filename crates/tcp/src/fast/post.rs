//! Third stage: a turn to send for a flow that has something to send, else its acknowledgement waits.
//!
//! Runs after `protocol` while the flow's line is at hand, and after everything else that changes a flow. It reads all
//! of the flow and writes its [`QueueFlags`], whether an acknowledgement goes now, and the queues.

use super::context::{FastState, FlowTurn, Outbox};
use super::plan;
use super::rare::rare;
use crate::flow::FlowId;
use crate::messages::ToSlow;
use crate::table::bits::FlagSet;
use crate::table::bits::{
    ACK_NOW, ACK_OWED, AckDebt, Agreed, BYPASSING, DEAD, DELAYED, EVENTS, KEEPALIVE, LIMIT_WAIT, PACE_WAIT, PROBE,
    QueueFlags, REMOVING, RESEND, RESET, Requests, SCHEDULED, TAIL,
};
use crate::table::stages::Post;
use crate::table::tcb::{Marks, Tcb};
use crate::table::{FlowTable, Lines};
use crate::time::Micros;
use std::hint::cold_path;

/// There is nothing to decide: the flow has a turn already, or it is dead.
const DECIDED: Marks = Marks::mask(DEAD, SCHEDULED, AckDebt::EMPTY, Requests::EMPTY);
/// Flags for segments that bypass a rate limit.
const UNLIMITED: Marks =
    Marks::mask(Agreed::EMPTY, QueueFlags::EMPTY, ACK_NOW.and(ACK_OWED), RESET.and(PROBE).and(KEEPALIVE));

/// Queues the flow for sending if it has anything to send; else its owed acknowledgement waits.
#[inline]
pub(super) fn flow(by: Post, turn: &mut FlowTurn<'_>) {
    let decision = decide::<false>(&turn.t, turn.lines);
    carry_out(by, turn, decision);
    if matches!(decision, Decision::Send | Decision::Queued) {
        bypass_limit(by, turn);
    }
}

/// [`flow`] on the predicted path. True: [`limited`] is to follow. It is not called here, because a call would keep the
/// control block out of registers.
#[inline(always)]
#[must_use]
pub(super) fn predicted(by: Post, turn: &mut FlowTurn<'_>) -> bool {
    let decision = decide::<true>(&turn.t, turn.lines);
    carry_out(by, turn, decision);
    let scheduler = &turn.state.scheduler;
    let sends = matches!(decision, Decision::Send | Decision::Queued);
    sends && scheduler.any_waits() && scheduler.waits(turn.lines.identity.class())
}

/// The rest of a predicted path, whose turn is stored, for a flow whose class waits.
#[cold]
#[inline(never)]
pub(super) fn limited(by: Post, state: &mut FastState, lines: &Lines, now: Micros, flow: FlowId) {
    let mut turn = FlowTurn { t: lines.protocol.load_own(by), state, lines, flow, now };
    bypass_limit(by, &mut turn);
    turn.store(by);
}

/// What a flow waits for after its state has changed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Decision {
    Nothing,
    /// It has a turn to send already.
    Queued,
    Send,
    /// Its acknowledgement waits for data.
    Delay,
}

#[inline(always)]
fn decide<const PREDICTED: bool>(t: &Tcb, lines: &Lines) -> Decision {
    if t.marked(DECIDED) {
        return if t.has(SCHEDULED) { Decision::Queued } else { Decision::Nothing };
    }
    // Prediction excludes a FIN. So if all is sent, there is no plan.
    let unsent = !PREDICTED || t.snd_queued() != t.snd_nxt();
    let repairs = || rare::<PREDICTED>(|| t.any(RESEND | TAIL) || plan::repair_may_go(t, lines));
    let planned =
        || (PREDICTED && plan::whole(t, lines).is_some()) || plan::largest::<PREDICTED>(t, lines, 0).is_some();
    debug_assert!(unsent || !(repairs() || planned()));
    let may_send = unsent && !t.has(PACE_WAIT) && (repairs() || planned());
    if may_send || t.has(ACK_NOW) {
        Decision::Send
    } else if !t.has(DELAYED) && t.has(ACK_OWED) {
        Decision::Delay
    } else {
        Decision::Nothing
    }
}

#[inline(always)]
fn carry_out(by: Post, turn: &mut FlowTurn<'_>, decision: Decision) {
    match decision {
        Decision::Nothing | Decision::Queued => {}
        Decision::Send => queue(by, turn),
        Decision::Delay => delay(by, turn, turn.state.config.delayed_ack_us),
    }
}

/// The owed acknowledgement waits `us` microseconds for data to carry it.
#[inline(always)]
pub(super) fn delay(by: Post, turn: &mut FlowTurn<'_>, us: u64) {
    turn.t.set(by, DELAYED);
    turn.state.delayed.by(by).push(turn.now.after(us), turn.flow);
}

/// Queues the flow for sending, if it is not yet queued.
#[inline]
pub(super) fn schedule(by: Post, turn: &mut FlowTurn<'_>) {
    if !turn.t.has(SCHEDULED) {
        queue(by, turn);
    }
    bypass_limit(by, turn);
}

#[inline(always)]
fn queue(by: Post, turn: &mut FlowTurn<'_>) {
    turn.t.set(by, SCHEDULED);
    let id = &turn.lines.identity;
    turn.state.scheduler.by(by).push(id.port(), id.class(), turn.flow);
}

/// If the flow's class waits for credit, segments that bypass the limit go now.
pub(super) fn bypass_limit(by: Post, turn: &mut FlowTurn<'_>) {
    let FlowTurn { state, lines, t, flow, .. } = turn;
    if !state.scheduler.waits(lines.identity.class()) {
        return;
    }
    t.set(by, LIMIT_WAIT);
    if t.marked(UNLIMITED) && !t.has(BYPASSING) {
        t.set(by, BYPASSING);
        if t.has(ACK_OWED) {
            // No data will carry it soon.
            t.set(by, ACK_NOW);
        }
        state.scheduler.by(by).bypass(lines.identity.port(), *flow);
    }
}

/// Reports a removed flow as soon as none of the queues names it any more. Its other flags stay until the number is
/// used again: the application's view, which is read after this, shows both FINs.
#[inline(always)]
pub(super) fn settle(by: Post, t: &mut Tcb, outbox: &mut Outbox, flow: FlowId) {
    if !t.has(REMOVING) {
        return;
    }
    cold_path();
    if !t.any(SCHEDULED | BYPASSING | DELAYED) && !t.any(EVENTS) {
        t.clear(by, REMOVING);
        outbox.messages.push_back(ToSlow::Removed(flow));
    }
}

/// Schedules the acknowledgements that have waited long enough for data: 1 ms by default (RFC 9293 §3.8.6.3, MUST-40:
/// less than 500).
#[cold]
#[inline(never)]
pub(super) fn expire(by: Post, table: &FlowTable, state: &mut FastState, now: Micros) {
    while let Some(flow) = state.delayed.by(by).pop_due(now) {
        let Some(lines) = table.get(flow) else { continue };
        let mut turn = FlowTurn { t: lines.protocol.load_own(by), state: &mut *state, lines, flow, now };
        turn.t.clear(by, DELAYED);
        if turn.t.has(ACK_OWED) && !turn.t.has(DEAD) {
            // The queue's entry may be older than the debt: data have carried an earlier one.
            let waited = u64::from((now.0 as u32).wrapping_sub(lines.identity.owed_at.get()));
            let allowed = turn.state.config.delayed_ack_us;
            if waited >= allowed {
                turn.t.set(by, ACK_NOW);
                schedule(by, &mut turn);
            } else {
                delay(by, &mut turn, allowed - waited);
            }
        }
        settle(by, &mut turn.t, &mut turn.state.outbox, flow);
        turn.store(by);
    }
}
