//! A queue of jobs for the sending thread.

use std::collections::VecDeque;
use std::sync::Mutex;
use towpath_forward::lock::lock;

/// Most jobs that may wait. More would wait only if the sending thread hangs.
const MOST: usize = 1 << 17;

/// A queue of jobs.
pub struct JobQueue<J>(Mutex<VecDeque<J>>);

impl<J> Default for JobQueue<J> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<J> JobQueue<J> {
    /// Adds a job. False if there are too many.
    pub fn push(&self, job: J) -> bool {
        let mut jobs = lock(&self.0);
        let room = jobs.len() < MOST;
        if room {
            jobs.push_back(job);
        }
        room
    }
    /// Takes the oldest job.
    pub fn pop(&self) -> Option<J> {
        lock(&self.0).pop_front()
    }
    /// True if there is no job.
    pub fn is_empty(&self) -> bool {
        lock(&self.0).is_empty()
    }
}
