//! A receive ring of which an idle application wants only the next bytes filled. The window stays as it was offered (RFC 9293 SHLD-14),
//! so the peer may send more than there is memory for. That is dropped, and comes again.

use super::app::{rx_head, rx_tail};
use super::context::{FastState, FlowTurn};
use crate::flow::FlowId;
use crate::seq::Seq;
use crate::table::bits::{DEAD, FIN_RECEIVED, SHUT_RD, TRIMMED};
use crate::table::stages::Receive;
use crate::table::tcb::Tcb;
use crate::table::{FlowTable, Lines};
use crate::time::Micros;

/// Memory for bytes from `start` on. Bytes that nobody wants need none.
pub(super) fn room(t: &Tcb, lines: &Lines, start: Seq) -> u32 {
    let kept = Seq(lines.seldom.trimmed_to.get()).distance(start).max(0) as u32;
    if t.has(SHUT_RD) { u32::MAX } else { kept }
}

/// See [`super::FastPath::trim_receive_ring`].
pub(super) fn trim(
    by: Receive,
    table: &FlowTable,
    state: &mut FastState,
    now: Micros,
    flow: FlowId,
    bytes: u32,
    again: bool,
) -> bool {
    let Some(mut turn) = FlowTurn::of(table, state, now, flow) else { return false };
    let (t, lines) = (&mut turn.t, turn.lines);
    let unread = rx_tail(t, lines) != rx_head(t, lines);
    let ends = t.has(DEAD) || t.any(FIN_RECEIVED) || t.has(SHUT_RD);
    if ends || t.any(TRIMMED) != again || t.out_of_order() != 0 || unread {
        return false;
    }
    lines.seldom.trimmed_to.set(by, t.rcv_nxt().add(bytes).0);
    t.set(by, TRIMMED);
    turn.store(by);
    true
}

/// See [`super::FastPath::restore_receive_ring`].
pub(super) fn restore(by: Receive, table: &FlowTable, state: &mut FastState, now: Micros, flow: FlowId) {
    let Some(mut turn) = FlowTurn::of(table, state, now, flow) else { return };
    turn.t.clear(by, TRIMMED);
    turn.store(by);
}
