//! How a flow ends.

use super::context::FlowTurn;
use super::{post, recovery};
use crate::messages::{ToSlow, event};
use crate::table::bits::{ACK_NOW, ACK_OWED, DEAD, PROBE, RESEND, RESET, TIMING};
use crate::table::stages::{Close, Loss, Post};

/// Ends the flow as far as peer and application are concerned. The slow path removes it.
pub(super) fn kill(by: Close, turn: &mut FlowTurn<'_>, rst: bool, errno: Option<i32>) {
    turn.t.clear(by, ACK_NOW | ACK_OWED);
    turn.t.clear(by, RESEND | PROBE);
    turn.t.clear(Loss::from(by), TIMING);
    turn.t.set(by, DEAD);
    forget(by, turn);
    if rst {
        turn.t.set(by, RESET);
        post::schedule(Post::from(by), turn);
    }
    if let Some(errno) = errno {
        turn.lines.identity.set_errno(by, errno);
        turn.raise(by, event::ERROR);
    }
}

/// Gives back what the flow has beside its lines.
pub(super) fn forget(by: Close, turn: &mut FlowTurn<'_>) {
    turn.t.owe_duplicates(by, 0);
    turn.state.out_of_order.by(by).release(turn.t.out_of_order());
    turn.t.ahead(by).out_of_order = 0;
    recovery::untrack(Loss::from(by), turn);
}

/// Sends RST and ends the flow.
pub(super) fn abort(by: Close, turn: &mut FlowTurn<'_>) {
    kill(by, turn, true, None);
    turn.tell(by, ToSlow::Aborted(turn.flow));
}
