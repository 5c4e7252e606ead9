//! What the slow path asks for.

use super::wheel::Timer;
use super::{State, owned, pace, post, recovery, settle};
use crate::buffers::{PortId, RxBatch};
use crate::counters::Drop;
use crate::flow::flow_flags::{ACTIVE, RECOVERY, SACK, TIMESTAMPS};
use crate::flow::{FlowId, FlowSetup, Window};
use crate::messages::{ToFast, ToSlow};
use crate::table::{FlowTable, Lines, Tcb, bits};
use crate::time::Micros;
use towpath_wire::offload::RxChecksum;

/// Frames of the slow path kept while their port has no room; more are lost, as on any full interface.
const FRAMES: usize = 4096;

/// A batch of one frame that the slow path gives back. Its checksum was verified when it came.
pub(super) struct Injected(pub Box<[u8]>);

impl RxBatch for Injected {
    fn len(&self) -> usize {
        1
    }
    fn bytes(&self, _: usize) -> &[u8] {
        &self.0
    }
    fn checksum(&self, _: usize) -> RxChecksum {
        RxChecksum::Valid
    }
}

/// Everything but `Inject`.
pub(super) fn message(table: &FlowTable, state: &mut State, now: Micros, message: ToFast) {
    let flow = match &message {
        ToFast::Install(setup) => return install(table, state, now, setup),
        ToFast::Remove(flow) => return remove(table, state, *flow),
        ToFast::SetWeight { group, weight } => return state.scheduler.set_weight(*group, *weight),
        ToFast::SetLimit { group, bytes_per_s } => {
            return state.scheduler.set_limit(&mut state.wheel, now, *group, *bytes_per_s);
        }
        ToFast::Transmit(port, frame) => return transmit(state, *port, frame),
        ToFast::Inject(..) => return,
        ToFast::Relink(flow, _)
        | ToFast::SetWindow(flow, _)
        | ToFast::Timeout(flow, _)
        | ToFast::ProbeWindow(flow)
        | ToFast::ProbeTail(flow)
        | ToFast::SendAck(flow)
        | ToFast::Challenge(flow)
        | ToFast::KeepAlive(flow)
        | ToFast::SetMss(flow, _)
        | ToFast::SetGroup(flow, _)
        | ToFast::SetService { flow, .. }
        | ToFast::Deactivate(flow)
        | ToFast::Abort { flow, .. } => *flow,
    };
    let Some((lines, mut t)) = owned(table, state, flow) else { return };
    if t.has(bits::DEAD) {
        return;
    }
    match message {
        ToFast::SetWindow(_, window) => set_window(state, now, flow, &mut t, lines, &window),
        ToFast::Timeout(_, window) => timeout(state, now, flow, &mut t, lines, &window),
        ToFast::ProbeWindow(_) => {
            t.flags |= bits::PROBE;
            state.schedule(&mut t, lines, flow);
        }
        ToFast::ProbeTail(_) => probe_tail(state, now, &mut t, lines, flow),
        ToFast::SendAck(_) => t.flags |= bits::ACK_NOW,
        ToFast::Challenge(_) => state.challenge(now, &mut t, lines),
        ToFast::KeepAlive(_) => {
            t.flags |= bits::KEEPALIVE;
            state.schedule(&mut t, lines, flow);
        }
        ToFast::SetMss(_, mss) => set_mss(state, now, &mut t, lines, mss),
        ToFast::SetService { tos, ttl, .. } => lines.identity.set_service(tos, ttl),
        // Where it stands in the old group's queue, it has that one turn yet.
        ToFast::SetGroup(_, group) => lines.identity.set_group(group),
        ToFast::Deactivate(_) => {
            t.flags &= !ACTIVE;
            state.activate(&mut t, flow);
        }
        ToFast::Abort { rst, errno, .. } => state.kill(&mut t, lines, flow, rst, errno),
        ToFast::Relink(_, link) => t.flags = lines.set_link(t.flags, &link),
        ToFast::Install(_)
        | ToFast::Remove(_)
        | ToFast::SetWeight { .. }
        | ToFast::SetLimit { .. }
        | ToFast::Transmit(..)
        | ToFast::Inject(..) => {}
    }
    post::flow(state, now, flow, lines, &mut t);
    lines.protocol.store(&t);
}

fn install(table: &FlowTable, state: &mut State, now: Micros, setup: &FlowSetup) {
    if table.install(state.core, now.0, setup).is_none() {
        state.counters.drop(Drop::NoMemory);
        state.outbox.push_back(ToSlow::Removed(setup.flow));
        return;
    }
    state.wheel.reserve(setup.flow.0);
    state.lookup.insert(&setup.tuple, setup.flow);
}

/// The flow is found no more from now on; it is reported when the last queue has let it go, so that nothing of it is left when its
/// number is used again.
fn remove(table: &FlowTable, state: &mut State, flow: FlowId) {
    let Some((lines, mut t)) = owned(table, state, flow) else {
        let removing = table.get(flow).is_some_and(|lines| lines.protocol.flags() & bits::REMOVING != 0);
        if !removing {
            state.outbox.push_back(ToSlow::Removed(flow));
        }
        return;
    };
    state.lookup.remove(&lines.tuple(t.flags), flow);
    state.wheel.cancel(Timer::Pace(flow));
    state.wheel.cancel(Timer::Recovery(flow));
    state.untrack(&mut t, lines);
    state.out_of_order.release(t.out_of_order);
    t.out_of_order = 0;
    t.acks.set_due(0);
    t.flags = t.flags & !bits::INSTALLED | bits::REMOVING | bits::DEAD;
    t.flags = settle(&mut state.outbox, flow, t.flags);
    lines.protocol.store(&t);
}

fn transmit(state: &mut State, port: PortId, frame: &[u8]) {
    if state.frames.len() < FRAMES {
        state.frames.push_back((port, frame.into()));
    }
}

/// While the fast path repairs a loss, the window is its own. A threshold decided before the loss must not undo the reduction; what
/// is decided after it can only be lower.
fn set_window(state: &mut State, now: Micros, flow: FlowId, t: &mut Tcb, lines: &Lines, window: &Window) {
    let present = lines.measures.ssthresh.get();
    let ssthresh = match window.ssthresh {
        Window::KEEP => present,
        ssthresh if t.has(RECOVERY) => ssthresh.min(present),
        ssthresh => ssthresh,
    };
    lines.measures.set_window(&Window { ssthresh, ..*window });
    pace::set_rate(state, now, flow, t, lines, window.pacing);
    if !t.has(RECOVERY) && window.cwnd != Window::KEEP {
        t.cwnd = window.cwnd.max(u32::from(t.mss));
    }
}

/// The tail probe of a lone segment; with several out the timer of the fast path comes first.
fn probe_tail(state: &mut State, now: Micros, t: &mut Tcb, lines: &Lines, flow: FlowId) {
    if t.idle() || t.any(RECOVERY | bits::TRACKED) || t.snd_wnd == 0 || recovery::timed_out(t, lines) {
        return;
    }
    if state.track(t, lines, now.0 as u32) {
        t.flags |= bits::TAIL;
        state.schedule(t, lines, flow);
    }
}

/// Go back to SND.UNA (RFC 6298 §5.4), also where the window has shrunk (RFC 9293 §3.8.6, SHLD-16); duplicate ACKs of what is sent twice
/// start no recovery (RFC 6582 §4).
fn timeout(state: &mut State, now: Micros, flow: FlowId, t: &mut Tcb, lines: &Lines, window: &Window) {
    if t.idle() {
        return;
    }
    state.counters.timeouts += 1;
    let again = recovery::timed_out(t, lines);
    if !again && !t.has(RECOVERY | bits::UNDO) {
        recovery::remember(t, lines);
    }
    lines.measures.set_window(window);
    pace::set_rate(state, now, flow, t, lines, window.pacing);
    lines.measures.grown.set(0);
    lines.identity.recover.set(t.snd_max.0);
    t.cwnd = window.cwnd.max(u32::from(t.mss));
    recovery::say_reduced(t);
    t.acks.set_seen(0);
    t.flags = t.flags & !(RECOVERY | bits::TIMING | bits::RESEND | bits::TAIL) | bits::RECOVER_SET;
    // Timestamps tell at once whether it was needless; without them it takes two acknowledgements.
    let lost = all_again(state, t, lines, !again && !t.has(TIMESTAMPS));
    lines.rate.bytes_lost.add(u64::from(lost));
}

/// All that is out and not reported is to be sent again; returns how many bytes. `doubtful`: it may turn out not to be lost (F-RTO).
fn all_again(state: &mut State, t: &mut Tcb, lines: &Lines, doubtful: bool) -> u32 {
    let board = if t.has(bits::TRACKED) { state.boards.get(lines.recovery.board.get()) } else { None };
    let Some(board) = board else {
        t.snd_nxt = t.snd_una;
        return t.snd_max.bytes_since(t.snd_una);
    };
    board.doubtful = u8::from(doubtful);
    lines.recovery.deadline.set(0);
    let lost = board.time_out();
    recovery::count(&mut state.boards, t, lines);
    lost
}

/// The path's packets are of another size now. What is out in larger ones is lost, and not by congestion: it goes again at once, and the
/// window stays (RFC 1191 §6.4, RFC 8201 §5.4).
fn set_mss(state: &mut State, now: Micros, t: &mut Tcb, lines: &Lines, mss: u16) {
    let shrinks = mss < t.mss;
    t.mss = mss.max(1);
    t.cwnd = t.cwnd.max(u32::from(t.mss));
    if shrinks && !t.idle() {
        if t.has(RECOVERY) {
            // What recovery has made of the window is not the reduction but the way there.
            t.cwnd = lines.measures.ssthresh.get().max(u32::from(t.mss));
        }
        lines.identity.recover.set(t.snd_max.0);
        t.acks.set_seen(0);
        if t.has(SACK) && !t.has(bits::TRACKED) {
            // The segment goes in pieces now, of which each may be reported.
            state.track(t, lines, now.0 as u32);
        }
        t.flags = t.flags & !(RECOVERY | bits::TIMING | bits::RESEND | bits::TAIL | bits::UNDO) | bits::RECOVER_SET;
        all_again(state, t, lines, false);
    }
}
