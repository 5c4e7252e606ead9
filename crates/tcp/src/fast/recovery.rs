//! The window during a recovery, and what is undone if the recovery was needless: entry (RFC 5681 §3.2), proportional rate reduction
//! (RFC 9937), Eifel (RFC 3522, RFC 4015).

use super::State;
use super::protocol::Turn;
use super::rack;
use super::scoreboard::{Boards, LOST, Reduction, SACKED};
use crate::flow::FlowId;
use crate::flow::flow_flags::{ECN, RECOVERY, TIMESTAMPS};
use crate::messages::ToSlow;
use crate::seq::Seq;
use crate::table::{Lines, Tcb, bits};
use crate::time::Micros;
use towpath_wire::segment::Segment;

/// Our timestamp now.
#[inline]
pub(super) fn timestamp(lines: &Lines, now: Micros) -> u32 {
    ((now.0 / 1000) as u32).wrapping_add(lines.identity.ts_offset.get())
}

/// Is this flow still repairing what was out when its retransmission timer ran out?
#[inline]
pub(super) fn timed_out(t: &Tcb, lines: &Lines) -> bool {
    t.flags & (RECOVERY | bits::RECOVER_SET) == bits::RECOVER_SET && t.snd_una.before(Seq(lines.identity.recover.get()))
}

/// Bytes in flight as far as we know (RFC 6675 §2): neither reported nor lost.
#[inline]
pub(super) fn pipe(t: &Tcb, lines: &Lines) -> u32 {
    let left = if t.has(bits::SCORED) { lines.recovery.left.get() } else { 0 };
    t.snd_max.bytes_since(t.snd_una).saturating_sub(left)
}

/// Brings the flow's flags and `Recovery::left` into line with its board.
pub(super) fn count(boards: &mut Boards, t: &mut Tcb, lines: &Lines) {
    let Some(board) = boards.get(lines.recovery.board.get()) else { return };
    board.look();
    t.flags &= !(bits::SCORED | bits::LOST);
    let lost = board.bytes(LOST);
    let sacked = board.bytes(SACKED);
    let left = lost + sacked;
    lines.recovery.left.set(left);
    if left != 0 {
        // For `TCP_INFO` alone, so not otherwise.
        lines.addresses.sacked.set(sacked);
    }
    t.flags |= if left != 0 { bits::SCORED } else { 0 };
    // While a time-out is in doubt (F-RTO), repairs wait.
    t.flags |= if lost != 0 && board.doubtful != 2 { bits::LOST } else { 0 };
}

/// Keeps what has to be restored if it turns out that nothing was lost.
pub(super) fn remember(t: &mut Tcb, lines: &Lines) {
    let line = &lines.recovery;
    line.prior_cwnd.set(t.cwnd);
    line.prior_ssthresh.set(lines.measures.ssthresh.get());
    line.undo_from.set(t.snd_una.0);
    line.undo_bytes.set(0);
    t.flags |= bits::UNDO;
}

/// A segment has been sent again.
#[inline]
pub(super) fn resent(t: &Tcb, lines: &Lines, now: Micros, seq: Seq, len: u32) {
    let line = &lines.recovery;
    if !t.has(bits::UNDO) {
        return;
    }
    if line.undo_bytes.get() == 0 {
        line.undo_from.set(seq.0);
        line.resent_ts.set(timestamp(lines, now));
    }
    line.undo_bytes.add(len);
}

/// Eifel detection (RFC 3522 §3.2): the first acknowledgement for what was sent again echoes a timestamp from before that, so the
/// first transmission had arrived.
#[inline]
pub(super) fn echoes_original(t: &Tcb, lines: &Lines, ack: Seq, una: Seq, s: &Segment) -> bool {
    let line = &lines.recovery;
    let from = Seq(line.undo_from.get());
    if !t.has(bits::UNDO | TIMESTAMPS) || line.undo_bytes.get() == 0 || una.after(from) || !ack.after(from) {
        return false;
    }
    s.options.timestamps.is_some_and(|ts| (ts.echo.wrapping_sub(line.resent_ts.get()) as i32) < 0)
}

/// Nothing was lost: everything as it was before (RFC 4015 §3.2).
#[cold]
pub(super) fn undo(state: &mut State, t: &mut Tcb, lines: &Lines, flow: FlowId) {
    let line = &lines.recovery;
    t.cwnd = t.cwnd.max(line.prior_cwnd.get());
    let m = &lines.measures;
    m.ssthresh.set(m.ssthresh.get().max(line.prior_ssthresh.get()));
    m.grown.set(0);
    t.flags &= !(RECOVERY | bits::RECOVER_SET | bits::UNDO | bits::RESEND | bits::ECN_CWR);
    t.acks.set_seen(0);
    // Not from SND.UNA again.
    t.snd_nxt = t.snd_max;
    if t.has(bits::TRACKED)
        && let Some(board) = state.boards.get(line.board.get())
    {
        board.find();
        board.doubtful = 0;
    }
    state.counters.undone += 1;
    state.outbox.push_back(ToSlow::Undone(flow));
}

/// The window has been reduced, for whatever reason: the next new segment says so (RFC 3168 §6.1.2).
pub(super) fn say_reduced(t: &mut Tcb) {
    if t.has(ECN) {
        t.flags |= bits::ECN_CWR;
    }
}

/// The reduction that a loss asks for.
pub(super) fn reduce(state: &mut State, t: &mut Tcb, lines: &Lines, flow: FlowId) -> u32 {
    let m = &lines.measures;
    // What limited transmit has sent beyond the window does not count (RFC 5681 §3.2, step 2).
    let flight = t.snd_max.bytes_since(t.snd_una).min(t.cwnd);
    let left = (u64::from(flight) * u64::from(m.beta())) >> 8;
    let ssthresh = (left as u32).max(2 * u32::from(t.mss));
    m.ssthresh.set(ssthresh);
    m.grown.set(0);
    say_reduced(t);
    state.outbox.push_back(ToSlow::Loss(flow));
    ssthresh
}

/// Into recovery, with or without SACK.
pub(super) fn enter(state: &mut State, t: &mut Tcb, lines: &Lines, flow: FlowId) -> u32 {
    remember(t, lines);
    let ssthresh = reduce(state, t, lines, flow);
    lines.identity.recover.set(t.snd_max.0);
    t.flags = t.flags & !bits::TIMING | RECOVERY | bits::RECOVER_SET;
    ssthresh
}

/// The state machine of a flow with a scoreboard: `delivered` bytes have newly arrived, `lost` have newly been found lost.
pub(super) fn proceed(turn: &mut Turn<'_>, delivered: u32, lost: u32, advanced: bool) {
    let lines = turn.lines;
    let recover = Seq(lines.identity.recover.get());
    if turn.t.has(RECOVERY) && !turn.t.snd_una.before(recover) {
        turn.t.cwnd = lines.measures.ssthresh.get();
        turn.t.flags &= !RECOVERY;
        rack::recovered(lines);
    }
    if !turn.t.has(RECOVERY) {
        let repairing = turn.t.has(bits::RECOVER_SET) && turn.t.snd_una.before(recover);
        if lost == 0 || repairing {
            return;
        }
        let flight = turn.t.snd_max.bytes_since(turn.t.snd_una);
        enter(turn.state, &mut turn.t, lines, turn.flow);
        if let Some(board) = turn.state.boards.get(lines.recovery.board.get()) {
            board.reduction = Reduction { flight: flight.max(1), ..Reduction::default() };
            board.doubtful = 0;
        }
    }
    proportional(turn, delivered, advanced && lost == 0);
}

/// Proportional rate reduction (RFC 9937 §6.2): as much goes out as arrives, times what is to be left of the window; below the target
/// not more than slow start would, and that only while repairs arrive.
fn proportional(turn: &mut Turn<'_>, delivered: u32, safe: bool) {
    let (t, lines) = (&mut turn.t, turn.lines);
    let Some(board) = turn.state.boards.get(lines.recovery.board.get()) else { return };
    let (mss, ssthresh, pipe) = (u32::from(t.mss), lines.measures.ssthresh.get(), pipe(t, lines));
    let r = &mut board.reduction;
    r.delivered = r.delivered.saturating_add(delivered);
    let mut more = if pipe > ssthresh {
        let share = (u64::from(r.delivered) * u64::from(ssthresh)).div_ceil(u64::from(r.flight));
        u32::try_from(share).unwrap_or(u32::MAX).saturating_sub(r.out)
    } else {
        let limit = r.delivered.saturating_sub(r.out).max(delivered);
        (ssthresh - pipe).min(if safe { limit.saturating_add(mss) } else { limit })
    };
    if r.out == 0 {
        // The first repair goes out at once.
        more = more.max(mss);
    }
    t.cwnd = pipe.saturating_add(more);
}

/// A tail probe has repaired a loss that nobody saw: the window shrinks all the same (RFC 8985 §7.4.2).
pub(super) fn repaired_by_probe(turn: &mut Turn<'_>) {
    if !turn.t.has(RECOVERY) {
        let ssthresh = reduce(turn.state, &mut turn.t, turn.lines, turn.flow);
        turn.t.cwnd = turn.t.cwnd.min(ssthresh);
    }
}
