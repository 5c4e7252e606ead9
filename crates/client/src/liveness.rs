//! Notices that the service has died. Its end hangs up a doorbell, which ends `epoll_wait` and `poll`. Nothing ends a
//! sleep on a socket's event word. So one of the threads that sleep there checks often. When the service has died, it
//! wakes the others.

use crate::sys;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::time::Duration;

/// How often a blocked call checks whether the service is alive. It is not a round number, because programs set alarms
/// to whole seconds, and a signal between two sleeps does not end the call.
pub const LIFE_CHECK: Duration = Duration::from_millis(937);

/// How often the one thread of a process checks. It is not a round number, because timers expire at round times, and a
/// signal just at the end of a sleep interrupts nothing.
const OFTEN: Duration = Duration::from_millis(83);

/// A service has died, and what follows from that has not all been done.
pub(crate) static DEAD_FOUND: AtomicBool = AtomicBool::new(false);

/// A service has been found dead.
pub(crate) fn found_dead() {
    DEAD_FOUND.store(true, Ordering::Release);
}

/// Decides which thread of a process checks a session often.
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
    /// This thread is about to sleep.
    pub fn turn(&self) -> SleepTurn<'_> {
        self.turn_at(now_ms())
    }

    fn turn_at(&self, now_ms: u64) -> SleepTurn<'_> {
        let before = self.by_ms.load(Ordering::Relaxed);
        let by_ms = now_ms + OFTEN.as_millis() as u64;
        // If that time has passed, the thread that set it has left its sleep early.
        let free = before <= now_ms;
        let taken = free && self.by_ms.compare_exchange(before, by_ms, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        SleepTurn { liveness: self, by_ms: taken.then_some(by_ms) }
    }
}

impl SleepTurn<'_> {
    /// The longest sleep. After it the thread checks.
    pub fn longest(&self) -> Duration {
        if self.by_ms.is_some() { OFTEN } else { LIFE_CHECK }
    }
}

impl Drop for SleepTurn<'_> {
    /// The thread is awake. The next one that sleeps will check.
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
    fn one_of_the_sleepers_checks_often() {
        let liveness = Liveness::default();
        let first = liveness.turn_at(1_000);
        let second = liveness.turn_at(1_010);
        assert_eq!((first.longest(), second.longest()), (OFTEN, LIFE_CHECK));
        drop(second);
        assert_eq!(liveness.turn_at(1_020).longest(), LIFE_CHECK, "the first still sleeps");
        drop(first);
        let third = liveness.turn_at(1_030);
        assert_eq!(third.longest(), OFTEN, "no thread checks any more");
        core::mem::forget(third);
        assert_eq!(liveness.turn_at(1_112).longest(), LIFE_CHECK);
        assert_eq!(liveness.turn_at(1_113).longest(), OFTEN, "the third has left its sleep early");
    }
}
