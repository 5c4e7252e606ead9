//! Who looks whether the service is still there. A bell hangs up when it dies, which ends `epoll_wait` and `poll`; but nothing ends a
//! sleep on a socket's event word. So of the threads that sleep so one looks often, and has the others look when it has gone.

use crate::session::{LIFE_CHECK, Session};
use crate::socket::Socket;
use crate::{doors, sys};
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;

/// How often one thread of a process looks. No round number: a signal that comes as a sleep ends, and not in it, interrupts nothing, and
/// those of programs' timers come after round times.
const OFTEN: Duration = Duration::from_millis(83);

/// The lookout of a process for one session.
#[derive(Default)]
pub struct Lookout {
    /// By then somebody will have looked, on the coarse monotonic clock, in ms. 0 = nobody.
    by_ms: AtomicU64,
}

/// For one sleep.
pub struct Turn<'a> {
    lookout: &'a Lookout,
    by_ms: Option<u64>,
}

fn now_ms() -> u64 {
    sys::clock(libc::CLOCK_MONOTONIC_COARSE).as_millis() as u64
}

impl Lookout {
    /// This thread falls asleep.
    pub fn turn(&self) -> Turn<'_> {
        self.turn_at(now_ms())
    }

    fn turn_at(&self, now_ms: u64) -> Turn<'_> {
        let before = self.by_ms.load(Ordering::Relaxed);
        let by_ms = now_ms + OFTEN.as_millis() as u64;
        // A time that is over was the promise of a thread that has not slept to its end.
        let free = before <= now_ms;
        let taken = free && self.by_ms.compare_exchange(before, by_ms, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        Turn { lookout: self, by_ms: taken.then_some(by_ms) }
    }
}

impl Turn<'_> {
    /// The longest sleep, after which the thread looks.
    pub fn longest(&self) -> Duration {
        if self.by_ms.is_some() { OFTEN } else { LIFE_CHECK }
    }
}

impl Drop for Turn<'_> {
    /// Awake: the next who falls asleep looks.
    fn drop(&mut self) {
        if let Some(by_ms) = self.by_ms {
            let _ = self.lookout.by_ms.compare_exchange(by_ms, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

/// After a sleep in which nothing has happened: if the service has gone, all who sleep shall see it.
pub fn look(session: &'static Session) {
    if session.is_dead() || session.check_alive() {
        return;
    }
    for slot in (0..session.geometry.slots).filter_map(|raw| session.region.slot(raw)) {
        doors::wake_own(&Socket { session, slot, generation: 0 });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_those_who_sleep_looks_often() {
        let lookout = Lookout::default();
        let first = lookout.turn_at(1_000);
        let second = lookout.turn_at(1_010);
        assert_eq!((first.longest(), second.longest()), (OFTEN, LIFE_CHECK));
        drop(second);
        assert_eq!(lookout.turn_at(1_020).longest(), LIFE_CHECK, "the first still sleeps");
        drop(first);
        let third = lookout.turn_at(1_030);
        assert_eq!(third.longest(), OFTEN, "nobody looks any more");
        core::mem::forget(third);
        assert_eq!(lookout.turn_at(1_112).longest(), LIFE_CHECK);
        assert_eq!(lookout.turn_at(1_113).longest(), OFTEN, "the third has left its sleep without a word");
    }
}
