//! Egress of a flow with a scoreboard: repairs, tail probes, and the record of when what went out.

use super::{SendTurn, Sent};
use crate::buffers::{Rings, TxPorts};
use crate::fast::context::FlowTurn;
use crate::fast::{plan, rack, recovery};
use crate::seq::Seq;
use crate::table::bits::{LOST, RECOVERY, TAIL, TRACKED};
use crate::table::stages::{Egress, Loss};
use towpath_probes::{self as probes, Again};

impl<R: Rings, P: TxPorts> SendTurn<'_, R, P, false> {
    /// Sends a segment that the scoreboard counts as lost, if the window lets it go; else the tail probe. `None` =
    /// neither is due.
    #[cold]
    pub(super) fn repair(&mut self, by: Egress) -> Option<Option<Sent>> {
        let loss = Loss::from(by);
        let (t, lines) = (&self.turn.t, self.turn.lines);
        let scoreboard = self.turn.state.scoreboards.by(loss).get(lines.recovery.scoreboard.get())?;
        if t.has(LOST) {
            if !plan::repair_may_go(t, lines) {
                return None;
            }
            let (start, last) = scoreboard.first_lost()?;
            let plan = plan::again(t, lines, start, last.bytes_since(start).min(u32::from(t.mss())))?;
            // If the peer has taken its window back, all repairs but the first wait (RFC 9293 §3.8.6).
            if start != t.snd_una() && plan.len > t.snd_wnd().saturating_sub(start.bytes_since(t.snd_una())) {
                return None;
            }
            return Some(Some(self.data(by, &plan)));
        }
        let plan = plan::tail(t, lines).filter(|_| !t.idle());
        self.turn.t.clear(by, TAIL);
        let plan = plan?;
        let again = plan.seq.before(self.turn.t.snd_max());
        let sent = self.data(by, &plan);
        if sent == Sent::Yes {
            let t = &mut self.turn.t;
            t.next(by).snd_nxt = t.snd_nxt().max(plan.end());
            self.turn.state.counters.tail_probes += 1;
            probes::tlp(self.turn.state.flow_group, self.turn.flow.0, plan.seq.0, plan.len, again);
            if let Some(scoreboard) = self.turn.state.scoreboards.by(loss).get(lines.recovery.scoreboard.get()) {
                scoreboard.probe = Some((t.snd_max(), again));
                scoreboard.clean = false;
            }
        }
        Some(Some(sent))
    }
}

/// Notes on the scoreboard that `seq..end` goes out now; SND.MAX has not moved yet.
#[inline(never)]
pub(super) fn track(by: Loss, turn: &mut FlowTurn<'_>, seq: Seq, end: Seq) {
    let now = turn.now.0 as u32;
    if !turn.t.has(TRACKED) {
        if turn.t.has(RECOVERY) || !end.after(turn.t.snd_max()) {
            return;
        }
        if !recovery::track(by, turn) {
            return;
        }
    }
    let (entry, grain_us) = (turn.lines.recovery.scoreboard.get(), turn.lines.measures.srtt_us.get() / 32);
    let Some(scoreboard) = turn.state.scoreboards.by(by).get(entry) else { return };
    if turn.t.has(RECOVERY) {
        scoreboard.reduction.out = scoreboard.reduction.out.saturating_add(end.bytes_since(seq));
    }
    let snd_max = turn.t.snd_max();
    if seq.before(snd_max) {
        let last = if end.after(snd_max) { snd_max } else { end };
        scoreboard.resent(seq, last, now);
        recovery::count(by, &mut turn.state.scoreboards, &mut turn.t, turn.lines);
    } else if scoreboard.clean {
        scoreboard.sent(end, now, grain_us);
        rack::arm_probe(by, turn, end);
        return;
    }
    if end.after(snd_max)
        && let Some(scoreboard) = turn.state.scoreboards.by(by).get(entry)
    {
        scoreboard.sent(end, now, grain_us);
    }
}

/// Tells tracers that a flow's bytes are sent again, and why.
#[cold]
#[inline(never)]
pub(super) fn resent(turn: &FlowTurn<'_>, seq: Seq, len: u32) {
    let (t, lines) = (&turn.t, turn.lines);
    let again = match () {
        () if t.has(RECOVERY) => Again::Fast,
        () if recovery::timed_out(t, lines) => Again::Timeout,
        () => Again::Other,
    };
    let tuple = lines.tuple(t.flags());
    let flow = (turn.state.flow_group, turn.flow.0);
    probes::retransmit(flow, again, seq.0, len, tuple.local_end(), tuple.remote_end());
}
