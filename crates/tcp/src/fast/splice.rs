//! A flow that is to be spliced with another one. It takes no new payload until nothing of it is left to do; then it rests, and
//! something else handles its segments. What the peer sends meanwhile is kept by the slow path.

use super::app::{rx_head, rx_tail};
use super::context::{FastState, FlowTurn};
use super::{close, post};
use crate::buffers::RxBatch;
use crate::flow::{FlowId, PortId};
use crate::messages::{Held, Splicing, ToSlow, event};
use crate::table::FlowTable;
use crate::table::bits::{
    ABORTING, ACK_NOW, ACK_OWED, ACTIVE, APP_CLOSED, DEAD, FIN_RECEIVED, FIN_WANTED, HELD, RESTING, SHUT_RD,
};
use crate::table::stages::{Close, Control, Post, Receive};
use crate::time::Micros;

/// See [`crate::messages::ToFast::Splice`].
pub(super) fn step(
    (receive, by): (Receive, Control),
    table: &FlowTable,
    state: &mut FastState,
    now: Micros,
    flow: FlowId,
    step: Splicing,
) {
    let Some(mut turn) = FlowTurn::of(table, &mut *state, now, flow) else {
        if let Splicing::Hold(round) = step {
            state.outbox.messages.push_back(ToSlow::Held(flow, round, Held::Ending));
        }
        return;
    };
    match step {
        Splicing::Hold(round) => {
            let held = hold(receive, by, &mut turn);
            turn.tell(by, ToSlow::Held(flow, round, held));
        }
        Splicing::Resume => resume(receive, by, &mut turn),
        Splicing::Release => {
            turn.t.clear(receive, HELD);
            resume(receive, by, &mut turn);
        }
        Splicing::Begun => {
            turn.t.clear(receive, HELD);
            turn.raise(by, event::TX_CLOSED);
        }
        Splicing::Ended(None) => turn.raise(by, event::EOF),
        Splicing::Ended(Some(errno)) => {
            turn.lines.identity.set_errno(Close::from(by), errno);
            turn.raise(by, event::ERROR);
        }
    }
    post::flow(Post::from(by), &mut turn);
    turn.store((receive, by));
}

/// Hands over to the slow path what flows have not taken.
#[cold]
#[inline(never)]
pub(super) fn keep(state: &mut FastState, port: PortId, frames: &impl RxBatch) {
    let FastState { held, outbox, counters, config, .. } = state;
    // They may be super-segments, and are not to take the places of handshakes.
    let most = config.slow_segments / 16;
    for frame in held.drain(..) {
        outbox.pass_to_slow(counters, most, port, frames.bytes(frame as usize));
    }
}

fn hold(receive: Receive, by: Control, turn: &mut FlowTurn<'_>) -> Held {
    let (t, lines) = (&mut turn.t, turn.lines);
    if t.has(RESTING) {
        return Held::Resting;
    }
    if t.has(DEAD) || t.has(FIN_RECEIVED) || t.any(FIN_WANTED | APP_CLOSED | SHUT_RD | ABORTING) {
        return Held::Ending;
    }
    if t.out_of_order() != 0 {
        // What fills the hole is still wanted.
        return Held::Outstanding;
    }
    t.set(receive, HELD);
    if rx_tail(t, lines) != rx_head(t, lines) {
        return Held::Unread;
    }
    if t.any(ACK_NOW | ACK_OWED) {
        t.set(by, ACK_NOW);
        return Held::Outstanding;
    }
    if !t.idle() || t.snd_queued() != t.snd_una() {
        return Held::Outstanding;
    }
    t.set(receive, RESTING);
    close::kill(Close::from(by), turn, false, None);
    Held::Resting
}

/// The peer is told where we are: what it has sent meanwhile was not taken.
fn resume(receive: Receive, by: Control, turn: &mut FlowTurn<'_>) {
    if !turn.t.has(RESTING) || turn.t.has(ABORTING) {
        return;
    }
    turn.t.clear(receive, RESTING);
    turn.t.clear(by, DEAD);
    turn.t.set(by, ACK_NOW);
    turn.t.clear(by, ACTIVE);
    turn.activate(by);
}
