//! Deadlines of connections: a heap whose stale entries are skipped when they come up.

use crate::flow::FlowId;
use crate::time::Micros;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Names one setting of one connection's timer; a connection whose stamp differs has been re-armed since. 0 = not armed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Stamp(u64);

impl Stamp {
    /// No timer.
    pub(super) const NONE: Self = Self(0);
}

/// All timers.
#[derive(Debug, Default)]
pub(super) struct Timers {
    heap: BinaryHeap<Reverse<(Micros, Stamp, FlowId)>>,
    last: u64,
}

impl Timers {
    /// A stamp that nobody has had before.
    pub(super) fn stamp(&mut self) -> Stamp {
        self.last += 1;
        Stamp(self.last)
    }
    /// Arms a timer; the caller keeps the stamp in the connection.
    pub(super) fn arm(&mut self, at: Micros, flow: FlowId) -> Stamp {
        let stamp = self.stamp();
        self.heap.push(Reverse((at, stamp, flow)));
        stamp
    }
    /// The earliest entry, stale or not: waking up once too often is harmless.
    pub(super) fn next(&self) -> Option<Micros> {
        self.heap.peek().map(|Reverse((at, ..))| *at)
    }
    /// Takes an entry that is due.
    pub(super) fn pop(&mut self, now: Micros) -> Option<(FlowId, Stamp)> {
        let Reverse((at, stamp, flow)) = *self.heap.peek()?;
        if at > now {
            return None;
        }
        self.heap.pop();
        Some((flow, stamp))
    }
    /// How many entries there are, stale ones included.
    pub(super) fn len(&self) -> usize {
        self.heap.len()
    }
    /// Throws stale entries away.
    pub(super) fn retain(&mut self, mut current: impl FnMut(FlowId, Stamp) -> bool) {
        self.heap.retain(|Reverse((_, stamp, flow))| current(*flow, *stamp));
    }
}
