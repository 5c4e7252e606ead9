//! The meter of a turn to send: credit of the flow's own pacing and of its class's rate limit.

use super::{End, SendTurn, Sent};
use crate::buffers::{Rings, TxPorts};
use crate::fast::{pace, plan, post};
use crate::table::bits::FlagSet;
use crate::table::bits::{
    ACK_NOW, BYPASSING, DEAD, ECN_EDGES, KEEPALIVE, LIMIT_WAIT, PACED, PROBE, QueueFlags, RESEND, RESET, SCHEDULED,
    TAIL,
};
use crate::table::stages::{Egress, Post};
use crate::table::tcb::Marks;
use towpath_wire::segment::flags;

/// Flags for segments that need no credit.
const WITHOUT_CREDIT: Marks = Marks::mask(DEAD, QueueFlags::EMPTY, ECN_EDGES, RESET);

/// Credit at the beginning of a turn.
#[derive(Clone, Copy)]
pub(super) struct Meter {
    /// The flow's own.
    own: i64,
    /// Its class's. It is also negative if only segments that bypass limits may go.
    class: i64,
}

impl Meter {
    pub(super) const NONE: Self = Self { own: i64::MAX, class: i64::MAX };

    /// The turn `send` has ended with this result. Returns the result after credit has been taken into account.
    #[cold]
    pub(super) fn end<R, P>(self, by: Post, send: &mut SendTurn<'_, R, P, false>, end: End) -> End {
        let held = send.held;
        let turn = &mut send.turn;
        let spent = self.own.min(self.class) - send.credit;
        let own = self.own.saturating_sub(spent);
        let by_pace = held && own < 0;
        let by_class = held && !by_pace;
        if turn.t.has(PACED) {
            pace::end(by, turn, own, (by_pace, held || end != End::Done));
        }
        let (wheel, class) = (turn.state.wheel.by(by), turn.lines.identity.class());
        turn.state.scheduler.by(by).spend(wheel, turn.now, class, spent, (by_class, end != End::Done));
        if !by_class || end != End::Done {
            return end;
        }
        turn.t.set(by, LIMIT_WAIT);
        End::NoCredit
    }
}

impl<R, P> SendTurn<'_, R, P, false> {
    /// The credit of this turn.
    #[cold]
    pub(super) fn meter(&mut self, by: Post, bypass: bool) -> Meter {
        let turn = &mut self.turn;
        let own = if turn.t.has(PACED) { pace::begin(turn) } else { i64::MAX };
        let number = turn.lines.identity.class();
        let class = if bypass { -1 } else { turn.state.scheduler.by(by).credit(turn.now, number) };
        self.credit = own.min(class);
        Meter { own, class }
    }

    /// The end of a turn for segments that bypass rate limits. The flow keeps its place in the class's queue.
    #[cold]
    pub(super) fn end_bypass(&mut self, by: Post, end: End) {
        let turn = &mut self.turn;
        if end == End::NoRoom || end == End::Quota {
            turn.t.set(by, BYPASSING);
            return turn.state.scheduler.by(by).bypass(turn.lines.identity.port(), turn.flow);
        }
        if turn.t.has(SCHEDULED) {
            turn.t.set(by, LIMIT_WAIT);
        }
        post::settle(by, &mut turn.t, &mut turn.state.outbox, turn.flow);
    }
}

impl<R: Rings, P: TxPorts> SendTurn<'_, R, P, false> {
    /// Sends what is not paced: RST, acknowledgements and window probes.
    #[cold]
    pub(super) fn without_credit(&mut self, by: Egress) -> Option<Sent> {
        let (t, lines) = (&self.turn.t, self.turn.lines);
        let data = t.any(RESEND | TAIL) || plan::repair_may_go(t, lines);
        let other = t.marked(WITHOUT_CREDIT) || (t.any(PROBE | KEEPALIVE) && !data);
        if other && let Some(result) = self.rare(by) {
            return result;
        }
        self.held = data || plan::next(&self.turn.t, lines).is_some();
        self.turn.t.has(ACK_NOW).then(|| self.send_empty(by, flags::ACK))
    }
}
