//! An acceptable acknowledgement frees the send ring, measures the round trip, moves the windows, and repairs a loss
//! (RFC 5681, RFC 6582, RFC 6298).

use super::context::FlowTurn;
use super::hystart::{Ack, CSS_GROWTH_DIVISOR, Phase, TRAIN_SEGMENTS};
use super::rare::rare;
use super::segment::Segment;
use super::{ecn, rack, recovery};
use crate::flow::Window;
use crate::messages::{ToSlow, event};
use crate::seq::Seq;
use crate::table::bits::{ECN, ECN_REDUCED, FIN_ACKED, PACED, RECOVER_SET, RECOVERY, RESEND, TIMING, TRACKED, UNDO};
use crate::table::stages::{Loss, Receive};
use crate::table::{Measures, word};
use std::hint::cold_path;
use towpath_wire::segment::flags;

/// An acknowledgement between SND.UNA and SND.MAX.
#[inline(always)]
pub(super) fn take<const PREDICTED: bool>(by: Receive, turn: &mut FlowTurn<'_>, s: &Segment) {
    let loss = Loss::from(by);
    let old_wnd = turn.t.snd_wnd();
    window::<PREDICTED>(by, turn, s);
    let ack = Seq(s.ack);
    let (una, flight) = (turn.t.snd_una(), turn.t.flight());
    if !rare::<PREDICTED>(|| !ack.after(una)) {
        if rare::<PREDICTED>(|| turn.t.has(UNDO) && !turn.t.has(TRACKED)) {
            undo_if_needless(loss, turn, s, ack);
        }
        let timed = advance::<PREDICTED>(by, turn, ack);
        if rare::<PREDICTED>(|| turn.t.has(TRACKED)) {
            if !timed {
                round_trip_again(by, turn, una);
            }
            rack::acknowledged(loss, turn, s, una);
        }
    } else if turn.t.has(TRACKED) {
        rack::acknowledged(loss, turn, s, una);
    } else if turn.t.has(UNDO) && s.reports() {
        report_after_recovery(loss, turn, s);
    } else if s.payload_len == 0
        && s.flags() & flags::FIN == 0
        && !turn.t.idle()
        && turn.t.snd_wnd() == old_wnd
        && old_wnd != 0
    {
        // RFC 5681 §2. At a closed window it is the answer to a probe.
        duplicate(loss, turn);
    }
    let echo = || s.flags() & flags::ECE != 0 && turn.t.has(ECN);
    if rare::<PREDICTED>(|| echo() || turn.t.has(ECN_REDUCED)) {
        ecn::echoed(loss, turn, s, turn.t.snd_una().bytes_since(una), flight);
    }
}

/// RFC 9293 §3.10.7.4: the window, an unsigned number (MUST-1), is taken from the newest segment. WL2 never decides,
/// because ACKs below SND.UNA do not come here. A segment that acknowledges something new is the newest, even if its
/// own data is an old repetition, below WL1. Else the window of the old SND.UNA would be added to the new one.
#[inline(always)]
fn window<const PREDICTED: bool>(by: Receive, turn: &mut FlowTurn<'_>, s: &Segment) {
    let t = &mut turn.t;
    if rare::<PREDICTED>(|| Seq(s.seq).before(t.snd_wl1()) && !Seq(s.ack).after(t.snd_una())) {
        return;
    }
    t.received(by).snd_wl1 = Seq(s.seq);
    let wnd = u32::from(s.window) << turn.lines.identity.peer_shift();
    if wnd != t.snd_wnd() {
        t.received(by).snd_wnd = wnd;
        turn.seldom::<_, PREDICTED, { word::SND_WND }>(by);
        let max = &turn.lines.measures.max_wnd;
        if wnd > max.get() {
            max.set(by, wnd);
        }
    }
}

/// New data (or the FIN) acknowledged. True: that has given the flight's round trip.
#[inline(always)]
fn advance<const PREDICTED: bool>(by: Receive, turn: &mut FlowTurn<'_>, ack: Seq) -> bool {
    let loss = Loss::from(by);
    let m = &turn.lines.measures;
    let t = &mut turn.t;
    let flight = t.flight();
    let acked = ack.bytes_since(t.snd_una());
    let mut bytes = acked;
    t.received(by).snd_una = ack;
    if rare::<PREDICTED>(|| t.snd_nxt().before(ack)) {
        t.next(by).snd_nxt = ack;
    }
    // The segment that was to be sent again has arrived.
    if rare::<PREDICTED>(|| t.has(RESEND)) {
        t.clear(loss, RESEND);
    }
    if rare::<PREDICTED>(|| ack.after(t.snd_queued())) {
        // Only the FIN is beyond the data.
        bytes -= 1;
        t.set(by, FIN_ACKED);
        turn.tell(by, ToSlow::Closing(turn.flow));
    }
    m.bytes_acked.add(by, u64::from(bytes));
    let t = &mut turn.t;
    let timed = t.has(TIMING) && !ack.before(Seq(m.rtt_seq.get()));
    if timed {
        t.clear(loss, TIMING);
        let sample_us = round_trip(by, m, (turn.now.0 as u32).wrapping_sub(m.rtt_at.get()));
        turn.lines.rate.round_trip(by, turn.now.0, sample_us);
        turn.state.counters.round_trips.add(sample_us);
    }
    if !rare::<PREDICTED>(|| bytes == 0) {
        turn.raise(by, event::ROOM);
    }
    let t = &mut turn.t;
    if rare::<PREDICTED>(|| t.has(RECOVERY)) {
        // With a scoreboard that is the business of `rack`.
        if !t.has(TRACKED) {
            recovering(loss, turn, ack, acked);
        }
        return timed;
    }
    if rare::<PREDICTED>(|| t.in_a_row() != 0) {
        t.duplicates(loss).in_a_row = 0;
    }
    if rare::<PREDICTED>(|| t.has(RECOVER_SET) && ack.after(Seq(turn.lines.addresses.recover.get()))) {
        t.clear(loss, RECOVER_SET);
    }
    grow::<PREDICTED>(loss, turn, ack, bytes, flight);
    timed
}

/// RFC 6298 §2, in µs: SRTT and RTTVAR after a sample that is not the first. SRTT stays above 0.
#[inline]
fn smoothed(m: &Measures, srtt: u32, sample_us: u32) -> (u32, u32) {
    let var = m.rttvar_us.get();
    (srtt - srtt / 8 + sample_us / 8, var - var / 4 + srtt.abs_diff(sample_us) / 4)
}

/// A sample is at least a microsecond, and small enough to be calculated with.
#[inline]
fn clamped(sample_us: u32) -> u32 {
    if sample_us.wrapping_sub(1) < 1 << 28 {
        return sample_us;
    }
    cold_path();
    sample_us.clamp(1, 1 << 28)
}

/// The round trip of the flight's timed segment. Returns the sample.
#[inline]
fn round_trip(by: Receive, m: &Measures, sample_us: u32) -> u32 {
    let (known, sample_us) = (m.srtt_us.get(), clamped(sample_us));
    let (srtt, var) = if known == 0 { (sample_us, sample_us / 2) } else { smoothed(m, known, sample_us) };
    m.srtt_us.set(by, srtt);
    m.rttvar_us.set(by, var);
    sample_us
}

/// Another round trip of the flight: the bytes from `una` on are acknowledged, and were sent once. SRTT has to follow a queue
/// that fills within a flight, or tail probes go out before acknowledgements that are only late. So each acknowledgement is
/// a sample (as in Linux). RTTVAR only grows here: many samples of one flight say little of how flights differ (RFC 7323,
/// appendix G).
fn round_trip_again(by: Receive, turn: &mut FlowTurn<'_>, una: Seq) {
    let (loss, m) = (Loss::from(by), &turn.lines.measures);
    let entry = turn.lines.recovery.scoreboard.get();
    let scoreboard = turn.state.scoreboards.by(loss).get(entry).filter(|scoreboard| scoreboard.clean);
    let Some(at) = scoreboard.and_then(|scoreboard| scoreboard.sent_at(una.add(1))) else { return };
    // The first sample is the timed segment's.
    let known = m.srtt_us.get();
    if known == 0 {
        return;
    }
    let (srtt, var) = smoothed(m, known, clamped((turn.now.0 as u32).wrapping_sub(at)));
    m.srtt_us.set(by, srtt);
    m.rttvar_us.set(by, var.max(m.rttvar_us.get()));
}

/// Growth between two decisions of the slow path: slow start and congestion avoidance (RFC 9293 §3.8.2 MUST-19). It is
/// counted in bytes (RFC 5681 §3.1, RFC 3465), and only if it was this window that held the sender back (RFC 7661 §1).
#[inline(always)]
fn grow<const PREDICTED: bool>(by: Loss, turn: &mut FlowTurn<'_>, ack: Seq, bytes: u32, flight: u32) {
    let (t, m) = (&mut turn.t, &turn.lines.measures);
    let mss = u32::from(t.mss());
    let cwnd = t.cwnd();
    let ssthresh = m.ssthresh.get();
    if cwnd < ssthresh {
        if flight > cwnd / 2 {
            let searches = rare::<PREDICTED>(|| ssthresh == Window::SEARCH && t.has(TRACKED));
            let growth = if searches { search(by, turn, ack) } else { m.growth() };
            let more = (u64::from(bytes) * u64::from(growth)) >> 8;
            let grown = cwnd.saturating_add(more as u32).min(ssthresh.max(cwnd.saturating_add(mss)));
            turn.t.congestion(by).cwnd = grown;
            turn.seldom::<_, PREDICTED, { word::CWND }>(by);
        }
    } else if flight.saturating_add(mss) > cwnd {
        // `growth`/256 MSS per window, but in steps of one MSS, so that fast growth makes no bursts.
        let more = (u64::from(bytes) * u64::from(m.growth())) >> 8;
        let grown = m.grown.get().saturating_add(more as u32);
        if grown < cwnd {
            m.grown.set(by, grown);
            return;
        }
        let steps = grown / cwnd.max(1);
        m.grown.set(by, grown % cwnd.max(1));
        t.congestion(by).cwnd = cwnd.saturating_add(steps.saturating_mul(mss));
        turn.seldom::<_, PREDICTED, { word::CWND }>(by);
    }
}

/// An acknowledgement up to `ack`, before the scoreboard takes it, in a slow start that is to end by itself. Returns by
/// how much the window grows, as `Window::growth`.
#[inline(never)]
fn search(by: Loss, turn: &mut FlowTurn<'_>, ack: Seq) -> u32 {
    let (t, m) = (&turn.t, &turn.lines.measures);
    let growth = m.growth();
    let Some(scoreboard) = turn.state.scoreboards.by(by).get(turn.lines.recovery.scoreboard.get()) else {
        return growth;
    };
    let now = turn.now.0 as u32;
    let phase = scoreboard.hystart.acknowledged(&Ack {
        now,
        ack,
        snd_max: t.snd_max(),
        rtt_us: scoreboard.sent_at(ack).map(|at| now.wrapping_sub(at)),
        paced: t.has(PACED),
        large: t.cwnd() / TRAIN_SEGMENTS >= u32::from(t.mss()),
    });
    match phase {
        Phase::Standard => growth,
        Phase::Conservative => growth / CSS_GROWTH_DIVISOR,
        Phase::Done => {
            m.ssthresh.set(by, t.cwnd());
            0
        }
    }
}

/// Without a scoreboard: undoes a repair that was needless.
#[cold]
fn undo_if_needless(by: Loss, turn: &mut FlowTurn<'_>, s: &Segment, ack: Seq) {
    if recovery::echoes_original(&turn.t, turn.lines, ack, turn.t.snd_una(), s) {
        recovery::undo(by, turn);
    }
}

/// Everything is acknowledged, or there is but one segment out: a report can only be of what came twice (RFC 2883).
#[cold]
fn report_after_recovery(by: Loss, turn: &mut FlowTurn<'_>, s: &Segment) {
    let Some(block) = rack::duplicate(s.sack(turn.state).as_slice(), turn.t.snd_una()) else { return };
    turn.lines.seldom.duplicates.add(by, 1);
    if rack::arrived_twice(by, &turn.t, turn.lines, block) {
        recovery::undo(by, turn);
    }
}

/// A duplicate acknowledgement: the third means a loss (RFC 5681 §3.2), unless it echoes an older repair (RFC 6582
/// §4.1).
#[cold]
fn duplicate(by: Loss, turn: &mut FlowTurn<'_>) {
    let t = &mut turn.t;
    let mss = u32::from(t.mss());
    t.duplicates(by).one_more();
    if t.has(RECOVERY) {
        // A segment has left the network.
        t.congestion(by).cwnd = t.cwnd().saturating_add(mss);
        return;
    }
    if t.in_a_row() != 3 {
        return;
    }
    if t.has(RECOVER_SET) && !t.snd_una().after(Seq(turn.lines.addresses.recover.get())) {
        return;
    }
    let ssthresh = recovery::enter(by, turn);
    turn.t.congestion(by).cwnd = ssthresh.saturating_add(3 * mss);
    turn.t.set(by, RESEND);
    turn.lines.rate.bytes_lost.add(by, u64::from(mss));
}

/// RFC 6582 §3.2, step 3.
#[cold]
fn recovering(by: Loss, turn: &mut FlowTurn<'_>, ack: Seq, acked: u32) {
    let t = &mut turn.t;
    let mss = u32::from(t.mss());
    if ack.before(Seq(turn.lines.addresses.recover.get())) {
        // Partial: the next hole. Deflate by what has left, but allow one new segment.
        turn.lines.rate.bytes_lost.add(by, u64::from(mss));
        t.set(by, RESEND);
        let mut cwnd = t.cwnd().saturating_sub(acked).max(mss);
        if acked >= mss {
            cwnd = cwnd.saturating_add(mss);
        }
        t.congestion(by).cwnd = cwnd;
        return;
    }
    let flight = t.flight();
    t.congestion(by).cwnd = turn.lines.measures.ssthresh.get().min(flight.max(mss).saturating_add(mss));
    t.duplicates(by).in_a_row = 0;
    t.clear(by, RECOVERY);
}

#[cfg(test)]
mod tests;
