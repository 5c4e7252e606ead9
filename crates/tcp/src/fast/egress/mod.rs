//! Last stage: headers from the flow's template, payload from the ring straight into the port's buffer, checksum, out. Of a
//! super-segment the port gets the payload where it lies.

mod after;
pub(super) mod at_once;
mod frame;
mod meter;
mod repair;
mod super_segment;

use super::context::{FastState, FlowTurn};
use super::plan::{self, Plan};
use super::rare::rare;
use super::scheduler::Next;
use super::{credit, ecn, prediction};
use crate::buffers::{Rings, TxPorts};
use crate::counters::Stage;
use crate::flow::FlowId;
use crate::seq::Seq;
use crate::table::bits::FlagSet;
use crate::table::bits::{
    ACK_NOW, ACK_OWED, Agreed, BYPASSING, DEAD, ECN, ECN_CWR, ECN_DCTCP, ECN_EDGES, KEEPALIVE, LIMIT_WAIT, LOST, PACED,
    PROBE, QueueFlags, RESEND, RESET, TAIL,
};
use crate::table::stages::{Egress, Post};
use crate::table::tcb::Marks;
use crate::table::{FlowTable, Lines};
use crate::time::Micros;
use after::{end_turn, go_on, record};
use frame::Acknowledged;
use meter::Meter;
use towpath_probes as probes;
use towpath_wire::offload::TxOffload;
use towpath_wire::segment::flags;

/// Sends what is scheduled, up to `budget` frames.
pub(super) fn run(
    by: Egress,
    table: &FlowTable,
    state: &mut FastState,
    now: Micros,
    budget: usize,
    rings: &impl Rings,
    ports: &mut impl TxPorts,
) -> usize {
    let post = Post::from(by);
    let replies = std::mem::take(&mut state.at_once);
    let mut sent = replies + frames(by, state, budget.saturating_sub(replies), ports);
    // After a turn that ended by a panic there may be some left.
    state.scheduler.by(post).end_serving();
    state.sending.by(by).ms = now.ms();
    // Mostly all replies have gone at once.
    let ports_with_work = if state.scheduler.is_empty() { 0 } else { state.scheduler.ports() };
    for _ in 0..ports_with_work {
        let port = state.scheduler.by(post).next_port();
        while sent < budget {
            if state.scheduler.by(post).serve(port) {
                // A turn to send queues no flow but its own, so the class stays alone.
                let mut full = false;
                while let Some(flow) = state.scheduler.by(post).pop_served() {
                    let Some(lines) = table.get(flow) else { continue };
                    if state.config.prediction && predicted(by, (&mut *state, lines), (now, flow), rings, ports) {
                        sent += 1;
                        if sent >= budget {
                            break;
                        }
                        continue;
                    }
                    // Or the port has not taken the segment, and nothing has changed.
                    let left = (i64::MAX, false, budget - sent);
                    let (frames, end) = any(by, (&mut *state, lines), (now, flow), left, rings, ports);
                    sent += frames;
                    full = end == End::NoRoom && lines.identity.port() == port;
                    if sent >= budget || full {
                        break;
                    }
                }
                state.scheduler.by(post).end_serving();
                if full || state.scheduler.is_empty() {
                    break;
                }
                continue;
            }
            let Some(Next { flow, share, bypass }) = state.scheduler.by(post).pop(port) else { break };
            let Some(lines) = table.get(flow) else { continue };
            let left = (share, bypass, budget - sent);
            let (frames, end) = any(by, (&mut *state, lines), (now, flow), left, rings, ports);
            sent += frames;
            if end == End::NoRoom && lines.identity.port() == port {
                break;
            }
        }
    }
    state.counters.stage(Stage::Egress, sent);
    probes::stage::<{ probes::Stage::Egress as u32 }>(sent);
    sent
}

/// A turn to send. `share`, `bypass`: as in [`Next`]; `most`: the most frames.
#[inline(never)]
fn any<R: Rings, P: TxPorts>(
    by: Egress,
    (state, lines): (&mut FastState, &Lines),
    (now, flow): (Micros, FlowId),
    (share, bypass, most): (i64, bool, usize),
    rings: &R,
    ports: &mut P,
) -> (usize, End) {
    let post = Post::from(by);
    let mut quota = state.config.segments_per_turn.min(most);
    let turn = FlowTurn { t: lines.protocol.load(), state, lines, flow, now };
    if share != i64::MAX {
        quota = quota.min(share as usize / usize::from(turn.t.mss()) + 1);
    }
    let mut send = SendTurn::<_, _, false>::new(turn, rings, ports);
    send.turn.t.clear(post, BYPASSING | LIMIT_WAIT);
    let metered = bypass || send.turn.t.has(PACED) || send.turn.state.scheduler.limits();
    let meter = if metered { send.meter(post, bypass) } else { Meter::NONE };
    send.super_bytes = send.super_bytes(share);
    let (frames, mut end) = send.run(by, quota);
    if share != i64::MAX {
        let id = &send.turn.lines.identity;
        send.turn.state.scheduler.by(post).charge(id.port(), id.class(), send.bytes);
    }
    if bypass {
        send.end_bypass(post, end);
    } else {
        if metered {
            end = meter.end(post, &mut send, end);
        }
        end_turn::<false>(by, &mut send.turn, end);
    }
    send.turn.store(by);
    (frames, end)
}

/// The predicted turn to send of a flow that no limit or other class holds back. It is one segment. It is all that the flow has
/// to send, and carries the acknowledgement that it owes. False: this is another turn, or the port has no room.
#[inline(always)]
fn predicted<R: Rings, P: TxPorts>(
    by: Egress,
    (state, lines): (&mut FastState, &Lines),
    (now, flow): (Micros, FlowId),
    rings: &R,
    ports: &mut P,
) -> bool {
    let Some((t, plan)) = prediction::all_unsent(lines) else { return false };
    let turn = FlowTurn { t, state, lines, flow, now };
    let mut send = SendTurn::<_, _, true>::new(turn, rings, ports);
    send.turn.t.clear(Post::from(by), BYPASSING | LIMIT_WAIT);
    let sent = send.segment(by, &plan, |turn| {
        go_on::<true>(by, turn, &plan);
        end_turn::<true>(by, turn, End::Done);
        turn.store_words::<_, { prediction::SEND_READS }, { prediction::SEND_WRITES }>(by);
    });
    sent == Sent::Yes
}

/// The slow path's frames, in order per port.
fn frames(by: Egress, state: &mut FastState, budget: usize, ports: &mut impl TxPorts) -> usize {
    let (mut sent, mut full) = (0, None);
    for _ in 0..state.frames.0.len() {
        if sent == budget && full.is_none() {
            break;
        }
        let Some((port, frame)) = state.frames.by(by).0.pop_front() else { break };
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
                state.frames.by(by).0.push_back((port, frame));
            }
        }
    }
    sent
}

/// A flow whose super-segments have come to this many bytes goes to the back of the queue.
const BYTES_PER_TURN: usize = 48 << 10;

/// How a turn to send ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// Nothing more to send now.
    Done,
    /// The quota is used up.
    Quota,
    /// The port has no room.
    NoRoom,
    /// The class has no credit.
    NoCredit,
}

/// Flags for segments that come before new data.
const RARE: Marks =
    Marks::mask(DEAD, QueueFlags::EMPTY, ECN_EDGES, RESET.and(RESEND).and(PROBE).and(KEEPALIVE).and(LOST).and(TAIL));
/// Flags for segments that go whatever the windows say.
const MORE: Marks =
    Marks::mask(Agreed::EMPTY, QueueFlags::EMPTY, ACK_NOW, RESET.and(RESEND).and(PROBE).and(KEEPALIVE).and(TAIL));

/// The result of `SendTurn::send`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sent {
    Yes,
    NoRoom,
    /// The port's buffers are too small for it. It counts as lost.
    TooLong,
}

/// One flow's turn to send.
struct SendTurn<'a, R, P, const PREDICTED: bool> {
    turn: FlowTurn<'a>,
    /// Credit that pacing and the class's rate limit leave, see [`credit`].
    credit: i64,
    /// Only the credit keeps something from being sent.
    held: bool,
    /// ECN field of the next packet.
    ect: u8,
    /// Bytes of its frames.
    bytes: usize,
    /// Largest super-segment, bytes of payload; 0 = the port cuts none.
    super_bytes: u32,
    rings: &'a R,
    ports: &'a mut P,
}

impl<'a, R, P, const PREDICTED: bool> SendTurn<'a, R, P, PREDICTED> {
    #[inline(always)]
    fn new(turn: FlowTurn<'a>, rings: &'a R, ports: &'a mut P) -> Self {
        Self { turn, credit: i64::MAX, held: false, ect: 0, bytes: 0, super_bytes: 0, rings, ports }
    }
}

impl<R: Rings, P: TxPorts> SendTurn<'_, R, P, false> {
    #[inline]
    fn run(&mut self, by: Egress, quota: usize) -> (usize, End) {
        let mut frames = 0;
        while frames < quota && (self.super_bytes == 0 || self.bytes < BYTES_PER_TURN) {
            match self.one(by) {
                Some(Sent::Yes) => frames += 1,
                Some(Sent::NoRoom) => return (frames, End::NoRoom),
                None | Some(Sent::TooLong) => return (frames, End::Done),
            }
        }
        let (t, lines) = (&self.turn.t, self.turn.lines);
        let sends = plan::repair_may_go(t, lines) || plan::next(t, lines).is_some();
        let more = t.marked(MORE) || (!t.has(DEAD) && sends);
        (frames, if more { End::Quota } else { End::Done })
    }

    /// Sends the flow's next frame, the most urgent first; `None` = it has none.
    #[inline]
    fn one(&mut self, by: Egress) -> Option<Sent> {
        if self.credit < 0 {
            return self.without_credit(by);
        }
        if self.turn.t.marked(RARE)
            && let Some(result) = self.rare(by)
        {
            return result;
        }
        if let Some(plan) = plan::largest::<false>(&self.turn.t, self.turn.lines, self.super_bytes) {
            return Some(self.segment(by, &plan, |turn| go_on::<false>(by, turn, &plan)));
        }
        self.turn.t.has(ACK_NOW).then(|| self.send_empty(by, flags::ACK))
    }

    /// Sends a segment without data, as high as the peer's window lets it pass.
    fn send_empty(&mut self, by: Egress, flags: u8) -> Sent {
        self.send(by, (self.empty_seq(), 0), flags, |_| {})
    }

    /// Sends a RST, a repeated segment or a window probe. `None` = nothing of that is due.
    #[cold]
    fn rare(&mut self, by: Egress) -> Option<Option<Sent>> {
        if self.turn.t.has(RESET) {
            let sent = self.send_empty(by, flags::RST | flags::ACK);
            if sent != Sent::NoRoom {
                self.turn.t.clear(by, RESET);
                self.turn.state.counters.resets += 1;
            }
            return Some(Some(sent));
        }
        if self.turn.t.has(DEAD) {
            if self.turn.t.has(ACK_NOW) {
                // Removed (an abort would have cleared it) before the peer's FIN was answered.
                return Some(Some(self.send_empty(by, flags::ACK)));
            }
            self.turn.t.clear(by, ACK_NOW | ACK_OWED);
            self.turn.t.clear(by, RESEND | PROBE | KEEPALIVE);
            return Some(None);
        }
        if let Some((edge, marked)) = ecn::pending(&self.turn.t, self.turn.lines) {
            return Some(Some(self.acknowledge_edge(by, edge, marked)));
        }
        if self.turn.t.has(KEEPALIVE) {
            return self.keepalive(by);
        }
        if !self.turn.t.any(RESEND | PROBE) {
            return self.repair(by);
        }
        let t = &self.turn.t;
        let (request, limit) = if t.has(RESEND) {
            (RESEND, t.flight().min(u32::from(t.mss())))
        } else {
            (PROBE, t.snd_wnd().clamp(1, u32::from(t.mss())))
        };
        // A probe that comes when the window is open again and in use has nothing to do.
        let late = request == PROBE && t.snd_wnd() != 0 && !t.idle();
        let Some(plan) = plan::first(t, self.turn.lines, limit).filter(|_| !late) else {
            self.turn.t.clear(by, request);
            return None;
        };
        let sent = self.data(by, &plan);
        let t = &mut self.turn.t;
        if sent != Sent::NoRoom {
            t.clear(by, request);
        }
        if sent == Sent::Yes && request == PROBE && plan.len <= t.snd_wnd() {
            // Inside the window: sent like any other. Beyond it, SND.NXT stays, as the peer may not have taken the
            // byte.
            t.next(by).snd_nxt = t.snd_nxt().max(plan.end());
            // A new segment waits for half of the largest window ever. Perhaps that one was not the peer's buffer, so
            // it is lowered, to one segment at least. Half a segment is then the smallest that goes without waiting
            // (RFC 9293 §3.8.6.2.1).
            let max = &self.turn.lines.measures.max_wnd;
            let least = u32::from(t.mss()).min(max.get());
            max.set(by, t.snd_wnd().max(max.get() / 2).max(least));
        }
        Some(Some(sent))
    }

    /// DCTCP's acknowledgement of the data that came before marks began or ended (RFC 8257 §3.2).
    fn acknowledge_edge(&mut self, by: Egress, edge: Seq, marked: bool) -> Sent {
        let sent = self.send_as(by, (self.empty_seq(), 0), flags::ACK, Acknowledged { up_to: edge, marked });
        if sent == Sent::Yes {
            ecn::acknowledged(by, &mut self.turn.t, self.turn.lines);
        }
        sent
    }

    /// A keepalive probe (RFC 9293 §3.8.4 SHLD-12): nothing, at a number that the peer has acknowledged, so that it
    /// answers.
    fn keepalive(&mut self, by: Egress) -> Option<Option<Sent>> {
        // MUST-26: only on an idle connection.
        if !self.turn.t.idle() {
            self.turn.t.clear(by, KEEPALIVE);
            return None;
        }
        let sent = self.send(by, (self.turn.t.snd_max().sub(1), 0), flags::ACK, |_| {});
        if sent != Sent::NoRoom {
            self.turn.t.clear(by, KEEPALIVE);
        }
        Some(Some(sent))
    }
}

impl<R: Rings, P: TxPorts, const PREDICTED: bool> SendTurn<'_, R, P, PREDICTED> {
    /// Sends a segment with data or FIN and records it; SND.NXT is the caller's.
    #[inline(always)]
    fn data(&mut self, by: Egress, plan: &Plan) -> Sent {
        self.segment(by, plan, |_| {})
    }

    /// [`SendTurn::data`]. `then`: what else changes of the flow if it goes.
    #[inline(always)]
    fn segment(&mut self, by: Egress, plan: &Plan, then: impl FnOnce(&mut FlowTurn<'_>)) -> Sent {
        let push = if plan.push && plan.len != 0 { flags::PSH } else { 0 };
        let fin = if rare::<PREDICTED>(|| plan.fin) { flags::FIN } else { 0 };
        let cwr = if rare::<PREDICTED>(|| self.turn.t.has(ECN)) { self.capable(plan) } else { 0 };
        let sent = self.send(by, (plan.seq, plan.len), flags::ACK | push | fin | cwr, |turn| {
            if cwr != 0 {
                turn.t.clear(by, ECN_CWR);
            }
            record::<PREDICTED>(by, turn, plan);
            then(turn);
        });
        self.ect = 0;
        if sent == Sent::Yes {
            self.credit -= credit::cost(plan.len);
        }
        sent
    }

    /// ECN of a segment. Only new data are ECN-capable, no retransmissions and no window probes (RFC 3168 §6.1.5,
    /// §6.1.6). The first of them after a reduction carries CWR (§6.1.2); this flag is returned. With DCTCP each one of
    /// a window below two segments carries it. A DCTCP receiver ignores it (RFC 8257 §3.2), but acknowledges at once
    /// (as Linux). So a lone segment does not wait for a delayed acknowledgement.
    fn capable(&mut self, plan: &Plan) -> u8 {
        let t = &self.turn.t;
        if plan.len == 0 || plan.seq.before(t.snd_max()) || t.has(PROBE) {
            return 0;
        }
        self.ect = ecn::ECT0;
        let lone = t.has(ECN_DCTCP) && t.cwnd() < 2 * u32::from(t.mss());
        if t.has(ECN_CWR) || lone { flags::CWR } else { 0 }
    }
}
