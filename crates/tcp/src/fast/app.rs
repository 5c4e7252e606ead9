//! What the application has written in its line: checked, then believed.

use super::{State, owned, plan, post, rx_tail};
use crate::flow::FlowId;
use crate::flow::flow_flags::{
    APP_CLOSED, FIN_ACKED, FIN_RECEIVED, FIN_SENT, FIN_WANTED, LIMIT_WAIT, NODELAY, PACE_WAIT,
};
use crate::messages::{AppLie, AppUpdate, ToSlow};
use crate::seq::Seq;
use crate::table::{FlowTable, Lines, Tcb, bits};
use crate::time::Micros;

/// errno that the liar sees, if it still looks (ECONNABORTED).
const CONNECTION_ABORTED: i32 = 103;

/// See [`super::FastPath::app_update`].
pub(super) fn update(
    table: &FlowTable,
    state: &mut State,
    now: Micros,
    flow: FlowId,
    update: AppUpdate,
) -> Result<(), AppLie> {
    let Some((lines, mut t)) = owned(table, state, flow) else { return Ok(()) };
    if t.has(bits::DEAD) {
        return Ok(());
    }
    let result = positions(&mut t, lines, &update);
    match result {
        Ok(()) => {
            take_flags(&mut t, &update);
            if let Some(position) = update.urgent {
                urgent(&mut t, lines, position);
            }
            if update.closed && !t.has(APP_CLOSED) {
                close(state, &mut t, lines, flow, update.abort);
            }
            if !t.has(bits::DEAD) {
                window_update(&mut t, lines);
                state.activate(&mut t, flow);
                post::flow(state, now, flow, lines, &mut t);
            }
        }
        Err(_) => {
            state.counters.lies += 1;
            state.kill(&mut t, lines, flow, true, CONNECTION_ABORTED);
            state.outbox.push_back(ToSlow::Aborted(flow));
        }
    }
    lines.protocol.store(&t);
    result
}

/// How far the application has read: `rx_head`.
#[inline]
fn rx_head(t: &Tcb, lines: &Lines) -> u32 {
    let id = &lines.identity;
    t.rcv_limit.sub(id.rx_bytes.get()).bytes_since(Seq(id.rcv_start.get()))
}

/// Both positions may only move forwards: one into free room, the other over what has been received.
fn positions(t: &mut Tcb, lines: &Lines, update: &AppUpdate) -> Result<(), AppLie> {
    let id = &lines.identity;
    let tail = t.snd_queued.bytes_since(Seq(id.snd_start.get()));
    let written = update.tx_tail.wrapping_sub(tail);
    let queued = t.snd_queued.distance(t.snd_una).max(0) as u32;
    if written > id.tx_bytes.get().saturating_sub(queued) {
        return Err(AppLie::TxTail);
    }
    let head = rx_head(t, lines);
    let read = update.rx_head.wrapping_sub(head);
    if read > rx_tail(t, lines).wrapping_sub(head) {
        return Err(AppLie::RxHead);
    }
    t.rcv_limit = t.rcv_limit.add(read);
    // Behind our FIN there is nothing.
    if !t.has(FIN_SENT) {
        t.snd_queued = t.snd_queued.add(written);
    }
    Ok(())
}

#[inline]
fn take_flags(t: &mut Tcb, update: &AppUpdate) {
    t.flags &= !(NODELAY | bits::CORK | bits::QUICKACK);
    for (on, bit) in [
        (update.nodelay, NODELAY),
        (update.cork, bits::CORK),
        (update.quickack, bits::QUICKACK),
        // RFC 9293 §3.6.1, MAY-1: half of the connection.
        (update.shut_wr, FIN_WANTED),
        (update.shut_rd, bits::SHUT_RD),
    ] {
        t.flags |= if on { bit } else { 0 };
    }
}

/// `MSG_OOB` (RFC 9293 §3.8.5 MUST-30): SND.UP moves on, and the peer learns it at once, even where its window lets no data through. A
/// position that is not in what waits in the send ring says nothing.
#[cold]
fn urgent(t: &mut Tcb, lines: &Lines, position: u32) {
    let up = Seq(lines.identity.snd_start.get()).add(position);
    let word = &lines.recovery.snd_up;
    let known = t.has(bits::URGENT_OUT) && !up.after(Seq(word.get()));
    if known || !up.after(t.snd_una) || up.after(t.snd_queued) {
        return;
    }
    word.set(up.0);
    t.flags |= bits::URGENT_OUT | bits::ACK_NOW;
}

/// `close()`: what is queued still goes out, then FIN; but RST if received data are lost (RFC 9293 §3.6.1 SHLD-3,
/// RFC 2525 §2.17) or asked for.
fn close(state: &mut State, t: &mut Tcb, lines: &Lines, flow: FlowId, abort: bool) {
    let unread = rx_tail(t, lines) != rx_head(t, lines);
    let over = t.has(FIN_ACKED | FIN_RECEIVED);
    t.flags |= APP_CLOSED;
    if (abort || unread) && !over {
        // What Linux has put into the network within `send()` is ahead of the RST there. Here `send()` may have been a moment ago. No FIN:
        // that would make the reset a broken pipe.
        t.flags &= if t.has(FIN_SENT) { !0 } else { !FIN_WANTED };
        let held = t.any(PACE_WAIT | LIMIT_WAIT) || state.scheduler.waits(lines.identity.group());
        if !held && plan::next(t, lines).is_some() {
            t.flags |= bits::ABORTING;
        } else {
            self::abort(state, t, lines, flow);
        }
    } else {
        t.flags |= FIN_WANTED;
        state.outbox.push_back(ToSlow::AppClosed(flow));
    }
}

/// RST, and the end.
pub(super) fn abort(state: &mut State, t: &mut Tcb, lines: &Lines, flow: FlowId) {
    state.kill(t, lines, flow, true, 0);
    state.outbox.push_back(ToSlow::Aborted(flow));
}

/// The largest growth of the window that may be kept back (RFC 9293 §3.8.6.2.2, with 1/4 as the fraction of the buffer where segments are larger
/// than that). The application rings for each quarter that it has read: less than that and less than this make less than the half for which a
/// sender waits (§3.8.6.2.1), so that nobody who has read everything leaves its peer to the persist timer.
pub(super) fn step_max(rx_bytes: u32) -> u32 {
    (rx_bytes / 4).max((2 * 1460).min(rx_bytes / 2))
}

/// Tells the peer about room if that changes much for it: two segments or a quarter of the ring, or one segment if it cannot send one
/// now (RFC 9293 §3.8.6.2.2, MUST-39). Until the application reads nothing is said (MAY-8).
fn window_update(t: &mut Tcb, lines: &Lines) {
    if t.has(FIN_RECEIVED) {
        return;
    }
    let (mss, most) = (u32::from(t.mss), step_max(lines.identity.rx_bytes.get()));
    let now = t.rcv_wnd();
    let growth = (t.rcv_limit.distance(t.rcv_nxt).max(0) as u32).saturating_sub(now);
    if growth >= most.min(2 * mss) || (now < mss && growth >= most.min(mss)) {
        t.flags |= bits::ACK_NOW;
    }
}
