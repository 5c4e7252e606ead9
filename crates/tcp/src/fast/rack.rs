//! Losses found by time: what an acknowledgement says about the scoreboard, the reordering timer, and the tail probe (RFC 8985).

use super::protocol::Turn;
use super::scoreboard::{AGAIN, Board, LOST, Newest, SACKED, Span};
use super::wheel::{Timer, Wheel};
use super::{State, owned, post, recovery};
use crate::flow::FlowId;
use crate::flow::flow_flags::{RECOVERY, TIMESTAMPS};
use crate::seq::Seq;
use crate::table::{FlowTable, Lines, Recovery, Tcb, bits};
use crate::time::Micros;
use towpath_wire::segment::Segment;

/// Reported segments that mean a loss while no reordering has been seen (RFC 8985 §5.3: RACK.dupthresh).
const DUP_THRESHOLD: u8 = 3;
/// Recoveries without a needless retransmission after which the reordering window shrinks again (RFC 8985 §5.3).
const PERSIST: u32 = 16;
/// Added to two round trips before the tail is probed, µs: the peer may hold its acknowledgement back, and clocks are coarse
/// (Linux: 2 ms).
const PROBE_MARGIN_US: u32 = 2000;
/// Wait before the tail is probed when no round trip has been measured, µs (RFC 8985 §7.2).
const PROBE_BLIND_US: u32 = 1_000_000;

/// `Recovery::reordering`: what has been learnt about reordering on this path.
mod learnt {
    /// Low byte: windows of a quarter of the round trip (RACK.reo_wnd_mult), less one.
    pub const WIDER: u32 = 0xff;
    /// Next byte: recoveries until it shrinks (RACK.reo_wnd_persist).
    pub const PERSIST_SHIFT: u32 = 8;
    /// Some reordering has been seen.
    pub const SEEN: u32 = crate::table::Recovery::REORDERING_SEEN;
    /// `Recovery::duplicate_round` is to be reached before the window grows again.
    pub const ROUND: u32 = 1 << 17;
}

/// What one acknowledgement delivers.
struct News {
    now: u32,
    /// ms since the segment was sent that the peer echoes, with timestamps.
    echo_age_ms: Option<u32>,
    min_rtt_us: u32,
    /// RACK.fack before it.
    before: Seq,
    highest: Seq,
    newest: Option<Newest>,
    bytes: u32,
    reordered: bool,
    /// End of what was out when the last loss was seen.
    recover: Seq,
    /// Something of that has arrived that was sent only once.
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
pub(super) fn acknowledged(turn: &mut Turn<'_>, s: &Segment, una: Seq) {
    let Some(board) = turn.state.boards.get(turn.lines.recovery.board.get()) else { return };
    if board.clean && s.options.sack.is_empty() && !turn.t.has(RECOVERY) {
        board.advance(turn.t.snd_una);
        if turn.t.idle() {
            turn.state.untrack(&mut turn.t, turn.lines);
        } else if turn.t.snd_una != una {
            arm_probe(turn.state, &turn.t, turn.lines, turn.flow, turn.now);
        }
        return;
    }
    scored(turn, s, una);
}

#[cold]
fn scored(turn: &mut Turn<'_>, s: &Segment, una: Seq) {
    let (lines, ack) = (turn.lines, turn.t.snd_una);
    let blocks = s.options.sack.as_slice();
    let twice = duplicate(blocks, ack);
    let Some(board) = turn.state.boards.get(lines.recovery.board.get()) else { return };
    let mut news = News {
        now: turn.now.0 as u32,
        echo_age_ms: echo_age_ms(&turn.t, lines, turn.now, s),
        min_rtt_us: min_rtt_us(lines),
        before: board.highest,
        highest: board.highest,
        newest: board.newest,
        bytes: 0,
        reordered: false,
        recover: Seq(lines.identity.recover.get()),
        original: false,
    };
    board.acknowledge(ack, |start, span| news.take(start, span));
    let cumulative = news.bytes;
    for &(start, end) in &blocks[usize::from(twice.is_some())..] {
        // Nothing but what is outstanding can be reported.
        let (start, end) = (Seq(start).max(ack), Seq(end));
        if start.before(end) && !end.after(turn.t.snd_max) {
            board.report(start, end, |start, span| news.take(start, span));
        }
    }
    (board.highest, board.newest) = (news.highest.max(ack), news.newest);
    if ack != una {
        board.duplicates = 0;
    } else if news.bytes > cumulative {
        board.duplicates = board.duplicates.saturating_add(1);
        board.hystart.heard(news.now, news.min_rtt_us);
    }
    let repaired = probe_answered(board, ack, ack == una && blocks.is_empty(), twice);
    let stage = board.doubtful;
    if news.reordered {
        let learnt = &lines.recovery.reordering;
        learnt.set(learnt.get() | learnt::SEEN);
    }
    let mut spurious = twice.is_some_and(|block| arrived_twice(&mut turn.t, lines, block));
    spurious |= recovery::echoes_original(&turn.t, lines, ack, una, s);
    spurious |= stage == 2 && news.original;
    if spurious && turn.t.has(bits::UNDO) {
        let learnt = &lines.recovery.reordering;
        learnt.set(learnt.get() | learnt::SEEN);
        recovery::undo(turn.state, &mut turn.t, lines, turn.flow);
    }
    let lost = detect(turn);
    recovery::count(&mut turn.state.boards, &mut turn.t, lines);
    if repaired {
        recovery::repaired_by_probe(turn);
    }
    recovery::proceed(turn, news.bytes, lost, ack != una);
    doubt(turn, stage, ack != una);
    // What has become of a tail probe may show later.
    let probed = turn.state.boards.get(lines.recovery.board.get()).is_some_and(|board| board.probe.is_some());
    if turn.t.idle() && !probed {
        turn.state.untrack(&mut turn.t, lines);
    }
}

/// The block that reports what has come twice: it is below the acknowledgement, or a part of the second (RFC 2883 §4).
pub(super) fn duplicate(blocks: &[(u32, u32)], ack: Seq) -> Option<(Seq, Seq)> {
    let of = |&(start, end): &(u32, u32)| (Seq(start), Seq(end));
    let (start, end) = blocks.first().map(of)?;
    let inside = |(low, high): (Seq, Seq)| !start.before(low) && !end.after(high);
    (start.before(end) && (!end.after(ack) || blocks.get(1).map(of).is_some_and(inside))).then_some((start, end))
}

/// ms since the segment that the peer echoes was sent.
fn echo_age_ms(t: &Tcb, lines: &Lines, now: Micros, s: &Segment) -> Option<u32> {
    let ts = s.options.timestamps.filter(|_| t.has(TIMESTAMPS))?;
    Some(recovery::timestamp(lines, now).wrapping_sub(ts.echo))
}

fn min_rtt_us(lines: &Lines) -> u32 {
    match lines.rate.min_rtt_us.get() {
        0 => lines.measures.srtt_us.get() / 2,
        rtt => rtt,
    }
}

/// Something was sent twice and arrived twice: the reordering window was too small (RFC 8985 §6.2, step 4). True = all that was sent
/// again in this recovery has arrived twice.
pub(super) fn arrived_twice(t: &mut Tcb, lines: &Lines, (start, end): (Seq, Seq)) -> bool {
    let line = &lines.recovery;
    let mut learnt = line.reordering.get();
    if learnt & learnt::ROUND == 0 || !t.snd_una.before(Seq(line.duplicate_round.get())) {
        let wider = (learnt & learnt::WIDER).saturating_add(1).min(learnt::WIDER);
        learnt = learnt & learnt::SEEN | wider | PERSIST << learnt::PERSIST_SHIFT | learnt::ROUND;
        line.duplicate_round.set(t.snd_max.0);
    }
    let ours =
        t.has(bits::UNDO) && !start.before(Seq(line.undo_from.get())) && !end.after(Seq(lines.identity.recover.get()));
    let left = line.undo_bytes.get();
    if ours && left != 0 {
        learnt |= learnt::SEEN;
        line.undo_bytes.set(left.saturating_sub(end.bytes_since(start)));
    }
    line.reordering.set(learnt);
    ours && left != 0 && line.undo_bytes.get() == 0
}

/// A recovery is over: after 16 of them the window shrinks to a quarter of the round trip again (RFC 8985 §6.2, step 4).
pub(super) fn recovered(lines: &Lines) {
    let word = &lines.recovery.reordering;
    let learnt = word.get();
    let persist = (learnt >> learnt::PERSIST_SHIFT) & 0xff;
    if persist > 1 {
        word.set(learnt - (1 << learnt::PERSIST_SHIFT));
    } else {
        word.set(learnt & (learnt::SEEN | learnt::ROUND));
    }
}

/// How long a segment may be late, µs (RFC 8985 §6.2, step 4).
fn reordering_window_us(t: &Tcb, lines: &Lines, board: &Board) -> u32 {
    let learnt = lines.recovery.reordering.get();
    if learnt & learnt::SEEN == 0 {
        let mss = u32::from(t.mss);
        let enough = board.duplicates >= DUP_THRESHOLD || board.bytes(SACKED) > (u32::from(DUP_THRESHOLD) - 1) * mss;
        if t.has(RECOVERY) || recovery::timed_out(t, lines) || enough {
            return 0;
        }
    }
    let window = u64::from((learnt & learnt::WIDER) + 1) * u64::from(min_rtt_us(lines)) / 4;
    window.min(u64::from(lines.measures.srtt_us.get())) as u32
}

/// RFC 8985 §6.2, step 5: what was sent before the newest that has arrived, and is late by more than the window, is lost. For what may
/// still come the timer runs. Returns the bytes newly lost.
fn detect(turn: &mut Turn<'_>) -> u32 {
    let (lines, now) = (turn.lines, turn.now.0 as u32);
    let State { boards, wheel, .. } = &mut *turn.state;
    let Some(board) = boards.get(lines.recovery.board.get()) else { return 0 };
    let window = reordering_window_us(&turn.t, lines, board);
    let Some(newest) = board.newest else { return 0 };
    let mut wait = 0;
    let lost = board.lose(|span| {
        if sent_after(span, &newest) || (span.at, span.end) == (newest.at, newest.end) {
            return false;
        }
        let left = span.at.wrapping_add(newest.rtt_us).wrapping_add(window).wrapping_sub(now) as i32;
        wait = wait.max(left);
        left <= 0
    });
    lines.rate.bytes_lost.add(u64::from(lost));
    board.reordering_timer = wait > 0;
    if wait > 0 {
        arm(wheel, &lines.recovery, turn.flow, turn.now, wait as u32);
    } else if board.bytes(SACKED | LOST) == 0 && board.probe.is_none() && !turn.t.has(RECOVERY) {
        arm_probe(turn.state, &turn.t, lines, turn.flow, turn.now);
    } else {
        lines.recovery.deadline.set(0);
    }
    lost
}

/// The tail probe's timer (RFC 8985 §7.2). Not for a single segment: its probe has to wait for a delayed acknowledgement, so the slow path's
/// timers will do (`ToFast::ProbeTail`).
#[inline]
pub(super) fn arm_probe(state: &mut State, t: &Tcb, lines: &Lines, flow: FlowId, now: Micros) {
    let flight = t.snd_max.bytes_since(t.snd_una);
    if flight <= u32::from(t.mss) || t.snd_wnd == 0 || recovery::timed_out(t, lines) {
        lines.recovery.deadline.set(0);
        return;
    }
    let wait = match lines.measures.srtt_us.get() {
        0 => PROBE_BLIND_US,
        srtt => srtt.min(1 << 28) * 2 + PROBE_MARGIN_US,
    };
    arm(&mut state.wheel, &lines.recovery, flow, now, wait);
}

/// What an acknowledgement says about an outstanding tail probe (RFC 8985 §7.4.2). True = the probe has repaired a loss.
fn probe_answered(board: &mut Board, ack: Seq, bare_duplicate: bool, twice: Option<(Seq, Seq)>) -> bool {
    let Some((end, again)) = board.probe.filter(|(end, _)| !ack.before(*end)) else { return false };
    let arrived_twice = twice.is_some_and(|(_, last)| last == end);
    if !again || arrived_twice || bare_duplicate || ack.after(end) {
        board.probe = None;
    }
    again && !arrived_twice && ack.after(end)
}

/// After a time-out without timestamps: was it spurious? (F-RTO, RFC 5682 §3.1.) If the first acknowledgement advances, new data go
/// out instead of repairs; if then something is acknowledged that was never sent again, it was (`scored`); if not, it was not.
fn doubt(turn: &mut Turn<'_>, stage: u8, advanced: bool) {
    let Some(board) = turn.state.boards.get(turn.lines.recovery.board.get()) else { return };
    if stage == 0 || board.doubtful == 0 {
        return;
    }
    let t = &mut turn.t;
    let unsent = t.snd_queued.after(t.snd_nxt) && t.snd_wnd > t.snd_max.bytes_since(t.snd_una);
    if stage == 1 && advanced && unsent && recovery::timed_out(t, turn.lines) {
        board.doubtful = 2;
        t.flags &= !bits::LOST;
        t.cwnd = recovery::pipe(t, turn.lines).saturating_add(2 * u32::from(t.mss));
    } else {
        board.doubtful = 0;
        recovery::count(&mut turn.state.boards, t, turn.lines);
    }
}

/// A time as `Recovery::deadline` keeps it.
#[inline]
fn word(at: Micros) -> u32 {
    at.0 as u32 | 1
}

/// The flow is to be looked at `delay_us` from now, and no earlier. As every acknowledgement moves that, the timer on the wheel is left
/// where it is if it comes due before, and is moved then.
#[inline]
fn arm(wheel: &mut Wheel, line: &Recovery, flow: FlowId, now: Micros, delay_us: u32) {
    let at = now.after(u64::from(delay_us));
    line.deadline.set(word(at));
    let queued = line.queued.get();
    if queued == 0 || (queued.wrapping_sub(word(at)) as i32) > 0 {
        line.queued.set(word(at));
        wheel.set(Timer::Recovery(flow), at);
    }
}

/// The flow's timer on the wheel has come due.
pub(super) fn due(table: &FlowTable, state: &mut State, now: Micros, flow: FlowId) {
    let Some((lines, t)) = owned(table, state, flow) else { return };
    let line = &lines.recovery;
    line.queued.set(0);
    let deadline = line.deadline.get();
    if deadline == 0 || !t.has(bits::TRACKED) || t.has(bits::DEAD) {
        return;
    }
    let left = deadline.wrapping_sub(word(now)) as i32;
    if left > 0 {
        arm(&mut state.wheel, line, flow, now, left as u32);
        return;
    }
    line.deadline.set(0);
    let mut turn = Turn { state: &mut *state, lines, t, flow, now };
    late(&mut turn);
    let mut t = turn.t;
    post::flow(state, now, flow, lines, &mut t);
    lines.protocol.store(&t);
}

/// A deadline has passed: segments are late (RFC 8985 §6.3), or nothing has come back at all (§7.3).
fn late(turn: &mut Turn<'_>) {
    let Some(board) = turn.state.boards.get(turn.lines.recovery.board.get()) else { return };
    if board.reordering_timer {
        let lost = detect(turn);
        recovery::count(&mut turn.state.boards, &mut turn.t, turn.lines);
        recovery::proceed(turn, 0, lost, false);
    } else if board.clean && !turn.t.any(RECOVERY) && !turn.t.idle() && turn.t.snd_wnd != 0 {
        turn.t.flags |= bits::TAIL;
    }
}
