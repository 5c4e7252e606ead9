//! Last stage: headers from the flow's template, payload from the ring straight into the port's buffer, checksum, out.

use super::meter::Meter;
use super::plan::{self, Plan};
use super::scheduler::Next;
use super::{State, app, ecn, pace, recovery, report, settle};
use crate::buffers::{Rings, TxPorts};
use crate::counters::Stage;
use crate::flow::flow_flags::{ECN, FIN_SENT, LIMIT_WAIT, SACK, TIMESTAMPS};
use crate::flow::{FlowId, FourTuple, Link};
use crate::messages::event;
use crate::seq::Seq;
use crate::table::{FlowTable, Lines, Tcb, bits};
use crate::time::Micros;
use towpath_wire::emit::{Header, make, make_inline};
use towpath_wire::offload::TxOffload;
use towpath_wire::segment::{Options, SackBlocks, Timestamps, flags};

/// Sends what is scheduled, up to `budget` frames.
pub(super) fn run(
    table: &FlowTable,
    state: &mut State,
    now: Micros,
    budget: usize,
    rings: &impl Rings,
    ports: &mut impl TxPorts,
) -> usize {
    let mut sent = frames(state, budget, ports);
    for _ in 0..state.scheduler.ports() {
        let port = state.scheduler.next_port();
        while sent < budget {
            let Some(Next { flow, share, pressing }) = state.scheduler.pop(port) else { break };
            let Some(lines) = table.get(flow) else { continue };
            let mut quota = state.config.segments_per_turn.min(budget - sent);
            let mut turn = Turn {
                t: lines.protocol.load(),
                state: &mut *state,
                lines,
                flow,
                now,
                credit: i64::MAX,
                held: false,
                ect: 0,
                bytes: 0,
                rings,
                ports: &mut *ports,
            };
            turn.t.flags &= !(bits::PRESSING | LIMIT_WAIT);
            if share != i64::MAX {
                quota = quota.min(share as usize / usize::from(turn.t.mss) + 1);
            }
            let metered = pressing || turn.t.has(bits::PACED) || turn.state.scheduler.limits();
            let meter = if metered { turn.meter(pressing) } else { Meter::NONE };
            let (frames, mut end) = turn.run(quota);
            sent += frames;
            if share != i64::MAX {
                turn.state.scheduler.charge(port, lines.identity.group(), turn.bytes);
            }
            if pressing {
                turn.end_pressing(end);
            } else {
                if metered {
                    end = meter.end(&mut turn, end);
                }
                turn.end(end);
            }
            lines.protocol.store(&turn.t);
            if end == End::NoRoom && lines.identity.port() == port {
                break;
            }
        }
    }
    state.counters.stage(Stage::Egress, sent);
    sent
}

/// The slow path's frames, in order per port.
fn frames(state: &mut State, budget: usize, ports: &mut impl TxPorts) -> usize {
    let (mut sent, mut full) = (0, None);
    for _ in 0..state.frames.len() {
        if sent == budget && full.is_none() {
            break;
        }
        let Some((port, frame)) = state.frames.pop_front() else { break };
        let buffer = if sent == budget || full == Some(port) { None } else { ports.reserve(port) };
        match buffer {
            Some(buffer) => {
                if let Some(out) = buffer.get_mut(..frame.len()) {
                    out.copy_from_slice(&frame);
                    ports.commit(port, frame.len(), TxOffload::default());
                    sent += 1;
                }
            }
            None => {
                // Everything goes around once, so the order stays.
                full = Some(port);
                state.frames.push_back((port, frame));
            }
        }
    }
    sent
}

/// How a turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Nothing more to send now.
    Done,
    /// The quota is used up.
    Quota,
    /// The port has no room.
    NoRoom,
    /// The group has no credit.
    NoCredit,
}

/// What comes before new data.
const RARE: u64 =
    bits::RESET | bits::DEAD | bits::RESEND | bits::PROBE | bits::KEEPALIVE | bits::ECN_EDGES | bits::LOST | bits::TAIL;

/// What `Turn::send` did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    Yes,
    NoRoom,
    /// The port's buffers are too small for it: as good as lost.
    TooLong,
}

/// One flow's turn to send.
pub(super) struct Turn<'a, R, P> {
    pub(super) state: &'a mut State,
    pub(super) lines: &'a Lines,
    pub(super) t: Tcb,
    pub(super) flow: FlowId,
    pub(super) now: Micros,
    /// What pacing and the group's rate limit let go, see [`pace`].
    pub(super) credit: i64,
    /// Something could be sent but for the credit.
    pub(super) held: bool,
    /// ECN field of the next packet.
    ect: u8,
    /// Bytes of its frames.
    bytes: usize,
    rings: &'a R,
    ports: &'a mut P,
}

impl<R, P> Turn<'_, R, P> {
    #[inline]
    fn end(&mut self, end: End) {
        let Self { state, lines, t, .. } = self;
        let (flow, port, group) = (self.flow, lines.identity.port(), lines.identity.group());
        if !t.has(bits::DEAD) {
            state.activate(t, flow);
        }
        if end == End::Done {
            t.flags &= !bits::SCHEDULED;
        }
        if t.has(bits::ABORTING) && !t.has(bits::DEAD) && matches!(end, End::Done | End::NoCredit) {
            app::abort(state, t, lines, flow);
        }
        match end {
            End::Quota | End::NoCredit => state.scheduler.push(port, group, flow),
            End::NoRoom => state.scheduler.push_front(port, group, flow),
            End::Done => {
                if t.has(bits::ACK_OWED) && !t.any(bits::DELAYED | bits::DEAD) {
                    t.flags |= bits::DELAYED;
                    state.delayed.push(self.now.after(state.config.delayed_ack_us), flow);
                }
                t.flags = settle(&mut state.outbox, flow, t.flags);
            }
        }
    }
}

impl<R: Rings, P: TxPorts> Turn<'_, R, P> {
    #[inline]
    fn run(&mut self, quota: usize) -> (usize, End) {
        let mut frames = 0;
        while frames < quota {
            match self.one() {
                Some(Sent::Yes) => frames += 1,
                Some(Sent::NoRoom) => return (frames, End::NoRoom),
                None | Some(Sent::TooLong) => return (frames, End::Done),
            }
        }
        let urgent = bits::RESET | bits::RESEND | bits::PROBE | bits::ACK_NOW | bits::KEEPALIVE | bits::TAIL;
        let sends = plan::repair_may_go(&self.t, self.lines) || plan::next(&self.t, self.lines).is_some();
        let more = self.t.any(urgent) || (!self.t.has(bits::DEAD) && sends);
        (frames, if more { End::Quota } else { End::Done })
    }

    /// The flow's next frame, the most urgent first; `None` = it has none.
    #[inline]
    fn one(&mut self) -> Option<Sent> {
        if self.credit < 0 {
            return self.without_credit();
        }
        if self.t.any(RARE)
            && let Some(result) = self.rare()
        {
            return result;
        }
        if let Some(plan) = plan::next(&self.t, self.lines) {
            let sent = self.data(&plan);
            if sent == Sent::Yes {
                self.t.snd_nxt = self.t.snd_nxt.max(end(&plan));
            }
            return Some(sent);
        }
        self.t.has(bits::ACK_NOW).then(|| self.send(self.empty_seq(), flags::ACK, 0))
    }

    /// RST, repeated segment, window probe. `None` = go on with the usual.
    #[cold]
    pub(super) fn rare(&mut self) -> Option<Option<Sent>> {
        if self.t.has(bits::RESET) {
            let sent = self.send(self.empty_seq(), flags::RST | flags::ACK, 0);
            if sent != Sent::NoRoom {
                self.t.flags &= !bits::RESET;
                self.state.counters.resets += 1;
            }
            return Some(Some(sent));
        }
        if self.t.has(bits::DEAD) {
            if self.t.has(bits::ACK_NOW) {
                // Removed (an abort would have cleared it) before the peer's FIN was answered.
                return Some(Some(self.send(self.empty_seq(), flags::ACK, 0)));
            }
            self.t.flags &= !(bits::ACK_NOW | bits::ACK_OWED | bits::RESEND | bits::PROBE | bits::KEEPALIVE);
            return Some(None);
        }
        if let Some((edge, marked)) = ecn::pending(&self.t, self.lines) {
            return Some(Some(self.acknowledge_edge(edge, marked)));
        }
        if self.t.has(bits::KEEPALIVE) {
            return self.keepalive();
        }
        if !self.t.any(bits::RESEND | bits::PROBE) {
            return self.repair();
        }
        let (bit, limit) = if self.t.has(bits::RESEND) {
            (bits::RESEND, self.t.snd_max.bytes_since(self.t.snd_una).min(u32::from(self.t.mss)))
        } else {
            (bits::PROBE, self.t.snd_wnd.clamp(1, u32::from(self.t.mss)))
        };
        // A probe that comes when the window is open again and in use has nothing to do.
        let late = bit == bits::PROBE && self.t.snd_wnd != 0 && !self.t.idle();
        let Some(plan) = plan::first(&self.t, limit).filter(|_| !late) else {
            self.t.flags &= !bit;
            return None;
        };
        let sent = self.data(&plan);
        if sent != Sent::NoRoom {
            self.t.flags &= !bit;
        }
        if sent == Sent::Yes && bit == bits::PROBE && plan.len <= self.t.snd_wnd {
            // Inside the window: sent like any other. Beyond it, SND.NXT stays, as the peer may not have taken the byte.
            self.t.snd_nxt = self.t.snd_nxt.max(end(&plan));
            // Half of the largest window ever is what a window has to be to be worth it: perhaps that one was not the peer's buffer.
            let max = &self.lines.measures.max_wnd;
            max.set(self.t.snd_wnd.max(max.get() / 2));
        }
        Some(Some(sent))
    }

    /// DCTCP's acknowledgement of what came before marks began or ended (RFC 8257 §3.2).
    fn acknowledge_edge(&mut self, edge: Seq, marked: bool) -> Sent {
        let present = (self.t.rcv_nxt, self.t.flags & bits::ECN_ECHO);
        self.t.rcv_nxt = edge;
        self.t.flags = self.t.flags & !bits::ECN_ECHO | if marked { bits::ECN_ECHO } else { 0 };
        let sent = self.send(self.empty_seq(), flags::ACK, 0);
        self.t.rcv_nxt = present.0;
        self.t.flags = self.t.flags & !bits::ECN_ECHO | present.1;
        if sent == Sent::Yes {
            ecn::acknowledged(&mut self.t, self.lines);
        }
        sent
    }

    /// A keepalive probe (RFC 9293 §3.8.4 SHLD-12): nothing, at a number that the peer has acknowledged, so that it answers.
    fn keepalive(&mut self) -> Option<Option<Sent>> {
        // MUST-26: only on an idle connection.
        if !self.t.idle() {
            self.t.flags &= !bits::KEEPALIVE;
            return None;
        }
        let sent = self.send(self.t.snd_max.sub(1), flags::ACK, 0);
        if sent != Sent::NoRoom {
            self.t.flags &= !bits::KEEPALIVE;
        }
        Some(Some(sent))
    }

    /// Flags that are seldom set, added to those `present`, and the urgent pointer.
    #[cold]
    fn seldom(&mut self, seq: Seq, present: u8) -> (u8, u16) {
        let urgent = if self.t.has(bits::URGENT_OUT) { self.urgent(seq) } else { 0 };
        let urg = if urgent == 0 { 0 } else { flags::URG };
        // RFC 3168 §6.1.3.
        let ece = if self.t.has(bits::ECN_ECHO) && present & flags::RST == 0 { flags::ECE } else { 0 };
        (present | urg | ece, urgent)
    }

    /// Flag and pointer of a segment that begins before SND.UP (RFC 9293 §3.8.5): one beyond the urgent byte (RFC 6093 §3.1 MUST-62), or as far
    /// as the field goes: urgent data may be longer than that (MUST-31).
    #[cold]
    fn urgent(&mut self, seq: Seq) -> u16 {
        let up = Seq(self.lines.recovery.snd_up.get());
        if !up.after(self.t.snd_una) {
            self.t.flags &= !bits::URGENT_OUT;
        }
        u16::try_from(up.distance(seq).max(0)).unwrap_or(u16::MAX)
    }

    /// Sends a segment with data or FIN and keeps the books about it; SND.NXT is the caller's.
    #[inline]
    pub(super) fn data(&mut self, plan: &Plan) -> Sent {
        let push = if plan.push && plan.len != 0 { flags::PSH } else { 0 };
        let fin = if plan.fin { flags::FIN } else { 0 };
        let cwr = if self.t.has(ECN) { self.capable(plan) } else { 0 };
        let sent = self.send(plan.seq, flags::ACK | push | fin | cwr, plan.len);
        self.ect = 0;
        if sent != Sent::Yes {
            return sent;
        }
        if cwr != 0 {
            self.t.flags &= !bits::ECN_CWR;
        }
        self.credit -= pace::cost(plan.len);
        let (t, m) = (&self.t, &self.lines.measures);
        let end = end(plan);
        // RFC 8985 §6.1: of what is not alone in flight it is kept when it was sent.
        if t.has(bits::TRACKED) || (t.snd_una != t.snd_max && t.has(SACK)) {
            self.track(plan.seq, end);
        }
        let t = &mut self.t;
        if plan.seq.before(t.snd_max) {
            self.lines.recovery.retransmits.add(1);
            self.state.counters.retransmits += 1;
            recovery::resent(t, self.lines, self.now, plan.seq, end.bytes_since(plan.seq));
            // Karn (RFC 9293 MUST-18): an answer now may be to either copy.
            t.flags &= !bits::TIMING;
        } else if !t.has(bits::TIMING) {
            t.flags |= bits::TIMING;
            m.rtt_seq.set(end.0);
            m.rtt_at.set(self.now.0 as u32);
        }
        t.snd_max = t.snd_max.max(end);
        if plan.fin && !t.has(FIN_SENT) {
            t.flags |= FIN_SENT;
            self.state.raise(t, self.flow, event::TX_CLOSED);
        }
        sent
    }

    /// ECN of a segment: only new data are ECN-capable, no retransmissions and no window probes (RFC 3168 §6.1.5, §6.1.6), and the
    /// first of them after a reduction says so (§6.1.2). Returns that flag. With DCTCP each one of a window
    /// below two segments does: the receiver ignores it (RFC 8257 §3.2) but for acknowledging at once, as Linux does, so that a
    /// lone segment does not wait for its delayed acknowledgement.
    fn capable(&mut self, plan: &Plan) -> u8 {
        if plan.len == 0 || plan.seq.before(self.t.snd_max) || self.t.has(bits::PROBE) {
            return 0;
        }
        self.ect = ecn::ECT0;
        let lone = self.t.has(bits::ECN_DCTCP) && self.t.cwnd < 2 * u32::from(self.t.mss);
        if self.t.has(bits::ECN_CWR) || lone { flags::CWR } else { 0 }
    }

    /// Sequence number of a segment without data: as high as the peer's window lets it pass.
    pub(super) fn empty_seq(&self) -> Seq {
        let edge = self.t.snd_una.add(self.t.snd_wnd);
        if self.t.snd_max.after(edge) { edge } else { self.t.snd_max }
    }

    /// Builds and sends one frame. It carries the acknowledgement, so none is owed afterwards.
    #[inline]
    pub(super) fn send(&mut self, seq: Seq, flags: u8, len: u32) -> Sent {
        let (window, edge) = advertise(&self.t, self.lines);
        let room = if self.t.out_of_order == 0 && !self.t.has(bits::DSACK) { 0 } else { self.report_room(len) };
        let (flags, urgent) =
            if self.t.any(bits::URGENT_OUT | bits::ECN_ECHO) { self.seldom(seq, flags) } else { (flags, 0) };
        let fields = Fields { seq, flags, window, urgent, tos: self.ect, ident: self.state.ident };
        let port = self.lines.identity.port();
        let unsummed = self.ports.tx_checksum(port);
        let Some(buffer) = self.ports.reserve(port) else { return Sent::NoRoom };
        let made = if room != 0 || self.t.any(bits::V6 | bits::VLAN) {
            let sack = report::blocks(&self.t, self.lines, &self.state.out_of_order, room);
            let (link, tuple) = (self.lines.link(self.t.flags), self.lines.tuple(self.t.flags));
            make(&header(&self.t, self.lines, self.now, fields, (link, tuple), sack), len as usize, buffer)
        } else {
            // Inlined, so that the compiler sees what is not, and writes the frame without a `Header` between.
            let (link, tuple) = (self.lines.identity.link(), self.lines.identity.tuple());
            let header = header(&self.t, self.lines, self.now, fields, (link, tuple), SackBlocks::NONE);
            make_inline(&header, len as usize, buffer)
        };
        let Some(made) = made else { return Sent::TooLong };
        let Some(frame) = buffer.get_mut(..made.end) else { return Sent::TooLong };
        if len != 0 {
            let position = seq.bytes_since(Seq(self.lines.identity.snd_start.get()));
            self.rings.fetch(self.flow, position, &mut frame[made.payload_offset..]);
        }
        let offload = if unsummed {
            made.partial_checksum(frame)
        } else {
            made.fill_checksum(frame);
            TxOffload::default()
        };
        let bytes = frame.len();
        self.ports.commit(port, bytes, offload);
        self.bytes += bytes;
        self.state.ident = self.state.ident.wrapping_add(1);
        self.lines.measures.segments_out.add(1);
        self.t.rcv_adv = edge;
        self.t.last_ack = self.t.rcv_nxt;
        self.t.flags &= !(bits::ACK_NOW | bits::ACK_OWED);
        if room != 0 {
            // It stood first.
            self.t.flags &= !bits::DSACK;
        }
        let due = self.t.acks.due();
        if due != 0 {
            // Only an empty segment counts as a duplicate.
            let due = due - u8::from(len == 0);
            self.t.acks.set_due(due);
            self.t.flags |= if due == 0 { 0 } else { bits::ACK_NOW };
        }
        Sent::Yes
    }

    /// How many SACK blocks a segment of `len` bytes has room for: with data only those that fit beside it.
    #[cold]
    fn report_room(&self, len: u32) -> usize {
        let beside = u32::from(self.t.mss).saturating_sub(len + 4) / 8;
        if len == 0 { usize::MAX } else { beside as usize }
    }
}

/// What differs from one frame of a flow to the next.
struct Fields {
    seq: Seq,
    flags: u8,
    window: u16,
    urgent: u16,
    /// ECN field.
    tos: u8,
    /// The packet's number.
    ident: u16,
}

#[inline(always)]
fn header(t: &Tcb, lines: &Lines, now: Micros, fields: Fields, way: (Link, FourTuple), sack: SackBlocks) -> Header {
    let ((link, tuple), id) = (way, &lines.identity);
    let (tos, ttl) = id.service();
    let timestamps = t.has(TIMESTAMPS).then(|| {
        let value = ((now.0 / 1000) as u32).wrapping_add(id.ts_offset.get());
        Timestamps { value, echo: t.ts_recent }
    });
    Header {
        seq: fields.seq.0,
        ack: t.rcv_nxt.0,
        flags: fields.flags,
        window: fields.window,
        ident: fields.ident,
        tos: tos | fields.tos,
        ttl,
        urgent: fields.urgent,
        options: Options { timestamps, sack, ..Options::NONE },
        ..tuple.header(&link)
    }
}

#[inline]
pub(super) fn end(plan: &Plan) -> Seq {
    plan.seq.add(plan.len + u32::from(plan.fin))
}

/// The window field, and the right edge that has been promised with it.
///
/// The edge advances in steps worth a segment (RFC 9293 §3.8.6.2.2 MUST-39) and never goes back (SHLD-14), but for the rounding that the window shift
/// brings (RFC 7323 §2.4): up while there is room for it, else down.
#[inline]
fn advertise(t: &Tcb, lines: &Lines) -> (u16, Seq) {
    let shift = t.shifts.ours();
    let room = t.rcv_limit.distance(t.rcv_nxt).max(0) as u32;
    let now = t.rcv_wnd();
    let step = u32::from(t.mss).min(app::step_max(lines.identity.rx_bytes.get()));
    let mut field = room >> shift;
    if room.saturating_sub(now) < step {
        field = field.min(now.div_ceil(1 << shift));
    }
    let field = field.min(0xffff);
    (field as u16, t.rcv_adv.max(t.rcv_nxt.add(field << shift)))
}
