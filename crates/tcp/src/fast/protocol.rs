//! Second stage: the state machine of an established connection (RFC 9293 §3.10.7.4, with RFC 5961 and RFC 7323).
//!
//! Works on the flow's line only and decides what is to be copied; it copies nothing and sends nothing.

use super::State;
use super::batch::{Copy, Item};
use super::ecn;
use super::out_of_order::Inserted;
use super::post;
use super::report;
use super::{acknowledge, app};
use crate::counters::{Drop, Stage};
use crate::flow::{FlowId, flow_flags};
use crate::messages::{ToSlow, event};
use crate::seq::Seq;
use crate::table::{FlowTable, Lines, Tcb, bits};
use crate::time::Micros;
use towpath_wire::segment::{Segment, flags};

/// errno of a connection reset by the peer (ECONNRESET).
const CONNECTION_RESET: i32 = 104;
/// errno of a reset after the peer's FIN (EPIPE), as Linux has it.
const BROKEN_PIPE: i32 = 32;
/// Age at which TS.Recent says nothing any more, in units of 2^20 µs: 24 days (RFC 7323 §5.5).
const TS_STALE: u32 = 24 * 86_400_000_000u64.div_ceil(1 << 20) as u32;

/// One segment's way through the stage.
pub(super) struct Turn<'a> {
    pub state: &'a mut State,
    pub lines: &'a Lines,
    pub t: Tcb,
    pub flow: FlowId,
    pub now: Micros,
}

/// Runs the state machine over the batch. What is to be said is decided for neighbouring segments of a flow together, and said when the
/// whole batch has been processed (RFC 9293 §3.10.7.4, MUST-59): one acknowledgement is for all of them (MUST-58).
pub(super) fn run(table: &FlowTable, state: &mut State, now: Micros, batch: &mut [Item]) {
    state.counters.stage(Stage::Protocol, batch.len());
    for items in batch.chunk_by_mut(|one, next| one.flow == next.flow) {
        let flow = items[0].flow;
        let Some(lines) = table.get(flow) else { continue };
        lines.measures.segments_in.add(items.len() as u64);
        let mut turn = Turn { t: lines.protocol.load(), state: &mut *state, lines, flow, now };
        for item in items {
            match turn.segment(&item.segment) {
                Ok(copy) => item.copy = copy,
                Err(reason) => turn.state.counters.drop(reason),
            }
        }
        turn.state.counters.stage(Stage::Post, 1);
        post::flow(turn.state, now, flow, lines, &mut turn.t);
        lines.protocol.store(&turn.t);
    }
}

impl Turn<'_> {
    /// One segment, in the order of RFC 9293 §3.10.7.4. An error is the reason why nothing of it was taken beyond what the rules
    /// before it say.
    fn segment(&mut self, s: &Segment) -> Result<Copy, Drop> {
        if self.t.has(bits::DEAD) {
            return Err(Drop::NoSocket);
        }
        self.paws(s)?;
        if s.flags & flags::RST != 0 {
            return self.reset(s);
        }
        if s.flags & flags::SYN != 0 {
            // RFC 5961 §4: whatever its sequence number.
            self.state.challenge(self.now, &mut self.t, self.lines);
            return Err(Drop::BadFlags);
        }
        self.in_window(s)?;
        if s.flags & flags::ACK == 0 {
            return Err(Drop::NoAck);
        }
        self.take_timestamp(s);
        self.acknowledgement(s)?;
        if s.flags & flags::URG != 0 {
            self.urgent(s);
        }
        if s.payload_len == 0 && s.flags & flags::FIN == 0 {
            return Ok(Copy::default());
        }
        if self.t.has(flow_flags::ECN) && s.payload_len != 0 {
            ecn::receive(&mut self.t, self.lines, s);
        }
        self.text(s)
    }

    /// RFC 7323 §5.3 R1: a timestamp older than TS.Recent is a segment from another age.
    #[inline]
    fn paws(&mut self, s: &Segment) -> Result<(), Drop> {
        if !self.t.has(flow_flags::TIMESTAMPS) || s.flags & flags::RST != 0 {
            return Ok(());
        }
        // §3.2: once agreed, timestamps are in every segment.
        let Some(ts) = s.options.timestamps else { return Err(Drop::Paws) };
        if (ts.value.wrapping_sub(self.t.ts_recent) as i32) >= 0 || self.ts_recent_is_stale() {
            return Ok(());
        }
        self.answer(s);
        Err(Drop::Paws)
    }

    #[cold]
    fn ts_recent_is_stale(&self) -> bool {
        ((self.now.0 >> 20) as u32).wrapping_sub(self.lines.identity.ts_recent_at.get()) > TS_STALE
    }

    /// RFC 7323 §4.3: the timestamp to echo is that of the segment that the last acknowledgement was for.
    #[inline]
    fn take_timestamp(&mut self, s: &Segment) {
        let Some(ts) = s.options.timestamps else { return };
        if ts.value != self.t.ts_recent && self.t.has(flow_flags::TIMESTAMPS) && !Seq(s.seq).after(self.t.last_ack) {
            self.t.ts_recent = ts.value;
            self.lines.identity.ts_recent_at.set((self.now.0 >> 20) as u32);
        }
    }

    /// An ACK in reply to something unacceptable: a segment with data comes from a peer that needs to know where we are; one
    /// without may be anybody's.
    fn answer(&mut self, s: &Segment) {
        if s.payload_len != 0 || s.flags & flags::FIN != 0 {
            self.t.flags |= bits::ACK_NOW;
        } else {
            self.state.challenge(self.now, &mut self.t, self.lines);
        }
    }

    /// RFC 5961 §3 (RFC 9293 MAY-12): a RST counts only at exactly RCV.NXT, whatever the window (MUST-66). Data in it mean nothing (SHLD-2). The
    /// application learns that this was no orderly end (MUST-12).
    #[cold]
    fn reset(&mut self, s: &Segment) -> Result<Copy, Drop> {
        let offset = Seq(s.seq).bytes_since(self.t.rcv_nxt);
        if offset != 0 {
            if offset < self.t.rcv_wnd() {
                self.state.challenge(self.now, &mut self.t, self.lines);
            }
            return Err(Drop::BadReset);
        }
        let half_closed = self.t.has(flow_flags::FIN_RECEIVED) && !self.t.has(flow_flags::FIN_WANTED);
        let errno = if half_closed { BROKEN_PIPE } else { CONNECTION_RESET };
        self.state.counters.resets += 1;
        self.state.kill(&mut self.t, self.lines, self.flow, false, errno);
        self.state.outbox.push_back(ToSlow::Reset(self.flow));
        Ok(Copy::default())
    }

    /// RFC 9293 §3.10.7.4, first check, with three allowances: at a closed window the ACK of a segment at RCV.NXT still counts; an
    /// empty segment may stand right at the window's end, as a peer that has filled the window sends; and what we have not yet
    /// acknowledged may come again with an ACK that counts.
    #[inline]
    fn in_window(&mut self, s: &Segment) -> Result<(), Drop> {
        let length = s.payload_len + u32::from(s.flags & flags::FIN);
        let offset = Seq(s.seq).distance(self.t.rcv_nxt);
        let window = self.t.rcv_wnd() as i32;
        if offset > window || (offset == window && offset > 0 && length > 0) {
            self.answer(s);
            return Err(Drop::OutOfWindow);
        }
        if offset < 0 && Seq(s.seq).add(length).before(self.t.last_ack) {
            self.answer(s);
            report::duplicate(&mut self.t, self.lines, Seq(s.seq), Seq(s.seq).add(s.payload_len));
            return Err(if length > 0 { Drop::Duplicate } else { Drop::OutOfWindow });
        }
        Ok(())
    }

    /// Urgent data ahead (RFC 9293 §3.10.7.4, sixth check), whatever the window (MUST-66): the pointer leads to the byte after it
    /// (RFC 6093 §3.1 MUST-62). The application is told at once (MUST-32); the byte stays in the stream. A pointer to what has been received
    /// already, or to what is known, says nothing.
    #[cold]
    fn urgent(&mut self, s: &Segment) {
        let (t, word) = (&mut self.t, &self.lines.recovery.rcv_up);
        if s.urgent == 0 || t.any(flow_flags::FIN_RECEIVED | bits::SHUT_RD) {
            return;
        }
        let up = Seq(s.seq).add(u32::from(s.urgent) - 1);
        // What was received long ago is no measure: numbers wrap around.
        let pending = t.has(bits::URGENT_IN) && (0..=0xffff).contains(&Seq(word.get()).distance(t.rcv_nxt));
        if up.before(t.rcv_nxt) || (pending && !up.after(Seq(word.get()))) {
            return;
        }
        word.set(up.0);
        t.flags |= bits::URGENT_IN;
        self.state.raise(&mut self.t, self.flow, event::URGENT);
    }

    /// Payload and FIN of an acceptable segment.
    fn text(&mut self, s: &Segment) -> Result<Copy, Drop> {
        let t = &mut self.t;
        let has_fin = s.flags & flags::FIN != 0;
        let offset = Seq(s.seq).distance(t.rcv_nxt);
        let old = offset.min(0).unsigned_abs();
        if old > 0 {
            report::duplicate(t, self.lines, Seq(s.seq), Seq(s.seq).add(old.min(s.payload_len)));
        }
        if old > 0 && old >= s.payload_len + u32::from(has_fin) {
            t.flags |= bits::ACK_NOW;
            return Err(Drop::Duplicate);
        }
        if t.has(flow_flags::FIN_RECEIVED) {
            t.flags |= bits::ACK_NOW;
            return Err(Drop::AfterFin);
        }
        if t.has(flow_flags::APP_CLOSED) && s.payload_len > old {
            return Err(self.closed());
        }
        // Both are inside the window as `in_window` has let the segment pass.
        let start = Seq(s.seq).add(old);
        let room = t.rcv_adv.distance(start).max(0) as u32;
        let whole = s.payload_len - old.min(s.payload_len);
        let len = whole.min(room);
        // A FIN at a closed window is taken: it needs no room.
        let fin = has_fin && len == whole;
        let from = s.payload_offset + old;
        if len < whole {
            t.flags |= bits::ACK_NOW;
            if len == 0 {
                return Err(Drop::OutOfWindow);
            }
        }
        t.rcv_mss = t.rcv_mss.max(s.payload_len.min(u32::from(t.mss)) as u16);
        if offset > 0 {
            return self.ahead(start, len, fin, from);
        }
        let position = start.bytes_since(Seq(self.lines.identity.rcv_start.get()));
        let wanted = !t.has(bits::SHUT_RD);
        self.in_order(start.add(len), fin);
        Ok(Copy { position, offset: from, len: if wanted { len } else { 0 } })
    }

    /// Data behind a hole are kept (RFC 9293 §3.10.7.4, SHLD-31) and acknowledged at once (MAY-13), so that the sender notices (RFC 5681 §4.2).
    #[cold]
    fn ahead(&mut self, start: Seq, len: u32, fin: bool, from: u32) -> Result<Copy, Drop> {
        let t = &mut self.t;
        t.flags |= bits::ACK_NOW;
        t.acks.set_due(t.acks.due() + 1);
        if t.out_of_order == 0 {
            t.out_of_order = self.state.out_of_order.take().ok_or(Drop::OutOfOrderFull)?;
        }
        let Some(ranges) = self.state.out_of_order.get(t.out_of_order) else { return Err(Drop::OutOfOrderFull) };
        let end = start.add(len);
        let inserted = if len == 0 { Inserted::New } else { ranges.insert(start, end) };
        match inserted {
            Inserted::Full => return Err(Drop::OutOfOrderFull),
            Inserted::Nothing if !fin => {
                report::duplicate(t, self.lines, start, end);
                return Err(Drop::Duplicate);
            }
            _ => {}
        }
        if fin {
            ranges.insert_fin(end);
        }
        let copy = inserted == Inserted::New && !t.has(bits::SHUT_RD);
        let position = start.bytes_since(Seq(self.lines.identity.rcv_start.get()));
        Ok(Copy { position, offset: from, len: if copy { len } else { 0 } })
    }

    /// Everything before `end` is there now.
    #[inline]
    fn in_order(&mut self, end: Seq, fin: bool) {
        let before = self.t.rcv_nxt;
        let (mut end, mut fin) = (end, fin);
        if self.t.out_of_order != 0 {
            (end, fin) = self.fill_hole(end, fin);
        }
        let t = &mut self.t;
        let bytes = end.bytes_since(before);
        t.rcv_nxt = end;
        self.lines.measures.bytes_in.add(u64::from(bytes));
        if bytes != 0 {
            if t.has(bits::SHUT_RD) {
                self.discard(bytes);
            } else {
                self.state.raise(t, self.flow, event::READABLE);
            }
        }
        if fin {
            self.fin();
        }
        let t = &mut self.t;
        // Every second full segment (RFC 5681 §4.2, RFC 9293 SHLD-19); with segments as large as the ring, every half ring. Else it is
        // owed: SHLD-18.
        let enough = (2 * u32::from(t.rcv_mss)).min(self.lines.identity.rx_bytes.get() / 2);
        if t.rcv_nxt.bytes_since(t.last_ack) >= enough || t.has(bits::QUICKACK) {
            t.flags |= bits::ACK_NOW;
        } else if !t.any(bits::ACK_NOW | bits::ACK_OWED) {
            t.flags |= bits::ACK_OWED;
            self.lines.identity.owed_at.set(self.now.0 as u32);
        }
    }

    /// Joins what had come ahead. A hole that is filled, wholly or in part, is acknowledged at once (RFC 5681 §4.2).
    #[cold]
    fn fill_hole(&mut self, end: Seq, fin: bool) -> (Seq, bool) {
        self.t.flags |= bits::ACK_NOW;
        self.t.acks.set_due(0);
        let Some(ranges) = self.state.out_of_order.get(self.t.out_of_order) else { return (end, fin) };
        // Behind a FIN there is nothing, whatever the peer has sent.
        let end = if fin { end } else { ranges.advance(end) };
        let fin = fin || ranges.fin_at(end);
        if ranges.is_empty() || fin {
            self.state.out_of_order.release(self.t.out_of_order);
            self.t.out_of_order = 0;
        }
        (end, fin)
    }

    /// Data that nobody will read: the positions of the ring move along, so that the window stays open and the application sees
    /// nothing.
    #[cold]
    fn discard(&mut self, bytes: u32) {
        self.t.rcv_limit = self.t.rcv_limit.add(bytes);
        self.lines.identity.rcv_start.add(bytes);
    }

    #[cold]
    fn fin(&mut self) {
        let t = &mut self.t;
        t.rcv_nxt = t.rcv_nxt.add(1);
        t.rcv_adv = t.rcv_adv.max(t.rcv_nxt);
        t.flags |= flow_flags::FIN_RECEIVED | bits::ACK_NOW;
        if !t.has(flow_flags::FIN_WANTED) {
            t.flags |= flow_flags::PASSIVE_CLOSE;
        }
        self.state.raise(t, self.flow, event::EOF);
        self.state.outbox.push_back(ToSlow::Closing(self.flow));
    }

    /// Data for a socket that is closed: the peer must learn that nobody reads it (RFC 2525 §2.17).
    #[cold]
    fn closed(&mut self) -> Drop {
        app::abort(self.state, &mut self.t, self.lines, self.flow);
        Drop::AfterFin
    }

    /// The ACK field: range (RFC 5961 §5), then what it acknowledges, then the window.
    #[inline]
    fn acknowledgement(&mut self, s: &Segment) -> Result<(), Drop> {
        let t = &mut self.t;
        let ack = Seq(s.ack);
        if ack.after(t.snd_max) || ack.before(t.snd_una.sub(self.lines.measures.max_wnd.get())) {
            self.state.challenge(self.now, t, self.lines);
            return Err(Drop::BadAck);
        }
        if !ack.before(t.snd_una) {
            acknowledge::take(self, s);
        }
        Ok(())
    }
}
