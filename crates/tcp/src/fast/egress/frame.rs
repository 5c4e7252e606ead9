//! One frame of a flow: its header fields, its acknowledgement and the window that it promises.

use super::{SendTurn, Sent};
use crate::buffers::{Rings, TxPorts};
use crate::fast::context::FlowTurn;
use crate::fast::rare::rare;
use crate::fast::window_step::step_max;
use crate::fast::{recovery, report};
use crate::seq::Seq;
use crate::table::Lines;
use crate::table::bits::{ACK_NOW, ACK_OWED, DSACK, ECN_ECHO, TIMESTAMPS, URGENT_OUT, V6, VLAN};
use crate::table::stages::Egress;
use crate::table::tcb::Tcb;
use towpath_wire::emit::{Header, make};
use towpath_wire::offload::TxOffload;
use towpath_wire::segment::{Options, Timestamps, flags};
use towpath_wire::template::{Fields, Template};

/// The acknowledgement of a segment.
#[derive(Clone, Copy)]
pub(super) struct Acknowledged {
    pub up_to: Seq,
    /// With ECE: some of it was marked.
    pub marked: bool,
}

impl<R: Rings, P: TxPorts, const PREDICTED: bool> SendTurn<'_, R, P, PREDICTED> {
    /// Sequence number of a segment without data: as high as the peer's window lets it pass.
    pub(super) fn empty_seq(&self) -> Seq {
        let t = &self.turn.t;
        let edge = t.snd_una().add(t.snd_wnd());
        if t.snd_max().after(edge) { edge } else { t.snd_max() }
    }

    /// Builds and sends one frame. It carries the acknowledgement, so none is owed afterwards. `then`: what else changes of the flow
    /// if the frame goes.
    #[inline(always)]
    pub(super) fn send(
        &mut self,
        by: Egress,
        (seq, len): (Seq, u32),
        flags: u8,
        then: impl FnOnce(&mut FlowTurn<'_>),
    ) -> Sent {
        let present = Acknowledged { up_to: self.turn.t.rcv_nxt(), marked: self.turn.t.has(ECN_ECHO) };
        if PREDICTED {
            // A call would keep the predicted path's control block out of registers. So the copy comes after all that changes it.
            return self.frame(by, (seq, len), flags, present, then);
        }
        let sent = self.send_as(by, (seq, len), flags, present);
        if sent == Sent::Yes {
            then(&mut self.turn);
        }
        sent
    }

    /// Builds and sends one frame with this acknowledgement.
    #[inline(never)]
    pub(super) fn send_as(&mut self, by: Egress, place: (Seq, u32), flags: u8, ack: Acknowledged) -> Sent {
        self.frame(by, place, flags, ack, |_| {})
    }

    #[inline(always)]
    fn frame(
        &mut self,
        by: Egress,
        (seq, len): (Seq, u32),
        flags: u8,
        ack: Acknowledged,
        then: impl FnOnce(&mut FlowTurn<'_>),
    ) -> Sent {
        let (t, lines) = (&self.turn.t, self.turn.lines);
        let (window, edge) = advertise(t, lines, ack.up_to);
        let reports = rare::<PREDICTED>(|| t.out_of_order() != 0 || t.has(DSACK));
        let room = if reports { self.report_room(len) } else { 0 };
        let (flags, urgent) = if rare::<PREDICTED>(|| t.has(URGENT_OUT) || ack.marked) {
            self.seldom(by, seq, flags, ack.marked)
        } else {
            (flags, 0)
        };
        let ident = self.turn.state.sending.ident;
        let fields = Fields { seq: seq.0, ack: ack.up_to.0, flags, window, urgent, ecn: self.ect, ident };
        let port = lines.identity.port();
        let mss = self.turn.t.mss();
        let segments = if rare::<PREDICTED>(|| len > u32::from(mss)) { len.div_ceil(u32::from(mss)) } else { 1 };
        let unsummed = self.ports.tx_checksum(port);
        let buffer = if segments == 1 { self.ports.reserve(port) } else { self.ports.reserve_super(port) };
        let Some(buffer) = buffer else { return Sent::NoRoom };
        let (t, ms) = (&self.turn.t, self.turn.state.sending.ms);
        let stamps = (!rare::<PREDICTED>(|| !t.has(TIMESTAMPS))).then(|| {
            let value = recovery::timestamp(lines, ms);
            Timestamps { value, echo: t.ts_recent() }
        });
        let made = if room == 0 && !rare::<PREDICTED>(|| t.any(V6 | VLAN)) {
            lines.identity.make(&fields, stamps, len as usize, buffer)
        } else {
            let sack = report::blocks(t, lines, &self.turn.state.out_of_order, room);
            let options = Options { timestamps: stamps, sack, ..Options::NONE };
            make(&header(t, lines, &fields, options), len as usize, buffer)
        };
        let Some(made) = made else { return Sent::TooLong };
        let Some(frame) = buffer.get_mut(..made.end) else { return Sent::TooLong };
        let large = rare::<PREDICTED>(|| segments != 1);
        let offload = if unsummed || large { made.partial_checksum(frame) } else { TxOffload::default() };
        let (flow, bytes) = (self.turn.flow, frame.len());
        let position = seq.bytes_since(Seq(lines.identity.snd_start.get()));
        if !rare::<PREDICTED>(|| len == 0) {
            lines.measures.data_out.add(by, segments);
        } else {
            lines.measures.empty_out.add(by, 1);
        }
        self.bytes += bytes;
        self.turn.state.sending.by(by).ident = ident.wrapping_add(segments as u16);
        let t = &mut self.turn.t;
        t.advertised(by).rcv_adv = edge;
        t.sent(by).last_ack = ack.up_to;
        t.clear(by, ACK_NOW | ACK_OWED);
        if room != 0 {
            // The duplicate SACK block has gone out, as the first block.
            t.clear(by, DSACK);
        }
        let due = t.duplicates_owed();
        if rare::<PREDICTED>(|| due != 0) {
            // Only an empty segment is a duplicate.
            let due = due - u8::from(len == 0);
            t.owe_duplicates(by, due);
            if due != 0 {
                t.set(by, ACK_NOW);
            }
        }
        then(&mut self.turn);
        if large {
            let lies = self.rings.payload(flow, position, len);
            if lies.is_none() {
                self.rings.fetch(flow, position, &mut frame[made.payload_offset..]);
            }
            let (header, payload) = lies.map_or((bytes, [&[][..]; 3]), |payload| (made.payload_offset, payload));
            self.ports.commit_gathered(port, header, payload, TxOffload { gso_bytes: mss, ..offload });
            return Sent::Yes;
        }
        if !rare::<PREDICTED>(|| len == 0) {
            self.rings.fetch(flow, position, &mut frame[made.payload_offset..]);
        }
        if !unsummed {
            made.fill_checksum(frame);
        }
        self.ports.commit(port, bytes, offload);
        Sent::Yes
    }

    /// How many SACK blocks a segment of `len` bytes has room for: with data only those that fit beside it.
    #[cold]
    fn report_room(&self, len: u32) -> usize {
        let beside = u32::from(self.turn.t.mss()).saturating_sub(len + 4) / 8;
        if len == 0 { usize::MAX } else { beside as usize }
    }

    /// Flags that are seldom set, added to those `present`, and the urgent pointer.
    #[cold]
    fn seldom(&mut self, by: Egress, seq: Seq, present: u8, echo: bool) -> (u8, u16) {
        let urgent = if self.turn.t.has(URGENT_OUT) { self.urgent(by, seq) } else { 0 };
        let urg = if urgent == 0 { 0 } else { flags::URG };
        // RFC 3168 §6.1.3.
        let ece = if echo && present & flags::RST == 0 { flags::ECE } else { 0 };
        (present | urg | ece, urgent)
    }

    /// Urgent pointer of a segment that begins before SND.UP (RFC 9293 §3.8.5): one beyond the urgent byte (RFC 6093
    /// §3.1 MUST-62). Urgent data may be longer than the field allows (MUST-31); then it has its largest value.
    #[cold]
    fn urgent(&mut self, by: Egress, seq: Seq) -> u16 {
        let up = Seq(self.turn.lines.recovery.snd_up.get());
        if !up.after(self.turn.t.snd_una()) {
            self.turn.t.clear(by, URGENT_OUT);
        }
        u16::try_from(up.distance(seq).max(0)).unwrap_or(u16::MAX)
    }
}

/// The header of a frame for which the flow's template is not enough.
#[cold]
fn header(t: &Tcb, lines: &Lines, fields: &Fields, options: Options) -> Header {
    let (tos, ttl) = lines.identity.service();
    Header {
        seq: fields.seq,
        ack: fields.ack,
        flags: fields.flags,
        window: fields.window,
        ident: fields.ident,
        tos: tos | fields.ecn,
        ttl,
        urgent: fields.urgent,
        options,
        ..lines.tuple(t.flags()).header(&lines.link(t.flags()))
    }
}

/// The window field of a segment that acknowledges up to `ack`, and the right edge that it promises.
///
/// The edge advances in steps worth a segment (RFC 9293 §3.8.6.2.2 MUST-39) and never goes back (SHLD-14). The
/// exception is the rounding by the window shift (RFC 7323 §2.4): up while there is room for it, else down.
#[inline]
fn advertise(t: &Tcb, lines: &Lines, ack: Seq) -> (u16, Seq) {
    let shift = lines.identity.shift();
    let room = t.rcv_limit().distance(ack).max(0) as u32;
    let now = t.rcv_adv().distance(ack).max(0) as u32;
    let (mss, rx_bytes) = (u32::from(t.mss()), lines.identity.rx_bytes.get());
    let mut field = room >> shift;
    let grows = room.saturating_sub(now);
    // A step is never less than the first of these.
    if grows < mss.min(rx_bytes / 4) || grows < mss.min(step_max(rx_bytes)) {
        // Rounded up; neither has the highest bit.
        field = field.min((now + (1 << shift) - 1) >> shift);
    }
    let field = field.min(0xffff);
    (field as u16, t.rcv_adv().max(ack.add(field << shift)))
}
