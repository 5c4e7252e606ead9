//! Which replica makes which copy.
//!
//! Copies of data in order never overlap, so any replica makes them. Data that come ahead of a hole may come again with other
//! bytes, and what fills the hole may reach over them. The last copy wins in run-to-completion. So a flow with a hole has one
//! replica, which makes its copies in their order.

use super::items::Slot;
use super::order::put;
use crate::fast::batch::Item;
use crate::flow::FlowId;
use crate::table::{FlowTable, word};
use rtrb::Producer;

/// Flows of a batch that are told apart; two in one place only share their replica.
const PLACES: usize = 64;

/// What is known of a flow in a batch.
#[derive(Clone, Copy, Debug, Default)]
struct Mark {
    /// The batch, so that nothing has to be cleared.
    batch: u64,
    flow: FlowId,
    /// It has one replica.
    alone: bool,
    /// The end of its last copy.
    end: Option<u32>,
}

/// The copies of a flow group.
#[derive(Debug)]
pub(super) struct Copies<F> {
    lanes: Vec<Producer<Slot<F>>>,
    next: u64,
    at: usize,
    marks: [Mark; PLACES],
    batch: u64,
}

impl<F> Copies<F> {
    pub fn new(lanes: Vec<Producer<Slot<F>>>) -> Self {
        Self { lanes, next: 0, at: 0, marks: [Mark::default(); PLACES], batch: 0 }
    }

    /// How many copies have been ordered.
    pub fn ordered(&self) -> u64 {
        self.next
    }

    fn mark(&mut self, flow: FlowId) -> &mut Mark {
        &mut self.marks[flow.0 as usize % PLACES]
    }

    /// Another batch begins.
    pub fn begin(&mut self) {
        self.batch += 1;
    }

    /// A segment of this flow is in the batch; its line is as it was before.
    #[inline]
    pub fn before(&mut self, table: &FlowTable, flow: FlowId) {
        let batch = self.batch;
        let mark = self.mark(flow);
        if mark.batch == batch && mark.flow == flow {
            // No line changes before the whole batch is looked up.
            return;
        }
        let hole = has_hole(table, flow);
        if mark.batch != batch {
            *mark = Mark { batch, flow, alone: hole, end: None };
        } else {
            mark.alone = true;
        }
    }

    /// The batch has been through the state machine, and these pieces are to be copied.
    #[inline]
    pub fn after(&mut self, table: &FlowTable, items: &[Item]) {
        let mut last = (FlowId(u32::MAX), false);
        for Item { flow, copy, .. } in items.iter().filter(|item| item.copy.len != 0) {
            if last.0 != *flow {
                last = (*flow, has_hole(table, *flow));
            }
            let hole = last.1;
            let mark = self.mark(*flow);
            // A hole that came and went within the batch has left copies that do not ascend.
            let back = mark.end.is_some_and(|end| (copy.position.wrapping_sub(end) as i32) < 0);
            mark.alone |= hole || back;
            mark.end = Some(copy.position.wrapping_add(copy.len));
        }
    }

    /// Orders the copy of a frame of the batch.
    #[inline]
    pub fn order(&mut self, mut frame: Slot<F>) {
        let lanes = self.lanes.len();
        let lane = if self.mark(frame.flow).alone {
            frame.flow.0 as usize % lanes
        } else {
            self.at = if self.at + 1 >= lanes { 0 } else { self.at + 1 };
            self.at
        };
        frame.number = self.next;
        put(&mut self.lanes[lane], frame);
        self.next += 1;
    }
}

/// Something of the flow has come ahead of a hole.
#[inline]
fn has_hole(table: &FlowTable, flow: FlowId) -> bool {
    // The word has both numbers.
    table.get(flow).is_some_and(|lines| lines.protocol.load_words::<{ word::RCV_MSS }>().out_of_order() != 0)
}
