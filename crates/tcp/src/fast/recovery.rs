//! The window during a recovery, and how a needless recovery is undone. Entry is by RFC 5681 §3.2, the proportional
//! rate reduction by RFC 9937, and Eifel by RFC 3522 and RFC 4015.

use super::context::FlowTurn;
use super::scoreboard::{LOST as LOST_SPANS, Reduction, SACKED, Scoreboards};
use super::segment::Segment;
use crate::messages::ToSlow;
use crate::seq::Seq;
use crate::table::bits::{
    ECN, ECN_CWR, FlagSet, LOST, LossFlags, RECOVER_SET, RECOVERY, RESEND, SCORED, TAIL, TIMESTAMPS, TIMING, TRACKED,
    UNDO,
};
use crate::table::permit::Owned;
use crate::table::stages::Loss;
use crate::table::tcb::Tcb;
use crate::table::{Lines, learnt};

/// Our timestamp at this time ([`Micros::ms`](crate::time::Micros::ms)).
#[inline]
pub(super) fn timestamp(lines: &Lines, ms: u32) -> u32 {
    ms.wrapping_add(lines.identity.ts_offset.get())
}

/// True while the flow repairs what was out when its retransmission timer ran out.
#[inline]
pub(super) fn timed_out(t: &Tcb, lines: &Lines) -> bool {
    let loss: LossFlags = t.flags();
    loss.has(RECOVER_SET) && !loss.has(RECOVERY) && t.snd_una().before(Seq(lines.addresses.recover.get()))
}

/// Bytes in flight as far as we know (RFC 6675 §2): neither reported nor lost.
#[inline]
pub(super) fn pipe(t: &Tcb, lines: &Lines) -> u32 {
    let left = if t.has(SCORED) { lines.recovery.left.get() } else { 0 };
    t.flight().saturating_sub(left)
}

/// Gives the flow a scoreboard with what is out already: nothing, or one segment, timed if it was sent but once. False =
/// there is none left.
pub(super) fn track(by: Loss, turn: &mut FlowTurn<'_>) -> bool {
    let FlowTurn { state, lines, t, now, .. } = turn;
    let (at, again) =
        if t.has(TIMING) && !t.idle() { (lines.measures.rtt_at.get(), false) } else { (now.0 as u32, !t.idle()) };
    let Some(entry) = state.scoreboards.by(by).take(t.snd_una(), t.snd_max(), at, again) else { return false };
    lines.recovery.scoreboard.set(by, u32::from(entry));
    t.set(by, TRACKED);
    true
}

/// Gives the flow's scoreboard back: nothing is outstanding, or the flow has ended.
pub(super) fn untrack(by: Loss, turn: &mut FlowTurn<'_>) {
    let line = &turn.lines.recovery;
    if turn.t.has(TRACKED) {
        turn.state.scoreboards.by(by).release(line.scoreboard.get());
        line.scoreboard.set(by, 0);
        turn.lines.seldom.resent.set(by, 0);
        line.deadline.set(by, 0);
        turn.t.clear(by, TRACKED | SCORED);
        turn.t.clear(by, LOST | TAIL);
    }
}

/// Brings the flow's flags and `Recovery::left` into line with its scoreboard.
pub(super) fn count(by: Loss, scoreboards: &mut Owned<Scoreboards>, t: &mut Tcb, lines: &Lines) {
    let Some(scoreboard) = scoreboards.by(by).get(lines.recovery.scoreboard.get()) else { return };
    scoreboard.look();
    t.clear(by, SCORED);
    t.clear(by, LOST);
    let lost = scoreboard.bytes(LOST_SPANS);
    let sacked = scoreboard.bytes(SACKED);
    lines.seldom.resent.set(by, scoreboard.resent_bytes());
    let left = lost + sacked;
    lines.recovery.left.set(by, left);
    if left != 0 {
        // Needed by `TCP_INFO` alone, so not otherwise.
        lines.addresses.sacked.set(by, sacked);
        t.set(by, SCORED);
    }
    // While a time-out is in doubt (F-RTO), repairs wait.
    if lost != 0 && scoreboard.doubtful != 2 {
        t.set(by, LOST);
    }
}

/// Keeps what has to be restored if it turns out that nothing was lost.
pub(super) fn remember(by: Loss, t: &mut Tcb, lines: &Lines) {
    let line = &lines.recovery;
    line.prior_cwnd.set(by, t.cwnd());
    line.prior_ssthresh.set(by, lines.measures.ssthresh.get());
    line.undo_from.set(by, t.snd_una().0);
    line.undo_bytes.set(by, 0);
    t.set(by, UNDO);
}

/// A segment has been sent again.
#[inline]
pub(super) fn resent(by: Loss, turn: &FlowTurn<'_>, seq: Seq, len: u32) {
    let line = &turn.lines.recovery;
    if !turn.t.has(UNDO) {
        return;
    }
    if line.undo_bytes.get() == 0 {
        line.undo_from.set(by, seq.0);
        line.resent_ts.set(by, timestamp(turn.lines, turn.now.ms()));
    }
    line.undo_bytes.add(by, len);
}

/// Eifel detection (RFC 3522 §3.2): the first acknowledgement for what was sent again echoes a timestamp from before
/// that, so the first transmission had arrived.
#[inline]
pub(super) fn echoes_original(t: &Tcb, lines: &Lines, ack: Seq, una: Seq, s: &Segment) -> bool {
    let line = &lines.recovery;
    let from = Seq(line.undo_from.get());
    if !t.has(UNDO) || !t.has(TIMESTAMPS) || line.undo_bytes.get() == 0 || una.after(from) || !ack.after(from) {
        return false;
    }
    s.stamped() && (s.echo.wrapping_sub(line.resent_ts.get()) as i32) < 0
}

/// Nothing was lost: everything as it was before (RFC 4015 §3.2).
#[cold]
pub(super) fn undo(by: Loss, turn: &mut FlowTurn<'_>) {
    let FlowTurn { state, lines, t, .. } = turn;
    let line = &lines.recovery;
    t.congestion(by).cwnd = t.cwnd().max(line.prior_cwnd.get());
    let m = &lines.measures;
    m.ssthresh.set(by, m.ssthresh.get().max(line.prior_ssthresh.get()));
    m.grown.set(by, 0);
    t.clear(by, RECOVERY | RECOVER_SET | UNDO);
    t.clear(by, RESEND | ECN_CWR);
    t.duplicates(by).in_a_row = 0;
    // Not from SND.UNA again.
    t.next(by).snd_nxt = t.snd_max();
    if t.has(TRACKED)
        && let Some(scoreboard) = state.scoreboards.by(by).get(line.scoreboard.get())
    {
        scoreboard.find();
        scoreboard.doubtful = 0;
    }
    state.counters.undone += 1;
    turn.tell(by, ToSlow::Undone(turn.flow));
}

/// The window has been reduced, for whatever reason: the next new segment says so (RFC 3168 §6.1.2).
pub(super) fn say_reduced(by: Loss, t: &mut Tcb) {
    if t.has(ECN) {
        t.set(by, ECN_CWR);
    }
}

/// The reduction that a loss asks for. Returns the new slow-start threshold.
fn reduce(by: Loss, turn: &mut FlowTurn<'_>) -> u32 {
    let (t, m) = (&mut turn.t, &turn.lines.measures);
    // Without what limited transmit has sent beyond the window (RFC 5681 §3.2, step 2).
    let flight = t.flight().min(t.cwnd());
    let left = (u64::from(flight) * u64::from(m.beta())) >> 10;
    let ssthresh = (left as u32).max(2 * u32::from(t.mss()));
    m.ssthresh.set(by, ssthresh);
    m.grown.set(by, 0);
    say_reduced(by, t);
    turn.tell(by, ToSlow::Loss(turn.flow));
    ssthresh
}

/// Into recovery, with or without SACK. Returns the new slow-start threshold.
pub(super) fn enter(by: Loss, turn: &mut FlowTurn<'_>) -> u32 {
    remember(by, &mut turn.t, turn.lines);
    let ssthresh = reduce(by, turn);
    turn.lines.addresses.recover.set(by, turn.t.snd_max().0);
    turn.t.clear(by, TIMING);
    turn.t.set(by, RECOVERY | RECOVER_SET);
    ssthresh
}

/// The state machine of a flow with a scoreboard: `delivered` bytes have newly arrived, `lost` have newly been found
/// lost.
pub(super) fn proceed(by: Loss, turn: &mut FlowTurn<'_>, delivered: u32, lost: u32, advanced: bool) {
    let lines = turn.lines;
    let recover = Seq(lines.addresses.recover.get());
    if turn.t.has(RECOVERY) && !turn.t.snd_una().before(recover) {
        turn.t.congestion(by).cwnd = lines.measures.ssthresh.get();
        turn.t.clear(by, RECOVERY);
        recovered(by, lines);
    }
    if !turn.t.has(RECOVERY) {
        let repairing = turn.t.has(RECOVER_SET) && turn.t.snd_una().before(recover);
        if lost == 0 || repairing {
            return;
        }
        let flight = turn.t.flight();
        enter(by, turn);
        if let Some(scoreboard) = turn.state.scoreboards.by(by).get(lines.recovery.scoreboard.get()) {
            scoreboard.reduction = Reduction { flight: flight.max(1), ..Reduction::default() };
            scoreboard.doubtful = 0;
        }
    }
    proportional(by, turn, delivered, advanced && lost == 0);
}

/// A recovery is over: after 16 of them the reordering window shrinks to a quarter of the round trip again (RFC 8985
/// §6.2, step 4).
fn recovered(by: Loss, lines: &Lines) {
    let word = &lines.recovery.reordering;
    let known = word.get();
    let persist = (known >> learnt::PERSIST_SHIFT) & 0xff;
    if persist > 1 {
        word.set(by, known - (1 << learnt::PERSIST_SHIFT));
    } else {
        word.set(by, known & (learnt::SEEN | learnt::ROUND));
    }
}

/// Proportional rate reduction (RFC 9937 §6.2): as much goes out as arrives, times what is to be left of the window.
/// Below the target not more goes out than slow start would send, and that only while repairs arrive.
fn proportional(by: Loss, turn: &mut FlowTurn<'_>, delivered: u32, safe: bool) {
    let (t, lines) = (&mut turn.t, turn.lines);
    let Some(scoreboard) = turn.state.scoreboards.by(by).get(lines.recovery.scoreboard.get()) else { return };
    let (mss, ssthresh, pipe) = (u32::from(t.mss()), lines.measures.ssthresh.get(), pipe(t, lines));
    let r = &mut scoreboard.reduction;
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
    t.congestion(by).cwnd = pipe.saturating_add(more);
}

/// A tail probe has repaired a loss that no acknowledgement showed: the window shrinks all the same (RFC 8985 §7.4.2).
pub(super) fn repaired_by_probe(by: Loss, turn: &mut FlowTurn<'_>) {
    if !turn.t.has(RECOVERY) {
        let ssthresh = reduce(by, turn);
        turn.t.congestion(by).cwnd = turn.t.cwnd().min(ssthresh);
    }
}

#[cfg(test)]
mod tests;
