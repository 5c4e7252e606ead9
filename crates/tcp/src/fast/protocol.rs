//! Second stage: the state machine of an established connection (RFC 9293 §3.10.7.4, with RFC 5961 and RFC 7323).
//!
//! Works on the flow's lines only and decides what is to be copied. It copies nothing and sends nothing.

use super::batch::{Copy, Item};
use super::context::FlowTurn;
use super::out_of_order::Inserted;
use super::rare::rare;
use super::segment::Segment;
use super::{acknowledge, close, ecn, report, trimmed};
use crate::counters::Drop;
use crate::messages::{ToSlow, event};
use crate::seq::Seq;
use crate::table::bits::{
    ACK_NOW, ACK_OWED, APP_CLOSED, DEAD, ECN, FIN_RECEIVED, FIN_WANTED, HELD, PASSIVE_CLOSE, QUICKACK, RESTING,
    SHUT_RD, TIMESTAMPS, TRIMMED, URGENT_IN,
};
use crate::table::stages::{Close, Receive};
use crate::table::word;
use std::hint::cold_path;
use towpath_wire::segment::flags;

/// errno of a connection reset by the peer (ECONNRESET).
const CONNECTION_RESET: i32 = 104;
/// errno of a reset after the peer's FIN (EPIPE), as Linux has it.
const BROKEN_PIPE: i32 = 32;
/// Age at which TS.Recent is no longer valid, in units of 2^20 µs: 24 days (RFC 7323 §5.5).
const TS_STALE: u32 = 24 * 86_400_000_000u64.div_ceil(1 << 20) as u32;

/// Runs the state machine over neighbouring segments of a flow. One acknowledgement is for all of them (MUST-58). It is
/// sent when the whole batch has been processed (RFC 9293 §3.10.7.4, MUST-59).
#[inline(always)]
pub(super) fn run(by: Receive, turn: &mut FlowTurn<'_>, items: &mut [Item]) {
    for item in items {
        one::<false>(by, turn, &item.segment, (item.frame, &mut item.copy));
    }
}

/// One segment. `frame`: its frame's number; `copy`: the place for what is to be copied of it.
#[inline(always)]
pub(super) fn one<const PREDICTED: bool>(
    by: Receive,
    turn: &mut FlowTurn<'_>,
    segment: &Segment,
    (frame, copy): (u32, &mut Copy),
) {
    turn.lines.measures.segments_in.add(by, 1);
    *copy = match turn.segment::<PREDICTED>(by, segment) {
        Ok(copy) => copy,
        Err(reason) => {
            match reason {
                Drop::Held => turn.state.held.push(frame),
                reason => turn.state.counters.drop(reason),
            }
            Copy::default()
        }
    };
}

impl FlowTurn<'_> {
    /// One segment, in the order of RFC 9293 §3.10.7.4. An error is the rule that dropped it; the rules before that one
    /// have had their effect.
    #[inline(always)]
    fn segment<const PREDICTED: bool>(&mut self, by: Receive, s: &Segment) -> Result<Copy, Drop> {
        if rare::<PREDICTED>(|| self.t.has(DEAD)) {
            return Err(if self.t.has(RESTING) { Drop::Held } else { Drop::NoSocket });
        }
        if rare::<PREDICTED>(|| s.flags() & flags::RST != 0) {
            return self.reset(by, s);
        }
        if let Err(reason) = self.acceptable::<PREDICTED>(by, s) {
            self.lines.seldom.unheard.add(by, 1);
            return Err(reason);
        }
        if rare::<PREDICTED>(|| s.flags() & flags::URG != 0) {
            self.urgent(by, s);
        }
        if rare::<PREDICTED>(|| s.payload_len == 0 && s.flags() & flags::FIN == 0) {
            self.lines.measures.empty_in.add(by, 1);
            return Ok(Copy::default());
        }
        if rare::<PREDICTED>(|| self.t.has(ECN) && s.payload_len != 0) {
            ecn::receive(by, &mut self.t, self.lines, s);
        }
        self.text::<PREDICTED>(by, s)
    }

    /// The checks that tell the peer's segments from those of anybody else.
    #[inline(always)]
    fn acceptable<const PREDICTED: bool>(&mut self, by: Receive, s: &Segment) -> Result<(), Drop> {
        self.paws::<PREDICTED>(by, s)?;
        if rare::<PREDICTED>(|| s.flags() & flags::SYN != 0) {
            // RFC 5961 §4: whatever its sequence number.
            self.challenge(by);
            return Err(Drop::BadFlags);
        }
        self.in_window::<PREDICTED>(by, s)?;
        if rare::<PREDICTED>(|| s.flags() & flags::ACK == 0) {
            return Err(Drop::NoAck);
        }
        self.acknowledgement::<PREDICTED>(by, s)
    }

    /// RFC 7323 §5.3 R1: a segment with a timestamp older than TS.Recent is an old duplicate.
    ///
    /// A segment without a timestamp is taken although timestamps are agreed (as Linux). §3.2 says that it should be
    /// dropped. But a device on the path that begins to remove the option would stall the connection then.
    #[inline(always)]
    fn paws<const PREDICTED: bool>(&mut self, by: Receive, s: &Segment) -> Result<(), Drop> {
        if !self.t.has(TIMESTAMPS) {
            return Ok(());
        }
        if rare::<PREDICTED>(|| !s.stamped()) {
            return Ok(());
        }
        let old = || (s.stamp.wrapping_sub(self.t.ts_recent()) as i32) < 0;
        if !rare::<PREDICTED>(old) || self.ts_recent_is_stale() {
            return Ok(());
        }
        self.answer(by, s);
        Err(Drop::Paws)
    }

    #[cold]
    fn ts_recent_is_stale(&self) -> bool {
        ((self.now.0 >> 20) as u32).wrapping_sub(self.lines.identity.ts_recent_at.get()) > TS_STALE
    }

    /// RFC 7323 §4.3: the timestamp to echo is that of the segment that the last acknowledgement was for. The segment's
    /// own acknowledgement has been found valid (as Linux): a blind one would make PAWS drop what the peer sends from
    /// then on.
    #[inline(always)]
    fn take_timestamp<const PREDICTED: bool>(&mut self, by: Receive, s: &Segment) {
        if rare::<PREDICTED>(|| !s.stamped()) {
            return;
        }
        if s.stamp == self.t.ts_recent() {
            return;
        }
        // The clock ticks seldom against a busy connection's segments.
        cold_path();
        if self.t.has(TIMESTAMPS) && !Seq(s.seq).after(self.t.last_ack()) {
            self.t.received(by).ts_recent = s.stamp;
            self.seldom::<_, PREDICTED, { word::TS_RECENT }>(by);
            self.lines.identity.ts_recent_at.set(by, (self.now.0 >> 20) as u32);
        }
    }

    /// An ACK in reply to an unacceptable segment. One with data comes from a peer that needs to know where we are. One
    /// without may come from anybody, so it gets a challenge ACK.
    fn answer(&mut self, by: Receive, s: &Segment) {
        if s.payload_len != 0 || s.flags() & flags::FIN != 0 {
            self.t.set(by, ACK_NOW);
        } else {
            self.challenge(by);
        }
    }

    /// RFC 5961 §3 (RFC 9293 MAY-12): a RST is valid only at exactly RCV.NXT, whatever the window (MUST-66). Data in it
    /// are ignored (SHLD-2). The application learns that this was no orderly end (MUST-12).
    #[cold]
    fn reset(&mut self, by: Receive, s: &Segment) -> Result<Copy, Drop> {
        let offset = Seq(s.seq).bytes_since(self.t.rcv_nxt());
        if offset != 0 {
            if offset < self.t.rcv_wnd() {
                self.challenge(by);
            }
            self.lines.seldom.unheard.add(by, 1);
            return Err(Drop::BadReset);
        }
        let half_closed = self.t.has(FIN_RECEIVED) && !self.t.has(FIN_WANTED);
        let errno = if half_closed { BROKEN_PIPE } else { CONNECTION_RESET };
        self.state.counters.resets += 1;
        close::kill(Close::from(by), self, false, Some(errno));
        self.tell(by, ToSlow::Reset(self.flow));
        Ok(Copy::default())
    }

    /// RFC 9293 §3.10.7.4, first check, with three allowances:
    ///
    /// - At a closed window the ACK of a segment at RCV.NXT is still valid.
    /// - An empty segment may stand right at the window's end: a peer that has filled the window sends that.
    /// - Data that we have not yet acknowledged may come again, with a valid ACK.
    #[inline(always)]
    fn in_window<const PREDICTED: bool>(&mut self, by: Receive, s: &Segment) -> Result<(), Drop> {
        let length = s.payload_len + u32::from(s.flags() & flags::FIN);
        let offset = Seq(s.seq).distance(self.t.rcv_nxt());
        let window = self.t.rcv_wnd() as i32;
        if rare::<PREDICTED>(|| offset > window || (offset == window && offset > 0 && length > 0)) {
            self.answer(by, s);
            return Err(Drop::OutOfWindow);
        }
        if rare::<PREDICTED>(|| offset < 0 && Seq(s.seq).add(length).before(self.t.last_ack())) {
            self.answer(by, s);
            report::duplicate(by, &mut self.t, self.lines, Seq(s.seq), Seq(s.seq).add(s.payload_len));
            return Err(if length > 0 { Drop::Duplicate } else { Drop::OutOfWindow });
        }
        Ok(())
    }

    /// Urgent data ahead (RFC 9293 §3.10.7.4, sixth check), whatever the window (MUST-66): the pointer leads to the
    /// byte after it (RFC 6093 §3.1 MUST-62). The application is told at once (MUST-32); the byte stays in the stream.
    /// A pointer to what has been received already, or that is known, is ignored.
    #[cold]
    fn urgent(&mut self, by: Receive, s: &Segment) {
        let (t, word) = (&mut self.t, &self.lines.recovery.rcv_up);
        if s.urgent == 0 || t.has(FIN_RECEIVED) || t.has(SHUT_RD) {
            return;
        }
        let up = Seq(s.seq).add(u32::from(s.urgent) - 1);
        // An urgent byte of long ago does not count, because sequence numbers wrap around.
        let pending = t.has(URGENT_IN) && (0..=0xffff).contains(&Seq(word.get()).distance(t.rcv_nxt()));
        if up.before(t.rcv_nxt()) || (pending && !up.after(Seq(word.get()))) {
            return;
        }
        word.set(by, up.0);
        t.set(by, URGENT_IN);
        self.raise(by, event::URGENT);
    }

    /// Payload and FIN of an acceptable segment.
    #[inline(always)]
    fn text<const PREDICTED: bool>(&mut self, by: Receive, s: &Segment) -> Result<Copy, Drop> {
        let t = &mut self.t;
        let has_fin = rare::<PREDICTED>(|| s.flags() & flags::FIN != 0);
        let offset = Seq(s.seq).distance(t.rcv_nxt());
        let old = if rare::<PREDICTED>(|| offset < 0) { offset.unsigned_abs() } else { 0 };
        if old > 0 {
            report::duplicate(by, t, self.lines, Seq(s.seq), Seq(s.seq).add(old.min(s.payload_len)));
        }
        if old > 0 && old >= s.payload_len + u32::from(has_fin) {
            t.set(by, ACK_NOW);
            return Err(Drop::Duplicate);
        }
        if rare::<PREDICTED>(|| t.any(FIN_RECEIVED | TRIMMED | HELD)) {
            return self.unusual(by, s, old);
        }
        self.take::<PREDICTED>(by, s, old, u32::MAX)
    }

    /// Nothing follows a FIN. A flow that is to be spliced takes nothing. A ring that has given memory back takes only what it
    /// has kept memory for. The peer sends the rest again.
    #[cold]
    fn unusual(&mut self, by: Receive, s: &Segment, old: u32) -> Result<Copy, Drop> {
        if self.t.has(FIN_RECEIVED) {
            self.t.set(by, ACK_NOW);
            return Err(Drop::AfterFin);
        }
        if self.t.has(HELD) {
            return Err(Drop::Held);
        }
        let kept = trimmed::room(&self.t, self.lines, Seq(s.seq).add(old));
        self.take::<false>(by, s, old, kept)
    }

    /// What is new of a segment, up to `most` bytes.
    #[inline(always)]
    fn take<const PREDICTED: bool>(&mut self, by: Receive, s: &Segment, old: u32, most: u32) -> Result<Copy, Drop> {
        let t = &mut self.t;
        let has_fin = rare::<PREDICTED>(|| s.flags() & flags::FIN != 0);
        let offset = Seq(s.seq).distance(t.rcv_nxt());
        if rare::<PREDICTED>(|| t.has(APP_CLOSED) && s.payload_len > old) {
            return Err(self.closed(by));
        }
        // Both are inside the window as `in_window` has let the segment pass.
        let start = Seq(s.seq).add(old);
        let room = (t.rcv_adv().distance(start).max(0) as u32).min(most);
        let whole = if old == 0 { s.payload_len } else { s.payload_len - old.min(s.payload_len) };
        let len = if rare::<PREDICTED>(|| whole > room) { room } else { whole };
        // A FIN at a closed window is taken: it needs no room.
        let fin = has_fin && len == whole;
        let from = u32::from(s.payload_offset) + old;
        if rare::<PREDICTED>(|| len < whole) {
            t.set(by, ACK_NOW);
            if len == 0 {
                return Err(Drop::OutOfWindow);
            }
        }
        if s.payload_len > u32::from(t.rcv_mss()) {
            let largest = t.rcv_mss().max(s.payload_len.min(u32::from(t.mss())) as u16);
            t.segment(by).rcv_mss = largest;
            self.seldom::<_, PREDICTED, { word::RCV_MSS }>(by);
        }
        let t = &mut self.t;
        if rare::<PREDICTED>(|| offset > 0) {
            return self.ahead(by, start, len, fin, from);
        }
        let position = start.bytes_since(Seq(self.lines.identity.rcv_start.get()));
        let wanted = !rare::<PREDICTED>(|| t.has(SHUT_RD));
        self.in_order::<PREDICTED>(by, start.add(len), fin);
        Ok(Copy { position, offset: from, len: if wanted { len } else { 0 } })
    }

    /// Data behind a hole are kept (RFC 9293 §3.10.7.4, SHLD-31) and acknowledged at once (MAY-13), so that the sender
    /// notices (RFC 5681 §4.2).
    #[cold]
    fn ahead(&mut self, by: Receive, start: Seq, len: u32, fin: bool, from: u32) -> Result<Copy, Drop> {
        let t = &mut self.t;
        t.set(by, ACK_NOW);
        t.owe_duplicates(by, t.duplicates_owed() + 1);
        self.lines.seldom.out_of_order.add(by, 1);
        if t.out_of_order() == 0 {
            t.ahead(by).out_of_order = self.state.out_of_order.by(by).take().ok_or(Drop::OutOfOrderFull)?;
        }
        let Some(ranges) = self.state.out_of_order.by(by).get(t.out_of_order()) else {
            return Err(Drop::OutOfOrderFull);
        };
        let end = start.add(len);
        let again = ranges.overlap(start, end);
        let inserted = if len == 0 { Inserted::New } else { ranges.insert(start, end) };
        if inserted == Inserted::Full {
            return Err(Drop::OutOfOrderFull);
        }
        if let Some((first, last)) = again {
            // Also a part of it that was there (RFC 2883 §4).
            report::duplicate(by, t, self.lines, first, last);
        }
        if inserted == Inserted::Nothing && !fin {
            return Err(Drop::Duplicate);
        }
        if fin {
            ranges.insert_fin(end);
        }
        let copy = inserted == Inserted::New && !t.has(SHUT_RD);
        let position = start.bytes_since(Seq(self.lines.identity.rcv_start.get()));
        Ok(Copy { position, offset: from, len: if copy { len } else { 0 } })
    }

    /// Everything before `end` is there now.
    #[inline(always)]
    fn in_order<const PREDICTED: bool>(&mut self, by: Receive, end: Seq, fin: bool) {
        let before = self.t.rcv_nxt();
        let (mut end, mut fin) = (end, fin);
        if rare::<PREDICTED>(|| self.t.out_of_order() != 0) {
            (end, fin) = self.fill_hole(by, end, fin);
        }
        let t = &mut self.t;
        let bytes = end.bytes_since(before);
        t.received(by).rcv_nxt = end;
        self.lines.measures.bytes_in.add(by, u64::from(bytes));
        if !rare::<PREDICTED>(|| bytes == 0) {
            if rare::<PREDICTED>(|| t.has(SHUT_RD)) {
                self.discard(by, bytes);
            } else {
                self.raise(by, event::READABLE);
            }
        }
        if fin {
            self.fin(by);
        }
        let t = &mut self.t;
        // Every second full segment is acknowledged at once (RFC 5681 §4.2, RFC 9293 SHLD-19), or every half ring if
        // segments are that large. Else the acknowledgement is owed (SHLD-18).
        let enough = (2 * u32::from(t.rcv_mss())).min(self.lines.identity.rx_bytes.get() / 2);
        if t.rcv_nxt().bytes_since(t.last_ack()) >= enough || rare::<PREDICTED>(|| t.has(QUICKACK)) {
            t.set(by, ACK_NOW);
        } else if !t.any(ACK_NOW | ACK_OWED) {
            t.set(by, ACK_OWED);
            self.lines.identity.owed_at.set(by, self.now.0 as u32);
        }
    }

    /// Joins data that had come ahead. A hole that is filled, wholly or in part, is acknowledged at once (RFC 5681
    /// §4.2).
    #[cold]
    fn fill_hole(&mut self, by: Receive, end: Seq, fin: bool) -> (Seq, bool) {
        self.t.set(by, ACK_NOW);
        self.t.owe_duplicates(by, 0);
        let Some(ranges) = self.state.out_of_order.by(by).get(self.t.out_of_order()) else { return (end, fin) };
        if let Some((first, last)) = ranges.overlap(self.t.rcv_nxt(), end) {
            report::duplicate(by, &mut self.t, self.lines, first, last);
        }
        // Nothing follows a FIN, whatever the peer has sent.
        let end = if fin { end } else { ranges.advance(end) };
        let fin = fin || ranges.fin_at(end);
        if ranges.is_empty() || fin {
            self.state.out_of_order.by(by).release(self.t.out_of_order());
            self.t.ahead(by).out_of_order = 0;
        }
        (end, fin)
    }

    /// Drops data that the application does not want. The positions of the ring move along, so that the window stays
    /// open and the application sees nothing.
    #[cold]
    fn discard(&mut self, by: Receive, bytes: u32) {
        self.t.room(by).rcv_limit = self.t.rcv_limit().add(bytes);
        self.lines.identity.rcv_start.add(by, bytes);
    }

    #[cold]
    fn fin(&mut self, by: Receive) {
        let t = &mut self.t;
        t.received(by).rcv_nxt = t.rcv_nxt().add(1);
        t.advertised(by).rcv_adv = t.rcv_adv().max(t.rcv_nxt());
        t.set(by, FIN_RECEIVED);
        t.set(by, ACK_NOW);
        if !t.has(FIN_WANTED) {
            t.set(by, PASSIVE_CLOSE);
        }
        self.raise(by, event::EOF);
        self.tell(by, ToSlow::Closing(self.flow));
    }

    /// Data for a closed socket: the peer must learn that they are not read (RFC 2525 §2.17).
    #[cold]
    fn closed(&mut self, by: Receive) -> Drop {
        close::abort(Close::from(by), self);
        Drop::AfterFin
    }

    /// The ACK field: range (RFC 5961 §5), then what it acknowledges, then the window.
    #[inline(always)]
    fn acknowledgement<const PREDICTED: bool>(&mut self, by: Receive, s: &Segment) -> Result<(), Drop> {
        let t = &self.t;
        let ack = Seq(s.ack);
        let oldest = || t.snd_una().sub(self.lines.measures.max_wnd.get());
        if rare::<PREDICTED>(|| ack.after(t.snd_max()) || ack.before(oldest())) {
            self.challenge(by);
            return Err(Drop::BadAck);
        }
        if rare::<PREDICTED>(|| ack.before(t.snd_una())) {
            // An old one says nothing of the peer now (as Linux).
            self.lines.seldom.unheard.add(by, 1);
            return Ok(());
        }
        self.take_timestamp::<PREDICTED>(by, s);
        acknowledge::take::<PREDICTED>(by, self, s);
        Ok(())
    }
}
