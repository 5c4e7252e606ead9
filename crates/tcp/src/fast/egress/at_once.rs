//! A reply that goes while the flow is at hand, without a turn of the scheduler.
//!
//! It goes if it is all that the flow has to send, one segment, and nobody waits in front of it. So it leaves in the
//! same turn and in the same order as through the scheduler, and no class gets more than its share.

use super::after::{end_turn, go_on};
use super::{End, SendTurn, Sent};
use crate::buffers::{Rings, TxPorts};
use crate::fast::context::{FastState, FlowTurn};
use crate::fast::plan::Plan;
use crate::fast::prediction;
use crate::table::stages::{Application, Egress};

/// Nothing that is to be sent would be overtaken, and no class has a rate limit.
#[inline(always)]
pub(in crate::fast) fn nobody_waits(state: &FastState) -> bool {
    state.scheduler.is_quiet() && state.frames.0.is_empty()
}

/// Sends this segment, which [`plan::whole`](crate::fast::plan::whole) lets go, and ends the turn. Else, because the port has
/// no room for it, it gives the turn back as it was.
#[inline(always)]
pub(in crate::fast) fn send<'a, R: Rings, P: TxPorts, const PREDICTED: bool>(
    application: Application,
    turn: FlowTurn<'a>,
    plan: &Plan,
    rings: &'a R,
    ports: &'a mut P,
) -> Option<FlowTurn<'a>> {
    let by = Egress::from(application);
    turn.state.sending.by(by).ms = turn.now.ms();
    let mut send = SendTurn::<_, _, PREDICTED>::new(turn, rings, ports);
    let sent = send.segment(by, plan, |turn| {
        turn.state.at_once += 1;
        go_on::<PREDICTED>(by, turn, plan);
        end_turn::<PREDICTED>(by, turn, End::Done);
        if PREDICTED {
            turn.store_words::<_, { prediction::REPLY_READS }, { prediction::REPLY_WRITES }>(application);
        } else {
            turn.store(application);
        }
    });
    if sent == Sent::Yes { None } else { Some(send.turn) }
}
