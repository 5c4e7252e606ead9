//! Pacing: a flow's data go out no faster than `Window::pacing`, evenly.
//!
//! A flow has a credit that grows with time and is spent by payload; while it is not negative a segment may go, so that one segment
//! larger than the credit makes a debt, which the flow waits out on the wheel. The credit is kept in millionths of a byte: bytes per
//! second times microseconds, which is exact at every rate. What may be saved up while there was nothing to send is a short burst;
//! what is owed because the core came late to a flow that waited is made good.

use super::State;
use super::wheel::Timer;
use crate::flow::{FlowId, flow_flags};
use crate::table::{Lines, Rate, Tcb, bits};
use crate::time::Micros;

/// Credit per byte.
const BYTE: i64 = 1_000_000;
/// Shortest wait, and the time whose worth may be sent at once, in µs: 10 Gbit/s gives 14 full segments, a usual batch; a flow that
/// sends a segment in more than this time never sends two together.
const QUANTUM_US: u64 = 16;
/// How much lateness of the core is made good, in µs: a timer's slack and a busy turn, not a stopped machine.
const LATE_US: u64 = 1000;
/// Credit beyond any segment, and far from overflow.
const PLENTY: u64 = 1 << 60;

/// What `us` microseconds are worth.
#[inline]
pub(super) fn worth(rate: u64, us: u64) -> i64 {
    rate.saturating_mul(us).min(PLENTY) as i64
}

/// What payload costs.
#[inline]
pub(super) fn cost(bytes: u32) -> i64 {
    i64::from(bytes) * BYTE
}

/// How long a debt lasts, in µs.
#[inline]
pub(super) fn wait_us(rate: u64, credit: i64) -> u64 {
    credit.min(0).unsigned_abs().div_ceil(rate.max(1)).max(QUANTUM_US)
}

/// Credit after `us` microseconds; `late`: the sender has waited for it.
#[inline]
pub(super) fn grown(rate: u64, credit: i64, us: u64, late: bool) -> i64 {
    let limit = worth(rate, if late { LATE_US } else { QUANTUM_US });
    credit.saturating_add(worth(rate, us)).min(limit)
}

/// A paced flow's credit at the beginning of its turn.
pub(super) fn begin(t: &Tcb, rate: &Rate, now: Micros) -> i64 {
    let us = now.since(Micros(rate.credit_at.get()));
    grown(rate.pacing.get(), rate.credit.get() as i64, us, t.has(bits::PACE_LATE))
}

/// The end of a paced flow's turn. `waits`: it has data to send, but no credit; `more`: it goes on in another turn.
pub(super) fn end(
    state: &mut State,
    now: Micros,
    flow: FlowId,
    t: &mut Tcb,
    rate: &Rate,
    credit: i64,
    (waits, more): (bool, bool),
) {
    rate.credit.set(credit as u64);
    rate.credit_at.set(now.0);
    if waits {
        t.flags |= flow_flags::PACE_WAIT | bits::PACE_LATE;
        state.wheel.set(Timer::Pace(flow), now.after(wait_us(rate.pacing.get(), credit)));
        return;
    }
    t.flags &= !bits::PACE_LATE;
    if more {
        t.flags |= bits::PACE_LATE;
    }
    stop_waiting(state, flow, t);
}

fn stop_waiting(state: &mut State, flow: FlowId, t: &mut Tcb) {
    if t.has(flow_flags::PACE_WAIT) {
        t.flags &= !flow_flags::PACE_WAIT;
        state.wheel.cancel(Timer::Pace(flow));
    }
}

/// Another rate, 0 = none: what was earned at the old one stays, what was borrowed is paid back at the new one.
pub(super) fn set_rate(state: &mut State, now: Micros, flow: FlowId, t: &mut Tcb, lines: &Lines, pacing: u64) {
    let rate = &lines.rate;
    if rate.pacing.get() == pacing {
        return;
    }
    if t.has(bits::PACED) {
        rate.credit.set(begin(t, rate, now) as u64);
    } else {
        rate.credit.set(0);
    }
    rate.credit_at.set(now.0);
    rate.pacing.set(pacing);
    t.flags &= !bits::PACED;
    if pacing != 0 {
        t.flags |= bits::PACED;
    }
    if t.has(flow_flags::PACE_WAIT) {
        stop_waiting(state, flow, t);
        state.schedule(t, lines, flow);
    }
}

/// The flow's time has come.
pub(super) fn due(state: &mut State, flow: FlowId, t: &mut Tcb, lines: &Lines) {
    t.flags &= !flow_flags::PACE_WAIT;
    state.schedule(t, lines, flow);
}
