//! When the idle connections of a session are looked at (see `idle`).

use core::sync::atomic::{AtomicU64, Ordering};

/// The time of a session.
pub(crate) struct IdleTime {
    /// After this time a connection is idle, ms; `None`: it never is.
    after_ms: Option<u32>,
    /// When a thread looks next, ms of the coarse monotonic clock.
    due_ms: AtomicU64,
}

impl IdleTime {
    /// `after_ms` as the service says it.
    pub(crate) fn new(after_ms: u32) -> Self {
        Self { after_ms: (after_ms != 0).then_some(after_ms), due_ms: AtomicU64::new(0) }
    }
    /// After this time a connection is idle, ms.
    pub(crate) fn after_ms(&self) -> Option<u32> {
        self.after_ms
    }
    /// Is it time to look? One thread is told so.
    pub(crate) fn is_due(&self, now_ms: u64) -> bool {
        let Some(after_ms) = self.after_ms else { return false };
        let (due_ms, next_ms) = (self.due_ms.load(Ordering::Relaxed), now_ms + u64::from(after_ms / 4));
        due_ms <= now_ms && self.due_ms.compare_exchange(due_ms, next_ms, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_at_a_time_looks_and_none_if_it_never_is_to_be() {
        let time = IdleTime::new(10_000);
        assert_eq!([5, 5, 2504, 2505, 2506].map(|now_ms| time.is_due(now_ms)), [true, false, false, true, false]);
        assert!(!IdleTime::new(0).is_due(1 << 40));
    }
}
