//! Explicit congestion notification (RFC 3168; RFC 9293 §3.8.2 SHLD-8), and DCTCP's accurate echo of it (RFC 8257).
//!
//! Receiver: a data segment marked CE makes our acknowledgements carry ECE, until the peer's CWR says that it has slowed down; with
//! DCTCP exactly those that acknowledge marked data do. Sender: ECE counts what it acknowledges as marked, and reduces the window once
//! per round trip, unless DCTCP in the slow path decides that.

use super::protocol::Turn;
use crate::messages::ToSlow;
use crate::seq::Seq;
use crate::table::{Lines, Tcb, bits};
use towpath_wire::segment::{Segment, flags};

/// ECN field of an ECN-capable packet, ECT(0) (RFC 3168 §5).
pub(super) const ECT0: u8 = 2;
/// ECN field: congestion experienced.
const CE: u8 = 3;
/// The ECN field in the type of service.
const FIELD: u8 = 3;

/// An acceptable segment with data on a flow with ECN, before its data are taken.
pub(super) fn receive(t: &mut Tcb, lines: &Lines, s: &Segment) {
    let marked = s.tos & FIELD == CE;
    if s.flags & flags::CWR != 0 {
        // The sender has slowed down, perhaps to a segment at a time: it should not have to wait (as Linux).
        t.flags |= bits::ACK_NOW;
    }
    if t.has(bits::ECN_DCTCP) {
        // RFC 8257 §3.2.
        if marked != t.has(bits::ECN_ECHO) {
            edge(t, lines);
            t.flags = t.flags & !bits::ECN_ECHO | if marked { bits::ECN_ECHO } else { 0 };
        }
        return;
    }
    // RFC 3168 §6.1.3: a CWR ends the echo, but not if its own packet is marked.
    if s.flags & flags::CWR != 0 {
        t.flags &= !bits::ECN_ECHO;
    }
    if marked && !t.has(bits::ECN_ECHO) {
        // The sender should know soon, as with Linux.
        t.flags |= bits::ECN_ECHO | bits::ACK_NOW;
    }
}

/// Marks begin or end: what came before is acknowledged on its own, at once, and so is what comes now.
fn edge(t: &mut Tcb, lines: &Lines) {
    t.flags |= bits::ACK_NOW;
    let edges = &lines.rate.ecn_edges;
    match (t.flags & bits::ECN_EDGES) / bits::ECN_EDGE {
        0 if t.rcv_nxt == t.last_ack => {}
        0 => {
            edges[0].set(t.rcv_nxt.0);
            t.flags |= bits::ECN_EDGE;
        }
        // Nothing new has come since: as if there had been no edge.
        1 if t.rcv_nxt == Seq(edges[0].get()) => t.flags &= !bits::ECN_EDGES,
        1 => {
            edges[1].set(t.rcv_nxt.0);
            t.flags |= bits::ECN_EDGES;
        }
        // More than two in a batch: what is between the second and this one counts as if it were none.
        _ => t.flags = t.flags & !bits::ECN_EDGES | bits::ECN_EDGE,
    }
}

/// The oldest edge that is to be acknowledged, and whether what is before it was marked.
pub(super) fn pending(t: &Tcb, lines: &Lines) -> Option<(Seq, bool)> {
    let pending = t.flags & bits::ECN_EDGES;
    if pending == 0 {
        return None;
    }
    // The state changes at each edge.
    let marked = t.has(bits::ECN_ECHO) == (pending == bits::ECN_EDGES);
    Some((Seq(lines.rate.ecn_edges[0].get()), marked))
}

/// The oldest edge has been acknowledged.
pub(super) fn acknowledged(t: &mut Tcb, lines: &Lines) {
    let edges = &lines.rate.ecn_edges;
    edges[0].set(edges[1].get());
    let left = if t.has(bits::ECN_EDGES) { bits::ECN_EDGE } else { 0 };
    t.flags = t.flags & !bits::ECN_EDGES | left | bits::ACK_NOW;
}

/// An acknowledgement with ECE, or the first ones after a reduction. It has acknowledged `acked` of `flight` bytes.
#[cold]
pub(super) fn echoed(turn: &mut Turn<'_>, s: &Segment, acked: u32, flight: u32) {
    let (m, rate) = (&turn.lines.measures, &turn.lines.rate);
    let t = &mut turn.t;
    if t.has(bits::ECN_REDUCED) && t.snd_una.after(Seq(rate.ecn_recover.get())) {
        t.flags &= !bits::ECN_REDUCED;
    }
    if s.flags & flags::ECE == 0 {
        return;
    }
    rate.bytes_marked.add(u64::from(acked));
    // RFC 3168 §6.1.2: once per window of data, and not on top of a loss in the same window.
    if t.any(bits::ECN_REDUCED | crate::flow::flow_flags::RECOVERY) {
        return;
    }
    rate.ecn_recover.set(t.snd_max.0);
    t.flags |= bits::ECN_REDUCED | bits::ECN_CWR;
    if t.has(bits::ECN_DCTCP) {
        // Slow start is over with the first mark, which has the full effect (RFC 8257 §3.3: the estimate begins at 1): until the
        // algorithm has its say, the window would double a few times.
        if t.cwnd < m.ssthresh.get() {
            t.cwnd = (t.cwnd / 2).max(u32::from(t.mss));
            m.ssthresh.set(t.cwnd);
            m.grown.set(0);
        }
        return;
    }
    let left = (u64::from(flight) * u64::from(m.beta())) >> 8;
    let window = (left as u32).max(2 * u32::from(t.mss));
    m.ssthresh.set(window);
    m.grown.set(0);
    t.cwnd = t.cwnd.min(window);
    turn.state.outbox.push_back(ToSlow::Marked(turn.flow));
}
