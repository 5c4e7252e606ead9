//! The messages of the slow path.

use super::context::{FastState, FlowTurn};
use super::wheel::Timer;
use super::{close, pace, post, recovery};
use crate::buffers::RxBatch;
use crate::counters::Drop;
use crate::flow::{FlowId, FlowSetup, Link, PortId, Window};
use crate::messages::{ToFast, ToSlow};
use crate::table::FlowTable;
use crate::table::bits::{
    ACK_NOW, ACTIVE, DEAD, KEEPALIVE, PROBE, RECOVER_SET, RECOVERY, REMOVING, RESEND, RESTING, SACK, TAIL, TIMESTAMPS,
    TIMING, TRACKED, UNDO, VLAN,
};
use crate::table::stages::{Close, Control, Install, Loss, Post};
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

/// All messages but `Inject`, `Install` and `Splice`.
pub(super) fn message(by: Control, table: &FlowTable, state: &mut FastState, now: Micros, message: ToFast) {
    let post = Post::from(by);
    let flow = match &message {
        ToFast::Remove(flow) => return remove(by, table, state, now, *flow),
        ToFast::SetWeight { class, weight } => return state.scheduler.by(post).set_weight(*class, *weight),
        ToFast::SetLimit { class, bytes_per_s } => {
            let FastState { scheduler, wheel, .. } = state;
            return scheduler.by(post).set_limit(wheel.by(post), now, *class, *bytes_per_s);
        }
        ToFast::Transmit(port, frame) => return transmit(by, state, *port, frame),
        ToFast::Inject(..) | ToFast::Install(_) | ToFast::Splice(..) => return,
        ToFast::Relink(flow, _)
        | ToFast::SetWindow(flow, _)
        | ToFast::Timeout(flow, _)
        | ToFast::ProbeWindow(flow)
        | ToFast::ProbeTail(flow)
        | ToFast::SendAck(flow)
        | ToFast::Challenge(flow)
        | ToFast::KeepAlive(flow)
        | ToFast::SetMss(flow, _)
        | ToFast::SetClass(flow, _)
        | ToFast::SetService { flow, .. }
        | ToFast::Deactivate(flow)
        | ToFast::Abort { flow, .. } => *flow,
    };
    let Some(mut turn) = FlowTurn::of(table, state, now, flow) else { return };
    // A flow that rests may go on, with what has changed meanwhile.
    let lasts =
        matches!(message, ToFast::Relink(..) | ToFast::SetMss(..) | ToFast::SetClass(..) | ToFast::SetService { .. });
    if turn.t.has(DEAD) && !(lasts && turn.t.has(RESTING)) {
        return;
    }
    let loss = Loss::from(by);
    match message {
        ToFast::SetWindow(_, window) => set_window(by, &mut turn, &window),
        ToFast::Timeout(_, window) => timeout(by, &mut turn, &window),
        ToFast::ProbeWindow(_) => {
            turn.t.set(by, PROBE);
            post::schedule(post, &mut turn);
        }
        ToFast::ProbeTail(_) => probe_tail(by, &mut turn),
        ToFast::SendAck(_) => turn.t.set(by, ACK_NOW),
        ToFast::Challenge(_) => turn.challenge(by),
        ToFast::KeepAlive(_) => {
            turn.t.set(by, KEEPALIVE);
            post::schedule(post, &mut turn);
        }
        ToFast::SetMss(_, mss) => {
            let shrinks = mss < turn.t.mss();
            turn.t.size(by).mss = mss.max(1);
            resized(loss, &mut turn, shrinks);
        }
        ToFast::SetService { tos, ttl, .. } => turn.lines.identity.set_service(by, tos, ttl),
        // A flow queued in its old class keeps that place for one turn.
        ToFast::SetClass(_, class) => turn.lines.identity.set_class(by, class),
        ToFast::Deactivate(_) => {
            turn.t.clear(by, ACTIVE);
            turn.activate(by);
        }
        ToFast::Abort { rst, errno, .. } => close::kill(Close::from(by), &mut turn, rst, errno),
        ToFast::Relink(_, link) => relink(by, &mut turn, &link),
        ToFast::Install(_)
        | ToFast::Remove(_)
        | ToFast::SetWeight { .. }
        | ToFast::SetLimit { .. }
        | ToFast::Transmit(..)
        | ToFast::Splice(..)
        | ToFast::Inject(..) => {}
    }
    post::flow(post, &mut turn);
    turn.store(by);
}

/// Takes a flow over.
pub(super) fn install(
    by: Install,
    post: Post,
    table: &FlowTable,
    state: &mut FastState,
    now: Micros,
    setup: &FlowSetup,
) {
    if table.install(by, state.flow_group, now.0, setup).is_none() {
        state.counters.drop(Drop::NoMemory);
        state.outbox.messages.push_back(ToSlow::Removed(setup.flow));
        return;
    }
    state.wheel.by(post).reserve(setup.flow.0);
    state.lookup.by(by).insert(&setup.tuple, setup.flow);
}

/// Unlinks the flow now. Reports it once no queue holds it, so its number can be reused.
fn remove(by: Control, table: &FlowTable, state: &mut FastState, now: Micros, flow: FlowId) {
    let post = Post::from(by);
    let Some(mut turn) = FlowTurn::of(table, &mut *state, now, flow) else {
        let removing = table.get(flow).is_some_and(|lines| lines.protocol.load_own(post).has(REMOVING));
        if !removing {
            state.outbox.messages.push_back(ToSlow::Removed(flow));
        }
        return;
    };
    let FlowTurn { state, lines, t, .. } = &mut turn;
    state.lookup.by(by).remove(&lines.tuple(t.flags()), flow);
    state.wheel.by(post).cancel(Timer::Pace(flow));
    state.wheel.by(post).cancel(Timer::Recovery(flow));
    close::forget(Close::from(by), &mut turn);
    turn.lines.identity.set_owner(by, None);
    turn.t.set(post, REMOVING);
    turn.t.set(by, DEAD);
    post::settle(post, &mut turn.t, &mut turn.state.outbox, flow);
    turn.store(by);
}

fn transmit(by: Control, state: &mut FastState, port: PortId, frame: &[u8]) {
    let frames = &mut state.frames.by(by).0;
    if frames.len() < FRAMES {
        frames.push_back((port, frame.into()));
    }
}

fn relink(by: Control, turn: &mut FlowTurn<'_>, link: &Link) {
    turn.lines.set_link(by, link);
    turn.t.clear(by, VLAN);
    if link.vlan.is_some() {
        turn.t.set(by, VLAN);
    }
}

/// While the fast path repairs a loss, it decides on the window itself. A threshold decided before the loss must not
/// undo the reduction; one decided after it can only be lower.
fn set_window(by: Control, turn: &mut FlowTurn<'_>, window: &Window) {
    let loss = Loss::from(by);
    let present = turn.lines.measures.ssthresh.get();
    let ssthresh = match window.ssthresh {
        Window::KEEP => present,
        ssthresh if turn.t.has(RECOVERY) => ssthresh.min(present),
        ssthresh => ssthresh,
    };
    turn.lines.measures.set_window(loss, &Window { ssthresh, ..*window });
    pace::set_rate(Post::from(by), turn, window.pacing);
    if !turn.t.has(RECOVERY) && window.cwnd != Window::KEEP {
        turn.t.congestion(loss).cwnd = window.cwnd.max(u32::from(turn.t.mss()));
    }
}

/// The tail probe of a lone segment. With several out the timer of the fast path comes first.
fn probe_tail(by: Control, turn: &mut FlowTurn<'_>) {
    let t = &turn.t;
    if t.idle() || t.any(RECOVERY | TRACKED) || t.snd_wnd() == 0 || recovery::timed_out(t, turn.lines) {
        return;
    }
    if recovery::track(Loss::from(by), turn) {
        turn.t.set(by, TAIL);
        post::schedule(Post::from(by), turn);
    }
}

/// Goes back to SND.UNA (RFC 6298 §5.4), also where the window has shrunk (RFC 9293 §3.8.6, SHLD-16). Duplicate ACKs of
/// what is sent twice start no recovery (RFC 6582 §4).
fn timeout(by: Control, turn: &mut FlowTurn<'_>, window: &Window) {
    if turn.t.idle() {
        return;
    }
    let loss = Loss::from(by);
    turn.state.counters.timeouts += 1;
    towpath_probes::rto(turn.state.flow_group, turn.flow.0, turn.t.snd_una().0, turn.t.flight());
    let again = recovery::timed_out(&turn.t, turn.lines);
    if !again && !turn.t.has(RECOVERY | UNDO) {
        recovery::remember(loss, &mut turn.t, turn.lines);
    }
    turn.lines.measures.set_window(loss, window);
    pace::set_rate(Post::from(by), turn, window.pacing);
    let (t, lines) = (&mut turn.t, turn.lines);
    lines.measures.grown.set(loss, 0);
    lines.addresses.recover.set(loss, t.snd_max().0);
    t.congestion(loss).cwnd = window.cwnd.max(u32::from(t.mss()));
    recovery::say_reduced(loss, t);
    t.duplicates(loss).in_a_row = 0;
    t.clear(loss, RECOVERY);
    t.clear(loss, TIMING);
    t.clear(loss, RESEND | TAIL);
    t.set(loss, RECOVER_SET);
    // Timestamps tell at once whether it was needless; without them it takes two acknowledgements.
    let doubtful = !again && !t.has(TIMESTAMPS);
    let lost = all_again(loss, turn, doubtful);
    turn.lines.rate.bytes_lost.add(loss, u64::from(lost));
}

/// Marks all unreported outstanding bytes for retransmission; returns their count. `doubtful`: F-RTO may undo it.
fn all_again(by: Loss, turn: &mut FlowTurn<'_>, doubtful: bool) -> u32 {
    let FlowTurn { state, lines, t, .. } = turn;
    let scoreboard = if t.has(TRACKED) { state.scoreboards.by(by).get(lines.recovery.scoreboard.get()) } else { None };
    let Some(scoreboard) = scoreboard else {
        t.next(by).snd_nxt = t.snd_una();
        return t.flight();
    };
    scoreboard.doubtful = u8::from(doubtful);
    lines.recovery.deadline.set(by, 0);
    let lost = scoreboard.time_out();
    recovery::count(by, &mut state.scoreboards, t, lines);
    lost
}

/// The path's packets are of another size now. If they are smaller, segments that are out in larger ones are lost, but
/// not by congestion. They go again at once, and the window stays (RFC 1191 §6.4, RFC 8201 §5.4).
fn resized(by: Loss, turn: &mut FlowTurn<'_>, shrinks: bool) {
    let (t, lines) = (&mut turn.t, turn.lines);
    t.congestion(by).cwnd = t.cwnd().max(u32::from(t.mss()));
    if shrinks && !t.idle() {
        if t.has(RECOVERY) {
            // In recovery the window is on its way to the threshold.
            t.congestion(by).cwnd = lines.measures.ssthresh.get().max(u32::from(t.mss()));
        }
        lines.addresses.recover.set(by, t.snd_max().0);
        t.duplicates(by).in_a_row = 0;
        if t.has(SACK) && !t.has(TRACKED) {
            // The segment goes in pieces now, of which each may be reported.
            recovery::track(by, turn);
        }
        turn.t.clear(by, RECOVERY | UNDO);
        turn.t.clear(by, TIMING);
        turn.t.clear(by, RESEND | TAIL);
        turn.t.set(by, RECOVER_SET);
        all_again(by, turn, false);
    }
}
