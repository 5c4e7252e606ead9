//! What an acceptable acknowledgement does: frees the send ring, measures the round trip, moves the windows, repairs a loss
//! (RFC 5681, RFC 6582, RFC 6298).

use super::protocol::Turn;
use super::{ecn, hystart, rack, recovery};
use crate::flow::Window;
use crate::flow::flow_flags::{ECN, FIN_ACKED, RECOVERY};
use crate::messages::{ToSlow, event};
use crate::seq::Seq;
use crate::table::{Measures, bits};
use towpath_wire::segment::{Segment, flags};

/// An acknowledgement between SND.UNA and SND.MAX.
#[inline]
pub(super) fn take(turn: &mut Turn<'_>, s: &Segment) {
    let old_wnd = turn.t.snd_wnd;
    window(turn, s);
    let ack = Seq(s.ack);
    let (una, flight) = (turn.t.snd_una, turn.t.snd_max.bytes_since(turn.t.snd_una));
    if ack.after(una) {
        if turn.t.has(bits::UNDO) && !turn.t.has(bits::TRACKED) {
            undo_if_needless(turn, s, ack);
        }
        advance(turn, ack);
        if turn.t.has(bits::TRACKED) {
            rack::acknowledged(turn, s, una);
        }
    } else if turn.t.has(bits::TRACKED) {
        rack::acknowledged(turn, s, una);
    } else if turn.t.has(bits::UNDO) && !s.options.sack.is_empty() {
        report_after_recovery(turn, s);
    } else if s.payload_len == 0
        && s.flags & flags::FIN == 0
        && !turn.t.idle()
        && turn.t.snd_wnd == old_wnd
        && old_wnd != 0
    {
        // RFC 5681 §2. At a closed window it is the answer to a probe.
        duplicate(turn);
    }
    let echo = s.flags & flags::ECE != 0 && turn.t.has(ECN);
    if echo || turn.t.has(bits::ECN_REDUCED) {
        ecn::echoed(turn, s, turn.t.snd_una.bytes_since(una), flight);
    }
}

/// RFC 9293 §3.10.7.4: the window, an unsigned number (MUST-1), is taken from the newest segment. (WL2 never decides: ACKs below SND.UNA
/// do not come here.) One that acknowledges something new is the newest even if its own data is sent again, below WL1: the window that goes with the old
/// SND.UNA must not be added to the new one.
#[inline]
fn window(turn: &mut Turn<'_>, s: &Segment) {
    let t = &mut turn.t;
    if Seq(s.seq).before(t.snd_wl1) && !Seq(s.ack).after(t.snd_una) {
        return;
    }
    t.snd_wl1 = Seq(s.seq);
    let wnd = u32::from(s.window) << t.shifts.peer();
    if wnd != t.snd_wnd {
        t.snd_wnd = wnd;
        let max = &turn.lines.measures.max_wnd;
        if wnd > max.get() {
            max.set(wnd);
        }
    }
}

/// New data (or the FIN) acknowledged.
#[inline]
fn advance(turn: &mut Turn<'_>, ack: Seq) {
    let m = &turn.lines.measures;
    let t = &mut turn.t;
    let flight = t.snd_max.bytes_since(t.snd_una);
    let acked = ack.bytes_since(t.snd_una);
    let mut bytes = acked;
    t.snd_una = ack;
    t.snd_nxt = t.snd_nxt.max(ack);
    // What was to be sent again has arrived.
    t.flags &= !bits::RESEND;
    if ack.after(t.snd_queued) {
        // Only the FIN is beyond the data.
        bytes -= 1;
        t.flags |= FIN_ACKED;
        turn.state.outbox.push_back(ToSlow::Closing(turn.flow));
    }
    m.bytes_acked.add(u64::from(bytes));
    if t.has(bits::TIMING) && !ack.before(Seq(m.rtt_seq.get())) {
        t.flags &= !bits::TIMING;
        let sample_us = (turn.now.0 as u32).wrapping_sub(m.rtt_at.get());
        round_trip(m, sample_us);
        turn.lines.rate.round_trip(turn.now.0, sample_us);
    }
    if bytes != 0 {
        turn.state.raise(t, turn.flow, event::ROOM);
    }
    if t.has(RECOVERY) {
        // With a scoreboard that is the business of `rack`.
        if !t.has(bits::TRACKED) {
            recovering(turn, ack, acked);
        }
        return;
    }
    t.acks.set_seen(0);
    if t.has(bits::RECOVER_SET) && ack.after(Seq(turn.lines.identity.recover.get())) {
        t.flags &= !bits::RECOVER_SET;
    }
    grow(turn, ack, bytes, flight);
}

/// RFC 6298 §2, in µs.
pub(super) fn round_trip(m: &Measures, sample_us: u32) {
    let r = sample_us.clamp(1, 1 << 28);
    let srtt = m.srtt_us.get();
    if srtt == 0 {
        m.srtt_us.set(r);
        m.rttvar_us.set(r / 2);
        return;
    }
    let var = m.rttvar_us.get();
    m.rttvar_us.set(var - var / 4 + srtt.abs_diff(r) / 4);
    m.srtt_us.set((srtt - srtt / 8 + r / 8).max(1));
}

/// Growth between two decisions of the slow path: slow start and congestion avoidance (RFC 9293 §3.8.2 MUST-19), counted in bytes
/// (RFC 5681 §3.1, RFC 3465),
/// and only if it was this window that held the sender back (RFC 7661 §1).
#[inline]
fn grow(turn: &mut Turn<'_>, ack: Seq, bytes: u32, flight: u32) {
    let (t, m) = (&mut turn.t, &turn.lines.measures);
    let mss = u32::from(t.mss);
    let ssthresh = m.ssthresh.get();
    if t.cwnd < ssthresh {
        if flight.saturating_mul(2) > t.cwnd {
            let searches = ssthresh == Window::SEARCH && t.has(bits::TRACKED);
            let growth = if searches { hystart::growth(turn, ack) } else { m.growth() };
            let t = &mut turn.t;
            let more = (u64::from(bytes) * u64::from(growth)) >> 8;
            t.cwnd = t.cwnd.saturating_add(more as u32).min(ssthresh.max(t.cwnd.saturating_add(mss)));
        }
    } else if flight.saturating_add(mss) > t.cwnd {
        // `growth`/256 MSS per window, but in steps of one MSS, so that fast growth makes no bursts.
        let more = (u64::from(bytes) * u64::from(m.growth())) >> 8;
        let grown = m.grown.get().saturating_add(more as u32);
        if grown < t.cwnd {
            m.grown.set(grown);
            return;
        }
        let steps = grown / t.cwnd.max(1);
        m.grown.set(grown % t.cwnd.max(1));
        t.cwnd = t.cwnd.saturating_add(steps.saturating_mul(mss));
    }
}

/// Without a scoreboard: was the repair needless?
#[cold]
fn undo_if_needless(turn: &mut Turn<'_>, s: &Segment, ack: Seq) {
    if recovery::echoes_original(&turn.t, turn.lines, ack, turn.t.snd_una, s) {
        recovery::undo(turn.state, &mut turn.t, turn.lines, turn.flow);
    }
}

/// Everything is acknowledged, or there is but one segment out: a report can only be of what came twice (RFC 2883).
#[cold]
fn report_after_recovery(turn: &mut Turn<'_>, s: &Segment) {
    if let Some(block) = rack::duplicate(s.options.sack.as_slice(), turn.t.snd_una)
        && rack::arrived_twice(&mut turn.t, turn.lines, block)
    {
        recovery::undo(turn.state, &mut turn.t, turn.lines, turn.flow);
    }
}

/// A duplicate acknowledgement: the third means a loss (RFC 5681 §3.2), unless it echoes an older repair (RFC 6582 §4.1).
#[cold]
fn duplicate(turn: &mut Turn<'_>) {
    let id = &turn.lines.identity;
    let t = &mut turn.t;
    let mss = u32::from(t.mss);
    t.acks.set_seen(t.acks.seen() + 1);
    if t.has(RECOVERY) {
        // A segment has left the network.
        t.cwnd = t.cwnd.saturating_add(mss);
        return;
    }
    if t.acks.seen() != 3 {
        return;
    }
    if t.has(bits::RECOVER_SET) && !t.snd_una.after(Seq(id.recover.get())) {
        return;
    }
    let ssthresh = recovery::enter(turn.state, t, turn.lines, turn.flow);
    t.cwnd = ssthresh.saturating_add(3 * mss);
    t.flags |= bits::RESEND;
    turn.lines.rate.bytes_lost.add(u64::from(mss));
}

/// RFC 6582 §3.2, step 3.
#[cold]
fn recovering(turn: &mut Turn<'_>, ack: Seq, acked: u32) {
    let t = &mut turn.t;
    let mss = u32::from(t.mss);
    if ack.before(Seq(turn.lines.identity.recover.get())) {
        // Partial: the next hole. Deflate by what has left, but allow one new segment.
        turn.lines.rate.bytes_lost.add(u64::from(mss));
        t.flags |= bits::RESEND;
        t.cwnd = t.cwnd.saturating_sub(acked).max(mss);
        if acked >= mss {
            t.cwnd = t.cwnd.saturating_add(mss);
        }
        return;
    }
    let flight = t.snd_max.bytes_since(t.snd_una);
    t.cwnd = turn.lines.measures.ssthresh.get().min(flight.max(mss).saturating_add(mss));
    t.acks.set_seen(0);
    t.flags &= !RECOVERY;
}
