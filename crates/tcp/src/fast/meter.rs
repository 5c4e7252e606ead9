//! What holds a flow's turn to send back beside the windows: credit, of its own pacing and of its group's rate limit.

use super::egress::{End, Sent, Turn};
use super::{pace, plan, settle};
use crate::buffers::{Rings, TxPorts};
use crate::flow::flow_flags::LIMIT_WAIT;
use crate::table::bits;
use towpath_wire::segment::flags;

/// What holds a flow's turn back beside the windows: its own pacing and its group's rate limit.
#[derive(Clone, Copy)]
pub(super) struct Meter {
    /// The flow's credit.
    own: i64,
    /// Its group's; negative also if only what is not subject to limits may go.
    group: i64,
}

impl Meter {
    pub(super) const NONE: Self = Self { own: i64::MAX, group: i64::MAX };

    /// The turn `turn` has ended like this. Returns how it ends in truth.
    #[cold]
    pub(super) fn end<R, P>(self, turn: &mut Turn<'_, R, P>, end: End) -> End {
        let Turn { state, lines, t, flow, now, held, .. } = turn;
        let (now, held) = (*now, *held);
        let spent = self.own.min(self.group) - turn.credit;
        let own = self.own.saturating_sub(spent);
        let by_pace = held && own < 0;
        let by_group = held && !by_pace;
        if t.has(bits::PACED) {
            pace::end(state, now, *flow, t, &lines.rate, own, (by_pace, held || end != End::Done));
        }
        state.scheduler.spend(&mut state.wheel, now, lines.identity.group(), spent, (by_group, end != End::Done));
        if !by_group || end != End::Done {
            return end;
        }
        t.flags |= LIMIT_WAIT;
        End::NoCredit
    }
}

impl<R, P> Turn<'_, R, P> {
    /// What holds this turn back.
    #[cold]
    pub(super) fn meter(&mut self, pressing: bool) -> Meter {
        let (state, t, now) = (&mut *self.state, &self.t, self.now);
        let own = if t.has(bits::PACED) { pace::begin(t, &self.lines.rate, now) } else { i64::MAX };
        let group = if pressing { -1 } else { state.scheduler.credit(now, self.lines.identity.group()) };
        self.credit = own.min(group);
        Meter { own, group }
    }

    /// The end of a turn for what no rate limit holds back: its place in the group's queue stays.
    #[cold]
    pub(super) fn end_pressing(&mut self, end: End) {
        let Self { state, lines, t, flow, .. } = self;
        if end == End::NoRoom || end == End::Quota {
            t.flags |= bits::PRESSING;
            return state.scheduler.press(lines.identity.port(), *flow);
        }
        if t.has(bits::SCHEDULED) {
            t.flags |= LIMIT_WAIT;
        }
        t.flags = settle(&mut state.outbox, *flow, t.flags);
    }
}

impl<R: Rings, P: TxPorts> Turn<'_, R, P> {
    /// What is not paced: RST, acknowledgements and window probes.
    #[cold]
    pub(super) fn without_credit(&mut self) -> Option<Sent> {
        let data = self.t.any(bits::RESEND | bits::TAIL) || plan::repair_may_go(&self.t, self.lines);
        let other = self.t.any(bits::RESET | bits::DEAD | bits::ECN_EDGES)
            || (self.t.any(bits::PROBE | bits::KEEPALIVE) && !data);
        if other && let Some(result) = self.rare() {
            return result;
        }
        self.held = data || plan::next(&self.t, self.lines).is_some();
        self.t.has(bits::ACK_NOW).then(|| self.send(self.empty_seq(), flags::ACK, 0))
    }
}
