//! Noticing that the service has died. A doorbell hangs up then, which ends `epoll_wait` and `poll`. Nothing ends a
//! sleep on a socket's event word, so of the threads that sleep there, one checks often. When the service has gone,
//! it wakes the others.

use crate::sys;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;

/// A blocked call checks this often whether the service is alive. No round number: a signal between two sleeps does
/// not end the call, and programs set alarms to whole seconds.
pub const LIFE_CHECK: Duration = Duration::from_millis(937);

/// How often one thread of a process checks. No round number: a signal that comes just as a sleep ends interrupts
/// nothing, and programs' timers expire at round times.
const OFTEN: Duration = Duration::from_millis(83);

/// Which thread of a process checks one session often.
#[derive(Default)]
pub struct Liveness {
    /// When the next check is due on the coarse monotonic clock, in ms. 0 = no thread checks.
    by_ms: AtomicU64,
}

/// One sleep of a thread.
pub struct SleepTurn<'a> {
    liveness: &'a Liveness,
    by_ms: Option<u64>,
}

fn now_ms() -> u64 {
    sys::clock(libc::CLOCK_MONOTONIC_COARSE).as_millis() as u64
}

impl Liveness {
    /// This thread falls asleep.
    pub fn turn(&self) -> SleepTurn<'_> {
        self.turn_at(now_ms())
    }

    fn turn_at(&self, now_ms: u64) -> SleepTurn<'_> {
        let before = self.by_ms.load(Ordering::Relaxed);
        let by_ms = now_ms + OFTEN.as_millis() as u64;
        // A time that has passed was set by a thread that has not slept to its end.
        let free = before <= now_ms;
        let taken = free && self.by_ms.compare_exchange(before, by_ms, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        SleepTurn { liveness: self, by_ms: taken.then_some(by_ms) }
    }
}

impl SleepTurn<'_> {
    /// The longest sleep; after it the thread checks.
    pub fn longest(&self) -> Duration {
        if self.by_ms.is_some() { OFTEN } else { LIFE_CHECK }
    }
}

impl Drop for SleepTurn<'_> {
    /// The thread is awake. The next one that falls asleep checks.
    fn drop(&mut self) {
        if let Some(by_ms) = self.by_ms {
            let _ = self.liveness.by_ms.compare_exchange(by_ms, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_those_who_sleep_looks_often() {
        let liveness = Liveness::default();
        let first = liveness.turn_at(1_000);
        let second = liveness.turn_at(1_010);
        assert_eq!((first.longest(), second.longest()), (OFTEN, LIFE_CHECK));
        drop(second);
        assert_eq!(liveness.turn_at(1_020).longest(), LIFE_CHECK, "the first still sleeps");
        drop(first);
        let third = liveness.turn_at(1_030);
        assert_eq!(third.longest(), OFTEN, "nobody looks any more");
        core::mem::forget(third);
        assert_eq!(liveness.turn_at(1_112).longest(), LIFE_CHECK);
        assert_eq!(liveness.turn_at(1_113).longest(), OFTEN, "the third has left its sleep without a word");
    }
}
