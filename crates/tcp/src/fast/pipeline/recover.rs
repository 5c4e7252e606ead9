//! The flow group goes on after a panic. What it may have left half done is a connection's: that is reset, and the others go on.

use super::doing::Doing;
use super::group::FlowGroup;
use crate::fast::batch::Item;
use crate::fast::{FastPath, recover};
use crate::time::Micros;

impl<F: AsRef<[u8]> + AsMut<[u8]>> FlowGroup<F> {
    /// The thread has ended in the middle of a call; this one takes over. The flow that was in hand is reset: it may have bytes that are
    /// not there, or be in no queue. If it cannot be told which one it was, each is reset that could be. What else was in the call is
    /// as if lost: frames that come again, or a message.
    pub fn recover(&mut self, now: Micros) {
        match std::mem::take(&mut self.doing) {
            Doing::Nothing => {}
            Doing::Batch => self.recover_batch(),
            Doing::Injected => {
                // The next batch has other frames of these numbers.
                self.fast.state.held.clear();
                self.doomed.extend(self.fast.batch.items().iter().map(|item| item.flow));
            }
            Doing::Flow(flow) => self.doomed.push(flow),
            Doing::Sending => self.recover_sending(),
        }
        // A panic in there ends with the next call, which has others to reset.
        while let Some(flow) = self.doomed.pop() {
            self.resets += u64::from(recover::reset(&mut self.fast, now, flow));
        }
    }

    /// The state machine takes flow after flow, and notes the copies that each needs. So all are done that stand before the last copy.
    fn recover_batch(&mut self) {
        let FastPath { table, state, batch } = &mut self.fast;
        let items = batch.items();
        self.copies.after(table, items);
        // Frames that nobody has taken are lost, as on the wire.
        state.held.clear();
        let last = items.iter().rposition(|item| item.copy.len != 0);
        let from = last.map_or(0, |last| {
            let before = |item: &Item| item.flow != items[last].flow;
            items[..last].iter().rposition(before).map_or(0, |before| before + 1)
        });
        self.doomed.extend(items[from..].iter().map(|item| item.flow));
        self.hand_on();
    }

    fn recover_sending(&mut self) {
        recover::stranded(&self.fast.table, &mut self.fast.state, &mut self.doomed);
        self.plans.put_behind(self.copies.ordered());
    }

    /// Resets the flows of copies and events that were given up.
    #[inline]
    pub(super) fn reset_broken(&mut self, now: Micros) {
        while let Ok(flow) = self.broken.pop() {
            self.resets += u64::from(recover::reset(&mut self.fast, now, flow));
        }
    }

    /// Connections that were reset because a thread has ended.
    pub fn resets(&self) -> u64 {
        self.resets
    }
}
