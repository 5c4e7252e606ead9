//! Losses found by time (RFC 8985): acknowledgements on the scoreboard, the reordering timer, and the tail probe.

use super::context::{FastState, FlowTurn};
use super::recovery;
use super::scoreboard::{AGAIN, LOST, Newest, SACKED, Scoreboard, Span};
use super::segment::Segment;
use super::wheel::{Timer, Wheel};
use crate::flow::FlowId;
use crate::seq::Seq;
use crate::table::bits::{self, DEAD, RECOVERY, TAIL, TIMESTAMPS, TRACKED, UNDO};
use crate::table::permit::Owned;
use crate::table::stages::Loss;
use crate::table::tcb::Tcb;
use crate::table::{Lines, Recovery, learnt};
use crate::time::Micros;

/// Reported segments that mean a loss while no reordering has been seen (RFC 8985 §5.3: RACK.dupthresh).
const DUP_THRESHOLD: u8 = 3;
/// Recoveries without a needless retransmission after which the reordering window shrinks again (RFC 8985 §5.3).
const PERSIST: u32 = 16;
/// Added to two round trips before the tail is probed, µs: the peer may hold its acknowledgement back, and clocks are
/// coarse (Linux: 2 ms).
const PROBE_MARGIN_US: u32 = 2000;
/// Wait before the tail is probed when no round trip has been measured, µs (RFC 8985 §7.2).
const PROBE_BLIND_US: u32 = 1_000_000;

/// The arrivals that one acknowledgement reports.
struct News {
    now: u32,
    /// ms since the segment was sent whose timestamp the peer echoes. `None` for bytes that it reports ahead of a hole: it
    /// echoes what was last in order (RFC 7323 §4.3), which says nothing of them.
    echo_age_ms: Option<u32>,
    /// RACK.min_RTT. The handshake is a sample, on the first flight the only one (RFC 8985 §6.2, step 1).
    min_rtt_us: u32,
    /// RACK.fack before it.
    before: Seq,
    highest: Seq,
    newest: Option<Newest>,
    bytes: u32,
    reordered: bool,
    /// SND.MAX when the last loss was seen.
    recover: Seq,
    /// Something below `recover` has arrived that was sent only once.
    original: bool,
}

impl News {
    /// RFC 8985 §6.2, steps 2 and 3.
    fn take(&mut self, start: Seq, span: &Span) {
        self.bytes += span.end.bytes_since(start);
        self.highest = self.highest.max(span.end);
        let rtt_us = self.now.wrapping_sub(span.at);
        if span.state & AGAIN != 0 {
            // Was it the first transmission that has arrived?
            if rtt_us < self.min_rtt_us || self.echo_age_ms.is_some_and(|age| age > rtt_us / 1000 + 1) {
                // Then it was late, not lost.
                self.reordered |= span.end.before(self.before);
                return;
            }
        } else {
            self.original |= !span.end.after(self.recover);
            self.reordered |= span.end.before(self.before);
        }
        if self.newest.is_none_or(|newest| sent_after(span, &newest)) {
            self.newest = Some(Newest { at: span.at, end: span.end, rtt_us });
        }
    }
}

/// RACK_sent_after, of a span.
fn sent_after(span: &Span, newest: &Newest) -> bool {
    let later = span.at.wrapping_sub(newest.at) as i32;
    later > 0 || (later == 0 && span.end.after(newest.end))
}

/// An acknowledgement on a flow with a scoreboard; before it SND.UNA was `una`.
#[inline]
pub(super) fn acknowledged(by: Loss, turn: &mut FlowTurn<'_>, s: &Segment, una: Seq) {
    let Some(scoreboard) = turn.state.scoreboards.by(by).get(turn.lines.recovery.scoreboard.get()) else { return };
    if scoreboard.clean && !s.reports() && !turn.t.has(RECOVERY) {
        scoreboard.advance(turn.t.snd_una());
        if turn.t.idle() {
            recovery::untrack(by, turn);
        } else if turn.t.snd_una() != una {
            arm_probe(by, turn, turn.t.snd_max());
        }
        return;
    }
    scored(by, turn, s, una);
}

#[cold]
fn scored(by: Loss, turn: &mut FlowTurn<'_>, s: &Segment, una: Seq) {
    let (lines, ack) = (turn.lines, turn.t.snd_una());
    let sack = s.sack(turn.state);
    let blocks = sack.as_slice();
    let twice = duplicate(blocks, ack);
    let Some(scoreboard) = turn.state.scoreboards.by(by).get(lines.recovery.scoreboard.get()) else { return };
    let mut news = News {
        now: turn.now.0 as u32,
        echo_age_ms: echo_age_ms(&turn.t, lines, turn.now, s),
        min_rtt_us: lines.rate.min_rtt_us.get(),
        before: scoreboard.highest,
        highest: scoreboard.highest,
        newest: scoreboard.newest,
        bytes: 0,
        reordered: false,
        recover: Seq(lines.addresses.recover.get()),
        original: false,
    };
    scoreboard.acknowledge(ack, |start, span| news.take(start, span));
    let cumulative = news.bytes;
    news.echo_age_ms = None;
    for &(start, end) in &blocks[usize::from(twice.is_some())..] {
        // Only outstanding bytes can be reported.
        let (start, end) = (Seq(start).max(ack), Seq(end));
        if start.before(end) && !end.after(turn.t.snd_max()) {
            scoreboard.report(start, end, |start, span| news.take(start, span));
        }
    }
    (scoreboard.highest, scoreboard.newest) = (news.highest.max(ack), news.newest);
    if ack != una {
        scoreboard.duplicates = 0;
    } else if news.bytes > cumulative {
        scoreboard.duplicates = scoreboard.duplicates.saturating_add(1);
        scoreboard.hystart.heard(news.now);
    }
    let repaired = probe_answered(scoreboard, ack, ack == una && blocks.is_empty(), twice);
    let stage = scoreboard.doubtful;
    let known = &lines.recovery.reordering;
    if news.reordered {
        known.set(by, known.get() | learnt::SEEN);
        lines.seldom.reorderings.add(by, 1);
    }
    if twice.is_some() {
        lines.seldom.duplicates.add(by, 1);
    }
    let mut spurious = twice.is_some_and(|block| arrived_twice(by, &turn.t, lines, block));
    spurious |= recovery::echoes_original(&turn.t, lines, ack, una, s);
    spurious |= stage == 2 && news.original;
    if spurious && turn.t.has(UNDO) {
        known.set(by, known.get() | learnt::SEEN);
        recovery::undo(by, turn);
    }
    let lost = detect(by, turn);
    recovery::count(by, &mut turn.state.scoreboards, &mut turn.t, lines);
    if repaired {
        recovery::repaired_by_probe(by, turn);
    }
    recovery::proceed(by, turn, news.bytes, lost, ack != una);
    doubt(by, turn, stage, ack != una);
    // The fate of a tail probe may show later.
    let probed = turn
        .state
        .scoreboards
        .by(by)
        .get(lines.recovery.scoreboard.get())
        .is_some_and(|scoreboard| scoreboard.probe.is_some());
    if turn.t.idle() && !probed {
        recovery::untrack(by, turn);
    }
}

/// The block that reports bytes which have come twice. It is below the acknowledgement, or a part of the second block
/// (RFC 2883 §4).
pub(super) fn duplicate(blocks: &[(u32, u32)], ack: Seq) -> Option<(Seq, Seq)> {
    let of = |&(start, end): &(u32, u32)| (Seq(start), Seq(end));
    let (start, end) = blocks.first().map(of)?;
    let inside = |(low, high): (Seq, Seq)| !start.before(low) && !end.after(high);
    (start.before(end) && (!end.after(ack) || blocks.get(1).map(of).is_some_and(inside))).then_some((start, end))
}

/// ms since the segment was sent whose timestamp the peer echoes.
fn echo_age_ms(t: &Tcb, lines: &Lines, now: Micros, s: &Segment) -> Option<u32> {
    (s.stamped() && t.has(TIMESTAMPS)).then(|| recovery::timestamp(lines, now.ms()).wrapping_sub(s.echo))
}

/// A segment was sent twice and arrived twice, so the reordering window was too small (RFC 8985 §6.2, step 4). True =
/// everything that was sent again in this recovery has arrived twice.
pub(super) fn arrived_twice(by: Loss, t: &Tcb, lines: &Lines, (start, end): (Seq, Seq)) -> bool {
    let line = &lines.recovery;
    let mut known = line.reordering.get();
    if known & learnt::ROUND == 0 || !t.snd_una().before(Seq(line.duplicate_round.get())) {
        let wider = (known & learnt::WIDER).saturating_add(1).min(learnt::WIDER);
        known = known & learnt::SEEN | wider | PERSIST << learnt::PERSIST_SHIFT | learnt::ROUND;
        line.duplicate_round.set(by, t.snd_max().0);
    }
    let ours =
        t.has(UNDO) && !start.before(Seq(line.undo_from.get())) && !end.after(Seq(lines.addresses.recover.get()));
    let left = line.undo_bytes.get();
    if ours && left != 0 {
        known |= learnt::SEEN;
        line.undo_bytes.set(by, left.saturating_sub(end.bytes_since(start)));
    }
    line.reordering.set(by, known);
    ours && left != 0 && line.undo_bytes.get() == 0
}

/// How long a segment may be late, µs (RFC 8985 §6.2, step 4).
fn reordering_window_us(t: &Tcb, lines: &Lines, scoreboard: &Scoreboard) -> u32 {
    let known = lines.recovery.reordering.get();
    if known & learnt::SEEN == 0 {
        let mss = u32::from(t.mss());
        let enough =
            scoreboard.duplicates >= DUP_THRESHOLD || scoreboard.bytes(SACKED) > (u32::from(DUP_THRESHOLD) - 1) * mss;
        if t.has(RECOVERY) || recovery::timed_out(t, lines) || enough {
            return 0;
        }
    }
    let window = u64::from((known & learnt::WIDER) + 1) * u64::from(lines.rate.min_rtt_us.get()) / 4;
    window.min(u64::from(lines.measures.srtt_us.get())) as u32
}

/// RFC 8985 §6.2, step 5. A span is lost if it was sent before the newest that has arrived, and is late by more than
/// the window. The timer runs for spans that may still come. Returns the bytes newly lost.
fn detect(by: Loss, turn: &mut FlowTurn<'_>) -> u32 {
    let (lines, now) = (turn.lines, turn.now.0 as u32);
    let FastState { scoreboards, wheel, .. } = &mut *turn.state;
    let Some(scoreboard) = scoreboards.by(by).get(lines.recovery.scoreboard.get()) else { return 0 };
    let window = reordering_window_us(&turn.t, lines, scoreboard);
    let Some(newest) = scoreboard.newest else { return 0 };
    let mut wait = 0;
    let lost = scoreboard.lose(|span| {
        if sent_after(span, &newest) || (span.at, span.end) == (newest.at, newest.end) {
            return false;
        }
        let left = span.at.wrapping_add(newest.rtt_us).wrapping_add(window).wrapping_sub(now) as i32;
        wait = wait.max(left);
        left <= 0
    });
    lines.rate.bytes_lost.add(by, u64::from(lost));
    scoreboard.reordering_timer = wait > 0;
    if wait > 0 {
        arm(by, wheel, &lines.recovery, turn.flow, turn.now, wait as u32);
    } else if scoreboard.bytes(SACKED | LOST) == 0 && scoreboard.probe.is_none() && !turn.t.has(RECOVERY) {
        arm_probe(by, turn, turn.t.snd_max());
    } else {
        lines.recovery.deadline.set(by, 0);
    }
    lost
}

/// Arms the tail probe's timer (RFC 8985 §7.2) for an SND.MAX of `snd_max`. A single segment has no such timer, because
/// its probe has to wait for a delayed acknowledgement. The slow path's timers do that (`ToFast::ProbeTail`).
#[inline]
pub(super) fn arm_probe(by: Loss, turn: &mut FlowTurn<'_>, snd_max: Seq) {
    let FlowTurn { state, lines, t, flow, now } = turn;
    let flight = snd_max.bytes_since(t.snd_una());
    if flight <= u32::from(t.mss()) || t.snd_wnd() == 0 || recovery::timed_out(t, lines) {
        lines.recovery.deadline.set(by, 0);
        return;
    }
    let wait = match lines.measures.srtt_us.get() {
        0 => PROBE_BLIND_US,
        srtt => srtt.min(1 << 28) * 2 + PROBE_MARGIN_US,
    };
    arm(by, &mut state.wheel, &lines.recovery, *flow, *now, wait);
}

/// Takes an acknowledgement for an outstanding tail probe (RFC 8985 §7.4.2). True = the probe has repaired a loss.
fn probe_answered(scoreboard: &mut Scoreboard, ack: Seq, bare_duplicate: bool, twice: Option<(Seq, Seq)>) -> bool {
    let Some((end, again)) = scoreboard.probe.filter(|(end, _)| !ack.before(*end)) else { return false };
    let arrived_twice = twice.is_some_and(|(_, last)| last == end);
    if !again || arrived_twice || bare_duplicate || ack.after(end) {
        scoreboard.probe = None;
    }
    again && !arrived_twice && ack.after(end)
}

/// Judges a time-out without timestamps (F-RTO, RFC 5682 §3.1). If the first acknowledgement advances, new data go out
/// instead of repairs. If the next one acknowledges something that was never sent again, the time-out was spurious (see
/// `scored`), else not.
fn doubt(by: Loss, turn: &mut FlowTurn<'_>, stage: u8, advanced: bool) {
    let Some(scoreboard) = turn.state.scoreboards.by(by).get(turn.lines.recovery.scoreboard.get()) else { return };
    if stage == 0 || scoreboard.doubtful == 0 {
        return;
    }
    let t = &mut turn.t;
    let unsent = t.snd_queued().after(t.snd_nxt()) && t.snd_wnd() > t.flight();
    if stage == 1 && advanced && unsent && recovery::timed_out(t, turn.lines) {
        scoreboard.doubtful = 2;
        t.clear(by, bits::LOST);
        t.congestion(by).cwnd = recovery::pipe(t, turn.lines).saturating_add(2 * u32::from(t.mss()));
    } else {
        scoreboard.doubtful = 0;
        recovery::count(by, &mut turn.state.scoreboards, t, turn.lines);
    }
}

/// A time as `Recovery::deadline` keeps it.
#[inline]
fn word(at: Micros) -> u32 {
    at.0 as u32 | 1
}

/// Sets the flow's deadline to `delay_us` from now. Every acknowledgement moves the deadline. So a timer on the wheel
/// that comes due before it stays there, and moves when it comes due.
#[inline]
fn arm(by: Loss, wheel: &mut Owned<Wheel>, line: &Recovery, flow: FlowId, now: Micros, delay_us: u32) {
    let at = now.after(u64::from(delay_us));
    line.deadline.set(by, word(at));
    let queued = line.queued.get();
    if queued == 0 || (queued.wrapping_sub(word(at)) as i32) > 0 {
        line.queued.set(by, word(at));
        wheel.by(by).set(Timer::Recovery(flow), at);
    }
}

/// The flow's timer on the wheel has come due. True = the deadline has passed, and the flow may have something to send.
pub(super) fn due(by: Loss, turn: &mut FlowTurn<'_>) -> bool {
    let line = &turn.lines.recovery;
    line.queued.set(by, 0);
    let deadline = line.deadline.get();
    if deadline == 0 || !turn.t.has(TRACKED) || turn.t.has(DEAD) {
        return false;
    }
    let left = deadline.wrapping_sub(word(turn.now)) as i32;
    if left > 0 {
        arm(by, &mut turn.state.wheel, line, turn.flow, turn.now, left as u32);
        return false;
    }
    line.deadline.set(by, 0);
    late(by, turn);
    true
}

/// A deadline has passed: segments are late (RFC 8985 §6.3), or nothing has come back at all (§7.3).
fn late(by: Loss, turn: &mut FlowTurn<'_>) {
    let Some(scoreboard) = turn.state.scoreboards.by(by).get(turn.lines.recovery.scoreboard.get()) else { return };
    if scoreboard.reordering_timer {
        let lost = detect(by, turn);
        recovery::count(by, &mut turn.state.scoreboards, &mut turn.t, turn.lines);
        recovery::proceed(by, turn, 0, lost, false);
    } else if scoreboard.clean && !turn.t.any(RECOVERY) && !turn.t.idle() && turn.t.snd_wnd() != 0 {
        turn.t.set(by, TAIL);
    }
}

#[cfg(test)]
mod tests;
