//! Explicit congestion notification (RFC 3168; RFC 9293 §3.8.2 SHLD-8), and DCTCP's accurate echo of it (RFC 8257).
//!
//! Receiver: a data segment marked CE makes our acknowledgements carry ECE, until the peer's CWR says that it has
//! slowed down. With DCTCP exactly those acknowledgements carry ECE that acknowledge marked data. Sender: ECE counts
//! what it acknowledges as marked, and reduces the window once per round trip. With DCTCP the slow path decides on the
//! reduction.

use super::context::FlowTurn;
use super::segment::Segment;
use crate::messages::ToSlow;
use crate::seq::Seq;
use crate::table::Lines;
use crate::table::bits::{ACK_NOW, AckDebt, ECN_CWR, ECN_DCTCP, ECN_ECHO, ECN_EDGE, ECN_EDGES, ECN_REDUCED, RECOVERY};
use crate::table::permit::Writes;
use crate::table::stages::{Loss, Receive};
use crate::table::tcb::Tcb;
use towpath_wire::segment::flags;

/// ECN field of an ECN-capable packet, ECT(0) (RFC 3168 §5).
pub(super) const ECT0: u8 = 2;
/// ECN field: congestion experienced.
const CE: u8 = 3;
/// The ECN field in the type of service.
const FIELD: u8 = 3;

/// An acceptable segment with data on a flow with ECN, before its data are taken.
pub(super) fn receive(by: Receive, t: &mut Tcb, lines: &Lines, s: &Segment) {
    let marked = s.tos & FIELD == CE;
    if s.flags() & flags::CWR != 0 {
        // The sender has slowed down, perhaps to a segment at a time: it should not have to wait (as Linux).
        t.set(by, ACK_NOW);
    }
    if t.has(ECN_DCTCP) {
        // RFC 8257 §3.2.
        if marked != t.has(ECN_ECHO) {
            edge(by, t, lines);
            t.clear(by, ECN_ECHO);
            if marked {
                t.set(by, ECN_ECHO);
            }
        }
        return;
    }
    // RFC 3168 §6.1.3: a CWR ends the echo, but not if its own packet is marked.
    if s.flags() & flags::CWR != 0 {
        t.clear(by, ECN_ECHO);
    }
    if marked && !t.has(ECN_ECHO) {
        // The sender should know soon (as Linux).
        t.set(by, ECN_ECHO);
        t.set(by, ACK_NOW);
    }
}

/// Marks begin or end. Data from before are acknowledged on their own, at once, and so are those that come now.
fn edge(by: Receive, t: &mut Tcb, lines: &Lines) {
    t.set(by, ACK_NOW);
    let edges = &lines.rate.ecn_edges;
    match t.flags::<AckDebt>().edges() {
        0 if t.rcv_nxt() == t.last_ack() => {}
        0 => {
            edges[0].set(by, t.rcv_nxt().0);
            t.set(by, ECN_EDGE);
        }
        // Nothing new has come since: as if there had been no edge.
        1 if t.rcv_nxt() == Seq(edges[0].get()) => t.clear(by, ECN_EDGES),
        1 => {
            edges[1].set(by, t.rcv_nxt().0);
            t.set(by, ECN_EDGES);
        }
        // More than two in a batch: the second edge and this one cancel each other.
        _ => {
            t.clear(by, ECN_EDGES);
            t.set(by, ECN_EDGE);
        }
    }
}

/// The oldest edge that is to be acknowledged, and whether the data before it were marked.
pub(super) fn pending(t: &Tcb, lines: &Lines) -> Option<(Seq, bool)> {
    let pending = t.flags::<AckDebt>().edges();
    if pending == 0 {
        return None;
    }
    // The echo changes at each edge.
    let marked = t.has(ECN_ECHO) == (pending == 2);
    Some((Seq(lines.rate.ecn_edges[0].get()), marked))
}

/// The oldest edge has been acknowledged.
pub(super) fn acknowledged<S: Writes<AckDebt>>(by: S, t: &mut Tcb, lines: &Lines) {
    let edges = &lines.rate.ecn_edges;
    edges[0].set(by, edges[1].get());
    let one_left = t.has(ECN_EDGES);
    t.clear(by, ECN_EDGES);
    if one_left {
        t.set(by, ECN_EDGE);
    }
    t.set(by, ACK_NOW);
}

/// An acknowledgement with ECE, or the first ones after a reduction. It has acknowledged `acked` of `flight` bytes.
#[cold]
pub(super) fn echoed(by: Loss, turn: &mut FlowTurn<'_>, s: &Segment, acked: u32, flight: u32) {
    let (m, rate) = (&turn.lines.measures, &turn.lines.rate);
    let t = &mut turn.t;
    if t.has(ECN_REDUCED) && t.snd_una().after(Seq(rate.ecn_recover.get())) {
        t.clear(by, ECN_REDUCED);
    }
    if s.flags() & flags::ECE == 0 {
        return;
    }
    rate.bytes_marked.add(by, u64::from(acked));
    // RFC 3168 §6.1.2: once per window of data, and not on top of a loss in the same window.
    if t.any(ECN_REDUCED | RECOVERY) {
        return;
    }
    rate.ecn_recover.set(by, t.snd_max().0);
    t.set(by, ECN_REDUCED);
    t.set(by, ECN_CWR);
    if t.has(ECN_DCTCP) {
        // Slow start ends with the first mark, which has the full effect (RFC 8257 §3.3: the estimate begins at 1).
        // Until the slow path's algorithm decides, the window would double a few times.
        if t.cwnd() < m.ssthresh.get() {
            let window = (t.cwnd() / 2).max(u32::from(t.mss()));
            t.congestion(by).cwnd = window;
            m.ssthresh.set(by, window);
            m.grown.set(by, 0);
        }
        return;
    }
    let left = (u64::from(flight) * u64::from(m.beta())) >> 10;
    let window = (left as u32).max(2 * u32::from(t.mss()));
    m.ssthresh.set(by, window);
    m.grown.set(by, 0);
    t.congestion(by).cwnd = t.cwnd().min(window);
    turn.tell(by, ToSlow::Marked(turn.flow));
}
