//! What other threads have left for the one that sends.

use crate::places::lock;
use std::collections::VecDeque;
use std::sync::Mutex;

/// Most jobs that may wait. There are fewer unless who takes them hangs.
const MOST: usize = 1 << 17;

/// A queue of them.
pub struct Jobs<J>(Mutex<VecDeque<J>>);

impl<J> Default for Jobs<J> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<J> Jobs<J> {
    /// Leaves one; false = there are too many.
    pub fn give(&self, job: J) -> bool {
        let mut jobs = lock(&self.0);
        let room = jobs.len() < MOST;
        if room {
            jobs.push_back(job);
        }
        room
    }
    /// The oldest.
    pub fn take(&self) -> Option<J> {
        lock(&self.0).pop_front()
    }
    /// Is there none?
    pub fn is_empty(&self) -> bool {
        lock(&self.0).is_empty()
    }
}
