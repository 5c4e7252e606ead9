//! What a flow does when one of its deadlines on the [`wheel`](super::wheel) comes.

use super::wheel::Timer;
use super::{State, owned, pace, rack};
use crate::table::{FlowTable, bits};
use crate::time::Micros;

/// Handles all that has come due.
#[inline]
pub(super) fn expire(table: &FlowTable, state: &mut State, now: Micros) {
    while let Some(timer) = state.wheel.pop_due(now) {
        due(table, state, now, timer);
    }
}

#[cold]
fn due(table: &FlowTable, state: &mut State, now: Micros, timer: Timer) {
    match timer {
        Timer::Pace(flow) => {
            let Some((lines, mut t)) = owned(table, state, flow) else { return };
            if !t.has(bits::DEAD) {
                pace::due(state, flow, &mut t, lines);
                lines.protocol.set_flags(t.flags);
            }
        }
        Timer::Group(group) => state.scheduler.release(group),
        Timer::Recovery(flow) => rack::due(table, state, now, flow),
    }
}
