//! What segments or the application have left to be said: acknowledgements now or later, and a turn for flows that may send again.

use super::plan;
use super::{State, settle};
use crate::flow::FlowId;
use crate::flow::flow_flags::PACE_WAIT;
use crate::table::{FlowTable, Lines, Tcb, bits};
use crate::time::Micros;

/// Queues the flow for sending if it has anything to send; else its owed acknowledgement waits.
#[inline]
pub(super) fn flow(state: &mut State, now: Micros, flow: FlowId, lines: &Lines, t: &mut Tcb) {
    if t.any(bits::SCHEDULED | bits::DEAD) {
        if t.has(bits::SCHEDULED) {
            state.press(t, lines, flow);
        }
        return;
    }
    let repairs = t.any(bits::RESEND | bits::TAIL) || plan::repair_may_go(t, lines);
    let may_send = !t.has(PACE_WAIT) && (repairs || plan::next(t, lines).is_some());
    if may_send || t.has(bits::ACK_NOW) {
        state.schedule(t, lines, flow);
    } else if t.has(bits::ACK_OWED) && !t.has(bits::DELAYED) {
        t.flags |= bits::DELAYED;
        state.delayed.push(now.after(state.config.delayed_ack_us), flow);
    }
}

/// Schedules the acknowledgements that have waited long enough for data: 1 ms by default (RFC 9293 §3.8.6.3, MUST-40: less than 500).
pub(super) fn expire(table: &FlowTable, state: &mut State, now: Micros) {
    while let Some(flow) = state.delayed.pop_due(now) {
        let Some(lines) = table.get(flow) else { continue };
        let mut t = lines.protocol.load();
        t.flags &= !bits::DELAYED;
        if t.has(bits::ACK_OWED) && !t.any(bits::REMOVING | bits::DEAD) {
            // The queue's entry may be older than the debt: data have carried an earlier one.
            let waited = u64::from((now.0 as u32).wrapping_sub(lines.identity.owed_at.get()));
            if waited >= state.config.delayed_ack_us {
                t.flags |= bits::ACK_NOW;
                state.schedule(&mut t, lines, flow);
            } else {
                t.flags |= bits::DELAYED;
                state.delayed.push(now.after(state.config.delayed_ack_us - waited), flow);
            }
        }
        lines.protocol.set_flags(settle(&mut state.outbox, flow, t.flags));
    }
}
