//! Frames of receive queues that have no port. They take the way of a frame that has come to another flow group than its
//! flow's: through the slow path.

use crate::slow::SlowState;
use towpath_tcp::time::Micros;

/// Frames taken in one turn.
const BATCH: usize = 256;

impl SlowState {
    /// Takes waiting frames, and returns how many.
    pub fn strays(&mut self, now: Micros) -> usize {
        let mut work = 0;
        while work < BATCH
            && let Some((port, frame)) = self.host.network.next_stray()
        {
            work += 1;
            self.slow.on_stray_frame(now, port, frame, &mut self.host);
            self.later(now);
        }
        work
    }
}
