//! The deadlines of flows on the [`wheel`](super::wheel).

use super::context::{FastState, FlowTurn};
use super::wheel::Timer;
use super::{pace, post, rack};
use crate::table::FlowTable;
use crate::table::bits::DEAD;
use crate::table::stages::{Loss, Post};
use crate::time::Micros;

/// Handles all that has come due.
#[inline(always)]
pub(super) fn expire(by: (Loss, Post), table: &FlowTable, state: &mut FastState, now: Micros) {
    if !state.wheel.by(by.1).idle(now) {
        all_due(by, table, state, now);
    }
}

#[inline(never)]
fn all_due(by: (Loss, Post), table: &FlowTable, state: &mut FastState, now: Micros) {
    while let Some(timer) = state.wheel.by(by.1).pop_due(now) {
        due(by, table, state, now, timer);
    }
}

fn due((loss, post): (Loss, Post), table: &FlowTable, state: &mut FastState, now: Micros, timer: Timer) {
    match timer {
        Timer::Pace(flow) => {
            let Some(mut turn) = FlowTurn::of(table, state, now, flow) else { return };
            if !turn.t.has(DEAD) {
                pace::due(post, &mut turn);
                turn.store(post);
            }
        }
        Timer::Class(class) => state.scheduler.by(post).release(class),
        Timer::Recovery(flow) => {
            let Some(mut turn) = FlowTurn::of(table, state, now, flow) else { return };
            if rack::due(loss, &mut turn) {
                post::flow(post, &mut turn);
                turn.store((loss, post));
            }
        }
    }
}
