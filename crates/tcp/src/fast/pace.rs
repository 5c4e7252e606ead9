//! Pacing: a flow's data go out no faster than `Window::pacing`, evenly. A flow without [`credit`](super::credit) waits
//! on the wheel.

use super::context::FlowTurn;
use super::credit::{grown, wait_us};
use super::post;
use super::wheel::Timer;
use crate::table::bits::{PACE_LATE, PACE_WAIT, PACED};
use crate::table::stages::Post;

/// A paced flow's credit at the beginning of its turn to send.
pub(super) fn begin(turn: &FlowTurn<'_>) -> i64 {
    let rate = &turn.lines.rate;
    let us = turn.now.0.saturating_sub(rate.credit_at.get());
    grown(rate.pacing.get(), rate.credit.get() as i64, us, turn.t.has(PACE_LATE))
}

/// The end of a paced flow's turn to send. `waits`: it has data to send, but no credit; `more`: it goes on in another
/// turn.
pub(super) fn end(by: Post, turn: &mut FlowTurn<'_>, credit: i64, (waits, more): (bool, bool)) {
    let rate = &turn.lines.rate;
    rate.credit.set(by, credit as u64);
    rate.credit_at.set(by, turn.now.0);
    if waits {
        turn.t.set(by, PACE_WAIT | PACE_LATE);
        let at = turn.now.after(wait_us(rate.pacing.get(), credit));
        turn.state.wheel.by(by).set(Timer::Pace(turn.flow), at);
        return;
    }
    turn.t.clear(by, PACE_LATE);
    if more {
        turn.t.set(by, PACE_LATE);
    }
    stop_waiting(by, turn);
}

fn stop_waiting(by: Post, turn: &mut FlowTurn<'_>) {
    if turn.t.has(PACE_WAIT) {
        turn.t.clear(by, PACE_WAIT);
        turn.state.wheel.by(by).cancel(Timer::Pace(turn.flow));
    }
}

/// Another rate, 0 = none: what was earned at the old one stays, what was borrowed is paid back at the new one.
pub(super) fn set_rate(by: Post, turn: &mut FlowTurn<'_>, pacing: u64) {
    let rate = &turn.lines.rate;
    if rate.pacing.get() == pacing {
        return;
    }
    let credit = if turn.t.has(PACED) { begin(turn) } else { 0 };
    rate.credit.set(by, credit as u64);
    rate.credit_at.set(by, turn.now.0);
    rate.pacing.set(by, pacing);
    turn.t.clear(by, PACED);
    if pacing != 0 {
        turn.t.set(by, PACED);
    }
    if turn.t.has(PACE_WAIT) {
        stop_waiting(by, turn);
        post::schedule(by, turn);
    }
}

/// The flow has waited long enough.
pub(super) fn due(by: Post, turn: &mut FlowTurn<'_>) {
    turn.t.clear(by, PACE_WAIT);
    post::schedule(by, turn);
}
