//! The words that the application has written in its line: checked, then acted on.

use super::context::{FastState, FlowTurn};
use super::egress::at_once;
use super::rare::rare;
use super::window_step::step_max;
use super::{close, marks, plan, post, prediction};
use crate::buffers::{Rings, TxPorts};
use crate::flow::FlowId;
use crate::messages::{AppUpdate, ContractViolation, ToSlow};
use crate::seq::Seq;
use crate::table::bits::{
    ABORTING, ACK_NOW, APP_CLOSED, AppFlags, CORK, DEAD, FIN_ACKED, FIN_RECEIVED, FIN_SENT, FIN_WANTED, FlagSet, HELD,
    LIMIT_WAIT, NODELAY, PACE_WAIT, QUICKACK, RESTING, SHUT_RD,
};
use crate::table::stages::{Application, Close, Post};
use crate::table::tcb::Tcb;
use crate::table::{FlowTable, Lines};
use crate::time::Micros;

/// errno of the connection after a contract violation (ECONNABORTED).
const CONNECTION_ABORTED: i32 = 103;

/// See [`super::FastPath::app_update`]. The predicted path stands in the caller, who mostly knows that the flags are the usual ones.
#[inline(always)]
pub(super) fn update(
    by: Application,
    table: &FlowTable,
    state: &mut FastState,
    now: Micros,
    flow: FlowId,
    update: &AppUpdate,
) -> Result<(), ContractViolation> {
    let Some(lines) = FlowTurn::lines(table, state, flow) else { return Ok(()) };
    queued(by, (state, lines), (now, flow), update)
}

/// The flow's turn to send comes later.
#[inline(always)]
fn queued(
    by: Application,
    (state, lines): (&mut FastState, &Lines),
    (now, flow): (Micros, FlowId),
    update: &AppUpdate,
) -> Result<(), ContractViolation> {
    if state.config.prediction
        && let Some(t) = prediction::plain(&lines.protocol, update)
    {
        let turn = FlowTurn { t, state, lines, flow, now };
        carry_out::<true>(by, turn, update, |turn| queue_predicted::<{ prediction::UPDATE_READS }>(by, turn))
    } else {
        // A copy, so that the words of the predicted path are in no memory.
        let update = *update;
        carry_out_any(by, (state, lines), (now, flow), &update)
    }
}

/// See [`super::FastPath::app_update_at_once`]. Prediction does not decide who goes at once, so that all goes in the same order
/// without it.
#[inline(always)]
pub(super) fn update_at_once<R: Rings, P: TxPorts>(
    by: Application,
    table: &FlowTable,
    state: &mut FastState,
    (now, flow): (Micros, FlowId),
    update: &AppUpdate,
    (rings, ports): (&R, &mut P),
) -> Result<(), ContractViolation> {
    let Some(lines) = FlowTurn::lines(table, state, flow) else { return Ok(()) };
    let replies = if at_once::nobody_waits(state) { prediction::replies(&lines.protocol, update) } else { None };
    let Some(t) = replies else {
        let update = *update;
        return behind(by, (state, lines), (now, flow), &update);
    };
    if !state.config.prediction {
        let update = *update;
        let turn = FlowTurn { t: lines.protocol.load(), state, lines, flow, now };
        return carry_out::<false>(by, turn, &update, |turn| {
            if let Some(turn) = reply::<_, _, false>(by, turn, rings, ports) {
                queue(by, turn);
            }
        });
    }
    let turn = FlowTurn { t, state, lines, flow, now };
    carry_out::<true>(by, turn, update, |turn| {
        if let Some(turn) = reply::<_, _, true>(by, turn, rings, ports) {
            queue_predicted::<{ prediction::REPLY_READS }>(by, turn);
        }
    })
}

/// [`queued`], of a flow that cannot reply at once.
#[inline(never)]
fn behind(
    by: Application,
    (state, lines): (&mut FastState, &Lines),
    (now, flow): (Micros, FlowId),
    update: &AppUpdate,
) -> Result<(), ContractViolation> {
    queued(by, (state, lines), (now, flow), update)
}

/// Sends all that is queued, if it is one segment that no rule holds back. Else it gives the turn back.
#[inline(always)]
fn reply<'a, R: Rings, P: TxPorts, const PREDICTED: bool>(
    by: Application,
    turn: FlowTurn<'a>,
    rings: &'a R,
    ports: &'a mut P,
) -> Option<FlowTurn<'a>> {
    match plan::whole(&turn.t, turn.lines) {
        Some(plan) => at_once::send::<_, _, PREDICTED>(by, turn, &plan, rings, ports),
        None => Some(turn),
    }
}

/// The end of an update that has loaded `LOADED`.
#[inline(always)]
fn queue_predicted<const LOADED: u16>(by: Application, mut turn: FlowTurn<'_>) {
    let post = Post::from(by);
    let limited = post::predicted(post, &mut turn);
    turn.store_words::<_, LOADED, { prediction::UPDATE_WRITES }>((by, post));
    if limited {
        post::limited(post, turn.state, turn.lines, turn.now, turn.flow);
    }
}

/// The end of an update that has loaded all.
#[inline(always)]
fn queue(by: Application, mut turn: FlowTurn<'_>) {
    post::flow(Post::from(by), &mut turn);
    turn.store(by);
}

#[inline(never)]
fn carry_out_any(
    by: Application,
    (state, lines): (&mut FastState, &Lines),
    (now, flow): (Micros, FlowId),
    update: &AppUpdate,
) -> Result<(), ContractViolation> {
    let turn = FlowTurn { t: lines.protocol.load(), state, lines, flow, now };
    carry_out::<false>(by, turn, update, |turn| queue(by, turn))
}

/// Takes the words over. `then`: the flow sends, or is queued for that, and its turn ends.
#[inline(always)]
fn carry_out<'a, const PREDICTED: bool>(
    by: Application,
    mut turn: FlowTurn<'a>,
    update: &AppUpdate,
    then: impl FnOnce(FlowTurn<'a>),
) -> Result<(), ContractViolation> {
    if rare::<PREDICTED>(|| turn.t.has(DEAD)) {
        aborts(by, turn, update);
        return Ok(());
    }
    if let Err(violation) = positions::<PREDICTED>(by, &mut turn.t, turn.lines, update) {
        violated(by, (turn.state, turn.lines), (turn.now, turn.flow));
        return Err(violation);
    }
    if !PREDICTED {
        take_flags(by, &mut turn.t, turn.lines, update);
    }
    if rare::<PREDICTED>(|| update.marks.is_some())
        && let Some(new) = &update.marks
    {
        marks::take(by, &mut turn.t, turn.lines, new);
    }
    if rare::<PREDICTED>(|| update.closed && !turn.t.has(APP_CLOSED)) {
        closed(by, &mut turn, update.abort);
    }
    if rare::<PREDICTED>(|| turn.t.has(DEAD)) {
        turn.store(by);
        return Ok(());
    }
    window_update(by, &mut turn.t, turn.lines);
    turn.activate(by);
    then(turn);
    Ok(())
}

/// The application of a flow that rests may abort it. One that is spliced does not know the numbers for a RST any more.
#[cold]
#[inline(never)]
fn aborts(by: Application, mut turn: FlowTurn<'_>, update: &AppUpdate) {
    if turn.t.has(RESTING) && update.closed && update.abort && !turn.t.has(ABORTING) {
        turn.t.set(by, ABORTING);
        if turn.t.has(HELD) {
            close::kill(Close::from(by), &mut turn, true, None);
        }
        turn.tell(by, ToSlow::Aborted(turn.flow));
        turn.store(by);
    }
}

/// A contract violation ends the connection.
#[cold]
#[inline(never)]
fn violated(by: Application, (state, lines): (&mut FastState, &Lines), (now, flow): (Micros, FlowId)) {
    let mut turn = FlowTurn { t: lines.protocol.load(), state, lines, flow, now };
    turn.state.counters.contract_violations += 1;
    close::kill(Close::from(by), &mut turn, true, Some(CONNECTION_ABORTED));
    turn.tell(by, ToSlow::Violated(turn.flow));
    turn.store(by);
}

/// Position up to which the receive ring holds data in order.
#[inline]
pub(super) fn rx_tail(t: &Tcb, lines: &Lines) -> u32 {
    received(t).bytes_since(Seq(lines.identity.rcv_start.get()))
}

/// The sequence number after the last byte that has come in order.
#[inline]
fn received(t: &Tcb) -> Seq {
    t.rcv_nxt().sub(u32::from(t.has(FIN_RECEIVED)))
}

/// How far the application has read: `rx_head`.
#[inline]
pub(super) fn rx_head(t: &Tcb, lines: &Lines) -> u32 {
    let id = &lines.identity;
    t.rcv_limit().sub(id.rx_bytes.get()).bytes_since(Seq(id.rcv_start.get()))
}

/// Both positions may only move forwards: one into free room, the other over what has been received.
#[inline(always)]
fn positions<const PREDICTED: bool>(
    by: Application,
    t: &mut Tcb,
    lines: &Lines,
    update: &AppUpdate,
) -> Result<(), ContractViolation> {
    let id = &lines.identity;
    let written = Seq(id.snd_start.get()).add(update.tx_tail).bytes_since(t.snd_queued());
    // Our FIN, once it is acknowledged, is beyond what is queued.
    let all_acked = rare::<PREDICTED>(|| t.snd_queued().before(t.snd_una()));
    let queued = if all_acked { 0 } else { t.snd_queued().bytes_since(t.snd_una()) };
    if written > id.tx_bytes.get().saturating_sub(queued) {
        return Err(ContractViolation::TxTail);
    }
    let head = t.rcv_limit().sub(id.rx_bytes.get());
    let read = Seq(id.rcv_start.get()).add(update.rx_head).bytes_since(head);
    if read > received(t).bytes_since(head) {
        return Err(ContractViolation::RxHead);
    }
    t.room(by).rcv_limit = t.rcv_limit().add(read);
    // Nothing may follow our FIN.
    if !rare::<PREDICTED>(|| t.has(FIN_SENT)) {
        t.written(by).snd_queued = t.snd_queued().add(written);
    }
    Ok(())
}

/// See [`super::FastPath::double_receive_ring`].
pub(super) fn double_receive_ring(
    by: Application,
    table: &FlowTable,
    state: &mut FastState,
    now: Micros,
    flow: FlowId,
    fits: impl FnOnce(u32, u32, u32) -> bool,
) -> bool {
    let Some(mut turn) = FlowTurn::of(table, state, now, flow) else { return false };
    let (t, lines) = (&mut turn.t, turn.lines);
    let bytes = lines.identity.rx_bytes.get();
    let over = t.any(DEAD) || t.has(FIN_RECEIVED);
    if over || t.out_of_order() != 0 || !fits(bytes, rx_head(t, lines), rx_tail(t, lines)) {
        return false;
    }
    lines.identity.rx_bytes.set(by, 2 * bytes);
    t.room(by).rcv_limit = t.rcv_limit().add(bytes);
    window_update(by, t, lines);
    turn.activate(by);
    post::flow(Post::from(by), &mut turn);
    turn.store(by);
    true
}

fn take_flags(by: Application, t: &mut Tcb, lines: &Lines, update: &AppUpdate) {
    if update.cork && update.nodelay && !t.has(NODELAY) {
        // As in Linux.
        marks::flush(by, t, lines, t.snd_queued());
    }
    let mut app: AppFlags = t.flags();
    app.clear(NODELAY | CORK | QUICKACK);
    for (on, flag) in [
        (update.nodelay, NODELAY),
        (update.cork, CORK),
        (update.quickack, QUICKACK),
        // RFC 9293 §3.6.1, MAY-1: half of the connection.
        (update.shut_wr, FIN_WANTED),
        (update.shut_rd, SHUT_RD),
    ] {
        app.set(if on { flag } else { AppFlags::EMPTY });
    }
    t.replace(by, app);
}

/// `close()`: queued data still go out, then FIN. If received data are lost (RFC 9293 §3.6.1 SHLD-3, RFC 2525 §2.17),
/// or the application asks for it, RST goes out.
fn closed(by: Application, turn: &mut FlowTurn<'_>, abort: bool) {
    let FlowTurn { state, lines, t, .. } = turn;
    let unread = rx_tail(t, lines) != rx_head(t, lines);
    let over = t.has(FIN_ACKED) && t.has(FIN_RECEIVED);
    t.set(by, APP_CLOSED);
    if (abort || unread) && !over {
        // Linux puts what `send()` takes into the network within the call, ahead of the RST. Here `send()` may have
        // been a moment ago, so the data still go. No FIN goes: it would make the reset a broken pipe.
        if !t.has(FIN_SENT) {
            t.clear(by, FIN_WANTED);
        }
        let held = t.any(PACE_WAIT | LIMIT_WAIT) || state.scheduler.waits(lines.identity.class());
        if !held && plan::next(t, lines).is_some() {
            t.set(by, ABORTING);
        } else {
            close::abort(Close::from(by), turn);
        }
    } else {
        t.set(by, FIN_WANTED);
        turn.tell(by, ToSlow::AppClosed(turn.flow));
    }
}

/// Tells the peer about room if that changes much for it (RFC 9293 §3.8.6.2.2, MUST-39). Much is two segments or a
/// quarter of the ring, or one segment if the peer cannot send one now. Until the application reads, the peer is told
/// nothing (MAY-8). Room that the window field cannot name is no growth: without a window scale a ring may be larger
/// than that.
#[inline(always)]
fn window_update(by: Application, t: &mut Tcb, lines: &Lines) {
    if t.has(FIN_RECEIVED) {
        return;
    }
    let (mss, rx_bytes) = (u32::from(t.mss()), lines.identity.rx_bytes.get());
    if t.rcv_limit().distance(t.rcv_adv()) < mss.min(rx_bytes / 4) as i32 {
        // Less than any step.
        return;
    }
    let (now, most) = (t.rcv_wnd(), step_max(rx_bytes));
    let least = if now < mss { most.min(mss) } else { most.min(2 * mss) };
    let room = t.rcv_limit().distance(t.rcv_nxt()).max(0) as u32;
    let grows = |room: u32| room.saturating_sub(now) >= least;
    if grows(room) && grows(room.min(0xffff << lines.identity.shift())) {
        t.set(by, ACK_NOW);
    }
}
