//! What a panic leaves half done is a connection's. That is reset, and the others go on.

use super::context::{FastState, FlowTurn};
use super::{FastPath, STAGES, close};
use crate::flow::FlowId;
use crate::messages::ToSlow;
use crate::table::FlowTable;
use crate::table::bits::{BYPASSING, DEAD, SCHEDULED};
use crate::table::stages::{Close, Post};
use crate::time::Micros;
use std::collections::HashSet;

/// ECONNABORTED on Linux.
const CONNECTION_ABORTED: i32 = 103;

impl FastPath {
    /// The thread has caught a panic in the middle of a call. Each connection is reset that may be half done: it may have bytes that
    /// were never copied, or be in no queue. Returns these. No more of their bytes may be shown to applications. What else was in the
    /// call is as if lost: frames, which come again, and what an application has said, for which its words are to be read again.
    #[cold]
    pub fn recover(&mut self, now: Micros) -> Vec<FlowId> {
        // Items are left only where a batch has not come to its end.
        let mut doomed: Vec<_> = self.batch.items().iter().map(|item| item.flow).collect();
        self.batch.set_used(0);
        self.state.held.clear();
        stranded(&self.table, &mut self.state, &mut doomed);
        doomed.sort_unstable_by_key(|flow| flow.0);
        doomed.dedup();
        for flow in &doomed {
            reset(self, now, *flow);
        }
        doomed
    }
}

/// Finds flows that are in no queue to send, and whose lines say that they are. A flow in hand has left its queue, and its line does
/// not say so yet.
pub(super) fn stranded(table: &FlowTable, state: &mut FastState, found: &mut Vec<FlowId>) {
    let by = STAGES.post;
    state.scheduler.by(by).end_serving();
    let (queued, bypass) = state.scheduler.queued();
    let (queued, bypass): (HashSet<_>, HashSet<_>) = (queued.collect(), bypass.collect());
    for flow in (0..table.max_flows()).map(FlowId) {
        let Some(lines) = FlowTurn::lines(table, state, flow) else { continue };
        let mut t = lines.protocol.load();
        let lost = (t.has(SCHEDULED) && !queued.contains(&flow), t.has(BYPASSING) && !bypass.contains(&flow));
        if lost == (false, false) {
            continue;
        }
        if lost.0 {
            t.clear(by, SCHEDULED);
        }
        if lost.1 {
            t.clear(by, BYPASSING);
        }
        lines.protocol.store(by, &t);
        found.push(flow);
    }
}

/// Ends a flow: RST for the peer, an error for the application, and the slow path is told. False: it has ended already.
#[cold]
pub(super) fn reset(fast: &mut FastPath, now: Micros, flow: FlowId) -> bool {
    let Some(mut turn) = FlowTurn::of(&fast.table, &mut fast.state, now, flow) else { return false };
    if turn.t.has(DEAD) {
        return false;
    }
    let by = STAGES.control;
    close::kill(Close::from(by), &mut turn, true, Some(CONNECTION_ABORTED));
    turn.tell(Post::from(by), ToSlow::Aborted(flow));
    turn.store(by);
    true
}
