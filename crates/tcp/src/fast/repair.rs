//! What egress does for a flow with a scoreboard: repairs, tail probes, and the books about what goes out when.

use super::egress::{Sent, Turn, end};
use super::{plan, rack, recovery};
use crate::buffers::{Rings, TxPorts};
use crate::flow::flow_flags::RECOVERY;
use crate::seq::Seq;
use crate::table::{Tcb, bits};

impl<R: Rings, P: TxPorts> Turn<'_, R, P> {
    /// What the scoreboard says is lost, if the window lets it go, else the tail probe. `None` = go on with the usual.
    #[cold]
    pub(super) fn repair(&mut self) -> Option<Option<Sent>> {
        let (t, lines) = (&self.t, self.lines);
        let board = self.state.boards.get(lines.recovery.board.get())?;
        if t.has(bits::LOST) {
            if !plan::repair_may_go(t, lines) {
                return None;
            }
            let (start, last) = board.first_lost()?;
            let plan = plan::again(t, start, last.bytes_since(start).min(u32::from(t.mss)))?;
            // What the peer has taken its window back from waits, but for the first (RFC 9293 §3.8.6).
            if start != t.snd_una && plan.len > t.snd_wnd.saturating_sub(start.bytes_since(t.snd_una)) {
                return None;
            }
            return Some(Some(self.data(&plan)));
        }
        let plan = plan::tail(t).filter(|_| !t.idle());
        self.t.flags &= !bits::TAIL;
        let plan = plan?;
        let again = plan.seq.before(self.t.snd_max);
        let sent = self.data(&plan);
        if sent == Sent::Yes {
            self.t.snd_nxt = self.t.snd_nxt.max(end(&plan));
            self.state.counters.tail_probes += 1;
            if let Some(board) = self.state.boards.get(lines.recovery.board.get()) {
                board.probe = Some((self.t.snd_max, again));
                board.clean = false;
            }
        }
        Some(Some(sent))
    }

    /// Notes on the scoreboard that `seq..end` goes out now; SND.MAX has not moved yet.
    #[inline(never)]
    pub(super) fn track(&mut self, seq: Seq, end: Seq) {
        let (t, line, m) = (&mut self.t, &self.lines.recovery, &self.lines.measures);
        let now = self.now.0 as u32;
        if !t.has(bits::TRACKED) {
            if t.has(RECOVERY) || !end.after(t.snd_max) {
                return;
            }
            if !self.state.track(t, self.lines, now) {
                return;
            }
        }
        let Some(board) = self.state.boards.get(line.board.get()) else { return };
        if t.has(RECOVERY) {
            board.reduction.out = board.reduction.out.saturating_add(end.bytes_since(seq));
        }
        if seq.before(t.snd_max) {
            let last = if end.after(t.snd_max) { t.snd_max } else { end };
            board.resent(seq, last, now);
            recovery::count(&mut self.state.boards, t, self.lines);
        } else if board.clean {
            let after = Tcb { snd_max: end, ..*t };
            board.sent(end, now, m.srtt_us.get() / 32);
            rack::arm_probe(self.state, &after, self.lines, self.flow, self.now);
            return;
        }
        if end.after(t.snd_max)
            && let Some(board) = self.state.boards.get(line.board.get())
        {
            board.sent(end, now, m.srtt_us.get() / 32);
        }
    }
}
