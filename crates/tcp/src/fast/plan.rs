//! The next segment that a flow may send: windows, Nagle, silly windows. A pure function of its lines.
//!
//! A port may cut large frames itself. Then the next segment can be a super-segment: several full segments that go
//! out together, and are timed together. Each part of it is acknowledged, lost and sent again alone.

use super::rare::rare;
use super::{marks, recovery};
use crate::seq::Seq;
use crate::table::Lines;
use crate::table::bits::{CORK, FIN_WANTED, LOST, MARKED, NODELAY, RECOVERY, SCORED, URGENT_OUT};
use crate::table::tcb::Tcb;

/// One segment to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    /// Its first byte.
    pub seq: Seq,
    /// Bytes of payload.
    pub len: u32,
    /// With FIN.
    pub fin: bool,
    /// Last of what is queued.
    pub push: bool,
}

impl Plan {
    /// The sequence number after the segment.
    #[inline]
    pub fn end(&self) -> Seq {
        self.seq.add(self.len + u32::from(self.fin))
    }
}

/// The next segment from SND.NXT on, if the rules let one go (RFC 9293 §3.8.6.2.1, RFC 5681 §3).
#[inline(always)]
pub(super) fn next(t: &Tcb, lines: &Lines) -> Option<Plan> {
    largest::<false>(t, lines, 0)
}

/// [`next`], but a super-segment of up to `most` bytes if the rules let more than one segment go.
#[inline(always)]
pub(super) fn largest<const PREDICTED: bool>(t: &Tcb, lines: &Lines, super_bytes: u32) -> Option<Plan> {
    if rare::<PREDICTED>(|| t.snd_nxt().after(t.snd_queued())) {
        return None;
    }
    let unsent = t.snd_queued().bytes_since(t.snd_nxt());
    let fin_wanted = t.has(FIN_WANTED);
    if unsent == 0 && !fin_wanted {
        return None;
    }
    let mss = u32::from(t.mss());
    let flight = t.snd_nxt().bytes_since(t.snd_una());
    // Limited transmit (RFC 3042 §2): the first two duplicate ACKs let a segment each through that was never sent
    // before.
    let limited = if !rare::<PREDICTED>(|| t.in_a_row() != 0) || t.has(RECOVERY) || t.snd_nxt().before(t.snd_max()) {
        0
    } else {
        t.in_a_row().min(2)
    };
    let extra = u32::from(limited) * mss;
    // A window that has shrunk below what is out lets nothing new go (RFC 9293 §3.8.6, MUST-34, SHLD-15).
    let by_peer = t.snd_wnd().saturating_sub(flight);
    let (left, most) =
        if rare::<PREDICTED>(|| t.any(SCORED | MARKED)) { seldom(t, lines, unsent) } else { (0, unsent) };
    let by_network = t.cwnd().saturating_add(extra).saturating_sub(flight.saturating_sub(left));
    // The segment is as full as possible (RFC 9293 SHLD-28).
    let allowed = most.min(by_peer).min(by_network);
    let several_go = rare::<PREDICTED>(|| super_bytes > mss && allowed > mss);
    let len = if several_go { several(t, allowed, super_bytes, most) } else { allowed.min(mss) };
    let last = len == most;
    let fin = last && fin_wanted && len == unsent && by_peer > len;
    if len == 0 && !fin {
        return None;
    }
    let again = t.snd_nxt().before(t.snd_max());
    if len < mss && !fin && !again && !partial_may_go::<PREDICTED>(t, lines, len, last, by_network) {
        return None;
    }
    // PSH is on the last of what is queued, however many writes that were (RFC 9293 §3.9.1.2, MUST-61, SHLD-27).
    Some(Plan { seq: t.snd_nxt(), len, fin, push: last })
}

/// All that is queued as one segment, if nothing is out and both windows have room for it. No rule holds such a segment
/// back, so this is what [`next`] says, for less.
#[inline(always)]
pub(super) fn whole(t: &Tcb, lines: &Lines) -> Option<Plan> {
    let len = t.snd_queued().bytes_since(t.snd_nxt());
    let goes = len != 0
        && t.idle()
        && t.snd_nxt() == t.snd_max()
        && len <= u32::from(t.mss()).min(t.snd_wnd()).min(t.cwnd())
        && t.in_a_row() == 0
        && !t.any(FIN_WANTED | CORK)
        && !t.any(RECOVERY | SCORED | MARKED);
    let plan = goes.then_some(Plan { seq: t.snd_nxt(), len, fin: false, push: true });
    debug_assert!(plan.is_none() || plan == next(t, lines));
    plan
}

/// The length of a super-segment: full segments, and the rest of what is queued if that need not wait for their
/// acknowledgement.
#[cold]
#[inline(never)]
fn several(t: &Tcb, allowed: u32, super_bytes: u32, most: u32) -> u32 {
    let mss = u32::from(t.mss());
    // Each of these is cut, sent again or marked on its own.
    if t.has(URGENT_OUT) || t.has(MARKED) || t.snd_nxt().before(t.snd_max()) {
        return mss;
    }
    let len = allowed.min(super_bytes);
    let rest_goes = len == most && ((t.has(NODELAY) && !t.has(CORK)) || t.has(FIN_WANTED));
    if rest_goes { len } else { len - len % mss }
}

/// Bytes in flight that have left the network, and how many of the unsent bytes one segment may have for the marks of
/// the application.
#[cold]
#[inline(never)]
fn seldom(t: &Tcb, lines: &Lines, unsent: u32) -> (u32, u32) {
    let left = if t.has(SCORED) { lines.recovery.left.get() } else { 0 };
    (left, if t.has(MARKED) { marks::limit(t, lines, unsent) } else { unsent })
}

/// True if this new segment may go although it is not a full one (RFC 9293 §3.8.6.2.1, MUST-38).
#[inline(always)]
fn partial_may_go<const PREDICTED: bool>(t: &Tcb, lines: &Lines, len: u32, last: bool, by_network: u32) -> bool {
    if last {
        // Nagle (RFC 9293 §3.7.4, SHLD-7, MAY-16), which NODELAY switches off (MUST-17). Urgent data do not wait (as
        // Linux).
        let nagle = t.has(NODELAY) || t.has(URGENT_OUT) || t.idle();
        let marked = rare::<PREDICTED>(|| t.has(MARKED));
        return (nagle && !t.has(CORK)) || (marked && marks::let_go(t, lines, t.snd_nxt().add(len), nagle));
    }
    // A window cuts the segment, so it waits for the window to open. But if nothing is out, nothing opens the window.
    // Then the segment goes in two cases: our own congestion window cuts it, or it is as large as half of the peer's
    // buffer.
    t.idle() && (len == by_network || len >= lines.measures.max_wnd.get() / 2)
}

/// True if the window lets a repair go. A whole segment has to fit, because the proportional rate reduction saves up
/// for it.
#[inline]
pub(super) fn repair_may_go(t: &Tcb, lines: &Lines) -> bool {
    if !t.has(LOST) {
        return false;
    }
    let pipe = recovery::pipe(t, lines);
    pipe == 0 || t.cwnd().saturating_sub(pipe) >= u32::from(t.mss())
}

/// The segment to be sent again from SND.UNA: a lost one, or a window probe of `limit` bytes. No window stops it (RFC
/// 9293 §3.8.6, MAY-7).
pub(super) fn first(t: &Tcb, lines: &Lines, limit: u32) -> Option<Plan> {
    again(t, lines, t.snd_una(), limit)
}

/// The same from `seq` on.
pub(super) fn again(t: &Tcb, lines: &Lines, seq: Seq, limit: u32) -> Option<Plan> {
    let data = t.snd_queued().distance(seq);
    if data < 0 {
        return None;
    }
    let len = marks::within_record(t, lines, seq, (data as u32).min(limit));
    let last = len == data as u32;
    let fin = last && t.has(FIN_WANTED) && (len == 0 || t.snd_max().after(t.snd_queued()));
    (len != 0 || fin).then_some(Plan { seq, len, fin, push: last })
}

/// The tail probe: new data if the peer has room for them, whatever the congestion window says, else the last segment
/// again (RFC 8985 §7.3).
pub(super) fn tail(t: &Tcb, lines: &Lines) -> Option<Plan> {
    let mss = u32::from(t.mss());
    let unsent = t.snd_queued().distance(t.snd_nxt()).max(0) as u32;
    let room = t.snd_wnd().saturating_sub(t.snd_nxt().bytes_since(t.snd_una()));
    let len = marks::within_record(t, lines, t.snd_nxt(), unsent.min(mss));
    if len != 0 && len <= room && (len == mss || !t.has(CORK)) {
        return Some(Plan { seq: t.snd_nxt(), len, fin: false, push: len == unsent });
    }
    // The probe repeats only bytes that are out. Other queued bytes may be beyond the peer's window.
    let last = t.flight().min(mss);
    again(t, lines, t.snd_max().sub(last), last)
}
